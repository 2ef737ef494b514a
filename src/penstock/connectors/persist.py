"""A persisted stream: one edge of the flow made durable, as a persisted RDD is.

Two stages.  The first is a sink that appends every completed epoch, with its watermark, to a log in
the flow's store; the second is a source that gives exactly these epochs on.  They have the same
shards, and nothing else between them.  So a rollback on one side leaves the other alone:
above, an epoch that is in the log is not written again; below, everything can be read again.  What
feeds the first stage may be forgotten, and its sources acknowledged, when an epoch is in the log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.vertex import EpochVertex, Time, Vertex, VertexContext
from penstock.connectors.base import (
    Followed,
    FollowingReader,
    KeepsFiles,
    Sink,
    Source,
    SourceContext,
)
from penstock.connectors.epoch_log import (
    EpochLogReader,
    EpochLogWriter,
    EpochRecord,
    last_epoch,
)
from penstock.core.progress.marks import EPOCH_END, WATERMARK_END
from penstock.errors import NotWrittenError, SettingsError

__all__ = ["PersistSource", "PersistWrite"]

POLL_S = 0.001
"""How often a reader looks for the next epoch."""


class PersistWrite(Sink, KeepsFiles):
    """Appends completed epochs to the log of their shard."""

    kind = "persist"
    durable = True
    apart = True

    def __init__(self, name: str) -> None:
        self.name = name
        """Of its folder in the store."""
        self._folder: Path | None = None
        self._sync = True

    def keep_in(self, directory: Path, sync: bool) -> None:
        self._folder, self._sync = directory / "persist" / self.name, sync

    def shard(self, shard: int) -> Path:
        """The folder of a shard's log."""
        if self._folder is None:
            raise SettingsError(
                f"persist {self.name!r} has no place to keep its rows: start the flow with "
                "checkpointLocation"
            )
        return self._folder / f"shard-{shard:05d}"

    def committed(self) -> int | None:
        if self._folder is None:
            return None
        found = [last_epoch(shard, self._sync) for shard in sorted(self._folder.glob("shard-*"))]
        return None if not found or None in found else min(e for e in found if e is not None)

    def committed_by(self, shard: int) -> int | None:
        return last_epoch(self.shard(shard), self._sync)

    def vertex(self) -> Vertex:
        return _WriteVertex(self)

    @property
    def syncs(self) -> bool:
        """Whether epochs must outlive the machine."""
        return self._sync


class _WriteVertex(EpochVertex):
    """Keeps the batches of open epochs, and writes an epoch when it is complete."""

    def __init__(self, write: PersistWrite) -> None:
        self._write = write
        self._open: dict[int, list[pa.RecordBatch]] = {}
        self._log: EpochLogWriter | None = None
        self._watermark_us: int | None = None

    def open(self, context: VertexContext) -> None:
        super().open(context)
        try:
            self._log = EpochLogWriter(self._write.shard(context.place.shard), self._write.syncs)
        except OSError as error:
            raise NotWrittenError(f"persist: {self._write.name}: {error}") from error

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self._open.setdefault(time.epoch, []).append(batch)

    def onEpoch(self, epoch: int, watermark_us: int | None) -> None:
        if self._log is None:
            return
        try:
            self._append(self._log, epoch, watermark_us)
        except OSError as error:
            raise NotWrittenError(f"persist: {self._write.name}: {error}") from error

    def _append(self, log: EpochLogWriter, epoch: int, watermark_us: int | None) -> None:
        for done in sorted(other for other in self._open if other <= epoch):
            batches = self._open[done]
            # What is known after an earlier epoch is known after this one only.
            after_us = watermark_us if done == epoch else self._watermark_us
            log.append(done, batches, after_us)
            del self._open[done]
            self.count("rows_persisted", sum(batch.num_rows for batch in batches))
        log.append(epoch, [], watermark_us, is_end=epoch >= EPOCH_END)
        self._watermark_us = watermark_us

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


class PersistSource(Source):
    """Gives the epochs of a log on."""

    def __init__(self, write: PersistWrite, schema: pa.Schema) -> None:
        self.write = write
        self.schema = schema

    def shards(self, wanted: int) -> int:
        return wanted  # the plan gives it as many as the writer has

    def open(self, context: SourceContext) -> FollowingReader:
        after = -1 if context.position is None else int(context.position["epoch"])
        return _LogReader(self.write.shard(context.shard), after)

    def describe(self) -> str:
        return self.write.name


class _LogReader(FollowingReader):
    """One shard's epochs."""

    def __init__(self, folder: Path, after: int) -> None:
        self._log = EpochLogReader(folder, after)
        self._done = after
        self._record: EpochRecord | None = None
        self._rest: list[pa.RecordBatch] = []
        self._ended = False

    def follow(self) -> Followed | None:
        record = self._record if self._record is not None else self._take()
        if record is None:
            return None
        batches, self._rest, self._record = self._rest, [], None
        if record.is_end:
            self._ended = record.watermark_us == WATERMARK_END
        else:
            self._done = record.epoch
        return Followed(record.epoch, batches, record.watermark_us)

    def _take(self, again: bool = False) -> EpochRecord | None:
        self._record = self._log.next(again)
        if self._record is not None:
            self._rest = self._log.batches(self._record)
        return self._record

    def read(self, rows_max: int, now_us: int, until: Any = None) -> pa.RecordBatch | None:
        """The next rows, whatever their epochs are."""
        return self._next_rows(rows_max, until)

    def read_again(self, rows: int) -> pa.RecordBatch | None:
        return self._next_rows(rows, None, again=True)

    def _next_rows(self, rows_max: int, until: Any, again: bool = False) -> pa.RecordBatch | None:
        while not self._rest:
            if self._record is not None:
                if self._record.is_end:
                    return None
                self._done = self._record.epoch
            if until is not None and self._done >= until["epoch"]:
                self._record = None
                return None
            if self._take(again) is None:
                return None
        batch = self._rest.pop(0)
        if batch.num_rows > rows_max:
            self._rest.insert(0, batch.slice(rows_max))
            batch = batch.slice(0, rows_max)
        return batch

    def position(self) -> dict[str, int]:
        return {"epoch": self._done}

    def exhausted(self) -> bool:
        return self._ended

    def wait_s(self, now_us: int) -> float:
        return POLL_S

    def release(self, position: Any) -> None:
        self._log.forget(position["epoch"])

    def close(self) -> None:
        self._log.close()
