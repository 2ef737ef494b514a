"""Rough runs: hosts, machines, connections, the store, clocks and the driver misbehave."""

from collections import Counter
from functools import cache
from random import Random
from typing import Any

import pytest

from penstock.core.causal.reports import Cut
from penstock.testing.mutants.catch import MUTANTS
from penstock.testing.mutants.mutant import applied
from penstock.testing.simulator.cases import Case
from penstock.testing.simulator.disk import torn_cuts
from penstock.testing.simulator.run import run_many, run_seed

FLOWS = ("planned", "layers:mixed", "layers:promised", "two_loops", "replicas")
ANYWHERE = ("freeze", "partition", "half_open", "store_refuses", "driver", "clock", "zombie")


@cache
def rough_runs(flow: str) -> dict[str, Any]:
    return run_many(seed=1, runs=40, draw=Case.parse(f"{flow}:rough:0").at)


@pytest.mark.parametrize("flow", FLOWS)
def test_no_invariant_breaks(flow: str) -> None:
    result = rough_runs(flow)
    assert result["violations"] == 0, result["failed"]
    assert all(result["faults"][what] > 0 for what in ANYWHERE), result["faults"]


def test_all_that_follows_from_such_faults_happens_in_some_flow() -> None:
    seen: Counter[str] = Counter()
    for flow in FLOWS:
        seen.update(rough_runs(flow)["faults"])
    assert all(seen[effect] > 0 for effect in ("unsynced", "torn", "zombie", "unreadable")), seen


def test_a_host_that_wakes_up_and_goes_on_sending_must_be_refused() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "no-fence")
    with applied(mutant):
        assert run_seed("layers:rough:104").violation is not None
    assert run_seed("layers:rough:104").violation is None


def test_a_host_that_wakes_up_and_goes_on_writing_must_be_refused() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "no-store-fence")
    with applied(mutant):
        assert run_seed("layers:rough:2").violation is not None


def test_a_torn_record_is_left_out() -> None:
    cuts = [Cut(0, 4, 17), Cut(1, 9, None)]
    for seed in range(50):
        assert torn_cuts(cuts, Cut(2, 12, 99), Random(seed)) == cuts
