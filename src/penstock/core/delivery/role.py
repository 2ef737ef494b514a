"""One role in the hands of a host: its tables, and what normal operation does to them.

Theory of operation
-------------------
A parcel comes from its origin.  It gets a record (level 0), the record goes to all siblings, and
only when all have it the origin is told: from then on the origin counts on it that the parcel will
be asked for.  Processing does not wait for that: what is made again has the same ids, and receivers
drop what they have.  When all that was made from a parcel has come far enough, its record is
settled, among the siblings first, then at the origin, which drops it from its delivery table.

*Floors* turn what is settled into numbers.  A role's floor for a lane is the number up to which it
will never send anything again: at most what its own feeders say, and less than anything that it
still has or keeps.  Settled records at or before the feeders' floors are forgotten.

A host that takes a role over asks the origins for everything that has a record and is not settled,
and does it again.  Origins send again by themselves what was never acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.core.delivery.ids import ParcelId, Role, derive
from penstock.core.delivery.messages import (
    Acknowledge,
    Body,
    DeliverParcels,
    Effect,
    Parcel,
    ParcelRecord,
    ProcessParcel,
    Publish,
    Share,
)
from penstock.core.delivery.replicated import ReplicaSettings, Sharing
from penstock.core.delivery.routing import Seat, Stages
from penstock.core.delivery.tables import SETTLED, UNKNOWN, Entry, HeldParcel, RecordTable

__all__ = ["Outgoing", "RoleTables"]

Outgoing = tuple[Role | int, Body]
"""A body for a role, or for a sibling's host."""


@dataclass
class _Sharing:
    waiting: set[int]
    records: tuple[ParcelRecord, ...]
    newcomer: bool = False
    """Whether only a new sibling was told: others may not have heard of some of it yet."""


@dataclass
class RoleTables:
    """What a role has had, what it has sent, what it and its siblings know."""

    role: Role
    incarnation: int
    settings: ReplicaSettings
    stages: Stages
    seats: Mapping[Role, Seat]
    siblings: set[int]
    table: RecordTable = field(default_factory=RecordTable)
    works: dict[ParcelId, HeldParcel] = field(default_factory=dict)
    entries: dict[ParcelId, Entry] = field(default_factory=dict)
    next: int = 1
    """A source's next number."""
    busy: Counter[ParcelId] = field(default_factory=Counter)
    """What is being processed or published at the moment."""
    _fresh: list[ParcelId] = field(default_factory=list)
    """What has come since the siblings were told last."""
    _settling: list[ParcelId] = field(default_factory=list)
    _news: dict[Role, dict[ParcelId, int]] = field(default_factory=dict)
    """Levels that origins have not been told."""
    _sharing: dict[int, _Sharing] = field(default_factory=dict)
    _number: int = 0
    effects: list[Effect] = field(default_factory=list)
    outgoing: list[Outgoing] = field(default_factory=list)

    # -- input -----------------------------------------------------------------------------------

    @property
    def is_source(self) -> bool:
        """Whether it reads from outside."""
        return not self.stages.parents[self.role.stage]

    @property
    def is_sink(self) -> bool:
        """Whether it publishes."""
        return not self.stages.children.get(self.role.stage)

    @property
    def may_read(self) -> bool:
        """Whether a source should read on."""
        return self.is_source and not (self.settings.acknowledged and self.entries)

    def read(self, outputs: Mapping[Role, Parcel]) -> None:
        """A source has read its next number and divided it among roles; ids are given here."""
        number, self.next = self.next, self.next + 1
        self._send(ParcelId(self.role, number), outputs)

    def received(self, origin: Role, parcels: Iterable[Parcel]) -> None:
        """Parcels have come from their origin."""
        fresh: list[ParcelRecord] = []
        known: list[tuple[ParcelId, int]] = []
        for parcel in parcels:
            if not self.settings.logs:
                self.work_on(parcel)
                continue
            if self._had(parcel.id):
                work = self.works.get(parcel.id)
                if work is None:
                    known.append((parcel.id, SETTLED))
                elif work.told > UNKNOWN:
                    known.append((parcel.id, work.told))
                continue
            shared = self.settings.sharing is Sharing.NOTHING
            self.works[parcel.id] = HeldParcel(origin, parcel, shared=shared)
            fresh.append(self._record(parcel.id, 0))
            self.work_on(parcel)
        self._news.setdefault(origin, {}).update(known)
        if fresh:
            if self.settings.dedup:
                self.table.put(fresh)
            self._fresh += [record.id for record in fresh]

    def _had(self, id_: ParcelId) -> bool:
        """Whether a parcel is here, or was and is settled."""
        if not self.settings.dedup:
            return False
        return id_ in self.works or self.table.level(id_) == SETTLED

    def work_on(self, parcel: Parcel) -> None:
        """Let a parcel be processed or published."""
        kind = Publish if self.is_sink else ProcessParcel
        self.busy[parcel.id] += 1
        self.effects.append(kind(self.role, self.incarnation, parcel))

    def processed(self, id_: ParcelId, outputs: Mapping[Role, Parcel]) -> None:
        """A parcel was turned into others: at most one for each role."""
        self.busy[id_] -= 1
        if self.busy[id_] <= 0:
            del self.busy[id_]
        if not self.settings.logs:
            self._send(id_, outputs)
            return
        work = self.works.get(id_)
        if work is None:
            return
        if self.settings.sharing is not Sharing.MIRRORED:
            work.parcel = None
        work.outputs = dict.fromkeys(self._send(id_, outputs), UNKNOWN)
        self.advance(id_)

    def published(self, id_: ParcelId) -> None:
        """A sink's parcel is visible outside."""
        self.processed(id_, {})

    def output_id(self, parent: ParcelId, target: Role) -> ParcelId:
        """The id of what is made from a parcel for a role."""
        return derive(parent, target)

    def _send(self, parent: ParcelId, outputs: Mapping[Role, Parcel]) -> list[ParcelId]:
        made = []
        for target, parcel in outputs.items():
            named = parcel._replace(id=self.output_id(parent, target))
            made.append(named.id)
            if self.settings.logs:
                self.entries[named.id] = Entry(named, target, parent)
                self.deliver(target, [named.id])
            else:
                self.outgoing.append((target, DeliverParcels((named,))))
        return made

    def deliver(self, target: Role, ids: Iterable[ParcelId]) -> None:
        """Send parcels of the delivery table to the present player of a role."""
        seat = self.seats[target]
        parcels = []
        for id_ in ids:
            entry = self.entries[id_]
            self.entries[id_] = entry._replace(host=seat.host, incarnation=seat.incarnation)
            parcels.append(entry.parcel)
        if parcels:
            self.outgoing.append((target, DeliverParcels(tuple(parcels))))

    # -- progress --------------------------------------------------------------------------------

    def acknowledged(self, levels: Iterable[tuple[ParcelId, int]]) -> None:
        """A receiver says how far parcels have come."""
        for id_, level in levels:
            entry = self.entries.get(id_)
            if entry is None or level <= entry.level:
                continue
            if self._released(level):
                del self.entries[id_]
            else:
                self.entries[id_] = entry._replace(level=level)
            parent = None if entry.parent is None else self.works.get(entry.parent)
            if parent is not None and parent.outputs is not None and entry.parent is not None:
                parent.outputs[id_] = level
                self.advance(entry.parent)

    def _released(self, level: int) -> bool:
        """Whether a parcel at this level need not be kept."""
        return level >= self.settings.release

    def advance(self, id_: ParcelId) -> None:
        """A parcel may have come further: settle it, or tell its origin."""
        work = self.works[id_]
        if work.level >= self.settings.settle and not work.settled:
            work.settled = True
            if self.settings.sharing is Sharing.NOTHING:
                self._settled([id_])
            else:
                self._settling.append(id_)
        elif not work.settled:
            self._tell([id_])

    def _tell(self, ids: Iterable[ParcelId]) -> None:
        """Tell origins the levels of parcels whose records are shared."""
        for id_ in ids:
            work = self.works.get(id_)
            if work is None or work.settled or not self._may_tell(work):
                continue
            level = work.level
            # What lets no stage above forget anything is not told.
            needed = self.settings.release - self.stages.above[work.origin.stage]
            if level > work.told and (level <= 0 or level >= needed):
                work.told = level
                self._news.setdefault(work.origin, {})[id_] = level

    def _may_tell(self, work: HeldParcel) -> bool:
        """Whether the origin may count on it that a parcel will be asked for."""
        if self.settings.acknowledged:
            return False
        if self.settings.sharing is Sharing.MIRRORED and not self.siblings:
            return False
        return work.shared

    def _settled(self, ids: Iterable[ParcelId]) -> None:
        """All hosts that have to know know: origins may forget these."""
        for id_ in ids:
            work = self.works.pop(id_, None)
            if work is not None:
                self._news.setdefault(work.origin, {})[id_] = SETTLED
                if self.settings.dedup:
                    self.table.put([ParcelRecord(id_, work.origin, SETTLED)])

    # -- records ---------------------------------------------------------------------------------

    def _record(self, id_: ParcelId, level: int) -> ParcelRecord:
        work = self.works[id_]
        mirrored = self.settings.sharing is Sharing.MIRRORED and level < SETTLED
        return ParcelRecord(id_, work.origin, level, work.parcel if mirrored else None)

    def share(self, records: Iterable[ParcelRecord], whole: bool = False) -> None:
        """Send records to all siblings; ``shared`` comes when all have them."""
        if self.settings.sharing is Sharing.NOTHING:
            self._tell([record.id for record in records])
            return
        found = tuple(records)
        self._number += 1
        self._sharing[self._number] = _Sharing(set(self.siblings), found)
        share = Share(self._number, found, dict(self.table.floor), whole)
        self.outgoing += [(host, share) for host in sorted(self.siblings)]
        self._complete(self._number)

    def shared(self, number: int, host: int) -> None:
        """A sibling has a share; when all have it, origins are told at once."""
        if number in self._sharing:
            self._sharing[number].waiting.discard(host)
            self._complete(number)
            self._tell_news()

    def _complete(self, number: int) -> None:
        if self._sharing[number].waiting:
            return
        done = self._sharing.pop(number)
        records = done.records
        if done.newcomer:
            untold = {record.id for other in self._sharing.values() for record in other.records}
            untold.update(self._fresh)
            records = tuple(record for record in records if record.id not in untold)
        for record in records:
            work = self.works.get(record.id)
            if work is not None:
                work.shared = True
        self._settled([record.id for record in records if record.level == SETTLED])
        self._tell([record.id for record in records])

    @property
    def unsaid(self) -> tuple[int, int]:
        """How many parcels have come, and how many are settled, that no other host was told of."""
        return len(self._fresh), len(self._settling)

    def speak(self, anyway: bool = False) -> None:
        """Now and then: what has come and what is settled goes to the siblings, in one message.

        ``anyway``: also if there is nothing but a floor.  Origins are told what may be told.
        """
        fresh, self._fresh = self._fresh, []
        settling, self._settling = self._settling, []
        records = [
            self._record(id_, 0)
            for id_ in fresh
            if id_ in self.works and not self.works[id_].settled
        ]
        records += [self._record(id_, SETTLED) for id_ in settling]
        if records or anyway:
            self.share(records)
        self._tell_news()

    def _tell_news(self) -> None:
        news, self._news = self._news, {}
        for origin, levels in news.items():
            if levels:
                self.outgoing.append((origin, Acknowledge(tuple(levels.items()))))

    def all_records(self) -> tuple[ParcelRecord, ...]:
        """Everything that a sibling should know of this role."""
        return tuple(
            self._record(id_, record.level) if id_ in self.works else record
            for id_, record in self.table.records.items()
        )

    def share_all(self) -> None:
        """Let the siblings know everything again."""
        self.share(self.all_records(), whole=True)

    def joined(self, host: int) -> None:
        """A new sibling: it gets everything, and what waits for siblings waits for it, too."""
        self.siblings.add(host)
        if self.settings.sharing is Sharing.NOTHING:
            return
        for work in self.works.values():
            work.shared = False
        records = self.all_records()
        pending = list(self._sharing.items())
        self._number += 1
        self._sharing[self._number] = _Sharing({host}, records, newcomer=True)
        whole = Share(self._number, records, dict(self.table.floor), whole=True)
        self.outgoing.append((host, whole))
        for number, sharing in pending:
            sharing.waiting.add(host)
            self.outgoing.append((host, Share(number, sharing.records, {})))

    def left(self, host: int) -> None:
        """A sibling is gone: do not wait for it."""
        self.siblings.discard(host)
        for number in list(self._sharing):
            self.shared(number, host)
