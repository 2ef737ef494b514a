"""Replicas on the driver: performs what the controller of the rings decides.

Everything here runs in the controller's thread.  What it must not forget is durable before anybody
hears of it.  Nobody takes a role over before all hosts have said that they hear nothing more of the
host that had it: a process that was only frozen could otherwise speak for the role once more.

Where too many were lost at once, so that something is needed that nobody can send again, the rings
begin anew: sources read again all that is not published, and sinks know what they have.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.core.delivery.ids import Role
from penstock.core.delivery.ring_controller import RingController
from penstock.core.delivery.ring_record import (
    PersistRing,
    RingControllerEffect,
    RingRecord,
    Start,
    TellConfirm,
    TellHandOver,
    TellLost,
    TellMembers,
    TellRewired,
    TellTake,
)
from penstock.core.delivery.routing import Seat
from penstock.engine.clock import now_us
from penstock.engine.spark.host_task import DRIVER
from penstock.engine.spark.recovery import Recovery
from penstock.engine.spark.recovery_history import RecoveryEntry
from penstock.physical import PhysicalPlan
from penstock.replica_plan import (
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
Orders = dict[int, list[tuple[Any, ...]]]
"""Per host: what it is told, in order."""


class Replicas:
    """The controller's hands in matters of replicas."""

    def __init__(
        self,
        plan: PhysicalPlan,
        recovery: Recovery,
        placement: dict[int, int],
        tell: Callable[[int, dict[str, Any]], None],
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
        self._ring = RingController(self._first_record())
        hosts = self._hosts()
        self._unstarted = set(hosts)
        self._perform([PersistRing(self._ring.record)])
        lows = self._lows()
        for host in hosts:
            orders: list[tuple[Any, ...]] = [("begin", self.generation)]
            for stage, slots in self._slots.items():
                if host in slots.values():
                    orders.append(("start", stage, self._plain(stage), False, lows))
            self._send(host, [*orders, ("started", self.generation)])

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
        self._send(host, [("begin", self.generation)])
        effects: list[RingControllerEffect] = []
        for stage, slot in slots:
            self._slots[stage][slot] = host
            effects += self._ring.joined(member(host, stage), stage, slot)
        self._perform(effects)
        self._send(host, [("go",)])

    def told(self, host: int, body: dict[str, Any]) -> bool:
        """A host's word on its roles; False if it is about something else."""
        if body["kind"] != "replica_told":
            return False
        ring = self._ring
        if body["g"] != self.generation or ring is None:
            return True
        what, about = body["what"], body["a"]
        if what == "started":
            self._started(host)
        elif what == "heard":
            if about[0] == self._round:
                self._unheard.discard(host)
            self._perform([])
        elif what == "missing":
            log.warning(
                "%s needs %s, which nobody can send again: too many hosts were lost at once, so "
                "that sources read again what is not published",
                *about,
            )
            self.begin()
        elif what == "ready":
            self._perform(ring.ready(member(host, about[0])))
        else:
            stage, role, incarnation = about
            told = ring.taken if what == "taken" else ring.recovered
            self._perform(told(member(host, stage), Role(*role), incarnation))
        return True

    def _started(self, host: int) -> None:
        self._unstarted.discard(host)
        if self._unstarted or self.open:
            return
        self.open = True
        for other in self._hosts():
            self._send(other, [("go",)])
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
                epoch = lows[node] = self._recovery._sink_report(node).completed
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

    def _plain(self, stage: int, record: RingRecord | None = None) -> dict[str, Any]:
        """What a member of a ring must know."""
        found = record or self._record
        return {
            "seats": list(found.settled_seats().items()),
            "fences": list(found.fences.items()),
            "members": found.members(stage),
            "lost": sorted(found.lost),
        }

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
            orders = {host: [("lost", gone, self._round)] for host in self._unheard}
        try:
            while self._work:
                effect = self._work[0]
                if isinstance(effect, PersistRing):
                    self._persist(effect.record)
                self._work.popleft()
                self._order(effect, orders)
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
        order: tuple[Any, ...] | None = None
        to = getattr(effect, "to", -1)
        if isinstance(effect, Start):
            to = effect.host
            order = ("start", effect.stage, self._plain(effect.stage, effect.record), True, {})
        elif isinstance(effect, TellMembers):
            order = ("members", member_stage(effect.to), effect.members)
        elif isinstance(effect, TellHandOver):
            order = ("hand_over", effect.role, effect.seat)
        elif isinstance(effect, TellConfirm):
            order = ("confirm", effect.role, effect.incarnation)
        elif isinstance(effect, TellRewired):
            order = ("rewired", effect.role, effect.seat, effect.fence)
        elif isinstance(effect, TellTake):
            self._takes.append(effect)
        elif isinstance(effect, TellLost):
            return  # all hosts are told of all members at once
        if order is not None:
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
                low = lows.get(node, -1)
                if not self._stages.parents[role.stage]:
                    self._recovery._boundaries(node).take_over(low, ended=True)
                order = ("take", role, take.incarnation, take.fresh, low)
                orders.setdefault(member_host(take.to), []).append(order)
            self._takes.pop(0)

    def _send(self, host: int, orders: list[tuple[Any, ...]]) -> None:
        addresses = self._hosts()
        if host in addresses:
            self._tell(host, {"kind": "replicas", "orders": orders, "addresses": addresses})

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
        """The greatest incarnation and generation of earlier runs."""
        try:
            found = json.loads(self._recovery.storage.read(RECORD))
            return int(found["incarnation"]), int(found["generation"])
        except FileNotFoundError:
            return 0, 0
        except (ValueError, KeyError, TypeError) as error:
            log.warning(
                "%s/%s is damaged and is made anew: %s", self._recovery.storage, RECORD, error
            )
            return now_us() // 1_000_000, 0

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
        self._recovery.storage.write(RECORD, json.dumps(found).encode(), self._recovery.sync)
