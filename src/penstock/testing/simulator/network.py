"""The simulated network: ordered channels, delays, broken connections, stale deliveries."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.core.causal.diffs import show_diff
from penstock.core.causal.graph import NodeKind
from penstock.core.channel import ChannelReceiver, ChannelSender
from penstock.core.node.messages import MARK, Message
from penstock.testing.simulator.links import Links

if TYPE_CHECKING:
    from penstock.testing.simulator.hosts import Cluster
    from penstock.testing.simulator.process import Process
    from penstock.testing.simulator.world import World

__all__ = ["Channel", "Network", "note_message"]


@dataclass
class Channel:
    """From one process to one incarnation of a node; the real channel machines at both ends."""

    sender: Process
    target: int
    incarnation: int
    sending: ChannelSender[Message] = field(default_factory=lambda: ChannelSender(1 << 30))
    receiving: ChannelReceiver = field(default_factory=ChannelReceiver)
    wire: deque[tuple[int, Message]] = field(default_factory=deque)
    acknowledged: int = 0


class Network:
    """All channels."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.channels: dict[tuple[int, int, int, int], Channel] = {}
        self.links = Links()

    def send(self, sender: Process, message: Message) -> None:
        """Put a message on its channel."""
        key = (sender.node, sender.incarnation, message.target, message.target_incarnation)
        channel = self.channels.get(key)
        if channel is None:
            channel = Channel(sender, message.target, message.target_incarnation)
            self.channels[key] = channel
        channel.wire.append((channel.sending.push(message, message.target, 1), message))
        if self.world.trace is not None:
            note_message(self.world, "sends", sender, message)

    def busy(self) -> list[Channel]:
        """Channels with something on the wire."""
        return [channel for channel in self.channels.values() if channel.wire]

    def reachable(self, cluster: Cluster, stores: bool) -> list[Channel]:
        """Those of them whose message can arrive; sinks wait for a store that takes writes."""
        found = []
        for channel in self.channels.values():
            if not channel.wire:
                continue
            target = self._target(channel)
            passes = self.links.passes(channel.sender.host, target.host)
            waits = target.kind is NodeKind.SINK and not stores
            if passes and not waits and not cluster.is_frozen(target.host):
                found.append(channel)
        return found

    def _target(self, channel: Channel) -> Process:
        found = self.world.find(channel.target, channel.incarnation)
        return self.world.processes[channel.target] if found is None else found

    def reconnect(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Connections between hosts were opened anew: what was not acknowledged is sent again."""
        mended = {frozenset(pair) for pair in pairs}
        for channel in self.channels.values():
            hosts = frozenset((channel.sender.host, self._target(channel).host))
            if channel.sender.alive and hosts in mended:
                channel.wire = deque(channel.sending.resume(channel.acknowledged))

    def deliver(self, channel: Channel) -> None:
        """The next message arrives, at the process it was meant for or at its successor."""
        world = self.world
        number, message = channel.wire.popleft()
        process = world.find(channel.target, channel.incarnation)
        current = world.processes.get(channel.target)
        if process is None or not process.alive:
            if current is not None and current.alive and world.random.random() < 0.5:
                world.count("stale")
                world.receive(current, message)
            return
        if process.paused:
            channel.wire.appendleft((number, message))
            return
        if channel.receiving.accept(number):
            heard = self.links.passes(process.host, channel.sender.host)
            if heard and world.random.random() < 0.5:
                channel.acknowledged = channel.receiving.received
                channel.sending.acknowledged(channel.acknowledged, {})
            world.receive(process, message)

    def lose(self, process: Process) -> None:
        """A process died: what it sent last may be lost."""
        for channel in self.channels.values():
            if channel.sender is process:
                keep = self.world.random.randint(0, len(channel.wire))
                while len(channel.wire) > keep:
                    channel.wire.pop()

    def cut(self) -> bool:
        """Break a connection; what was not acknowledged is sent again."""
        candidates = [c for c in self.channels.values() if c.sender.alive and c.wire]
        if not candidates:
            return False
        channel = self.world.random.choice(candidates)
        channel.wire = deque(channel.sending.resume(channel.acknowledged))
        return True


def note_message(world: World, verb: str, process: Process, message: Message) -> None:
    """A line of the trace about a message."""
    what = "mark" if message.kind == MARK else f"rows {message.payload}"
    peer = message.target if verb == "sends" else message.sender
    world.note(
        f"{process.name} {verb} {peer} {what} of epoch {message.time.epoch} "
        f"{show_diff(message.diff)}"
    )
