"""The wall clock and the epoch clock.

Epochs are numbered by the wall clock, so that the shards of all sources agree on a number without
talking to each other: with ``started_us`` and ``interval_us`` the same everywhere, a shard is in
epoch ``base + (now - started) / interval``.  When its event time passes a point at which results
are due, a shard ends the epoch at once and goes on in the next one, which the tick then does not
end again.  Ticks lie half an interval beside round times: windows end at round times, and a shard
that is a little early must not count as being in another epoch than one that is a little late.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["EpochClock", "now_us", "work_clock_s"]


_worked = threading.local()


def now_us() -> int:
    """The wall clock in microseconds."""
    return time.time_ns() // 1000


def work_clock_s() -> float:
    """A clock that stands still while this thread waits for a processor, where Linux says so.

    What work takes does not depend on who else uses the machine, but for waiting for disks.  The
    thread may lose its processor between the two looks here; the clock does not go back for that.
    """
    waited_ns = 0
    with (
        suppress(OSError, ValueError, IndexError),
        open("/proc/thread-self/schedstat", "rb", buffering=0) as file,
    ):
        waited_ns = int(file.read(200).split()[1])
    _worked.s = max(getattr(_worked, "s", 0.0), time.perf_counter() - waited_ns / 1e9)
    return _worked.s


@dataclass(frozen=True)
class EpochClock:
    """Numbers epochs by the wall clock.

    >>> clock = EpochClock.starting(base=7, now=1_000_020_000, interval_us=100_000)
    >>> clock.epoch(1_000_020_000), clock.epoch(1_000_050_000), clock.epoch(1_000_250_001)
    (7, 8, 10)
    """

    base: int
    origin_us: int
    interval_us: int

    @classmethod
    def starting(cls, base: int, now: int, interval_us: int) -> EpochClock:
        """A clock that gives ``base`` now and ticks half an interval beside round times."""
        half = interval_us // 2
        return cls(base, now - (now - half) % interval_us, interval_us)

    def epoch(self, now: int) -> int:
        """The epoch at a moment; never before ``base``."""
        return self.base + max(0, now - self.origin_us) // self.interval_us

    def wait_s(self, now: int, epoch: int) -> float:
        """How long until ``epoch`` is over."""
        end = self.origin_us + (epoch - self.base + 1) * self.interval_us
        return max(0, end - now) / 1_000_000
