"""The simulated network: ordered channels, delays, broken connections, stale deliveries."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.core.channel import ChannelReceiver, ChannelSender
from penstock.core.machine.messages import Message

if TYPE_CHECKING:
    from penstock.testing.simulator.process import Process
    from penstock.testing.simulator.world import World

__all__ = ["Channel", "Network"]


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

    def send(self, sender: Process, message: Message) -> None:
        """Put a message on its channel."""
        key = (sender.node, sender.incarnation, message.target, message.target_incarnation)
        channel = self.channels.get(key)
        if channel is None:
            channel = Channel(sender, message.target, message.target_incarnation)
            self.channels[key] = channel
        channel.wire.append((channel.sending.push(message, message.target, 1), message))
        if self.world.trace is not None:
            self.world.note_message("sends", sender, message)

    def busy(self) -> list[Channel]:
        """Channels with something on the wire."""
        return [channel for channel in self.channels.values() if channel.wire]

    def deliver(self, channel: Channel) -> None:
        """The next message arrives, at the process it was meant for or at whoever is there now."""
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
            if world.random.random() < 0.5:
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
