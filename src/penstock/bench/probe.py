"""Probes: numbered rows pushed every few milliseconds, and when each of them came through.

A probe row enters at the driver, goes through the flow and comes back to the driver when its epoch
is complete there; so it is held up by whatever holds up any node above its sink.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from penstock.connectors.subscribe import Subscription
from penstock.errors import PenstockError, SourceError, TransientError

__all__ = ["INTERVAL_S", "Probe", "quantiles"]

INTERVAL_S = 0.01
STEADY = 5
"""Number of quick probes in a row after which a flow counts as recovered."""
_POLL_S = 0.002


class Probe:
    """Sends probe after probe in a thread of its own and notes how long each took.

    ``push(number)`` sends a probe; ``arrived(rows)`` says which numbers the rows of an epoch bring
    home.  A number that comes again is not counted again.
    """

    def __init__(
        self,
        push: Callable[[int], None],
        out: Subscription,
        arrived: Callable[[pa.Table], Iterable[int]],
    ) -> None:
        self._push = push
        self._out = out
        self._arrived = arrived
        self._sent_ns: list[int] = []
        self._came_ns: dict[int, int] = {}
        self._over = threading.Event()
        self._failure: PenstockError | None = None
        self._threads = [
            threading.Thread(target=target, name=f"penstock-probe-{what}", daemon=True)
            for what, target in (("push", self._send), ("take", self._take))
        ]

    def start(self) -> None:
        """Send from now on."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send no more; what is under way is still taken."""
        self._over.set()
        self._threads[0].join(5)

    def join(self, timeout_s: float) -> None:
        """Wait until the flow's last rows were taken."""
        self._threads[1].join(timeout_s)

    def check(self) -> None:
        """Raise what made the flow fail, if it did."""
        if self._failure is not None:
            raise self._failure

    @property
    def sent(self) -> int:
        """How many probes were sent so far."""
        return len(self._sent_ns)

    @property
    def missing(self) -> int:
        """How many of them have not come through."""
        return len(self._sent_ns) - len(self._came_ns)

    def normal_ms(self, seconds: float, timeout_s: float = 30.0, at_least: int = 1) -> list[float]:
        """How long the probes of the next ``seconds`` take each, in milliseconds.

        A busy machine sends fewer of them: it waits until there are ``at_least`` so many.
        """
        first = self.sent
        deadline = time.monotonic() + seconds + timeout_s
        time.sleep(seconds)
        last = max(self.sent, first + at_least)
        while not all(number in self._came_ns for number in range(first, last)):
            self.check()
            if time.monotonic() > deadline:
                raise TransientError(
                    f"probes do not come through: {self.missing} of {self.sent} are missing after "
                    f"{timeout_s:g} s; is the flow running?"
                )
            time.sleep(_POLL_S)
        return [self._ms(number) for number in range(first, last)]

    def recovered_s(self, since_ns: int, limit_ms: float, timeout_s: float) -> float | None:
        """Seconds from a moment (``perf_counter_ns``) until probes take at most ``limit_ms`` again.

        That is when the first of several quick ones in a row, all sent after the moment, came
        through; None if that did not happen in time.
        """
        first = next((n for n, at in enumerate(self._sent_ns) if at >= since_ns), self.sent)
        deadline = time.monotonic() + timeout_s
        quick, number = 0, first
        while time.monotonic() < deadline:
            self.check()
            if number >= self.sent or number not in self._came_ns:
                time.sleep(_POLL_S)
                continue
            quick = quick + 1 if self._ms(number) <= limit_ms else 0
            number += 1
            if quick == STEADY:
                return (self._came_ns[number - STEADY] - since_ns) / 1e9
        return None

    def _ms(self, number: int) -> float:
        return (self._came_ns[number] - self._sent_ns[number]) / 1e6

    def _send(self) -> None:
        due = time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due = max(due + INTERVAL_S, time.monotonic())
            number = len(self._sent_ns)
            self._sent_ns.append(time.perf_counter_ns())
            try:
                self._push(number)
            except SourceError:  # the flow has ended
                self._sent_ns.pop()
                return

    def _take(self) -> None:
        try:
            for _, rows in self._out:
                now_ns = time.perf_counter_ns()
                for number in self._arrived(rows):
                    self._came_ns.setdefault(number, now_ns)
        except PenstockError as error:
            self._failure = error


def quantiles(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """p50, p99 and the greatest of some values."""
    if not values:
        return {}
    array = np.asarray(values)
    return {
        "p50": round(float(np.percentile(array, 50)), digits),
        "p99": round(float(np.percentile(array, 99)), digits),
        "max": round(float(array.max()), digits),
    }
