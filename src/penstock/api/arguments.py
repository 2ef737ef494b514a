"""Arguments as PySpark takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

__all__ = ["flat"]


@overload
def flat(values: tuple[str, ...]) -> list[str]: ...
@overload
def flat(values: Sequence[Any]) -> list[Any]: ...
def flat(values: Sequence[Any]) -> list[Any]:
    """Arguments given one by one or as one list."""
    return list(values[0]) if len(values) == 1 and isinstance(values[0], list) else list(values)
