"""When ranges of epochs are handed over, how often again, and what is said of it."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.spark_folder import Range
from penstock.connectors.spark_stage import SparkWork
from penstock.engine.driver import frame_runner
from penstock.engine.driver.frame_runner import FrameRunner
from penstock.errors import PenstockError, SchemaError
from penstock.testing.processes import wait_until


class Job:
    """Copies its rows, unless ``fails`` has something to raise; stays inside while held."""

    def __init__(self) -> None:
        self.calls: list[tuple[Range, list[int]]] = []
        self.fails: list[Exception] = []
        self.always: Exception | None = None
        self.free = threading.Event()
        self.free.set()
        self.cancelled = 0
        self.no_merge = False

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=target, name=name)

    def begin(self) -> None:
        """Nothing to set up."""

    def run(self, epochs: Range, rows: Path, result: Path) -> None:
        table = pq.read_table(rows)
        self.calls.append((epochs, sorted(table["x"].to_pylist())))
        assert self.free.wait(10)
        if self.fails or self.always:
            raise self.fails.pop(0) if self.fails else self.always or ValueError()
        result.mkdir()
        pq.write_table(table, result / "part-0.parquet")

    def merge(self, rows: Path, merged: Path) -> None:
        if self.no_merge:
            raise OSError("no room")
        merged.mkdir()
        pq.write_table(pq.read_table(rows), merged / "part-0.parquet")

    def cancel(self) -> None:
        self.cancelled += 1


class Stage:
    """A runner with a folder, and a sink in front that publishes what it is told."""

    def __init__(self, path: Path, every: Any, retries: int = 2, keep: Any = "window") -> None:
        self.work = SparkWork(print, pa.schema({"x": pa.int64()}), every, retries, keep)
        self.work.path = str(path)
        self.job = Job()
        self.broken: list[PenstockError] = []
        self.runner: FrameRunner | None = None

    def start(self) -> FrameRunner:
        self.work.folder.begin_run()
        self.runner = FrameRunner("fit", self.work, self.job, self.broken.append)
        self.runner.start()
        return self.runner

    def publish(self, *epochs: int, complete: int | None = None) -> None:
        assert self.runner is not None
        for epoch in epochs:
            place = self.work.folder.input / f"epoch={epoch}"
            place.mkdir(parents=True)
            pq.write_table(pa.table({"x": [epoch]}), place / "part-00000.parquet")
        self.runner.advance(epochs[-1] if complete is None else complete)

    def ranges(self) -> list[tuple[int, int]]:
        return [tuple(call[0]) for call in self.job.calls]

    def ended(self) -> bool:
        assert self.runner is not None
        return self.runner.join(0)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stage]]:
    monkeypatch.setattr(frame_runner, "PAUSE_S", 0.01)
    made: list[Stage] = []

    def stage(*arguments: Any, **options: Any) -> Stage:
        made.append(Stage(tmp_path, *arguments, **options))
        return made[-1]

    yield stage
    for one in made:
        one.job.free.set()
        if one.runner is not None:
            one.runner.stop()
            assert one.runner.join(10)


def test_a_number_of_epochs_makes_groups_of_exactly_so_many(make: Callable[..., Stage]) -> None:
    stage = make(5)
    runner = stage.start()
    stage.publish(0, 3, 4, 6, 7)
    wait_until(lambda: stage.ranges() == [(0, 4)], 10, "the first group")
    stage.publish(22, complete=24)  # behind by several groups, and one of them is empty
    wait_until(lambda: len(stage.ranges()) == 3, 10, "the others")
    runner.input_ended()
    wait_until(stage.ended, 10, "the end")
    assert stage.job.calls == [
        (Range(0, 4), [0, 3, 4]),
        (Range(5, 9), [6, 7]),
        (Range(10, 24), [22]),
    ]
    assert stage.work.folder.ended() == 24
    assert list(stage.work.folder.epochs()) == []


def test_a_time_hands_over_all_that_is_complete_and_the_end_what_is_left(
    make: Callable[..., Stage],
) -> None:
    stage = make("300 ms")
    runner = stage.start()
    began = time.monotonic()
    stage.publish(0, 1, 2, complete=5)
    assert stage.ranges() == []
    wait_until(lambda: stage.ranges() == [(0, 5)], 10, "the first call")
    assert time.monotonic() - began > 0.2
    stage.publish(7)
    runner.input_ended()
    wait_until(stage.ended, 10, "the end")
    assert stage.ranges() == [(0, 5), (6, 7)]
    assert runner.figures()["behindEpochs"] == 0


def test_an_empty_range_is_not_handed_over(make: Callable[..., Stage]) -> None:
    stage = make("10 ms")
    runner = stage.start()
    runner.advance(50)
    time.sleep(0.1)
    runner.input_ended()
    wait_until(stage.ended, 10, "the end")
    assert stage.job.calls == []
    assert stage.work.folder.ended() == -1


def test_an_attempt_that_failed_is_repeated_with_the_same_rows(make: Callable[..., Stage]) -> None:
    stage = make(1)
    stage.job.fails = [ValueError("one"), OSError("two")]
    runner = stage.start()
    stage.publish(0)
    wait_until(lambda: stage.work.folder.done() == 0, 10, "the result")
    assert stage.job.calls == [(Range(0, 0), [0])] * 3
    wait_until(lambda: runner.failure is None and runner.figures()["jobs"] == 1, 5, "good news")
    assert runner.figures()["failedAttempts"] == 2


def test_a_call_that_failed_for_good_keeps_its_range_and_the_next_begins_with_it(
    make: Callable[..., Stage],
) -> None:
    stage = make(2, retries=1)
    stage.job.fails = [ValueError("bad\nJVM stacktrace:\npages")] * 2
    runner = stage.start()
    stage.publish(0, 1)
    wait_until(lambda: runner.figures()["state"] == "failed", 10, "the failure")
    assert runner.figures()["reason"] == (
        "stage 'fit', epochs 0 to 1, attempt 2 of 2: ValueError: bad; its rows are kept, and "
        "handed over again with the next call or when the flow is started again"
    )
    assert runner.figures()["waitingEpochs"] == 2
    stage.publish(2)
    time.sleep(0.05)
    assert len(stage.job.calls) == 2  # not yet
    stage.publish(3)
    wait_until(lambda: stage.work.folder.done() == 3, 10, "both ranges")
    assert stage.ranges() == [(0, 1)] * 3 + [(2, 3)]
    assert runner.failure is None


def test_a_result_of_another_shape_is_not_tried_again(make: Callable[..., Stage]) -> None:
    stage = make(1)
    stage.job.fails = [SchemaError("no column 'x'")]
    runner = stage.start()
    stage.publish(0)
    wait_until(lambda: runner.failure is not None, 10, "the failure")
    assert isinstance(runner.failure, SchemaError)
    assert len(stage.job.calls) == 1


def test_a_job_that_fails_at_the_end_of_the_input_ends_the_stage_with_its_reason(
    make: Callable[..., Stage],
) -> None:
    stage = make("1 hour", retries=0)
    stage.job.always = ValueError("never")
    runner = stage.start()
    stage.publish(0)
    runner.input_ended()
    wait_until(stage.ended, 10, "the end")
    assert "never" in str(runner.failure)
    assert stage.work.folder.ended() == -1
    assert list(stage.work.folder.epochs()) == [0]


def test_a_run_that_was_stopped_leaves_its_range_to_the_next(make: Callable[..., Stage]) -> None:
    first = make("10 ms")
    first.job.free.clear()
    runner = first.start()
    first.publish(0, 1)
    wait_until(lambda: first.job.calls, 10, "the call")
    runner.stop()
    assert first.job.cancelled == 1
    first.publish(2)
    first.job.free.set()
    wait_until(first.ended, 10, "the end")
    assert first.work.folder.done() == -1
    assert first.work.folder.ended() is None

    second = make("10 ms")
    second.start()
    wait_until(lambda: second.work.folder.done() == 2, 10, "both")
    assert second.job.calls == [(Range(0, 1), [0, 1]), (Range(2, 2), [2])]


def test_rows_that_are_kept_are_given_again(make: Callable[..., Stage]) -> None:
    stage = make(2, keep=3)
    stage.start()
    stage.publish(*range(6))
    wait_until(lambda: stage.work.folder.done() == 5, 10, "the results")
    assert [rows for _, rows in stage.job.calls] == [[0, 1], [1, 2, 3], [3, 4, 5]]
    wait_until(lambda: list(stage.work.folder.epochs()) == [4, 5], 10, "what is forgotten")


@pytest.mark.parametrize("no_merge", [False, True], ids=["merged", "not_merged"])
def test_all_rows_are_given_again_and_kept_in_one_place(
    make: Callable[..., Stage], no_merge: bool
) -> None:
    stage = make(2, keep="all")
    stage.job.no_merge = no_merge
    stage.start()
    stage.publish(*range(6))
    wait_until(lambda: stage.work.folder.done() == 5, 10, "the results")
    assert [rows for _, rows in stage.job.calls] == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
    if not no_merge:
        wait_until(lambda: not stage.work.folder.epochs(), 10, "the last merge")
        assert stage.work.folder.kept() == [(0, 1), (2, 3), (4, 5)]


def test_a_folder_that_cannot_be_used_ends_the_flow(make: Callable[..., Stage]) -> None:
    stage = make(1)
    stage.start()
    (stage.work.folder.path / "begun.json").mkdir()
    stage.publish(0)
    wait_until(lambda: stage.broken, 10, "the word")
    assert "cannot hand over its epochs" in stage.broken[0].message
