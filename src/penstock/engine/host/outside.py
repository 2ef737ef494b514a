"""What a step gets from elsewhere: the time, random numbers, answers of other systems.

Everything that a vertex is given here is noted with the step.  When the step is replayed, the same
values come back in the same order, so the node repeats itself exactly.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import msgpack

from penstock.engine.host.clock import now_us
from penstock.errors import FunctionError

__all__ = ["Outside"]


class Outside:
    """The values of the present step.

    >>> outside = Outside(expected=True, notes=True)
    >>> number = outside.random()
    >>> again = Outside(expected=True, notes=True)
    >>> again.recall(outside.take()); again.random() == number
    True
    """

    def __init__(self, expected: bool, notes: bool) -> None:
        self._expected = expected
        """Whether it is known of the node that it asks for values."""
        self._notes = notes
        """Whether steps can be replayed."""
        self._noted: list[Any] = []
        self._recalled: deque[Any] = deque()

    def recall(self, values: bytes) -> None:
        """The step that follows was done before, with these values."""
        self._recalled = deque(msgpack.unpackb(values, use_list=False, strict_map_key=False))

    def take(self) -> bytes:
        """What the step that ends has noted; empty if nothing."""
        noted, self._noted = self._noted, []
        self._recalled.clear()
        return msgpack.packb(noted) if noted else b""

    def now_us(self) -> int:
        """The wall clock in microseconds."""
        return int(self._given(now_us))

    def random(self) -> float:
        """A random number from 0 up to 1."""
        return float(self._given(random.random))

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function answers now."""
        return self._given(lambda: function(*arguments))

    def _given(self, function: Callable[[], Any]) -> Any:
        if not self._expected:
            raise FunctionError(
                "it asked for the time, a random number or an answer from outside without "
                "declaring it: set usesOutside = True in its class"
            )
        value = self._recalled.popleft() if self._recalled else function()
        try:
            packed = msgpack.packb(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise FunctionError(
                f"call: the answer is {value!r}, which cannot be noted ({error}); give numbers, "
                "strings, bytes, None, and lists or dicts of these"
            ) from error
        if self._notes:
            self._noted.append(value)
        return msgpack.unpackb(packed, use_list=False, strict_map_key=False)
