"""Who waits for the store, as the driver knows it: said once when it begins, once when it ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any

from penstock.core.control.host_reports import WriterStalled
from penstock.engine.store.durable import Stall

__all__ = ["Stalls"]

log = logging.getLogger(__name__)


class Stalls:
    """All writers of a flow that wait.

    >>> stalls = Stalls(300.0)
    >>> stalls.note(WriterStalled("counts[0]", True, "disk full", 0.0))
    >>> [(one["who"], one["reason"]) for one in stalls.now()]
    [('counts[0]', 'disk full')]
    >>> stalls.note(WriterStalled("counts[0]", False, "", 1.5))
    >>> stalls.now()
    []
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[float, str]] = {}
        self._since: float | None = None

    def new(self, name: str) -> Stall:
        """A stall of a writer on the driver."""
        return Stall(name, self.timeout_s, self.note)

    def note(self, news: WriterStalled) -> None:
        """A writer began to wait, or waits no more."""
        with self._lock:
            if not news.waiting:
                self._gone([news.name])
                return
            self._waiting[news.name] = (time.monotonic(), news.reason)
            if self._since is None:
                self._since = time.monotonic()
                log.warning(
                    "%s cannot write (%s): what depends on it waits, for %.0f s at most",
                    news.name,
                    news.reason,
                    self.timeout_s,
                )

    def forget(self, names: Iterable[str]) -> None:
        """These writers are gone."""
        with self._lock:
            self._gone(names)

    def now(self) -> list[dict[str, Any]]:
        """Who waits, why, and for how long."""
        with self._lock:
            return [
                {"who": name, "reason": why, "seconds": round(time.monotonic() - since, 1)}
                for name, (since, why) in self._waiting.items()
            ]

    def _gone(self, names: Iterable[str]) -> None:
        for name in names:
            self._waiting.pop(name, None)
        if self._since is not None and not self._waiting:
            waited_s, self._since = time.monotonic() - self._since, None
            log.warning("everything can be written again, after %.1f s", waited_s)
