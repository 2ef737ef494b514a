"""The determinants of one node: an append-only log of which input came when.

A record is its length, its checksum and msgpack: a list of diffs.  A crash can tear only the last
record, which nobody relied on.  A log that was cut at its beginning says so in its first record;
one that was cut at its end says how far it was complete then.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgpack

from penstock.core.causal.codec import diff_from, to_plain
from penstock.core.causal.diffs import Diff
from penstock.core.causal.times import ZERO, Stamp
from penstock.engine.store_log import sync_directory
from penstock.errors import PeerError, SettingsError

__all__ = ["DeterminantLog"]

_HEAD = struct.Struct("<II")
_THROUGH = "through"


class DeterminantLog:
    """The log of one incarnation; may be used by several threads."""

    def __init__(self, path: Path, sync: bool) -> None:
        self.path = path
        self._sync = sync
        self._descriptor: int | None = None
        self._lock = threading.Lock()
        self.size_bytes = 0

    def append(self, diffs: Iterable[Diff]) -> None:
        """Add determinants; durable, and not behind a fence, when it returns."""
        record = _record([to_plain(diff) for diff in diffs])
        with self._lock:
            try:
                descriptor = self._open() if self._descriptor is None else self._descriptor
                rest = memoryview(record)
                while len(rest):
                    rest = rest[os.write(descriptor, rest) :]
                if self._sync:
                    os.fdatasync(descriptor)
                # A fence renames the folder before it reads: if the name is still ours, it read us.
                mine = os.stat(self.path).st_ino == os.fstat(descriptor).st_ino
            except FileNotFoundError:
                mine = False
            except OSError:
                self._close()
                raise
            if not mine:
                self._close()
                raise PeerError(f"{self.path} belongs to a later incarnation: this one must stop")
            self.size_bytes += len(record)

    def read(self) -> tuple[Stamp, tuple[Diff, ...]]:
        """Where the log begins, and its determinants, oldest first."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return ZERO, ()
        return _parse(data, self.path)[:2]

    def through(self) -> int:
        """The epoch up to which nothing is missing, as was said when the log was cut; -1: none."""
        try:
            return _parse(self.path.read_bytes(), self.path)[3]
        except FileNotFoundError:
            return -1

    def cut(
        self, keep: Callable[[Stamp], bool], begin: Stamp | None = None, through: int = -1
    ) -> None:
        """Put a log with some determinants, in a new file, in the place of this one.

        ``begin`` says that what was before this stamp is gone; None: it begins where it did.
        ``through`` says that nothing that has to do with epochs up to this one is missing.
        """
        with self._lock:
            began, diffs = self.read()
            through = max(through, self.through())
            began = began if begin is None else max(began, begin)
            kept = [to_plain(diff) for diff in diffs if keep(diff[0].stamp)]
            self._close()
            if not kept and not began and not self.path.exists():
                return
            records = _record(began) + _record({_THROUGH: through})
            try:
                self._replace(records + (_record(kept) if kept else b""))
            except FileNotFoundError as error:
                raise PeerError(f"{self.path} belongs to a later incarnation") from error

    def _replace(self, records: bytes) -> None:
        temporary = self.path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            rest = memoryview(records)
            while len(rest):
                rest = rest[os.write(descriptor, rest) :]
            if self._sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, self.path)
        if self._sync:
            sync_directory(self.path.parent)
        self.size_bytes = len(records)

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        existed = self.path.exists()
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            whole = _parse(self.path.read_bytes(), self.path)[2] if existed else 0
            os.ftruncate(descriptor, whole)
            if self._sync and not existed:
                sync_directory(self.path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self.size_bytes = whole
        return descriptor


def _record(plain: object) -> bytes:
    body: bytes = msgpack.packb(plain)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _parse(data: bytes, path: Path) -> tuple[Stamp, tuple[Diff, ...], int, int]:
    """Where the log begins, its determinants, the length of its whole records, ``through``."""
    begin: Stamp = ZERO
    through = -1
    diffs: list[Diff] = []
    at = 0
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        body = data[at + _HEAD.size : end]
        if len(body) < length or zlib.crc32(body) != checksum:
            if end < len(data):
                raise SettingsError(
                    f"{path} is damaged at byte {at}; restore it, or give a new checkpointLocation"
                )
            break
        plain = msgpack.unpackb(body, use_list=False)
        if isinstance(plain, dict):
            through = plain[_THROUGH]
        elif not plain or isinstance(plain[0], int):
            begin = plain
        else:
            diffs += map(diff_from, plain)
        at = end
    return begin, tuple(diffs), at, through
