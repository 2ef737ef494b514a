"""Which column a name in SQL means: in any case, as in Spark, unless that is ambiguous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.nodes import Apply, Node, Reference
from penstock.expressions.suggest import nearest

if TYPE_CHECKING:
    from penstock.expressions.build import ExpressionBuilder

__all__ = ["field_of", "resolve"]


def resolve(builder: ExpressionBuilder, names: list[tuple[str, Any]], tree: Any) -> Node:
    """The column, or the field of a struct column, that a dotted name means."""
    schema = builder.schema
    # A column whose own name has a dot in it, written without quotes.
    whole = ".".join(name for name, _ in names)
    if len(names) > 1 and not _matches(schema.names, names[0][0]):
        exact = _matches(schema.names, whole)
        if len(exact) == 1:
            return _column(builder, exact[0])
    (name, part), *rest = names
    found = _matches(schema.names, name)
    if not found:
        builder.refuse(
            f"no column {name!r}{nearest(name, schema.names)} columns: [{', '.join(schema.names)}]",
            part,
            column=name,
        )
    if len(found) > 1:
        candidates = ", ".join(repr(schema.names[i]) for i in found)
        builder.refuse(
            f"{name!r} is ambiguous: it may mean {candidates}; rename the columns apart",
            part,
            column=name,
        )
    node = _column(builder, found[0])
    for field_name, field_part in rest:
        node = field_of(builder, node, field_name, field_part)
    return node


def _column(builder: ExpressionBuilder, index: int) -> Node:
    node = Reference(index, builder.schema.field(index).type)
    builder.columns.append(node)
    return node


def field_of(builder: ExpressionBuilder, node: Node, name: str, part: Any) -> Node:
    """A field of a struct, by name."""
    kind = node.type
    if not pa.types.is_struct(kind):
        builder.refuse(f"{name!r} is asked of {kind}, which is not a struct", part, column=name)
    names = [kind.field(i).name for i in range(kind.num_fields)]
    found = _matches(names, name)
    if len(found) != 1:
        reason = "is ambiguous" if found else f"does not exist{nearest(name, names)}"
        builder.refuse(f"field {name!r} {reason} fields: [{', '.join(names)}]", part, column=name)
    return Apply(pc.struct_field, [node], kind.field(found[0]).type, indices=found)


def _matches(names: list[str], name: str) -> list[int]:
    exact = [i for i, other in enumerate(names) if other == name]
    if len(exact) == 1:
        return exact
    return [i for i, other in enumerate(names) if other.lower() == name.lower()]
