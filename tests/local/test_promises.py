"""What is promised is what is done; where it is not, the flow says so before it starts."""

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow, Lazy
from penstock.api import functions as F
from penstock.connectors.base import SourceContext
from penstock.connectors.memory import MemorySource
from penstock.engine.store.logs import CommitLog
from penstock.errors import NotWrittenError, SourceError
from penstock.planning.causal_graph import causal_graph
from penstock.planning.physical import physical_plan
from penstock.testing.local import run_local, start_local
from penstock.testing.processes import wait_until

WAIT_S = 60.0


def numbers(offset: int, n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(offset, offset + n), pa.int64())})


Calls = list[tuple[int, list[int]]]


def handed_over(store: Path, func: Any, done: Callable[[], bool]) -> None:
    flow = Flow()
    flow.generate(numbers, rate=5_000, shards=1, name="numbers").foreachBatch(func)
    query = start_local(flow, hosts=1, epochInterval="10 ms", checkpointLocation=str(store))
    wait_until(done, WAIT_S, "calls")
    query.stop()


def test_after_a_driver_died_in_foreach_batch_only_that_epoch_is_handed_over_again(
    tmp_path: Path,
) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    calls: Calls = []
    again: Calls = []

    def first(rows: pa.Table, epoch: int) -> None:
        calls.append((epoch, rows["n"].to_pylist()))
        if len(calls) == 1:
            time.sleep(0.25)  # then many epochs wait, and follow each other at once
        if len(calls) == 12:
            shutil.copytree(store, copy)  # what a driver leaves that dies here

    handed_over(store, first, lambda: len(calls) > 12)
    handed_over(
        copy, lambda rows, epoch: again.append((epoch, rows["n"].to_pylist())), lambda: bool(again)
    )
    assert again[0] == calls[11]
    delivered = sorted(n for _, values in (*calls[:11], *again) for n in values)
    assert delivered == list(range(len(delivered)))


def test_an_epoch_that_cannot_be_noted_is_noted_later_without_another_call(tmp_path: Path) -> None:
    class Full(CommitLog):
        full = True

        def commit(self, epoch: int) -> None:
            if self.full:
                raise OSError(28, "No space left on device")
            super().commit(epoch)

    flow = Flow()
    calls: list[int] = []
    flow.memory(pa.schema({"n": pa.int64()})).foreachBatch(lambda rows, epoch: calls.append(epoch))
    (sink,) = (stage.operator for stage in flow.stages if stage.operator.sink)
    log = Full(tmp_path / "delivered.log")
    sink.record_in(log)  # type: ignore[attr-defined]
    rows = pa.table({"n": [1]})
    with pytest.raises(NotWrittenError, match="epoch 3 is not noted"):
        sink.publish(3, rows)  # type: ignore[attr-defined]
    log.full = False
    sink.publish(3, rows)  # type: ignore[attr-defined]
    assert (calls, log.last()) == ([3], 3)


def test_a_promise_that_is_raised_or_ends_with_the_driver_is_said_everywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow = Flow("alarms")
    pushed = flow.memory(pa.schema({"n": pa.int64()}), name="pushed")
    counts = pushed.groupBy("n").agg(F.count("*").alias("rows")).name("counts")
    counts.withRegime(Lazy()).memory(name="kept")
    pushed.filter("n > 3").foreachBatch(lambda rows, epoch: None, name="called")
    flow.setGuarantee("kept", "at-most-once")
    expected = (
        "sink 'called': at least once",
        "source 'pushed': rows that were pushed and are not published yet are gone",
    )
    text = flow.explain()
    assert all(words in text for words in expected)
    with caplog.at_level(logging.WARNING):
        query = start_local(flow, regime=Lazy(), checkpointLocation=str(tmp_path / "store"))
        notes = query.status["promises"]
        assert all(note in query.explain() for note in notes)
        query.stop()
    (said,) = [record.getMessage() for record in caplog.records if "alarms" in record.getMessage()]
    raised = "sink 'kept' is exactly-once though at-most-once was asked for: Lazy"
    for words in (*expected, raised):
        assert words in said
        assert any(note.startswith(words) for note in notes)


def test_a_flow_that_does_what_it_is_asked_for_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow = Flow("quiet")
    flow.generate(numbers, rows=10, shards=1).parquet(str(tmp_path / "out"))
    with caplog.at_level(logging.WARNING):
        query = run_local(flow, checkpointLocation=str(tmp_path / "store"))
    assert "promises" not in query.status
    assert not [record for record in caplog.records if "quiet" in record.getMessage()]


def test_a_stage_that_was_asked_for_exactly_once_is_even_if_its_sink_needs_less() -> None:
    flow = Flow()
    rows = flow.generate(numbers, rows=10, shards=1, name="numbers")
    counts = rows.groupBy("n").agg(F.count("*").alias("rows")).name("counts")
    counts.withGuarantee("exactly-once").keyBy("n").memory(name="kept")
    plan = physical_plan(flow, 2, guarantee="at-most-once")
    lossy = {plan.node_name(node) for node in causal_graph(plan).lossy}
    assert not any(name.startswith("counts") for name in lossy)
    assert "kept[0]" in lossy


def test_what_a_new_process_pushes_comes_after_what_an_earlier_one_did(tmp_path: Path) -> None:
    for value in (1, 2):  # as many rows as were published before
        flow = Flow()
        pushed = flow.memory(pa.schema({"n": pa.int64()}), name="pushed")
        sink = pushed.memory(name="kept")
        pushed.push([{"n": value}])
        run_local(flow, checkpointLocation=str(tmp_path / "store"))
        assert sink.toPylist() == [{"n": value}]


def test_rows_that_an_earlier_process_pushed_are_not_replaced_by_others() -> None:
    source = MemorySource(pa.schema({"n": pa.int64()}))
    source.push([{"n": 1}, {"n": 2}, {"n": 3}])
    with pytest.raises(SourceError, match="from 1 on are wanted, but only 2 to 5 are kept"):
        source.open(SourceContext(0, 1, position=1, recorded=2))
