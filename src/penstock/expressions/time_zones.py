"""What clocks show in other time zones, and windows of event time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from penstock.expressions.call import Call
from penstock.expressions.coerce import strict
from penstock.expressions.dates import (
    timestamp_argument,
)
from penstock.expressions.lists import arrays_of
from penstock.expressions.nodes import Literal, Node

__all__ = ["FUNCTIONS"]

Build = Callable[[Call], Node]
_DATE, _TIMESTAMP, _NAIVE = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")


def _zone(call: Call, index: int) -> str:
    name = call.constant_string(index)
    try:
        pc.local_timestamp(pa.array([0], pa.timestamp("us", name)))
    except pa.ArrowInvalid:
        call.refuse(f"{name!r} is no time zone; write it as Europe/Berlin or +02:00", index)
    return name


def _shifted(*, to_utc: bool) -> Build:
    """from_utc_timestamp and to_utc_timestamp: what a clock shows elsewhere."""

    def build(call: Call) -> Node:
        call.arity(2)
        zone = _zone(call, 1)
        kernel = _to_utc if to_utc else _from_utc
        return strict(kernel, [timestamp_argument(call, 0)], _TIMESTAMP, zone=zone)

    return build


def _from_utc(values: Any, zone: str) -> pa.Array:
    (values,) = arrays_of(values)
    there = values.cast(pa.timestamp("us", zone))
    return pc.local_timestamp(there).cast(_TIMESTAMP)


def _to_utc(values: Any, zone: str) -> pa.Array:
    """A time that the clock skips counts as the hour before; one that comes twice is the first."""
    (values,) = arrays_of(values)
    local = values.cast(_NAIVE)
    options = {"timezone": zone, "ambiguous": "earliest", "nonexistent": "latest"}
    made = pc.assume_timezone(local, **options)
    # Spark moves what does not exist by the length of the gap.
    back = pc.local_timestamp(made)
    gap = pc.not_equal(back, local)
    if pc.any(gap).as_py():
        hour = pa.scalar(3_600_000_000, pa.duration("us"))
        before = pc.assume_timezone(pc.subtract(local, hour), **options)
        made = pc.if_else(gap, pc.add(before, hour), made)
    return made.cast(_TIMESTAMP)


def _convert(call: Call) -> Node:
    """convert_timezone(from, to, time): of a time without zone."""
    call.arity(2, 3)
    zones = [_zone(call, i) for i in range(len(call.args) - 1)]
    source = zones[0] if len(zones) == 2 else "UTC"
    last = len(call.args) - 1
    node = call.builder.cast(call.args[last], _NAIVE, call.trees[last])
    return strict(_converted, [node], _NAIVE, source=source, to=zones[-1])


def _converted(values: Any, source: str, to: str) -> pa.Array:
    (values,) = arrays_of(values)
    return _from_utc(_to_utc(values.cast(_TIMESTAMP), source), to).cast(_NAIVE)


def _window_time(call: Call) -> Node:
    """The last moment of a window: what its rows count as."""
    call.arity(1)
    kind = call.args[0].type
    if not t.is_struct(kind) or kind.get_field_index("end") < 0:
        call.refuse(f"takes a window, but it is {kind}", 0)
    end = kind.field("end").type
    return strict(_before_end, [call.args[0]], end)


def _before_end(values: Any) -> Any:
    return pc.subtract(pc.struct_field(values, "end"), pa.scalar(1, pa.duration("us")))


def _time_zone(call: Call) -> Node:
    call.arity(0)
    return Literal(pa.scalar("UTC"))


FUNCTIONS: dict[str, Build] = {
    "from_utc_timestamp": _shifted(to_utc=False),
    "to_utc_timestamp": _shifted(to_utc=True),
    "convert_timezone": _convert,
    "current_timezone": _time_zone,
    "window_time": _window_time,
}
