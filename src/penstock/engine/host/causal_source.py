"""A source that can be restarted: its ranges are numbered, its cuts carry what a restart needs.

The offset of a row is its number in the shard.  A cut's record has the reader's position, the
offset, and the state of the watermark at that point.  A restarted source opens its reader at the
last cut that is behind it, reads up to its start without sending anything (that only moves the
watermark), then does what its machine's script asks for, and reads on.

What a reader has noted beside its position (newly found files) is durable before rows that depend
on it leave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.core.causal.reports import Cut, Start
from penstock.core.node.causal_effects import ReadAgain, ResumeReading, StoreCut
from penstock.core.progress.marks import EPOCH_END
from penstock.core.time import Time
from penstock.engine.host.source import SourceDriver
from penstock.errors import SourceError

__all__ = ["CausalSourceDriver", "SourceNode", "cuts_of", "resume_record"]

Record = dict[str, Any]


def cuts_of(records: Sequence[Record]) -> tuple[Cut, ...]:
    """The ends of epochs in a log of boundaries."""
    return tuple(
        Cut(record["epoch"], record["offset"], record.get("watermark_us"))
        for record in records
        if "offset" in record
    )


def resume_record(records: Sequence[Record], completed: int) -> Record | None:
    """The last cut at or before an epoch."""
    past = [r for r in records if "offset" in r and r["epoch"] <= completed]
    return past[-1] if past else None


class SourceNode(Protocol):
    """The node behind a causal source."""

    def read(self, batch: pa.RecordBatch, epoch: int) -> None:
        """A step: these rows."""

    def ended(self, epoch: int, watermark_us: int | None, cut_us: int) -> None:
        """The reader has come to the end of an epoch; ``StoreCut`` follows."""

    def record(self, record: Record, sync: bool = True) -> None:
        """This must be durable before anything else happens."""

    def in_turn(self, then: Callable[[], None]) -> None:
        """Do something when everything before it is done."""


@dataclass
class CausalSourceDriver(SourceDriver):
    """One shard of a source under causal recovery."""

    node: SourceNode | None = None
    start: Start | None = None
    reading: bool = False
    """Whether the script of a restart is done."""
    position_first: bool = False
    """Whether where it has read to is noted before what it read leaves: it is not read again, or
    at least not in a later epoch."""
    machines: bool = False
    """Whether the flow has several machines, so that notes must outlive this one.  Where it has
    one, every process that has seen more than the last cut is lost with it."""
    _read_to: int = 0

    def begin(self, base: Record | None) -> None:
        """Go from the cut at which the reader was opened to where the start says."""
        start = self._begun()
        offset = base["offset"] if base else 0
        if base is not None:
            self.chain.restore_watermarks(base["state"])
        ends = [(c.offset, c.epoch) for c in start.cuts if offset < c.offset < start.offset]
        last = max([start.completed, *(c.epoch for c in start.cuts if c.offset <= start.offset)])
        later = [c.epoch for c in start.cuts if c.offset >= start.offset]
        ends.append((start.offset, min(later, default=last + 1)))
        with self.chain.muted():
            for end, epoch in ends:
                if end > offset:
                    self.chain.emit(self._exactly(end - offset), Time.root(epoch))
                    offset = end
        self._read_to = offset

    def _begun(self) -> Start:
        if self.start is None:
            raise SourceError(f"source {self.stage!r} was not given a start")
        return self.start

    # -- effects of the machine ------------------------------------------------------------------

    def cut_record(self, effect: StoreCut) -> Record:
        """What must be durable of the end of an epoch."""
        return {
            "epoch": effect.epoch,
            "position": self.reader.position(),
            "journal": self.reader.journal(),
            "offset": effect.offset,
            "watermark_us": effect.watermark_us,
            "state": self.chain.watermark_state(),
        }

    def read_again(self, effect: ReadAgain) -> pa.RecordBatch:
        """The rows of a range that follows what was read last."""
        if effect.start != self._read_to:
            raise SourceError(
                f"source {self.stage!r}, node {self.node_name}: it should read rows from "
                f"{effect.start} again, but stands at {self._read_to}",
                **self._where(),
            )
        batch = self._exactly(effect.end - effect.start)
        self._read_to = effect.end
        self.rows += batch.num_rows
        self.batches += 1
        return batch

    def resume(self, effect: ResumeReading) -> None:
        """Read on."""
        # An epoch of which rows are out is the next to be cut, however late it is.
        self._epoch = effect.epoch if effect.begun else max(effect.epoch, self._first())
        self._recorded = self.reader.position()
        self.reading = True

    def _exactly(self, rows: int) -> pa.RecordBatch:
        """Exactly this number of the next rows, as one batch."""
        batches: list[pa.RecordBatch] = []
        missing = rows
        while missing:
            batch = self.reader.read_again(missing)
            if batch is None or not batch.num_rows:
                raise SourceError(
                    f"source {self.stage!r}, node {self.node_name}: {missing} of {rows} rows that "
                    "were read before are not there any more; a source must give the same rows "
                    "again until they are published",
                    **self._where(),
                )
            batches.append(batch)
            missing -= batch.num_rows
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    # -- reading ---------------------------------------------------------------------------------

    def step(self, now: int) -> bool:
        if not self.reading:
            self._wait_s = 0.1
            return False
        return super().step(now)

    def _emit(self, batch: pa.RecordBatch) -> None:
        journal = self.reader.journal()
        if journal is not None and self.log is not None:
            self._note({"epoch": self._epoch, "journal": journal})
        if self.position_first:
            self._read_to += batch.num_rows
            self._note({"epoch": self._epoch, "ahead": self._read_to}, sync=self.machines)
        self.rows += batch.num_rows
        self.batches += 1
        if self.node is not None:
            self.node.read(batch, self._epoch)

    def _note(self, record: Record, sync: bool = True) -> None:
        """Remember something before the rows that depend on it leave."""
        if self.node is not None:
            self.node.record(record, sync)
        elif self.log is not None:
            self.log.append(record, sync)

    def _end_epoch(self, now: int, watermark_us: int | None = None, record: bool = True) -> None:
        position = self.reader.position()
        if position != self._recorded:
            self._cuts.append((self._epoch, position))
        self._recorded = position
        if self.grid_us is not None and (seen := self.chain.seen_us()) is not None:
            self._grid_point = seen // self.grid_us
        if self.node is not None:
            self.node.ended(self._epoch, watermark_us, now)

    def _end(self, now: int, watermark_us: int | None) -> None:
        self.ended = True
        if self.node is None:
            self.reader.close()
        else:
            self.node.ended(EPOCH_END, watermark_us, now)
            self.node.in_turn(self.reader.close)
