"""The simulated network: ordered channels, delays, broken connections, stale deliveries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from penstock.core.causal.diffs import show_diff
from penstock.core.causal.graph import NodeKind
from penstock.core.channel import ChannelReceiver, ChannelSender
from penstock.core.node.messages import MARK, Message
from penstock.testing.simulator.links import Links

if TYPE_CHECKING:
    from penstock.testing.simulator.hosts import Cluster
    from penstock.testing.simulator.process import Process
    from penstock.testing.simulator.world import World

__all__ = ["Channel", "Network", "NodeChannel", "Sender", "note_message"]


class Sender(Protocol):
    """Who sends on a channel: a node, or the replicas of a host."""

    host: int

    @property
    def alive(self) -> bool:
        """Whether its process is there."""


Item = TypeVar("Item")
From = TypeVar("From", bound=Sender)


class Channel(ABC, Generic[From, Item]):
    """An ordered channel to one target; the real channel machines at both ends."""

    def __init__(self, network: Network, sender: From, target: int) -> None:
        self.network = network
        self.sender = sender
        self.target = target
        self.wire: deque[tuple[int, Item]] = deque()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Number messages from the first on."""
        self._sending: ChannelSender[Item] = ChannelSender(1 << 30)
        self._receiving = ChannelReceiver()
        self._acknowledged = 0

    @property
    @abstractmethod
    def host(self) -> int:
        """The host where it ends."""

    @property
    def edge(self) -> tuple[int, int] | None:
        """The nodes that it connects, if it does."""
        return None

    @abstractmethod
    def takes(self, stores: bool) -> bool:
        """Whether what comes is taken now; ``stores``: the store takes writes."""

    @abstractmethod
    def deliver(self) -> None:
        """The next message arrives."""

    def send(self, item: Item) -> None:
        """Put a message on its way."""
        self.wire.append((self._sending.push(item, self.target, 1), item))

    def accept(self, number: int) -> bool:
        """Whether a message is no repetition; the sender may hear that it has come."""
        if not self._receiving.accept(number):
            return False
        heard = self.network.links.passes(self.host, self.sender.host)
        if heard and self.network.world.random.random() < 0.5:
            self._acknowledged = self._receiving.received
            self._sending.acknowledged(self._acknowledged, {})
        return True

    def reopen(self) -> None:
        """The connection was opened anew: what was not acknowledged is sent again."""
        self.wire = deque(self._sending.resume(self._acknowledged))

    def lose(self, random: Random) -> None:
        """The sender died: what it sent last may be lost."""
        keep = random.randint(0, len(self.wire))
        while len(self.wire) > keep:
            self.wire.pop()


class NodeChannel(Channel["Process", Message]):
    """From one process to one incarnation of a node."""

    def __init__(self, network: Network, sender: Process, target: int, incarnation: int) -> None:
        super().__init__(network, sender, target)
        self.incarnation = incarnation

    @property
    def host(self) -> int:
        """The host where the incarnation runs, or its successor."""
        return self._process.host

    @property
    def edge(self) -> tuple[int, int] | None:
        """The nodes that it connects."""
        return self.sender.node, self.target

    @property
    def _process(self) -> Process:
        world = self.network.world
        found = world.find(self.target, self.incarnation)
        return world.processes[self.target] if found is None else found

    def takes(self, stores: bool) -> bool:
        """Sinks wait for a store that takes writes."""
        return stores or self._process.kind is not NodeKind.SINK

    def deliver(self) -> None:
        """The next message arrives, at the process it was meant for or at its successor."""
        world = self.network.world
        number, message = self.wire.popleft()
        process = world.find(self.target, self.incarnation)
        current = world.processes.get(self.target)
        if process is None or not process.alive:
            if current is not None and current.alive and world.random.random() < 0.5:
                world.count("stale")
                world.receive(current, message)
            return
        if process.paused:
            self.wire.appendleft((number, message))
            return
        if self.accept(number):
            world.receive(process, message)


class Network:
    """All channels."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.channels: dict[tuple[int, ...], Channel[Any, Any]] = {}
        self.links = Links()

    def send(self, sender: Process, message: Message) -> None:
        """Put a message of a node on its channel."""
        key = (sender.node, sender.incarnation, message.target, message.target_incarnation)
        channel = self.channels.get(key)
        if channel is None:
            channel = NodeChannel(self, sender, message.target, message.target_incarnation)
            self.channels[key] = channel
        channel.send(message)
        if self.world.trace is not None:
            note_message(self.world, "sends", sender, message)

    def busy(self) -> list[Channel[Any, Any]]:
        """Channels with something on the wire."""
        return [channel for channel in self.channels.values() if channel.wire]

    def reachable(self, cluster: Cluster, stores: bool) -> list[Channel[Any, Any]]:
        """Those of them whose message can arrive."""
        frozen, passes = cluster.frozen(), self.links.passes
        found = []
        for channel in self.channels.values():
            if not channel.wire or (host := channel.host) in frozen:
                continue
            if passes(channel.sender.host, host) and channel.takes(stores):
                found.append(channel)
        return found

    def reconnect(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Connections between hosts were opened anew."""
        mended = {frozenset(pair) for pair in pairs}
        for channel in self.channels.values():
            hosts = frozenset((channel.sender.host, channel.host))
            if channel.sender.alive and hosts in mended:
                channel.reopen()

    def lose(self, sender: Sender) -> None:
        """A process died: what it sent last may be lost."""
        for channel in self.channels.values():
            if channel.sender is sender:
                channel.lose(self.world.random)

    def cut(self) -> bool:
        """Break a connection."""
        candidates = [c for c in self.channels.values() if c.sender.alive and c.wire]
        if not candidates:
            return False
        self.world.random.choice(candidates).reopen()
        return True


def note_message(world: World, verb: str, process: Process, message: Message) -> None:
    """A line of the trace about a message."""
    what = "mark" if message.kind == MARK else f"rows {message.payload}"
    peer = message.target if verb == "sends" else message.sender
    world.note(
        f"{process.name} {verb} {peer} {what} of epoch {message.time.epoch} "
        f"{show_diff(message.diff)}"
    )
