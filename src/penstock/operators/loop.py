"""enter, leave, again: how rows get into a loop, out of it, and round it once more.

These stages do nothing to rows.  They change times: entering appends a counter, leaving drops it,
going round adds one to it.  The physical plan dissolves them into the links between other stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.operators.base import Kernel, StatelessOperator

__all__ = ["Again", "Enter", "Leave", "TimeShift"]


class TimeShift(StatelessOperator):
    """A stage that changes nothing but times."""

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        return (inputs[0],)

    def kernel(self) -> Kernel:
        return _unchanged


class Enter(TimeShift):
    """Into a loop: rows of epoch e become rows of iteration 0."""

    kind = "enter"


class Leave(TimeShift):
    """Out of a loop: rows of every iteration become rows of the epoch."""

    kind = "leave"


class Again(TimeShift):
    """Round the loop: rows of iteration i become rows of iteration i + 1, below a bound."""

    kind = "again"

    def __init__(self, schema: pa.Schema, iterations_max: int | None) -> None:
        self.schema = schema
        self.iterations_max = iterations_max

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        return (self.schema,)

    def describe(self) -> str:
        return "" if self.iterations_max is None else f"at most {self.iterations_max} iterations"


def _unchanged(batch: Any) -> Any:
    return batch
