"""onError("restart") where it may be asked for: sources, stages with state, sinks on hosts."""

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.vertex import Time, Vertex
from penstock.connectors.base import Sink
from penstock.errors import FunctionError
from penstock.testing.local import LocalQuery, start_local

ROWS = 4_000
BAD = 1_500
WAIT_S = 60.0


class Unlucky:
    """Raises for a while: what happens to a row it does not bear the first few times."""

    def __init__(self, times: int = 2) -> None:
        self._left: Iterator[int] = iter(range(times))

    def bears(self, numbers: list[int]) -> None:
        if BAD in numbers and next(self._left, None) is not None:
            raise OSError("try again")


def numbers(offset: int, n: int) -> pa.RecordBatch:
    offsets = range(offset, offset + n)
    return pa.record_batch(
        {
            "n": pa.array(offsets, pa.int64()),
            "key": pa.array([o % 7 for o in offsets], pa.int64()),
        }
    )


def assert_restarted(query: LocalQuery, times: int = 2) -> None:
    assert len(query.recoveries) == times
    assert all("try again" in one["reason"] for one in query.recoveries)


def test_a_source_whose_function_raises_reads_on_where_it_was() -> None:
    unlucky = Unlucky()

    def made(offset: int, n: int) -> pa.RecordBatch:
        unlucky.bears([*range(offset, offset + n)])
        return numbers(offset, n)

    flow = Flow()
    stream = flow.generate(made, rate=8_000, rows=ROWS, shards=2, name="numbers")
    out = stream.onError("restart").keyBy("key").memory()
    query = start_local(flow)
    query.finish(WAIT_S)
    assert sorted(row["n"] for row in out.toPylist()) == list(range(ROWS))
    assert_restarted(query)


def test_a_stage_with_state_that_raises_gets_its_state_back() -> None:
    unlucky = Unlucky()

    class Sums(Vertex):
        def __init__(self) -> None:
            self.totals: dict[int, int] = {}

        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            for n, key in zip(*(batch[name].to_pylist() for name in ("n", "key")), strict=True):
                self.totals[key] = self.totals.get(key, 0) + n
            unlucky.bears(batch["n"].to_pylist())  # the state has changed by now
            keys = sorted(set(batch["key"].to_pylist()))
            totals = [self.totals[key] for key in keys]
            self.sendBy(0, pa.record_batch({"key": keys, "total": totals}), time)

    flow = Flow()
    stream = flow.generate(numbers, rate=8_000, rows=ROWS, shards=2, name="numbers")
    schema = pa.schema({"key": pa.int64(), "total": pa.int64()})
    summed = stream.process(Sums, schema, partitionBy=["key"]).name("sums").onError("restart")
    out = summed.groupBy("key").agg(F.max("total").alias("total")).memory()
    query = start_local(flow, checkpointInterval="50 ms", epochInterval="20 ms")
    query.finish(WAIT_S)
    assert {row["key"]: row["total"] for row in out.toPylist()} == {
        key: sum(range(key, ROWS, 7)) for key in range(7)
    }
    assert_restarted(query)


class Kept(Sink):
    """Keeps epochs by their number, and raises while it publishes some of them."""

    kind = "kept"

    def __init__(self, unlucky: Unlucky) -> None:
        self.unlucky = unlucky
        self.epochs: dict[tuple[int, int], list[int]] = {}

    def vertex(self) -> Vertex:
        return KeptVertex(self)


class KeptVertex(Vertex):
    """One shard of it."""

    def __init__(self, sink: Kept) -> None:
        self.sink = sink
        self.rows: dict[int, list[int]] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.rows.setdefault(time.epoch, []).extend(batch["n"].to_pylist())
        self.notifyAt(time)

    def onNotify(self, time: Time) -> None:
        rows = self.rows.pop(time.epoch)
        self.sink.unlucky.bears(rows)
        self.sink.epochs[self.place.shard, time.epoch] = rows


def test_a_sink_on_a_host_that_raises_publishes_its_epoch_again() -> None:
    sink = Kept(Unlucky())
    flow = Flow()
    flow.generate(numbers, rate=8_000, rows=ROWS, shards=2, name="numbers").keyBy("key").to(sink)
    query = start_local(flow, onError="restart", epochInterval="20 ms")
    query.finish(WAIT_S)
    assert Counter(n for rows in sink.epochs.values() for n in rows) == Counter(range(ROWS))
    assert_restarted(query)


def test_a_function_on_the_driver_ends_the_flow_though_others_restart() -> None:
    def raises(table: pa.Table, epoch: int) -> None:
        raise OSError("try again")

    flow = Flow()
    stream = flow.generate(numbers, rate=8_000, rows=ROWS, name="numbers")
    stream.foreachBatch(raises, name="out")
    query = start_local(flow, onError="restart")
    with pytest.raises(FunctionError, match="try again"):
        assert query.awaitTermination(WAIT_S)
    query.stop()
    assert query.join()
    assert not query.recoveries
