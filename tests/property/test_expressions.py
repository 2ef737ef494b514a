"""Random SQL over random rows, against a slow evaluator of one row at a time.

The reference knows nothing of Arrow: Python values, ``None`` for NULL, three-valued logic spelled
out.  Expressions are generated as (SQL, function of a row) pairs.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DataError
from penstock.expressions import compile_expression

Row = dict[str, Any]
Sql = tuple[str, Callable[[Row], Any]]

INT64 = (-(2**63), 2**63 - 1)


class NoResultError(Exception):
    """The row has no result: SQL raises."""


def negation(value: Any) -> Any:
    return None if value is None else not value


def conjunction(left: Callable[[Row], Any], right: Callable[[Row], Any]) -> Callable[[Row], Any]:
    def both(row: Row) -> Any:
        first = left(row)
        if first is False:
            return False
        second = right(row)
        if second is False:
            return False
        return None if first is None or second is None else True

    return both


def disjunction(left: Callable[[Row], Any], right: Callable[[Row], Any]) -> Callable[[Row], Any]:
    def either(row: Row) -> Any:
        first = left(row)
        if first is True:
            return True
        second = right(row)
        if second is True:
            return True
        return None if first is None or second is None else False

    return either


def strictly(function: Callable[..., Any], *parts: Callable[[Row], Any]) -> Callable[[Row], Any]:
    """Null if any part is null; all parts are computed."""

    def apply(row: Row) -> Any:
        values = [part(row) for part in parts]
        return None if any(value is None for value in values) else function(*values)

    return apply


def checked(value: int) -> int:
    if not INT64[0] <= value <= INT64[1]:
        raise NoResultError
    return value


def divided(left: int, right: int) -> int:
    if right == 0:
        raise NoResultError
    quotient = abs(left) // abs(right)
    return checked(quotient if (left < 0) == (right < 0) else -quotient)


def remainder(left: int, right: int) -> int:
    if right == 0:
        raise NoResultError
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def cases(
    condition: Callable[[Row], Any], one: Callable[[Row], Any], other: Callable[[Row], Any]
) -> Callable[[Row], Any]:
    return lambda row: one(row) if condition(row) is True else other(row)


def contained(value: Any, options: list[Any]) -> Any:
    if value is None:
        return None
    if any(option == value for option in options if option is not None):
        return True
    return None if None in options else False


numbers = st.integers(-4, 4) | st.sampled_from([2**62, -(2**62), *INT64])
texts = st.sampled_from(["", "a", "b", "ab", "%", "A_b"])
rows = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.none() | numbers,
            "j": st.none() | numbers,
            "s": st.none() | texts,
            "p": st.none() | st.booleans(),
            "q": st.none() | st.booleans(),
        }
    ),
    max_size=12,
)
SCHEMA = pa.schema(
    {"i": pa.int64(), "j": pa.int64(), "s": pa.string(), "p": pa.bool_(), "q": pa.bool_()}
)


def column(name: str) -> Sql:
    return name, lambda row: row[name]


def constant(sql: str, value: Any) -> Sql:
    return sql, lambda row: value


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


integer_leaves = st.sampled_from(["i", "j"]).map(column) | st.integers(-3, 3).map(
    lambda n: constant(f"CAST({n} AS BIGINT)", n)
)
boolean_leaves = st.sampled_from(["p", "q"]).map(column) | st.sampled_from(
    [
        constant("TRUE", True),
        constant("FALSE", False),
        constant("CAST(NULL AS BOOLEAN)", None),
    ]
)
string_leaves = st.just(column("s")) | texts.map(lambda text: constant(quoted(text), text))

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: checked(a + b),
    "-": lambda a, b: checked(a - b),
    "*": lambda a, b: checked(a * b),
    "div": divided,
    "%": remainder,
}


@st.composite
def integers(draw: st.DrawFn, depth: int) -> Sql:
    if depth == 0:
        return draw(integer_leaves)
    kind = draw(st.sampled_from(["leaf", "arithmetic", "case", "coalesce", "nullif", "length"]))
    if kind == "leaf":
        return draw(integer_leaves)
    if kind == "length":
        text, value = draw(string_leaves)
        return f"CAST(length({text}) AS BIGINT)", strictly(len, value)
    (one, f), (other, g) = draw(integers(depth - 1)), draw(integers(depth - 1))
    if kind == "arithmetic":
        sign = draw(st.sampled_from(sorted(ARITHMETIC)))
        return f"({one} {sign} {other})", strictly(ARITHMETIC[sign], f, g)
    if kind == "coalesce":
        return f"coalesce({one}, {other})", lambda row: f(row) if f(row) is not None else g(row)
    if kind == "nullif":

        def unless_equal(row: Row) -> Any:
            value = f(row)
            return None if value is not None and value == g(row) else value

        def both(row: Row) -> Any:
            g(row)
            return unless_equal(row)

        return f"nullif({one}, {other})", both
    condition, c = draw(booleans(depth - 1))
    return f"CASE WHEN {condition} THEN {one} ELSE {other} END", cases(c, f, g)


@st.composite
def booleans(draw: st.DrawFn, depth: int) -> Sql:
    if depth == 0:
        return draw(boolean_leaves)
    kind = draw(
        st.sampled_from(["leaf", "and", "or", "not", "compare", "text", "null", "in", "same", "is"])
    )
    if kind == "leaf":
        return draw(boolean_leaves)
    if kind in ("and", "or"):
        (one, f), (other, g) = draw(booleans(depth - 1)), draw(booleans(depth - 1))
        return f"({one} {kind.upper()} {other})", (conjunction if kind == "and" else disjunction)(
            f, g
        )
    if kind == "not":
        one, f = draw(booleans(depth - 1))
        return f"(NOT {one})", lambda row: negation(f(row))
    if kind == "is":
        one, f = draw(booleans(depth - 1))
        word, value = draw(st.sampled_from([("TRUE", True), ("FALSE", False)]))
        return f"({one} IS {word})", lambda row: f(row) is value
    if kind == "text":
        (one, f), (other, g) = draw(string_leaves), draw(string_leaves)
        sign = draw(st.sampled_from(sorted(COMPARISONS)))
        return f"({one} {sign} {other})", strictly(COMPARISONS[sign], f, g)
    one, f = draw(integers(depth - 1))
    if kind == "null":
        return f"({one} IS NULL)", lambda row: f(row) is None
    if kind == "in":
        # With nothing but NULL in the list the value need not be computed at all.
        options = draw(st.lists(st.none() | st.integers(-3, 3), max_size=3))
        options.append(draw(st.integers(-3, 3)))
        listed = ", ".join("NULL" if option is None else str(option) for option in options)
        return f"({one} IN ({listed}))", lambda row: contained(f(row), options)
    other, g = draw(integers(depth - 1))
    if kind == "same":
        return f"({one} <=> {other})", lambda row: f(row) == g(row)
    sign = draw(st.sampled_from(sorted(COMPARISONS)))
    return f"({one} {sign} {other})", strictly(COMPARISONS[sign], f, g)


def reference(expression: Callable[[Row], Any], data: list[Row]) -> list[Any] | None:
    """The values, or None if some row has no result."""
    try:
        return [expression(row) for row in data]
    except NoResultError:
        return None


def check(expression: Sql, data: list[Row]) -> None:
    sql, slow = expression
    batch = pa.RecordBatch.from_pylist(data, schema=SCHEMA)
    compiled = compile_expression(sql, SCHEMA)
    expected = reference(slow, data)
    try:
        got = compiled.evaluate(batch).to_pylist()
    except DataError:
        got = None
    assert got == expected, sql
    if expected is not None and len(data) > 1:
        parts = [compiled.evaluate(batch.slice(0, 1)), compiled.evaluate(batch.slice(1))]
        assert [value for part in parts for value in part.to_pylist()] == expected


@given(booleans(3), rows)
@settings(max_examples=80, deadline=None)
def test_conditions_agree_with_one_row_at_a_time(expression: Sql, data: list[Row]) -> None:
    check(expression, data)


@given(integers(3), rows)
@settings(max_examples=80, deadline=None)
def test_numbers_agree_with_one_row_at_a_time(expression: Sql, data: list[Row]) -> None:
    check(expression, data)


LIKE_TEXTS = st.text("ab%_.\n\\", max_size=6)


def like(text: str, pattern: str) -> bool:
    """LIKE with % and _ as wildcards and no escapes, by definition."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(like(text[i:], pattern[1:]) for i in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and like(text[1:], pattern[1:])


@given(st.lists(st.none() | LIKE_TEXTS, max_size=8), st.text("ab%_.", max_size=5))
@settings(max_examples=80, deadline=None)
def test_like_agrees_with_its_definition(data: list[str | None], pattern: str) -> None:
    batch = pa.record_batch({"s": pa.array(data, pa.string())})
    made = compile_expression(f"s LIKE '{pattern}'", batch.schema).evaluate(batch)
    assert made.to_pylist() == [None if text is None else like(text, pattern) for text in data]
