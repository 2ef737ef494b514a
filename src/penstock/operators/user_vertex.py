"""A stage of the user's own Vertex."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.api.vertex import Vertex
from penstock.errors import GraphError, SchemaError, UsageError
from penstock.operators.base import Exchange, Forward, Hash, Operator, State
from penstock.operators.columns import require_column, require_hashable

__all__ = ["UserVertex"]


class UserVertex(Operator):
    """One vertex of ``factory()`` per node; ``partitionBy`` names key columns per input."""

    kind = "vertex"
    stateful = True
    foreign = True

    def __init__(
        self,
        factory: Callable[[], Vertex],
        outputs: tuple[pa.Schema, ...],
        partitionBy: Sequence[Sequence[str] | None] | None = None,
    ) -> None:
        if not callable(factory):
            raise GraphError(
                f"vertex: expected a Vertex subclass or a function that makes one, got {factory!r}"
            )
        for schema in outputs:
            if not isinstance(schema, pa.Schema):
                raise SchemaError(f"vertex: an output is given as a pyarrow.Schema, got {schema!r}")
        self.factory = factory
        self.outputs = outputs
        self.partition_by = None if partitionBy is None else [_keys(keys) for keys in partitionBy]

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        for schema, keys in zip(inputs, self._partition_by(len(inputs)), strict=True):
            for column in keys:
                require_hashable(require_column(schema, column, "partitionBy"), "partitionBy")
        return self.outputs

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return tuple(Hash(keys) if keys else Forward() for keys in self._partition_by(len(inputs)))

    @property
    def state(self) -> State:
        """As the class (or a partial of it, or a function with such attributes) says."""
        made = self._made
        if getattr(made, "stateless", False):
            return "none"
        return "ordered" if getattr(made, "orderSensitive", True) else "unordered"

    @property
    def asks(self) -> bool:
        """As the class says, or as its methods look."""
        made = self._made
        said = getattr(made, "usesOutside", None)
        if said is not None:
            return bool(said)
        classes = getattr(made, "__mro__", ())
        own = [vars(kind) for kind in classes[: classes.index(Vertex)]] if Vertex in classes else []
        return any(
            name in getattr(getattr(method, "__code__", None), "co_names", ())
            for attributes in own
            for method in attributes.values()
            for name in ("now", "random", "call")
        )

    @property
    def repeatable(self) -> bool:
        return bool(getattr(self._made, "repeatable", True))

    @property
    def _made(self) -> Any:
        """What makes vertices: their class, as a rule."""
        made: Any = self.factory
        while isinstance(made, partial):
            made = made.func
        return made

    def vertex(self) -> Vertex:
        made = self.factory()
        if not isinstance(made, Vertex):
            raise UsageError(f"vertex: {self.describe()} made {made!r}, which is not a Vertex")
        return made

    def describe(self) -> str:
        return getattr(self.factory, "__qualname__", type(self.factory).__name__)

    def _partition_by(self, inputs: int) -> list[tuple[str, ...]]:
        keys: list[tuple[str, ...]] = (
            [()] * inputs if self.partition_by is None else self.partition_by
        )
        if len(keys) != inputs:
            raise GraphError(
                f"vertex: partitionBy has {len(keys)} entries for {inputs} inputs; give one list "
                "of columns (or None) per input"
            )
        return keys


def _keys(keys: Sequence[str] | None) -> tuple[str, ...]:
    if keys is None:
        return ()
    return (keys,) if isinstance(keys, str) else tuple(keys)
