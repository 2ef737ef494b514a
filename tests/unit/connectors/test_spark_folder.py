"""The folder of a stage with Spark jobs: what is done, what was begun, what comes next."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Flow
from penstock.connectors.base import SourceContext
from penstock.connectors.spark_folder import Range, StageFolder
from penstock.connectors.spark_stage import ResultsReader, SparkWork
from penstock.errors import GraphError, SchemaError, SettingsError, SourceError

SCHEMA = pa.schema({"x": pa.int64()})


def put(folder: StageFolder, epochs: Range, *files: int, start: int = 0) -> int:
    """Publish a result of files with so many rows each, numbered from ``start``."""
    made = folder.path / "work" / "run" / epochs.name / "result"
    made.mkdir(parents=True)
    for index, rows in enumerate(files):
        table = pa.table({"x": range(start, start + rows)}, schema=SCHEMA)
        pq.write_table(table, made / f"part-{index:05d}.parquet", row_group_size=4)
        start += rows
    (made / "_SUCCESS").touch()
    assert folder.publish(epochs, made)
    return start


@pytest.fixture
def folder(tmp_path: Path) -> StageFolder:
    made = StageFolder(tmp_path)
    made.begin_run()
    return made


def waits(folder: StageFolder, *epochs: int) -> None:
    for epoch in epochs:
        place = folder.input / f"epoch={epoch}"
        place.mkdir(parents=True)
        pq.write_table(pa.table({"x": [epoch]}), place / "part-00000.parquet")


def test_names_alone_say_what_is_done_and_what_was_begun(folder: StageFolder) -> None:
    assert (folder.done(), folder.begun(), folder.results()) == (-1, None, [])
    folder.begin(Range(0, 9))
    assert StageFolder(folder.path).begun() == Range(0, 9)
    put(folder, Range(0, 9), 3)
    assert (folder.done(), folder.begun()) == (9, None)
    put(folder, Range(10, 12))
    folder.begin_run()
    assert folder.results() == [Range(0, 9), Range(10, 12)]
    assert [part.name for part in folder.parts(Range(0, 9))] == ["part-00000.parquet"]


def test_an_outcome_that_was_visible_is_never_replaced(folder: StageFolder) -> None:
    put(folder, Range(0, 4), 3)
    other = folder.path / "work" / "late" / "result"
    other.mkdir(parents=True)
    pq.write_table(pa.table({"x": [99]}), other / "part-00000.parquet")
    assert not folder.publish(Range(0, 4), other)
    [part] = folder.parts(Range(0, 4))
    assert pq.read_table(part)["x"].to_pylist() == [0, 1, 2]


def test_an_attempt_is_given_the_rows_of_its_epochs_side_by_side(folder: StageFolder) -> None:
    waits(folder, 1, 3, 4, 8)
    rows, result = folder.workplace("run", Range(2, 4), since=1)
    assert sorted(pq.read_table(rows)["x"].to_pylist()) == [1, 3, 4]
    assert not result.exists()
    folder.forget(4)
    assert list(folder.epochs()) == [4, 8]
    assert len(list(rows.iterdir())) == 3  # what is being read stays readable


def test_used_results_go_but_never_the_newest(folder: StageFolder) -> None:
    for last in (4, 9, 14):
        put(folder, Range(last - 4, last), 1)
    folder.release(9)
    assert folder.results() == [Range(10, 14)]
    folder.release(14)
    assert folder.done() == 14


def reader(folder: StageFolder, position: Any = None) -> ResultsReader:
    return ResultsReader(folder, SCHEMA, SourceContext(0, 1, position))


def drained(source: ResultsReader, cuts: list[int], until: Any = None) -> list[int]:
    found: list[int] = []
    for step in range(1000):
        batch = source.read(cuts[step % len(cuts)], 0, until)
        if batch is None:
            return found
        found += batch["x"].to_pylist()
    raise AssertionError("it never ends")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=4),
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
    st.integers(0, 12),
)
def test_reading_again_from_any_position_gives_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory,
    results: list[list[int]],
    cuts: list[int],
    again: list[int],
    reads: int,
) -> None:
    folder = StageFolder(tmp_path_factory.mktemp("stage"))
    folder.begin_run()
    rows = 0
    for index, files in enumerate(results):
        rows = put(folder, Range(5 * index, 5 * index + 4), *files, start=rows)
    source = reader(folder)
    first: list[int] = []
    for step in range(reads):
        batch = source.read(cuts[step % len(cuts)], 0)
        first += [] if batch is None else batch["x"].to_pylist()
    position = json.loads(json.dumps(source.position()))
    assert drained(reader(folder), again, until=position) == first
    assert first + drained(reader(folder, position), again) == list(range(rows))


def test_a_batch_has_rows_of_one_result_and_no_epoch_ends_within_one(folder: StageFolder) -> None:
    rows = put(folder, Range(0, 4), 3, 0, 4)
    put(folder, Range(5, 9), 2, start=rows)
    source = reader(folder)
    sizes = []
    for _ in range(5):
        batch = source.read(5, 0)
        sizes.append((None if batch is None else batch.num_rows, source.epoch_ended()))
    assert sizes == [(5, False), (2, None), (2, None), (None, None), (None, None)]


def test_rows_that_are_kept_for_ever_are_merged_and_given_once(folder: StageFolder) -> None:
    waits(folder, 1, 3, 6)
    made = folder.path / "work" / "merged"
    made.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1, 3]}), made / "part-0.parquet")
    folder.keep(Range(0, 4), made)
    assert list(folder.epochs()) == [6]
    waits(folder, 3)  # published again by a node that was restarted
    rows, _ = folder.workplace("run", Range(5, 9), since=0)
    assert sorted(pq.read_table(rows)["x"].to_pylist()) == [1, 3, 6]
    folder.begin_run()
    assert list(folder.epochs()) == [6]


def test_a_reader_ends_with_the_last_result_of_the_run_and_not_before(folder: StageFolder) -> None:
    put(folder, Range(0, 4), 2)
    source = reader(folder)
    assert not source.exhausted()
    folder.end(4)
    assert not source.exhausted()
    assert drained(source, [10]) == [0, 1]
    assert source.exhausted()
    folder.begin_run()
    assert not source.exhausted()


def test_a_result_that_is_gone_is_an_error_and_no_silent_gap(folder: StageFolder) -> None:
    source = reader(folder, {"after": 3, "file": 0, "row": 0})
    with pytest.raises(SourceError, match="result after epoch 3 must be read again"):
        source.read(10, 0, until={"after": 8, "file": 0, "row": 0})


def test_times_that_spark_writes_in_its_old_form_are_read_as_declared(folder: StageFolder) -> None:
    schema = pa.schema({"at": pa.timestamp("us", "UTC")})
    made = folder.path / "work" / "result"
    made.mkdir(parents=True)
    far = pa.array([253_402_300_799_000_000], pa.timestamp("us", "UTC"))  # the year 9999
    near = pa.array([1_700_000_000_123_456], pa.timestamp("us", "UTC"))
    pq.write_table(
        pa.table({"at": near}), made / "part-0.parquet", use_deprecated_int96_timestamps=True
    )
    pq.write_table(pa.table({"at": far}), made / "part-1.parquet")
    folder.publish(Range(0, 0), made)
    source = ResultsReader(folder, schema, SourceContext(0, 1))
    assert source.read(10, 0) == pa.record_batch({"at": pa.concat_arrays([near, far])})


@pytest.mark.parametrize(
    ("keep", "since", "kept"), [("window", 10, 20), ("all", 0, 0), (15, 5, 6), (3, 10, 18)]
)
def test_keep_says_which_rows_a_call_is_given(keep: Any, since: int, kept: int) -> None:
    work = SparkWork(print, SCHEMA, 10, 0, keep)
    assert work.since(Range(10, 19)) == since
    assert work.kept_from(Range(10, 19)) == kept


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"every": 0}, SettingsError, "at least 1 epoch"),
        ({"every": "soon"}, SettingsError, "cannot read the duration"),
        ({"every": "0 s"}, SettingsError, "longer than nothing"),
        ({"every": True}, SettingsError, "duration"),
        ({"retries": -1}, SettingsError, "retries"),
        ({"keep": "some"}, SettingsError, "keep is 'window'"),
        ({"schema": None}, SchemaError, "say what the function returns"),
        ({"schema": "x bignt"}, SchemaError, "bignt"),
        ({"func": 3}, SettingsError, "expected a function"),
    ],
)
def test_senseless_arguments_are_refused(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    rows = Flow("bad").memory(SCHEMA)
    given = {"func": lambda df: df, "schema": SCHEMA, "every": 1} | options
    func = given.pop("func")
    with pytest.raises(error, match=words):
        rows.spark(func, **given)


def test_jobs_are_refused_inside_loops() -> None:
    rows = Flow("looped").memory(SCHEMA)
    with pytest.raises(GraphError, match="outside of loops"):
        rows.iterate(lambda inner: inner.spark(lambda df: df, schema=SCHEMA, every=1))
