"""A subscription: results on the driver, epoch by epoch, as each becomes complete.

A consumer that does not read slows the flow down; it does not eat memory.  The flow waits while
the queue is full, until the consumer reads, the flow stops, or the subscription is cancelled.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

import pyarrow as pa

from penstock.connectors.driver import DriverSink

__all__ = ["Subscription"]

_ARRIVALS_MAX = 65_536


class Subscription(DriverSink):
    """An iterator of ``(epoch, rows)``; ends when the flow does, and raises what made it fail.

    Within an epoch rows are in the order of their arrival.  Epochs without rows are left out,
    unless ``includeEmpty``.  ``capacity`` epochs or ``bytes_max`` bytes may wait to be read.
    """

    kind = "subscribe"

    def __init__(
        self,
        *,
        includeEmpty: bool = False,
        capacity: int = 1024,
        bytes_max: int = 64 << 20,
    ) -> None:
        self.includeEmpty = includeEmpty
        self.received_ns: dict[int, int] = {}
        """When the rows of an epoch arrived (wall clock), for the latest epochs."""
        self._capacity = max(1, capacity)
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._queue: deque[tuple[int, pa.Table]] = deque()
        self._bytes = 0
        self._complete = -1
        self._bounded = True
        self._ended = False
        self._cancelled = False
        self._failure: BaseException | None = None

    # -- the user's side -------------------------------------------------------------------------

    def __iter__(self) -> Iterator[tuple[int, pa.Table]]:
        return self

    def __next__(self) -> tuple[int, pa.Table]:
        item = self._take(None)
        if item is None:
            raise StopIteration
        return item

    def get(self, timeout: float | None = None) -> tuple[int, pa.Table] | None:
        """The next epoch and its rows; None at the end of the flow.

        Raises TimeoutError when nothing came within ``timeout`` seconds.
        """
        return self._take(timeout)

    def cancel(self) -> None:
        """Read no more: what comes is dropped and the flow is not held up."""
        with self._changed:
            self._cancelled = True
            self._queue.clear()
            self._bytes = 0
            self._changed.notify_all()

    @property
    def completeEpoch(self) -> int:
        """The last epoch that is complete, -1 before the first."""
        return self._complete

    def _take(self, timeout: float | None) -> tuple[int, pa.Table] | None:
        with self._changed:
            came = self._changed.wait_for(
                lambda: self._queue or self._ended or self._cancelled or self._failure, timeout
            )
            if self._queue:
                epoch, rows = self._queue.popleft()
                self._bytes -= rows.nbytes
                self._changed.notify_all()
                return epoch, rows
            if self._failure is not None:
                raise self._failure
            if not came:
                raise TimeoutError(f"no epoch within {timeout} s")
            return None

    # -- the engine's side -----------------------------------------------------------------------

    def begin(self) -> None:
        with self._changed:
            if self._ended or self._failure is not None:
                self._ended, self._failure, self._complete = False, None, -1
                self._bounded = True

    def resume(self, epoch: int) -> None:
        with self._changed:
            self._complete = max(self._complete, epoch - 1)

    def publish(self, epoch: int, rows: pa.Table) -> None:
        now_ns = time.time_ns()
        with self._changed:
            self._advance(epoch - 1)
            self._changed.wait_for(self._has_room)
            if self._cancelled or epoch <= self._complete:
                return
            self._arrived(epoch, now_ns)
            self._complete = epoch
            self._put(epoch, rows)

    def advance(self, epoch: int) -> None:
        with self._changed:
            self._advance(epoch)

    def _advance(self, epoch: int) -> None:
        while self._complete < epoch:
            if not self.includeEmpty or self.schema is None or self._cancelled:
                self._complete = epoch
                break
            self._changed.wait_for(self._has_room)
            self._complete += 1
            self._arrived(self._complete, time.time_ns())
            self._put(self._complete, self.schema.empty_table())

    def stopping(self) -> None:
        with self._changed:
            self._bounded = False
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._bounded = False
            self._failure = error
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._bounded = False
            self._ended = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return (
            not self._queue
            or not self._bounded
            or self._cancelled
            or (len(self._queue) < self._capacity and self._bytes < self._bytes_max)
        )

    def _put(self, epoch: int, rows: pa.Table) -> None:
        self._queue.append((epoch, rows))
        self._bytes += rows.nbytes
        self._changed.notify_all()

    def _arrived(self, epoch: int, now_ns: int) -> None:
        self.received_ns[epoch] = now_ns
        if len(self.received_ns) > _ARRIVALS_MAX:
            del self.received_ns[next(iter(self.received_ns))]
