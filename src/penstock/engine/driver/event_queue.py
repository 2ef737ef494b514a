"""What waits for the controller's thread: events, and questions of other threads."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from penstock.core.control.controller import ControllerEffect
from penstock.errors import TransientError, UsageError

__all__ = ["Event", "EventQueue"]

T = TypeVar("T")
Event = Callable[[], list[ControllerEffect]]
"""Called in the controller's thread; gives the effects that are to be performed."""


class EventQueue:
    """Events in the order in which they came; filled by any thread."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def post(self, event: Event) -> None:
        """Let the controller's thread take an event."""
        self._events.put(event)

    def later(self, function: Callable[[], None]) -> None:
        """Let the controller's thread do something that has no effects of its own."""

        def event() -> list[ControllerEffect]:
            function()
            return []

        self.post(event)

    def get(self, timeout_s: float) -> Event | None:
        """The next event; None if none came in time."""
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def ask(self, function: Callable[[], T], timeout_s: float) -> T:
        """Call a function in the controller's thread; give what it gives, raise what it raises.

        What is wrong with the question is the asker's alone; anything else ends the flow, too.
        """
        future: Future[T] = Future()

        def event() -> list[ControllerEffect]:
            try:
                future.set_result(function())
            except UsageError as error:
                future.set_exception(error)
            except Exception as error:
                future.set_exception(error)
                raise
            return []

        self.post(event)
        try:
            return future.result(timeout_s)
        except FutureTimeoutError as error:
            if future.done():
                raise
            raise TransientError(
                f"the controller did not answer within {timeout_s:g} s: has the flow ended?"
            ) from error
