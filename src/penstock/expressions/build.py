"""Syntax tree to compiled nodes: columns, literals, operators, conditionals.

Every mistake is found here, against the schema, and reported with its place in the SQL; nothing is
left to be refused when data arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Never

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from penstock.expressions import functions, literals, membership
from penstock.expressions.arithmetic import calculate, negated
from penstock.expressions.casts import cast_kernel
from penstock.expressions.coerce import coerced, common, folded, null, operand, strict
from penstock.expressions.comparison import compare, null_safe_equal
from penstock.expressions.ddl import type_of
from penstock.expressions.names import field_of, resolve
from penstock.expressions.nodes import Apply, CaseWhen, Literal, Node, Reference, ShortCircuit
from penstock.expressions.parse import SourceText, to_sql

__all__ = ["ExpressionBuilder"]

_COMPARISONS = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_ARITHMETIC = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
}


class ExpressionBuilder:
    """Compiles syntax trees against one schema."""

    def __init__(self, schema: pa.Schema, source: SourceText) -> None:
        self.schema = schema
        self.source = source
        self.columns: list[Reference] = []
        """Every use of a column, so that they can be renumbered."""

    def build(self, tree: Any) -> Node:
        """The node of a syntax tree."""
        method = _BUILDERS.get(type(tree))
        if method is None:
            self.refuse(f"{_kind_of(tree)} is not supported in an expression", tree)
        for name, value in tree.args.items():
            # What the parser understood and we do not must never be passed over in silence.
            if value and name not in _KNOWN_ARGUMENTS:
                self.refuse(f"{_kind_of(tree)}: {name} is not supported", tree)
        try:
            return method(self, tree)
        except pa.ArrowNotImplementedError as error:
            self.refuse(f"{to_sql(tree)} is not supported: {error}", tree)

    def refuse(self, message: str, tree: Any = None, **parameters: Any) -> Never:
        """Raise the SchemaError that points at ``tree``."""
        raise self.source.error(message, tree, **parameters)

    def boolean(self, tree: Any, role: str) -> Node:
        """A node that must be boolean."""
        node = operand(self.build(tree))
        if pa.types.is_null(node.type):
            return null(pa.bool_())
        if not pa.types.is_boolean(node.type):
            self.refuse(f"{role} must be boolean, but {to_sql(tree)} is {node.type}", tree)
        return node

    # -- leaves ----------------------------------------------------------------------------------

    def _column(self, tree: Any) -> Node:
        names = [(part.name, part) for part in tree.parts]
        return resolve(self, names, tree)

    def _dot(self, tree: Any) -> Node:
        parts = []
        while isinstance(tree, exp.Dot):
            parts.append(tree.expression)
            tree = tree.this
        if not isinstance(tree, exp.Column):
            node = self.build(tree)
            for part in reversed(parts):
                node = field_of(self, node, part.name, part)
            return node
        names = [*tree.parts, *reversed(parts)]
        return resolve(self, [(part.name, part) for part in names], tree)

    def _bracket(self, tree: Any) -> Node:
        if len(tree.expressions) != 1:
            self.refuse("a single index or key goes into brackets", tree)
        return functions.build_call(self, "[]", [tree.this, tree.expressions[0]], tree)

    def _literal(self, tree: Any) -> Node:
        return literals.literal(self, tree)

    def _interval(self, tree: Any) -> Node:
        return literals.interval(self, tree)

    def _boolean_literal(self, tree: Any) -> Node:
        return Literal(pa.scalar(bool(tree.this)))

    def _null(self, tree: Any) -> Node:
        return null(pa.null())

    def _inner(self, tree: Any) -> Node:
        return self.build(tree.this)

    # -- operators -------------------------------------------------------------------------------

    def _comparison(self, tree: Any) -> Node:
        left, right = self.build(tree.this), self.build(tree.expression)
        made = compare(_COMPARISONS[type(tree)], left, right)
        return made if made is not None else self.incomparable(left, right, tree)

    def incomparable(self, left: Node, right: Node, tree: Any) -> Never:
        """Refuse a comparison of two types."""
        self.refuse(
            f"cannot compare {left.type} with {right.type} in {to_sql(tree)}; cast one side", tree
        )

    def _null_safe(self, tree: Any) -> Node:
        left, right = self.build(tree.this), self.build(tree.expression)
        made = null_safe_equal(left, right)
        if made is None:
            self.incomparable(left, right, tree)
        made = folded(made)
        return made if isinstance(tree, exp.NullSafeEQ) else strict(pc.invert, [made], pa.bool_())

    def _arithmetic(self, tree: Any) -> Node:
        sign = _ARITHMETIC[type(tree)]
        left, right = self.build(tree.this), self.build(tree.expression)
        return self.calculated(sign, left, right, tree)

    def calculated(self, sign: str, left: Node, right: Node, tree: Any) -> Node:
        """An arithmetic operation, or a refusal."""
        made = calculate(sign, left, right)
        if made is None:
            self.refuse(
                f"{sign} is not defined for {left.type} and {right.type} in {to_sql(tree)}", tree
            )
        return made

    def _negative(self, tree: Any) -> Node:
        if isinstance(tree.this, exp.Literal) and not tree.this.is_string:
            return literals.literal(self, tree.this, negative=True)
        node = self.build(tree.this)
        made = negated(node)
        if made is None:
            self.refuse(f"- is not defined for {node.type}", tree)
        return made

    def _logical(self, tree: Any) -> Node:
        conjunction = isinstance(tree, exp.And)
        word = "AND" if conjunction else "OR"
        left = self.boolean(tree.this, f"the left side of {word}")
        right = self.boolean(tree.expression, f"the right side of {word}")
        if right.fallible:
            return ShortCircuit(left, right, conjunction=conjunction)
        return folded(
            Apply(pc.and_kleene if conjunction else pc.or_kleene, [left, right], pa.bool_())
        )

    def _not(self, tree: Any) -> Node:
        return strict(pc.invert, [self.boolean(tree.this, "the operand of NOT")], pa.bool_())

    def _is(self, tree: Any) -> Node:
        other = tree.expression
        if isinstance(other, exp.Null):
            return folded(Apply(pc.is_null, [self.build(tree.this)], pa.bool_()))
        if isinstance(other, exp.Boolean):
            node = self.boolean(tree.this, "the operand of IS")
            made = folded(
                Apply(pc.coalesce, [node, Literal(pa.scalar(not other.this))], pa.bool_())
            )
            return made if other.this else strict(pc.invert, [made], pa.bool_())
        raise self.source.error("IS is followed by NULL, TRUE, FALSE or their NOT", tree)

    def _between(self, tree: Any) -> Node:
        value = self.build(tree.this)
        parts = []
        for sign, bound in ((">=", tree.args["low"]), ("<=", tree.args["high"])):
            limit = self.build(bound)
            made = compare(sign, value, limit)
            parts.append(made if made is not None else self.incomparable(value, limit, tree))
        return folded(Apply(pc.and_kleene, parts, pa.bool_()))

    def _in(self, tree: Any) -> Node:
        return membership.is_in(self, tree)

    def _like(self, tree: Any) -> Node:
        return membership.like(self, tree)

    # -- conditionals ----------------------------------------------------------------------------

    def case(
        self, conditions: Sequence[Node], values: Sequence[Node], default: Node, tree: Any
    ) -> Node:
        """CASE with its branches brought to one type."""
        branches = [operand(node) for node in (*values, default)]
        kind = common(branches)
        if kind is None:
            kinds = ", ".join(dict.fromkeys(str(node.type) for node in branches))
            self.refuse(f"the branches of {to_sql(tree)} have no common type: {kinds}", tree)
        *made, otherwise = [coerced(node, kind) for node in branches]
        return CaseWhen(conditions, made, otherwise)

    def _case(self, tree: Any) -> Node:
        conditions, values = [], []
        subject = self.build(tree.this) if tree.this is not None else None
        for branch in tree.args["ifs"]:
            if subject is None:
                conditions.append(self.boolean(branch.this, "the condition after WHEN"))
            else:
                other = self.build(branch.this)
                equal = compare("=", subject, other)
                conditions.append(
                    equal if equal is not None else self.incomparable(subject, other, branch)
                )
            values.append(self.build(branch.args["true"]))
        default = tree.args.get("default")
        otherwise = null(pa.null()) if default is None else self.build(default)
        return self.case(conditions, values, otherwise, tree)

    def _if(self, tree: Any) -> Node:
        condition = self.boolean(tree.this, "the condition of IF")
        false = tree.args.get("false")
        otherwise = null(pa.null()) if false is None else self.build(false)
        return self.case([condition], [self.build(tree.args["true"])], otherwise, tree)

    # -- casts and functions -----------------------------------------------------------------------

    def _cast(self, tree: Any) -> Node:
        try:
            target = type_of(tree.to)
        except ValueError as error:
            self.refuse(f"CAST: {error}", tree)
        if tree.args.get("format") is not None:
            self.refuse("CAST ... FORMAT is not supported", tree)
        attempt = isinstance(tree, exp.TryCast) and bool(tree.args.get("safe"))
        return self.cast(self.build(tree.this), target, tree, attempt=attempt)

    def cast(self, node: Node, target: pa.DataType, tree: Any, *, attempt: bool = False) -> Node:
        """An explicit cast, or a refusal."""
        if node.type == target:
            return node
        node = operand(node)
        if node.type == target:
            return node
        if isinstance(node, Literal) and node.is_null:
            return null(target)
        found = cast_kernel(node.type, target, attempt=attempt)
        if found is None:
            self.refuse(f"cannot cast {node.type} to {target}", tree)
        kernel, fallible, options = found
        made = strict(kernel, [node], target, fallible=fallible, **options)
        if fallible and isinstance(node, Literal) and not isinstance(made, Literal):
            self.refuse(f"cannot cast {node.value.as_py()!r} to {target}", tree)
        return made

    def _call(self, tree: Any) -> Node:
        return functions.build_call(self, tree.name, tree.expressions, tree)

    def _bitwise(self, tree: Any) -> Node:
        sign = {exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "^"}.get(type(tree), "~")
        sides = [tree.this] if sign == "~" else [tree.this, tree.expression]
        return functions.build_call(self, sign, sides, tree)

    def _variable(self, tree: Any) -> Node:
        return resolve(self, [(tree.name, tree)], tree)

    def _transform(self, tree: Any) -> Node:
        return functions.build_call(self, "transform", [tree.this, tree.expression], tree)

    def _bytes(self, tree: Any) -> Node:
        return Literal(pa.scalar(bytes.fromhex(str(tree.this)), pa.binary()))

    def _concat(self, tree: Any) -> Node:
        parts = tree.expressions if isinstance(tree, exp.Concat) else [tree.this, tree.expression]
        return functions.build_call(self, "concat", parts, tree)

    def _trim(self, tree: Any) -> Node:
        names = {"LEADING": "ltrim", "TRAILING": "rtrim"}
        name = names.get((tree.args.get("position") or "BOTH").upper(), "trim")
        characters = tree.args.get("expression")
        if characters is None:
            return functions.build_call(self, name, [tree.this], tree)
        return functions.build_call(self, f"{name} from", [tree.this, characters], tree)

    def _extract(self, tree: Any) -> Node:
        return functions.build_call(self, f"extract {tree.name.lower()}", [tree.expression], tree)


def _kind_of(tree: Any) -> str:
    if isinstance(tree, exp.Query):
        return "a query"
    if isinstance(tree, exp.Star):
        return "*"
    text = to_sql(tree)
    return text if len(text) <= 60 else text[:57] + "..."


_KNOWN_ARGUMENTS = frozenset(
    # The parts of a node, and marks that the parser leaves for other dialects.
    ["this", "expression", "expressions", "table", "db", "catalog", "quoted", "is_string", "low",
     "high", "ifs", "true", "false", "default", "to", "safe", "format", "unit", "position",
     "negate", "query", "alias", "unnest", "field", "typed", "coalesce"]
)  # fmt: skip

_BUILDERS: dict[type, Callable[[ExpressionBuilder, Any], Node]] = {
    exp.Column: ExpressionBuilder._column,
    exp.Dot: ExpressionBuilder._dot,
    exp.Literal: ExpressionBuilder._literal,
    exp.Interval: ExpressionBuilder._interval,
    exp.Boolean: ExpressionBuilder._boolean_literal,
    exp.Null: ExpressionBuilder._null,
    exp.Paren: ExpressionBuilder._inner,
    exp.NullSafeEQ: ExpressionBuilder._null_safe,
    exp.NullSafeNEQ: ExpressionBuilder._null_safe,
    exp.Neg: ExpressionBuilder._negative,
    exp.And: ExpressionBuilder._logical,
    exp.Or: ExpressionBuilder._logical,
    exp.Not: ExpressionBuilder._not,
    exp.Is: ExpressionBuilder._is,
    exp.Between: ExpressionBuilder._between,
    exp.In: ExpressionBuilder._in,
    exp.Like: ExpressionBuilder._like,
    exp.ILike: ExpressionBuilder._like,
    exp.RegexpLike: ExpressionBuilder._like,
    exp.Escape: ExpressionBuilder._like,
    exp.Case: ExpressionBuilder._case,
    exp.If: ExpressionBuilder._if,
    exp.Cast: ExpressionBuilder._cast,
    exp.TryCast: ExpressionBuilder._cast,
    exp.Anonymous: ExpressionBuilder._call,
    exp.BitwiseAnd: ExpressionBuilder._bitwise,
    exp.BitwiseOr: ExpressionBuilder._bitwise,
    exp.BitwiseXor: ExpressionBuilder._bitwise,
    exp.BitwiseNot: ExpressionBuilder._bitwise,
    exp.Identifier: ExpressionBuilder._variable,
    exp.Transform: ExpressionBuilder._transform,
    exp.HexString: ExpressionBuilder._bytes,
    exp.Alias: ExpressionBuilder._inner,
    exp.Bracket: ExpressionBuilder._bracket,
    exp.DPipe: ExpressionBuilder._concat,
    exp.Concat: ExpressionBuilder._concat,
    exp.Trim: ExpressionBuilder._trim,
    exp.Extract: ExpressionBuilder._extract,
    **dict.fromkeys(_COMPARISONS, ExpressionBuilder._comparison),
    **dict.fromkeys(_ARITHMETIC, ExpressionBuilder._arithmetic),
}
