"""PySpark's functions, by PySpark's names and signatures.

    from penstock import functions as F

    views.withColumn("site", F.lower(F.split("url", "/")[2]))
    views.groupBy(F.window("event_time", "1 second"), "campaign").agg(F.count("*").alias("views"))

A function makes a :class:`~penstock.expressions.Column`; nothing is computed before a stage takes
it.  Where PySpark takes a column or its name, a string is a name; ``F.lit`` makes a constant of it.
All but a few are made from the table in :mod:`penstock.expressions.signatures` when they are asked
for; ``dir(functions)`` lists them, ``help(functions.split)`` shows a signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from penstock.durations import Duration
from penstock.errors import SchemaError
from penstock.expressions.column import (
    Column,
    call,
    case,
    column_of,
    function_of,
    named,
    parsed,
    refuse_foreign,
)
from penstock.expressions.signatures import SIGNATURES, Signature
from penstock.expressions.suggest import nearest
from penstock.operators import terms
from penstock.operators.terms import Window

_WRITTEN = ["col", "column", "expr", "lit", "session_window", "when", "window"]


def col(col: str) -> Column:
    """A column by name; ``"window.start"`` is a field of one, ``"*"`` are all."""
    return named(col)


column = col


def lit(col: Any) -> Column:
    """A constant: numbers, strings, dates, times, lists, dicts; a column is given back as it is."""
    return column_of(col)


def expr(str: str) -> Column:
    """A column from SQL text."""
    return parsed(str)


def when(condition: Column, value: Any) -> Column:
    """``value`` where the condition is true; ``.when(...)`` and ``.otherwise(...)`` may follow."""
    return case(condition, value)


def window(
    timeColumn: str | Column,
    windowDuration: Duration,
    slideDuration: Duration | None = None,
    startTime: Duration | None = None,
) -> Window:
    """Event-time windows for groupBy: tumbling, or sliding when ``slideDuration`` is given."""
    name = _time_name(timeColumn, "window")
    return terms.window(name, windowDuration, slideDuration, startTime or 0)


def session_window(timeColumn: str | Column, gapDuration: Duration) -> Window:
    """Sessions for groupBy: a window per key ends when nothing came for ``gapDuration``."""
    return terms.session_window(_time_name(timeColumn, "session_window"), gapDuration)


def _time_name(time: str | Column, what: str) -> str:
    if isinstance(time, str):
        return time
    refuse_foreign(time)
    from sqlglot import exp

    if isinstance(time, Column) and isinstance(time.tree, exp.Column):
        return str(time.tree.name)
    raise SchemaError(
        f"{what}: the event time is a column, by its name; add {time!r} with withColumn first"
    )


def __getattr__(name: str) -> Any:
    signature = SIGNATURES.get(name)
    if signature is None:
        hint = nearest(name, __dir__()).rstrip(";")
        raise AttributeError(
            f"penstock has no function {name!r}{hint} docs/functions.md lists what there is, and "
            "what is left out and why"
        )
    made = globals()[name] = _made(signature)
    return made


def __dir__() -> list[str]:
    return sorted([*_WRITTEN, *SIGNATURES])


def _made(signature: Signature) -> Callable[..., Column]:
    """The Python function of a line in the table."""
    bind = signature.parameters.bind

    def function(*args: Any, **options: Any) -> Column:
        try:
            bound = bind(*args, **options)
        except TypeError as error:
            raise SchemaError(f"{signature.name}: {error}; it is {signature}") from None
        return call(signature.sql, *_arguments(signature, bound))

    function.__name__ = function.__qualname__ = signature.name
    function.__doc__ = f"``{signature}``, as in pyspark.sql.functions."
    function.__signature__ = signature.parameters  # type: ignore[attr-defined]
    return function


def _arguments(signature: Signature, bound: inspect.BoundArguments) -> list[Any]:
    """The arguments that were given, as columns."""
    given = len(bound.arguments)
    bound.apply_defaults()
    values: list[Any] = []
    for name, value in bound.arguments.items():
        kind = signature.kinds[name]
        if signature.parameters.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            items = value[0] if len(value) == 1 and isinstance(value[0], list | tuple) else value
            values += [_argument(item, kind, signature.name) for item in items]
        else:
            values.append(_argument(value, kind, signature.name))
    if signature.order:
        named_values = dict(zip(bound.arguments, values, strict=True))
        return [named_values[name] for name in signature.order if named_values[name] is not None]
    while len(values) > given and values[-1] is None:
        values.pop()
    return values


def _argument(value: Any, kind: str, where: str) -> Any:
    """One argument: a string is a column's name where the table does not say ``value``."""
    if value is None or isinstance(value, Column):
        return value
    if kind == "function":
        if not callable(value):
            raise SchemaError(f"{where}: expected a function of columns, got {value!r}")
        names = list(inspect.signature(value).parameters)
        return function_of(names, value)
    if kind == "value":
        return value.simpleString() if hasattr(value, "simpleString") else value
    return named(value) if isinstance(value, str) else value
