"""When hosts are launched that come in others' places.

A process that comes up takes processor time from the nodes that recover.  So a fresh host is
launched ``LAUNCH_MS`` after the recovery is over, or after ``LAUNCH_MS_MAX`` whatever happens.  It
is launched at once if nodes wait for it, or if other launches are still waiting: where one host
after another is lost, all are needed.
"""

from __future__ import annotations

__all__ = ["LAUNCH_MS", "LAUNCH_MS_MAX", "Launches"]

LAUNCH_MS = 200
"""How long a launch waits after a recovery."""
LAUNCH_MS_MAX = 2_000
"""How long a launch waits at most."""


class Launches:
    """Launches that wait.

    >>> launches = Launches()
    >>> launches.add(4, at_once=False, now_ms=0)
    >>> launches.due(quiet=False, now_ms=100), launches.due(quiet=True, now_ms=300)
    ([], [])
    >>> launches.due(quiet=True, now_ms=500)
    [4]
    """

    def __init__(self) -> None:
        self._by_ms: dict[int, int] = {}
        """Per host that comes up soon: when it is launched at the latest."""

    def add(self, host: int, at_once: bool, now_ms: int) -> None:
        """A host is to be launched."""
        at_once = at_once or bool(self._by_ms)
        by_ms = now_ms + (0 if at_once else LAUNCH_MS_MAX)
        self._by_ms = dict.fromkeys([*self._by_ms, host], by_ms)

    def due(self, quiet: bool, now_ms: int) -> list[int]:
        """The hosts to launch now; ``quiet``: no node is still recovering."""
        found = [host for host, by_ms in self._by_ms.items() if now_ms >= by_ms]
        waiting = {host: by_ms for host, by_ms in self._by_ms.items() if now_ms < by_ms}
        if quiet:
            waiting = {host: min(by_ms, now_ms + LAUNCH_MS) for host, by_ms in waiting.items()}
        self._by_ms = waiting
        return found
