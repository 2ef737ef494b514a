"""The generator keeps to its rate, deals rows out evenly, and refuses functions that misbehave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.connectors.base import SourceContext
from penstock.connectors.generate import Generate
from penstock.errors import SchemaError, SettingsError, SourceError


def numbers(offset: int, n: int) -> pa.RecordBatch:
    return pa.record_batch({"x": np.arange(offset, offset + n)})


def every(offset: int, n: int, stride: int) -> pa.RecordBatch:
    return pa.record_batch({"x": np.arange(offset, offset + n * stride, stride)})


class Calls:
    """Counts how often the function is asked."""

    def __init__(self, function: Any) -> None:
        self.function, self.count = function, 0

    def contiguous(self, offset: int, n: int) -> pa.RecordBatch:
        self.count += 1
        return self.function(offset, n)


@pytest.mark.parametrize("function", [numbers, every])
@pytest.mark.parametrize("rate", [10.0, 1000.0, 1e6, 1.5e7])
def test_rate_is_kept_by_all_shards_together(function: Any, rate: float) -> None:
    shards, seconds = 3, 0.5
    source = Generate(function, rate=rate)
    readers = [source.open(SourceContext(s, shards, started_us=1000)) for s in range(shards)]
    made: list[int] = []
    for reader in readers:
        now_us = 1000
        while now_us < 1000 + seconds * 1e6:
            batch = reader.read(65_536, now_us)
            if batch is None:
                wait = reader.wait_s(now_us)
                assert 0 < wait <= 0.1
                now_us += int(wait * 1e6) + 1
            else:
                made.append(batch.num_rows)
    assert sum(made) == pytest.approx(rate * seconds, rel=0.02, abs=shards)


@pytest.mark.parametrize("function", [numbers, every])
def test_shards_advance_together_in_what_grows_with_the_offset(function: Any) -> None:
    """At any moment the greatest offsets of the shards are a few milliseconds of rows apart."""
    rate, shards = 1000.0, 4
    source = Generate(function, rate=rate)
    readers = [source.open(SourceContext(s, shards, started_us=0)) for s in range(shards)]
    last = [0] * shards
    for now_us in range(50_000, 1_000_000, 5000):
        for index, reader in enumerate(readers):
            while (batch := reader.read(1000, now_us)) is not None:
                last[index] = batch.column(0)[-1].as_py()
        assert now_us / 1000 - min(last) <= 2 * shards + 2


def test_batches_grow_with_what_is_due_in_one_call_each() -> None:
    calls = []

    def strided(offset: int, n: int, stride: int) -> pa.RecordBatch:
        calls.append(n)
        return every(offset, n, stride)

    source = Generate(strided, rate=1_000_000)
    reader = source.open(SourceContext(0, 2, started_us=0))
    calls.clear()
    assert reader.read(65_536, 0) is None
    assert reader.read(65_536, 2_000).num_rows == 1000
    assert reader.read(65_536, 82_000).num_rows == 40_000
    assert reader.read(65_536, 1_000_000).num_rows == 65_536
    assert calls == [1000, 40_000, 65_536]


def test_small_blocks_are_joined_large_ones_are_not_copied() -> None:
    small = Calls(numbers)
    source = Generate(small.contiguous, rate=10_000)
    assert source.block_rows() == 10
    reader = source.open(SourceContext(1, 2, started_us=0))
    assert reader.read(65_536, 1_000_000).num_rows == 5000
    large = Calls(numbers)
    reader = Generate(large.contiguous, rate=40e6).open(SourceContext(1, 2, started_us=0))
    large.count = 0
    assert reader.read(65_536, 1_000_000).num_rows == 40_000
    assert large.count == 1


def test_new_run_goes_on_from_now_without_a_burst() -> None:
    source = Generate(every, rate=1000)
    hour_us = 3_600_000_000
    first = source.open(SourceContext(0, 2, started_us=0))
    first.read(1000, 1_000_000)
    position, journal = first.position(), [first.journal()]
    assert position == 500
    again = source.open(SourceContext(0, 2, position=position, journal=journal, started_us=hour_us))
    assert again.read(1000, hour_us) is None
    assert again.read(1000, hour_us + 100_000).num_rows == 50


def test_reader_opened_again_within_a_run_catches_up() -> None:
    """A restarted host must not stay behind its siblings in event time for ever."""
    source = Generate(every, rate=1000)
    first = source.open(SourceContext(0, 2, started_us=0))
    first.read(1000, 1_000_000)
    context = SourceContext(
        0, 2, position=first.position(), journal=[first.journal()], started_us=0
    )
    again = source.open(context)
    assert again.read(10_000, 5_000_000).num_rows == 2000
    assert again.journal() is None


def test_replay_ignores_the_rate_and_changed_rates_do_not_move_rows() -> None:
    slow = Generate(numbers, rate=2000).open(SourceContext(1, 3, started_us=0))
    batch = slow.read(1000, 600_000)
    position, journal = slow.position(), [slow.journal()]
    fast = Generate(numbers, rate=1e7)
    reader = fast.open(SourceContext(1, 3, journal=journal, started_us=5))
    again = [reader.read(64, 0, position) for _ in range(position // 64 + 1)]
    assert pa.concat_batches(again).equals(batch)
    assert reader.read(64, 0, position) is None


def test_end_of_the_rows() -> None:
    source = Generate(numbers, rate=1000, rows=10)
    reader = source.open(SourceContext(0, 1, started_us=0))
    assert not reader.exhausted()
    assert reader.read(100, 10**9).num_rows == 10
    assert reader.exhausted()
    assert reader.read(100, 2 * 10**9) is None
    nothing = Generate(numbers, rows=0).open(SourceContext(0, 1))
    assert nothing.exhausted()
    assert nothing.read(10, 0) is None


def test_changed_number_of_shards_is_refused() -> None:
    source = Generate(numbers)
    reader = source.open(SourceContext(0, 2))
    reader.read(10, 0)
    context = SourceContext(0, 3, position=reader.position(), journal=[reader.journal()])
    with pytest.raises(SourceError, match="2 shards, now there are 3"):
        source.open(context)
    with pytest.raises(SourceError, match="without a stride"):
        Generate(every).open(
            SourceContext(
                0, 2, position=10, journal=[{"block": 65536, "shards": 2, "strided": False}]
            )
        )


def test_schema_is_inferred_from_no_row_or_one() -> None:
    def needs_rows(offset: int, n: int) -> pa.RecordBatch:
        return pa.record_batch({"first": [[offset][0]] if n else [][0]})

    assert Generate(numbers).schema == pa.schema({"x": pa.int64()})
    assert Generate(every).schema == pa.schema({"x": pa.int64()})
    assert Generate(needs_rows).schema == pa.schema({"first": pa.int64()})


def test_functions_that_misbehave_are_refused() -> None:
    def raises(offset: int, n: int) -> pa.RecordBatch:
        raise ValueError("no such luck")

    def grows(offset: int, n: int) -> pa.RecordBatch:
        return numbers(offset, n + 1)

    def changes(offset: int, n: int) -> pa.RecordBatch:
        return numbers(offset, n) if n < 2 else pa.record_batch({"y": np.arange(n)})

    with pytest.raises(SourceError, match="ValueError for .0, 1.: no such luck"):
        Generate(raises)
    with pytest.raises(SchemaError, match="got a dict"):
        Generate(lambda offset, n: {"x": [1]})  # type: ignore[arg-type, return-value]
    with pytest.raises(SourceError, match="asked for 5 rows from offset 0, the function gave 6"):
        Generate(grows).open(SourceContext(0, 1)).read(5, 0)
    with pytest.raises(SchemaError, match=r"gave columns \[y\] where \[x: int64\]"):
        Generate(changes).open(SourceContext(0, 1)).read(5, 0)


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"rate": 0}, {"rate": -1.0}, {"rows": -1}, {"shards": 0}):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            Generate(numbers, **wrong)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="availableNow never ends without rows"):
        Generate(numbers).open(SourceContext(0, 1, available_now=True))
