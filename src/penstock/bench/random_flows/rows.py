"""What the sources of drawn flows make, and rows as columns of integers, as models see them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.bench.chaos_flow import difference

__all__ = [
    "EVENT",
    "KEYS",
    "US_PER_ROW",
    "Columns",
    "Difference",
    "Integers",
    "MadeRows",
    "compared",
    "integers",
    "published",
    "taken",
]

Integers = npt.NDArray[np.int64]
Columns = dict[str, Integers]
"""Rows as a model sees them; times in microseconds."""

EVENT = pa.schema(
    {
        "id": pa.int64(),
        "pair": pa.int64(),
        "k": pa.int64(),
        "g": pa.int64(),
        "v": pa.int64(),
        "t": pa.timestamp("us", tz="UTC"),
    }
)
KEYS = 24
"""Values of the column ``k``; ``g`` has a third of them."""
VALUES = 40
US_PER_ROW = 20_000
ORIGIN_US = 1_767_225_600_000_000
IDS_PER_SOURCE = 1_000_000
NULL = -(1 << 62)
"""Stands for null in columns of integers."""


@dataclass(frozen=True)
class MadeRows:
    """Makes rows from offsets; travels to the hosts with the code.

    Event times are up to ``jitter_us`` out of order.  One row in ``repeats`` is a copy of a row up
    to ``lag`` before it.
    """

    number: int
    salt: int
    jitter_us: int
    repeats: int
    lag: int = 40

    def __call__(self, offset: int, n: int, stride: int = 1) -> pa.RecordBatch:
        """Rows ``offset``, ``offset + stride`` and so on."""
        columns = self.columns(np.arange(offset, offset + n * stride, stride, dtype=np.int64))
        times = pa.array(columns.pop("t")).view(EVENT.field("t").type)
        return pa.record_batch([*columns.values(), times], schema=EVENT)

    def columns(self, offsets: Integers) -> Columns:
        """The rows at some offsets."""
        back = 1 + self._below(offsets, 1, self.lag)
        copied = self._below(offsets, 2, self.repeats) == 0
        rows = np.where(copied, np.maximum(offsets - back, 0), offsets)
        return {
            "id": rows + self.number * IDS_PER_SOURCE,
            "pair": rows // 2,
            "k": self._below(rows, 3, KEYS),
            "g": self._below(rows, 4, KEYS // 3),
            "v": 1 + self._below(rows, 5, VALUES),
            "t": ORIGIN_US + rows * US_PER_ROW + self._below(rows, 6, self.jitter_us),
        }

    @property
    def delay_us(self) -> int:
        """How long a watermark must wait so that no row is late."""
        return self.jitter_us + (self.lag + 1) * US_PER_ROW + 1_000_000

    def _below(self, numbers: Integers, salt: int, below: int) -> Integers:
        """Numbers from 0 to ``below - 1`` that look random, the same ones for the same numbers."""
        mixed = numbers.astype(np.uint64) + np.uint64((self.salt * 16 + salt) << 40)
        for shift, factor in ((33, 0xFF51AFD7ED558CCD), (29, 0xC4CEB9FE1A85EC53)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return ((mixed ^ (mixed >> np.uint64(32))) % np.uint64(below)).astype(np.int64)


@dataclass(frozen=True)
class Difference:
    """How a sink differs from its model."""

    rows: int
    missing: int
    extra: int

    @property
    def none(self) -> bool:
        """Whether it does not."""
        return not (self.missing or self.extra)


def compared(expected: Columns, found: Columns) -> Difference:
    """The rows that are missing and those that are too many, as multisets."""
    outcome = difference(list(expected.values()), [found[name] for name in expected])
    return Difference(outcome.rows, outcome.lost, outcome.duplicated)


def taken(columns: Columns, which: npt.NDArray[np.bool_] | Integers) -> Columns:
    """Some of the rows, by a mask or by their numbers."""
    return {name: column[which] for name, column in columns.items()}


def published(folder: Path, schema: pa.Schema) -> pa.Table:
    """What a Parquet sink has published."""
    files = sorted(folder.glob("epoch=*/*.parquet"))
    tables = [pq.ParquetFile(file).read() for file in files]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def integers(table: pa.Table) -> Columns:
    """A table's columns as integers; a window becomes its start and end, null a number of its own.

    >>> integers(pa.table({"a": [1, None]}))["a"].tolist() == [1, NULL]
    True
    """
    found: Columns = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        parts = {name: column}
        if pa.types.is_struct(column.type):
            parts = {field.name: column.field(field.name) for field in column.type}
        for part, values in parts.items():
            found[part] = values.cast(pa.int64()).fill_null(NULL).to_numpy(zero_copy_only=False)
    return found
