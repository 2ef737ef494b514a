"""Checkpoints on demand, rollbacks by hand and previews, on flows that run."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.flow import Stream
from penstock.api.regimes import Causal, GlobalCheckpoint, Lazy, Regime
from penstock.api.vertex import Time, Vertex
from penstock.engine.driver.command_channel import call, find_driver
from penstock.engine.driver.rollback_request import RollbackMark
from penstock.errors import SettingsError, TransientError
from penstock.testing.held_input import hold_input
from penstock.testing.kills import await_epochs, await_recovery
from penstock.testing.local import LocalQuery, start_local

ROWS = 30_000
RATE = 15_000
WAIT_S = 60.0


def numbers(offset: int, n: int) -> pa.RecordBatch:
    """Row numbers, a key, and an event time of one millisecond a row."""
    offsets = range(offset, offset + n)
    return pa.record_batch(
        {
            "n": pa.array(offsets, pa.int64()),
            "key": pa.array([o % 7 for o in offsets], pa.int64()),
            "at": pa.array([o * 1000 for o in offsets], pa.timestamp("us")),
        }
    )


def source(flow: Flow, rows: int = ROWS) -> Stream:
    return flow.generate(numbers, rate=RATE, rows=rows, shards=2, name="numbers")


def counted(flow: Flow, rows: int = ROWS) -> Stream:
    return (
        source(flow, rows)
        .withWatermark("at", "0 seconds")
        .groupBy(F.window("at", "1 second"), "key")
        .agg(F.count("*").alias("rows"), F.sum("n").alias("total"))
        .name("counts")
    )


def expected_counts() -> dict[tuple[int, int], tuple[int, int]]:
    groups: dict[tuple[int, int], list[int]] = {}
    for n in range(ROWS):
        groups.setdefault((n // 1000, n % 7), []).append(n)
    return {key: (len(rows), sum(rows)) for key, rows in groups.items()}


def found_counts(rows: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[int, int]]:
    found = {}
    for row in rows:
        start = row["window"]["start"]
        key = (start.minute * 60 + start.second, row["key"])
        assert key not in found, f"{key} was published twice"
        found[key] = (row["rows"], row["total"])
    return found


class Numbering(Vertex):
    """Numbers the rows of each key in the order in which they come: order matters."""

    def __init__(self) -> None:
        self.given: dict[int, int] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        numbers = []
        for key in batch.column("key").to_pylist():
            self.given[key] = self.given.get(key, 0) + 1
            numbers.append(self.given[key])
        self.sendBy(0, batch.append_column("number", pa.array(numbers, pa.int64())), time)


def started(flow: Flow, **options: Any) -> LocalQuery:
    hold_input(flow)
    return start_local(flow, **{"hosts": 3, "checkpointInterval": "200 ms", **options})


def test_a_checkpoint_is_taken_everywhere_of_one_epoch() -> None:
    flow = Flow()
    counted(flow).groupBy("key").agg(F.sum("rows").alias("rows")).name("again").memory()
    query = started(flow, checkpointInterval="1 hour")
    try:
        await_epochs(query, 2)
        first = query.checkpoint()
        second = query.checkpoint()
        kept = {row["node"]: row["kept"] for row in query.spans()}
    finally:
        query.stop()
    assert set(first) == {"counts", "again"}
    assert len(set(first.values())) == len(set(second.values())) == 1
    assert first["counts"] < second["counts"]
    assert set(second.values()) <= set(kept["counts[0]"])


def test_a_checkpoint_of_a_loop_waits_for_the_end_of_a_block() -> None:
    flow = Flow()

    def halve(stream: Stream) -> Stream:
        return stream.keyBy("n").filter("n > 1").withColumn("n", "cast(floor(n / 2) as bigint)")

    slow = flow.generate(numbers, rate=500, rows=100_000, shards=2, name="numbers")
    slow.select("n").iterate(halve).memory()
    query = started(flow)
    try:
        found = query.checkpoint()
        assert found
        assert len(set(found.values())) == 1
    finally:
        query.stop()


def test_where_no_epoch_ends_a_checkpoint_is_taken_of_what_is_complete() -> None:
    flow = Flow()
    pushed = flow.memory(pa.schema({"n": pa.int64()}), manualEpochs=True)
    pushed.groupBy("n").agg(F.count("*").alias("rows")).name("counts").memory()
    query = started(flow, checkpointInterval="1 hour")
    try:
        pushed.push([{"n": n} for n in range(10)])
        pushed.closeEpoch()
        deadline = time.monotonic() + WAIT_S
        while (found := query.checkpoint()["counts"]) < 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found >= 0
        assert query.checkpoint() == {"counts": found}
    finally:
        query.stop()


@pytest.mark.parametrize("regime", [Causal(), Lazy(every=3), GlobalCheckpoint(every=3)], ids=str)
def test_a_rollback_changes_no_result(regime: Regime) -> None:
    flow = Flow()
    out = counted(flow).memory()
    query = started(flow, regime=regime, rollbackWindow="10 seconds")
    try:
        for _ in range(2):
            await_epochs(query, 2)
            epoch = query.checkpoint()["counts"]
            time.sleep(0.3)  # a heartbeat brings what was done since
            told = query.rollback(to=epoch, dryRun=True)
            done = query.rollback(to=epoch)
            assert [row["to"] for row in done] >= [row["to"] for row in told]
        query.finish(WAIT_S)
    finally:
        query.stop()
    rows = {row["stage"]: row for row in told}
    assert rows["counts"]["restores"] == "checkpoint"
    assert rows["counts"]["to"] <= epoch
    assert rows["counts"]["bytes"] > 100
    assert rows["counts"]["from"] >= epoch
    assert rows["numbers"]["restores"] == "position"
    assert [entry["reason"] for entry in query.recoveries][-1] == f"rolled back to epoch {epoch}"
    assert len(query.recoveries) == 2
    assert found_counts(out.toPylist()) == expected_counts()


def test_a_window_for_rollbacks_keeps_old_epochs() -> None:
    flow = Flow()
    out = counted(flow).memory()
    query = started(flow, checkpointInterval="100 ms", rollbackWindow="1 hour")
    try:
        first = query.checkpoint()["counts"]
        for _ in range(3):  # without the window two of them would be enough to forget the first
            newest = query.checkpoint()["counts"]
        assert newest > first
        await_epochs(query, 4)
        found = {row["stage"]: row for row in query.rollback(to=first)}
        assert found["counts"]["to"] == first
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert found_counts(out.toPylist()) == expected_counts()


def test_a_rollback_keeps_an_order_that_was_published() -> None:
    flow = Flow()
    schema = pa.schema(
        {"n": pa.int64(), "key": pa.int64(), "at": pa.timestamp("us"), "number": pa.int64()}
    )
    (stream,) = flow.vertex(
        Numbering, [source(flow)], [schema], partitionBy=[["key"]], name="numbering"
    )
    out = stream.memory()
    query = started(flow)
    try:
        await_epochs(query, 2)
        epoch = query.checkpoint()["numbering"]
        time.sleep(0.3)
        query.rollback(to=epoch)
        query.kill("numbering[0]")
        query.finish(WAIT_S)
    finally:
        query.stop()
    rows = out.toPylist()
    assert Counter(row["n"] for row in rows) == Counter(range(ROWS))
    for key in range(7):
        given = sorted(row["number"] for row in rows if row["key"] == key)
        assert given == list(range(1, len(given) + 1))


def await_low(query: LocalQuery) -> None:
    """Wait until nobody can go back to the beginning any more."""
    deadline = time.monotonic() + WAIT_S
    while min(row["low"] for row in query.spans()) < 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _oldest_said(query: LocalQuery, to: int) -> int:
    """Ask for epochs until one is possible, each time for the oldest that is said to be."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        said = ""
        try:
            assert query.rollback(to=to, dryRun=True)
        except SettingsError as error:
            said = str(error)
        if not said:
            return to  # it may take more than one: the flow goes on and forgets
        assert f"epoch {to} cannot be reached: stage 'counts'" in said
        assert "has no checkpoint there" in said
        to = int(said.split("can go back to epoch ")[1].split()[0])
    raise AssertionError("what is said to be possible never is")


def test_an_epoch_that_cannot_be_reached_is_refused_and_the_possible_ones_are_said() -> None:
    flow = Flow()
    counted(flow, 100 * ROWS).memory()
    query = started(flow)
    try:
        await_low(query)
        assert _oldest_said(query, 0) > 0
        never = r"cannot be reached: it has not been; .* can go back to epoch \d+ .* up to \d+"
        with pytest.raises(SettingsError, match=never):
            query.rollback(to=1_000_000)
        assert not query.recoveries
    finally:
        query.stop()
    with pytest.raises(SettingsError, match="that can be asked of a running one only"):
        query.rollback(to=1)


def test_what_a_failure_would_do_is_what_it_does() -> None:
    flow = Flow()
    out = counted(flow).memory()
    query = started(flow)
    try:
        query.checkpoint()
        host = {one["name"]: one["host"] for one in query.nodes()}
        lost = [name for name, at in host.items() if at == host["counts[0]"]]
        foretold = query.preview(*lost)
        query.kill("counts[0]")
        await_recovery(query)
        assert sorted(query.recoveries[-1]["restarted"]) == sorted(r["node"] for r in foretold)
        assert {row["why"] for row in foretold} == {"failed"}
        with pytest.raises(SettingsError, match="no node 'nobody'"):
            query.preview("nobody")
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert found_counts(out.toPylist()) == expected_counts()


def test_a_flow_without_recovery_has_no_checkpoints() -> None:
    flow = Flow()
    source(flow).memory()
    query = started(flow, recovery="none")
    try:
        with pytest.raises(SettingsError, match="keeps no checkpoints"):
            query.checkpoint()
    finally:
        query.stop()


def test_a_checkpoint_that_nobody_answers_is_given_up() -> None:
    flow = Flow()
    counted(flow).memory()
    query = started(flow)
    try:
        with pytest.raises(TransientError, match=r"counts\[0\].* saved nothing within 0 s"):
            query.checkpoint(timeout=0)
    finally:
        query.stop()


def published(target: Path) -> list[dict[str, Any]]:
    return [
        row
        for file in sorted(target.glob("epoch=*/*.parquet"))
        for row in pq.read_table(file).to_pylist()
    ]


def test_a_rollback_that_waits_in_the_store_is_done_at_the_next_start(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "out"

    def start() -> LocalQuery:
        flow = Flow("again")
        counted(flow).parquet(str(target), name="published")
        return started(flow, checkpointLocation=str(store), parallelism=2)

    query = start()
    for _ in range(3):  # after that nobody can go back to the beginning
        epoch = max(call(find_driver(store), "checkpoint").values())
    query.spans()
    query.stop()
    RollbackMark(store).write(0)
    with pytest.raises(SettingsError, match=r"epoch 0 cannot be reached.*goes on where it was"):
        start()
    RollbackMark(store).write(epoch)
    query = start()
    try:
        assert RollbackMark(store).read() is None
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert found_counts(published(target)) == expected_counts()
