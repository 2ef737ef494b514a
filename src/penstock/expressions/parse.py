"""SQL text to syntax tree, and errors that point at the place in the text.

Parsing is sqlglot's, in the Spark dialect.  Its rewriting of function calls into a common
vocabulary is switched off: a call stays a name with arguments, and what a name means is decided
here, in :mod:`penstock.expressions.functions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlglot.errors
from sqlglot import exp
from sqlglot.dialects.spark import Spark

from penstock.errors import SchemaError

__all__ = ["SourceText", "expression_and_name", "parse_sql", "to_sql"]

_KEPT = ("CAST", "TRY_CAST", "TRIM", "EXTRACT")


class _Plain(Spark):
    """Spark's grammar, with every function call left as it was written."""

    class Parser(Spark.Parser):  # type: ignore[valid-type, misc]
        FUNCTIONS: dict[str, Any] = {}  # noqa: RUF012 - sqlglot's way
        FUNCTION_PARSERS = {  # noqa: RUF012
            name: Spark.Parser.FUNCTION_PARSERS[name] for name in _KEPT
        }
        NO_PAREN_FUNCTIONS: dict[Any, Any] = {}  # noqa: RUF012


@dataclass(frozen=True)
class SourceText:
    """The text that is being compiled, for whom, and how to complain about it."""

    what: str
    sql: str

    def error(self, message: str, at: Any = None, **parameters: Any) -> SchemaError:
        """A SchemaError that shows the text and, where known, marks the place."""
        span = at if isinstance(at, tuple) else _span(at) or self._place(at)
        lines = [f"{self.what}: {message}"]
        if span is None:
            lines += [f"  {line}" for line in self.sql.splitlines()]
        else:
            lines += _marked(self.sql, *span)
            parameters.setdefault("position", span[0])
        return SchemaError("\n".join(lines), sql=self.sql, **parameters)

    def _place(self, tree: Any) -> tuple[int, int] | None:
        """Where a part of an expression that was not parsed stands in the text."""
        text = to_sql(tree) if isinstance(tree, exp.Expression) else ""
        start = self.sql.find(text)
        return (start, start + len(text)) if text and start >= 0 else None


def parse_sql(source: SourceText) -> Any:
    """The syntax tree of one expression."""
    if not source.sql.strip():
        raise source.error("the expression is empty")
    try:
        trees = [tree for tree in _Plain().parse(source.sql) if tree is not None]
    except sqlglot.errors.ParseError as error:
        raise _parse_error(source, error) from None
    except sqlglot.errors.SqlglotError as error:
        raise source.error(f"this SQL does not parse: {str(error).splitlines()[0]}") from None
    if len(trees) != 1:
        raise source.error(f"expected one SQL expression, got {len(trees)} statements")
    return trees[0]


def to_sql(tree: Any) -> str:
    """The canonical text of a tree."""
    return tree.sql(dialect=_Plain, normalize_functions=False)


def _parse_error(source: SourceText, error: sqlglot.errors.ParseError) -> SchemaError:
    first = error.errors[0] if error.errors else {}
    before, highlight = first.get("start_context") or "", first.get("highlight") or ""
    description = first.get("description") or "unknown reason"
    if "Required keyword" in description:
        description = f"something is missing after {highlight!r}"
    elif "Unexpected token" in description:
        description = f"unexpected {highlight!r}"
    start = source.sql.find(before + highlight)
    if start < 0 or not highlight:
        return source.error(f"this SQL does not parse: {description}")
    begin = start + len(before)
    return source.error(f"this SQL does not parse: {description}", (begin, begin + len(highlight)))


def _span(tree: Any) -> tuple[int, int] | None:
    """The characters [start, end) that the tree's positions cover, if any are known."""
    if not isinstance(tree, exp.Expression):
        return None
    metas = [node.meta for node in tree.walk() if "start" in node.meta and "end" in node.meta]
    if not metas:
        return None
    return min(meta["start"] for meta in metas), max(meta["end"] for meta in metas) + 1


def _marked(sql: str, start: int, end: int) -> list[str]:
    lines, position = [], 0
    for line in sql.split("\n"):
        first, last = max(start - position, 0), min(end - position, len(line))
        lines.append(f"  {line}")
        if first < last:
            lines.append("  " + " " * first + "^" * (last - first))
        position += len(line) + 1
    return lines


def expression_and_name(tree: Any) -> tuple[Any, str]:
    """An expression without its alias, and the name of its result."""
    if isinstance(tree, exp.Alias):
        return tree.this, tree.alias
    if isinstance(tree, exp.Column | exp.Dot):
        return tree, tree.name
    return tree, to_sql(tree)
