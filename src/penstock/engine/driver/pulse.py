"""Tells hosts that their driver lives, while the controller's thread has other things to do.

A host ends itself when its driver was not heard for as long as its lease.  The controller's thread
is heard all the time, unless it waits for a slow store or file system; then this thread speaks.
"""

from __future__ import annotations

import logging
import threading
import time

from penstock.core.control.host_orders import GoOn
from penstock.engine.driver.links import HostLinks
from penstock.errors import PenstockError

__all__ = ["Pulse"]

log = logging.getLogger(__name__)


class Pulse:
    """Speaks to all hosts if nobody else has for an interval."""

    def __init__(self, links: HostLinks, interval_s: float, over: threading.Event) -> None:
        self._links = links
        self._interval_s = interval_s
        self._over = over
        self._spoken = 0.0
        self._thread = threading.Thread(target=self._run, name="penstock-pulse", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def spoken(self) -> None:
        """All hosts were told something just now."""
        self._spoken = time.monotonic()

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            if time.monotonic() - self._spoken > 1.5 * self._interval_s:
                try:
                    self._links.to_all(GoOn())
                except PenstockError as error:  # a host was just lost: the next time will do
                    log.debug("a pulse could not be sent: %s", error.message)
