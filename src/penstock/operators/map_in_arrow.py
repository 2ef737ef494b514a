"""mapInArrow: a user's function from an iterator of record batches to an iterator of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from penstock.api.vertex import Time, Vertex, VertexContext
from penstock.errors import FunctionError, SchemaError, UsageError
from penstock.expressions import describe_expression, parse_schema
from penstock.operators.base import Kernel, StatelessOperator
from penstock.operators.conform import Conform, kind_of
from penstock.wire.frames import read_batch, write_batch

__all__ = ["BatchFunction", "MapInArrow"]

BatchFunction = Callable[..., Iterator[pa.RecordBatch]]
"""Of an iterator of record batches and, if it takes two arguments, a :class:`VertexContext`."""


class MapInArrow(StatelessOperator):
    """Calls ``func`` once per message; what it yields is sent on as one batch.

    Columns are matched by name and, where no value changes, cast to the declared type.
    """

    kind = "map_in_arrow"

    def __init__(
        self, func: BatchFunction, schema: pa.Schema | str, repeatable: bool = True
    ) -> None:
        if not callable(func):
            raise SchemaError(
                "mapInArrow: expected a function from an iterator of record batches to another, "
                f"got {func!r}"
            )
        self.func = func
        self.schema = parse_schema(schema, what="mapInArrow")
        self._repeatable = repeatable
        self.takes_context = _parameters(func) > 1
        if self.takes_context and not repeatable:
            raise UsageError(
                "mapInArrow: a function with a context is repeatable; one that is not has no use "
                "for it: leave out the second argument, or repeatable=False"
            )

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        return (self.schema,)

    @property
    def asks(self) -> bool:
        return self.takes_context or not self._repeatable

    def vertex(self) -> Vertex:
        return _MapVertex(self, self._repeatable)

    def kernel(self) -> Kernel:
        return self.bound(self.func)

    def bound(self, func: BatchFunction, stage: str | None = None) -> Kernel:
        """A function of a batch to a batch that calls ``func`` and checks what it gives."""
        name = f"mapInArrow: {self.describe()}"
        if stage is not None:
            name = f"stage {stage!r}: {name}"
        conform = Conform(self.schema, name)
        empty = pa.RecordBatch.from_pylist([], schema=self.schema)

        def mapped(batch: pa.RecordBatch) -> pa.RecordBatch:
            made = func(iter((batch,)))
            try:
                results = iter(made)
            except TypeError:
                raise FunctionError(
                    f"{name} returned {kind_of(made)}; it must yield record batches"
                ) from None
            parts = [conform(part) for part in results]
            if len(parts) == 1:
                return parts[0]
            return pa.concat_batches(parts) if parts else empty

        return mapped

    def describe(self) -> str:
        return describe_expression(self.func)


class _MapVertex(Vertex):
    """Calls the function, with its context; what one that is not repeatable made is noted."""

    def __init__(self, operator: MapInArrow, repeatable: bool) -> None:
        self._operator = operator
        self._repeatable = repeatable

    def open(self, context: VertexContext) -> None:
        super().open(context)
        func, stage = self._operator.func, context.place.stage
        if self._operator.takes_context:
            self._kernel = self._operator.bound(lambda batches: func(batches, context), stage)
        else:
            self._kernel = self._operator.bound(func, stage)

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        if self._repeatable:
            made = self._kernel(batch)
        else:
            noted = self.call(lambda: write_batch(self._kernel(batch)).to_pybytes())
            made = read_batch(pa.py_buffer(noted), self._operator.schema)
        self.sendBy(0, made, time)


def _parameters(func: BatchFunction) -> int:
    """How many arguments a function wants."""
    try:
        parameters = inspect.signature(func).parameters.values()
    except (TypeError, ValueError):
        return 1
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in places and p.default is p.empty for p in parameters)
