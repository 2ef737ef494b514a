"""Classes by name: those of installed modules, and those that a vertex's own functions can see.

The second kind has travelled with the code and is in no module of this process.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

__all__ = ["class_name", "find_class"]


def class_name(kind: type[Any], owner: type[Any] | None) -> tuple[str, str] | None:
    """The name by which :func:`find_class` finds a class, None if it does not."""
    name = (kind.__module__, kind.__qualname__)
    return name if find_class(name, owner) is kind else None


def find_class(name: tuple[str, str], owner: type[Any] | None) -> type[Any] | None:
    """The class with a module and a qualified name, as seen by the functions of ``owner``.

    >>> find_class(("collections", "OrderedDict"), None).__name__
    'OrderedDict'
    >>> find_class(("nowhere", "Nothing"), None) is None
    True
    """
    module, qualified = name
    for seen in _seen(qualified.rpartition(".")[2], owner):
        if (seen.__module__, seen.__qualname__) == (module, qualified):
            return seen
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in qualified.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return None
    return found if isinstance(found, type) else None


def _seen(name: str, owner: type[Any] | None) -> Iterator[type[Any]]:
    """The classes that the functions of a class know by a name."""
    for base in () if owner is None else owner.__mro__:
        for attribute in vars(base).values():
            function = inspect.unwrap(getattr(attribute, "__func__", attribute))
            if not isinstance(function, FunctionType):
                continue
            cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            found = [cell.cell_contents for free, cell in cells if free == name]
            for value in (*found, function.__globals__.get(name)):
                if isinstance(value, type):
                    yield value
