"""The rings of replicas, seen from the driver: when they begin, and when roles may be taken.

Theory of operation
-------------------
    IDLE --all hosts ready--> STOPPING --all have stopped--> STORING --record stored, logs fenced-->
    JOINING --all are members--> OPEN
    any but IDLE --a loss, or a host that fills a slot, before OPEN--> STOPPING (a new generation)
    OPEN --a sink misses what no host can send again--> STOPPING (a new generation)
    WAITING instead of STOPPING, while a stage has no host

- A *slot* is a place in a ring.  A lost host's slots are *vacant*; its *heir* fills them when it is
  ready.  An heir that is lost before passes them on to its own heir.
- A *generation* begins with nothing in flight, from what is published.  First all hosts stop what
  they play.  Then new incarnations of all roles are durable and the logs of all sources are fenced,
  so that what a process notes that was only frozen is not read.  Then hosts join, and when all
  have, sources read.  Reports of earlier generations are ignored.
- While the rings are open, a :class:`RingController` decides who plays what.  A role of a lost host
  is taken only after the *barrier*: all hosts have said, in the present round, that they hear
  nothing more of the lost one.  A process that was only frozen could otherwise still speak for the
  role.  Then the source's log is fenced, and only then the role is taken: what was noted before the
  fence counts, and what is noted later never reaches any host.
- A part of the flow has ended when all its sinks have: its sources need not be read again.

A driver that restarts knows the greatest incarnation and generation of its predecessors, and begins
a new generation.  It needs nothing else.

The machine never touches the store.  ``stored`` answers ``PersistRings`` and ``fenced`` answers
``FenceSourceRoles``; until then, nothing that depends on them is told to any host.  At most one of
them is unanswered, and an answer to an older one is ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import assert_never

from penstock.core.control.host_orders import (
    BeginRings,
    DropMembers,
    OpenRings,
    RoleOrder,
    SayJoined,
    TakeRole,
)
from penstock.core.control.host_reports import (
    LossHeard,
    MemberReady,
    ParcelsMissed,
    RingsBegun,
    RingsJoined,
    RoleRecovered,
    RoleReport,
    RoleTaken,
)
from penstock.core.control.ring_controller import RingController
from penstock.core.control.ring_record import (
    FenceSourceRoles,
    PersistRing,
    PersistRings,
    RingControllerEffect,
    RingRecord,
    RingsEffect,
    Tell,
    TellHost,
    WarnMissed,
)
from penstock.core.delivery.ids import Role, member, member_host
from penstock.core.delivery.routing import Seat, Stages

__all__ = ["GenerationPhase", "RingsMachine"]


class GenerationPhase(Enum):
    """How far a generation has come."""

    IDLE = auto()
    WAITING = auto()
    STOPPING = auto()
    STORING = auto()
    JOINING = auto()
    OPEN = auto()


class RingsMachine:
    """Decides on the rings; ``rings`` has the hosts of each stage by slot.

    >>> stages = Stages({0: 1, 1: 1}, {0: (1,)})
    >>> rings = RingsMachine(stages, {0: (1,), 1: (2,)}, {Role(0, 0): 0, Role(1, 0): 0})
    >>> [effect.host for effect in rings.begin([1, 2])], rings.phase.name
    ([1, 2], 'STOPPING')
    >>> rings.told(1, RingsBegun(1))
    []
    >>> [persist] = rings.told(2, RingsBegun(1))
    >>> [fence] = rings.stored(persist.number)
    >>> fence.fences
    {Role(stage=0, place=0): 1}
    """

    def __init__(
        self,
        stages: Stages,
        rings: Mapping[int, Sequence[int]],
        homes: Mapping[Role, int],
        incarnation: int = 0,
        generation: int = 0,
    ) -> None:
        self.phase = GenerationPhase.IDLE
        self.hosts: set[int] = set()
        """Those that can play roles."""
        self.generation = generation
        self._stages = stages
        self._slots = {stage: dict(enumerate(ring)) for stage, ring in rings.items()}
        self._homes = dict(homes)
        self._incarnation = incarnation
        self._ring: RingController | None = None
        self._vacant: dict[int, list[tuple[int, int]]] = {}
        """Per host that is to come: the slots that it fills."""
        self._unanswered: set[int] = set()
        """Hosts that have not stopped, or have not joined, in this generation."""
        self._unheard: set[int] = set()
        """The barrier: hosts that may still hear a lost one."""
        self._round = 0
        self._takes: list[Tell] = []
        """Roles to be taken, behind the barrier."""
        self._work: deque[RingControllerEffect] = deque()
        """What follows when the store has answered."""
        self._asked: int | None = None
        """The number of what the store has not answered."""
        self._numbers = 0
        self._ended: set[Role] = set()

    # -- what is known ---------------------------------------------------------------------------

    @property
    def record(self) -> RingRecord | None:
        """Who plays what in the present generation, once it has begun."""
        return None if self._ring is None else self._ring.record

    @property
    def is_open(self) -> bool:
        """Whether all members of all rings have started."""
        return self.phase is GenerationPhase.OPEN

    @property
    def is_blocked(self) -> bool:
        """Whether roles wait for the barrier, or for the store."""
        return bool(self._takes or self._work or self._unheard)

    @property
    def quiet(self) -> bool:
        """Whether the rings are open, every role is played, and none is on the move."""
        return self.is_open and self._ring is not None and self._ring.quiet and not self.is_blocked

    # -- hosts come and go -----------------------------------------------------------------------

    def begin(self, hosts: Iterable[int]) -> list[RingsEffect]:
        """All hosts are ready."""
        self.hosts = set(hosts)
        for host in sorted(self.hosts):
            self._fill(host)
        return self._begin_anew()

    def host_ready(self, host: int) -> list[RingsEffect]:
        """A host can play roles now."""
        if self.phase is GenerationPhase.IDLE:
            return []
        self.hosts.add(host)
        slots = self._fill(host)
        if slots and not self.is_open:
            return self._begin_anew()
        if self.is_open and self._ring is not None:
            for stage, slot in slots:
                self._work += self._ring.joined(member(host, stage), stage, slot)
            self._work.append(Tell(member(host, 0), OpenRings()))
        return [TellHost(host, (BeginRings(self.generation),)), *self._advance()]

    def host_lost(self, host: int, heir: int | None) -> list[RingsEffect]:
        """A host is gone, or taken for gone; ``heir`` will come in its place."""
        slots = [
            (stage, slot)
            for stage, ring in self._slots.items()
            for slot, at in ring.items()
            if at == host
        ]
        for stage, slot in slots:
            del self._slots[stage][slot]
        self._bequeath(host, heir, slots)
        if host not in self.hosts:
            return []  # no other host has heard of it
        self.hosts.discard(host)
        if not self.is_open or self._ring is None:
            return self._begin_anew()
        for stage, _ in slots:
            self._work += self._ring.host_lost(member(host, stage))
        gone = tuple(member(host, stage) for stage, _ in slots) or (member(host, 0),)
        return [*self._raise_barrier(gone), *self._advance()]

    def _bequeath(self, host: int, heir: int | None, slots: Iterable[tuple[int, int]]) -> None:
        """The heir of a host fills its slots, and those that it was to fill itself."""
        vacant = [*slots, *self._vacant.pop(host, ())]
        if heir is not None and vacant:
            self._vacant[heir] = [*self._vacant.get(heir, ()), *vacant]

    def _fill(self, host: int) -> list[tuple[int, int]]:
        """Put a host into the slots that wait for it."""
        slots = self._vacant.pop(host, [])
        for stage, slot in slots:
            self._slots[stage][slot] = host
        return slots

    def _raise_barrier(self, gone: tuple[int, ...]) -> list[RingsEffect]:
        """Nothing is taken before all hosts hear nothing more of the members that are gone."""
        self._round += 1
        self._unheard = set(self.hosts)
        order = DropMembers(gone, self._round)
        return [TellHost(host, (order,)) for host in sorted(self.hosts)]

    # -- what hosts say --------------------------------------------------------------------------

    def told(self, host: int, report: RoleReport) -> list[RingsEffect]:
        """A host's word on its roles."""
        if not self._is_current(host, report):
            return []
        match report:
            case RingsBegun():
                return self._stopped(host)
            case RingsJoined():
                return self._joined(host)
            case LossHeard():
                return self._loss_heard(host, report.round)
            case ParcelsMissed():
                return self._missed(report)
            case MemberReady() | RoleTaken() | RoleRecovered():
                return self._heard_of_role(host, report)
            case _:
                assert_never(report)

    def _is_current(self, host: int, report: RoleReport) -> bool:
        return report.generation == self.generation and host in self.hosts

    def _loss_heard(self, host: int, round_: int) -> list[RingsEffect]:
        if round_ == self._round:
            self._unheard.discard(host)
        return self._advance()

    def _missed(self, report: ParcelsMissed) -> list[RingsEffect]:
        """A sink needs what no host can send again: sources read again all that is unpublished."""
        if not self.is_open:
            return []
        return [WarnMissed(report.node, report.missing), *self._begin_anew()]

    def _heard_of_role(
        self, host: int, report: MemberReady | RoleTaken | RoleRecovered
    ) -> list[RingsEffect]:
        ring = self._ring
        if ring is None or not self.is_open:
            return []
        at = member(host, report.stage)
        match report:
            case MemberReady():
                self._work += ring.ready(at)
            case RoleTaken(_, _, role, incarnation):
                self._work += ring.taken(at, role, incarnation)
            case RoleRecovered(_, _, role, incarnation):
                self._work += ring.recovered(at, role, incarnation)
            case _:
                assert_never(report)
        return self._advance()

    def node_ended(self, role: Role) -> list[Role]:
        """A role has come to the end of its input; gives all the roles that have ended with it."""
        self._ended.add(role)
        part = self._stages.connected(role.stage)
        sinks = [one for s in part if s in self._stages.sinks for one in self._stages.of(s)]
        if not self._ended.issuperset(sinks):
            return []
        return [one for stage in part for one in self._stages.of(stage)]

    # -- a generation begins ---------------------------------------------------------------------

    def _begin_anew(self) -> list[RingsEffect]:
        """Start all rings with nothing in flight, from what is published."""
        self._takes.clear()
        self._work.clear()
        self._unheard.clear()
        self._asked = None
        if not all(self._slots.values()):
            self.phase = GenerationPhase.WAITING
            return []
        self.phase = GenerationPhase.STOPPING
        self.generation += 1
        self._unanswered = set(self.hosts)
        order = BeginRings(self.generation)
        return [TellHost(host, (order,)) for host in sorted(self.hosts)]

    def _stopped(self, host: int) -> list[RingsEffect]:
        """A host plays nothing any more; when none does, what is durable stays as it is."""
        if self.phase is not GenerationPhase.STOPPING:
            return []
        self._unanswered.discard(host)
        if self._unanswered:
            return []
        self.phase = GenerationPhase.STORING
        self._ring = RingController(self._first_record())
        self._work.append(PersistRing(self._ring.record))
        return self._advance()

    def _first_record(self) -> RingRecord:
        """Roles at home where a host is; else with the next of their ring."""
        self._incarnation += 1
        seats: dict[Role, Seat] = {}
        for role, home in self._homes.items():
            ring = self._slots[role.stage]
            slot = min(ring, key=lambda other: (other < home, other))
            seats[role] = Seat(member(ring[slot], role.stage), self._incarnation)
        rings = {
            stage: {slot: member(host, stage) for slot, host in ring.items()}
            for stage, ring in self._slots.items()
        }
        return RingRecord(
            seats,
            self._homes,
            rings,
            dict.fromkeys(seats, self._incarnation),
            frozenset(one for ring in rings.values() for one in ring.values()),
        )

    def _join_all(self, record: RingRecord, lows: Mapping[Role, int]) -> list[RingsEffect]:
        """Let all hosts be members of their rings."""
        self.phase = GenerationPhase.JOINING
        self._unanswered = set(self.hosts)
        effects: list[RingsEffect] = []
        for host in sorted(self.hosts):
            joins = [
                record.join(stage, joining=False, lows=lows)
                for stage, ring in self._slots.items()
                if host in ring.values()
            ]
            effects.append(TellHost(host, (*joins, SayJoined(self.generation))))
        return effects

    def _joined(self, host: int) -> list[RingsEffect]:
        if self.phase is not GenerationPhase.JOINING:
            return []
        self._unanswered.discard(host)
        if self._unanswered:
            return []
        self.phase = GenerationPhase.OPEN
        return [TellHost(other, (OpenRings(),)) for other in sorted(self.hosts)]

    # -- what waits for the store, and for the barrier -------------------------------------------

    def stored(self, number: int) -> list[RingsEffect]:
        """The record is durable: what follows it may be told."""
        if number != self._asked:
            return []
        self._asked = None
        if self.phase is GenerationPhase.STORING:
            return [self._fence(role for s in self._stages.sources for role in self._stages.of(s))]
        return self._advance()

    def fenced(self, number: int, lows: Mapping[Role, int]) -> list[RingsEffect]:
        """The logs are fenced; ``lows`` per source and sink, see :class:`FenceSourceRoles`."""
        record = self.record
        if number != self._asked or record is None:
            return []
        self._asked = None
        if self.phase is GenerationPhase.STORING:
            return self._join_all(record, lows)
        orders: dict[int, list[RoleOrder]] = {}
        if not self._unheard:
            for to, order in self._due_takes():
                low = lows.get(order.role, -1)
                orders.setdefault(member_host(to), []).append(replace(order, low=low))
            self._takes.clear()
        return [*_told(orders), *self._advance()]

    def _advance(self) -> list[RingsEffect]:
        """Do what the store and the barrier do not hold back."""
        orders: dict[int, list[RoleOrder]] = {}
        while self._work and self._asked is None:
            effect = self._work.popleft()
            match effect:
                case PersistRing(record):
                    return [*_told(orders), self._persist(record)]
                case Tell(_, TakeRole()):
                    self._takes.append(effect)
                case Tell(to, order):
                    mine = orders.setdefault(member_host(to), [])
                    if order not in mine:  # once for all rings of a host
                        mine.append(order)
                case _:
                    assert_never(effect)
        effects = _told(orders)
        if self._asked is None and not self._unheard and (due := self._due_takes()):
            effects.append(self._fence(order.role for _, order in due))
        return effects

    def _due_takes(self) -> list[tuple[int, TakeRole]]:
        """The roles that are still to be taken where they were to be."""
        record = self.record
        return [
            (to, order)
            for to, order in self._takes
            if isinstance(order, TakeRole)
            and record is not None
            and order.role in record.taking
            and record.seats[order.role] == Seat(to, order.incarnation)
        ]

    def _persist(self, record: RingRecord) -> PersistRings:
        self._incarnation = max(self._incarnation, record.newest)
        return PersistRings(self._ask(), self._incarnation, self.generation, record)

    def _fence(self, roles: Iterable[Role]) -> FenceSourceRoles:
        seats = {} if self.record is None else self.record.seats
        sources = (role for role in roles if not self._stages.parents[role.stage])
        return FenceSourceRoles(self._ask(), {role: seats[role].incarnation for role in sources})

    def _ask(self) -> int:
        self._numbers += 1
        self._asked = self._numbers
        return self._numbers


def _told(orders: Mapping[int, Sequence[RoleOrder]]) -> list[RingsEffect]:
    return [TellHost(host, tuple(some)) for host, some in orders.items()]
