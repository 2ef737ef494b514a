"""The planner against brute force and its own laws, on small topologies of every shape."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from penstock.core.plan import OperatorProfile, OperatorTopology, Plan, recover, solve
from penstock.core.plan import dag as dag_module
from penstock.core.plan.chain_dp import chain_dp, chain_dp_arrays
from penstock.core.plan.cost import (
    Configuration,
    best_configuration,
    best_recovery_time,
    overhead,
    recovery_time,
    recovery_times,
    segments,
)
from penstock.core.plan.local import valuer
from penstock.core.plan.relax import is_relaxed_synchronised, relax
from penstock.core.plan.solve import relaxed_bound
from penstock.core.plan.tree_dp import tree_dp
from penstock.testing.plan import brute_force, expected_recovery, spent

CLOSE = 1e-9

calm = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
brief = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def numbers(low: float, high: float, zero: bool) -> st.SearchStrategy[float]:
    positive = st.floats(math.log(low), math.log(high)).map(math.exp)
    return st.one_of(positive, positive, positive, st.just(0.0)) if zero else positive


@st.composite
def topologies(
    draw: st.DrawFn, shapes: tuple[str, ...], max_size: int = 7, zero: bool = True
) -> OperatorTopology:
    shape = draw(st.sampled_from(shapes))
    n = draw(st.integers(1, max_size))
    operators = []
    for k in range(n):
        if k == 0:
            above: list[int] = []
        elif shape == "chain":
            above = [k - 1]
        elif shape == "tree":
            above = draw(st.lists(st.integers(0, k - 1), min_size=0, max_size=1))
        else:
            above = draw(st.lists(st.integers(0, k - 1), min_size=0, max_size=3, unique=True))
        operators.append(
            OperatorProfile(
                name=f"op{k}",
                selectivity=draw(numbers(0.05, 2.0, zero)),
                cost=draw(numbers(1e-5, 1e-2, zero)),
                state_size=draw(numbers(0.1, 1e4, zero)),
                tuple_size=draw(numbers(0.01, 100.0, zero)),
                failure_rate=draw(numbers(1e-3, 1.0, zero)),
                inputs=tuple(f"op{p}" for p in above),
            )
        )
    return OperatorTopology(
        tuple(operators), draw(numbers(1.0, 1e4, zero)), draw(numbers(1e-7, 1e-3, zero))
    )


# A budget as a multiple of the least overhead, and something on top for topologies where that is 0.
multiples = st.floats(math.log(1.001), math.log(1000.0)).map(math.exp)


def budget_of(topology: OperatorTopology, multiple: float) -> float:
    return topology.min_overhead * multiple + (0.01 if topology.min_overhead == 0.0 else 0.0)


def check_sound(plan: Plan, budget: float) -> None:
    """What holds for every feasible plan, computed by the reference model."""
    assert plan.configuration is not None
    anchors, frequency = plan.configuration.anchors, dict(enumerate(plan.configuration.frequency))
    assert set(plan.topology.sources) <= anchors
    assert plan.overhead <= budget
    assert spent(plan.topology, anchors, frequency) == pytest.approx(plan.overhead, rel=CLOSE)
    assert expected_recovery(plan.topology, anchors, frequency) == pytest.approx(
        plan.recovery_time, rel=CLOSE
    )
    assert plan.bound <= plan.recovery_time


@calm
@given(topologies(("chain", "tree")), multiples)
def test_exact_equals_brute_force_on_chains_and_trees(
    topology: OperatorTopology, multiple: float
) -> None:
    budget = budget_of(topology, multiple)
    plan = solve(topology, budget)
    check_sound(plan, budget)
    assert plan.recovery_time == pytest.approx(brute_force(topology, budget), rel=CLOSE)
    assert plan.bound == plan.recovery_time


@calm
@given(topologies(("dag",)), multiples)
def test_exact_equals_brute_force_on_dags(topology: OperatorTopology, multiple: float) -> None:
    budget = budget_of(topology, multiple)
    plan = solve(topology, budget)
    check_sound(plan, budget)
    assert plan.recovery_time == pytest.approx(brute_force(topology, budget), rel=CLOSE)
    assert plan.bound == plan.recovery_time


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(topologies(("chain", "tree", "dag"), max_size=10, zero=False), multiples)
def test_exact_equals_brute_force_up_to_ten_operators(
    topology: OperatorTopology, multiple: float
) -> None:
    budget = budget_of(topology, multiple)
    plan = solve(topology, budget)
    assert plan.recovery_time == pytest.approx(brute_force(topology, budget), rel=CLOSE)


@calm
@given(topologies(("dag",)), multiples)
def test_bound_of_a_dag_holds_without_enumeration(
    topology: OperatorTopology, multiple: float
) -> None:
    budget = budget_of(topology, multiple)
    before = dag_module._WORK_MAX
    dag_module._WORK_MAX = 0
    try:
        solution = dag_module.solve_dag(topology, budget)
    finally:
        dag_module._WORK_MAX = before
    least = brute_force(topology, budget)
    assert solution.bound <= least * (1.0 + CLOSE)
    assert solution.value >= least * (1.0 - CLOSE)


@calm
@given(topologies(("chain", "tree", "dag")), st.data())
def test_closed_form_frequencies_beat_any_others(
    topology: OperatorTopology, data: st.DataObject
) -> None:
    free = [i for i in range(len(topology)) if topology.parents[i]]
    chosen = data.draw(st.sets(st.sampled_from(free))) if free else set()
    anchors = frozenset(chosen) | frozenset(topology.sources)
    parts = segments(topology, anchors)
    budget = sum(part.log for part in parts) * data.draw(multiples) + 0.001
    best = best_configuration(topology, anchors, budget)
    assert best is not None
    value = recovery_time(topology, best)
    assert value == pytest.approx(best_recovery_time(parts, budget), rel=CLOSE)
    factors = data.draw(st.lists(st.floats(0.2, 5.0), min_size=len(parts), max_size=len(parts)))
    frequency = list(best.frequency)
    for part, factor in zip(parts, factors, strict=True):
        for i in part.members:
            frequency[i] *= factor
    other = Configuration(anchors, tuple(frequency))
    if overhead(topology, other) <= budget:
        assert recovery_time(topology, other) >= value * (1.0 - CLOSE)


@brief
@given(topologies(("chain",), max_size=5), multiples, st.integers(1, 8))
def test_chain_dp_comes_down_to_the_optimum(
    topology: OperatorTopology, multiple: float, steps: int
) -> None:
    budget = budget_of(topology, multiple)
    least = solve(topology, budget).recovery_time
    before = math.inf
    for doubled in range(4):
        found = chain_dp(topology, budget, steps << doubled)
        value = math.inf if found is None else recovery_time(topology, found)
        if found is not None:
            assert overhead(topology, found) <= budget * (1.0 + CLOSE)
            arrays = chain_dp_arrays(topology, budget, steps << doubled)
            assert arrays is not None
            assert recovery_time(topology, arrays) == pytest.approx(value, rel=CLOSE)
        assert least * (1.0 - CLOSE) <= value <= before * (1.0 + CLOSE)
        before = value


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(topologies(("chain",), max_size=4, zero=False), st.floats(1.5, 50.0))
def test_chain_dp_is_at_most_the_optimum_with_shares_rounded_down(
    topology: OperatorTopology, multiple: float
) -> None:
    """Rounding the optimum's shares down to the grid costs less and less as the steps shrink."""
    budget = budget_of(topology, multiple)
    plan = solve(topology, budget)
    assert plan.configuration is not None
    for steps in (10, 80):
        rounded = 0.0
        for part in segments(topology, plan.configuration.anchors):
            share = part.log + part.state * plan.configuration.frequency[part.members[0]]
            left = math.floor(share / budget * steps * (1.0 + 1e-12)) * budget / steps - part.log
            rounded += part.fixed + (part.replay * part.state / left if left > 0.0 else math.inf)
        found = chain_dp(topology, budget, steps)
        assert found is not None
        assert recovery_time(topology, found) <= rounded * (1.0 + 1e-6)


@brief
@given(topologies(("tree", "chain"), max_size=5), multiples, st.integers(4, 12))
def test_tree_dp_is_feasible_and_never_beats_the_optimum(
    topology: OperatorTopology, multiple: float, steps: int
) -> None:
    budget = budget_of(topology, multiple)
    plan = solve(topology, budget)
    assert plan.configuration is not None
    finite = [eta for eta in plan.configuration.frequency if 0.0 < eta < math.inf]
    found = tree_dp(topology, budget, steps, 2.0 * max(finite, default=1.0), 12)
    if found is not None:
        assert overhead(topology, found) <= budget * (1.0 + 1e-7)
        assert recovery_time(topology, found) >= plan.recovery_time * (1.0 - 1e-7)


@brief
@given(topologies(("tree",), max_size=5, zero=False), multiples)
def test_tree_dp_with_chosen_anchors_is_no_better_than_free(
    topology: OperatorTopology, multiple: float
) -> None:
    budget = budget_of(topology, multiple)
    highest = 2.0 * max(solve(topology, budget).frequency.values())
    free = tree_dp(topology, budget, 12, highest, 12)
    fixed = tree_dp(topology, budget, 12, highest, 12, anchors=frozenset(range(len(topology))))
    if fixed is not None:
        assert free is not None
        assert recovery_time(topology, free) <= recovery_time(topology, fixed) * (1.0 + CLOSE)


@calm
@given(topologies(("chain", "tree", "dag")), multiples, st.booleans())
def test_relaxation_never_makes_a_plan_worse_nor_breaks_the_budget(
    topology: OperatorTopology, multiple: float, rescale: bool
) -> None:
    budget = budget_of(topology, multiple)
    for method in ("exact", "1segment"):
        plan = solve(topology, budget, method)  # type: ignore[arg-type]
        assert plan.configuration is not None
        relaxed = relax(topology, plan.configuration, budget, rescale=rescale)
        assert relaxed.anchors == plan.configuration.anchors
        assert is_relaxed_synchronised(topology, relaxed)
        assert overhead(topology, relaxed) <= budget
        assert recovery_time(topology, relaxed) <= plan.recovery_time
        assert relaxed_bound(topology, budget) <= recovery_time(topology, relaxed) * (1 + CLOSE)


@brief
@given(topologies(("chain",), max_size=5, zero=False), multiples)
def test_relaxation_of_the_dp_never_makes_it_worse(
    topology: OperatorTopology, multiple: float
) -> None:
    budget = budget_of(topology, multiple)
    start = chain_dp(topology, budget, 12)
    assume(start is not None)
    assert start is not None
    relaxed = relax(topology, start, max(budget, overhead(topology, start)))
    assert recovery_time(topology, relaxed) <= recovery_time(topology, start)
    assert overhead(topology, relaxed) <= budget * (1.0 + CLOSE)


@calm
@given(topologies(("chain", "tree", "dag")), multiples)
def test_exact_is_never_worse_than_the_baselines(
    topology: OperatorTopology, multiple: float
) -> None:
    budget = budget_of(topology, multiple)
    exact = solve(topology, budget)
    for method in ("nsegments", "1segment"):
        other = solve(topology, budget, method)  # type: ignore[arg-type]
        assert exact.recovery_time <= other.recovery_time * (1.0 + CLOSE)
        assert other.bound <= other.recovery_time


@calm
@given(topologies(("chain", "tree", "dag")), st.floats(0.0, 1.0))
def test_no_budget_up_to_the_infimum_is_feasible_unless_nothing_needs_a_checkpoint(
    topology: OperatorTopology, share: float
) -> None:
    budget = topology.min_overhead * share
    plan = solve(topology, budget)
    assert plan.feasible == math.isfinite(brute_force(topology, budget))
    if not plan.feasible:
        assert plan.min_overhead == topology.min_overhead


@calm
@given(topologies(("chain", "tree", "dag")), st.data())
def test_valuer_agrees_with_the_closed_form(
    topology: OperatorTopology, data: st.DataObject
) -> None:
    free = [i for i in range(len(topology)) if topology.parents[i]]
    chosen = data.draw(st.sets(st.sampled_from(free))) if free else set()
    anchors = frozenset(chosen) | frozenset(topology.sources)
    budget = budget_of(topology, data.draw(multiples))
    expected = best_recovery_time(segments(topology, anchors), budget)
    found = valuer(topology, budget)(sum(1 << i for i in anchors))
    assert found == pytest.approx(expected, rel=CLOSE)


@calm
@given(topologies(("chain", "tree", "dag"), zero=False), multiples, st.data())
def test_one_machine_failure_costs_between_its_parts(
    topology: OperatorTopology, multiple: float, data: st.DataObject
) -> None:
    plan = solve(topology, budget_of(topology, multiple))
    assert plan.configuration is not None
    failed = data.draw(st.sets(st.integers(0, len(topology) - 1), min_size=1))
    each = recovery_times(topology, plan.configuration)
    got = recover(topology, plan.configuration, failed)
    assert got.latency <= got.work <= sum(each[i] for i in failed) * (1.0 + CLOSE)
    assert got.work >= max(each[i] for i in failed) * (1.0 - CLOSE)
    for i in failed:
        assert recover(topology, plan.configuration, [i]).work == pytest.approx(each[i], rel=CLOSE)


@example(scale=1e6)
@example(scale=1e-6)
@given(scale=st.floats(1e-6, 1e6))
@brief
def test_the_plan_does_not_depend_on_the_unit_of_size(scale: float) -> None:
    def chain(unit: float) -> OperatorTopology:
        return OperatorTopology(
            tuple(
                OperatorProfile(f"op{k}", 0.6, 1e-5, 1e4 * unit * (1 + k % 3), unit, 0.1, above)
                for k in range(8)
                for above in [(f"op{k - 1}",) if k else ()]
            ),
            3000.0,
            5e-5 / unit,
        )

    assert solve(chain(scale), 0.4).anchors == solve(chain(1.0), 0.4).anchors
