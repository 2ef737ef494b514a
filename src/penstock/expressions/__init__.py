"""Users' expressions, compiled against a schema."""

from penstock.expressions.compile import Compiled, compile_expression, describe_expression
from penstock.expressions.ddl import parse_schema

__all__ = ["Compiled", "compile_expression", "describe_expression", "parse_schema"]
