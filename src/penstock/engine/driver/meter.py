"""What a running flow costs, per operator, as the planner wants to know it.

An *operator* is a chain (stages that were fused run as one) or a whole loop.  Everything is taken
from what hosts say anyway: figures in heartbeats, and the size and duration of each checkpoint.
Rates and costs are those of the last half minute; what waited for a processor did not cost more.

Failures are rare, so what was seen of them is added to a prior: as if each node had failed once in
the day before the flow began.  A plan depends on the ratios alone, and these are, as long as
nothing has failed, those of the numbers of nodes.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.control.figures import CausalFigures, NodeFigures
from penstock.core.control.host_reports import CheckpointSaved
from penstock.engine.host.clock import work_clock_s
from penstock.planning.causal_graph import loop_units
from penstock.planning.physical import Chain, PhysicalPlan
from penstock.storage import Storage

__all__ = ["Meter", "PlannedOperator", "StorageSpeed", "operators_of"]

WINDOW_S = 30.0
PRIOR_S = 86_400.0
PROBE_BYTES = 1 << 20
PROBES = 8
FASTEST_S = 1e-11
"""No store takes less for a byte."""
FITTED = 16
RECENT = 100
WEIGHT = 0.3
"""Of the newest checkpoint in the mean of a node's."""
_WITH_STATE = (NodeKind.STATEFUL, NodeKind.ORDERED)
_COUNTS = (
    "rows_in",
    "rows_out",
    "bytes_in",
    "cpu_ns",
    "checkpoints",
    "checkpoint_s",
    "checkpoint_bytes",
)


@dataclass(frozen=True)
class PlannedOperator:
    """What the planner takes for one operator: a chain, or the chains of a loop."""

    name: str
    chains: tuple[Chain, ...]
    inputs: tuple[str, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """Its nodes."""
        return tuple(node for chain in self.chains for node in chain.nodes)

    @property
    def stages(self) -> list[str]:
        """The stages that run as this operator."""
        return [stage.name for chain in self.chains for stage in chain.stages]

    @property
    def is_loop(self) -> bool:
        """Whether it is a loop."""
        return bool(self.chains[0].loops)


def operators_of(plan: PhysicalPlan) -> tuple[PlannedOperator, ...]:
    """A flow's operators, in the order of its chains."""
    units = loop_units(plan)
    groups: dict[int, list[Chain]] = {}
    for chain in plan.chains:
        unit = units.get(chain.first_node, chain.first_node)
        groups.setdefault(plan.chain_of[unit], []).append(chain)
    home = {chain.index: first for first, chains in groups.items() for chain in chains}
    names = {
        first: chains[0].loops[0] if chains[0].loops else chains[0].name
        for first, chains in groups.items()
    }
    found = []
    for first, chains in groups.items():
        above = [home[link.source_chain] for c in chains for link in plan.links_into(c.index)]
        inputs = dict.fromkeys(names[other] for other in above if other != first)
        found.append(PlannedOperator(names[first], tuple(chains), tuple(inputs)))
    return tuple(found)


@dataclass
class StorageSpeed:
    """How long the flow's store takes for a byte: waiting for the store, and working for it.

    The store is asked now and then, with writes of its own: the quickest of the last few say what
    it takes without a queue.  What processors do for a byte (arranging, checksums, copies) is the
    median slope between two checkpoints, since each also takes some time whatever its size.

    >>> speed = StorageSpeed()
    >>> speed.probed(0.001, 0.003, 1000)
    >>> speed.waits_s(writes=2, size=500)
    0.003
    >>> for size in range(1000, 40_000, 1000):
    ...     speed.worked(size, 0.01 + 1e-6 * size)
    >>> round(speed.worked_s_per_byte, 9), round(speed.s_per_byte, 9)
    (1e-06, 3e-06)
    """

    _probes: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=PROBES))
    _works: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def probed(self, small_s: float, large_s: float, size: int) -> None:
        """A small write took this, and one of ``size`` bytes that."""
        self._probes.append((small_s, max(0.0, large_s - small_s) / size))

    def worked(self, size: int, seconds: float) -> None:
        """A checkpoint of ``size`` bytes took ``seconds`` of processor time."""
        self._works.append((size, seconds))

    def waits_s(self, writes: float, size: float) -> float:
        """Seconds of waiting for a number of writes with ``size`` bytes in all."""
        if not self._probes:
            return 0.0
        small, per_byte = (min(column) for column in zip(*self._probes, strict=True))
        return writes * small + size * per_byte

    @property
    def worked_s_per_byte(self) -> float:
        """Processor time for each byte."""
        if len(self._works) < FITTED:
            return 0.0
        sizes, times = np.array(self._works, float).T
        one, other = np.triu_indices(len(sizes), 1)
        apart = np.abs(sizes[one] - sizes[other]) > sizes.mean() / 2
        if apart.sum() < FITTED:
            return 0.0
        slopes = (times[one] - times[other])[apart] / (sizes[one] - sizes[other])[apart]
        return max(0.0, float(np.median(slopes)))

    @property
    def s_per_byte(self) -> float:
        """Both together."""
        return max(FASTEST_S, self.waits_s(0, 1) + self.worked_s_per_byte)

    def probe(self, store: Storage, sync: bool) -> None:
        """Write a little and a lot to a store, and note what it took."""
        name = f"probe-{uuid.uuid4().hex}"
        data = os.urandom(PROBE_BYTES)

        def took_s(size: int) -> float:
            began = work_clock_s()
            store.write(name, data[:size], sync)
            return work_clock_s() - began

        try:
            self.probed(took_s(1), took_s(PROBE_BYTES), PROBE_BYTES)
        finally:
            store.delete(name)


@dataclass
class _Node:
    """What is known of one node, over all its incarnations."""

    incarnation: int = -1
    last: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0.0))
    state_bytes: float | None = None
    checkpoint_s: float = 0.0

    def take(self, figures: NodeFigures) -> None:
        """Add what happened since the last heartbeat; a replay is not what it usually does."""
        causal = figures.causal or CausalFigures()
        now: dict[str, float] = {
            "rows_in": figures.rows_in,
            "rows_out": figures.rows_out,
            "bytes_in": causal.bytes_in,
            "cpu_ns": figures.cpu_ns - causal.snapshot_ns,
            "checkpoints": causal.checkpoints,
            "checkpoint_s": causal.checkpoint_s,
            "checkpoint_bytes": causal.checkpoint_bytes,
        }
        if figures.incarnation == self.incarnation and not causal.replaying:
            for key, count in now.items():
                self.totals[key] += max(0.0, count - self.last[key])
        self.incarnation, self.last = figures.incarnation, now

    def saved(self, state_bytes: float, seconds: float) -> None:
        """A checkpoint is durable."""
        if self.state_bytes is None:
            self.checkpoint_s = seconds
        self.state_bytes = state_bytes
        self.checkpoint_s += WEIGHT * (seconds - self.checkpoint_s)


class Meter:
    """Measures a running flow."""

    def __init__(self, plan: PhysicalPlan, graph: CausalGraph) -> None:
        self.operators = operators_of(plan)
        self.storage = StorageSpeed()
        kinds = self._kinds = graph.kinds
        self._parents = graph.parents
        self._nodes = {node: _Node() for node in kinds}
        self._began_s = time.monotonic()
        self._samples: deque[tuple[float, dict[int, dict[str, float]]]] = deque()
        self._links = {
            operator.name: max(1, sum(len(plan.links_out_of(c.index)) for c in operator.chains))
            for operator in self.operators
        }

    # -- what is heard ---------------------------------------------------------------------------

    def observe(self, figures: Mapping[int, NodeFigures], now_s: float) -> None:
        """The latest heartbeats."""
        for node, found in figures.items():
            self._nodes[node].take(found)
        self._samples.append((now_s, {n: dict(one.totals) for n, one in self._nodes.items()}))
        while len(self._samples) > 2 and self._samples[1][0] < now_s - WINDOW_S:
            self._samples.popleft()

    def saved(self, saved: CheckpointSaved) -> None:
        """A node's checkpoint is durable."""
        size, logged, seconds = saved.bytes, saved.log_bytes, saved.seconds
        self.storage.worked(size, seconds)
        # The time that the log took would be there without a checkpoint, too.
        share = max(1, size - logged) / max(1, size)
        per_byte = self.storage.worked_s_per_byte if logged else 0.0
        own = min(seconds, max(seconds * share, seconds - per_byte * logged))
        cost_s = own + self.storage.waits_s(1, size - logged)
        self._nodes[saved.node].saved(max(1, saved.state_bytes), cost_s)

    # -- what is known ---------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """How long the measured time is."""
        return self._samples[-1][0] - self._samples[0][0] if self._samples else 0.0

    def unknown(self) -> list[str]:
        """Operators with state that has not been saved yet, so that its size is not known."""
        return [
            operator.name
            for operator in self.operators
            if any(
                self._kinds[node] in _WITH_STATE and self._nodes[node].state_bytes is None
                for node in operator.nodes
            )
        ]

    def topology(self, lost: Iterable[Iterable[int]]) -> dict[str, Any]:
        """The flow as ``penstock plan`` reads it, in seconds and bytes.

        ``lost`` are the nodes that each failure so far has hit.
        """
        failures = dict.fromkeys(self._nodes, 0)
        for nodes in lost:
            for node in nodes:
                failures[node] += 1
        lived_s = time.monotonic() - self._began_s
        operators = [self._operator(one, failures, lived_s) for one in self.operators]
        for one, spent in zip(operators, self.spent().values(), strict=True):
            one["overhead"] = spent
        return {
            "input_rate": sum(one["rate"] for one in operators if not one["inputs"]),
            "storage_cost": self.storage.s_per_byte,
            "units": {"time": "s", "size": "byte"},
            "measured_seconds": self.seconds,
            "overhead": sum(self.spent().values()),
            "operators": operators,
        }

    def spent(self) -> dict[str, float]:
        """Seconds per second that each operator has spent on checkpoints and logs."""
        return {operator.name: self._spent(operator) for operator in self.operators}

    def _spent(self, operator: PlannedOperator) -> float:
        writes, size = (self._rate(operator, key) for key in ("checkpoints", "checkpoint_bytes"))
        return self._rate(operator, "checkpoint_s") + self.storage.waits_s(writes, size)

    def _rate(self, operator: PlannedOperator, key: str) -> float:
        if self.seconds <= 0.0:
            return 0.0
        first, last = self._samples[0][1], self._samples[-1][1]
        return sum(last[node][key] - first[node][key] for node in operator.nodes) / self.seconds

    def _operator(
        self, operator: PlannedOperator, failures: Mapping[int, int], lived_s: float
    ) -> dict[str, Any]:
        nodes = operator.nodes
        rate = self._rate(operator, "rows_in")
        on_driver = operator.chains[0].on_driver
        hit = sum(failures[node] for node in nodes)
        # What was sent is written with the sender's checkpoints; a source can be read again.
        written = any(
            self._kinds[sender] in _WITH_STATE for node in nodes for sender in self._parents[node]
        )
        return {
            "name": operator.name,
            "stages": operator.stages,
            "inputs": list(operator.inputs),
            "parallelism": len(nodes),
            "rate": rate,
            "selectivity": self._rate(operator, "rows_out")
            / max(rate, 1e-9)
            / self._links[operator.name],
            "cost": self._rate(operator, "cpu_ns") / 1e9 / rate if rate else 0.0,
            "state_size": sum(self._nodes[node].state_bytes or 0.0 for node in nodes),
            "checkpoint_time": sum(self._nodes[node].checkpoint_s for node in nodes),
            "tuple_size": self._rate(operator, "bytes_in") / rate if rate and written else 0.0,
            "failure_rate": 0.0 if on_driver else (len(nodes) + hit) / (PRIOR_S + lived_s),
            "failures": hit,
        }
