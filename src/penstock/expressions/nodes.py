"""The compiled form of an expression: a small tree of typed, vectorised operations.

A node knows its Arrow type and evaluates a record batch to an array of the batch's length, or to a
scalar that stands for such an array.  Nodes are plain picklable data: kernels are functions of
importable modules, options are keyword arguments.  Evaluation is single-threaded and a function
of the batch alone.

``fallible`` says that a node may raise on some values (overflow, a bad cast).  Where SQL promises
that a value is not even computed (the branches of CASE, the right side of AND), a fallible node is
evaluated only on the rows that need it; all others are computed whole, which is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Apply", "CaseWhen", "Reference", "Literal", "Node", "ShortCircuit", "as_array"]


class Node:
    """One operation: its type, its inputs, and whether values can make it fail."""

    type: pa.DataType
    children: tuple[Node, ...] = ()
    fallible: bool = False
    lazy: bool = False
    """Whether it evaluates some child on a part of the rows only."""

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        """An array of the batch's length, or a scalar."""
        raise NotImplementedError

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


class Reference(Node):
    """A column of the batch, by position."""

    def __init__(self, index: int, kind: pa.DataType) -> None:
        self.index = index
        self.type = kind

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        return batch.column(self.index)


class Literal(Node):
    """A constant."""

    def __init__(self, value: pa.Scalar) -> None:
        self.value = value
        self.type = value.type

    @property
    def is_null(self) -> bool:
        """Whether it is NULL."""
        return not self.value.is_valid

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        return self.value


class Apply(Node):
    """A kernel on the values of the children."""

    def __init__(
        self,
        kernel: Callable[..., Any],
        children: Sequence[Node],
        kind: pa.DataType,
        *,
        fallible: bool = False,
        **options: Any,
    ) -> None:
        self.kernel = kernel
        self.children = tuple(children)
        self.type = kind
        self.options = options
        self.fallible = fallible or any(child.fallible for child in children)
        self.lazy = any(child.lazy for child in children)
        self._constant = all(isinstance(child, Literal) for child in children)

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        if self._constant:
            # Only what failed when it was computed ahead comes here, to fail on the rows it meets.
            arrays = [as_array(child.evaluate(batch), batch.num_rows) for child in self.children]
            return self.kernel(*arrays, **self.options)
        return self.kernel(*[child.evaluate(batch) for child in self.children], **self.options)


class CaseWhen(Node):
    """CASE WHEN: the value of the first condition that is true, else the default."""

    def __init__(self, conditions: Sequence[Node], values: Sequence[Node], default: Node) -> None:
        self.conditions = tuple(conditions)
        self.values = tuple(values)
        self.default = default
        self.children = (*self.conditions, *self.values, default)
        self.type = default.type
        self.fallible = any(child.fallible for child in self.children)
        # The first condition is computed on every row anyway.
        self._eager = not any(child.fallible for child in self.children[1:])
        self.lazy = not self._eager or any(child.lazy for child in self.children)

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        if not self._eager:
            return self._evaluate_lazily(batch)
        size = batch.num_rows
        conditions = [as_array(node.evaluate(batch), size) for node in self.conditions]
        values = [node.evaluate(batch) for node in (*self.values, self.default)]
        return pc.case_when(pc.make_struct(*conditions), *values)

    def _evaluate_lazily(self, batch: pa.RecordBatch) -> Any:
        rows = np.arange(batch.num_rows)
        pieces: list[pa.Array] = []
        places: list[Any] = []
        for condition, value in zip(self.conditions, self.values, strict=True):
            if not len(rows):
                break
            mask = as_array(condition.evaluate(batch), len(rows)).fill_null(False)
            chosen = mask.to_numpy(zero_copy_only=False)
            hit = batch.filter(mask)
            if hit.num_rows:
                pieces.append(as_array(value.evaluate(hit), hit.num_rows))
                places.append(rows[chosen])
                batch, rows = batch.filter(pc.invert(mask)), rows[~chosen]
        if len(rows):
            pieces.append(as_array(self.default.evaluate(batch), len(rows)))
            places.append(rows)
        return _scattered(pieces, places, self.type)


class ShortCircuit(Node):
    """AND and OR whose right side may fail: it is computed only where the left does not decide."""

    def __init__(self, left: Node, right: Node, *, conjunction: bool) -> None:
        self.children = (left, right)
        self.type = pa.bool_()
        self.fallible = True
        self.lazy = True
        self._conjunction = conjunction

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        left, right = self.children
        first = as_array(left.evaluate(batch), batch.num_rows)
        decided = first if not self._conjunction else pc.invert(first)
        open_rows = pc.invert(decided.fill_null(False))
        rest = batch.filter(open_rows)
        if not rest.num_rows:
            return first
        second = as_array(right.evaluate(rest), rest.num_rows)
        whole = pc.replace_with_mask(first, open_rows, second)
        return (pc.and_kleene if self._conjunction else pc.or_kleene)(first, whole)


def as_array(value: Any, size: int) -> pa.Array:
    """The value as an array of that size: scalars are repeated, chunks joined."""
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, size)
    if isinstance(value, pa.ChunkedArray):
        return value.combine_chunks()
    return value


def _scattered(pieces: list[pa.Array], places: list[Any], kind: pa.DataType) -> pa.Array:
    """Pieces put back into the order of the rows they were computed for."""
    if not pieces:
        return pa.array([], kind)
    if len(pieces) == 1:
        return pieces[0]
    where = np.concatenate(places)
    order = np.empty(len(where), np.int64)
    order[where] = np.arange(len(where))
    return pa.concat_arrays(pieces).take(pa.array(order))
