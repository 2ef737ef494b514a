"""IN, LIKE and RLIKE."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.coerce import (
    coerced,
    common,
    exact_literal,
    folded,
    null,
    operand,
    strict,
)
from penstock.expressions.comparison import comparable, compare
from penstock.expressions.nodes import Apply, Literal, Node
from penstock.expressions.types import is_float, is_string

if TYPE_CHECKING:
    from penstock.expressions.build import ExpressionBuilder

__all__ = ["is_in", "like"]


def is_in(builder: ExpressionBuilder, tree: Any) -> Node:
    """``value IN (a, b, ...)``: null if nothing matches and a null took part."""
    if any(tree.args.get(name) is not None for name in ("query", "unnest", "field")):
        builder.refuse("IN takes a list of values in parentheses, and no query", tree)
    items = [builder.build(item) for item in tree.expressions]
    if not items:
        builder.refuse("IN takes a list of values in parentheses", tree)
    value = operand(builder.build(tree.this))
    if all(isinstance(item, Literal) for item in items) and not isinstance(value, Literal):
        made = _in_constants(value, items)
        if made is not None:
            return made
    tests = []
    for item in items:
        equal = compare("=", value, item)
        tests.append(equal if equal is not None else builder.incomparable(value, item, tree))
    result = tests[0]
    for test in tests[1:]:
        result = folded(Apply(pc.or_kleene, [result, test], pa.bool_()))
    return result


def _in_constants(value: Node, items: list[Node]) -> Node | None:
    known = [item for item in items if not (isinstance(item, Literal) and item.is_null)]
    if not known:
        return null(pa.bool_())
    pairs = [comparable(value, item) for item in known]
    if any(pair is None for pair in pairs):
        return None
    exact = [exact_literal(item, value.type) or item for item in known]
    kind = common([value, *exact])
    if kind is None:
        # Strings beside a date, for instance: one comparison each.
        return None
    if len(exact) == 1 and len(known) == len(items):
        return None
    constants = [coerced(item, kind) for item in exact]
    if not all(isinstance(item, Literal) for item in constants):
        return None
    options = pa.array([item.value.as_py() for item in constants], kind)  # type: ignore[attr-defined]
    has_null = len(known) < len(items)
    return Apply(_is_in, [coerced(value, kind)], pa.bool_(), options=options, has_null=has_null)


def _is_in(values: Any, options: Any, has_null: bool) -> Any:
    if is_float(values.type):
        # -0.0 equals 0.0, but Arrow's hash table tells them apart.
        zero = pa.scalar(0.0, values.type)
        values, options = pc.add(values, zero), pc.add(options, zero)
    found = pc.is_in(values, options)
    if has_null:
        return pc.if_else(found, found, pa.scalar(None, pa.bool_()))
    if values.null_count:
        return pc.if_else(values.is_valid(), found, pa.scalar(None, pa.bool_()))
    return found


def like(builder: ExpressionBuilder, tree: Any) -> Node:
    """LIKE, ILIKE and RLIKE with a constant pattern."""
    from sqlglot import exp  # not at the top: the kernels here run in hosts, which need no parser

    escape = "\\"
    if isinstance(tree, exp.Escape):
        escape = str(tree.expression.this)
        tree = tree.this
    if not isinstance(tree, exp.Like | exp.ILike | exp.RegexpLike) or len(escape) != 1:
        builder.refuse("ESCAPE is a single character after a LIKE pattern", tree)
    word = {exp.Like: "LIKE", exp.ILike: "ILIKE"}.get(type(tree), "RLIKE")
    value = operand(builder.build(tree.this))
    pattern = builder.build(tree.expression)
    for node, role in ((value, "left"), (pattern, "right")):
        if not (is_string(node.type) or pa.types.is_null(node.type)):
            builder.refuse(f"the {role} side of {word} must be a string, not {node.type}", tree)
    if not isinstance(pattern, Literal):
        builder.refuse(f"the pattern of {word} must be a constant", tree.expression)
    if pattern.is_null or pa.types.is_null(value.type):
        return null(pa.bool_())
    text = str(pattern.value.as_py())
    if word == "RLIKE":
        check_regex(builder, text, tree.expression)
        return strict(pc.match_substring_regex, [value], pa.bool_(), pattern=text)
    made = _like(builder, value, text, escape, word == "ILIKE", tree)
    return strict(pc.invert, [made], pa.bool_()) if tree.args.get("negate") else made


def check_regex(builder: ExpressionBuilder, text: str, tree: Any) -> None:
    """Refuse a pattern that Arrow's regular expressions (RE2) cannot read."""
    try:
        pc.match_substring_regex(pa.array([""]), pattern=text)
    except pa.ArrowInvalid as error:
        builder.refuse(f"the regular expression {text!r} does not parse (RE2): {error}", tree)


def _like(
    builder: ExpressionBuilder, value: Node, text: str, escape: str, ignore_case: bool, tree: Any
) -> Node:
    parts = _tokens(builder, text, escape, tree)
    wild = [part in ("%", "_") for part, _ in parts]
    special = [flag and is_wild for flag, (_, is_wild) in zip(wild, parts, strict=True)]
    body = "".join(part for part, _ in parts)
    options: dict[str, Any] = {"ignore_case": True} if ignore_case else {}
    if not any(special) and not ignore_case:
        return strict(pc.equal, [value, coerced(Literal(pa.scalar(body)), value.type)], pa.bool_())
    single = [i for i, is_wild in enumerate(special) if is_wild]
    if all(parts[i][0] == "%" for i in single) and single:
        last = len(parts) - 1
        if single == [last]:
            return strict(pc.starts_with, [value], pa.bool_(), pattern=body[:-1], **options)
        if single == [0]:
            return strict(pc.ends_with, [value], pa.bool_(), pattern=body[1:], **options)
        if single == [0, last]:
            return strict(pc.match_substring, [value], pa.bool_(), pattern=body[1:-1], **options)
    regex = "".join(
        {"%": "(?s:.*)", "_": "(?s:.)"}[part] if is_wild else re.escape(part)
        for part, is_wild in parts
    )
    return strict(pc.match_substring_regex, [value], pa.bool_(), pattern=f"^{regex}$", **options)


def _tokens(
    builder: ExpressionBuilder, text: str, escape: str, tree: Any
) -> list[tuple[str, bool]]:
    """Characters, each with whether it is a wildcard."""
    tokens, i = [], 0
    while i < len(text):
        character = text[i]
        if character == escape:
            i += 1
            if i == len(text) or text[i] not in ("%", "_", escape):
                builder.refuse(
                    f"in the LIKE pattern {text!r} the escape {escape!r} must be followed by %, _ "
                    "or itself",
                    tree,
                )
            tokens.append((text[i], False))
        else:
            tokens.append((character, character in "%_"))
        i += 1
    return tokens
