"""The determinants of one node: an append-only log of which input came when.

A record is its length, its checksum and msgpack: a list of diffs.  A crash can tear only the last
record, which no node relied on.  A log that was cut at its beginning says so in its first record;
one that was cut at its end says how far it was complete then.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Iterable
from pathlib import PurePath

import msgpack

from penstock.core.causal.codec import diff_from, to_plain
from penstock.core.causal.diffs import Diff
from penstock.core.causal.times import ZERO, Stamp
from penstock.errors import PeerError, SettingsError
from penstock.storage import AppendFile

__all__ = ["DeterminantLog", "whole_records"]

_HEAD = struct.Struct("<II")
_THROUGH = "through"


class DeterminantLog:
    """The log of one incarnation; may be used by several threads."""

    def __init__(self, file: AppendFile) -> None:
        self._file = file
        self._lock = threading.Lock()

    @property
    def path(self) -> PurePath:
        """What to call it."""
        return self._file.path

    @property
    def size_bytes(self) -> int:
        """Its size, as far as it was written."""
        return self._file.size_bytes

    def append(self, diffs: Iterable[Diff]) -> None:
        """Add determinants; durable, and not behind a fence, when it returns."""
        record = _record([to_plain(diff) for diff in diffs])
        with self._lock:
            try:
                self._file.append(record)
            except FileNotFoundError as error:
                raise PeerError(
                    f"{self.path} belongs to a later incarnation: this one must stop"
                ) from error

    def read(self) -> tuple[Stamp, tuple[Diff, ...]]:
        """Where the log begins, and its determinants, oldest first."""
        return self._parsed()[:2]

    def through(self) -> int:
        """The epoch up to which nothing is missing, as was said when the log was cut; -1: none."""
        return self._parsed()[3]

    def cut(
        self, keep: Callable[[Stamp], bool], begin: Stamp | None = None, through: int = -1
    ) -> None:
        """Put a log with some determinants, in a new file, in the place of this one.

        ``begin`` says that what was before this stamp is gone; None: it begins where it did.
        ``through`` says that nothing that has to do with epochs up to this one is missing.
        """
        with self._lock:
            began, diffs, _, before = self._parsed()
            through = max(through, before)
            began = began if begin is None else max(began, begin)
            kept = [to_plain(diff) for diff in diffs if keep(diff[0].stamp)]
            self._file.close()
            if not kept and not began and not self._exists():
                return
            records = _record(began) + _record({_THROUGH: through})
            try:
                self._file.replace(records + (_record(kept) if kept else b""))
            except FileNotFoundError as error:
                raise PeerError(f"{self.path} belongs to a later incarnation") from error

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        with self._lock:
            self._file.close()

    def _exists(self) -> bool:
        try:
            self._file.read()
        except FileNotFoundError:
            return False
        return True

    def _parsed(self) -> tuple[Stamp, tuple[Diff, ...], int, int]:
        try:
            data = self._file.read()
        except FileNotFoundError:
            return ZERO, (), 0, -1
        return _parse(data, self.path)


def whole_records(data: bytes, path: PurePath) -> int:
    """The length of a log's whole records."""
    return _parse(data, path)[2]


def _record(plain: object) -> bytes:
    body: bytes = msgpack.packb(plain)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _parse(data: bytes, path: PurePath) -> tuple[Stamp, tuple[Diff, ...], int, int]:
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
