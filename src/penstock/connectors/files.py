"""Files of a directory that grows: Parquet, CSV or JSON lines, replayable by file and row.

A file belongs to the shard that its relative path hashes to.  The shard lists new files when it has
read those it knows, oldest first, and journals the list with the epoch: the journal fixes the order
for every later reading.  A position is ``{"file": place in the journal, "row": rows read of it}``.

The position after a file's last row is the beginning of the next one: a file whose rows are all
published is not needed any more.

A file must be complete when it appears: write it elsewhere (or under a name that starts with ``_``
or ``.``, or ends with ``.tmp``) and rename it into place.  A file whose size or time of change is
not the journalled one is refused when it is read again, because its rows might not be the same.
As with Spark, a name that was seen is not read again, whatever is there now: that is counted.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from penstock.connectors.base import Position, Reader, Source, SourceContext
from penstock.connectors.file_formats import FORMATS, FileFormat, format_of
from penstock.connectors.file_listing import FileEntry, Listing, shown
from penstock.durations import duration_us
from penstock.errors import CorruptFileError, SchemaError, SettingsError, SourceError
from penstock.paths import local_path

__all__ = ["Files"]

_log = logging.getLogger(__name__)
_OWN_OPTIONS = frozenset({"pollInterval", "onCorrupt", "pathGlobFilter"})

TRIES = 6
"""Number of attempts to read a file or list a directory before an I/O error ends the flow."""
PAUSE_S = 0.1
"""Before the second try; twice as long before each further one."""


class Files(Source):
    """The files under a directory, of a glob pattern, or a single one.

    Options: ``pollInterval`` (how often to look for new files, "1 second"), ``onCorrupt`` ("fail",
    or "skip" to leave out the rest of a file whose contents cannot be read), ``pathGlobFilter``
    (names to read), ``mode`` and ``columnNameOfCorruptRecord`` for malformed records of CSV and
    JSON lines, as in Spark (see :mod:`.text_lines`), and those of the format.  The format is
    inferred from the names; the schema from the first file.  A given schema is a projection, an
    inferred one must be every file's.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str | None = None,
        schema: pa.Schema | str | None = None,
        shards: int | None = None,
        **options: Any,
    ) -> None:
        self.path = local_path(path, "files", SourceError)
        self.listing = Listing(self.path, options.get("pathGlobFilter"))
        if shards is not None and shards < 1:
            raise SettingsError(f"files: shards must be 1 or more, got {shards!r}")
        self.shards_wanted = shards
        self.exact = schema is None
        self.poll_us = duration_us(options.get("pollInterval", "1 second"), "pollInterval")
        self.on_corrupt = options.get("onCorrupt", "fail")
        if self.on_corrupt not in ("fail", "skip"):
            raise SettingsError(
                f"files: onCorrupt must be 'fail' or 'skip', got {self.on_corrupt!r}"
            )
        self.any_extension = format is not None
        first = None if format is not None and schema is not None else self._first(format)
        kind = format or format_of(first or "") or ""
        if kind not in FORMATS:
            what = f"unknown format {format!r}" if format else f"no known format in {first}"
            raise SettingsError(f"files: {what}; give format= one of {', '.join(FORMATS)}")
        self.format: FileFormat = self._format(kind, options)
        self.schema = self._inferred(first) if schema is None else _given(schema)

    def shards(self, wanted: int) -> int:
        if os.path.isfile(self.path):
            return 1
        return self.shards_wanted or max(1, wanted)

    def open(self, context: SourceContext) -> Reader:
        return FilesReader(self, context)

    def check(self) -> None:
        self.listing.check()

    def target(self) -> str:
        return self.path

    def describe(self) -> str:
        return f"{self.format.name} {self.path}"

    def wanted(self, name: str) -> bool:
        """Whether a file is of the format, as far as its name can say."""
        return self.any_extension or format_of(name) == self.format.name

    def _first(self, format: str | None) -> str:
        """A file to infer the format or the schema from."""
        self.listing.check()
        files = self.listing.new({}, lambda name: format is not None or bool(format_of(name)))
        if not files:
            raise SourceError(
                f"files: {self.path} holds no file to infer the schema from; give format= and "
                "schema=, or put a first file there",
                path=self.path,
            )
        return self.listing.absolute(files[0].path)

    def _format(self, kind: str, options: dict[str, Any]) -> FileFormat:
        known = _OWN_OPTIONS | FORMATS[kind].options
        for name in options:
            if name not in known:
                raise SettingsError(
                    f"files: no option {name!r} for format {kind}; there are: "
                    f"{', '.join(sorted(known))}"
                )
        return FORMATS[kind](
            {name: value for name, value in options.items() if name not in _OWN_OPTIONS}
        )

    def _inferred(self, path: str | None) -> pa.Schema:
        path = path or self._first(self.format.name)
        try:
            return self.format.schema(path)
        except (pa.ArrowException, OSError) as error:
            raise _corrupt(path, self.format.name, error) from error


class FilesReader(Reader):
    """One shard of the files."""

    def __init__(self, source: Files, context: SourceContext) -> None:
        self._source = source
        self._shard, self._shards = context.shard, context.shards
        self._files: list[FileEntry] = []
        self._known: dict[str, FileEntry] = {}
        self._replaced: set[FileEntry] = set()
        self._skips: dict[int, int] = {}
        self._counters = dict.fromkeys(
            ("files_read", "files_skipped", "files_replaced", "rows_malformed", "read_retries"), 0
        )
        for entry in context.journal:
            self._recall(entry)
        self._told = len(self._files)
        self._new_skips: list[tuple[int, int]] = []
        self._failures = 0
        self._retry_us = 0
        self._waits = False
        self._available_now = context.available_now
        self._resumable = context.resumable
        self._found = self._look_now() if context.available_now else None
        self._live = False
        self._nothing_new = False
        """Whether the last look for files has worked and found none."""
        self._next_poll_us = 0
        position = context.position or {"file": 0, "row": 0}
        self._file: int = position["file"]
        self._row: int = position["row"]
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._batch: pa.RecordBatch | None = None

    def read(self, rows_max: int, now_us: int, until: Position = None) -> pa.RecordBatch | None:
        if until is None and not self._live:
            self._live = True
            self._admit(self._found or [])
        end = None if until is None else (until["file"], until["row"])
        while end is None or (self._file, self._row) < end:
            if self._batch is None and not self._advance(now_us, end):
                return None
            if self._batch is None:
                continue
            n = min(rows_max, self._batch.num_rows)
            if end is not None and end[0] == self._file:
                n = min(n, end[1] - self._row)
            taken = self._batch.slice(0, n)
            self._batch = self._batch.slice(n) if n < self._batch.num_rows else None
            self._row += n
            if self._batch is None:
                self._look_ahead(end)
            return taken
        return None

    def read_again(self, rows: int) -> pa.RecordBatch | None:
        self._waits = True
        try:
            return self.read(rows, 0)
        finally:
            self._waits = False

    @property
    def counters(self) -> Mapping[str, int]:
        return self._counters

    def position(self) -> Position:
        return {"file": self._file, "row": self._row}

    def journal(self) -> Any | None:
        new, skips = self._files[self._told :], self._new_skips
        if not new and not skips:
            return None
        self._told, self._new_skips = len(self._files), []
        entry: dict[str, Any] = {"shards": self._shards}
        if new:
            entry["files"] = [[file.path, file.size, file.mtime_ns] for file in new]
        if skips:
            entry["skipped"] = [list(skip) for skip in skips]
        return entry

    def exhausted(self) -> bool:
        return self._available_now and self._live and self._file >= len(self._files)

    def grows(self) -> bool:
        return self._resumable

    def pending(self) -> bool:
        return self._file < len(self._files) or not self._nothing_new

    def wait_s(self, now_us: int) -> float:
        next_us = self._retry_us or self._next_poll_us
        return min(1.0, max(0.001, (next_us - now_us) / 1e6))

    def close(self) -> None:
        self._leave()

    # -- one file --------------------------------------------------------------------------------

    @property
    def _path(self) -> str:
        return self._source.listing.absolute(self._files[self._file].path)

    def _advance(self, now_us: int, end: tuple[int, int] | None) -> bool:
        """Get the current file's next block, or move to the next file; False: not now."""
        if self._file >= len(self._files):
            if end is not None:
                raise SourceError(
                    f"files: rows up to file {end[0]} must be read again, but the journal names "
                    f"only {len(self._files)}; the checkpoint is not of this source"
                )
            return self._poll(now_us)
        waits = self._waits or end is not None
        if now_us < self._retry_us and not waits:
            return False
        try:
            self._batch = self._next_block()
        except (pa.ArrowException, OSError, CorruptFileError) as error:
            self._leave()
            if isinstance(error, OSError) and not self._seems_corrupt(error):
                return self._try_again(error, now_us, waits)
            if self._source.on_corrupt == "fail" or end is not None:
                if isinstance(error, CorruptFileError):
                    raise
                raise _corrupt(self._path, self._source.format.name, error) from error
            _log.warning("files: skipped the rest of %s: %s", shown(self._path), error)
            self._skips[self._file] = self._row
            self._new_skips.append((self._file, self._row))
            self._counters["files_skipped"] += 1
        self._failures = self._retry_us = 0
        if self._batch is None:
            self._next_file(end)
        return True

    def _next_block(self) -> pa.RecordBatch | None:
        """The next rows of the current file; None: there are no more."""
        limit = self._skips.get(self._file)
        while limit is None or self._row < limit:
            if self._batches is None:
                self._enter(self._path)
            batch = None if self._batches is None else next(self._batches, None)
            if batch is None:
                return None
            if batch.num_rows:
                return batch if limit is None else batch.slice(0, limit - self._row)
        return None

    def _look_ahead(self, end: tuple[int, int] | None) -> None:
        """Notice the end of a file with its last rows: what they make needs the file no more."""
        try:
            self._batch = self._next_block()
        except (pa.ArrowException, OSError, SourceError):
            self._leave()  # it will come up again when those rows are asked for
            return
        if self._batch is None:
            self._next_file(end)

    def _seems_corrupt(self, error: OSError) -> bool:
        """Whether it is about what is in the file: it has no number, and comes again at once."""
        self._failures += 1
        return error.errno is None and self._failures > 1

    def _try_again(self, error: OSError, now_us: int, waits: bool) -> bool:
        self._counters["read_retries"] += 1
        if error.errno is None:
            return True
        if self._failures >= TRIES:
            raise SourceError(
                f"files: {shown(self._path)} could not be read in {TRIES} tries: {error}. Nothing "
                "is lost: start the flow again with the same checkpointLocation when it can be",
                path=shown(self._path),
            ) from error
        pause_s = PAUSE_S * 2 ** (self._failures - 1)
        _log.warning(
            "files: %s: %s; tried again in %g s", shown(self._path), error, round(pause_s, 3)
        )
        if waits:
            time.sleep(pause_s)
        else:
            self._retry_us = now_us + int(pause_s * 1e6)
        return waits

    def _enter(self, path: str) -> None:
        entry, source = self._files[self._file], self._source
        try:
            status = os.stat(path)
        except FileNotFoundError as error:
            raise SourceError(
                f"files: {shown(path)} is gone, but its rows from {self._row} on are still needed: "
                "they are not published, or a state has to be made from them again; put it back, "
                "or start with a new checkpointLocation",
                path=shown(path),
            ) from error
        if status.st_size != entry.size:
            raise SourceError(
                f"files: {shown(path)} had {entry.size} bytes when it was found and has "
                f"{status.st_size} now; write files elsewhere and rename them into place when they "
                "are complete",
                path=shown(path),
            )
        if status.st_mtime_ns != entry.mtime_ns:
            seconds, ns = divmod(entry.mtime_ns, 1_000_000_000)
            raise SourceError(
                f"files: {shown(path)} was changed after it was found, and its rows from "
                f"{self._row} on are still needed as they were; put the old file back and say "
                f"touch -d @{seconds}.{ns:09d} {shown(path)}, or start with a new "
                "checkpointLocation",
                path=shown(path),
            )
        self._batches = source.format.batches(
            path, source.schema, source.exact, self._row, self._malformed
        )

    def _malformed(self, records: int) -> None:
        self._counters["rows_malformed"] += records

    def _next_file(self, end: tuple[int, int] | None) -> None:
        if end is not None and end[0] == self._file and self._row < end[1]:
            raise SourceError(
                f"files: {shown(self._path)} has {self._row} rows, but {end[1]} were read of it "
                "earlier; it was changed",
                path=shown(self._path),
            )
        self._leave()
        self._counters["files_read"] += 1
        self._file, self._row = self._file + 1, 0

    def _leave(self) -> None:
        batches, self._batches, self._batch = self._batches, None, None
        if batches is not None and hasattr(batches, "close"):
            batches.close()

    # -- new files -------------------------------------------------------------------------------

    def _poll(self, now_us: int) -> bool:
        if self._available_now or now_us < self._next_poll_us:
            return False
        began = time.perf_counter()
        try:
            found = self._look()
        except OSError as error:
            self._not_listed(error)
            found = []
            self._nothing_new = False
        else:
            self._failures = 0
            self._nothing_new = not found
        # A directory that takes long to list is listed less often.
        cost_us = int((time.perf_counter() - began) * 1e6)
        self._next_poll_us = now_us + max(self._source.poll_us, 10 * cost_us)
        self._admit(found)
        return bool(found)

    def _look(self) -> list[FileEntry]:
        return self._source.listing.new(self._known, self._is_mine, self._was_replaced)

    def _look_now(self) -> list[FileEntry]:
        """Look until it works: what is missed now is missed by this run."""
        while True:
            try:
                found = self._look()
            except OSError as error:
                self._not_listed(error)
                time.sleep(PAUSE_S * 2 ** (self._failures - 1))
            else:
                self._failures = 0
                return found

    def _not_listed(self, error: OSError) -> None:
        self._failures += 1
        self._counters["read_retries"] += 1
        root = shown(self._source.listing.root)
        if self._failures >= TRIES:
            raise SourceError(
                f"files: {root} could not be listed in {TRIES} tries: {error}", path=root
            ) from error
        _log.warning("files: %s could not be listed: %s; it is tried again", root, error)

    def _is_mine(self, path: str) -> bool:
        mine = zlib.crc32(os.fsencode(path)) % self._shards == self._shard
        return mine and self._source.wanted(path)

    def _was_replaced(self, entry: FileEntry) -> None:
        if entry in self._replaced:
            return
        self._replaced.add(entry)
        self._counters["files_replaced"] += 1
        _log.warning(
            "files: %s was changed after it was found; a name that was seen is not read again: "
            "give the new rows a name of their own",
            shown(self._source.listing.absolute(entry.path)),
        )

    def _admit(self, found: list[FileEntry]) -> None:
        for entry in found:
            if entry.path not in self._known:
                self._known[entry.path] = entry
                self._files.append(entry)

    def _recall(self, entry: dict[str, Any]) -> None:
        if entry["shards"] != self._shards:
            raise SourceError(
                f"files: the checkpoint is of {entry['shards']} shards, now there are "
                f"{self._shards}; start with shards={entry['shards']}, or with a new "
                "checkpointLocation"
            )
        self._admit([FileEntry(*file) for file in entry.get("files", ())])
        self._skips.update(dict(entry.get("skipped", ())))


def _corrupt(path: str, format: str, error: Exception) -> SourceError:
    reason = " ".join(str(error).split())
    path = shown(path)
    return SourceError(
        f"files: {path} cannot be read as {format}: {reason}; replace or remove it, or start with "
        "onCorrupt='skip' to leave such files out",
        path=path,
    )


def _given(schema: pa.Schema | str) -> pa.Schema:
    if isinstance(schema, pa.Schema):
        return schema
    if not isinstance(schema, str):
        raise SchemaError(
            f"files: expected a pyarrow schema or a string such as 'id BIGINT, name STRING', got "
            f"{type(schema).__name__}"
        )
    from penstock.expressions import parse_schema

    return parse_schema(schema)
