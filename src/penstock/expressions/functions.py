"""The table of SQL functions, and the reasons why some are missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions import (
    bits,
    date_formats,
    dates,
    encodings,
    hashes,
    json_functions,
    lambdas,
    list_building,
    list_functions,
    maps,
    maths,
    numbers,
    regexes,
    strings,
    text_functions,
    time_zones,
    times,
)
from penstock.expressions.call import Call
from penstock.expressions.coerce import coerced, common, folded, null
from penstock.expressions.comparison import compare
from penstock.expressions.generators import GENERATORS
from penstock.expressions.nodes import Apply, Node
from penstock.expressions.suggest import nearest
from penstock.expressions.types import operand_type

if TYPE_CHECKING:
    from penstock.expressions.build import ExpressionBuilder

__all__ = ["FUNCTIONS", "build_call"]

_AGGREGATES = frozenset(
    ["count", "sum", "avg", "mean", "min", "max", "first", "last", "collect_list", "collect_set"]
)
_UNREPEATABLE = frozenset(
    ["current_timestamp", "current_date", "now", "localtimestamp", "rand", "randn", "random",
     "uuid", "monotonically_increasing_id", "shuffle", "input_file_name"]
)  # fmt: skip
_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def build_call(builder: ExpressionBuilder, name: str, trees: list[Any], tree: Any) -> Node:
    """The node of ``name(args)``, or a refusal that says why there is none."""
    lowered = name.lower()
    made = FUNCTIONS.get(lowered)
    if made is not None:
        return made(Call(builder, lowered, trees, tree))
    if lowered in _AGGREGATES:
        builder.refuse(
            f"{lowered} is an aggregate; use groupBy(...).agg(F.{lowered}(...))", tree,
            function=lowered,
        )  # fmt: skip
    if lowered in GENERATORS:
        builder.refuse(
            f"{lowered} makes several rows of one: it stands alone in a select, as "
            f"select('*', F.{lowered}(...))",
            tree,
            function=lowered,
        )
    if lowered in _UNREPEATABLE:
        builder.refuse(
            f"{lowered} gives another result each time, so a replay after a failure could not "
            "repeat it; let the source add such a column",
            tree,
            function=lowered,
        )
    raise builder.source.error(
        f"no function {lowered!r}{nearest(lowered, _listed())} docs/functions.md lists them all",
        tree,
        function=lowered,
    )


def _listed() -> list[str]:
    return sorted(name for name in FUNCTIONS if name.isidentifier())


def _coalesce(call: Call) -> Node:
    call.arity(1, 1000)
    kind = common(call.args)
    if kind is None:
        kinds = ", ".join(dict.fromkeys(str(node.type) for node in call.args))
        call.refuse(f"the arguments have no common type: {kinds}")
    args = [coerced(node, kind) for node in call.args]
    if len(args) == 1:
        return args[0]
    if not any(node.fallible for node in args[1:]):
        return folded(Apply(pc.coalesce, args, kind))
    present = [Apply(pc.is_valid, [node], pa.bool_()) for node in args[:-1]]
    return call.builder.case(present, args[:-1], args[-1], call.tree)


def _nullif(call: Call) -> Node:
    call.arity(2)
    equal = compare("=", call.args[0], call.args[1])
    if equal is None:
        call.builder.incomparable(call.args[0], call.args[1], call.tree)
    return call.builder.case([equal], [null(call.args[0].type)], call.args[0], call.tree)


def _is_null(kernel: Callable[..., Any]) -> Callable[[Call], Node]:
    def build(call: Call) -> Node:
        call.arity(1)
        return folded(Apply(kernel, call.args, pa.bool_()))

    return build


def _if(call: Call) -> Node:
    call.arity(3)
    condition = call.builder.boolean(call.trees[0], "the condition of IF")
    return call.builder.case([condition], [call.args[1]], call.args[2], call.tree)


def _nvl2(call: Call) -> Node:
    call.arity(3)
    present = folded(Apply(pc.is_valid, [call.args[0]], pa.bool_()))
    return call.builder.case([present], [call.args[1]], call.args[2], call.tree)


def _of_lists(on_lists: Callable[[Call], Node], on_text: Callable[[Call], Node]) -> Any:
    """A function of texts that arrays have, too."""

    def build(call: Call) -> Node:
        is_list = call.args and pa.types.is_list(call.args[0].type)
        return (on_lists if is_list else on_text)(call)

    return build


def _cast(target: pa.DataType) -> Callable[[Call], Node]:
    """Spark's casts by the type's name: ``bigint(x)``."""

    def build(call: Call) -> Node:
        call.arity(1)
        return call.builder.cast(call.args[0], operand_type(target), call.tree)

    return build


FUNCTIONS: dict[str, Callable[[Call], Node]] = {
    **strings.FUNCTIONS,
    **numbers.FUNCTIONS,
    **times.FUNCTIONS,
    **dates.FUNCTIONS,
    **date_formats.FUNCTIONS,
    **time_zones.FUNCTIONS,
    **maths.FUNCTIONS,
    **bits.FUNCTIONS,
    **encodings.FUNCTIONS,
    **text_functions.FUNCTIONS,
    **regexes.FUNCTIONS,
    **hashes.FUNCTIONS,
    **json_functions.FUNCTIONS,
    **list_functions.FUNCTIONS,
    **list_building.FUNCTIONS,
    **maps.FUNCTIONS,
    **lambdas.FUNCTIONS,
    **{name: _cast(kind) for name, kind in _TYPES.items()},
    "reverse": _of_lists(list_functions.reverse_list, strings.FUNCTIONS["reverse"]),
    "concat": _of_lists(list_building.concat_lists, strings.FUNCTIONS["concat"]),
    "coalesce": _coalesce,
    "ifnull": _coalesce,
    "nvl": _coalesce,
    "nvl2": _nvl2,
    "nullif": _nullif,
    "if": _if,
    "isnull": _is_null(pc.is_null),
    "isnotnull": _is_null(pc.is_valid),
}
