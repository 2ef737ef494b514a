"""The planner on a running flow: measure, plan, put the plan into force, look again.

A plan (:mod:`penstock.core.plan`) says which operators are anchors and how often each checkpoints.
Frequencies become numbers of epochs, and all nodes count from epoch 0: so the nodes of a segment
have checkpoints of the same epochs without talking to each other.  Who sends to an anchor keeps a
log; who does not works again when a receiver is lost.  What is in force is in the store, as
``plan.json``; a flow that is started again with the store begins with it.

Everything here but :meth:`LivePlan.measured` and :meth:`LivePlan.plan` runs in the controller's
thread.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from penstock.api.regimes import Causal, Lazy
from penstock.core.causal.graph import NodeKind
from penstock.core.control.assignment import PlanOrders
from penstock.core.control.figures import NodeFigures
from penstock.core.control.host_orders import ApplyPlan
from penstock.core.control.host_reports import CheckpointSaved
from penstock.core.control.planned_logs import Logging, PlannedLogs
from penstock.core.plan import Method, OperatorTopology, Plan, solve
from penstock.engine.driver.meter import Meter
from penstock.engine.driver.recovery import Recovery
from penstock.engine.host.clock import now_us
from penstock.engine.settings import RunSettings
from penstock.errors import SettingsError, TransientError

__all__ = ["LivePlan"]

log = logging.getLogger(__name__)

MOVED = 0.5
"""Plan again when something has changed by more than this share …"""
MATTERS = 0.02
"""… and was, or is, at least this share of the whole."""
INTERVAL_S_MAX = 60.0
"""Logs are cut when checkpoints are taken, so they must be now and then."""
PROBE_S = 5.0
"""How often the speed of the store is measured."""
STALE_S = 2.0
"""Heartbeats are younger than this; a host that is silent for longer cannot be told either."""
NAME = "plan.json"


class LivePlan:
    """Measures, plans and applies, for one run."""

    def __init__(
        self,
        recovery: Recovery,
        settings: RunSettings,
        tell: Callable[[ApplyPlan], None],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        self.meter = Meter(recovery.plan, recovery.graph)
        self.orders = PlanOrders()
        """What hosts are told."""
        self._logs = PlannedLogs(recovery.retention)
        self._recovery = recovery
        self._storage = recovery.store.storage
        self._epoch_s = settings.s("epochInterval")
        self._slack = 2 + math.ceil(STALE_S / self._epoch_s)
        self._max_overhead = settings.maxOverhead
        self._interval_s = settings.s("planInterval")
        self._tell = tell
        self._later = later
        self._lock = threading.Lock()
        self._planning = False
        self._look_at_s = time.monotonic() + self._interval_s
        self._planned: OperatorTopology | None = None
        self._refused = ""
        self._node_of = {recovery.plan.node_name(node): node for node in recovery.graph.kinds}
        self._read()
        self._probe_at_s = 0.0

    def _probe(self) -> None:
        try:
            self.meter.storage.probe(self._storage, self._recovery.store.place.sync)
        except OSError as error:
            log.info("the speed of the store is not known: %s", error)

    # -- what happens ----------------------------------------------------------------------------

    def observe(self, figures: Mapping[int, NodeFigures]) -> None:
        """The latest heartbeats; now and then, with a budget, it is time to plan."""
        now_s = time.monotonic()
        with self._lock:
            self.meter.observe(figures, now_s)
        if now_s >= self._probe_at_s:
            self._probe_at_s = now_s + PROBE_S
            threading.Thread(target=self._probe, name="penstock-probe", daemon=True).start()
        if self.orders.logged and self._settle_logs(figures):
            self.orders = self.orders._replace(logged=self._logged())
            self._tell(ApplyPlan(self.orders))
        if self._max_overhead is not None and now_s >= self._look_at_s and not self._planning:
            self._look_at_s = now_s + self._interval_s
            if self._recovery.machine.quiet and self._has_moved():
                self._planning = True
                threading.Thread(target=self._plan_again, name="penstock-plan", daemon=True).start()

    def _settle_logs(self, figures: Mapping[int, NodeFigures]) -> bool:
        said = {
            node: Logging(one.epoch, one.causal is not None and one.causal.logged)
            for node, one in figures.items()
        }
        return self._logs.settle(said, self._slack, self._recovery.quiet)

    def saved(self, saved: CheckpointSaved) -> None:
        """A checkpoint is durable."""
        with self._lock:
            self.meter.saved(saved)

    # -- measuring and planning ------------------------------------------------------------------

    def measured(self) -> dict[str, Any]:
        """The flow as ``penstock plan`` reads it."""
        with self._lock:
            if self.meter.seconds <= 0.0:
                raise TransientError("nothing was measured yet: wait a few seconds")
            history = [
                [self._node_of[name] for name in entry.lost if name in self._node_of]
                for entry in self._recovery.history
            ]
            return self.meter.topology(history)

    def plan(self, max_overhead: float, method: Method) -> Plan:
        """The best plan for what was measured."""
        with self._lock:
            unknown = self.meter.unknown()
        if unknown:
            raise TransientError(
                f"the state of {', '.join(unknown)} was never saved, so its size is unknown: "
                "wait for its first checkpoint"
            )
        return solve(OperatorTopology.from_mapping(self.measured()), max_overhead, method)

    def _has_moved(self) -> bool:
        """Whether what was planned for is no longer what is measured."""
        with self._lock:
            if self.meter.unknown() or self.meter.seconds < self._interval_s / 2:
                return False
        if self._planned is None:
            return True
        return moved(self._planned, OperatorTopology.from_mapping(self.measured()))

    def _plan_again(self) -> None:
        try:
            found = self.plan(self._max_overhead or 0.0, "exact")
            if found.feasible:
                self._later(lambda: self.apply(found))
            elif found.reason != self._refused:
                log.warning(
                    "no plan within maxOverhead=%g: %s; it needs more than %.3g",
                    found.max_overhead,
                    found.reason,
                    found.min_overhead,
                )
            self._refused = found.reason
            self._planned = found.topology
        except TransientError as error:
            log.info("not planned: %s", error)
        finally:
            self._planning = False

    # -- what is in force ------------------------------------------------------------------------

    def apply(self, plan: Plan) -> None:
        """Put a plan into force, without a restart."""
        if not plan.feasible:
            raise SettingsError(f"the plan is none: {plan.reason}; give a larger maxOverhead")
        names = {operator.name for operator in self.meter.operators}
        if set(plan.topology.names) != names:
            raise SettingsError(
                f"the plan is for the operators {', '.join(plan.topology.names)}; this flow has "
                f"{', '.join(sorted(names))}"
            )
        every = {name: self._epochs(eta) for name, eta in plan.frequency.items()}
        self._planned = plan.topology
        self._order(every, plan.anchors)
        record = {
            "applied_us": now_us(),
            "method": plan.method,
            "max_overhead": plan.max_overhead,
            "overhead": plan.overhead,
            "recovery_time": plan.recovery_time,
            "anchors": list(plan.anchors),
            "segments": [list(part) for part in plan.segments],
            "epochs": every,
        }
        self._storage.write(NAME, json.dumps(record, indent=1).encode())
        self._tell(ApplyPlan(self.orders))

    @property
    def settled(self) -> bool:
        """Whether the last plan is wholly in force: also its logs are as it says."""
        return self._logs.settled

    def _epochs(self, frequency: float) -> int:
        """How many epochs from one checkpoint to the next."""
        interval_s = 1.0 / frequency if frequency > 0.0 else math.inf
        return max(1, round(min(interval_s, INTERVAL_S_MAX) / self._epoch_s))

    def _order(self, every: Mapping[str, int], anchors: tuple[str, ...]) -> None:
        kinds = self._recovery.graph.kinds
        self._logs.want(self._anchored(anchors))
        epochs = {
            node: every[operator.name]
            for operator in self.meter.operators
            for node in operator.nodes
            # All nodes of a loop would have to change at the same epoch.
            if kinds[node] in (NodeKind.STATEFUL, NodeKind.ORDERED) and not operator.is_loop
        }
        self.orders = PlanOrders(epochs, self._logged())

    def _anchored(self, anchors: Collection[str]) -> dict[int, bool]:
        """Per node that sends: whether it sends to an anchor, so that it must keep a log."""
        plan = self._recovery.plan
        operator_of = {c.index: one.name for one in self.meter.operators for c in one.chains}
        found: dict[int, bool] = {}
        for chain in plan.chains:
            home = operator_of[chain.index]
            below = {operator_of[link.target_chain] for link in plan.links_out_of(chain.index)}
            below.discard(home)
            if below and isinstance(chain.regime, Causal | Lazy):
                found.update(dict.fromkeys(chain.nodes, not below.isdisjoint(anchors)))
        return found

    def _logged(self) -> dict[int, bool]:
        return dict(self._logs.told)

    def _read(self) -> None:
        """A plan that was in force when the flow ended still is."""
        try:
            record = json.loads(self._storage.read(NAME))
            every, anchors = dict(record["epochs"]), tuple(record["anchors"])
            fits = {operator.name for operator in self.meter.operators} == set(every)
            if not fits or not all(isinstance(n, int) and n >= 1 for n in every.values()):
                raise ValueError("it is for other operators")
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError, OSError) as error:
            log.warning("%s/%s is not used: %s", self._storage, NAME, error)
            return
        self._order(every, anchors)


def moved(before: OperatorTopology, now: OperatorTopology) -> bool:
    """Whether two measurements of a flow differ in something that matters."""
    for key in ("state_cost", "log_cost", "replay_cost", "failure_rate"):
        old, new = getattr(before, key), getattr(now, key)
        floor = MATTERS * max(sum(old), sum(new))
        for one, other in zip(old, new, strict=True):
            if max(one, other) > floor and abs(one - other) > MOVED * min(one, other):
                return True
    return False
