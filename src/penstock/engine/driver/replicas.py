"""Replicas on the driver: performs what the machine of the rings decides.

Everything here runs in the controller's thread.  :mod:`penstock.core.control.rings` decides; this
module writes ``ring.json``, fences the logs of sources, sends orders and keeps the history.  What
the store does not take is tried again.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, assert_never

from penstock.core.control.host_orders import PlayRoles
from penstock.core.control.host_reports import RoleReport
from penstock.core.control.ring_record import (
    FenceSourceRoles,
    PersistRings,
    RingsEffect,
    TellHost,
    WarnMissed,
)
from penstock.core.control.rings import RingsMachine
from penstock.core.control.roster import DRIVER
from penstock.core.delivery.ids import Role, member_host
from penstock.engine.driver.recovery import Recovery
from penstock.engine.driver.recovery_history import RecoveryEntry
from penstock.engine.host.clock import now_us
from penstock.planning.physical import PhysicalPlan
from penstock.planning.replica_plan import (
    longest_run,
    node_of,
    replicated_stages,
    rings_of,
    role_of,
)

__all__ = ["Replicas"]

log = logging.getLogger(__name__)

RECORD = "ring.json"
HISTORY = 1000


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
        self._recovery = recovery
        self._tell = tell
        self._hosts = hosts
        self._stages = replicated_stages(plan)
        rings = rings_of(plan, placement, DRIVER)
        homes = {
            role: rings[stage].index(placement[node_of(plan, role)])
            for stage in rings
            for role in self._stages.of(stage)
        }
        self.run = longest_run(plan, rings, DRIVER)
        """The stages in a row of which one host holds copies."""
        self.machine = RingsMachine(self._stages, rings, homes, *self._read_record())
        self._pending: PersistRings | FenceSourceRoles | None = None
        """What the store did not take."""
        self._stall = recovery.stalls.new("the record of the rings")

    # -- what happens ----------------------------------------------------------------------------

    def begin(self) -> None:
        """All hosts have their assignments: start all rings."""
        self._perform(self.machine.begin(self._hosts()))

    def host_lost(self, host: int, heir: int | None, reason: str) -> None:
        """A host is gone; ``heir`` will come in its place."""
        nodes = [n for n, at in self.placement.items() if at == host and self._is_role(n)]
        if nodes:
            names = [self.plan.node_name(node) for node in nodes]
            reason = reason.removeprefix(f"host {host} was lost: ")
            number = len(self._recovery.history) + len(self.history) + 1
            self.history.append(RecoveryEntry(number, names, reason, now_us(), names))
            log.warning("host %d was lost (%s): %s are taken over", host, reason, ", ".join(names))
        self._perform(self.machine.host_lost(host, heir))

    def not_begun(self, host: int, heir: int) -> None:
        """A host is gone before the rings have begun, and another one comes in its place."""
        self._perform(self.machine.host_lost(host, heir))

    def host_ready(self, host: int) -> None:
        """A host can play roles now."""
        self._perform(self.machine.host_ready(host))

    def told(self, host: int, report: RoleReport) -> None:
        """A host's word on its roles."""
        self._perform(self.machine.told(host, report))

    def finished(self, node: int) -> list[int]:
        """A node has come to its end; gives those that have with it."""
        if not self._is_role(node):
            return [node]
        ended = self.machine.node_ended(role_of(self.plan, node))
        return [node_of(self.plan, role) for role in ended]

    def try_again(self) -> None:
        """Go on with what the store did not take, now and then."""
        if self._pending is not None and self._stall.is_due():
            self._perform([self._pending])

    # -- what is known ---------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether all members of all rings have started."""
        return self.machine.is_open

    def incarnation(self, node: int) -> int | None:
        """The incarnation of a node, if it is a role."""
        if not self._is_role(node):
            return None
        record = self.machine.record
        return 0 if record is None else record.seats[role_of(self.plan, node)].incarnation

    def _is_role(self, node: int) -> bool:
        return self.plan.chain_of[node] in self._stages.roles

    def _lows(self) -> dict[Role, int]:
        """Per source and sink: the last epoch that need not be made again for it."""
        regions = self._recovery.graph.regions
        published: dict[int, int] = {}
        lows: dict[Role, int] = {}
        for stage in self._stages.sinks:
            for role in self._stages.of(stage):
                node = node_of(self.plan, role)
                epoch = lows[role] = self._recovery.store.sink_report(node).completed
                published[regions[node]] = min(epoch, published.get(regions[node], epoch))
        for stage in self._stages.sources:
            for role in self._stages.of(stage):
                lows[role] = published.get(regions[node_of(self.plan, role)], -1)
        return lows

    # -- effects ---------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[RingsEffect]) -> None:
        work = deque(effects)
        while work:
            effect = work.popleft()
            match effect:
                case PersistRings() | FenceSourceRoles():
                    work.extend(self._write(effect))
                case TellHost(host, orders):
                    addresses = self._hosts()
                    if host in addresses:
                        self._tell(host, PlayRoles(orders, addresses))
                case WarnMissed(node, missing):
                    log.warning(
                        "%s needs %s, which no host can send again: too many hosts were lost at "
                        "once, so that sources read again what is not published",
                        node,
                        missing,
                    )
                case _:
                    assert_never(effect)
        self._note()

    def _write(self, effect: PersistRings | FenceSourceRoles) -> list[RingsEffect]:
        """Do what an effect asks of the store, and say so; or keep it for later."""
        self._pending = None
        try:
            if isinstance(effect, PersistRings):
                self._persist(effect)
                answer = self.machine.stored(effect.number)
            else:
                lows = self._lows()
                for role, fence in effect.fences.items():
                    self._fence(role, fence, lows[role])
                answer = self.machine.fenced(effect.number, lows)
        except OSError as error:
            self._stall.failed(error)
            self._pending = effect
            return []
        self._stall.worked()
        return answer

    def _fence(self, role: Role, fence: int, low: int) -> None:
        """What was noted so far counts; what players before this one note from now on does not."""
        log_ = self._recovery.store.boundaries(node_of(self.plan, role))
        log_.take_over(low, ended=True, fence=fence)

    def _note(self) -> None:
        """Keep the history, and know where the nodes are."""
        machine, record = self.machine, self.machine.record
        if record is None:
            return
        for role, seat in record.seats.items():
            if seat.host >= 0:
                self.placement[node_of(self.plan, role)] = member_host(seat.host)
        if not machine.is_open or machine.is_blocked:
            return
        now = now_us()
        for entry in self.history:
            if entry.recovered_us is not None:
                continue
            entry.planned_us = entry.started_us = entry.planned_us or now
            if not record.taking and not record.orphans:
                entry.opened_us = entry.opened_us or now
            if machine.quiet:
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

    def _persist(self, effect: PersistRings) -> None:
        record = effect.record
        found: Mapping[str, Any] = {
            "incarnation": effect.incarnation,
            "generation": effect.generation,
            "fences": [(*role, fence) for role, fence in record.fences.items()],
            "seats": [(*role, *seat) for role, seat in record.seats.items()],
        }
        self._recovery.store.storage.write(
            RECORD, json.dumps(found).encode(), self._recovery.store.place.sync
        )
