"""A files-to-parquet flow that is interrupted again and again ends with exactly the same output."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.engine.store.flow_store import BoundaryLog
from penstock.testing.processes import DriverScript, wait_until

FILES, FILE_ROWS, SHARDS = 12, 2_500, 2
NEW_EPOCHS = 4
"""How many epochs each run may publish before it is interrupted."""

PIPELINE = """
import time
import pyarrow.compute as pc
import pyarrow as pa
from penstock import Flow

def build(source, out, pause_s):
    def slowly(batch):
        time.sleep(pause_s)
        return pc.multiply(batch["id"], 3)

    flow = Flow("archive")
    rows = flow.files(source, shards=2, name="input")
    kept = rows.filter("id % 3 <> 1").withColumn("triple", slowly, pa.int64())
    kept.withColumn("word", "upper(word)").parquet(out)
    return flow

def run(spark, source, out, checkpoint, pause_s):
    return build(source, out, pause_s).start(
        spark, hosts=2, checkpointLocation=checkpoint, availableNow=True, rowsMax=250,
        epochInterval="50 ms",
    )
"""

DRIVER = (
    PIPELINE
    + """
import sys
from penstock.engine.spark.session import local_session
query = run(local_session(hosts=2), *sys.argv[1:4], float(sys.argv[4]))
print("PIDS", *[host["pid"] for host in query.hosts], flush=True)
query.awaitTermination(120)
print("ENDED", flush=True)
"""
)


class Pipeline:
    """Input, output and checkpoint of one flow, run in this process or in one of its own."""

    def __init__(self, source: Path, folder: Path, pause_s: float) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.checkpoint = folder / "checkpoint"
        self.arguments = (str(source), str(self.out), str(self.checkpoint), pause_s)
        self.records: dict[tuple[int, int], Any] = {}
        self.files: dict[int, list[str]] = {}

    def start(self, spark: SparkSession) -> Any:
        scope: dict[str, Any] = {"__name__": "pipeline"}
        exec(PIPELINE, scope)
        return scope["run"](spark, *self.arguments)

    def driver(self) -> DriverScript:
        return DriverScript(DRIVER, self.folder, *map(str, self.arguments))

    def epochs(self) -> dict[int, list[tuple[Any, ...]]]:
        """The rows of every published epoch, sorted."""
        found: dict[int, list[tuple[Any, ...]]] = {}
        if self.out.exists():
            table = ds.dataset(self.out, partitioning="hive").to_table()
            if table.num_rows:
                columns = [table[name].to_pylist() for name in ("epoch", "id", "triple", "word")]
                for epoch, *values in zip(*columns, strict=True):
                    found.setdefault(epoch, []).append(tuple(values))
        return {epoch: sorted(rows) for epoch, rows in found.items()}

    def published(self) -> int:
        return len(list(self.out.glob("epoch=*")))

    def note_boundaries(self) -> None:
        """Remember what the store says of the epochs' ends; starting again cuts it back."""
        for shard in range(SHARDS):
            resume = BoundaryLog(self.checkpoint, "input", shard).resume(None)
            for record in resume.replay:
                known = self.records.setdefault((shard, record["epoch"]), record["position"])
                assert known == record["position"]
            self.files[shard] = [
                path for entry in resume.journal for path, _, _ in entry.get("files", ())
            ]


@contextmanager
def watched(pipeline: Pipeline) -> Iterator[dict[int, list[tuple[Any, ...]]]]:
    """Read the output all the time; an epoch must never look different from the first time."""
    seen: dict[int, list[tuple[Any, ...]]] = {}
    wrong: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.wait(1.0):
            for epoch, rows in pipeline.epochs().items():
                if seen.setdefault(epoch, rows) != rows:
                    wrong.append(f"epoch {epoch}: {len(seen[epoch])} rows, then {len(rows)}")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield seen
    finally:
        done.set()
        reader.join(10)
    assert wrong == []


def row(number: int) -> tuple[int, int, str]:
    return number, number * 3, f"WORD {number % 7}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(FILES):
        ids = range(number * FILE_ROWS, (number + 1) * FILE_ROWS)
        table = pa.table({"id": ids, "word": [f"word {i % 7}" for i in ids]})
        pq.write_table(table, folder / f"{number:03d}.parquet", row_group_size=1_000)
    return folder


def check_boundaries(pipeline: Pipeline, complete: dict[int, list[tuple[Any, ...]]]) -> None:
    """Up to each recorded epoch exactly the rows up to its recorded offset were published."""
    epochs = {r[0]: epoch for epoch, rows in complete.items() for r in rows}
    for shard in range(SHARDS):
        numbers = [
            int(Path(path).stem) * FILE_ROWS + i
            for path in pipeline.files[shard]
            for i in range(FILE_ROWS)
        ]
        kept = np.array([number % 3 != 1 for number in numbers])
        published = np.array([epochs.get(number, -1) for number in numbers])
        ends = [(epoch, at) for (of, epoch), at in sorted(pipeline.records.items()) if of == shard]
        assert len(ends) > 10
        for epoch, position in ends:
            end = position["file"] * FILE_ROWS + position["row"]
            assert (published[:end][kept[:end]] <= epoch).all()
            assert (published[end:][kept[end:]] > epoch).all()
        assert end == len(numbers)


@pytest.mark.timeout(400)
def test_interruptions_by_stop_and_by_kill_leave_the_output_as_if_there_had_been_none(
    spark: SparkSession, source: Path, tmp_path: Path, at_length: bool
) -> None:
    whole = Pipeline(source, tmp_path / "whole", 0.0)
    whole.folder.mkdir()
    assert whole.start(spark).awaitTermination(60)
    pieces = Pipeline(source, tmp_path / "pieces", 0.05)
    pieces.folder.mkdir()
    ids: set[str] = set()
    with ExitStack() as drivers, watched(pieces) as seen:
        for interruption in range(5 if at_length else 3):
            before = pieces.published()

            def enough(before: int = before) -> bool:
                return pieces.published() >= before + NEW_EPOCHS

            if interruption % 2 == 0:
                query = pieces.start(spark)
                ids.add(query.id)
                wait_until(enough, 60, f"epochs of run {interruption}")
                assert query.isActive
                query.stop()
                assert query.exception() is None
            else:
                script = drivers.enter_context(pieces.driver())
                script.line("PIDS ", 90)
                wait_until(enough, 60, f"epochs of run {interruption}")
                assert script.process.poll() is None
                script.process.kill()  # its hosts may still be at it when the next run begins
                script.process.wait(10)
            pieces.note_boundaries()
            assert pieces.published() < FILES * FILE_ROWS // 250
        query = pieces.start(spark)
        ids.add(query.id)
        assert query.awaitTermination(60)
        pieces.note_boundaries()
    assert len(ids) == 1
    complete = pieces.epochs()
    rows = sorted(r for epoch in complete.values() for r in epoch)
    assert rows == [row(n) for n in range(FILES * FILE_ROWS) if n % 3 != 1]
    assert rows == sorted(r for epoch in whole.epochs().values() for r in epoch)
    assert {epoch: complete[epoch] for epoch in seen} == seen
    check_boundaries(pieces, complete)
    frame = spark.read.parquet(str(pieces.out))
    assert frame.count() == len(rows)
    assert not list(pieces.out.glob("_staging/*"))
