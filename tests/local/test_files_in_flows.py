"""Flows that read files: deleted, rewritten, malformed, misnamed, and unreadable for a moment."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Batch, Eager, Flow, Lazy, Stream
from penstock.api import functions as F
from penstock.api.regimes import Regime
from penstock.connectors.file_format import FileFormat
from penstock.errors import PenstockError, SettingsError
from penstock.library.graphs import connected_components
from penstock.testing.local import LocalQuery, run_local, start_local

WAIT_S = 60.0

SCHEMA = "id BIGINT, name STRING"
LINES = ['{"id": 1, "name": "a"}', '{"id": 2, "name": ', '{"id": 3, "name": "c"}']


def write(path: Path, *ids: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"id": n, "name": "x"}) + "\n" for n in ids))
    return path


def rows_of(path: Path, schema: str = SCHEMA, **options: Any) -> tuple[list[Any], LocalQuery]:
    flow = Flow("reading")
    source = flow.files(str(path), schema=schema, shards=1, name="in", **options)  # type: ignore[arg-type]
    sink = source.memory()
    query = run_local(flow, hosts=1)
    return [tuple(row.values()) for row in sink.toPylist()], query


def counters(query: LocalQuery) -> dict[str, int]:
    progress = query.lastProgress
    assert progress is not None
    return dict(progress["sources"][0]["metrics"])


def test_a_file_that_was_published_may_be_deleted(tmp_path: Path) -> None:
    def run() -> None:
        flow = Flow("reading")
        stream = flow.files(str(tmp_path / "in"), schema=SCHEMA, format="json", name="in")  # type: ignore[arg-type]
        stream.parquet(str(tmp_path / "out"), name="out")
        store = str(tmp_path / "store")
        run_local(flow, hosts=1, checkpointLocation=store, epochInterval="1 hour")

    first = write(tmp_path / "in" / "a.json", *range(2000))
    run()
    first.unlink()
    write(tmp_path / "in" / "b.json", 9)
    run()
    assert not first.exists()
    assert len(list((tmp_path / "out").glob("epoch=*"))) >= 2


def published(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("epoch=*/*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def greatest(folder: Path) -> dict[int, int]:
    """The last count of each id: it only ever goes up."""
    found: dict[int, int] = {}
    for row in published(folder):
        found[row["id"]] = max(found.get(row["id"], 0), row["n"])
    return found


def counted(flow: Flow, folder: Path, shards: int) -> Stream:
    stream = flow.files(str(folder / "in"), schema=SCHEMA, format="json", shards=shards, name="in")  # type: ignore[arg-type]
    return stream.groupBy("id").agg(F.count("*").alias("n"))


@pytest.mark.parametrize("regime", [None, Lazy(every=10), Batch(), Eager()], ids=str)
@pytest.mark.parametrize("shards", [1, 3])
def test_a_file_may_be_deleted_when_a_run_has_saved_the_state_made_of_it(
    tmp_path: Path, shards: int, regime: Regime | None
) -> None:
    def run() -> dict[int, int]:
        flow = Flow("reading")
        counts = counted(flow, tmp_path, shards)
        counts = counts if regime is None else counts.withRegime(regime)
        counts.parquet(str(tmp_path / "out"), name="out")
        store = str(tmp_path / "store")
        run_local(flow, hosts=2, checkpointLocation=store, epochInterval="20 ms")
        return greatest(tmp_path / "out")

    for round_ in range(1, 4):
        files = [write(tmp_path / "in" / f"{round_}-{n}.json", *range(100)) for n in range(5)]
        assert run() == dict.fromkeys(range(100), 5 * round_)
        for file in files:
            file.unlink()


def test_a_file_may_be_deleted_after_a_stop(tmp_path: Path) -> None:
    """One source has ended long before, another one has not: both are the state's."""
    made: list[int] = []

    def few(offset: int, n: int) -> pa.RecordBatch:
        made.append(n)
        ids = pa.array(range(offset, offset + n), pa.int64())
        return pa.record_batch({"id": ids, "name": ["made"] * n})

    def run(rows: int) -> dict[int, int]:
        flow = Flow("reading")
        stream = flow.files(str(tmp_path / "in"), schema=SCHEMA, format="json", name="in")  # type: ignore[arg-type]
        more = flow.generate(few, rows=rows, shards=1, schema=stream.schema, name="more")
        counts = stream.union(more).groupBy("id").agg(F.count("*").alias("n"))
        counts.parquet(str(tmp_path / "out"), name="out")
        query = start_local(
            flow,
            checkpointLocation=str(tmp_path / "store"),
            checkpointInterval="1 hour",
            epochInterval="20 ms",
            drainTimeout="30 seconds",
        )
        try:
            query.processAllAvailable(WAIT_S)
        finally:
            query.stop()
        assert query.awaitTermination(WAIT_S)
        return greatest(tmp_path / "out")

    first = write(tmp_path / "in" / "a.json", *range(100))
    assert run(10) == {n: 2 if n < 10 else 1 for n in range(100)}
    first.unlink()
    write(tmp_path / "in" / "b.json", *range(100))
    assert run(20) == {n: 3 if n < 20 else 2 for n in range(100)}


def test_a_file_may_be_deleted_when_a_loop_has_saved_its_state(tmp_path: Path) -> None:
    def run() -> dict[int, int]:
        flow = Flow("reading")
        stream = flow.files(str(tmp_path / "in"), schema="a BIGINT, b BIGINT", format="json")  # type: ignore[arg-type]
        found = connected_components(stream, name="components")
        found.parquet(str(tmp_path / "out"), name="out")
        run_local(flow, hosts=2, checkpointLocation=str(tmp_path / "store"))
        least: dict[int, int] = {}
        for row in published(tmp_path / "out"):
            least[row["vertex"]] = min(least.get(row["vertex"], 1 << 60), row["component"])
        return least

    def edges(path: Path, *pairs: tuple[int, int]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in pairs))

    edges(tmp_path / "in" / "a.json", *((n, n + 1) for n in range(10, 20)), (1, 2))
    assert run() == {**dict.fromkeys(range(10, 21), 10), 1: 1, 2: 1}
    (tmp_path / "in" / "a.json").unlink()
    edges(tmp_path / "in" / "b.json", (2, 20))
    assert run() == {**dict.fromkeys(range(10, 21), 1), 1: 1, 2: 1}


def test_rows_before_a_malformed_line_stay_when_the_rest_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("\n".join(LINES))
    rows, query = rows_of(tmp_path, onCorrupt="skip")
    assert rows == [(1, "a")]
    assert counters(query)["files_skipped"] == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"id": 1, "name": "a"}\n{"id": "x", "name": "b"}\n{"id": 3, "name": "c"}\n'),
        ("a.csv", "id,name\n1,a\nx,b\n3,c\n"),
    ],
)
def test_a_value_of_the_wrong_type_makes_the_rest_of_its_file_corrupt(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    rows, query = rows_of(tmp_path, onCorrupt="skip")
    assert rows == [(1, "a")]
    assert counters(query)["files_skipped"] == 1
    with pytest.raises(PenstockError, match=r"column 'id' .*onCorrupt='skip'"):
        rows_of(tmp_path)


def test_a_file_without_a_wanted_column_is_refused_though_corrupt_ones_are_skipped(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    with pytest.raises(PenstockError, match="column 'name' is missing"):
        rows_of(tmp_path, onCorrupt="skip")


def test_json_modes_are_those_of_spark(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("\n".join([*LINES, '{"id": "x", "name": "d"}', "null", "[1]"]))
    rows, query = rows_of(tmp_path, mode="dropMalformed")
    assert rows == [(1, "a"), (3, "c")]
    assert counters(query)["rows_malformed"] == 4
    rows, _ = rows_of(tmp_path, f"{SCHEMA}, _corrupt_record STRING", mode="PERMISSIVE")
    assert rows == [
        (1, "a", None),
        (None, None, LINES[1]),
        (3, "c", None),
        (None, "d", '{"id": "x", "name": "d"}'),
        (None, None, "null"),
        (None, None, "[1]"),
    ]
    with pytest.raises(PenstockError, match=r"a\.json, line 2 is malformed .*mode='PERMISSIVE'"):
        rows_of(tmp_path, mode="FAILFAST")


def test_csv_modes_are_those_of_spark(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,name\n1,a\nx,b\n3\n4,d,e\n5,"f"\n')
    rows, _ = rows_of(tmp_path, mode="DROPMALFORMED")
    assert rows == [(1, "a"), (5, "f")]
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}
    rows, query = rows_of(tmp_path, f"{SCHEMA}, bad STRING", **options)
    assert rows == [
        (1, "a", None),
        (None, "b", "x,b"),
        (3, None, "3"),
        (4, "d", "4,d,e"),
        (5, "f", None),
    ]
    assert counters(query)["rows_malformed"] == 3
    with pytest.raises(PenstockError, match=r"a\.csv, line 3 is malformed"):
        rows_of(tmp_path, mode="FAILFAST")


def test_only_what_is_malformed_in_a_large_file_is_taken_apart(tmp_path: Path) -> None:
    good = [f'{{"id": {n}, "name": "x"}}' for n in range(200_000)]
    bad = {7, 99_999, 199_999}
    lines = ["{" if n in bad else line for n, line in enumerate(good)]
    (tmp_path / "a.json").write_text("\n".join(lines))
    rows, _ = rows_of(tmp_path, mode="DROPMALFORMED")
    assert [row[0] for row in rows] == [n for n in range(200_000) if n not in bad]


def test_an_inferred_schema_has_a_place_for_malformed_records(tmp_path: Path) -> None:
    write(tmp_path / "a.json", 1)
    assert Flow("f").files(str(tmp_path), mode="PERMISSIVE").columns[-1] == "_corrupt_record"
    with pytest.raises(SettingsError, match="mode must be one of PERMISSIVE, DROPMALFORMED"):
        Flow("f").files(str(tmp_path), mode="lenient")


@pytest.mark.parametrize("passing", [OSError(errno.EIO, "I/O error"), OSError("cut short")])
def test_a_passing_error_loses_nothing_where_corrupt_files_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passing: OSError
) -> None:
    write(tmp_path / "a.json", 1, 2, 3)
    plain, failed = FileFormat.batches, []

    def fails_once(self: FileFormat, *arguments: Any) -> Any:
        if not failed:
            failed.append(True)
            raise passing
        return plain(self, *arguments)

    monkeypatch.setattr(FileFormat, "batches", fails_once)
    rows, query = rows_of(tmp_path, onCorrupt="skip")
    assert [row[0] for row in rows] == [1, 2, 3]
    assert counters(query)["read_retries"] == 1


def test_a_lasting_error_ends_the_flow_and_skips_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.json", 1)

    def fails(self: FileFormat, *arguments: Any) -> Any:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(FileFormat, "batches", fails)
    monkeypatch.setattr("penstock.connectors.files.PAUSE_S", 0.001)
    with pytest.raises(PenstockError, match=r"a\.json could not be read in 6 tries.*I/O error"):
        rows_of(tmp_path, onCorrupt="skip")


def test_a_file_rewritten_with_the_same_size_is_not_replayed(tmp_path: Path) -> None:
    path = write(tmp_path / "in" / "a.json", *range(10))
    store = str(tmp_path / "store")

    def run(fails: bool) -> None:
        flow = Flow("reading")
        stream = flow.files(str(tmp_path / "in"), schema=SCHEMA, format="json", name="in")  # type: ignore[arg-type]
        if fails:
            stream = stream.mapInArrow(refused, stream.schema)
        stream.parquet(str(tmp_path / "out"), name="out")
        run_local(flow, hosts=1, checkpointLocation=store)

    def refused(batches: Any) -> Any:
        raise RuntimeError("not this time")

    with pytest.raises(PenstockError, match="not this time"):
        run(fails=True)
    path.write_text(path.read_text().replace("x", "y"))
    with pytest.raises(PenstockError, match=r"a\.json was changed after it was found.*touch -d @"):
        run(fails=False)


def test_a_name_that_is_not_utf8_is_read(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.json", 1)
    os.rename(tmp_path / "in" / "a.json", os.fsencode(tmp_path / "in") + b"/\xff\xfe.json")
    assert rows_of(tmp_path / "in")[0] == [(1, "x")]


def test_a_name_that_is_not_utf8_is_known_to_the_next_start(tmp_path: Path) -> None:
    def run(*ids: int) -> list[int]:
        write(tmp_path / "new.json", *ids)
        name = b"/\xff-%d.json" % ids[0]
        (tmp_path / "in").mkdir(exist_ok=True)
        os.rename(tmp_path / "new.json", os.fsencode(tmp_path / "in") + name)
        flow = Flow("reading")
        stream = flow.files(str(tmp_path / "in"), schema=SCHEMA, format="json", name="in")  # type: ignore[arg-type]
        stream.parquet(str(tmp_path / "out"), name="out")
        query = run_local(flow, hosts=1, checkpointLocation=str(tmp_path / "store"))
        assert counters(query)["files_read"] == 1
        return sorted(row["id"] for row in published(tmp_path / "out"))

    assert run(1, 2) == [1, 2]
    assert run(3) == [1, 2, 3]
    os.unlink(os.fsencode(tmp_path / "in") + b"/\xff-1.json")
    assert run(4) == [1, 2, 3, 4]


def test_a_file_that_is_replaced_is_counted_and_not_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = str(tmp_path / "store")

    def run() -> LocalQuery:
        flow = Flow("reading")
        stream = flow.files(str(tmp_path / "in"), schema=SCHEMA, format="json", name="in")  # type: ignore[arg-type]
        stream.parquet(str(tmp_path / "out"), name="out")
        return run_local(flow, hosts=1, checkpointLocation=store)

    write(tmp_path / "in" / "a.json", 1)
    run()
    write(tmp_path / "in" / "a.json", 1, 2)
    query = run()
    assert counters(query)["files_replaced"] == 1
    assert "a name that was seen is not read again" in caplog.text


def test_event_time_goes_on_in_the_next_run_over_files_that_came_since(tmp_path: Path) -> None:
    """A run over what is available does not end event time: later rows are not late."""

    def run(name: str, seconds: range) -> None:
        lines = [
            f'{{"n": {second}, "at": "2026-01-01T00:00:{second:02d}"}}\n' for second in seconds
        ]
        (tmp_path / "in" / name).write_text("".join(lines))
        flow = Flow("windows")
        schema = pa.schema({"n": pa.int64(), "at": pa.timestamp("s")})
        read = flow.files(tmp_path / "in", format="json", schema=schema)
        timed = read.withWatermark("at", "5 seconds")
        counts = timed.groupBy(F.window("at", "10 seconds")).count().name("counts")
        counts.parquet(str(tmp_path / "counts"), name="counts_out")
        counts.late().parquet(str(tmp_path / "late"), name="late_out")
        run_local(flow, hosts=1, checkpointLocation=str(tmp_path / "checkpoint"))

    (tmp_path / "in").mkdir()
    run("a.json", range(23))
    run("b.json", range(18, 45))  # a window that is open is counted by both runs
    run("c.json", range(45, 60))
    files = sorted((tmp_path / "counts").glob("epoch=*/*.parquet"))
    rows = [row for name in files for row in pq.ParquetFile(name).read().to_pylist()]
    assert [(row["window"]["start"].second, row["count"]) for row in rows] == [
        (0, 10),
        (10, 12),
        (20, 13),
        (30, 10),
        (40, 10),
    ]
    assert not list((tmp_path / "late").glob("epoch=*/*.parquet"))
