"""gather: all rows to one shard."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.operators.base import Exchange, Kernel, Single, StatelessOperator
from penstock.operators.columns import identity

__all__ = ["Gather"]


class Gather(StatelessOperator):
    """Rows as they are, in one shard."""

    kind = "gather"

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        return (inputs[0],)

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return (Single(),)

    def kernel(self) -> Kernel:
        return identity
