"""A stream as a table in versions: what one part of a flow makes, looked up by another.

    components = found.toTable("components")                 # each epoch with rows is a version
    queries.asOf(components).lookup(components, on="user")   # of this flow, or of another one

An epoch's rows are the whole table as of then: one Arrow file, made durable and published by a
rename, read through a memory map.  No stage waits for a version.  A lookup takes the newest one
there is, and which one that was is noted with the rows (:class:`AsOf`), so that a replay sees the
same.  There is no edge between the two sides: neither goes back with the other, and what was
published is never taken back.

Old versions go, except for the newest few (``keep``) and those that the recovery of
a lookup may need (:mod:`.table_pins`), in this flow or in another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.vertex import Time, Vertex
from penstock.connectors.base import KeepsFiles, Sink
from penstock.connectors.ownership import FolderClaim, Owner, taken
from penstock.connectors.table_pins import pinned
from penstock.errors import NotWrittenError, SettingsError, SinkError, SourceError
from penstock.operators.base import Exchange, Single
from penstock.operators.columns import require_column
from penstock.paths import local_path
from penstock.storage.syncs import sync_directory, sync_written

__all__ = ["PublishedTable", "TableWrite"]

KEEP = 16
"""Least number of versions kept, unless the user chooses another."""
MANY = 1000
"""Number of versions kept only for a reader above which a warning is logged."""

_log = logging.getLogger(__name__)

_VERSION = re.compile(r"version-([0-9]{16})\.arrow\Z")


class PublishedTable:
    """The versions of a table; inert, travels to the hosts with the code."""

    def __init__(self, name: str, schema: pa.Schema, path: str | None = None) -> None:
        self.name = name
        self.schema = schema
        self._folder = None if path is None else local_path(path, "toTable", SettingsError)
        self.shared = path is not None
        """Whether it is in a place of its own, not in the flow's store."""

    def __repr__(self) -> str:
        return f"PublishedTable({self.name!r}, [{', '.join(self.schema.names)}])"

    @property
    def folder(self) -> Path:
        """Where the versions are."""
        if self._folder is None:
            raise SettingsError(
                f"table {self.name!r} has no place: give toTable a path, or start the flow with "
                "checkpointLocation"
            )
        return Path(self._folder)

    @property
    def placed(self) -> bool:
        """Whether it is known where."""
        return self._folder is not None

    @property
    def column(self) -> str:
        """The column that says which version a row sees."""
        return f"{self.name}_version"

    def versions(self) -> list[int]:
        """The numbers of the versions that are there, oldest first; each is an epoch's."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return sorted(int(found[1]) for name in names if (found := _VERSION.match(name)))

    def newest(self) -> int | None:
        """The number of the newest version; None before the first."""
        return max(self.versions(), default=None)

    def read(self, version: int | None = None) -> pa.Table:
        """The rows of a version, by default of the newest; none before the first."""
        version = self.newest() if version is None else version
        if version is None:
            return self.schema.empty_table()
        try:
            with pa.memory_map(str(self.file(version))) as file:
                return pa.ipc.open_file(file).read_all()
        except FileNotFoundError as error:
            raise SourceError(
                f"table {self.name!r}: version {version} is not there, only {self.versions()}. "
                "What an asOf of a flow has noted is kept until it is not needed any more; for "
                "others keep more versions with toTable(..., keep=N)",
                table=self.name,
                version=version,
            ) from error

    def file(self, version: int) -> Path:
        """The file of a version."""
        return self.folder / f"version-{version:016d}.arrow"

    def place(self, folder: Path) -> None:
        """Where it is to be, unless the user has said so."""
        if self._folder is None:
            self._folder = str(folder / "tables" / self.name)


class TableWrite(Sink, KeepsFiles):
    """Publishes each epoch that has rows as a version of the table, in one node."""

    kind = "table"
    durable = True
    _claim: FolderClaim | None = None
    _owner: Owner | None = None

    def __init__(self, table: PublishedTable, keep: int = KEEP, newest: str | None = None) -> None:
        if keep < 2:
            raise SettingsError(f"toTable: keep at least 2 versions, got {keep!r}")
        if newest is not None:
            require_column(table.schema, newest, "toTable: newest")
        self.table = table
        self.newest = newest
        self.keep = keep
        self.sync = True

    def keep_in(self, directory: Path, sync: bool) -> None:
        self.table.place(directory)
        self.sync = sync

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return (Single(),)

    def target(self) -> str | None:
        return str(self.table.folder) if self.table.shared else None

    def writes_as(self) -> str | None:
        return str(self.table.folder) if self.table.placed else None

    def claim(self) -> FolderClaim:
        """The mark of who writes the table."""
        return FolderClaim(self.table.folder, f"table {self.table.name!r} in {self.table.folder}")

    def owner(self) -> Owner | None:
        return self.claim().owner() if self.table.shared else None

    def take(self, owner: Owner) -> None:
        claim = self.claim()
        try:
            claim.take()
        except OSError as error:
            raise self._unwritable(error) from error
        self._claim, self._owner = claim, owner

    def release(self) -> None:
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def prepare(self) -> None:
        """Make the folder, and drop what an earlier run had not finished."""
        if not self.table.placed:
            return  # a place of this run only, which is empty
        folder = self.table.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob("writing-*"):
                left.unlink(missing_ok=True)
            if self._claim is not None and self._owner is not None:
                self._claim.note(self._owner)
        except OSError as error:
            raise self._unwritable(error) from error

    def check_owner(self) -> None:
        """Refuse to write where another run does, or where the folder is not the one of before."""
        if self._owner is None:
            return
        folder, owner = self.table.folder, self.claim().owner()
        if owner is None:
            raise SinkError(
                f"table {self.table.name!r}: {folder} was deleted or replaced while the flow was "
                "writing to it. Put it back from a copy and start the flow again, or begin anew "
                "with another path and a new checkpointLocation",
                path=str(folder),
            )
        if owner.run != self._owner.run:
            raise taken(f"table {self.table.name!r} in {folder}", owner)

    def _unwritable(self, error: OSError) -> SinkError:
        return SinkError(
            f"table {self.table.name!r}: cannot write to {self.table.folder}: "
            f"{error.strerror or error}; give a path that this user may write to",
            path=str(self.table.folder),
        )

    def committed(self) -> int | None:
        return self.table.newest() if self.table.placed else None

    def chosen(self, rows: pa.Table) -> pa.Table:
        """Those rows of an epoch that make the version."""
        if self.newest is None:
            return rows.combine_chunks()
        values = rows[self.newest]
        return rows.filter(pc.equal(values, pc.max(values))).combine_chunks()

    def vertex(self) -> Vertex:
        return _TableVertex(self)

    def describe(self) -> str:
        return self.table.name


class _TableVertex(Vertex):
    """Keeps the rows of open epochs; writes each when it is complete."""

    def __init__(self, write: TableWrite) -> None:
        self._write = write
        self._open: dict[int, list[pa.RecordBatch]] = {}
        self._held = 0

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        batches = self._open.get(time.epoch)
        if batches is None:
            batches = self._open[time.epoch] = []
            self.notifyAt(time)
        batches.append(batch)

    def onNotify(self, time: Time) -> None:
        rows = self._write.chosen(pa.Table.from_batches(self._open[time.epoch]))
        try:
            new = self._publish(time.epoch, rows)
        except OSError as error:
            raise NotWrittenError(f"table {self._write.table.name!r}: {error}") from error
        del self._open[time.epoch]
        if new:
            self.count("versions_published", 1)
            self.count("rows_published", rows.num_rows)

    def _publish(self, version: int, rows: pa.Table) -> bool:
        """Make a version visible; False if it, or a newer one, already was."""
        table = self._write.table
        folder, there = table.folder, table.versions()
        if there and there[-1] >= version:
            if self._write.sync:
                sync_directory(folder)  # it may have been renamed, and that not made durable
            return False
        self._write.check_owner()
        folder.mkdir(parents=True, exist_ok=True)
        written = folder / f"writing-{uuid.uuid4().hex}"
        try:
            with pa.OSFile(str(written), "wb") as out, pa.ipc.new_file(out, rows.schema) as writer:
                writer.write_table(rows)
            if self._write.sync:
                sync_written(written)
            os.rename(written, table.file(version))
        except OSError:
            with contextlib.suppress(OSError):
                written.unlink()
            raise
        if self._write.sync:
            sync_directory(folder)
        self._drop(there[: -(self._write.keep - 1)])
        return True

    def _drop(self, old: Sequence[int]) -> None:
        """Remove old versions that no recovery can need."""
        needed = pinned(self._write.table.folder) if old else None
        for version in old:
            if needed is None or version < needed[0]:
                self._write.table.file(version).unlink(missing_ok=True)
        held = len(old) - self._held
        if needed is not None and held >= MANY and needed[0] <= old[0]:
            self._held = len(old)
            _log.warning(
                "table %r keeps %d versions, because %s may still need version %d; if that reader "
                "is gone for good, delete its file in %s",
                self._write.table.name,
                len(old) + self._write.keep,
                needed[1],
                needed[0],
                self._write.table.folder / "readers",
            )
