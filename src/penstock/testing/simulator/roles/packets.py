"""What replicas of different hosts send each other: one channel from host to host."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.delivery.messages import DeliverParcels, Envelope
from penstock.testing.simulator.network import Channel, Network

if TYPE_CHECKING:
    from penstock.testing.simulator.roles.agent import Agent

__all__ = ["HostChannel", "Packet", "send_packet"]


class Packet(NamedTuple):
    """What travels to a member: parcels carry no generation, since fences refuse old ones."""

    generation: int | None
    stage: int
    envelope: Envelope


class HostChannel(Channel["Agent", Packet]):
    """From the replicas of one host to those of another.

    ``reliable``: what a broken connection swallowed is sent again; if not, parcels are lost.
    """

    def __init__(self, network: Network, sender: Agent, receiver: Agent, reliable: bool) -> None:
        super().__init__(network, sender, receiver.host)
        self._receiver = receiver
        self._reliable = reliable

    @property
    def host(self) -> int:
        """The host where it ends."""
        return self.target

    def takes(self, stores: bool) -> bool:
        """What is gone takes nothing."""
        return self._receiver.alive

    def deliver(self) -> None:
        """The next message arrives, unless its sender is heard no more."""
        if self.sender.number in self._receiver.forgot:
            self.wire.clear()
            return
        number, packet = self.wire.popleft()
        if self.accept(number):
            self._receiver.arrived(packet)

    def reopen(self) -> None:
        """What was not acknowledged is sent again, or parcels are lost."""
        if self._reliable and self._receiver.alive:
            super().reopen()
            return
        kept = [packet for _, packet in self.wire]
        self.wire.clear()
        self.begin_anew()
        for packet in kept:
            if self._receiver.alive and not isinstance(packet.envelope.body, DeliverParcels):
                self.send(packet)

    def lose(self, random: Random) -> None:
        """One end is gone: what was on its way to it, and some of what was on its way from it."""
        if self._receiver.alive:
            super().lose(random)
        else:
            self.wire.clear()


def send_packet(
    network: Network, sender: Agent, receiver: Agent, packet: Packet, reliable: bool
) -> None:
    """Put a message of a host's replicas on its channel."""
    key = (sender.host, receiver.host)
    channel = network.channels.get(key)
    if channel is None:
        channel = network.channels[key] = HostChannel(network, sender, receiver, reliable)
    channel.send(packet)
