"""The planner's benchmark: chapter 4 of "FastRecover" again, and what it left open.

Measures recovery times of all methods over random topologies while one parameter varies, simulated
machine failures, and run times. Decides nothing; ``plan_figures`` draws what it returns. The paper
prints no storage cost: see ``topologies`` for the ones used, and ``docs/planner.md`` for why the
trees' frequency range is 2 per minute here and not 200.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.bench.topologies import (
    CHAIN_STORAGE_COST,
    TREE_STORAGE_COST,
    Draw,
    random_chain,
    random_dag,
    random_tree,
)
from penstock.core.plan import Configuration, OperatorTopology, recover, solve
from penstock.core.plan.baselines import n_segments, one_segment
from penstock.core.plan.chain_dp import chain_dp, chain_dp_arrays
from penstock.core.plan.cost import best_configuration, recovery_time
from penstock.core.plan.relax import relax
from penstock.core.plan.tree_dp import tree_dp

__all__ = ["Setting", "run"]

MULTIPLICITY = 5  # operators that one failed machine takes down
FAILURES_PER_TOPOLOGY = 5
# The same method on the topologies where NSegments is feasible, to compare like with like.
PAIRED = tuple(
    f"{ours}_where_{other}" for ours in ("dp", "exact") for other in ("nsegments_grid", "nsegments")
)
METHODS = ("dp", "dp_closed_form", "exact", "relaxed", "nsegments_grid", "nsegments", "1segment")


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of a sweep."""

    shape: str
    n: int = 15
    steps: int = 60
    max_overhead: float = 0.4
    input_rate: float = 3000.0
    storage_cost: float = CHAIN_STORAGE_COST
    frequency_max: float = 0.0
    draw: Draw = field(default_factory=Draw)

    def topology(self, rng: random.Random) -> OperatorTopology:
        """A random topology for this point."""
        make = random_chain if self.shape == "chain" else random_tree
        return make(rng, self.n, self.input_rate, self.draw, self.storage_cost)

    def dp(
        self, topology: OperatorTopology, anchors: frozenset[int] | None
    ) -> Configuration | None:
        """FastRecover as published and corrected: Algorithm 1 or 2."""
        if self.shape == "chain":
            return chain_dp_arrays(topology, self.max_overhead, self.steps, anchors=anchors)
        return tree_dp(topology, self.max_overhead, self.steps, self.frequency_max, anchors=anchors)


CHAIN = Setting("chain")
TREE = Setting("tree", steps=20, max_overhead=0.5, input_rate=1000.0, frequency_max=2.0)
TREE_AS_PRINTED = replace(TREE, storage_cost=TREE_STORAGE_COST, frequency_max=200.0)


def _sweeps() -> dict[str, list[tuple[float, Setting]]]:
    """Name of the sweep → (value on the axis, setting)."""

    def over(base: Setting, key: str, values: Iterable[Any]) -> list[tuple[float, Setting]]:
        return [(float(value), replace(base, **{key: value})) for value in values]

    def drawn(key: str, values: Sequence[tuple[float, Any]]) -> list[tuple[float, Setting]]:
        return [
            (axis, replace(CHAIN, draw=replace(CHAIN.draw, **{key: value})))
            for axis, value in values
        ]

    selectivities = (0.2, 0.4, 0.6, 0.8, 1.0)
    states = (2500.0, 5000.0, 10_000.0, 15_000.0, 30_000.0)
    costs = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4)
    return {
        "chain_n": over(CHAIN, "n", (5, 10, 15, 20, 25, 30, 35)),
        "chain_input_rate": over(CHAIN, "input_rate", (1000.0, 2000.0, 3000.0, 4000.0, 5000.0)),
        "chain_max_overhead": over(CHAIN, "max_overhead", (0.2, 0.3, 0.4, 0.5, 0.6)),
        "chain_steps": over(CHAIN, "steps", (20, 40, 60, 80, 100)),
        "tree_n": over(TREE, "n", (3, 6, 9, 12, 15, 18)),
        "tree_input_rate": over(TREE, "input_rate", (250.0, 500.0, 750.0, 1000.0, 1250.0)),
        "tree_max_overhead": over(TREE, "max_overhead", (0.4, 0.5, 0.6, 0.7, 0.8)),
        "tree_steps": over(TREE, "steps", (16, 18, 20, 22, 24)),
        "tree_as_printed_n": over(TREE_AS_PRINTED, "n", (3, 6, 9, 12, 15, 18)),
        "chain_selectivity_max": drawn("selectivity", [(s, (0.1, s)) for s in selectivities]),
        "chain_tuple_size_kb": drawn("tuple_size", [(x, x) for x in (0.25, 0.5, 1.0, 1.5, 2.0)]),
        "chain_cost_min": drawn("cost", [(x, x) for x in costs]),
        "chain_state_size_kb": drawn("state_size", [(x, (x * 2 / 3, x * 4 / 3)) for x in states]),
    }


def run(count: int, seed: int, log: Callable[[str], None]) -> dict[str, Any]:
    """Everything, with ``count`` topologies per point."""
    sweeps: dict[str, list[dict[str, Any]]] = {}
    for name, points in _sweeps().items():
        started = time.perf_counter()
        sweeps[name] = [
            {"value": value, **_measure(setting, count, seed)} for value, setting in points
        ]
        log(f"{name}: {time.perf_counter() - started:.1f} s")
    run_times = _run_times(count, seed)
    log("run times done")
    return {
        "seed": seed,
        "topologies_per_point": count,
        **_headline(count, seed),
        "sweeps": sweeps,
        "run_time_ms": run_times,
        "units": "minutes and kilobytes; recovery times are minutes per minute",
    }


def _measure(setting: Setting, count: int, seed: int) -> dict[str, Any]:
    """All methods over ``count`` topologies; the k-th is drawn alike at every point of a sweep."""
    times: dict[str, list[float]] = {method: [] for method in (*METHODS, *PAIRED)}
    savings: dict[str, list[float]] = {}
    work: list[float] = []
    latency: list[float] = []
    for k in range(count):
        rng = random.Random(f"{seed}/{setting.shape}/{k}")
        topology = setting.topology(rng)
        plans = _plans(setting, topology)
        found = {m: recovery_time(topology, plan) for m, plan in plans.items() if plan is not None}
        for method, value in found.items():
            times[method].append(value)
        for other in ("nsegments_grid", "nsegments"):
            if other in found:
                for ours in ("dp", "exact"):
                    if ours in found:
                        times[f"{ours}_where_{other}"].append(found[ours])
        for ours in ("dp", "exact"):
            for other in ("nsegments_grid", "nsegments", "1segment"):
                if ours in found and other in found:
                    savings.setdefault(f"{ours}_over_{other}_percent", []).append(
                        100.0 * (1.0 - found[ours] / found[other])
                    )
        fast = plans["dp"]
        if fast is None:
            continue
        for _ in range(FAILURES_PER_TOPOLOGY):
            got = recover(topology, fast, _failed(topology, rng))
            work.append(got.work)
            latency.append(got.latency)
    return {
        "methods": {method: _summary(values, count) for method, values in times.items()},
        "saving": {key: statistics.fmean(values) for key, values in savings.items()},
        "failure_work": statistics.fmean(work) if work else None,
        "failure_latency": statistics.fmean(latency) if latency else None,
    }


def _plans(setting: Setting, topology: OperatorTopology) -> dict[str, Configuration | None]:
    budget = setting.max_overhead
    dp = setting.dp(topology, None)
    exact = solve(topology, budget).configuration
    return {
        "dp": dp,
        "dp_closed_form": best_configuration(topology, dp.anchors, budget) if dp else None,
        "exact": exact,
        "relaxed": relax(topology, exact, budget) if exact else None,
        "nsegments_grid": setting.dp(topology, frozenset(range(len(topology)))),
        "nsegments": n_segments(topology, budget),
        "1segment": one_segment(topology, budget),
    }


def _failed(topology: OperatorTopology, rng: random.Random) -> list[int]:
    """The operators on a failed machine: drawn by failure rate, each at most once."""
    left = list(range(len(topology)))
    failed = []
    for _ in range(min(MULTIPLICITY, len(left))):
        chosen = rng.choices(left, [topology.failure_rate[i] for i in left])[0]
        left.remove(chosen)
        failed.append(chosen)
    return failed


def _summary(values: list[float], count: int) -> dict[str, Any]:
    """Mean, variance and what a box plot needs; shares of all topologies drawn."""
    result: dict[str, Any] = {"infeasible_percent": 100.0 * (count - len(values)) / count}
    if len(values) > 1:
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
        reach = 1.5 * (q3 - q1)
        inside = [v for v in values if q1 - reach <= v <= q3 + reach]
        result |= {
            "mean": statistics.fmean(values),
            "variance": statistics.variance(values),
            "q1": q1,
            "median": median,
            "q3": q3,
            "whisker_low": min(inside),
            "whisker_high": max(inside),
            "min": min(values),
            "max": max(values),
        }
    return result


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _run_times(count: int, seed: int) -> dict[str, list[dict[str, float]]]:
    """Mean run times of Algorithm 1 (plain), Algorithm 2 and exact; figures 4.13 and 4.14."""
    chains = {
        "chain_n": [replace(CHAIN, n=n) for n in (5, 10, 15, 20, 25)],
        "chain_steps": [replace(CHAIN, steps=z) for z in (20, 40, 60, 80)],
        "tree_n": [replace(TREE, n=n) for n in (3, 6, 9, 12, 15, 18)],
        "tree_steps": [replace(TREE, steps=z) for z in (16, 18, 20, 22, 24)],
    }
    found: dict[str, list[dict[str, float]]] = {}
    for name, settings in chains.items():
        found[name] = []
        for setting in settings:
            rng = random.Random(f"{seed}/time/{name}/{setting.n}/{setting.steps}")
            dp, exact = [], []
            for _ in range(count):
                topology, budget = setting.topology(rng), setting.max_overhead
                if setting.shape == "chain":
                    dp.append(_timed(lambda t=topology, s=setting: chain_dp(t, 0.4, s.steps)))  # type: ignore[misc]
                else:
                    dp.append(_timed(lambda t=topology, s=setting: s.dp(t, None)))  # type: ignore[misc]
                exact.append(_timed(lambda t=topology, b=budget: solve(t, b)))  # type: ignore[misc]
            value = setting.n if name.endswith("_n") else setting.steps
            found[name].append(
                {
                    "value": float(value),
                    "dp_ms": 1e3 * statistics.fmean(dp),
                    "exact_ms": 1e3 * statistics.fmean(exact),
                }
            )
    return found


def _headline(count: int, seed: int) -> dict[str, float]:
    """Median speed-up over Algorithm 1 at n = 15, Z = 60; longest times on big topologies."""
    rng = random.Random(f"{seed}/headline")
    plain, arrays, exact, excess = [], [], [], []
    for _ in range(min(count, 50)):
        chain = random_chain(rng, 15)
        if chain.min_overhead >= 0.4:
            continue
        plain.append(_timed(lambda t=chain: chain_dp(t, 0.4, 60)))  # type: ignore[misc]
        arrays.append(_timed(lambda t=chain: chain_dp_arrays(t, 0.4, 60)))  # type: ignore[misc]
        exact.append(_timed(lambda t=chain: solve(t, 0.4)))  # type: ignore[misc]
        dp = chain_dp_arrays(chain, 0.4, 60)
        assert dp is not None
        excess.append(recovery_time(chain, dp) / solve(chain, 0.4).recovery_time - 1.0)
    trees = [random_tree(rng, 200, storage_cost=CHAIN_STORAGE_COST) for _ in range(5)]
    dags = [random_dag(rng, 100, storage_cost=CHAIN_STORAGE_COST) for _ in range(5)]
    tree_s, tree_gap = _solve_all(trees, 0.5)
    dag_s, dag_gap = _solve_all(dags, 0.5)
    return {
        "speedup_over_dp": statistics.median(plain) / statistics.median(exact),
        "speedup_over_dp_arrays": statistics.median(arrays) / statistics.median(exact),
        "dp_ms": 1e3 * statistics.median(plain),
        "exact_ms": 1e3 * statistics.median(exact),
        "dp_excess_over_exact_percent": 100.0 * statistics.fmean(excess),
        "tree_200_s": tree_s,
        "tree_200_gap_percent": tree_gap,
        "dag_100_s": dag_s,
        "dag_100_gap_percent": dag_gap,
    }


def _solve_all(topologies: list[OperatorTopology], budget: float) -> tuple[float, float]:
    """The longest time and the widest gap between plan and bound, in per cent."""
    longest, widest = 0.0, 0.0
    for topology in topologies:
        started = time.perf_counter()
        plan = solve(topology, max(budget, 2.0 * topology.min_overhead))
        longest = max(longest, time.perf_counter() - started)
        if math.isfinite(plan.recovery_time):
            widest = max(widest, 100.0 * (1.0 - plan.bound / plan.recovery_time))
    return longest, widest
