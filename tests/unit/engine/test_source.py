"""When a source's epochs end, what is recorded of them, and how they are repeated."""

from collections import deque
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.base import Position, Reader
from penstock.core.progress.marks import EPOCH_END, WATERMARK_END
from penstock.core.time import Time
from penstock.engine.host.clock import EpochClock
from penstock.engine.host.source import SourceDriver, SourceRecord
from penstock.errors import SchemaError, SourceError

MS = 1000
INTERVAL = 100 * MS
START = 1_000_000 * MS + INTERVAL // 2
"""A moment at which an epoch begins."""


class Numbers(Reader):
    """Counts up; ``ready`` says how far it may read, ``end`` where it is used up."""

    def __init__(self, end: int = 1 << 30, position: int = 0) -> None:
        self.next = position
        self.ready = 0
        self.end = end
        self.entry: Any = None
        self.closed = False
        self.error: Exception | None = None

    def read(self, rows_max: int, now_us: int, until: Position = None) -> pa.RecordBatch | None:
        if self.error is not None:
            raise self.error
        limit = min(self.ready, self.end) if until is None else until
        n = min(rows_max, limit - self.next)
        if n <= 0:
            return None
        batch = pa.record_batch({"n": list(range(self.next, self.next + n))})
        self.next += n
        return batch

    def position(self) -> Position:
        return self.next

    def journal(self) -> Any:
        entry, self.entry = self.entry, None
        return entry

    def exhausted(self) -> bool:
        return self.next >= self.end

    def wait_s(self, now_us: int) -> float:
        return 0.02

    def close(self) -> None:
        self.closed = True


class Bench:
    """A driver, and everything that it did, in order."""

    def __init__(self, reader: Numbers, log: bool = True, **options: Any) -> None:
        self.did: list[Any] = []
        self.seen: int | None = None
        self.size_bytes = 0
        self.reader = reader
        self.driver = SourceDriver(
            "numbers",
            "numbers[0]",
            reader,
            self,  # type: ignore[arg-type]
            options.pop("clock", EpochClock.starting(7, START, INTERVAL)),
            lambda epoch, watermark, now: self.did.append(("cut", epoch, watermark)),
            self if log else None,
            **options,
        )

    # the chain
    def emit(self, batch: pa.RecordBatch, time: Time) -> None:
        self.did.append(("rows", time.epoch, batch.column("n").to_pylist()))

    def seen_us(self) -> int | None:
        return self.seen

    # the log
    def append(self, record: dict[str, Any], sync: bool = True) -> None:
        self.did.append(("record", record["epoch"], record["position"], record["journal"]))

    def compact(self, after_epoch: int | None) -> None:
        self.did.append(("compact", after_epoch))

    def step(self, ms: float = 0) -> list[Any]:
        """One step so long after the start; what it did."""
        self.did.clear()
        self.driver.step(round(START + ms * MS))
        return list(self.did)


def test_an_epoch_ends_with_the_tick_and_is_recorded_before_its_end_leaves() -> None:
    bench = Bench(Numbers())
    bench.reader.ready = 3
    assert bench.step(10) == [("rows", 7, [0, 1, 2])]
    assert bench.step(99) == []
    assert bench.step(100) == [("record", 7, 3, None), ("cut", 7, None)]
    assert bench.driver.epoch == 8


def test_rows_read_together_with_the_tick_belong_to_the_epoch_that_ends() -> None:
    bench = Bench(Numbers())
    bench.reader.ready = 2
    assert bench.step(130) == [("rows", 7, [0, 1]), ("record", 7, 2, None), ("cut", 7, None)]


def test_an_epoch_without_rows_is_cut_but_not_recorded() -> None:
    bench = Bench(Numbers())
    assert bench.step(100) == [("cut", 7, None)]
    assert bench.step(200) == [("cut", 8, None)]


def test_a_journal_entry_is_recorded_even_without_rows() -> None:
    bench = Bench(Numbers())
    bench.reader.entry = {"file": "a"}
    assert bench.step(100) == [("record", 7, 0, {"file": "a"}), ("cut", 7, None)]


def test_epochs_that_went_by_unnoticed_are_skipped() -> None:
    bench = Bench(Numbers())
    assert bench.step(570) == [("cut", 7, None)]
    assert bench.driver.epoch == 12
    assert bench.step(600) == [("cut", 12, None)]


def test_nothing_is_done_while_nothing_is_there() -> None:
    bench = Bench(Numbers())
    assert bench.step(10) == []
    assert bench.driver.wait_s() == 0.02
    assert bench.step(95) == []
    assert bench.driver.wait_s() == pytest.approx(0.005)


def test_without_a_log_epochs_are_cut_all_the_same() -> None:
    bench = Bench(Numbers(), log=False)
    bench.reader.ready = 1
    assert bench.step(100) == [("rows", 7, [0]), ("cut", 7, None)]


def test_a_batch_has_at_most_so_many_rows() -> None:
    bench = Bench(Numbers(), rows_max=2)
    bench.reader.ready = 3
    assert bench.step(1) == [("rows", 7, [0, 1])]
    assert bench.step(2) == [("rows", 7, [2])]


def test_an_input_that_is_used_up_ends_the_epoch_and_the_stream() -> None:
    bench = Bench(Numbers(end=2))
    bench.reader.ready = 5
    assert bench.step(1) == [
        ("rows", 7, [0, 1]),
        ("record", 7, 2, None),
        ("cut", 7, WATERMARK_END),
        ("cut", EPOCH_END, WATERMARK_END),
    ]
    assert bench.reader.closed
    assert bench.driver.ended
    assert bench.step(500) == []


def test_stop_reads_once_more_and_leaves_event_time_where_it_is() -> None:
    bench = Bench(Numbers())
    bench.reader.ready = 1
    bench.driver.stop()
    assert bench.step(1) == [
        ("rows", 7, [0]),
        ("record", 7, 1, None),
        ("cut", 7, None),
        ("cut", EPOCH_END, None),
    ]
    assert bench.reader.closed


# -- early cuts ------------------------------------------------------------------------------------


def test_an_epoch_ends_at_once_when_event_time_passes_the_grid() -> None:
    bench = Bench(Numbers(), grid_us=1000)
    bench.seen = 900
    bench.reader.ready = 1
    assert bench.step(1) == [("rows", 7, [0])]
    bench.seen = 1001
    bench.reader.ready = 2
    assert bench.step(2) == [("rows", 7, [1]), ("record", 7, 2, None), ("cut", 7, None)]
    assert bench.driver.epoch == 8


def test_the_tick_does_not_end_again_what_was_ended_early() -> None:
    bench = Bench(Numbers(), grid_us=1000)
    bench.seen = 900
    bench.step(1)
    bench.seen = 1001
    assert bench.step(2) == [("cut", 7, None)]
    assert bench.step(100) == []
    assert bench.step(199) == []
    assert bench.step(200) == [("cut", 8, None)]


def test_an_epoch_is_ended_early_at_most_once_per_tick() -> None:
    bench = Bench(Numbers(), grid_us=1000)
    bench.seen = 900
    bench.step(1)
    bench.seen = 1001
    assert bench.step(2) == [("cut", 7, None)]
    bench.seen = 2001
    assert bench.step(3) == []
    assert bench.step(100) == [("cut", 8, None)]
    assert bench.driver.epoch == 9


def test_the_grid_counts_from_the_first_row() -> None:
    bench = Bench(Numbers(), grid_us=1000)
    bench.seen = 123_456
    assert bench.step(1) == []
    bench.seen = 123_999
    assert bench.step(2) == []


def test_shards_that_pass_the_grid_shortly_apart_number_their_epochs_alike() -> None:
    """Windows end at round times and ticks lie between them: all shards cut within one tick."""
    cuts = []
    for late_ms in (0, 3, 20):
        bench = Bench(Numbers(), grid_us=INTERVAL)
        found: list[tuple[int, int]] = []
        for ms in range(1000):
            # Event time is the wall clock, a little behind.
            bench.seen = START + (ms - late_ms) * MS
            for _, epoch, _ in bench.step(ms):
                found.append((epoch, bench.seen // INTERVAL))
        cuts.append(dict(found))
    assert cuts[0] == cuts[1] == cuts[2]


# -- replay ----------------------------------------------------------------------------------------


def test_recorded_epochs_are_read_again_exactly_as_far_as_they_went() -> None:
    records = deque([SourceRecord(3, 2), SourceRecord(5, 7)])
    bench = Bench(Numbers(), rows_max=3, replay=records)
    bench.reader.ready = 8
    did = [bench.step(ms) for ms in range(6)]
    assert did == [
        [("rows", 3, [0, 1])],
        [("cut", 3, None)],
        [("rows", 5, [2, 3, 4])],
        [("rows", 5, [5, 6])],
        [("cut", 5, None)],
        [("rows", 7, [7])],
    ]


def test_what_was_recorded_is_not_recorded_again() -> None:
    bench = Bench(Numbers(), replay=deque([SourceRecord(3, 2)]))
    bench.reader.entry = "known"
    bench.step(0)
    assert bench.step(1) == [("cut", 3, None)]
    assert bench.step(100) == [("cut", 7, None)]


def test_a_replay_goes_before_the_tick_and_before_a_stop() -> None:
    bench = Bench(Numbers(), replay=deque([SourceRecord(3, 1)]))
    bench.driver.stop()
    assert bench.step(999) == [("rows", 3, [0])]
    assert bench.step(999) == [("cut", 3, None)]
    assert bench.step(999) == [("cut", 7, None), ("cut", EPOCH_END, None)]


# -- errors ----------------------------------------------------------------------------------------


def test_an_error_of_the_reader_names_source_node_and_epoch() -> None:
    bench = Bench(Numbers())
    bench.reader.error = RuntimeError("disk on fire")
    with pytest.raises(SourceError, match="disk on fire") as caught:
        bench.step(1)
    parameters = caught.value.parameters
    assert (parameters["stage"], parameters["node"], parameters["epoch"]) == (
        "numbers",
        "numbers[0]",
        7,
    )
    assert "disk on fire" in parameters["traceback"]


def test_an_error_of_our_own_kind_keeps_its_kind_and_is_told_where_it_was() -> None:
    bench = Bench(Numbers())
    bench.reader.error = SchemaError("wrong type", column="n")
    with pytest.raises(SchemaError) as caught:
        bench.step(1)
    assert caught.value.parameters == {
        "column": "n",
        "stage": "numbers",
        "node": "numbers[0]",
        "epoch": 7,
    }
