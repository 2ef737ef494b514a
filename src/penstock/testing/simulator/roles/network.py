"""Simulated channels between hosts: the real channel machines, with delays, cuts and losses."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from penstock.core.channel import ChannelReceiver, ChannelSender
from penstock.core.delivery.messages import DeliverParcels, Envelope
from penstock.testing.simulator.links import Links

__all__ = ["Channel", "Network", "Packet"]


class Packet(NamedTuple):
    """What travels: parcels carry no generation, since fences refuse old ones."""

    generation: int | None
    envelope: Envelope


@dataclass
class Channel:
    """From one host to another."""

    source: int
    target: int
    sending: ChannelSender[Packet] = field(default_factory=lambda: ChannelSender(1 << 30))
    receiving: ChannelReceiver = field(default_factory=ChannelReceiver)
    wire: deque[tuple[int, Packet]] = field(default_factory=deque)
    confirmed: int = 0


class Network:
    """All channels.  ``reliable``: what a broken connection swallowed is sent again."""

    def __init__(self, random: Random, reliable: bool) -> None:
        self.random = random
        self.reliable = reliable
        self.channels: dict[tuple[int, int], Channel] = {}
        self.links = Links()
        self.open: list[Channel] = []
        """Those to hosts that live, in the same order."""

    def send(self, source: int, target: int, packet: Packet) -> None:
        """Put a message on its channel."""
        channel = self.channels.get((source, target))
        if channel is None:
            channel = self.channels[source, target] = Channel(source, target)
            self.open.append(channel)
        channel.wire.append((channel.sending.push(packet, target, 1), packet))

    def take(self, channel: Channel) -> Packet | None:
        """The next message of a channel arrives, unless it is a repetition."""
        number, packet = channel.wire.popleft()
        if not channel.receiving.accept(number):
            return None
        if self.links.passes(channel.target, channel.source) and self.random.random() < 0.5:
            channel.confirmed = number
            channel.sending.acknowledged(number, {})
        return packet

    def died(self, host: int) -> None:
        """A process is gone: what was on its way to it, and some of what was on its way from it."""
        for channel in self.channels.values():
            if channel.target == host:
                channel.wire.clear()
            elif channel.source == host:
                keep = self.random.randint(0, len(channel.wire))
                while len(channel.wire) > keep:
                    channel.wire.pop()
        self.open = [channel for channel in self.open if channel.target != host]

    def cut(self) -> Channel | None:
        """Break a connection."""
        busy = [channel for channel in self.channels.values() if channel.wire]
        if not busy:
            return None
        channel = self.random.choice(busy)
        self._reopen(channel)
        return channel

    def reconnect(self, one: int, other: int) -> None:
        """Open the connections between two hosts anew."""
        for pair in ((one, other), (other, one)):
            if pair in self.channels and self.channels[pair] in self.open:
                self._reopen(self.channels[pair])

    def _reopen(self, channel: Channel) -> None:
        """Send again what was not confirmed; an unreliable network loses parcels instead."""
        if self.reliable:
            channel.wire = deque(channel.sending.resume(channel.confirmed))
        else:
            kept = [
                pair
                for pair in channel.wire
                if not isinstance(pair[1].envelope.body, DeliverParcels)
            ]
            fresh = Channel(channel.source, channel.target)
            self.channels[channel.source, channel.target] = fresh
            self.open = [fresh if one is channel else one for one in self.open]
            for _, packet in kept:
                self.send(channel.source, channel.target, packet)
