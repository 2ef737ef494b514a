"""File formats: Parquet by row group and page, CSV and JSON lines by block.

Memory stays flat whatever the file's size; rows come in the file's order, without threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.file_format import (
    Count,
    FileFormat,
    check_names,
    conform,
    ignored,
    opened,
    plain,
)
from penstock.connectors.text_formats import COMPRESSED, Csv, JsonLines

__all__ = ["FORMATS", "FileFormat", "SparkParquet", "format_of"]

_BATCH_ROWS = 65_536


class Parquet(FileFormat):
    """Parquet files."""

    name = "parquet"
    extensions = (".parquet", ".parq")
    int96_unit: ClassVar[str | None] = None
    """The unit of timestamps in the old form with 96 bits, if it is known."""

    def schema(self, path: str) -> pa.Schema:
        return plain(pq.read_schema(opened(path)))

    def blocks(
        self, path: str, schema: pa.Schema, exact: bool, count: Count = ignored
    ) -> Iterator[pa.RecordBatch]:
        return self.batches(path, schema, exact, 0, count)

    def batches(
        self, path: str, schema: pa.Schema, exact: bool, skip: int, count: Count = ignored
    ) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(
            opened(path),
            pre_buffer=False,
            buffer_size=1 << 20,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit=self.int96_unit,
        ) as file:
            check_names(file.schema_arrow.names, schema, exact, path)
            columns = None if exact else list(schema.names)
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if skip >= rows:
                    skip -= rows
                    continue
                for batch in file.iter_batches(
                    batch_size=_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False
                ):
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    yield conform(batch.slice(skip), schema, exact, path)
                    skip = 0


class SparkParquet(Parquet):
    """Parquet files that Spark wrote, whose timestamps are microseconds in 96 bits by default."""

    int96_unit = "us"


FORMATS: dict[str, type[FileFormat]] = {kind.name: kind for kind in (Parquet, Csv, JsonLines)}


def format_of(path: str) -> str | None:
    """The format that a file's name speaks of, compressed or not.

    >>> format_of("a/b.jsonl.gz"), format_of("README")
    ('json', None)
    """
    bare = COMPRESSED.sub("", path.lower())
    for name, kind in FORMATS.items():
        if bare.endswith(kind.extensions):
            return name
    return None
