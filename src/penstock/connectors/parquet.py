"""Parquet output: one directory per epoch, published by one atomic rename.

Two stages.  The writer is sharded like its input and streams the rows of each open epoch into one
file per shard; when the epoch is complete there it makes the file durable and sends one row about
it.  The single committer publishes the epoch when all of those rows have arrived.  Readers see
whole epochs only; publishing an epoch again changes nothing.  See :mod:`.staging` for the layout.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.api.vertex import Time, Vertex, VertexContext
from penstock.connectors.base import Sink
from penstock.connectors.ownership import FolderClaim, Owner
from penstock.connectors.staging import Staging
from penstock.errors import NotWrittenError, SchemaError, SinkError
from penstock.operators.base import Exchange, Operator, Single, State

__all__ = ["MANIFEST", "ParquetCommit", "ParquetWrite"]

MANIFEST = pa.schema({"file": pa.string(), "rows": pa.int64(), "bytes": pa.int64()})
"""What the writers tell the committer about a staged file."""

ROW_GROUP_BYTES = 16 << 20
"""Rows of an epoch are kept back until they are this many bytes or the epoch ends."""
COMPRESSION = "snappy"


class ParquetWrite(Operator):
    """Writes each shard's rows of each epoch into a staged file."""

    kind = "parquet"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(Staging(os.fspath(path)).path)  # absolute: hosts work in other folders

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        try:
            with pq.ParquetWriter(pa.BufferOutputStream(), inputs[0]):
                pass
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaError(f"parquet: these columns cannot be written: {error}") from error
        return (MANIFEST,)

    @property
    def state(self) -> State:
        return "epoch"

    def vertex(self) -> Vertex:
        return WriteVertex(Staging(self.path))

    def describe(self) -> str:
        return self.path


class ParquetCommit(Sink):
    """Publishes the staged files of an epoch, in one shard, when the epoch is complete."""

    kind = "parquet_commit"
    durable = True
    _claim: FolderClaim | None = None
    _owner: Owner | None = None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(Staging(os.fspath(path)).path)

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        if not inputs[0].equals(MANIFEST):
            raise SchemaError("parquet_commit: its input must be a ParquetWrite stage")
        return ()

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return (Single(),)

    def check(self) -> None:
        Staging(self.path).check()

    def target(self) -> str | None:
        return self.path

    def owner(self) -> Owner | None:
        return Staging(self.path).claim.owner()

    def take(self, owner: Owner) -> None:
        claim = Staging(self.path).claim
        claim.take()
        self._claim, self._owner = claim, owner

    def release(self) -> None:
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def prepare(self) -> None:
        """Begin a run, on the driver, once nothing can refuse it any more.

        Takes over what earlier runs staged, so it must not be called for a run that another one's
        lock or published epochs forbid.  Without it publishing is still right; only a process of an
        earlier run that wakes up late is not kept out.
        """
        Staging(self.path).begin(self._owner)

    def committed(self) -> int | None:
        return Staging(self.path).committed()

    def vertex(self) -> Vertex:
        return CommitVertex(Staging(self.path))

    def describe(self) -> str:
        return self.path


class _OpenEpoch:
    """One shard's rows of one epoch on their way into a file; memory stays flat."""

    def __init__(self) -> None:
        self.rows = 0
        self.pending: list[pa.RecordBatch] = []
        self.pending_bytes = 0
        self.group: list[pa.RecordBatch] | None = []
        """The rows of the one row group in the file; None: there are several."""
        self.path: Path | None = None
        self.file: Any = None
        self.writer: pq.ParquetWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        self.pending.append(batch)
        self.pending_bytes += batch.nbytes
        self.rows += batch.num_rows

    def flush(self, path: Path) -> None:
        """Write what is pending as one row group."""
        table = pa.Table.from_batches(self.pending)
        if self.writer is None:
            self.path = path
            # A file, not its name: finding the file system of a name takes longer than writing.
            self.file = pa.OSFile(str(path), "wb")
            self.writer = pq.ParquetWriter(self.file, table.schema, compression=COMPRESSION)
        self.writer.write_table(table, row_group_size=max(1, table.num_rows))
        self.group = None if self.group is None or self.group else self.pending
        self.pending, self.pending_bytes = [], 0

    @property
    def closed(self) -> bool:
        """Whether the file is complete."""
        return self.file is not None and bool(self.file.closed)

    def close(self) -> None:
        """Write the footer and close the file."""
        if self.writer is not None:
            self.writer.close()
            self.file.close()

    def discard(self) -> None:
        """Give up the file."""
        path, file = self.path, self.file
        if self.writer is not None:
            self.writer.is_open = False  # it shall not write a footer
        self.path = self.file = self.writer = None
        self.group = []
        try:
            if file is not None:
                file.close()
        finally:
            if path is not None:
                path.unlink(missing_ok=True)


def _again(staging: Staging, error: OSError) -> Exception:
    """What to raise for a failed write: it may work later, unless another run has taken over."""
    gone = isinstance(error, FileNotFoundError) and staging.path.exists()
    if gone and not staging.still_joined():
        return staging.taken()
    return NotWrittenError(f"parquet: {staging.path}: {error}")


def _lost(path: Path | None, error: OSError) -> SinkError:
    return SinkError(
        f"parquet: {path} could not be written: {error}. Nothing is lost: start the flow again "
        "with the same checkpointLocation when it can be"
    )


class WriteVertex(Vertex):
    """Streams rows into one file per open epoch."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._open: dict[int, _OpenEpoch] = {}
        self._name = ""

    def open(self, context: VertexContext) -> None:
        super().open(context)
        self._name = f"part-{context.place.shard:05d}.parquet"
        self._staging.join()

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        epoch = self._open.get(time.epoch)
        if epoch is None:
            epoch = self._open[time.epoch] = _OpenEpoch()
            self.notifyAt(time)
        epoch.add(batch)
        if epoch.pending_bytes >= ROW_GROUP_BYTES:
            with contextlib.suppress(NotWrittenError):  # then with the next batch
                self._flush(epoch)

    def _flush(self, epoch: _OpenEpoch, close: bool = False, again: bool = False) -> None:
        """Write what is pending; an epoch of one row group can be written again from the start."""
        path = epoch.path or self._staging.new_file(self._name)
        whole = epoch.writer is None
        pending, pending_bytes = epoch.pending, epoch.pending_bytes
        try:
            if epoch.pending:
                epoch.flush(path)
            if close:
                epoch.close()
        except OSError as error:
            with contextlib.suppress(OSError):
                epoch.discard()
            if not whole:
                raise _lost(path, error) from error
            epoch.pending, epoch.pending_bytes = pending, pending_bytes
            failure = _again(self._staging, error)
            passes = isinstance(failure, NotWrittenError)
            if again or not passes or not isinstance(error, FileNotFoundError):
                raise failure from None
            self._flush(epoch, close, again=True)  # the folder is there again

    def onNotify(self, time: Time) -> None:
        epoch = self._open[time.epoch]
        if not epoch.closed:
            self._flush(epoch, close=True)
        if epoch.path is None:
            return
        try:
            size = self._staging.stage(epoch.path, time.epoch, self._name)
        except OSError as error:
            if epoch.path.parent.exists() and not epoch.path.exists():
                self._write_again(epoch, error)
            raise _again(self._staging, error) from None
        del self._open[time.epoch]
        row = {"file": [self._name], "rows": [epoch.rows], "bytes": [size]}
        self.sendBy(0, pa.record_batch(row, schema=MANIFEST), time)

    def _write_again(self, epoch: _OpenEpoch, error: OSError) -> None:
        """The file could not be made durable and is gone."""
        if epoch.group is None:
            raise _lost(epoch.path, error) from error
        epoch.pending = epoch.group
        epoch.pending_bytes = sum(batch.nbytes for batch in epoch.pending)
        with contextlib.suppress(OSError):
            epoch.discard()

    def close(self) -> None:
        for epoch in self._open.values():
            if epoch.writer is not None and epoch.path is not None:
                with contextlib.suppress(OSError):
                    epoch.close()
                    epoch.path.unlink()
        self._open.clear()
        self._staging.finish()


class CommitVertex(Vertex):
    """Publishes epochs in order, each when its files are all named."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._files: dict[int, list[pa.RecordBatch]] = {}

    def open(self, context: VertexContext) -> None:
        super().open(context)
        self._staging.join()

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        if time.epoch not in self._files:
            self._files[time.epoch] = []
            self.notifyAt(time)
        self._files[time.epoch].append(batch)

    def onNotify(self, time: Time) -> None:
        staged = pa.Table.from_batches(self._files[time.epoch])
        try:
            published = self._staging.publish(time.epoch, staged["file"].to_pylist())
        except OSError as error:
            raise _again(self._staging, error) from None
        del self._files[time.epoch]
        if published:
            self.count("epochs_published", 1)
            self.count("rows_published", sum(staged["rows"].to_pylist()))
            self.count("bytes_published", sum(staged["bytes"].to_pylist()))

    def close(self) -> None:
        self._staging.finish()
