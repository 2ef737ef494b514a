"""One role in the hands of a host: floors, asking again, taking over and handing over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.core.delivery.ids import Lane, ParcelId, Role
from penstock.core.delivery.messages import (
    ID_BYTES,
    RECORD_BYTES,
    Acknowledge,
    Answered,
    Ask,
    Doubt,
    Floors,
    ParcelRecord,
    Recovered,
)
from penstock.core.delivery.replicated import Sharing
from penstock.core.delivery.role import RoleTables
from penstock.core.delivery.routing import Seat
from penstock.core.delivery.tables import SETTLED, UNKNOWN, Entry, HeldParcel, RecordTable

__all__ = ["RolePlayer", "RoleState"]


class RoleState(NamedTuple):
    """All that goes along when a role is handed over."""

    table: RecordTable
    works: Mapping[ParcelId, HeldParcel]
    entries: Mapping[ParcelId, Entry]
    asks: Mapping[Role, tuple[ParcelId, ...] | None]
    heard: Mapping[Role, Mapping[Lane, int]]
    next: int
    seats: Mapping[Role, Seat]
    """Who plays the roles above and below: no word may go to an older player of one."""

    @property
    def size(self) -> int:
        """In bytes."""
        rows = [entry.parcel for entry in self.entries.values()]
        rows += [work.parcel for work in self.works.values() if work.parcel is not None]
        records = RECORD_BYTES * (len(self.table.records) + len(self.works))
        return records + sum(ID_BYTES + parcel.size for parcel in rows)


@dataclass
class RolePlayer:
    """A role's tables, and what happens to them when hosts come and go.

    Envelopes and hosts are its owner's business.
    """

    tables: RoleTables
    asks: dict[Role, tuple[ParcelId, ...] | None] = field(default_factory=dict)
    """What was asked for and not answered; None: everything."""
    heard: dict[Role, dict[Lane, int]] = field(default_factory=dict)
    """Floors of the feeders."""
    _said: dict[Role, dict[Lane, int]] = field(default_factory=dict)

    @property
    def role(self) -> Role:
        """What is played."""
        return self.tables.role

    @property
    def incarnation(self) -> int:
        """The number of this player among those that the role has had."""
        return self.tables.incarnation

    # -- floors ----------------------------------------------------------------------------------

    def heard_floors(self, feeder: Role, floors: Mapping[Lane, int]) -> None:
        """A feeder will never send anything at or before these numbers again."""
        known = self.heard.setdefault(feeder, {})
        for lane, number in floors.items():
            known[lane] = max(number, known.get(lane, 0))

    def inputs_floor(self) -> dict[Lane, int]:
        """Per lane, the number up to which nothing will ever come again."""
        tables = self.tables
        if tables.is_source:
            return {tables.role: tables.next - 1}
        found = {}
        for lane, carriers in tables.stages.carriers[tables.role.stage].items():
            number = min(self.heard.get(role, {}).get(lane, 0) for role in carriers)
            found[lane] = max(number, tables.table.floor.get(lane, 0))
        return found

    def own_floor(self) -> dict[Lane, int]:
        """Per lane, the number up to which this role will never send anything again."""
        tables = self.tables
        found = self.inputs_floor()
        kept = [
            *tables.works,
            *tables.entries,
            *(record.id for record in tables.table.unsettled()),
        ]
        for id_ in kept:
            if id_.number <= found[id_.lane]:
                found[id_.lane] = id_.number - 1
        return found

    def flush(self) -> None:
        """Now and then: floors rise, what is settled goes to the siblings in one message."""
        tables = self.tables
        if not tables.settings.logs:
            return
        inputs = self.inputs_floor()
        self._doubt(inputs)
        raised = any(number > tables.table.floor.get(lane, 0) for lane, number in inputs.items())
        if raised and not tables.is_source:
            tables.table.raise_floor(inputs)
        tables.speak(raised and not tables.is_source)
        own = self.own_floor()
        if tables.settings.dedup:
            for target in tables.stages.downstream(tables.role.stage):
                if self._said.get(target) != own:
                    self._said[target] = own
                    tables.outgoing.append((target, Floors(own)))

    def _doubt(self, inputs: Mapping[Lane, int]) -> None:
        """Give up what no host can send again: too many died at once."""
        tables = self.tables
        lost = [
            record
            for record in tables.table.unsettled()
            if record.id not in tables.works and record.id.number <= inputs.get(record.id.lane, 0)
        ]
        if lost:
            tables.table.put(record._replace(level=SETTLED) for record in lost)
            tables.share([record._replace(level=SETTLED) for record in lost])
            tables.effects.append(Doubt(tables.role, tuple(record.id for record in lost)))

    # -- taking over -----------------------------------------------------------------------------

    def begin(self, fresh: bool, position: int, kept: RoleState | None = None) -> None:
        """Take the role of a dead host, with the siblings' records of it in the table.

        ``fresh``: no host has records, so ask for everything.  ``position``: a source's.
        ``kept``: what was handed over from here to the dead host, who may not have got it.
        """
        tables = self.tables
        if tables.is_source:
            tables.next = position + 1
        elif tables.settings.logs:
            if kept is not None:
                self._regain(kept)
            self._recover(fresh)
        self._maybe_recovered()

    def _regain(self, state: RoleState) -> None:
        """Go on with what did not arrive at the next player, or not for long.

        That one may have gone further with it.  So what siblings know to be settled is, and all
        that was sent is sent again: receivers drop what they have, and say how far it has come.
        """
        tables = self.tables
        self.heard = {role: dict(floors) for role, floors in state.heard.items()}
        again: dict[Role, list[ParcelId]] = {}
        for id_, entry in state.entries.items():
            tables.entries[id_] = entry._replace(level=UNKNOWN)
            again.setdefault(entry.target, []).append(id_)
        for target, ids in again.items():
            tables.deliver(target, ids)
        self._continue(
            {id_: work for id_, work in state.works.items() if tables.table.level(id_) < SETTLED}
        )

    def _continue(self, works: Mapping[ParcelId, HeldParcel]) -> None:
        """Work on what another player had begun."""
        tables = self.tables
        for id_, work in works.items():
            outputs = None if work.outputs is None else dict(work.outputs)
            tables.works[id_] = replace(work, outputs=outputs, shared=False, settled=False)
        for id_, work in tables.works.items():
            if work.outputs is None and work.parcel is not None:
                tables.work_on(work.parcel)
            else:
                tables.advance(id_)

    def _recover(self, fresh: bool) -> None:
        tables = self.tables
        self._resume(record for record in tables.table.unsettled() if record.id not in tables.works)
        if fresh or tables.settings.sharing is Sharing.NOTHING:
            self.asks = dict.fromkeys(tables.stages.upstream(tables.role.stage))
        for origin in self.asks:
            self._ask(origin)
        for origin in sorted({record.origin for record in tables.table.records.values()}):
            self._say_settled(origin)
        tables.share_all()

    def _say_settled(self, origin: Role) -> None:
        """Tell an origin again what it need not keep: it may not have heard."""
        tables = self.tables
        found = [r for r in tables.table.records.values() if r.origin == origin]
        done = tuple((record.id, SETTLED) for record in found if record.level == SETTLED)
        if done:
            tables.outgoing.append((origin, Acknowledge(done)))

    def _resume(self, records: Iterable[ParcelRecord]) -> None:
        tables = self.tables
        wanted: dict[Role, tuple[ParcelId, ...]] = {}
        for record in records:
            if record.parcel is not None:
                tables.works[record.id] = HeldParcel(record.origin, record.parcel)
                tables.work_on(record.parcel)
            else:
                wanted[record.origin] = (*wanted.get(record.origin, ()), record.id)
        self.asks = dict(wanted)

    def _ask(self, origin: Role) -> None:
        self.tables.outgoing.append((origin, Ask(self.asks[origin])))

    def asked(self, asker: Role, ids: tuple[ParcelId, ...] | None) -> None:
        """A host that took a role over needs things again; what is being rebuilt follows."""
        tables = self.tables
        wanted = list(tables.entries) if ids is None else ids
        mine = [i for i in wanted if i in tables.entries and tables.entries[i].target == asker]
        if ids is None:  # no host there has records of these any more
            tables.entries |= {id_: tables.entries[id_]._replace(level=UNKNOWN) for id_ in mine}
        tables.deliver(asker, mine)
        tables.outgoing.append((asker, Answered()))

    def answered(self, origin: Role) -> None:
        """An origin has sent again what it has."""
        if origin in self.asks:
            del self.asks[origin]
            self._maybe_recovered()

    def _maybe_recovered(self) -> None:
        if not self.asks:
            self.tables.effects.append(Recovered(self.tables.role, self.tables.incarnation))

    # -- others move -----------------------------------------------------------------------------

    def seated(self, role: Role, fence: int, dead: set[int]) -> None:
        """Another host plays a role now: send again what may not have arrived.

        After a crash that is what was never acknowledged: the rest will be asked for.  After a
        move nothing is lost, unless the host that had the role died since.
        """
        tables = self.tables
        if role in self.asks:
            self._ask(role)
        self._say_settled(role)
        self._said.pop(role, None)
        again = []
        for id_, entry in tables.entries.items():
            if entry.target != role:
                continue
            if entry.incarnation < fence:
                if entry.level == UNKNOWN:
                    again.append(id_)
            elif entry.host in dead:
                again.append(id_)
        tables.deliver(role, again)

    def host_lost(self, host: int, dead: set[int]) -> None:
        """A host is gone, and with it what was on its way to or from it."""
        tables = self.tables
        for origin in self.asks:
            self._ask(origin)
        self._said.clear()
        again: dict[Role, list[ParcelId]] = {}
        for id_, entry in tables.entries.items():
            moved = entry.host == host and tables.seats[entry.target].host not in dead
            if host in entry.via or moved:
                again.setdefault(entry.target, []).append(id_)
        for target, ids in again.items():
            tables.deliver(target, ids)

    # -- handing over ----------------------------------------------------------------------------

    def hand_over(self) -> RoleState:
        """Everything, for the next player."""
        tables = self.tables
        table = RecordTable(dict(tables.table.records), dict(tables.table.floor))
        stages, stage = tables.stages, tables.role.stage
        near = (*stages.upstream(stage), *stages.downstream(stage))
        seats = {role: tables.seats[role] for role in near}
        return RoleState(
            table, tables.works, tables.entries, self.asks, self.heard, tables.next, seats
        )

    def take_over(self, state: RoleState, via: int) -> None:
        """Go on where the last player stopped."""
        tables = self.tables
        tables.table = state.table
        tables.entries = {
            id_: entry._replace(via=(*entry.via, via)) for id_, entry in state.entries.items()
        }
        self.asks, self.heard = dict(state.asks), {r: dict(f) for r, f in state.heard.items()}
        tables.next = state.next
        for origin in self.asks:
            self._ask(origin)
        self._continue(state.works)
        tables.share_all()
        self._maybe_recovered()  # the last player's word may come too late, or never
