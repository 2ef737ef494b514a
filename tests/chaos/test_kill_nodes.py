"""Nodes of a running flow are killed, connections cut: nothing is lost, nobody else restarts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.bench.chaos import Chaos, torture
from penstock.bench.recovery import trials_of

WAIT_S = 150


def test_killed_nodes_restart_alone_and_the_tables_are_right(
    roomy: SparkSession, at_length: bool, request: pytest.FixtureRequest
) -> None:
    kills, seconds = (14, 200) if at_length else (1, 80)
    if not at_length:
        request.getfixturevalue("measure_briefly")
    result = torture(roomy, Chaos(kills=kills, rate=1_000, seconds=seconds))
    assert result["kills"] == kills
    assert (result["lost"], result["duplicated"], result["disordered"]) == (0, 0, 0)
    assert result["equal"]
    assert result["other_restarted"] == 0
    assert result["recoveries"] >= result["kills"]
    for one in result["each"]:
        assert one["node"] in one["restarted_nodes"]


@pytest.mark.usefixtures("measure_briefly")
def test_cut_connections_restart_nobody(roomy: SparkSession) -> None:
    result = torture(roomy, Chaos(kills=3, rate=1_000, seconds=150, connections=True))
    assert result["cuts"] == 3
    assert result["equal"]
    assert (result["restarted"], result["recoveries"]) == (0, 0)


@pytest.mark.usefixtures("measure_briefly")
@pytest.mark.parametrize("recovery", ["causal", "purge"])
def test_sums_per_author_survive_the_death_of_the_sharder(
    roomy: SparkSession, recovery: str
) -> None:
    seconds, normal_ms = trials_of(roomy, 20_000, recovery, trials=1)
    assert len(seconds) == 1
    assert all(0 < each < 60 for each in seconds)
    assert normal_ms > 0


def test_the_demo_kills_processes_and_every_count_is_right(
    session_slot: Any, tmp_path: Path
) -> None:
    session_slot.clear()
    words = ["demo", "ysb", "--seconds", "5", "--rate", "100000", "--kill", "1", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", "from penstock.cli import main; main()", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["lost"], result["duplicated"]) == (0, 0)
    assert (result["events"], result["events_per_s"]) == (500_000, 100_000)
    assert result["windows"] in (5, 6)
    response = result["response_ms"]
    assert 0 < response["p50"] <= response["p95"] <= response["p99"]
    assert result["kills"] == 1
    assert len(result["recoveries"]) == 1
    for one in result["recoveries"]:
        assert one["lost"] == one["restarted"]
