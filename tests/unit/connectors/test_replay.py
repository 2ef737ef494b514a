"""Reading again between recorded positions gives the same rows, however the reads are cut."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.base import Reader, Source, SourceContext
from penstock.connectors.files import Files
from penstock.connectors.generate import Generate
from penstock.connectors.memory import MemorySource

SCHEMA = pa.schema({"x": pa.int64(), "s": pa.string()})


def rows(start: int, n: int, stride: int = 1) -> pa.RecordBatch:
    x = np.arange(start, start + n * stride, stride)
    return pa.record_batch({"x": x, "s": [f"s{value}" for value in x]}, schema=SCHEMA)


def contiguous(offset: int, n: int) -> pa.RecordBatch:
    return rows(offset, n)


def strided(offset: int, n: int, stride: int) -> pa.RecordBatch:
    return rows(offset, n, stride)


@dataclass
class Run:
    """What an engine would have recorded: the rows, position and journal of each epoch."""

    epochs: list[list[int]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)

    def context(self, shard: int, shards: int, at: int, started_us: int) -> SourceContext:
        kept = json.loads(json.dumps(self.records))
        return SourceContext(
            shard,
            shards,
            position=kept[at]["position"] if at >= 0 else None,
            journal=[record["journal"] for record in kept if record["journal"] is not None],
            available_now=True,
            started_us=started_us,
        )


def live(reader: Reader, run: Run, rng: random.Random, epochs: int, now_us: int) -> int:
    """Cut some epochs, of reads of any size; returns the clock."""
    for _ in range(epochs):
        values: list[int] = []
        for _ in range(rng.randrange(6)):
            batch = reader.read(rng.choice([1, 3, 50, 1000]), now_us)
            if batch is None:
                now_us += int(reader.wait_s(now_us) * 1e6) + 1
            else:
                assert batch.schema.equals(SCHEMA)
                values += batch.column(0).to_pylist()
        run.epochs.append(values)
        run.records.append({"position": reader.position(), "journal": reader.journal()})
    return now_us


def replay(reader: Reader, run: Run, first: int, rng: random.Random) -> None:
    """Read the recorded epochs again and compare."""
    for epoch in range(first, len(run.records)):
        until = json.loads(json.dumps(run.records[epoch]["position"]))
        values: list[int] = []
        while (batch := reader.read(rng.choice([1, 7, 100, 5000]), 0, until)) is not None:
            assert batch.num_rows
            values += batch.column(0).to_pylist()
        assert values == run.epochs[epoch]
        reader.journal()


def check(make: Callable[[], Source], shards: int, seed: int, expected: list[int]) -> None:
    """Runs that stop and start at random read every row once, and repeat themselves."""
    rng = random.Random(seed)
    seen: list[int] = []
    for shard in range(shards):
        run, started_us = Run(), 1_000_000
        reader = make().open(SourceContext(shard, shards, available_now=True))
        now_us = live(reader, run, rng, rng.randrange(1, 5), started_us)
        for restart in range(3):
            reader.close()
            at = rng.randrange(-1, len(run.records))
            now_us += rng.randrange(10_000_000)
            started_us = started_us if restart == 1 else now_us
            reader = make().open(run.context(shard, shards, at, started_us))
            replay(reader, run, at + 1, rng)
            now_us = live(reader, run, rng, rng.randrange(1, 4), now_us)
        while not reader.exhausted():
            now_us = live(reader, run, rng, 1, now_us)
        reader.close()
        seen += [value for epoch in run.epochs for value in epoch]
    assert sorted(seen) == sorted(expected)


@given(
    seed=st.integers(0, 2**32),
    shards=st.integers(1, 4),
    function=st.sampled_from([contiguous, strided]),
    count=st.integers(0, 3000),
    fixed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_generate_repeats_itself(
    seed: int, shards: int, function: Callable[..., pa.RecordBatch], count: int, fixed: bool
) -> None:
    rng = random.Random(seed + 1)
    rates = [rng.choice([None, 900.0, 20_000.0, 5_000_000.0]) for _ in range(4)]
    opened = iter(range(4 * shards))

    def make() -> Source:
        rate = rates[0 if fixed else next(opened) % 4]  # every run has another rate
        return Generate(function, rate=rate, rows=count)

    check(make, shards, seed, list(range(count)))


def fill(directory: Path, format: str, sizes: list[int]) -> int:
    """Files with consecutive numbers; some in subdirectories, some empty."""
    start = 0
    for number, size in enumerate(sizes):
        path = directory / f"d{number % 3}" / f"f{number:03d}.{format}"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_batches([rows(start, size)])
        if format == "parquet":
            pq.write_table(table, path, row_group_size=37)
        elif format == "csv":
            pyarrow.csv.write_csv(table, path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        os.utime(path, ns=(0, number % 4))
        start += size
    return start


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_files_repeat_themselves(format: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    @given(
        seed=st.integers(0, 2**32),
        shards=st.integers(1, 3),
        sizes=st.lists(st.integers(0, 200), max_size=8),
    )
    @settings(max_examples=40, deadline=None)
    def run(seed: int, shards: int, sizes: list[int]) -> None:
        directory = tmp_path_factory.mktemp("in")
        count = fill(directory, format, sizes)
        check(
            lambda: Files(directory, format=format, schema=SCHEMA),
            shards,
            seed,
            list(range(count)),
        )

    run()


@given(seed=st.integers(0, 2**32), sizes=st.lists(st.integers(0, 100), max_size=8))
@settings(max_examples=60, deadline=None)
def test_memory_repeats_itself_while_the_process_lives(seed: int, sizes: list[int]) -> None:
    source = MemorySource(SCHEMA)
    start = 0
    for size in sizes:
        source.push(rows(start, size))
        start += size
    source.close()
    check(lambda: source, 1, seed, list(range(start)))
