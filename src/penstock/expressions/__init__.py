"""Users' expressions, compiled against a schema."""

from penstock.expressions.column import Column
from penstock.expressions.compile import Compiled, compile_expression, describe_expression
from penstock.expressions.ddl import parse_schema

__all__ = ["Column", "Compiled", "compile_expression", "describe_expression", "parse_schema"]
