"""Whole flows whose stores are objects, and whose checkpoints are made of many segments."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from penstock import Flow
from penstock.api import functions as F
from penstock.engine.store.durable import segments
from penstock.errors import SettingsError
from penstock.testing.kills import run_killing
from penstock.testing.local import run_local

ROWS = 40_000
KEYS = 97
WAIT_S = 60.0


def counted(flow: Flow, rows: int = ROWS, rate: int = 15_000) -> Any:
    def make(offset: int, n: int) -> pa.RecordBatch:
        return pa.record_batch({"n": pa.array(range(offset, offset + n), pa.int64())})

    numbers = flow.generate(make, rows=rows, rate=rate, shards=2, name="numbers")
    return numbers.select(f"n % {KEYS} AS k", "n").groupBy("k").agg(F.count("*"), F.sum("n"))


def totals(out: Any) -> dict[int, tuple[int, int]]:
    """The last row of each key."""
    found = {}
    for epoch in sorted(out.epochs()):
        for row in out.epochs()[epoch].to_pylist():
            found[row["k"]] = (row["count"], row["sum(n)"])
    return found


def expected(rows: int = ROWS) -> dict[int, tuple[int, int]]:
    groups: dict[int, list[int]] = {}
    for n in range(rows):
        groups.setdefault(n % KEYS, []).append(n)
    return {k: (len(some), sum(some)) for k, some in groups.items()}


def where(path: Path, kind: str) -> Any:
    return fs.SubTreeFileSystem(str(path), fs.LocalFileSystem()) if kind == "objects" else path


@pytest.mark.parametrize("kind", ["objects", "directory"])
def test_kills_do_no_harm_whatever_the_store_is(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES_MIN", 1)
    monkeypatch.setattr(segments, "PIECES_MAX", 4)
    flow = Flow("counts")
    out = counted(flow).memory()
    run_killing(
        flow,
        ["aggregate[0]", "numbers[0]", "aggregate[1]"],
        checkpointLocation=where(tmp_path, kind),
        checkpointInterval="100 ms",
    )
    assert totals(out) == expected()
    names = {path.name.partition("-")[0] for path in tmp_path.rglob("*.arrow")}
    assert {"checkpoint", "state"} <= names


def test_what_needs_a_directory_says_so(tmp_path: Path) -> None:
    flow = Flow("kept")
    counted(flow).persist().memory()
    with pytest.raises(SettingsError, match="is not a directory"):
        run_local(flow, checkpointLocation=where(tmp_path, "objects"))
