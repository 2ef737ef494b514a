"""Drives a source's reader: when to read, when an epoch ends, what is recorded of it.

An epoch ends with the epoch clock's tick (or where the reader says, if it does), at once when event
time passes a point at which results are due, when the flow is stopped, and when the
input is used up.  Its record (position, journal) is durable before anything of its end leaves the
node.  After a restart the recorded epochs that were not published are read again, each exactly as
far as its record says.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.connectors.base import FollowingReader, Reader
from penstock.core.control.assignment import Linger
from penstock.core.progress.marks import EPOCH_END, WATERMARK_END, WATERMARK_UNREAD
from penstock.core.time import Time
from penstock.engine.host.chain import ChainRunner
from penstock.engine.host.clock import EpochClock
from penstock.engine.host.pace import Pace
from penstock.errors import PeerError, PenstockError, SourceError

__all__ = ["SourceDriver", "SourceRecord"]

ROWS_MAX = 65_536
LOG_BYTES_MAX = 1 << 20
"""A log of boundaries is cut back when it is longer than this."""


@dataclass(frozen=True)
class SourceRecord:
    """What is remembered of an epoch of one shard of a source."""

    epoch: int
    position: Any


class RecordLog(Protocol):
    """Where the records go; ``append`` returns when the record is durable."""

    @property
    def size_bytes(self) -> int:
        """Its size, as far as it was written."""

    def compact(self, after_epoch: int | None) -> None:
        """Put one record in the place of those up to an epoch."""

    def append(self, record: dict[str, Any], sync: bool = True) -> None:
        """Make a record durable; without ``sync`` it need not outlive the machine."""

    def close(self) -> None:
        """Close its file."""


Cut = Callable[[int, int | None, int], None]


@dataclass
class SourceDriver:
    """One shard of a source in its node."""

    stage: str
    node_name: str
    reader: Reader
    chain: ChainRunner
    clock: EpochClock
    cut: Cut
    """Called with (epoch, watermark or None, wall clock) when an epoch has ended."""
    log: RecordLog | None = None
    replay: deque[SourceRecord] = field(default_factory=deque)
    grid_us: int | None = None
    rows_max: int = ROWS_MAX
    linger: Linger = field(default_factory=lambda: Linger(0, 0))
    rows: int = 0
    batches: int = 0
    ended: bool = False
    _epoch: int = -1
    _cuts: deque[tuple[int, Any]] = field(default_factory=deque)
    _recorded: Any = None
    _grid_point: int | None = None
    _stopping: bool = False
    _wait_s: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.reader, FollowingReader):
            self.replay.clear()  # what it follows still has its epochs as they were
        self._epoch = self.replay[0].epoch if self.replay else self._first()
        self._recorded = self.reader.position()
        self._pace = Pace(self.linger, grid_us=self.grid_us)

    def _first(self) -> int:
        """The first epoch of this run; one that follows is told."""
        return -1 if isinstance(self.reader, FollowingReader) else self.clock.base

    @property
    def epoch(self) -> int:
        """The epoch that the next rows will belong to."""
        return self._epoch

    def stop(self) -> None:
        """End the current epoch with the next step, and then the stream.

        One that follows ends after what it follows.
        """
        self._stopping = True

    def close(self, orderly: bool = True) -> None:
        """The node leaves this host: give back what is open."""
        if self.log is not None:
            self.log.close()
        if orderly and not self.ended:
            self.ended = True
            self.reader.close()

    def committed(self, epoch: int) -> None:
        """Every epoch up to this one has reached all sinks: forget what replay cannot need."""
        position = None
        while self._cuts and self._cuts[0][0] <= epoch:
            position = self._cuts.popleft()[1]
        if position is not None and not self.ended:
            self.reader.release(position)
        if self.log is not None and self.log.size_bytes > LOG_BYTES_MAX:
            with suppress(OSError, PeerError):  # then the next time, or another's business
                self.log.compact(epoch)

    def wait_s(self) -> float:
        """How long the driver has nothing to do."""
        return self._wait_s

    def step(self, now: int) -> bool:
        """Read at most one batch; say whether anything was done."""
        if self.ended:
            self._wait_s = 3600.0
            return False
        try:
            if self.replay:
                return self._replay(now)
            if isinstance(self.reader, FollowingReader):
                return self._follow(now, self.reader)
            return self._live(now)
        except PenstockError as error:
            for key, value in self._where().items():
                error.parameters.setdefault(key, value)
            raise
        except Exception as error:
            where = self._where()
            raise SourceError(
                f"source {self.stage!r}, node {self.node_name}, epoch {self._epoch}: "
                f"{type(error).__name__}: {error}",
                traceback=traceback.format_exc(),
                **where,
            ) from error

    def _replay(self, now: int) -> bool:
        record = self.replay[0]
        self._epoch = record.epoch
        batch = self.reader.read(self.rows_max, now, until=record.position)
        if batch is not None:
            self._emit(batch)
            return True
        self.replay.popleft()
        self._recorded = record.position
        self.reader.journal()
        self._end_epoch(now, record=False)
        self._epoch = self.replay[0].epoch if self.replay else self._first()
        return True

    def _follow(self, now: int, reader: FollowingReader) -> bool:
        found = reader.follow()
        if found is None:
            self._wait_s = reader.wait_s(now)
            return False
        if found.epoch >= EPOCH_END:
            self._end(now, found.watermark_us)
            return True
        if found.epoch < self._epoch:
            return True  # ended before a restart
        self._epoch = found.epoch
        for batch in found.batches:
            self._emit(batch)
        self._end_epoch(now, found.watermark_us)
        self._epoch = found.epoch + 1
        return True

    def _live(self, now: int) -> bool:
        wait_us = self._pace.wait_us(now)
        if wait_us and not self._stopping and self.clock.epoch(now) <= self._epoch:
            self._wait_s = min(wait_us / 1e6, self.clock.wait_s(now, self._epoch))
            return False
        batch = self.reader.read(self.rows_max, now)
        rows = 0 if batch is None else batch.num_rows
        if rows:
            self._emit(batch)
        self._pace.was_read(now, rows, self.rows_max, self.chain.seen_us())
        ended = self.reader.exhausted()
        if ended and not self.reader.grows():
            self._end_epoch(now, WATERMARK_END)
            self._end(now, WATERMARK_END)
            return True
        if ended or self._stopping:  # event time goes on in a later run
            self._end_epoch(now, self._unread_us())
            self._end(now, None)
            return True
        closed = self.reader.epoch_ended()
        self._pace.foreseen = closed is None
        tick = self._epoch + closed if closed is not None else self.clock.epoch(now)
        if tick > self._epoch or (tick == self._epoch and self._passed_grid()):
            self._end_epoch(now, self._unread_us())
            self._epoch = max(self._epoch + 1, tick)
            return True
        if batch is None:
            wait = self.reader.wait_s(now)
            until_tick = self.clock.wait_s(now, self._epoch) if closed is None else wait
            self._wait_s = min(wait, until_tick)
            return False
        return True

    def _unread_us(self) -> int | None:
        """What to record of an epoch that ends now, beside its position."""
        without_rows = self.reader.position() == self._recorded
        return WATERMARK_UNREAD if without_rows and self.reader.pending() else None

    def _passed_grid(self) -> bool:
        """Whether event time has passed a point at which results are due."""
        if self.grid_us is None:
            return False
        seen = self.chain.seen_us()
        if seen is None:
            return False
        point = seen // self.grid_us
        passed = self._grid_point is not None and point > self._grid_point
        self._grid_point = point
        return passed

    def _emit(self, batch: Any) -> None:
        self.rows += batch.num_rows
        self.batches += 1
        self.chain.emit(batch, Time.root(self._epoch))

    def _end_epoch(self, now: int, watermark_us: int | None = None, record: bool = True) -> None:
        position = self.reader.position()
        if record and self.log is not None:
            journal = self.reader.journal()
            if journal is not None or position != self._recorded:
                self.log.append({"epoch": self._epoch, "position": position, "journal": journal})
        if position != self._recorded:
            self._cuts.append((self._epoch, position))
        self._recorded = position
        if self.grid_us is not None and (seen := self.chain.seen_us()) is not None:
            self._grid_point = seen // self.grid_us
        self.cut(self._epoch, watermark_us, now)

    def _end(self, now: int, watermark_us: int | None) -> None:
        self.ended = True
        self.cut(EPOCH_END, watermark_us, now)
        self.reader.close()

    def _where(self) -> dict[str, Any]:
        return {"stage": self.stage, "node": self.node_name, "epoch": self._epoch}
