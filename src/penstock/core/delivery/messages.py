"""What replicas say to each other, what their machines ask for, and how large it is on the wire.

Sizes are those of a packed form: an id is a lane (4 bytes), a number (6) and a branch (8); a record
is an id, the origin's role (4) and a level (1).  A message has one header however many records
it carries, and no record grows with the rows that it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.core.delivery.ids import Lane, ParcelId, Role

__all__ = [
    "Acknowledge",
    "Answered",
    "Ask",
    "Body",
    "Collect",
    "Collected",
    "Copy",
    "DeliverParcels",
    "Doubt",
    "Effect",
    "Envelope",
    "Floors",
    "HandedOver",
    "Introduced",
    "Parcel",
    "ParcelRecord",
    "ProcessParcel",
    "Publish",
    "Ready",
    "Recovered",
    "Refused",
    "SendEnvelope",
    "Share",
    "Shared",
    "Taken",
]

HEADER_BYTES = 24
ID_BYTES = 18
RECORD_BYTES = ID_BYTES + 5
ACKNOWLEDGE_BYTES = ID_BYTES + 1


class Parcel(NamedTuple):
    """Rows with an id; the machines never look at the rows."""

    id: ParcelId
    payload: Any
    size: int = 0
    """Of the payload, in bytes."""


class ParcelRecord(NamedTuple):
    """What stands for a parcel among replicas: no rows, just where to ask for them."""

    id: ParcelId
    origin: Role
    level: int
    parcel: Parcel | None = None
    """The rows after all, where replicas mirror them."""


class DeliverParcels(NamedTuple):
    """Parcels for a role."""

    parcels: tuple[Parcel, ...]


class Acknowledge(NamedTuple):
    """How far parcels have come: to the role that they came from."""

    levels: tuple[tuple[ParcelId, int], ...]


class Floors(NamedTuple):
    """The sender will never send anything at or before these numbers again."""

    floors: Mapping[Lane, int]


class Share(NamedTuple):
    """Records of a role, to every sibling."""

    number: int
    records: tuple[ParcelRecord, ...]
    floor: Mapping[Lane, int]
    whole: bool = False
    """There are no others: forget what was known of the role."""


class Shared(NamedTuple):
    """A sibling has them."""

    number: int
    host: int


class Collect(NamedTuple):
    """Give me what you know of this role, and give no other host more of it."""


class Collected(NamedTuple):
    """All that a sibling knows of a role."""

    host: int
    records: tuple[ParcelRecord, ...]
    floor: Mapping[Lane, int]


Copy = tuple[Role, int, tuple[ParcelRecord, ...], Mapping[Lane, int]]
"""Role, incarnation of who shared last, records, floor."""


class Introduced(NamedTuple):
    """A sibling has sent a new member all about its own roles; this is what it knows of others."""

    host: int
    copies: tuple[Copy, ...]


class Ask(NamedTuple):
    """Send these again; None: all that you have for me."""

    ids: tuple[ParcelId, ...] | None


class Answered(NamedTuple):
    """Whatever was there of what was asked for has been sent again."""


class HandedOver(NamedTuple):
    """A role, with all that its player had."""

    state: Any
    size: int


class Refused(NamedTuple):
    """You were replaced in this role."""

    role: Role
    fence: int


Body = (
    DeliverParcels
    | Acknowledge
    | Floors
    | Share
    | Shared
    | Collect
    | Collected
    | Introduced
    | Ask
    | Answered
    | HandedOver
    | Refused
)


class Envelope(NamedTuple):
    """A body and who means whom."""

    host: int
    """Where the sender lives."""
    sender: Role | None
    incarnation: int
    target: Role | None
    target_incarnation: int
    body: Body


class SendEnvelope(NamedTuple):
    """Send an envelope to a host: in order, reliably while both live."""

    host: int
    envelope: Envelope


class ProcessParcel(NamedTuple):
    """Run the stage's function on a parcel; call ``processed``."""

    role: Role
    incarnation: int
    parcel: Parcel


class Publish(NamedTuple):
    """Make a parcel visible outside, in one step named by its id; call ``published``."""

    role: Role
    incarnation: int
    parcel: Parcel


class Taken(NamedTuple):
    """Tell the controller that this host plays a role now."""

    role: Role
    incarnation: int


class Recovered(NamedTuple):
    """Tell the controller that all that was asked for after a take-over has come."""

    role: Role
    incarnation: int


class Ready(NamedTuple):
    """Tell the controller that this host knows what its siblings know."""


class Doubt(NamedTuple):
    """Tell the user: these cannot be had again, and may not have been passed on."""

    role: Role
    ids: tuple[ParcelId, ...]


Effect = SendEnvelope | ProcessParcel | Publish | Taken | Recovered | Ready | Doubt
