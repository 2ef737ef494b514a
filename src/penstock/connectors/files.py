"""Rows of files in a directory that grows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.connectors.base import Reader, Source, SourceContext

__all__ = ["Files"]


class Files(Source):
    """Parquet, CSV or JSON-lines files."""

    def __init__(
        self,
        path: str,
        format: str | None = None,
        schema: pa.Schema | str | None = None,
        shards: int | None = None,
        **options: Any,
    ) -> None:
        raise NotImplementedError

    def shards(self, wanted: int) -> int:
        raise NotImplementedError

    def open(self, context: SourceContext) -> Reader:
        raise NotImplementedError
