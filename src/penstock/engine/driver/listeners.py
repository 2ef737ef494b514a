"""Calls a query's listeners, in a thread that does nothing else.

Listeners are users' code: one that sleeps, or waits for another system, holds up nobody but the
other listeners.  What they have not heard yet waits here, as far as there is room; then the oldest
progress is passed over, as Spark does.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.api.progress import FlowProgress
    from penstock.engine.driver.query import FlowQuery

__all__ = ["FlowListener", "Listeners"]

log = logging.getLogger(__name__)

WAITING_MAX = 100
"""Progress that waits for slow listeners; what is older is passed over."""


class FlowListener:
    """Override what you want to hear of; calls come from a thread of the query's."""

    def onQueryStarted(self, query: FlowQuery) -> None:
        """The flow is running; called by ``addListener`` itself."""

    def onQueryProgress(self, progress: FlowProgress) -> None:
        """A new progress is there."""

    def onQueryTerminated(self, query: FlowQuery, error: PenstockError | None) -> None:
        """The flow is over."""


class Listeners:
    """The listeners of one query."""

    def __init__(self) -> None:
        self._listeners: list[FlowListener] = []
        self._waiting: deque[FlowProgress] = deque()
        self._end: Callable[[FlowListener], None] | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._passed_over = 0
        self.told = threading.Event()
        """Set when all have heard of the end."""

    def add(self, listener: FlowListener, query: FlowQuery) -> None:
        """Call a listener from now on."""
        _call(listener.onQueryStarted, query)
        with self._changed:
            self._listeners.append(listener)
            if self._thread is None and self._end is None:
                self._thread = threading.Thread(
                    target=self._run, name="penstock-listeners", daemon=True
                )
                self._thread.start()

    def remove(self, listener: FlowListener) -> None:
        """Call a listener no more."""
        with self._changed:
            self._listeners.remove(listener)

    def progressed(self, progress: FlowProgress) -> None:
        """There is news; never waits."""
        with self._changed:
            if self._thread is None:
                return
            self._waiting.append(progress)
            if len(self._waiting) > WAITING_MAX:
                self._waiting.popleft()
                self._passed_over += 1
            self._changed.notify()

    def ended(self, query: FlowQuery, error: PenstockError | None) -> None:
        """The flow is over; never waits."""
        with self._changed:
            self._end = partial(_tell_end, query, error)
            if self._thread is None:
                self.told.set()
            self._changed.notify()

    # -- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while (progress := self._next()) is not None:
            for listener in list(self._listeners):
                _call(listener.onQueryProgress, progress)
        for listener in list(self._listeners):
            if self._end is not None:
                self._end(listener)
        self.told.set()

    def _next(self) -> FlowProgress | None:
        """The next progress; None: the flow is over, and everything before was told."""
        with self._changed:
            while not self._waiting and self._end is None:
                self._changed.wait()
            if self._passed_over:
                log.warning("listeners are slow: %d progresses were passed over", self._passed_over)
                self._passed_over = 0
            return self._waiting.popleft() if self._waiting else None


def _tell_end(query: FlowQuery, error: PenstockError | None, listener: FlowListener) -> None:
    _call(listener.onQueryTerminated, query, error)


def _call(function: Callable[..., None], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception:
        log.exception("a listener raised")
