"""``penstock chaos --random``: flows drawn at random survive, and one that breaks is reported."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.bench.random_flows import run as running
from penstock.bench.random_flows.draw import Fault, draw
from penstock.bench.random_flows.run import RandomRuns, run_drawn, run_random
from penstock.cli.app import app


def test_drawn_flows_survive_kills_of_hosts_and_of_the_driver() -> None:
    result = run_random(RandomRuns(runs=2, seed=110, threads=True, parallel=2))
    assert result["bad"] == []
    assert result["runs"] == 2
    assert sum(result["kills"].values()) >= 1


def test_a_wrong_sink_is_reported_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    different = {"rows3": {"expected": 10, "rows": 9, "missing": 1, "extra": 0, "late": 0}}
    monkeypatch.setattr(running, "compare", lambda drawn, folder: different)
    words = "chaos --random --seed 110 --runs 1 --threads --json"
    outcome = CliRunner().invoke(app, words.split())
    assert outcome.exit_code == 1
    report = json.loads(outcome.stdout)
    assert (report["runs"], report["wrong"]) == (1, 1)
    [bad] = report["bad"]
    assert bad["command"] == "penstock chaos --random --seed 110 --runs 1 --threads"
    assert bad["sinks"] == different


def test_a_flow_that_does_not_end_has_hung_and_says_where_it_stands(tmp_path: Path) -> None:
    drawn = draw(110)
    drawn.steps[0].parameters["rows"] *= 100
    drawn = replace(drawn, faults=(Fault("host", 0.1, (0.5,)),))
    done = run_drawn(drawn, RandomRuns(threads=True, limit_s=4), tmp_path)
    assert done.outcome == "hung"
    assert done.why["standing"]["status"]["message"] == "running"
    assert "Thread" in done.why["stacks"]
