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
from pathlib import Path
from typing import Any

import numpy as np

from penstock.causal_graph import loop_units
from penstock.core.causal.graph import CausalGraph, Kind
from penstock.physical import Chain, PhysicalPlan

__all__ = ["Meter", "PlannedOperator", "StorageSpeed", "operators_of"]

WINDOW_S = 30.0
PRIOR_S = 86_400.0
PROBE_BYTES = 1 << 20
PROBES = 5
FASTEST_S = 1e-11
"""No store takes less for a byte."""
FITTED = 16
RECENT = 100
WEIGHT = 0.3
"""Of the newest checkpoint in the mean of a node's."""
_WITH_STATE = (Kind.STATEFUL, Kind.ORDERED)
_COUNTS = ("rows_in", "rows_out", "bytes_in", "cpu_ns", "checkpoint_s")


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
    """How long the flow's store takes: a time for each write, and one for each byte.

    >>> speed = StorageSpeed()
    >>> speed.wrote(0, 0.002); speed.wrote(1_000_000, 0.012)
    >>> round(speed.latency_s, 6), round(speed.s_per_byte * 1e6, 6)
    (0.002, 0.01)
    """

    latency_s: float = 0.0
    least_s: float = FASTEST_S
    """What the bare store takes for a byte: nothing is faster."""
    writes: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def wrote(self, size: int, seconds: float) -> None:
        """So many bytes were written, durably, in this time; none: only the waiting."""
        if size:
            self.writes.append((size, seconds))
        else:
            self.latency_s = seconds

    @property
    def s_per_byte(self) -> float:
        """Time for each byte, beyond that of a write of nothing.

        With enough writes it is the median slope between two of them: a checkpoint takes more than
        the store alone, and some take much longer than others.
        """
        if len(self.writes) >= FITTED:
            sizes, times = np.array(self.writes, float).T
            one, other = np.triu_indices(len(sizes), 1)
            wide = np.abs(sizes[one] - sizes[other]) > sizes.mean() / 2
            slopes = (times[one] - times[other])[wide] / (sizes[one] - sizes[other])[wide]
            if len(slopes) >= FITTED:
                return max(self.least_s, float(np.median(slopes)))
        size = sum(size for size, _ in self.writes)
        seconds = sum(max(0.0, seconds - self.latency_s) for _, seconds in self.writes)
        return max(self.least_s, seconds / size) if size else 0.0

    def probe(self, directory: Path, sync: bool) -> None:
        """Write a little, a few times, and then a lot to a store; note what it took."""
        path = directory / f"probe-{uuid.uuid4().hex}"
        data = os.urandom(PROBE_BYTES)

        def took_s(size: int) -> float:
            began = time.perf_counter()
            with open(path, "wb", buffering=0) as file:
                file.write(data[:size])
                if sync:
                    os.fsync(file.fileno())
            return time.perf_counter() - began

        try:
            self.wrote(0, min(took_s(1) for _ in range(PROBES)))
            self.wrote(PROBE_BYTES, took_s(PROBE_BYTES))
            self.least_s = self.s_per_byte
        finally:
            path.unlink(missing_ok=True)


@dataclass
class _Node:
    """What is known of one node, over all its incarnations."""

    incarnation: int = -1
    last: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0.0))
    state_bytes: float | None = None
    checkpoint_s: float = 0.0

    def take(self, figures: Mapping[str, Any]) -> None:
        """Add what happened since the last heartbeat; a replay is not what it usually does."""
        now = {key: float(figures.get(key) or 0.0) for key in _COUNTS}
        now["cpu_ns"] -= float(figures.get("snapshot_ns", 0))
        if figures.get("incarnation", 0) == self.incarnation and not figures.get("replaying"):
            for key in _COUNTS:
                self.totals[key] += max(0.0, now[key] - self.last[key])
        self.incarnation, self.last = figures.get("incarnation", 0), now

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

    def observe(self, figures: Mapping[int, Mapping[str, Any]], now_s: float) -> None:
        """The latest heartbeats."""
        for node, found in figures.items():
            self._nodes[node].take(found)
        self._samples.append((now_s, {n: dict(one.totals) for n, one in self._nodes.items()}))
        while len(self._samples) > 2 and self._samples[1][0] < now_s - WINDOW_S:
            self._samples.popleft()

    def saved(self, node: int, size: int, logged: int, state: int, seconds: float) -> None:
        """A node's checkpoint is durable.

        ``logged`` bytes of the ``size`` that was written are what it has sent; ``state`` is what it
        keeps, written now or with an earlier checkpoint.
        """
        self.storage.wrote(size, seconds)
        # The time that the log took would be there without a checkpoint, too.
        share = max(1, size - logged) / max(1, size)
        per_byte = self.storage.s_per_byte if logged else 0.0
        own = max(seconds * share, seconds - per_byte * logged)
        self._nodes[node].saved(max(1, state), min(seconds, own))

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
        return {operator.name: self._rate(operator, "checkpoint_s") for operator in self.operators}

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
