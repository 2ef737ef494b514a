"""The two tables of a role: delivery (what it sent) and records (what it had).

Levels say how far a parcel has come, seen from the stage that received it:

    UNKNOWN    sent, and nothing heard
    0          recorded there: it will be asked for again if that replica dies
    n          all that was made from it is recorded n stages further
    SETTLED    no host will ever need it again

An origin keeps a parcel until its level is at least the depth.  So a parcel and what it was made
from are kept at ``depth`` consecutive stages before the one that holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.delivery.ids import Lane, ParcelId, Role
from penstock.core.delivery.messages import Parcel, ParcelRecord

__all__ = ["SETTLED", "UNKNOWN", "Entry", "HeldParcel", "RecordTable"]

UNKNOWN = -1
SETTLED = 255


class Entry(NamedTuple):
    """A line of the delivery table: what was sent to a role and may be needed again."""

    parcel: Parcel
    target: Role
    parent: ParcelId | None
    level: int = UNKNOWN
    host: int = 0
    """Where it was sent last."""
    incarnation: int = 0
    """To which incarnation of the target."""
    via: tuple[int, ...] = ()
    """The hosts that handed this over: word of it may still be on the way through them."""


@dataclass
class HeldParcel:
    """A parcel that a role has, until it is settled."""

    origin: Role
    parcel: Parcel | None
    """The rows, while this replica may need them."""
    outputs: dict[ParcelId, int] | None = None
    """Levels of what was made from it."""
    shared: bool = False
    settled: bool = False
    told: int = UNKNOWN
    """The level that the origin was told last."""

    @property
    def level(self) -> int:
        """How far all of it has come."""
        if self.settled:
            return SETTLED
        if self.outputs is None:
            return 0
        return min(SETTLED, 1 + min(self.outputs.values(), default=SETTLED))


@dataclass
class RecordTable:
    """Records of a role above a floor: what is not here and at or before the floor is settled.

    >>> table = RecordTable()
    >>> lane = Role(0, 0)
    >>> table.put([ParcelRecord(ParcelId(lane, n), lane, SETTLED) for n in (1, 2, 3)])
    >>> table.put([ParcelRecord(ParcelId(lane, 4), lane, 0)])
    >>> table.raise_floor({lane: 9}); len(table.records), table.level(ParcelId(lane, 2))
    (1, 255)
    """

    records: dict[ParcelId, ParcelRecord] = field(default_factory=dict)
    floor: dict[Lane, int] = field(default_factory=dict)

    def level(self, id_: ParcelId) -> int:
        """What is known of a parcel."""
        record = self.records.get(id_)
        if record is not None:
            return record.level
        return SETTLED if id_.number <= self.floor.get(id_.lane, 0) else UNKNOWN

    def put(self, records: Iterable[ParcelRecord]) -> None:
        """Add records; levels never go back, and rows of settled ones are dropped."""
        for record in records:
            known = self.level(record.id)
            if known != UNKNOWN and record.level <= known:
                continue
            if record.level < SETTLED:
                self.records[record.id] = record
            elif record.id.number <= self.floor.get(record.id.lane, 0):
                self.records.pop(record.id, None)
            else:
                self.records[record.id] = record._replace(parcel=None)

    def raise_floor(self, floor: Mapping[Lane, int]) -> None:
        """Forget settled records at or before a floor: the numbers stand for them."""
        raised = {lane: n for lane, n in floor.items() if n > self.floor.get(lane, 0)}
        if not raised:
            return
        self.floor |= raised
        self.records = {
            id_: record
            for id_, record in self.records.items()
            if record.level < SETTLED or id_.number > self.floor.get(id_.lane, 0)
        }

    def unsettled(self) -> list[ParcelRecord]:
        """Records of what may have to be done again."""
        return [record for record in self.records.values() if record.level < SETTLED]
