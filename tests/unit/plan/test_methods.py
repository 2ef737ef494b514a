"""Hand-worked cases: the cost model, the paper's algorithms and what corrects them."""

from __future__ import annotations

import math
import random

import pytest

from penstock.bench.topologies import random_chain, random_dag, random_tree
from penstock.core.plan import Configuration, OperatorProfile, OperatorTopology, recover, solve
from penstock.core.plan import tree_dp as tree_dp_module
from penstock.core.plan.chain_dp import chain_dp
from penstock.core.plan.cost import (
    best_configuration,
    best_recovery_time,
    overhead,
    recovery_time,
    recovery_times,
    segment_members,
    segments,
)
from penstock.core.plan.relax import is_relaxed_synchronised, relax
from penstock.core.plan.tree_dp import tree_dp
from penstock.errors import SettingsError


def operator(name: str, *inputs: str, state: float = 10.0, rho: float = 0.1) -> OperatorProfile:
    return OperatorProfile(name, 1.0, 0.001, state, 1.0, rho, inputs)


DIAMOND = OperatorTopology(
    (operator("s"), operator("a", "s"), operator("b", "s"), operator("j", "a", "b")),
    input_rate=100.0,
    storage_cost=0.0001,
)


def test_equations_of_a_chain_by_hand() -> None:
    chain = OperatorTopology((operator("a"), operator("b", "a")), 100.0, 0.0001)
    plan = Configuration(frozenset({0}), (2.0, 2.0))
    # Two states of 10 twice per unit of time, and 100 tuples of size 1 logged once.
    assert overhead(chain, plan) == pytest.approx(0.0001 * (2 * 10 * 2 + 100))
    # Half a unit's input read again and processed by a; then also by b, which restores as well.
    first = 0.0001 * 50 + 0.0001 * 10 + 0.001 * 50
    assert recovery_times(chain, plan) == pytest.approx([first, first + 0.0001 * 10 + 0.001 * 50])
    assert recovery_time(chain, plan) == pytest.approx(0.1 * (2 * first + 0.0001 * 10 + 0.001 * 50))


def test_a_join_needs_each_operator_above_it_once() -> None:
    plan = Configuration(frozenset({0}), (1.0,) * 4)
    work = recovery_times(DIAMOND, plan)
    log, state, cpu = 0.01, 0.001, 0.1
    assert work[3] == pytest.approx(log + 4 * state + 5 * cpu)  # the join receives both streams


def test_a_join_ties_its_inputs_into_one_segment() -> None:
    assert segment_members(DIAMOND, frozenset({0, 1, 2})) == [[0], [1, 2, 3]]
    assert segment_members(DIAMOND, frozenset({0, 3})) == [[0, 1, 2], [3]]


def test_failed_operators_of_one_segment_share_the_work() -> None:
    plan = Configuration(frozenset({0, 3}), (1.0,) * 4)
    together = recover(DIAMOND, plan, [1, 2])
    assert together.work == pytest.approx(together.latency)
    log, state, cpu = 0.01, 0.001, 0.1
    assert together.work == pytest.approx(log + 3 * (state + cpu))
    apart = recover(DIAMOND, plan, [1, 3])
    assert apart.latency < apart.work


def test_the_budget_is_spent_in_full() -> None:
    plan = solve(DIAMOND, 0.05)
    assert plan.overhead == pytest.approx(0.05)
    assert plan.overhead <= 0.05


def test_stateless_segments_checkpoint_for_nothing() -> None:
    chain = OperatorTopology(
        (operator("a", state=0.0), operator("b", "a", state=0.0)), 100.0, 0.0001
    )
    plan = solve(chain, 0.02)
    assert plan.frequency == {"a": math.inf, "b": math.inf}
    assert plan.recovery_time == 0.0


def test_dp_may_give_everything_to_one_segment() -> None:
    """Equation 3.3 as printed (c' < c) finds nothing with a single step."""
    chain = OperatorTopology((operator("a"), operator("b", "a")), 100.0, 0.0001)
    found = chain_dp(chain, 0.0101, steps=1)
    assert found is not None
    assert found.anchors == {0}
    assert overhead(chain, found) == pytest.approx(0.0101)


def test_recomputed_frequencies_improve_the_dp() -> None:
    rng = random.Random(7)
    gains = []
    for _ in range(3):
        chain = random_chain(rng, 8)
        found = chain_dp(chain, 0.4, 20)
        assert found is not None
        better = best_configuration(chain, found.anchors, 0.4)
        assert better is not None
        gains.append(1.0 - recovery_time(chain, better) / recovery_time(chain, found))
    assert min(gains) >= 0.0
    assert max(gains) > 0.01


def test_tree_dp_that_forgets_the_passed_up_rate_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = OperatorTopology(
        (
            OperatorProfile("a", 1.0, 0.05, 1.0, 0.1, 0.1),
            OperatorProfile("b", 0.5, 0.001, 5.0, 1.0, 0.5, ("a",)),
            OperatorProfile("c", 1.0, 0.001, 1.0, 0.1, 0.5, ("b",)),
        ),
        input_rate=100.0,
        storage_cost=0.001,
    )

    def least_time_only(labels: list[tree_dp_module._Label]) -> list[tree_dp_module._Label]:
        kept: dict[int, tree_dp_module._Label] = {}
        for label in labels:
            if label.steps not in kept or label.time < kept[label.steps].time:
                kept[label.steps] = label
        return list(kept.values())

    right = tree_dp(chain, 0.04, 6, 5.0, 5)
    monkeypatch.setattr(tree_dp_module, "_prune_open", least_time_only)
    wrong = tree_dp(chain, 0.04, 6, 5.0, 5)
    assert right is not None
    assert wrong is not None
    assert recovery_time(chain, right) == pytest.approx(1.0498, abs=1e-3)
    assert recovery_time(chain, wrong) == pytest.approx(1.5371, abs=1e-3)


def test_tree_dp_needs_a_step_for_each_stateful_operator() -> None:
    tree = random_tree(random.Random(1), 12)
    assert tree_dp(tree, 0.5, 11) is None
    assert tree_dp(tree, 0.5, 20) is not None


def test_relaxation_lets_a_small_state_checkpoint_more_often() -> None:
    chain = OperatorTopology(
        (
            OperatorProfile("small", 1.0, 1e-3, 1.0, 1.0, 1.0),
            OperatorProfile("large", 1.0, 1e-3, 100.0, 1.0, 0.1, ("small",)),
        ),
        input_rate=100.0,
        storage_cost=1e-3,
    )
    plan = solve(chain, 0.11)
    assert plan.anchors == ("small",)
    assert plan.configuration is not None
    relaxed = relax(chain, plan.configuration, 0.11)
    assert relaxed.frequency[0] > 1.5 * relaxed.frequency[1]
    assert is_relaxed_synchronised(chain, relaxed)
    assert recovery_time(chain, relaxed) < plan.recovery_time
    assert solve(chain, 0.11, "relaxed").recovery_time == pytest.approx(
        recovery_time(chain, relaxed)
    )


@pytest.mark.parametrize("budget", [0.06, 0.2, 0.5])
def test_a_tree_of_two_hundred_operators_is_solved_exactly(budget: float) -> None:
    tree = random_tree(random.Random(3), 200, storage_cost=5e-5)
    plan = solve(tree, budget)
    assert plan.feasible
    assert plan.bound == plan.recovery_time
    assert plan.recovery_time <= solve(tree, budget, "nsegments").recovery_time
    assert plan.recovery_time < solve(tree, budget, "1segment").recovery_time


def test_a_large_dag_gets_a_plan_and_a_bound() -> None:
    dag = random_dag(random.Random(3), 60, storage_cost=5e-5)
    plan = solve(dag, 3.0 * dag.min_overhead)
    assert plan.feasible
    assert plan.overhead <= plan.max_overhead
    assert 0.4 * plan.recovery_time < plan.bound <= plan.recovery_time


def test_an_infeasible_budget_says_what_is_needed() -> None:
    plan = solve(DIAMOND, 0.005)
    assert not plan.feasible
    assert plan.min_overhead == pytest.approx(0.01)
    assert plan.anchors == ()
    every = solve(DIAMOND, 0.02, "nsegments")
    assert not every.feasible
    assert every.min_overhead == pytest.approx(0.05)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="max_overhead"):
        solve(DIAMOND, math.nan)
    with pytest.raises(SettingsError, match="several inputs"):
        solve(DIAMOND, 0.1, "dp")
    with pytest.raises(SettingsError, match="steps"):
        solve(DIAMOND, 0.1, steps=0)
    with pytest.raises(SettingsError, match="unknown method"):
        solve(DIAMOND, 0.1, "guess")  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_no_neighbour_of_a_large_plan_is_better(seed: int) -> None:
    rng = random.Random(seed)
    make = rng.choice([random_chain, random_tree])
    topology = make(rng, rng.randint(30, 60), storage_cost=5e-5)
    budget = topology.min_overhead * rng.uniform(1.1, 8.0)
    plan = solve(topology, budget)
    assert plan.configuration is not None
    assert plan.bound == plan.recovery_time
    for i in range(1, len(topology)):
        other = segments(topology, plan.configuration.anchors ^ {i})
        assert best_recovery_time(other, budget) >= plan.recovery_time * (1.0 - 1e-11)


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_of_a_large_dag_is_below_its_bound(seed: int) -> None:
    rng = random.Random(seed)
    dag = random_dag(rng, 40, storage_cost=5e-5, second_input=0.5)
    budget = dag.min_overhead * rng.uniform(1.5, 8.0)
    plan = solve(dag, budget)
    assert plan.configuration is not None
    for _ in range(200):
        flips = frozenset(rng.sample(range(1, 40), rng.randint(1, 6)))
        other = segments(dag, plan.configuration.anchors ^ flips)
        assert best_recovery_time(other, budget) >= plan.bound * (1.0 - 1e-12)
