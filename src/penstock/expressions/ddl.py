"""Spark's DDL strings: ``"id bigint, name string NOT NULL"`` to an Arrow schema.

sqlglot is imported only when there is a string to read: hosts get along without it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.errors import SchemaError

__all__ = ["ddl_of", "parse_schema", "parse_type", "type_of", "type_tree"]

_SIMPLE: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPLTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "INTERVAL": pa.duration("us"),
    "NULL": pa.null(),
}
_NAMES = {
    pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int",
    pa.int64(): "bigint", pa.float32(): "float", pa.float64(): "double", pa.string(): "string",
    pa.large_string(): "string", pa.binary(): "binary", pa.large_binary(): "binary",
    pa.date32(): "date", pa.duration("us"): "interval day to second", pa.null(): "void",
}  # fmt: skip


def parse_schema(schema: Any, what: str = "schema") -> pa.Schema:
    """The Arrow schema of a DDL string; a schema is given back as it is.

    >>> parse_schema("id bigint NOT NULL, tags array<string>")
    id: int64 not null
    tags: list<element: string>
      child 0, element: string
    """
    if isinstance(schema, pa.Schema):
        return schema
    if hasattr(schema, "fieldNames"):
        schema = _ddl_of_struct_type(schema)
    if not isinstance(schema, str):
        raise SchemaError(
            f"{what}: a schema is a pyarrow.Schema or a DDL string such as 'id bigint, name "
            f"string', got {schema!r}"
        )
    import sqlglot.errors
    from sqlglot import exp

    try:
        table = sqlglot.parse_one(f"CREATE TABLE t ({schema})", dialect="spark").this
        columns = table.expressions if isinstance(table, exp.Schema) else []
    except sqlglot.errors.SqlglotError as error:
        near = (getattr(error, "errors", None) or [{}])[0].get("highlight") or ""
        raise SchemaError(
            f"{what}: cannot read the schema {schema!r}{f' near {near!r}' if near else ''}; write "
            "'name type', separated by commas, with Spark's types (bigint, string, ...)"
        ) from None
    fields = [_field(column, schema, what) for column in columns]
    if not fields:
        raise SchemaError(f"{what}: the schema {schema!r} has no columns")
    names = [field.name for field in fields]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise SchemaError(f"{what}: the schema {schema!r} names column {name!r} twice")
    return pa.schema(fields)


def parse_type(kind: Any, what: str = "type") -> pa.DataType:
    """The Arrow type of a DDL type; a type is given back as it is.

    >>> parse_type("decimal(10, 2)")
    Decimal128Type(decimal128(10, 2))
    """
    if isinstance(kind, pa.DataType):
        return kind
    if hasattr(kind, "simpleString"):
        kind = str(kind.simpleString())
    if not isinstance(kind, str):
        raise SchemaError(f"{what}: a type is a pyarrow type or a DDL string, got {kind!r}")
    return parse_schema(f"c {kind}", what).field(0).type


def type_tree(kind: str, what: str) -> Any:
    """The syntax tree of a DDL type."""
    import sqlglot.errors

    try:
        tree: Any = sqlglot.parse_one(f"CAST(c AS {kind})", dialect="spark")
        type_of(tree.to)
    except (sqlglot.errors.SqlglotError, ValueError):
        raise SchemaError(
            f"{what}: {kind!r} is no type; write one of Spark's, such as 'bigint' or 'string'"
        ) from None
    return tree.to


def ddl_of(kind: pa.DataType) -> str:
    """The DDL type of an Arrow type, as Spark's ``simpleString``.

    >>> ddl_of(pa.map_(pa.string(), pa.list_(pa.int32())))
    'map<string,array<int>>'
    """
    types = pa.types
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_map(kind):
        return f"map<{ddl_of(kind.key_type)},{ddl_of(kind.item_type)}>"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"array<{ddl_of(kind.value_type)}>"
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return f"struct<{','.join(f'{field.name}:{ddl_of(field.type)}' for field in fields)}>"
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    found = _NAMES.get(kind)
    if found is None:
        raise SchemaError(f"the type {kind} has no name in Spark's DDL", type=str(kind))
    return found


def _ddl_of_struct_type(schema: Any) -> str:
    """PySpark's StructType as DDL, by what it says of itself."""
    return ", ".join(
        f"`{one.name}` {one.dataType.simpleString()}{'' if one.nullable else ' NOT NULL'}"
        for one in schema.fields
    )


def type_of(tree: Any) -> pa.DataType:
    """The Arrow type of a parsed type; raises ValueError with the reason."""
    from sqlglot import exp

    if not isinstance(tree, exp.DataType):
        raise ValueError(f"unknown type {tree}")
    if isinstance(tree.this, exp.Interval):
        return pa.duration("us")
    kind = getattr(tree.this, "name", str(tree.this))
    if kind in ("DECIMAL", "BIGDECIMAL"):
        numbers = [int(str(part.this)) for part in tree.expressions] + [10, 0][
            len(tree.expressions) :
        ]
        if not (0 < numbers[0] <= 38 and 0 <= numbers[1] <= numbers[0]):
            raise ValueError(f"decimal({numbers[0]}, {numbers[1]}): at most 38 digits")
        return pa.decimal128(*numbers)
    if kind == "ARRAY":
        return pa.list_(pa.field("element", type_of(_only(tree.expressions, "array<element>"))))
    if kind == "MAP":
        if len(tree.expressions) != 2:
            raise ValueError("map<key, value> needs two types")
        return pa.map_(*[type_of(part) for part in tree.expressions])
    if kind == "STRUCT":
        return pa.struct([_struct_field(part) for part in tree.expressions])
    if kind not in _SIMPLE:
        raise ValueError(f"unknown type {tree.sql(dialect='spark')}")
    return _SIMPLE[kind]


def _field(column: Any, schema: str, what: str) -> pa.Field:
    from sqlglot import exp

    if not isinstance(column, exp.ColumnDef) or column.args.get("kind") is None:
        raise SchemaError(
            f"{what}: cannot read {column.sql(dialect='spark')!r} in the schema {schema!r}; write "
            "'name type', separated by commas"
        )
    nullable = True
    for constraint in column.args.get("constraints") or []:
        if isinstance(constraint.kind, exp.NotNullColumnConstraint):
            nullable = bool(constraint.kind.args.get("allow_null"))
        elif not isinstance(constraint.kind, exp.CommentColumnConstraint):
            raise SchemaError(
                f"{what}: {constraint.sql(dialect='spark')} is not supported, in the schema "
                f"{schema!r}"
            )
    try:
        return pa.field(column.name, type_of(column.args["kind"]), nullable)
    except ValueError as error:
        raise SchemaError(
            f"{what}: column {column.name!r} in the schema {schema!r}: {error}",
            column=column.name,
        ) from None


def _struct_field(part: Any) -> pa.Field:
    from sqlglot import exp

    if not isinstance(part, exp.ColumnDef) or part.args.get("kind") is None:
        raise ValueError("a struct is written struct<name: type, ...>")
    return pa.field(part.name, type_of(part.args["kind"]))


def _only(parts: list[Any], form: str) -> Any:
    if len(parts) != 1:
        raise ValueError(f"{form} needs one type")
    return parts[0]
