"""Replicas on the driver: performs what the controller of the rings decides.

Everything here runs in the controller's thread.  What it must not forget is durable before anybody
hears of it.  Nobody takes a role over before all hosts have said that they hear nothing more of the
host that had it: a process that was only frozen could otherwise speak for the role once more.  Then
the log of a source is fenced: what such a process still notes there is read by nobody.

Where too many were lost at once, so that something is needed that nobody can send again, the rings
begin anew, when all hosts have stopped: sources read again all that is not published, and sinks
know what they have.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, assert_never

from penstock.core.control.host_orders import (
    BeginRings,
    ChangeMembers,
    ConfirmRole,
    DropMembers,
    HandOverRole,
    JoinRing,
    OpenRings,
    PlayRoles,
    RewireRole,
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
from penstock.core.control.roster import DRIVER
from penstock.core.delivery.ids import Role
from penstock.core.delivery.ring_controller import RingController
from penstock.core.delivery.ring_record import (
    FenceRoles,
    PersistRing,
    RingControllerEffect,
    RingRecord,
    Start,
    StopHost,
    TellConfirm,
    TellHandOver,
    TellLost,
    TellMembers,
    TellNext,
    TellRewired,
    TellTake,
)
from penstock.core.delivery.routing import Seat
from penstock.engine.driver.recovery import Recovery
from penstock.engine.driver.recovery_history import RecoveryEntry
from penstock.engine.host.clock import now_us
from penstock.planning.physical import PhysicalPlan
from penstock.planning.replica_plan import (
    longest_run,
    member,
    member_host,
    member_stage,
    node_of,
    replicated_stages,
    rings_of,
    role_of,
)

__all__ = ["Replicas"]

log = logging.getLogger(__name__)

RECORD = "ring.json"
HISTORY = 1000
Orders = dict[int, list[RoleOrder]]
"""Per host: what it is told, in order."""


class Replicas:
    """The controller's hands in matters of replicas."""

    def __init__(
        self,
        plan: PhysicalPlan,
        recovery: Recovery,
        placement: dict[int, int],
        tell: Callable[[int, PlayRoles], None],
        hosts: Callable[[], dict[int, str]],
    ) -> None:
        self.plan = plan
        self.placement = placement
        self.history: deque[RecoveryEntry] = deque(maxlen=HISTORY)
        self.open = False
        """Whether all members of all rings have started."""
        self._recovery = recovery
        self._tell = tell
        self._hosts = hosts
        self._stages = replicated_stages(plan)
        rings = rings_of(plan, placement, DRIVER)
        self._slots = {stage: dict(enumerate(ring)) for stage, ring in rings.items()}
        self._homes = {
            role: rings[role.stage].index(placement[node_of(plan, role)])
            for stage in rings
            for role in self._stages.of(stage)
        }
        self.run = longest_run(plan, rings, DRIVER)
        """The stages in a row of which one host holds copies."""
        self._incarnation, self.generation = self._read_record()
        self._ring: RingController | None = None
        self._vacant: dict[int, list[tuple[int, int]]] = {}
        """Per host that is to come: the slots that it fills."""
        self._unbegun: set[int] = set()
        """Hosts that may still play roles as they were before everything begins anew."""
        self._beginning = False
        """Whether all have stopped, and the store has not taken all of what comes next."""
        self._unstarted: set[int] = set()
        self._unheard: set[int] = set()
        self._round = 0
        self._takes: list[TellTake] = []
        self._work: deque[RingControllerEffect] = deque()
        self._ended: set[int] = set()
        self._stall = recovery.stalls.new("the record of the rings")

    # -- what happens ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Start all rings anew: with nothing in flight, from what is published."""
        self.open = False
        empty = [stage for stage, slots in self._slots.items() if not slots]
        if empty:
            return  # when somebody has come
        self.generation += 1
        self._takes.clear()
        self._work.clear()
        self._unheard.clear()
        self._unstarted.clear()
        self._beginning = False
        hosts = self._hosts()
        self._unbegun = set(hosts)
        for host in hosts:
            self._send(host, [BeginRings(self.generation)])

    def _begun(self, host: int) -> None:
        """A host plays nothing any more; when none does, what is durable stays as it is."""
        if host not in self._unbegun:
            return
        self._unbegun.discard(host)
        if not self._unbegun:
            self._ring = RingController(self._first_record())
            self._beginning = True
            self._perform([PersistRing(self._ring.record)])

    def _start_all(self) -> None:
        """Let all hosts be members of their rings, with sources that nobody else writes for."""
        lows = self._lows()
        for stage in self._stages.sources:
            for role in self._stages.of(stage):
                self._fence_source(role, lows)
        self._beginning = False
        hosts = self._hosts()
        self._unstarted = set(hosts)
        for host in hosts:
            orders: list[RoleOrder] = [
                self._join(stage, self._record, joining=False, lows=lows)
                for stage, slots in self._slots.items()
                if host in slots.values()
            ]
            self._send(host, [*orders, SayJoined(self.generation)])

    def not_begun(self, host: int, heir: int) -> None:
        """A host is gone before the rings have begun, and another one comes in its place."""
        for slots in self._slots.values():
            slots.update({slot: heir for slot, at in slots.items() if at == host})

    def _fence_source(self, role: Role, lows: Mapping[int, int]) -> None:
        """What was noted so far counts; what players before this one note from now on does not."""
        node = node_of(self.plan, role)
        fence = self._record.seats[role].incarnation
        log_ = self._recovery.store.boundaries(node)
        log_.take_over(lows.get(node, -1), ended=True, fence=fence)

    def host_lost(self, host: int, taker: int | None, reason: str) -> None:
        """A host is gone; ``taker`` will come in its place."""
        nodes = [n for n, at in self.placement.items() if at == host and self._is_role(n)]
        slots = [
            (s, slot) for s, ring in self._slots.items() for slot, h in ring.items() if h == host
        ]
        for stage, slot in slots:
            del self._slots[stage][slot]
        slots += self._vacant.pop(host, [])
        if taker is not None and slots:
            self._vacant[taker] = [*self._vacant.get(taker, []), *slots]
        if nodes:
            names = [self.plan.node_name(node) for node in nodes]
            reason = reason.removeprefix(f"host {host} was lost: ")
            number = len(self._recovery.history) + len(self.history) + 1
            self.history.append(RecoveryEntry(number, names, reason, now_us(), names))
            log.warning("host %d was lost (%s): %s are taken over", host, reason, ", ".join(names))
        if not self.open or self._ring is None:
            self.begin()
            return
        self._unheard.discard(host)
        effects: list[RingControllerEffect] = []
        for stage, _slot in slots:
            effects += self._ring.host_lost(member(host, stage))
        self._round += 1
        self._unheard = set(self._hosts()) - {host}
        self._perform(
            effects, lost=[member(host, stage) for stage, _ in slots] or [member(host, 0)]
        )

    def host_ready(self, host: int) -> None:
        """A host can play roles now."""
        slots = self._vacant.pop(host, [])
        if not self.open or self._ring is None:
            for stage, slot in slots:
                self._slots[stage][slot] = host
            self.begin()
            return
        self._send(host, [BeginRings(self.generation)])
        effects: list[RingControllerEffect] = []
        for stage, slot in slots:
            self._slots[stage][slot] = host
            effects += self._ring.joined(member(host, stage), stage, slot)
        self._perform(effects)
        self._send(host, [OpenRings()])

    def told(self, host: int, report: RoleReport) -> None:
        """A host's word on its roles."""
        ring = self._ring
        if report.generation != self.generation:
            return
        if isinstance(report, RingsBegun):
            self._begun(host)
            return
        if ring is None:
            return
        match report:
            case RingsJoined():
                self._started(host)
            case LossHeard():
                if report.round == self._round:
                    self._unheard.discard(host)
                self._perform([])
            case ParcelsMissed():
                log.warning(
                    "%s needs %s, which nobody can send again: too many hosts were lost at once, "
                    "so that sources read again what is not published",
                    report.node,
                    report.missing,
                )
                self.begin()
            case MemberReady():
                self._perform(ring.ready(member(host, report.stage)))
            case RoleTaken(_, stage, role, incarnation):
                self._perform(ring.taken(member(host, stage), role, incarnation))
            case RoleRecovered(_, stage, role, incarnation):
                self._perform(ring.recovered(member(host, stage), role, incarnation))
            case _:
                assert_never(report)

    def _started(self, host: int) -> None:
        self._unstarted.discard(host)
        if self._unstarted or self.open:
            return
        self.open = True
        for other in self._hosts():
            self._send(other, [OpenRings()])
        for waiting in [h for h in self._vacant if h in self._hosts()]:
            self.host_ready(waiting)
        self._note()

    def finished(self, node: int) -> list[int]:
        """A node has come to its end; gives those who have with it."""
        if not self._is_role(node):
            return [node]
        self._ended.add(node)
        regions = self._recovery.graph.regions
        near = [n for n in self.placement if regions[n] == regions[node]]
        sinks = [n for n in near if not self._stages.children.get(self.plan.chain_of[n])]
        return near if self._ended.issuperset(sinks) else []

    def try_again(self) -> None:
        """Go on with what the store did not take, now and then."""
        if self._stall.is_on and self._stall.is_due():
            self._perform([])

    # -- what is known ---------------------------------------------------------------------------

    def incarnation(self, node: int) -> int | None:
        """The incarnation of a node, if it is a role."""
        if not self._is_role(node):
            return None
        if self._ring is None:
            return 0
        return self._ring.record.seats[role_of(self.plan, node)].incarnation

    def _is_role(self, node: int) -> bool:
        return self.plan.chain_of[node] in self._stages.roles

    def _lows(self) -> dict[int, int]:
        """Per source and sink: the last epoch that need not be made again for it."""
        regions = self._recovery.graph.regions
        published: dict[int, int] = {}
        lows: dict[int, int] = {}
        for stage in self._stages.sinks:
            for node in self.plan.chains[stage].nodes:
                epoch = lows[node] = self._recovery.store.sink_report(node).completed
                published[regions[node]] = min(epoch, published.get(regions[node], epoch))
        for stage in self._stages.sources:
            for node in self.plan.chains[stage].nodes:
                lows[node] = published.get(regions[node], -1)
        return lows

    def _first_record(self) -> RingRecord:
        """Roles at home where somebody is; else with the next of their ring."""
        seats: dict[Role, Seat] = {}
        self._incarnation += 1
        for role, home in self._homes.items():
            slots = self._slots[role.stage]
            slot = min(slots, key=lambda other: (other < home, other))
            seats[role] = Seat(member(slots[slot], role.stage), self._incarnation)
        rings = {
            stage: {slot: member(host, stage) for slot, host in slots.items()}
            for stage, slots in self._slots.items()
        }
        return RingRecord(
            seats,
            self._homes,
            rings,
            dict.fromkeys(seats, self._incarnation),
            frozenset(one for ring in rings.values() for one in ring.values()),
        )

    def _join(
        self, stage: int, record: RingRecord, joining: bool, lows: Mapping[int, int]
    ) -> JoinRing:
        """What a member of a ring must know."""
        return JoinRing(
            stage,
            record.settled_seats(),
            dict(record.fences),
            record.members(stage),
            frozenset(record.lost),
            joining,
            dict(lows),
        )

    @property
    def _record(self) -> RingRecord:
        if self._ring is None:
            raise RuntimeError("the rings have not begun")
        return self._ring.record

    # -- effects ---------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[RingControllerEffect], lost: Iterable[int] = ()) -> None:
        self._work.extend(effects)
        orders: Orders = {}
        gone = list(lost)
        if gone:
            orders = {host: [DropMembers(tuple(gone), self._round)] for host in self._unheard}
        try:
            while self._work:
                effect = self._work[0]
                if isinstance(effect, PersistRing):
                    self._persist(effect.record)
                self._work.popleft()
                self._order(effect, orders)
            if self._beginning:
                self._start_all()
            if not self._unheard:
                self._let_take(orders)
            self._stall.worked()
        except OSError as error:
            self._stall.failed(error)
        for host, some in orders.items():
            self._send(host, some)
        if self._ring is not None:
            for role, seat in self._ring.record.seats.items():
                if seat.host >= 0:
                    self.placement[node_of(self.plan, role)] = member_host(seat.host)
        self._note()

    def _order(self, effect: RingControllerEffect, orders: Orders) -> None:
        """Put into a host's orders what an effect asks of it."""
        match effect:
            case Start():
                order = self._join(effect.stage, effect.record, joining=True, lows={})
                self._add(orders, effect.host, order)
            case TellMembers():
                stage = member_stage(effect.to)
                self._add(orders, effect.to, ChangeMembers(stage, effect.members))
            case TellHandOver():
                self._add(orders, effect.to, HandOverRole(effect.role, effect.seat))
            case TellConfirm():
                self._add(orders, effect.to, ConfirmRole(effect.role, effect.incarnation))
            case TellRewired():
                self._add(orders, effect.to, RewireRole(effect.role, effect.seat, effect.fence))
            case TellTake():
                self._takes.append(effect)
            case PersistRing():
                pass  # durable before this is called
            case TellLost():
                pass  # all hosts are told of all members at once
            case FenceRoles() | StopHost() | TellNext():
                pass
            case _:
                assert_never(effect)

    def _add(self, orders: Orders, to: int, order: RoleOrder) -> None:
        mine = orders.setdefault(member_host(to), [])
        if order not in mine:  # once for all rings of a host
            mine.append(order)

    def _let_take(self, orders: Orders) -> None:
        """Let roles be taken over, now that nobody hears those who had them."""
        lows = self._lows() if self._takes else {}
        while self._takes:
            take = self._takes[0]
            role = take.role
            node = node_of(self.plan, role)
            now = self._record.seats[role]
            if role in self._record.taking and now == Seat(take.to, take.incarnation):
                if not self._stages.parents[role.stage]:
                    self._fence_source(role, lows)
                order = TakeRole(role, take.incarnation, take.fresh, lows.get(node, -1))
                orders.setdefault(member_host(take.to), []).append(order)
            self._takes.pop(0)

    def _send(self, host: int, orders: Iterable[RoleOrder]) -> None:
        addresses = self._hosts()
        if host in addresses:
            self._tell(host, PlayRoles(tuple(orders), addresses))

    def _note(self) -> None:
        """Keep the history."""
        if self._ring is None or not self.open:
            return
        record, now = self._ring.record, now_us()
        for entry in self.history:
            if entry.recovered_us is not None or self._takes:
                continue
            entry.planned_us = entry.started_us = entry.planned_us or now
            if not record.taking and not record.orphans:
                entry.opened_us = entry.opened_us or now
            if self._ring.quiet:
                entry.recovered_us = now

    # -- the store -------------------------------------------------------------------------------

    def _read_record(self) -> tuple[int, int]:
        """The greatest incarnation and generation of earlier runs, whatever their regimes."""
        sources = (role for stage in self._stages.sources for role in self._stages.of(stage))
        fences = [self._recovery.store.boundaries(node_of(self.plan, r)).fence() for r in sources]
        fence = max(fences, default=0)
        try:
            found = json.loads(self._recovery.store.storage.read(RECORD))
            return max(int(found["incarnation"]), fence), int(found["generation"])
        except FileNotFoundError:
            return fence, 0
        except (ValueError, KeyError, TypeError) as error:
            log.warning(
                "%s/%s is damaged and is made anew: %s", self._recovery.store.storage, RECORD, error
            )
            return max(now_us() // 1_000_000, fence), 0

    def _persist(self, record: RingRecord) -> None:
        newest = max(
            self._incarnation,
            *(seat.incarnation for seat in record.seats.values()),
            *(seat.incarnation for seat in record.moving.values()),
        )
        self._incarnation = newest
        found: Mapping[str, Any] = {
            "incarnation": newest,
            "generation": self.generation,
            "fences": [(*role, fence) for role, fence in record.fences.items()],
            "seats": [(*role, *seat) for role, seat in record.seats.items()],
        }
        self._recovery.store.storage.write(
            RECORD, json.dumps(found).encode(), self._recovery.store.place.sync
        )
