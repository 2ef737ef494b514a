"""An exchange that feeds two branches, under kills in quick succession: no row lost or doubled."""

import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.errors import TransientError
from penstock.testing.held_input import hold_input
from penstock.testing.kills import await_recovery
from penstock.testing.local import LocalQuery, start_local

ROWS = 12_000
RATE = 3_000
KEYS = 10
WAIT_S = 60.0


def numbers(offset: int, n: int) -> pa.RecordBatch:
    offsets = range(offset, offset + n)
    return pa.record_batch(
        {
            "n": pa.array(offsets, pa.int64()),
            "k": pa.array([o % KEYS for o in offsets], pa.int64()),
        }
    )


class Branches:
    """What both branches have handed over, in all runs."""

    def __init__(self) -> None:
        self.rows: Counter[int] = Counter()
        self.totals: dict[int, int] = {}

    def started(self, store: Path, hosts: int, share: float) -> LocalQuery:
        """Start the flow; only a share of its rows comes before it is finished."""
        flow = Flow("fan_out")
        keyed = flow.generate(numbers, rate=RATE, rows=ROWS, shards=2).keyBy("k")
        keyed.select("n", "k").foreachBatch(self._take_rows, name="rows")
        counts = keyed.groupBy("k").agg(F.count("*").alias("c"))
        counts.foreachBatch(self._take_totals, name="totals")
        hold_input(flow, share)
        return start_local(
            flow, hosts, parallelism=2, checkpointLocation=store, epochInterval="20 ms"
        )

    def _take_rows(self, table: pa.Table, epoch: int) -> None:
        self.rows.update(table["n"].to_pylist())

    def _take_totals(self, table: pa.Table, epoch: int) -> None:
        for row in table.to_pylist():
            assert row["c"] >= self.totals.get(row["k"], 0)
            self.totals[row["k"]] = row["c"]


def kill_in_succession(query: LocalQuery, kills: int, choice: random.Random) -> None:
    """Kill a host of some node as soon as the flow has recovered from the kill before."""
    deadline = time.monotonic() + WAIT_S
    done = 0
    while done < kills:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.status
        away = [node["name"] for node in query.nodes() if node["host"] != 0]
        before = len(query.recoveries)
        with suppress(TransientError):  # it is not up yet
            query.kill(choice.choice(away))
            done += 1
            await_recovery(query, before + 1, WAIT_S)
        time.sleep(0.005)


@pytest.mark.parametrize(("hosts", "kills"), [(1, 6), (3, 4)])
def test_both_branches_are_exact_after_kills_in_succession_and_a_restart(
    hosts: int, kills: int, tmp_path: Path
) -> None:
    choice, branches = random.Random(hosts), Branches()
    query = branches.started(tmp_path / "store", hosts, share=0.5)
    try:
        kill_in_succession(query, kills, choice)
    finally:
        query.stop()
    assert query.exception() is None
    assert len(query.recoveries) >= kills
    assert 0 < branches.rows.total() < ROWS
    assert set(branches.rows.values()) == {1}

    query = branches.started(tmp_path / "store", hosts, share=0.8)
    try:
        kill_in_succession(query, 2, choice)
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert branches.rows == Counter(range(ROWS))
    assert branches.totals == Counter(n % KEYS for n in range(ROWS))
