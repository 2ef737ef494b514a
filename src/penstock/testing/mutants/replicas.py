"""Mutants of replicas: fences, records, acknowledgements, take-over, reinstatement, generations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from penstock.core.control.host_orders import TakeRole
from penstock.core.control.ring_record import FenceSourceRoles, Tell
from penstock.core.delivery.ids import Lane, ParcelId, Role
from penstock.core.delivery.messages import Effect, Envelope, Parcel, Recovered, Share
from penstock.core.delivery.player import RoleState
from penstock.core.delivery.tables import RecordTable
from penstock.testing.mutants.mutant import Flows, Mutant, Replacement, mutant

__all__ = ["REPLICAS"]

_MACHINE = "penstock.core.delivery.records:ReplicaMachine"
_TABLES = "penstock.core.delivery.role:RoleTables"
_PLAYER = "penstock.core.delivery.player:RolePlayer"
_RING = "penstock.core.control.ring_controller:RingController"
_RINGS = "penstock.core.control.rings:RingsMachine"
_RECORDS = "penstock.core.delivery.tables:RecordTable"
_REPLICAS = Flows.REPLICAS
_ROUGH = Flows.REPLICAS_ROUGH


def _always(real: Replacement, *_: Any) -> bool:
    return True


@mutant(
    "acknowledge after sharing (26)",
    f"{_TABLES}.received",
    also={f"{_TABLES}._may_tell": _always},
    flows=_REPLICAS,
    seed=17,
)
def acknowledges_first(
    real: Replacement, self: Any, origin: Role, parcels: Iterable[Parcel]
) -> None:
    found = list(parcels)
    real(self, origin, found)
    if self.settings.logs:
        self._tell([parcel.id for parcel in found])


@mutant("ids are derived from the input's (26)", f"{_TABLES}.output_id", flows=_REPLICAS, seed=0)
def own_ids(real: Replacement, self: Any, parent: ParcelId, target: Role) -> ParcelId:
    made = self.__dict__["made"] = self.__dict__.get("made", 0) + 1
    branch = (self.role.stage << 40) + (self.incarnation << 20) + made
    return ParcelId(parent.lane, parent.number, branch << 8 | self.role.place)


@mutant(
    "receivers drop duplicates (26)",
    "penstock.core.delivery.replicated:ReplicaSettings.dedup",
    flows=_REPLICAS,
    seed=0,
)
def replicas_without_dedup(real: Replacement, *_: Any) -> bool:
    return False


@mutant("tables for depth stages", f"{_TABLES}._released", flows=_REPLICAS, seed=165)
def releases_too_early(real: Replacement, self: Any, level: int) -> bool:
    return bool(level >= self.settings.release - 1)


@mutant("siblings know first what is settled", f"{_TABLES}.advance", flows=_REPLICAS, seed=0)
def settles_alone(real: Replacement, self: Any, id_: ParcelId) -> None:
    real(self, id_)
    if id_ in self.works and self.works[id_].settled:
        self._settled([id_])
        self._settling = [other for other in self._settling if other != id_]


@mutant("reinstatement with tables", f"{_PLAYER}.hand_over", flows=_REPLICAS, seed=0)
def hands_back_nothing(real: Replacement, self: Any) -> RoleState:
    state: RoleState = real(self)
    return state._replace(table=RecordTable(), works={}, entries={}, asks={})


@mutant("reinstatement with work", f"{_PLAYER}.hand_over", flows=_REPLICAS, seed=0)
def hands_back_no_work(real: Replacement, self: Any) -> RoleState:
    state: RoleState = real(self)
    return state._replace(works={})


@mutant(
    "the next player knows whom the last one knew",
    f"{_PLAYER}.hand_over",
    flows=Flows.REPLICAS_MIXED_ROUGH,
    seed=33927409,
)
def hands_over_no_seats(real: Replacement, self: Any) -> RoleState:
    state: RoleState = real(self)
    return state._replace(seats={})


@mutant("floors stay behind what is kept", f"{_PLAYER}.own_floor", flows=_REPLICAS, seed=0)
def floors_too_high(real: Replacement, self: Any) -> dict[Lane, int]:
    found: dict[Lane, int] = self.inputs_floor()
    return found


@mutant("what was never acknowledged is sent again", f"{_PLAYER}.seated", flows=_REPLICAS, seed=17)
def sends_nothing_again(
    real: Replacement, self: Any, role: Role, fence: int, dead: set[int]
) -> None:
    real(self, role, 0, set())


@mutant("recovery by asking the origin", f"{_PLAYER}._ask", flows=_REPLICAS, seed=0)
def asks_nobody(real: Replacement, *_: Any) -> None:
    return


@mutant("what comes for a role follows it", f"{_MACHINE}._for_role", flows=_REPLICAS, seed=0)
def forwards_nothing(real: Replacement, self: Any, envelope: Envelope, role: Role) -> list[Effect]:
    self._forwards.pop(role, None)
    effects: list[Effect] = real(self, envelope, role)
    return effects


@mutant("one player for each role", f"{_MACHINE}._hand", flows=_REPLICAS, seed=0)
def two_players(real: Replacement, self: Any, role: Role) -> list[Effect]:
    player = self.players[role]
    effects: list[Effect] = real(self, role)
    self.players[role] = player
    return effects


@mutant("a whole stage can die", f"{_RING}._take", flows=_REPLICAS, seed=30)
def never_fresh(real: Replacement, self: Any, role: Role) -> Tell:
    told: Tell = real(self, role)
    order = told.order
    return told._replace(order=replace(order, fresh=False)) if isinstance(order, TakeRole) else told


# -- the controller of the rings -------------------------------------------------------------------


@mutant("roles go home", f"{_RING}._reinstate", flows=_REPLICAS, seed=0)
def never_goes_home(real: Replacement, *_: Any) -> list[Any]:
    return []


@mutant("a lost host's roles get new fences (14)", f"{_RING}._assign", flows=_REPLICAS, seed=54)
def takes_without_fence(real: Replacement, self: Any, *args: Any) -> None:
    fences = self.record.fences
    real(self, *args)
    self.record = replace(self.record, fences=dict.fromkeys(self.record.fences, 0) | fences)


@mutant("all hosts hear where a role is", f"{_RING}._rewired", flows=_REPLICAS, seed=0)
def tells_nobody_of_moves(real: Replacement, *_: Any) -> list[Any]:
    return []


@mutant(
    "a role that was handed over has recovered, too",
    f"{_PLAYER}.take_over",
    flows=_REPLICAS,
    seed=78,
)
def recovers_only_in_place(real: Replacement, self: Any, state: RoleState, via: int) -> None:
    real(self, state, via)
    tables = self.tables
    tables.effects = [one for one in tables.effects if not isinstance(one, Recovered)]


@mutant("who knows the records takes a role", f"{_RING}._next", flows=_REPLICAS, seed=54)
def takes_without_records(
    real: Replacement, self: Any, ring: Any, slot: int, known: frozenset[int]
) -> int | None:
    taker: int | None = real(self, ring, slot, frozenset(ring.values()) - known or known)
    return taker


# -- the machine of the rings ----------------------------------------------------------------------


@mutant("the log of a source is fenced", f"{_RINGS}._fence", flows=_REPLICAS, seed=14)
def fences_no_source(real: Replacement, self: Any, roles: Any) -> FenceSourceRoles:
    effect: FenceSourceRoles = real(self, roles)
    return effect._replace(fences={})


@mutant(
    "a generation begins when all hosts have stopped",
    f"{_RINGS}._stopped",
    flows=_REPLICAS,
    seed=6,
)
def waits_for_one_to_stop(real: Replacement, self: Any, host: int) -> list[Any]:
    self._unanswered.clear()
    effects: list[Any] = real(self, host)
    return effects


@mutant("sources read when all hosts have joined", f"{_RINGS}._joined", flows=_REPLICAS, seed=62)
def waits_for_one_to_join(real: Replacement, self: Any, host: int) -> list[Any]:
    self._unanswered.clear()
    effects: list[Any] = real(self, host)
    return effects


@mutant("rings begin anew when something is missed", f"{_RINGS}._missed", flows=_ROUGH, seed=301)
def goes_on_without(real: Replacement, *_: Any) -> list[Any]:
    return []


@mutant("a lost host's slots wait for its heir", f"{_RINGS}._bequeath", flows=_REPLICAS, seed=0)
def has_no_heirs(real: Replacement, *_: Any) -> None:
    return


@mutant("an heir that is lost has an heir, too", f"{_RINGS}._bequeath", flows=_REPLICAS, seed=10)
def heirs_have_no_heirs(
    real: Replacement, self: Any, host: int, heir: int | None, slots: Any
) -> None:
    self._vacant.pop(host, None)
    real(self, host, heir, slots)


@mutant("a part ends with the last of its sinks", f"{_RINGS}.node_ended", flows=_REPLICAS, seed=1)
def ends_with_any_sink(real: Replacement, self: Any, role: Role) -> list[Role]:
    stages = self._stages
    return [one for stage in stages.connected(role.stage) for one in stages.of(stage)]


# -- siblings --------------------------------------------------------------------------------------


@mutant("a new host learns what its siblings know first", f"{_MACHINE}.join", flows=_ROUGH, seed=55)
def ready_at_once(real: Replacement, self: Any) -> list[Effect]:
    self._strangers.clear()
    effects: list[Effect] = real(self)
    return effects


@mutant(
    "what an older player shared counts no more", f"{_MACHINE}._learn", flows=_REPLICAS, seed=297
)
def learns_from_older_players(
    real: Replacement, self: Any, role: Role, incarnation: int, *rest: Any
) -> None:
    real(self, role, max(incarnation, self._learnt.get(role, 0)), *rest)


@mutant(
    "what siblings told is passed on to the next new sibling",
    f"{_MACHINE}._sibling",
    flows=_ROUGH,
    seed=911043471,
)
def forgets_introductions(real: Replacement, self: Any, *what: Any) -> list[Effect]:
    effects: list[Effect] = real(self, *what)
    self._told.clear()
    return effects


@mutant(
    "a new host keeps the records of a role that is being taken from a sibling",
    f"{_MACHINE}.received",
    flows=_ROUGH,
    seed=911043471,
)
def refuses_records_as_well(real: Replacement, self: Any, envelope: Envelope) -> list[Effect]:
    strangers = self._strangers
    if isinstance(envelope.body, Share):
        self._strangers = set()
    effects: list[Effect] = real(self, envelope)
    self._strangers = strangers
    return effects


@mutant(
    "what a new sibling knows the others need not know yet",
    f"{_TABLES}.joined",
    flows=_ROUGH,
    seed=777986377,
)
def takes_newcomers_for_all(real: Replacement, self: Any, host: int) -> None:
    real(self, host)
    for sharing in self._sharing.values():
        sharing.newcomer = False


@mutant("a new sibling is told everything", f"{_TABLES}.joined", flows=_REPLICAS, seed=49)
def tells_new_siblings_nothing(real: Replacement, self: Any, host: int) -> None:
    self.siblings.add(host)


@mutant("a dead sibling is not waited for", f"{_TABLES}.left", flows=_REPLICAS, seed=0)
def waits_for_dead_siblings(real: Replacement, *_: Any) -> None:
    return


@mutant("origins hear again what is settled", f"{_PLAYER}._say_settled", flows=_REPLICAS, seed=49)
def settles_silently(real: Replacement, *_: Any) -> None:
    return


@mutant("levels never go back", f"{_RECORDS}.put", flows=_REPLICAS, seed=12)
def levels_go_back(real: Replacement, self: Any, records: Iterable[Any]) -> None:
    self.records.update((record.id, record) for record in records)


REPLICAS: tuple[Mutant, ...] = tuple(one for one in globals().values() if isinstance(one, Mutant))
