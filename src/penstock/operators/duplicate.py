"""duplicate: every row several times, the copies next to each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import SettingsError
from penstock.operators.base import Kernel, StatelessOperator
from penstock.operators.columns import identity

__all__ = ["Duplicate"]


class Duplicate(StatelessOperator):
    """Rows ``copies`` times."""

    kind = "duplicate"

    def __init__(self, copies: int) -> None:
        if not isinstance(copies, int) or isinstance(copies, bool) or copies < 1:
            raise SettingsError(f"duplicate: copies is a whole number from 1 up, got {copies!r}")
        self.copies = copies

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        return (inputs[0],)

    def kernel(self) -> Kernel:
        copies = self.copies

        def repeated(batch: pa.RecordBatch) -> pa.RecordBatch:
            return batch.take(pa.array(np.repeat(np.arange(batch.num_rows), copies)))

        return repeated if copies > 1 else identity

    def describe(self) -> str:
        return f"{self.copies} times"
