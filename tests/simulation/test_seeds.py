"""Dozens of seeds of each kind of run; the command runs many more."""

import json

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.simulate import simulate
from penstock.errors import SettingsError
from penstock.testing.simulator.cases import LAYOUTS, SWITCHES, Case
from penstock.testing.simulator.faults import (
    ALL_FAULTS,
    CONTRADICTION,
    FAULTS,
    HOSTS,
    LONG,
    ROUGH_EFFECTS,
)
from penstock.testing.simulator.guarantees import GUARANTEES
from penstock.testing.simulator.lives.faults import LIFE
from penstock.testing.simulator.regimes import REGIMES
from penstock.testing.simulator.roles.faults import FAULTS as ROLE_FAULTS
from penstock.testing.simulator.roles.faults import SIBLING
from penstock.testing.simulator.run import run_many, run_seed


def test_no_invariant_breaks_in_a_hundred_runs() -> None:
    result = run_many(seed=401, runs=100)
    assert result["violations"] == 0, result["failed"]
    assert result["runs"] == 100
    assert set(result["faults"]) == set(ALL_FAULTS)
    # What is rare here is looked for where it is not: in long and rough runs, lives and replicas.
    rare = {CONTRADICTION, *LONG, *LIFE, *ROUGH_EFFECTS, *ROLE_FAULTS, SIBLING} - {*FAULTS, *HOSTS}
    assert all(count > 0 for what, count in result["faults"].items() if what not in rare)
    assert {*REGIMES, "replicated"} == set(result["regimes"])
    assert all(count > 0 for count in result["regimes"].values())
    assert {*GUARANTEES, "exactly-once"} == set(result["guarantees"])


@pytest.mark.parametrize("flow", ["planned:rough", "layers:mixed:rough", "layers:mixed"])
def test_long_runs(flow: str) -> None:
    result = run_many(seed=1, runs=10, draw=Case.parse(f"{flow}:long:0").at)
    assert result["violations"] == 0, result["failed"]
    assert "rough" not in flow or all(result["faults"][what] > 0 for what in LONG)


def test_lives_of_flows_meet_all_that_can_happen_to_them() -> None:
    result = run_many(seed=1, runs=60, draw=Case(0, "hosts").at)
    assert result["violations"] == 0, result["failed"]
    assert all(result["faults"][what] > 0 for what in LIFE)


def test_flows_without_recovery_lose_and_double_nothing() -> None:
    result = run_many(seed=1, runs=40, draw=Case(0, "plain").at)
    assert result["violations"] == 0, result["failed"]
    assert result["faults"]["connection"] > 0


def test_flows_with_two_loops_recover_like_others() -> None:
    result = run_many(seed=1, runs=40, draw=Case(0, "two_loops").at)
    assert result["violations"] == 0, result["failed"]


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1, id="a lossy sink that has published the end starts after it"),
        pytest.param(43, id="a lossy source that has cut the end starts after it"),
        pytest.param(512, id="who skips epochs has not shown that they were complete"),
        pytest.param(3212, id="rows of the end of a stream are not sent again"),
        pytest.param(3318, id="what was read of an epoch that all skip is not read again"),
        pytest.param(37943389, id="who starts anew is told of an end that is not kept"),
        pytest.param("rough:396950822", id="an epoch that is skipped may be cut later"),
        pytest.param(4625, id="without state, what a noted step was made from is passed on"),
    ],
)
def test_flows_that_promise_less(seed: int | str) -> None:
    outcome = run_seed(f"layers:promised:{seed}")
    assert outcome.violation is None


def test_the_command_simulates_replicas(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["--replicas", "--runs", "5", "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["runs"] == 5
    assert found["violations"] == 0
    assert found["faults"]["crash"] > 0


def test_names_say_every_switch_of_a_run() -> None:
    drawn = [Case.drawn(seed) for seed in range(300)]
    assert all(Case.parse(str(case)) == case for case in drawn)
    assert {case.layout for case in drawn} == {*LAYOUTS} - {"fan_out"}
    assert all(any(getattr(case, switch) for case in drawn) for switch in SWITCHES)


@pytest.mark.parametrize("name", ["852", "layers:rougher:852", "circles:1", "layers:-1"])
def test_what_names_no_run_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="names no run"):
        Case.parse(name)


@pytest.mark.parametrize("seed", [3, 77])
def test_a_run_follows_from_its_seed(seed: int) -> None:
    first, again = run_seed(seed, trace=True), run_seed(seed, trace=True)
    assert first.trace == again.trace
    assert first.trace[-1].endswith("ok")
    assert run_seed(seed).steps == first.steps


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(simulate)
    return made


def test_the_command_prints_one_json_object(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["--seed", "5", "--runs", "5", "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["runs"] == 5
    assert found["violations"] == 0
    assert found["seconds"] > 0
    assert sum(found["faults"].values()) > 0


def test_the_command_prints_a_trace(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["--seed", "layers:5", "--trace"])
    assert result.exit_code == 0
    assert result.stdout.startswith("node 0: source")
    assert "completes epoch 0" in result.stdout
