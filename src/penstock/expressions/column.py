"""Columns: expressions written in Python instead of SQL.

    F.col("price") * 2 > F.lit(10)

A column is the same syntax tree that SQL text is parsed into, put together by operators and
functions; names and types are checked when a stage takes it, against that stage's schema.  It
travels as SQL text, so that hosts need no parser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Never, cast

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.expressions.suggest import nearest

__all__ = ["Column", "column_of", "refuse_foreign"]


class Column:
    """An expression over a stream's columns, as PySpark's ``Column``.

    >>> from penstock import functions as F
    >>> (F.col("price") * 2 > 10) & F.col("kind").isin("view", "click")
    Column<"(((price * 2) > 10) AND (kind IN ('view', 'click')))">
    >>> F.upper("kind").alias("shout")
    Column<'upper(kind) AS shout'>
    """

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    def __reduce__(self) -> Any:
        return _Travelled, (self.sql,)

    def __repr__(self) -> str:
        return f"Column<{self.sql!r}>"

    @property
    def tree(self) -> Any:
        """The syntax tree, with its alias if it has one."""
        return self._tree

    @property
    def sql(self) -> str:
        """The expression as SQL text."""
        from penstock.expressions.parse import to_sql

        return to_sql(self._tree)

    # -- names and types -------------------------------------------------------------------------

    def alias(self, name: str) -> Column:
        """The same values under another name."""
        if not isinstance(name, str) or not name:
            raise SchemaError(f"alias: a column is named by a string, got {name!r}")
        exp = _exp()
        return Column(exp.Alias(this=_bare(self), alias=_identifier(name)))

    name = alias

    def cast(self, dataType: Any) -> Column:
        """The values in another type: DDL such as ``"decimal(10, 2)"``, or a type object."""
        return Column(_exp().Cast(this=_bare(self), to=_type_tree(dataType, "cast")))

    astype = cast

    def try_cast(self, dataType: Any) -> Column:
        """The same, with null for values that have no counterpart."""
        kind = _type_tree(dataType, "try_cast")
        return Column(_exp().TryCast(this=_bare(self), to=kind, safe=True))

    # -- operators -------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Column:
        return _binary("Add", self, other)

    def __radd__(self, other: Any) -> Column:
        return _binary("Add", other, self)

    def __sub__(self, other: Any) -> Column:
        return _binary("Sub", self, other)

    def __rsub__(self, other: Any) -> Column:
        return _binary("Sub", other, self)

    def __mul__(self, other: Any) -> Column:
        return _binary("Mul", self, other)

    def __rmul__(self, other: Any) -> Column:
        return _binary("Mul", other, self)

    def __truediv__(self, other: Any) -> Column:
        return _binary("Div", self, other)

    def __rtruediv__(self, other: Any) -> Column:
        return _binary("Div", other, self)

    def __mod__(self, other: Any) -> Column:
        return _binary("Mod", self, other)

    def __rmod__(self, other: Any) -> Column:
        return _binary("Mod", other, self)

    def __pow__(self, other: Any) -> Column:
        return call("power", self, other)

    def __rpow__(self, other: Any) -> Column:
        return call("power", other, self)

    def __neg__(self) -> Column:
        return Column(_exp().Neg(this=_operand(self)))

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return _binary("EQ", self, other)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        return _binary("NEQ", self, other)

    def __lt__(self, other: Any) -> Column:
        return _binary("LT", self, other)

    def __le__(self, other: Any) -> Column:
        return _binary("LTE", self, other)

    def __gt__(self, other: Any) -> Column:
        return _binary("GT", self, other)

    def __ge__(self, other: Any) -> Column:
        return _binary("GTE", self, other)

    def __and__(self, other: Any) -> Column:
        return _binary("And", self, other)

    def __rand__(self, other: Any) -> Column:
        return _binary("And", other, self)

    def __or__(self, other: Any) -> Column:
        return _binary("Or", self, other)

    def __ror__(self, other: Any) -> Column:
        return _binary("Or", other, self)

    def __invert__(self) -> Column:
        exp = _exp()
        return Column(exp.Paren(this=exp.Not(this=_operand(self))))

    __hash__ = object.__hash__
    __array_ufunc__ = None  # NumPy's numbers on the left leave operators to us

    # -- tests -----------------------------------------------------------------------------------

    def eqNullSafe(self, other: Any) -> Column:
        """Equality for which null equals null."""
        return _binary("NullSafeEQ", self, other)

    def isNull(self) -> Column:
        """Whether it is null."""
        exp = _exp()
        return Column(exp.Paren(this=exp.Is(this=_operand(self), expression=exp.Null())))

    def isNotNull(self) -> Column:
        """Whether it is not null."""
        exp = _exp()
        test = exp.Is(this=_operand(self), expression=exp.Null())
        return Column(exp.Paren(this=exp.Not(this=test)))

    def isNaN(self) -> Column:
        """Whether it is NaN."""
        return call("isnan", self)

    def isin(self, *cols: Any) -> Column:
        """Whether it is one of the values, given one by one or as one list."""
        exp = _exp()
        values = cols[0] if len(cols) == 1 and isinstance(cols[0], list | tuple | set) else cols
        if isinstance(values, set):
            values = sorted(values)
        if not values:
            return Column(exp.Paren(this=exp.And(this=_null_of_boolean(), expression=_false())))
        items = [_operand(column_of(value)) for value in values]
        return Column(exp.Paren(this=exp.In(this=_operand(self), expressions=items)))

    def between(self, lowerBound: Any, upperBound: Any) -> Column:
        """Whether it lies between two values, both included."""
        return (self >= lowerBound) & (self <= upperBound)

    def like(self, other: str) -> Column:
        """Whether it matches a LIKE pattern (``%`` and ``_``)."""
        return _binary("Like", self, other)

    def ilike(self, other: str) -> Column:
        """The same in any case."""
        return _binary("ILike", self, other)

    def rlike(self, other: str) -> Column:
        """Whether a part of it matches a regular expression."""
        return call("rlike", self, other)

    def startswith(self, other: Any) -> Column:
        """Whether it begins with a text."""
        return call("startswith", self, other)

    def endswith(self, other: Any) -> Column:
        """Whether it ends with a text."""
        return call("endswith", self, other)

    def contains(self, other: Any) -> Column:
        """Whether a text is a part of it."""
        return call("contains", self, other)

    # -- parts -----------------------------------------------------------------------------------

    def substr(self, startPos: Any, length: Any) -> Column:
        """``length`` characters from ``startPos`` on, counted from 1."""
        return call("substring", self, startPos, length)

    def getField(self, name: Any) -> Column:
        """A field of a struct, by name."""
        return self.getItem(name)

    def getItem(self, key: Any) -> Column:
        """The element of an array (counted from 0), the value of a map, or a struct's field."""
        return Column(_exp().Bracket(this=_operand(self), expressions=[column_of(key).tree]))

    def __getitem__(self, key: Any) -> Column:
        if isinstance(key, slice):
            raise SchemaError(
                "a column is sliced with substr(start, length), or F.slice for arrays"
            )
        return self.getItem(key)

    def __getattr__(self, name: str) -> Column:
        if name.startswith("_"):
            raise AttributeError(f"Column has no attribute {name!r}")
        return self.getField(name)

    # -- choices and bits ------------------------------------------------------------------------

    def when(self, condition: Any, value: Any) -> Column:
        """One more branch of ``F.when(...)``."""
        exp = _exp()
        if not isinstance(self._tree, exp.Case) or self._tree.args.get("default") is not None:
            raise SchemaError("when: comes after F.when(condition, value), before otherwise")
        branch = exp.If(this=column_of(condition).tree, true=_operand(column_of(value)))
        return Column(exp.Case(ifs=[*self._tree.args["ifs"], branch]))

    def otherwise(self, value: Any) -> Column:
        """The value where no branch of ``F.when(...)`` is taken; without it that is null."""
        exp = _exp()
        if not isinstance(self._tree, exp.Case) or self._tree.args.get("default") is not None:
            raise SchemaError("otherwise: comes once, after F.when(condition, value)")
        default = _operand(column_of(value))
        return Column(exp.Case(ifs=self._tree.args["ifs"], default=default))

    def bitwiseAND(self, other: Any) -> Column:
        """The bits that both have."""
        return _binary("BitwiseAnd", self, other)

    def bitwiseOR(self, other: Any) -> Column:
        """The bits that one of both has."""
        return _binary("BitwiseOr", self, other)

    def bitwiseXOR(self, other: Any) -> Column:
        """The bits that only one of both has."""
        return _binary("BitwiseXor", self, other)

    # -- what columns are not --------------------------------------------------------------------

    def __bool__(self) -> Never:
        raise SchemaError(
            f"the column {self.sql} has no truth value before there are rows: write & for 'and', "
            "| for 'or', ~ for 'not', with parentheses around comparisons, and F.when for 'if'"
        )

    def __contains__(self, item: object) -> Never:
        raise SchemaError(f"write F.col(...).contains({item!r}) instead of 'in'")

    def __iter__(self) -> Never:
        raise SchemaError(f"the column {self.sql} cannot be iterated over; F.explode makes rows")

    def __call__(self, *args: Any, **options: Any) -> Never:
        name = self.sql.rpartition("[")[2].strip("]'")
        methods = [one for one in dir(Column) if not one.startswith("_")]
        raise SchemaError(f"Column has no method {name!r}{nearest(name, methods).rstrip(';')}")


class _Travelled(Column):
    """A column that came as SQL text; it is parsed when somebody looks at its tree."""

    def __init__(self, sql: str) -> None:
        self._sql = sql

    @property
    def tree(self) -> Any:
        return parsed(self._sql).tree

    @property
    def sql(self) -> str:
        return self._sql


def column_of(value: Any) -> Column:
    """The value as a column: a column itself, or a constant."""
    if isinstance(value, Column):
        return value
    refuse_foreign(value)
    from penstock.expressions.constants import constant_tree

    return Column(constant_tree(value))


def named(name: str) -> Column:
    """The column, or the field of a struct column, that a name such as ``"window.start"`` means."""
    exp = _exp()
    if not isinstance(name, str):
        raise SchemaError(f"a column is named by a string, got {name!r}")
    if name.strip() == "*":
        return Column(exp.Star())
    first, *fields = _parts(name)
    tree = exp.Column(this=_identifier(first))
    for field in fields:
        tree = exp.Dot(this=tree, expression=_identifier(field))
    return Column(tree)


def parsed(sql: str) -> Column:
    """A column from SQL text."""
    from penstock.expressions.parse import SourceText, parse_sql

    tree = parse_sql(SourceText("expr", sql))
    for node in tree.walk():
        node.meta.clear()  # places in this text mean nothing in the text it becomes a part of
    return Column(tree)


def call(name: str, *arguments: Any) -> Column:
    """A call of a function with columns and constants."""
    trees = [column_of(argument).tree for argument in arguments]
    return Column(_exp().Anonymous(this=name, expressions=trees))


def case(condition: Any, value: Any) -> Column:
    """CASE with one branch, for ``F.when``."""
    exp = _exp()
    if not isinstance(condition, Column):
        refuse_foreign(condition)
        raise SchemaError(f"when: the condition is a column, such as F.col('n') > 1: {condition!r}")
    branch = exp.If(this=_bare(condition), true=_operand(column_of(value)))
    return Column(exp.Case(ifs=[branch]))


def function_of(names: Sequence[str], build: Callable[..., Any]) -> Column:
    """A lambda: ``build`` is called with one column per name and gives the body."""
    exp = _exp()
    arguments = [Column(exp.Column(this=_identifier(name))) for name in names]
    body = column_of(build(*arguments))
    return Column(
        exp.Lambda(this=_bare(body), expressions=[exp.to_identifier(name) for name in names])
    )


def refuse_foreign(value: Any) -> None:
    """Refuse PySpark's columns: they belong to a session's JVM and cannot run here."""
    kind = type(value)
    if kind.__module__.partition(".")[0] == "pyspark" and kind.__name__ == "Column":
        raise SchemaError(
            f"{value!r} is a column of pyspark.sql.functions, which cannot run in a flow; import "
            "functions from penstock instead: from penstock import functions as F"
        )


def _exp() -> Any:
    from sqlglot import exp  # not at the top: hosts need no parser

    return exp


def _binary(kind: str, left: Any, right: Any) -> Column:
    exp = _exp()
    sides = {"this": _operand(column_of(left)), "expression": _operand(column_of(right))}
    return Column(exp.Paren(this=getattr(exp, kind)(**sides)))


def _bare(column: Column) -> Any:
    tree = column.tree
    return tree.this if isinstance(tree, _exp().Alias) else tree


def _operand(column: Column) -> Any:
    """The tree as a part of a larger one: what SQL would read another way is in parentheses."""
    exp = _exp()
    tree = _bare(column)
    if isinstance(tree, exp.Binary | exp.Unary | exp.In | exp.Between) and not isinstance(
        tree, exp.Paren | exp.Dot
    ):
        return exp.Paren(this=tree)
    return tree


def _identifier(name: str) -> Any:
    plain = name.isidentifier() and name.isascii()
    return _exp().to_identifier(name, quoted=not plain)


def _parts(name: str) -> list[str]:
    """A name at its dots, those between backticks left alone."""
    parts, quoted = [""], False
    for character in name:
        if character == "`":
            quoted = not quoted
        elif character == "." and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    if quoted or not all(parts):
        raise SchemaError(f"{name!r} is no column name; names with dots are written in `backticks`")
    return parts


def _type_tree(kind: Any, what: str) -> Any:
    from penstock.expressions.ddl import ddl_of, type_tree

    text = kind if isinstance(kind, str) else None
    if isinstance(kind, pa.DataType):
        text = ddl_of(kind)
    elif hasattr(kind, "simpleString"):
        text = cast(str, kind.simpleString())
    if text is None:
        raise SchemaError(f"{what}: a type is DDL such as 'int', or a type object, got {kind!r}")
    return type_tree(text, what)


def _null_of_boolean() -> Any:
    exp = _exp()
    return exp.Cast(this=exp.Null(), to=exp.DataType.build("boolean"))


def _false() -> Any:
    return _exp().Boolean(this=False)
