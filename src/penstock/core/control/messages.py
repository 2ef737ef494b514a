"""The control protocol: every message between hosts and the driver, as frozen types.

Theory of operation
-------------------
    host   --- HostReport ---> driver     what happened, in the past tense
    driver --- HostOrder ----> host       what to do, in the imperative
    host   <-- PeerMessage --> host       the ring's pings, and what replicas tell each other

The driver is a host of its own, number 0: it has peers, too.  A channel keeps the order of its
messages and delivers each once, so no message is numbered.  :mod:`penstock.wire.control` turns
every type that is reachable from here into bytes and back; a new message needs no code there.
A receiver handles every type of one union, by a ``match`` that mypy knows to be exhaustive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.control.host_orders import HostOrder
from penstock.core.control.host_reports import HostReport
from penstock.core.delivery.ring import Load

__all__ = [
    "ControlMessage",
    "PeerMessage",
    "RingPing",
    "RingPong",
    "RoleEnvelopes",
    "ToDriver",
    "ToHost",
]


@dataclass(frozen=True, slots=True)
class RingPing:
    """Asks the next host of the ring whether it lives."""

    beat: int
    loads: Mapping[int, Load]


@dataclass(frozen=True, slots=True)
class RingPong:
    """Answers a ping."""

    beat: int
    loads: Mapping[int, Load]


@dataclass(frozen=True, slots=True)
class RoleEnvelopes:
    """What roles tell each other: stages, each with a packed envelope."""

    generation: int
    envelopes: tuple[tuple[int, bytes], ...]


PeerMessage = RingPing | RingPong | RoleEnvelopes
ToDriver = HostReport | PeerMessage
ToHost = HostOrder | PeerMessage
ControlMessage = HostReport | HostOrder | PeerMessage
