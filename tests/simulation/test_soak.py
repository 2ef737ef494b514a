"""Many seeds in several processes: for a while, or a given range."""

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import simulate
from penstock.cli.app import app
from penstock.testing.shards import SHARD, TIMED_SHARD, for_seconds
from penstock.testing.simulator import run
from penstock.testing.simulator.cases import LIVES, Case
from penstock.testing.simulator.run import run_many


def test_results_do_not_depend_on_the_number_of_processes() -> None:
    draw = Case(0, LIVES).at
    one, two = (run_many(7, SHARD + 1, processes, draw) for processes in (1, 2))
    assert {**one, "seconds": 0} == {**two, "seconds": 0}


def test_every_process_goes_on_from_a_first_seed_of_its_own() -> None:
    shards = list(for_seconds(list, [100, 5000], seconds=0.05))
    for first in (100, 5000):
        mine = [seed for shard in shards if first <= shard[0] < first + 4000 for seed in shard]
        assert len(mine) >= TIMED_SHARD
        assert sorted(mine) == list(range(first, first + len(mine)))


def test_a_run_that_breaks_off_is_reported_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(case: Case) -> Any:
        raise KeyError("nobody")

    monkeypatch.setattr(run, "run_seed", broken)
    found = run.run_shard(range(8, 9), Case(0, "planned").at)
    assert found.failed == [{"seed": "planned:8", "violation": "KeyError: 'nobody'"}]


def test_fresh_seeds_are_named_and_violations_come_with_their_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shards(function: Any, first: list[int], seconds: float) -> Iterator[Any]:
        assert seconds == 30
        failed = [{"seed": f"planned:{first[0] + 3}", "violation": "lost: a row"}]
        yield run.run_shard(range(0))._replace(runs=20, failed=failed)

    monkeypatch.setattr(simulate, "for_seconds", shards)
    monkeypatch.setattr(simulate.secrets, "randbelow", lambda end: 4711)
    done = CliRunner().invoke(app, ["simulate", "--minutes", "0.5", "--json"])
    assert done.exit_code == 1
    assert "penstock simulate: seeds from 4711" in done.stderr
    assert "penstock simulate --seed planned:4714 --trace" in done.stderr
    assert '"violations": 1' in done.stdout
