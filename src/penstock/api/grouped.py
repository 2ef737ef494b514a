"""GroupedStream, and how columns of aggregates are taken apart.

``agg(F.sum(F.col("a") * 2) / F.count("*"))`` becomes a column ``(a * 2)`` before the aggregate, two
aggregates, and a value computed from both; operators know columns by name and single aggregates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.durations import Duration, duration_us
from penstock.errors import SchemaError, SettingsError
from penstock.expressions import Column, compile_expression
from penstock.expressions.column import call, named, parsed, refuse_foreign
from penstock.expressions.suggest import nearest
from penstock.operators import aggregate
from penstock.operators import window as window_operator
from penstock.operators.aggregate_functions import AGGREGATES, ALIASES
from penstock.operators.aggregates import Aggregation
from penstock.operators.terms import Aggregate, Computed, Window

if TYPE_CHECKING:
    from penstock.api.stream import Stream

__all__ = ["GroupedStream", "named_columns"]


class GroupedStream:
    """A stream with its grouping; ``agg`` makes a stream of it again."""

    def __init__(self, stream: Stream, keys: Sequence[Any]) -> None:
        windows = [key for key in keys if isinstance(key, Window)]
        if len(windows) > 1:
            raise SchemaError(f"groupBy: at most one window, got {len(windows)}")
        self._window = windows[0] if windows else None
        plain = [key for key in keys if not isinstance(key, Window)]
        self._stream, self._keys = named_columns(stream, plain, "groupBy")

    def agg(self, *exprs: Any, allowedLateness: Duration = 0) -> Stream:
        """Aggregates per group: columns (``F.sum("price")``), SQL, or a dict of names to functions.

        With a window: one row per key when the watermark passes the window's end, again for each
        later epoch that adds rows within ``allowedLateness``; rows later than that go to
        :meth:`WindowedStream.late`.  Without: at the end of each epoch the groups that changed.
        """
        if not exprs:
            raise SchemaError("agg: name at least one aggregate, such as F.count('*')")
        lateness = duration_us(allowedLateness, "allowedLateness")
        if lateness and self._window is None:
            raise SettingsError("agg: allowedLateness needs a window in groupBy")
        plan = _Plan(self._stream)
        terms = [plan.term(one) for one in _listed(exprs)]
        stream = plan.stream()
        aggregates = [plan.finished(term, self._keys) for term in terms]
        if self._window is None:
            return stream._then(aggregate.RunningAggregate(self._keys, aggregates))
        operator = window_operator.WindowAggregate(self._window, self._keys, aggregates, lateness)
        return stream._windowed(operator, plan.before)

    def count(self) -> Stream:
        """Rows per group."""
        return self.agg(Aggregate("count", "*", "count"))

    def sum(self, *cols: str) -> Stream:
        """Sums per group."""
        return self._each("sum", cols)

    def min(self, *cols: str) -> Stream:
        """Least values per group."""
        return self._each("min", cols)

    def max(self, *cols: str) -> Stream:
        """Greatest values per group."""
        return self._each("max", cols)

    def avg(self, *cols: str) -> Stream:
        """Means per group."""
        return self._each("avg", cols)

    mean = avg

    def _each(self, function: str, columns: Sequence[str]) -> Stream:
        return self.agg(*[call(function, named(column)) for column in columns])


def named_columns(stream: Stream, columns: Sequence[Any], where: str) -> tuple[Stream, list[str]]:
    """Names of columns, those that are expressions added to the stream."""
    names: list[str] = []
    added: list[tuple[str, Column]] = []
    for one in columns:
        if isinstance(one, str):
            names.append(one)
            continue
        refuse_foreign(one)
        if not isinstance(one, Column):
            raise SchemaError(f"{where}: expected columns or their names, got {one!r}")
        name = compile_expression(one, stream.schema, what=where).name
        names.append(name)
        if not _is_plain(one.tree) or name not in stream.columns:
            added.append((name, one))
    return stream._with_columns(added), names


def _is_plain(tree: Any) -> bool:
    from sqlglot import exp

    return isinstance(tree, exp.Column) and len(tree.parts) == 1


def _listed(exprs: Sequence[Any]) -> list[Any]:
    """What agg was given, as PySpark takes it: one by one, or as one dict."""
    if len(exprs) == 1 and isinstance(exprs[0], list):
        return list(exprs[0])
    if len(exprs) == 1 and isinstance(exprs[0], Mapping):
        return [call(function, named(name)) for name, function in exprs[0].items()]
    return list(exprs)


class _Term:
    """One column of agg: its name, its aggregates, and the expression over them."""

    def __init__(self, name: str, parts: list[Aggregate], tree: Any) -> None:
        self.name = name
        self.parts = parts
        self.tree = tree


class _Plan:
    """Takes the columns of one agg apart."""

    def __init__(self, stream: Stream) -> None:
        self.before = stream
        self._inputs: dict[str, Column] = {}

    def stream(self) -> Stream:
        """The stream with the columns that the aggregates are made of."""
        return self.before._with_columns(list(self._inputs.items()))

    def term(self, one: Any) -> _Term:
        """What one argument of agg asks for."""
        if isinstance(one, Aggregate):
            return _Term(one.name, [one], None)
        refuse_foreign(one)
        column = parsed(one) if isinstance(one, str) else one
        if not isinstance(column, Column):
            raise SchemaError(
                f"agg: expected aggregates such as F.sum('price'), SQL or a dict, got {one!r}"
            )
        return self._taken_apart(column)

    def finished(self, term: _Term, keys: Sequence[str]) -> Aggregate | Computed:
        """The aggregate, or the value computed from aggregates, of a term."""
        if term.tree is None:
            return term.parts[0]
        schema = self.stream().schema
        parts = dict.fromkeys(term.parts)
        algebra = Aggregation(keys, list(parts))
        fields = algebra.result_fields(pa.schema(algebra.partial_fields(schema, "agg")))
        names = [str(number) for number in range(len(fields))]
        results = pa.schema(
            [field.with_name(name) for field, name in zip(fields, names, strict=True)]
        )
        value = compile_expression(Column(term.tree), results, what="agg")
        return Computed(term.name, tuple(parts), value)

    def _taken_apart(self, column: Column) -> _Term:
        from sqlglot import exp

        from penstock.expressions.parse import expression_and_name, to_sql

        tree, name = expression_and_name(column.tree)
        if isinstance(tree, exp.Anonymous) and _is_aggregate(tree):
            part = self._aggregate(tree)
            if not isinstance(column.tree, exp.Alias):
                name = _spark_name(tree, to_sql(tree))
            return _Term(name, [_renamed(part, name)], None)
        parts: dict[Aggregate, str] = {}

        def replaced(node: Any) -> Any:
            if not _is_aggregate(node):
                return node
            part = _renamed(self._aggregate(node), "")
            place = parts.setdefault(part, str(len(parts)))
            return exp.Column(this=exp.to_identifier(place, quoted=True))

        made = tree.copy().transform(replaced)
        if not parts:
            known = ", ".join(sorted(["sum", "count", "min", "max", "avg"]))
            raise SchemaError(
                f"agg: {column.sql} has no aggregate in it{_hint(tree)} use one such as {known}, "
                "or group by it"
            )
        return _Term(name, list(parts), made)

    def _aggregate(self, tree: Any) -> Aggregate:
        """The aggregate of a call."""
        from sqlglot import exp

        function, arguments = tree.name.lower(), list(tree.expressions)
        if len(arguments) == 1 and isinstance(arguments[0], exp.Distinct):
            arguments = list(arguments[0].expressions)
            function = {"count": "count_distinct", "sum": "sum_distinct"}.get(function, function)
            if function not in ("count_distinct", "sum_distinct"):
                raise SchemaError(f"agg: {function}(DISTINCT ...) is not supported")
        if function in _ORDERED:
            return self._first_or_last(function, arguments)
        found = ALIASES.get(function, function)
        if function == "approx_count_distinct" or function == "any_value":
            arguments = arguments[:1]
        only = arguments[0] if len(arguments) == 1 else None
        if isinstance(only, exp.Star) or (found == "count" and isinstance(only, exp.Literal)):
            return Aggregate(found, "*", function)
        kind = AGGREGATES[found]
        columns, options = arguments[: kind.columns], arguments[kind.columns :]
        least = kind.columns if kind.columns < 100 else 1
        if len(columns) < least or len(options) > kind.options:
            raise SchemaError(
                f"agg: {function} takes {least} column(s), got {len(arguments)} argument(s)"
            )
        if found == "percentile" and len(options) == 2 and _constant(options[1]) != 1:
            raise SchemaError("agg: percentile with a frequency is not supported")
        names = [self._input(column) for column in columns]
        return Aggregate(
            found, names[0], function, tuple(names[1:]), tuple(_constant(one) for one in options)
        )

    def _first_or_last(self, function: str, arguments: list[Any]) -> Aggregate:
        """The value of the row with the least or greatest event time; of equal times the least or
        greatest value.  Rows have no other order that a replay would repeat."""
        known = len(arguments) > 1 and bool(_constant(arguments[1]))
        way = "first" if function.startswith("first") else "last"
        kind = f"{way} known" if known else {"first": "min_by", "last": "max_by"}[way]
        time = self.before._event_time(f"agg: {function} needs an order of rows;")
        return Aggregate(kind, self._input(arguments[0]), function, (time,))

    def _input(self, tree: Any) -> str:
        """The name of the column that an argument is; one that is computed is added."""
        compiled = compile_expression(Column(tree), self.before.schema, what="agg")
        if not _is_plain(tree) or compiled.name not in self.before.columns:
            self._inputs.setdefault(compiled.name, Column(tree))
        return compiled.name


_ORDERED = ("first", "first_value", "last", "last_value")


def _is_aggregate(tree: Any) -> bool:
    from sqlglot import exp

    if not isinstance(tree, exp.Anonymous):
        return False
    name = tree.name.lower()
    return name in AGGREGATES or name in ALIASES or name in _ORDERED


def _renamed(one: Aggregate, name: str) -> Aggregate:
    return one.alias(name)


def _spark_name(tree: Any, text: str) -> str:
    from sqlglot import exp

    arguments = tree.expressions
    if tree.name.lower() == "count" and (not arguments or isinstance(arguments[0], exp.Star)):
        return "count"
    return text


def _hint(tree: Any) -> str:
    from sqlglot import exp

    calls = [node.name for node in tree.walk() if isinstance(node, exp.Anonymous)]
    return nearest(calls[0], [*AGGREGATES, *ALIASES]) if calls else ";"


def _constant(tree: Any) -> Any:
    """The Python value of a constant argument."""
    node = compile_expression(Column(tree), pa.schema([]), what="agg")
    batch = pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))
    value = node.evaluate(batch)[0].as_py()
    return tuple(value) if isinstance(value, list) else value
