"""One thread that waits for all connections of a process.

It calls whoever is ready to read or write, runs what other threads ask for, and calls ``on_time``
when that is due.  Nothing that it calls may block.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

__all__ = ["READ", "WRITE", "Poller"]

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

Ready = Callable[[int], None]
"""Called with READ, WRITE or both."""


class Poller:
    """Waits for sockets, in a thread of its own."""

    def __init__(
        self,
        name: str,
        on_time: Callable[[float], float | None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._on_time = on_time
        """Called with the time after each turn; says when it wants to be called at the latest."""
        self._on_failure = on_failure
        self._selector = selectors.DefaultSelector()
        self._calls: deque[Callable[[], None]] = deque()
        self._woken = False
        self._stop = False
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_out, READ, self._drain_wakes)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # -- from any thread -------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Run something in the poller's thread, soon."""
        self._calls.append(function)
        if not self._woken:
            self._woken = True
            with suppress(OSError):  # full: it wakes up anyway; closed: it has ended
                self._wake_in.send(b"w")

    def stop(self) -> None:
        """End the thread after what was asked for before."""
        self.call(self._end)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; say whether it has come."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- in its own thread -----------------------------------------------------------------------

    def watch(self, connection: socket.socket, events: int, ready: Ready) -> None:
        """Call ``ready`` whenever a socket is; replaces what was said of it before."""
        try:
            self._selector.modify(connection, events, ready)
        except KeyError:
            self._selector.register(connection, events, ready)

    def forget(self, connection: socket.socket) -> None:
        """Watch a socket no more; call it before the socket is closed."""
        with suppress(KeyError, ValueError, OSError):
            self._selector.unregister(connection)

    def _end(self) -> None:
        self._stop = True

    def _drain_wakes(self, _events: int) -> None:
        with suppress(BlockingIOError):
            self._wake_out.recv(4096)

    def _run(self) -> None:
        due: float | None = 0.0
        try:
            while not self._stop:
                wait = None if due is None else max(0.0, due - time.monotonic())
                for key, events in self._selector.select(0.0 if self._calls else wait):
                    key.data(events)
                self._woken = False
                while self._calls and not self._stop:
                    self._calls.popleft()()
                due = self._on_time(time.monotonic())
        except Exception as error:
            self._on_failure(error)
        finally:
            self._selector.close()
            self._wake_out.close()
            self._wake_in.close()
