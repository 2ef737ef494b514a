"""The ad-serving application in threads: every part is right while its nodes are killed."""

from __future__ import annotations

import io
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from rich.table import Table

from penstock.api.flow import Stream
from penstock.api.vertex import Time
from penstock.cli.adserving import _table, run_adserving
from penstock.demos.adserving import PARTS, RECOMMENDATION, TAGS, AdServing, Scale
from penstock.demos.adserving_check import balances, check
from penstock.demos.adserving_run import Drill, LiveFigures, figures, recovered
from penstock.errors import SettingsError
from penstock.operators.stateful import StatefulVertex
from penstock.testing.local import start_local

WAIT_S = 60.0
SERVING = ("queries", "noted", "serving", "served")
SCALE = Scale(seconds=6, tweets_per_s=300, queries_per_s=100, servers=2)


class Latest(StatefulVertex):
    """Recommends to everybody what they tagged last, a whole table now and then."""

    orderSensitive = False

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[int, int] = {}
        self.epochs = 0

    def work(self, time: Time, received: list[tuple[int, pa.RecordBatch]]) -> None:
        for _, batch in received:
            self.tags.update(zip(batch["user"].to_pylist(), batch["tag"].to_pylist(), strict=True))
        self.epochs += 1
        if self.epochs % 2 == 0:
            users = sorted(self.tags)
            rows = [
                users,
                [self.tags[user] % TAGS + 1 for user in users],
                [time.epoch] * len(users),
            ]
            self.sendBy(0, pa.record_batch(rows, schema=RECOMMENDATION), time)

    def snapshot(self) -> dict[str, Any]:
        return {"tags": dict(self.tags), "epochs": self.epochs}

    def load(self, state: Any) -> None:
        self.tags, self.epochs = dict(state["tags"]), state["epochs"]


def latest(ratings: Stream, scale: Scale) -> Stream:
    return ratings.process(Latest, RECOMMENDATION).name("recommend")


def test_every_part_is_right_while_nodes_of_each_are_killed(tmp_path: Path) -> None:
    origin = datetime.fromtimestamp(time.time() + 0.5, UTC)
    url = f"sqlite:///{tmp_path}/billing.db"
    before = balances(url)
    run = AdServing(SCALE, origin, tmp_path, url, latest)
    query = start_local(
        run.flow,
        hosts=6,
        standby=1,
        parallelism=1,
        epochInterval="50 ms",
        checkpointLocation=str(tmp_path / "store"),
    )
    live = LiveFigures(run, before)
    collector = threading.Thread(target=run.collect, args=(live.add,), daemon=True)
    collector.start()
    drill = Drill(query, 5, time.time() + 1, 1.0)
    killer = threading.Thread(target=drill.run, daemon=True)
    killer.start()
    try:
        killer.join(WAIT_S)
        shown = text_of(_table(query, drill))
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    collector.join(5)
    outcome = check(run, before)
    assert outcome.right, outcome
    assert outcome.queries == 600
    assert outcome.windows >= 6
    assert outcome.fits >= 2
    assert query.recoveries
    # A busy machine may run out of input before the last kill is over.
    assert recovered(replace(drill, done=drill.done[:-1]))
    assert "600 ads billed" in live.billing()
    assert live.billing().endswith("exactly as served")
    assert "queries/s" in live.queries()
    for part in PARTS:
        assert part in shown
    assert "Ephemeral" in shown
    found = figures(run, drill, 0)
    assert found["kills"] == len(drill.done) >= 1
    for one in query.recoveries:
        if not any(name.startswith("serving") for name in one["lost"]):
            # Whoever makes the tables or writes the bills goes back alone.
            assert not [name for name in one["restarted"] if name.startswith(SERVING)], one


def text_of(table: Table) -> str:
    """A table as a terminal shows it."""
    console = Console(file=io.StringIO(), width=160)
    console.print(table)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_too_little_time_for_the_kills_is_refused() -> None:
    with pytest.raises(SettingsError, match="with --kill 5 give at least --seconds 17"):
        run_adserving(10, None, 6, None, json=True, kills=5)


def test_what_queries_saw_is_told_apart_by_who_was_killed(tmp_path: Path) -> None:
    """Queries of 10 ms each; 100 ms while another part recovers, none for 400 ms of its own."""
    run = AdServing(
        SCALE, datetime.fromtimestamp(0, UTC), tmp_path, f"sqlite:///{tmp_path}/b", latest
    )
    drill = Drill(None, 0, 0, 0)  # type: ignore[arg-type]
    drill.done = [
        {"part": "components", "node": "c", "at_us": 2_000_000, "recovered_us": 2_500_000},
        {"part": "serving", "node": "s", "at_us": 6_000_000, "recovered_us": 6_400_000},
    ]
    kind = pa.timestamp("us", tz="UTC")
    for due in range(0, 10_000_000, 20_000):
        took = 100_000 if 2_000_000 <= due <= 2_500_000 else 10_000
        came = max(due + took, 6_400_000) if 6_000_000 <= due < 6_400_000 else due + took
        rows = pa.table({"id": [0], "time": pa.array([due], kind)})
        run.delivered.append((came * 1000, rows))
    found = figures(run, drill, 0)
    assert found["query_ms"]["normal_p99"] == 10.0
    assert found["query_ms"]["recovery_p99"] == 100.0
    assert 390 <= found["query_gap_ms"] <= 410
    assert found["recovery_s"] == {"components": [0.5], "serving": [0.4]}
