"""The one check of batches that users' code hands to the engine: do they fit the declared schema?

Columns are matched by name and cast where no value changes; everything else is refused.  A batch
that has the declared schema already passes after one comparison of schemas.

    >>> check = Conform(pa.schema({"n": pa.int64(), "x": pa.float64()}), "stage 'made'")
    >>> check(pa.record_batch({"x": [1], "n": [2]})).to_pylist()
    [{'n': 2, 'x': 1.0}]
    >>> check(pa.record_batch({"x": [1.5], "n": [2.5]}))
    Traceback (most recent call last):
    penstock.errors.FunctionError: stage 'made' gave column 'n' as double, which cannot be cast ...
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import FunctionError, PenstockError

__all__ = ["Conform", "kind_of"]


class Conform:
    """Makes batches fit a schema; ``who`` and the error's type say whose fault it is if not."""

    def __init__(
        self, schema: pa.Schema, who: str, error: type[PenstockError] = FunctionError
    ) -> None:
        self.schema = schema
        self._who = who
        self._error = error
        self._required = [at for at, field in enumerate(schema) if not field.nullable]

    def __call__(self, batch: Any) -> pa.RecordBatch:
        """The batch with exactly the declared columns, or an error that names the one at fault."""
        if not isinstance(batch, pa.RecordBatch):
            raise self._error(
                f"{self._who} gave {kind_of(batch)}; it must give pyarrow.RecordBatch"
            )
        if not batch.schema.equals(self.schema):
            batch = self._fitted(batch)
        for at in self._required:
            nulls = batch.column(at).null_count
            if nulls:
                name = self.schema.field(at).name
                raise self._error(
                    f"{self._who} gave {nulls} nulls in column {name!r}, which is declared "
                    "NOT NULL",
                    column=name,
                )
        return batch

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names, declared = batch.schema.names, self.schema.names
        if sorted(names) != sorted(declared):
            missing = [name for name in declared if name not in names]
            extra = [name for name in names if name not in declared]
            wanted = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
            raise self._error(
                f"{self._who} gave columns [{', '.join(names)}] where [{wanted}] are declared "
                f"(missing: {missing}, not declared: {extra})",
                column=(missing or extra or names)[0],
            )
        columns = [self._cast(batch.column(field.name), field) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if column.type == field.type:
            return column
        reason = "values would change"
        try:
            made = column.cast(field.type)
            if column.null_count == len(column) or _same(column, made.cast(column.type)):
                return made
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = str(error)
        raise self._error(
            f"{self._who} gave column {field.name!r} as {column.type}, which cannot be cast to "
            f"the declared {field.type} without loss: {reason}",
            column=field.name,
        )


def _same(column: pa.Array, again: pa.Array) -> bool:
    """Whether a column came back from a cast as it was; NaN is NaN."""
    if not pa.types.is_floating(column.type):
        return bool(column.equals(again))
    both = pc.and_(pc.is_nan(column), pc.is_nan(again))
    return pc.all(pc.or_(pc.equal(column, again), both)).as_py() is not False


def kind_of(value: object) -> str:
    """A value's type, for people."""
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__qualname__}"
