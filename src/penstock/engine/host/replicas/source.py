"""A source whose reads are numbered, so that a read that is repeated has the same rows.

The boundary of every read (number, epoch, position) is noted before anything of it leaves.  The
next player of the role opens its reader at the last note that is not needed any more, and reads
again along the others.  Where the source ended an epoch the note has what other regimes look for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.connectors.base import FollowingReader
from penstock.core.progress.marks import EPOCH_END
from penstock.core.time import Time
from penstock.engine.host.replicas.cargo import Cargo
from penstock.engine.host.source import SourceDriver
from penstock.errors import SourceError

__all__ = ["NumberedSource", "numbered", "position_at"]

Record = dict[str, Any]
WAIT_S = 0.02


def numbered(records: Sequence[Record]) -> list[Record]:
    """The notes of a log of boundaries by number; those of another regime end an epoch each."""
    found: dict[int, Record] = {}
    number, before = 0, -1
    for record in records:
        if "position" not in record:
            continue
        number = int(record.get("number", number + 1))
        plain: Record = {"first": number, "last": True, "previous": before, "cut_us": 0}
        plain["rows"] = record.get("offset", 0)
        found[number] = plain | record | {"number": number}
        if found[number]["last"]:
            before = record["epoch"]
    return [found[one] for one in sorted(found)]


def position_at(records: Sequence[Record], epoch: int) -> int:
    """The number of the last read of an epoch or one before it; 0: there is none."""
    return max((int(r["number"]) for r in numbered(records) if r["epoch"] <= epoch), default=0)


@dataclass
class NumberedSource(SourceDriver):
    """One lane: a shard of a source that replicas play."""

    leave: Callable[[Cargo, Record | None, bool], None] | None = None
    """Called with each read once its rows are through the chain: what to note, and how surely."""
    may_read: Callable[[], bool] | None = None
    reading: bool = False
    single: bool = False
    """Whether every read is an epoch of its own."""
    again: deque[Record] = field(default_factory=deque)
    number: int = 0
    read_to: int = 0
    """Rows of the shard that were read so far."""
    previous: int = -1
    previous_us: int | None = None
    """The watermark after the previous epoch."""
    first: int = 1
    noted: int = 0
    """The greatest number that was noted; what is read again need not be."""
    _open: bool = False
    """Whether the present epoch has reads already."""
    _had: bool = False
    """Whether there are rows that have not left."""

    def begin(self, base: Record | None, again: Iterable[Record]) -> None:
        """Go on after a note, along others."""
        self.again.extend(again)
        self.noted = self.again[-1]["number"] if self.again else 0
        if base is not None:
            self.number, self.read_to = base["number"], base["rows"]
            self.noted = max(self.noted, self.number)
            if base.get("state"):
                self.chain.restore_watermarks(base["state"])
            self._after(base)
            given_us = base.get("given_us", base.get("watermark_us"))
            self.previous_us = _least(self.chain.restate(base["epoch"], given_us))
            if base["epoch"] >= EPOCH_END:  # all of it was read
                self.ended = True
                self.reader.close()
        if isinstance(self.reader, FollowingReader):
            self.again.clear()  # what it follows still has its epochs as they were

    def _after(self, record: Record) -> None:
        """Where the epochs are after a read."""
        self._epoch = record["epoch"]
        self._open = not record["last"]
        self.first = record["first"]
        if record["last"]:
            self.previous = record["epoch"]
            self._epoch = max(record["epoch"] + 1, self._first())
        else:
            self.previous = record["previous"]

    # -- reading ---------------------------------------------------------------------------------

    def step(self, now: int) -> bool:
        if not self.reading or self.may_read is None:
            self._wait_s = WAIT_S
            return False
        if self.again and not self.ended:  # with ends of epochs that others wait for
            return self._read_again(now)
        if not self.may_read():
            return self._mark(now)
        worked = super().step(now)
        if self._had:
            self._leave(False, None, now)
        return worked

    def _mark(self, now: int) -> bool:
        """What was read last has not come to the end, but its epoch may have."""
        self._wait_s = WAIT_S
        if not self._open or self.clock.epoch(now) <= self._epoch or self.again:
            return False
        self._end_epoch(now, self._unread_us())
        self._epoch = max(self._epoch + 1, self.clock.epoch(now))
        return True

    def _read_again(self, now: int) -> bool:
        """The next of the reads that were noted, just as it was."""
        record = self.again.popleft()
        if record["epoch"] >= EPOCH_END:
            self._end(now, record["given_us"])
            return True
        self._epoch = record["epoch"]
        while (batch := self.reader.read(self.rows_max, now, until=record["position"])) is not None:
            self._emit(batch)
        self.reader.journal()
        if record["last"]:
            self._leave(True, record.get("given_us"), record["cut_us"])
            self._recorded = record["position"]
        else:
            self._leave(False, None, record["cut_us"])
        if self.read_to != record["rows"]:
            raise SourceError(
                f"source {self.stage!r}, node {self.node_name}: read {record['number']} ended at "
                f"row {record['rows']} and ends at row {self.read_to} now; a source must give the "
                "same rows again until they are published",
                **self._where(),
            )
        self._after(record)
        return True

    def _emit(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.batches += 1
        self.read_to += batch.num_rows
        self._had = True
        self.chain.emit(batch, Time.root(self._epoch))

    def _passed_grid(self) -> bool:
        return super()._passed_grid() or (self.single and self._had)

    def _end_epoch(self, now: int, watermark_us: int | None = None, record: bool = True) -> None:
        position = self.reader.position()
        if position != self._recorded:
            self._cuts.append((self._epoch, position))
        self._recorded = position
        self._leave(True, watermark_us, now)
        if self.grid_us is not None and (seen := self.chain.seen_us()) is not None:
            self._grid_point = seen // self.grid_us

    def _end(self, now: int, watermark_us: int | None) -> None:
        self.ended = True
        self._epoch = EPOCH_END
        self._leave(True, watermark_us, now)
        self.reader.close()

    # -- one read --------------------------------------------------------------------------------

    def _leave(self, last: bool, given_us: int | None, cut_us: int) -> None:
        """Send what was read since the last time, under the next number."""
        self.number += 1
        if not self._open:
            self.first = self.number
        epoch, self._had = self._epoch, False
        watermark_us = _least(self.chain.complete(epoch, given_us)) if last else None
        before = (self.previous, self.previous_us)
        cargo = Cargo(-1, epoch, self.first, last, *before, watermark_us, cut_us)
        note = None if self.number <= self.noted else self._note(cargo, given_us)
        self._open = not last
        if last:
            self.previous, self.previous_us = epoch, watermark_us
        if self.leave is not None:
            self.leave(cargo, note, last)

    def _note(self, cargo: Cargo, given_us: int | None) -> Record:
        self.noted = self.number
        record: Record = {
            "epoch": cargo.epoch,
            "position": self.reader.position(),
            "journal": self.reader.journal(),
            "number": self.number,
            "first": cargo.first,
            "last": cargo.last,
            "previous": cargo.previous,
            "rows": self.read_to,
            "cut_us": cargo.cut_us,
        }
        if cargo.last:
            record |= {"watermark_us": cargo.watermark_us, "given_us": given_us}
            record["offset"] = self.read_to
            record["state"] = self.chain.watermark_state()
        return record


def _least(after: Mapping[int, int | None]) -> int | None:
    """The watermark of a lane, given that of each link out of its source."""
    known = [one for one in after.values() if one is not None]
    return min(known) if known and len(known) == len(after) else None
