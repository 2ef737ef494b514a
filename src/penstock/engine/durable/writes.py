"""What a node has to write, and what it does then, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.engine.durable.stall import Stall

__all__ = ["Writes"]


class Writes:
    """Writes of one node; what the store does not take is tried again by :meth:`go_on`.

    >>> writes, log = Writes(Stall("counts[0]", 10.0, print)), []
    >>> writes.add(lambda: log.append("written"), lambda: log.append("told"))
    >>> log, writes.pending
    (['written', 'told'], False)
    """

    def __init__(self, stall: Stall) -> None:
        self._stall = stall
        self._queue: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()

    @property
    def pending(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._queue)

    def add(self, write: Callable[[], None], then: Callable[[], None]) -> None:
        """Write something, then do something, once everything before it is done."""
        self._queue.append((write, then))
        if len(self._queue) == 1:
            self.go_on()

    def go_on(self) -> None:
        """Write what can be written."""
        while self._queue:
            write, then = self._queue[0]
            try:
                write()
            except OSError as error:
                self._stall.failed(error)
                return
            self._queue.popleft()
            self._stall.worked()
            then()
            if self._stall.is_on:  # what came next did not work
                return
