"""What a node has to write, and what it does then, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.engine.store.durable.stall import Stall
from penstock.errors import PeerError

__all__ = ["Writes"]

Do = Callable[[], None]


class Writes:
    """Writes of one node; what the store does not take is tried again by :meth:`go_on`.

    >>> writes, log = Writes(Stall("counts[0]", 10.0, print)), []
    >>> writes.add(lambda: log.append("written"), lambda: log.append("told"))
    >>> log, writes.pending
    (['written', 'told'], False)
    """

    def __init__(self, stall: Stall) -> None:
        self._stall = stall
        self._queue: deque[tuple[Do, Do, Do | None]] = deque()

    @property
    def pending(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._queue)

    def add(self, write: Do, then: Do, refused: Do | None = None) -> None:
        """Write something, then do something, once everything before it is done.

        ``refused`` is done instead, and nothing after it, if the store belongs to another
        incarnation by now.
        """
        self._queue.append((write, then, refused))
        if len(self._queue) == 1:
            self.go_on()

    def go_on(self) -> None:
        """Write what can be written."""
        while self._queue:
            write, then, refused = self._queue[0]
            try:
                write()
            except OSError as error:
                self._stall.failed(error)
                return
            except PeerError:
                if refused is None:
                    raise
                self._queue.clear()  # all that follows would have had to wait for it
                self._stall.worked()
                refused()
                return
            self._queue.popleft()
            self._stall.worked()
            then()
            if self._stall.is_on:  # what came next did not work
                return
