"""A vertex's values as plain ones and Arrow tables, and back.

``freeze`` copies what can change (lists, dicts, arrays) and refers to what cannot (Arrow data, put
aside in a list of tables).  ``thaw`` makes equal values; two names of one list stay two names of
one list.  An object is its attributes and the name of its class, whose constructor is not called.
What could not be thawed is refused when the state is taken, not when it is needed.

    >>> tables: list[pa.Table] = []
    >>> plain = freeze({"n": 3, "rows": deque([pa.record_batch({"a": [1]})], maxlen=5)}, tables)
    >>> len(tables), thaw(plain, tables)["rows"].maxlen
    (1, 5)
"""

from __future__ import annotations

import contextlib
import copyreg
import datetime
import decimal
import enum
import functools
import logging
import random
import re
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from penstock.core.time import Time
from penstock.engine.store.class_registry import class_name, find_class
from penstock.errors import FunctionError, InvariantError
from penstock.operators.grown import Grown, table_of

__all__ = ["freeze", "freeze_attributes", "thaw"]

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
_FACTORIES: dict[str, Any] = {k.__name__: k for k in (list, dict, set, int, float, str, bool)}
_SMALL_BYTES = 1024
"""Arrays up to this size are plain values; larger ones are Arrow data."""
_NEW: Any = vars(copyreg)["__newobj__"]
"""What an object is made with that has no constructor arguments to keep."""
_CODE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    type,
    functools.partial,
    re.Pattern,
    logging.Logger,
    np.ufunc,
)
"""What a constructor makes again; it is no state."""


def freeze(value: Any, tables: list[Any], owner: type[Any] | None = None) -> Any:
    """A value as msgpack can carry it; Arrow data is added to ``tables``.

    There it is a table, or rows with their lineage (:class:`penstock.operators.grown.Grown`).
    ``owner`` is the class whose functions see the classes of objects in it.
    """
    return _Freezer(tables, owner).freeze(value, "")


def freeze_attributes(
    values: Mapping[str, Any],
    initial: Mapping[str, Any],
    tables: list[Any],
    owner: type[Any] | None = None,
) -> Any:
    """Named values, but for functions, classes and the like that are there from the start."""
    kept = {
        name: value
        for name, value in values.items()
        if not (isinstance(value, _CODE) and initial.get(name) is value)
    }
    return freeze(kept, tables, owner)


def thaw(plain: Any, tables: Sequence[Any], owner: type[Any] | None = None) -> Any:
    """The value that was frozen."""
    return _Thawer(tables, owner).thaw(plain)


class _Freezer:
    def __init__(self, tables: list[Any], owner: type[Any] | None) -> None:
        self._tables = tables
        self._owner = owner
        self._seen: dict[int, tuple[int, Any]] = {}

    def freeze(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, float, str, bytes):
            return value
        if kind is int:
            return value if _INT_MIN <= value <= _INT_MAX else ("int", str(value))
        write = _WRITE.get(kind)
        if write is not None:
            return write(value)
        if isinstance(value, np.generic) and not value.dtype.hasobject and not value.dtype.names:
            return ("scalar", value.dtype.str, value.tobytes())
        if kind is datetime.datetime and _has_offset(value):
            return ("datetime", value.isoformat())
        if kind is tuple:
            return ("tuple", *self._items(value, path))
        if kind is frozenset:
            return ("frozenset", *self._sorted(value, path))
        arrow = self._arrow(value)
        return arrow if arrow is not None else self._shared(value, path)

    def _shared(self, value: Any, path: str) -> Any:
        """A value that can change: the second time it is met it is only referred to."""
        known = self._seen.get(id(value))
        if known is not None:
            return ("again", known[0])
        self._seen[id(value)] = (len(self._seen), value)
        kind = type(value)
        if kind is list:
            return ("list", *self._items(value, path))
        if kind is set:
            return ("set", *self._sorted(value, path))
        if kind is deque:
            return ("deque", value.maxlen, *self._items(value, path))
        if kind in (dict, OrderedDict, Counter):
            return (kind.__name__, *self._pairs(value, path))
        if kind is defaultdict:
            factory = value.default_factory
            name = None if factory is None else getattr(factory, "__name__", "?")
            if name is None or _FACTORIES.get(name) is factory:
                return ("defaultdict", name, *self._pairs(value, path))
        if kind is np.ndarray and value.dtype.names is None and not value.dtype.hasobject:
            data: Any = value.tobytes()
            if len(data) > _SMALL_BYTES:
                column = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
                data = self._put("values", _alone(pa.table({"": column})))
            return ("array", value.dtype.str, value.shape, data)
        if kind is random.Random:
            return ("random", self.freeze(value.getstate(), path))
        return self._object(value, path)

    def _object(self, value: Any, path: str) -> Any:
        kind = type(value)
        name = class_name(kind, self._owner)
        if name is not None and isinstance(value, enum.Enum):
            return ("enum", name, value.name)
        if name is not None and not isinstance(value, _CODE):
            with contextlib.suppress(TypeError):
                made, arguments, *rest = value.__reduce_ex__(2)
                state, *items = [*rest, None, None, None][:3]
                plain = made is _NEW and items == [None, None]
                if plain and arguments == (kind,):
                    return ("object", name, self.freeze(state, path))
                if plain and isinstance(value, tuple) and state is None:
                    return ("record", name, *self._items(value, path))
        raise FunctionError(
            f"{path or 'its state'} is of type {kind.__module__}.{kind.__qualname__}, which a "
            "checkpoint cannot hold; override snapshot() and restore() to give its content as "
            "Arrow tables, numbers, strings, lists and dicts"
        )

    def _items(self, values: Any, path: str) -> list[Any]:
        return [self.freeze(value, f"{path}[{index}]") for index, value in enumerate(values)]

    def _pairs(self, values: Mapping[Any, Any], path: str) -> list[Any]:
        found = []
        for key, value in values.items():
            where = f"{path}[{key!r}]" if path else str(key)
            found.append((self.freeze(key, where), self.freeze(value, where)))
        return found

    def _sorted(self, values: Any, path: str) -> list[Any]:
        """The order of a set differs from process to process; bytes do not."""
        return sorted((self.freeze(value, path) for value in values), key=msgpack.packb)

    def _arrow(self, value: Any) -> Any:
        if isinstance(value, pa.Table):
            return self._put("table", value)
        if isinstance(value, Grown):
            return self._put("grown", value)
        if isinstance(value, pa.RecordBatch):
            return self._put("batch", Grown.of(pa.Table.from_batches([value]), value))
        if isinstance(value, pa.Array | pa.ChunkedArray):
            name = "chunked" if isinstance(value, pa.ChunkedArray) else "values"
            return self._put(name, Grown.of(pa.table({"": value}), value))
        if isinstance(value, pa.Scalar):
            return self._put("value", _alone(pa.table({"": pa.array([value.as_py()], value.type)})))
        if isinstance(value, pa.Schema):
            return self._put("schema", _alone(value.empty_table()))
        if isinstance(value, pa.DataType):
            return self._put("type", _alone(pa.schema({"": value}).empty_table()))
        return None

    def _put(self, kind: str, rows: pa.Table | Grown) -> tuple[str, int]:
        self._tables.append(rows)
        return (kind, len(self._tables) - 1)


def _alone(table: pa.Table) -> Grown:
    """A table that was made for the occasion."""
    return Grown.of(table, None)


class _Thawer:
    def __init__(self, tables: Sequence[Any], owner: type[Any] | None) -> None:
        self._tables = tables
        self._owner = owner
        self._made: list[Any] = []

    def thaw(self, plain: Any) -> Any:
        if not isinstance(plain, tuple | list):
            return plain
        kind, *rest = plain
        read = _READ.get(kind)
        if read is not None:
            return read(*rest)
        if kind == "again":
            return self._made[rest[0]]
        if kind == "tuple":
            return tuple(map(self.thaw, rest))
        if kind == "frozenset":
            return frozenset(map(self.thaw, rest))
        arrow = _ARROW.get(kind)
        if arrow is not None:
            return arrow(table_of(self._tables[rest[0]]))
        return self._tables[rest[0]] if kind == "grown" else self._shared(kind, rest)

    def _shared(self, kind: str, rest: list[Any]) -> Any:
        number = len(self._made)
        self._made.append(None)  # in the order in which they were met
        if kind == "array":
            dtype, shape, data = rest
            if not isinstance(data, bytes):
                data = self.thaw(data).to_numpy()
            made: Any = np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()
        elif kind == "random":
            made = random.Random()
            made.setstate(self.thaw(rest[0]))
        elif kind in ("enum", "record", "object"):
            return self._object(number, kind, *rest)
        elif kind == "deque":
            made = deque(maxlen=rest[0])
        elif kind == "defaultdict":
            made = defaultdict(None if rest[0] is None else _FACTORIES[rest[0]])
        else:
            made = _EMPTY[kind]()
        self._made[number] = made
        if kind == "list":
            made.extend(map(self.thaw, rest))
        elif kind == "set":
            made.update(map(self.thaw, rest))
        elif kind == "deque":
            made.extend(map(self.thaw, rest[1:]))
        elif kind not in ("array", "random"):
            for key, value in rest[1:] if kind == "defaultdict" else rest:
                made[self.thaw(key)] = self.thaw(value)
        return made

    def _object(self, number: int, kind: str, name: tuple[str, str], *rest: Any) -> Any:
        found = find_class((name[0], name[1]), self._owner)
        if found is None:
            raise InvariantError(
                f"the class {'.'.join(name)} of a kept value is not there any more"
            )
        if kind == "enum":
            self._made[number] = made = found[rest[0]]
            return made
        if kind == "record":
            self._made[number] = made = tuple.__new__(found, map(self.thaw, rest))
            return made
        self._made[number] = made = object.__new__(found)
        state = self.thaw(rest[0])
        if hasattr(made, "__setstate__"):
            made.__setstate__(state)
            return made
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        if attributes:
            vars(made).update(attributes)
        for slot, value in (slots or {}).items():
            object.__setattr__(made, slot, value)
        return made


def _has_offset(moment: datetime.datetime) -> bool:
    """Whether its text says all of it: no time zone, or one that is only an offset."""
    return moment.tzinfo is None or type(moment.tzinfo) is datetime.timezone


_EMPTY: dict[str, Callable[[], Any]] = {
    "list": list,
    "set": set,
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": Counter,
}
_WRITE: dict[type[Any], Callable[[Any], Any]] = {
    Time: lambda value: ("time", *value),
    bytearray: lambda value: ("bytearray", bytes(value)),
    decimal.Decimal: lambda value: ("decimal", str(value)),
    uuid.UUID: lambda value: ("uuid", value.bytes),
    datetime.date: lambda value: ("date", value.isoformat()),
    datetime.timedelta: lambda value: (
        "timedelta",
        value.days,
        value.seconds,
        value.microseconds,
    ),
}
_READ: dict[str, Callable[..., Any]] = {
    "int": int,
    "time": lambda *parts: Time.from_wire(parts),
    "bytearray": bytearray,
    "decimal": decimal.Decimal,
    "uuid": lambda data: uuid.UUID(bytes=data),
    "date": datetime.date.fromisoformat,
    "datetime": datetime.datetime.fromisoformat,
    "timedelta": datetime.timedelta,
    "scalar": lambda dtype, data: np.frombuffer(data, np.dtype(dtype))[0],
}
_ARROW: dict[str, Callable[[pa.Table], Any]] = {
    "table": lambda table: table,
    "batch": lambda table: (
        table.combine_chunks().to_batches()[0]
        if table.num_rows
        else pa.RecordBatch.from_pylist([], table.schema)
    ),
    "values": lambda table: table.column(0).combine_chunks(),
    "chunked": lambda table: table.column(0),
    "value": lambda table: table.column(0)[0],
    "schema": lambda table: table.schema,
    "type": lambda table: table.schema.field(0).type,
}
