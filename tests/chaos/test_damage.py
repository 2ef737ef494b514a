"""A store that was damaged while nobody looked: the result is right, or the error says why not.

A flow in a process of its own is killed in the middle of its work.  Copies of what it leaves are
damaged, one file each time (a bit flipped, the end cut off), and a new run goes on from each.
"""

import logging
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Flow
from penstock.api import functions as F
from penstock.api.vertex import Time, Vertex
from penstock.errors import InvariantError, PenstockError
from penstock.testing.local import run_local, start_local

ROWS = 10_000
RATE = 5_000
KEYS = 5
RUN_S = 60.0
NUMBER = pa.schema({"key": pa.int64(), "number": pa.int64(), "n": pa.int64()})


def numbers(offset: int, n: int) -> pa.RecordBatch:
    offsets = np.arange(offset, offset + n)
    return pa.record_batch(
        {"n": offsets, "key": offsets % KEYS, "at": pa.array(offsets * 1000, pa.timestamp("us"))}
    )


class Numbering(Vertex):
    """Numbers the rows of each key in the order in which they come: order matters."""

    def __init__(self) -> None:
        self.numbered = Counter[int]()

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        rows = []
        for row in batch.select(["key", "n"]).to_pylist():
            self.numbered[row["key"]] += 1
            rows.append({"key": row["key"], "number": self.numbered[row["key"]], "n": row["n"]})
        self.sendBy(0, pa.RecordBatch.from_pylist(rows, NUMBER), time)


def build(folder: Path, rate: float | None) -> Flow:
    flow = Flow("damaged")
    rows = flow.generate(numbers, rate=rate, rows=ROWS, shards=2, name="numbers")
    spread = rows.withWatermark("at", "0 seconds", idleEpochs=1_000_000).keyBy("n", shards=2)
    counts = spread.groupBy(F.window("at", "1 second"), "key").agg(F.count("*").alias("rows"))
    counts.name("counts").parquet(str(folder / "counts"))
    (numbered,) = flow.vertex(
        Numbering, [spread], [NUMBER], partitionBy=[["key"]], shards=2, name="numbered"
    )
    numbered.parquet(str(folder / "numbers"))
    return flow


def options(folder: Path) -> dict[str, Any]:
    return {
        "hosts": 2,
        "parallelism": 2,
        "epochInterval": "50 ms",
        "checkpointInterval": "200 ms",
        "checkpointLocation": str(folder / "checkpoint"),
    }


def main(folder: Path) -> None:
    """What is killed."""
    start_local(build(folder, RATE), **options(folder)).awaitTermination(RUN_S)


def table(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("epoch=*/*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files]).to_pylist()


def check(folder: Path) -> None:
    """The tables hold exactly what they must."""
    counts = table(folder / "counts")
    assert len(counts) == ROWS // 1000 * KEYS
    assert {row["rows"] for row in counts} == {1000 // KEYS}
    numbered = table(folder / "numbers")
    assert Counter(row["n"] for row in numbered) == Counter(range(ROWS))
    for key in range(KEYS):
        given = sorted(row["number"] for row in numbered if row["key"] == key)
        assert given == list(range(1, ROWS // KEYS + 1))


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed driver has left."""
    folder = tmp_path_factory.mktemp("crashed")
    command = [sys.executable, __file__, str(folder)]
    child = subprocess.Popen(command, stderr=(folder / "err").open("wb"))
    try:
        deadline = time.monotonic() + RUN_S
        while len(list((folder / "numbers").glob("epoch=*"))) < 14:
            assert child.poll() is None, (folder / "err").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait(10)
    return folder


@pytest.fixture
def copy(crashed: Path, tmp_path: Path) -> Path:
    return copied(crashed, tmp_path)


def copied(crashed: Path, to: Path) -> Path:
    shutil.rmtree(to / "copy", ignore_errors=True)
    return shutil.copytree(crashed, to / "copy")


def go_on(folder: Path) -> None:
    """A new run, without limit to its rate, to the end of the input."""
    moved = {"acceptTargets": ["parquet", "parquet_2"]}
    run_local(build(folder, None), timeout=RUN_S, **options(folder), **moved)


def flip(path: Path, at: float, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 1 << bit
    path.write_bytes(data)


def cut(path: Path, at: float) -> None:
    os.truncate(path, int(at * (path.stat().st_size - 1)))


def newest(folder: Path, stage: str) -> Path:
    """The newest checkpoint of the stage's first node."""
    return max((folder / "checkpoint" / "state" / stage / "00000").glob("*/checkpoint-*.arrow"))


@pytest.mark.parametrize("how", [flip, cut])
@pytest.mark.parametrize("stage", ["counts", "numbered"])
def test_the_checkpoint_before_a_damaged_one_is_used_and_the_damaged_one_named(
    copy: Path, caplog: pytest.LogCaptureFixture, stage: str, how: Callable[[Path, float], None]
) -> None:
    damaged = newest(copy, stage)
    how(damaged, 0.5)
    with caplog.at_level(logging.WARNING):
        go_on(copy)
    check(copy)
    assert any(damaged.name in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("name", ["recovery.json", "state/begun.log"])
def test_small_records_that_are_damaged_are_named_and_done_without(
    copy: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    (copy / "checkpoint" / name).write_bytes(b"\xff garbage")
    with caplog.at_level(logging.WARNING):
        go_on(copy)
    check(copy)
    assert any(f"{name} is damaged" in record.getMessage() for record in caplog.records)


def test_cuts_that_lost_their_end_are_refused(copy: Path) -> None:
    cut(copy / "checkpoint" / "sources" / "numbers" / "shard-00001.log", 0.3)
    with pytest.raises(PenstockError, match=r"numbers\[1\] end at .* its log is lost\. Restore"):
        go_on(copy)


def test_determinants_that_lost_their_end_are_refused(copy: Path) -> None:
    folder = copy / "checkpoint" / "state" / "numbered" / "00001"
    for newer in sorted(folder.glob("*/checkpoint-*.arrow"))[1:]:
        cut(newer, 0.1)  # what is in a checkpoint is not missed
    (log,) = folder.glob("*/determinants.log")
    cut(log, 0.1)
    with pytest.raises(PenstockError, match=r"numbered\[1\] end at .* its log is lost\. Restore"):
        go_on(copy)


def test_whatever_is_damaged_the_result_is_right_or_there_is_an_error(
    crashed: Path, tmp_path: Path, at_length: bool
) -> None:
    files = sorted(
        path.relative_to(crashed)
        for path in (crashed / "checkpoint").rglob("*")
        if path.is_file() and path.stat().st_size
    )

    @settings(max_examples=150 if at_length else 4, deadline=None, database=None)
    @given(
        file=st.sampled_from(files),
        at=st.floats(0, 1),
        bit=st.none() | st.integers(0, 7),
    )
    def one(file: Path, at: float, bit: int | None) -> None:
        folder = copied(crashed, tmp_path)
        if bit is None:
            cut(folder / file, at)
        else:
            flip(folder / file, at, bit)
        try:
            go_on(folder)
        except InvariantError:
            raise  # a bug, not an answer
        except PenstockError:
            return
        check(folder)

    one()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
