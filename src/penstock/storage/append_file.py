"""Files that are appended to: what was appended is durable, in order, also after a crash."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Protocol

from penstock.errors import PeerError
from penstock.storage.syncs import (
    make_directory,
    settle,
    sync_descriptor,
    sync_directory,
    write_durably,
)

__all__ = ["AppendFile", "LocalAppendFile", "Whole"]

Whole = Callable[[bytes, PurePath], int]
"""How much of a file's content is whole records: a crash can tear the last one."""


class AppendFile(Protocol):
    """Bytes that get more at the end; records and their checksums are its users' business."""

    @property
    def path(self) -> PurePath:
        """What to call it."""

    @property
    def size_bytes(self) -> int:
        """Its size, as far as this object has written or opened it."""

    def read(self) -> bytes:
        """All of it; the end may be torn.  ``FileNotFoundError`` if there is nothing yet."""

    def open(self) -> None:
        """Open it now, and not with the first append."""

    def append(self, data: bytes, sync: bool = True) -> None:
        """Add to the end; durable when it returns, without ``sync`` only if processes crash.

        A writer that was replaced gets a ``FileNotFoundError``, where that matters.
        """

    def replace(self, data: bytes) -> None:
        """Put something else in the place of all of it, at once and durably."""

    def reserve(self, owner: str) -> None:
        """From now on :meth:`replace` is this owner's: it fails once another has revoked it."""

    def revoke(self) -> None:
        """Take the right to replace the file away from every owner that has reserved it."""

    def close(self) -> None:
        """Let go of it; a later append opens it again."""


class LocalAppendFile:
    """A file of a directory.

    What was appended since the last successful sync is kept in memory.  After a failed append it is
    written again, behind what is known to be durable: another sync alone would prove nothing.
    """

    def __init__(self, path: Path, sync: bool, whole: Whole, owned: bool = False) -> None:
        self.path = path
        self.size_bytes = 0
        self._sync = sync
        self._whole = whole
        self._owned = owned
        """Whether an append must fail once another file has this name."""
        self._reserved: Path | None = None
        """Where this owner writes replacements; gone when the right to replace was revoked."""
        self._descriptor: int | None = None
        self._was_open = False
        self._inode = 0
        self._durable = 0
        """Number of bytes that are durable."""
        self._checksum = 0
        """Of these bytes."""
        self._tail = b""
        """What follows them, as far as it was appended."""
        self._failed: bytes | None = None
        """What could not be appended last."""

    def read(self) -> bytes:
        return self.path.read_bytes()

    def open(self) -> None:
        if self._descriptor is None:
            self._open()

    def append(self, data: bytes, sync: bool = True) -> None:
        descriptor = self._open() if self._descriptor is None else self._descriptor
        try:
            _write(descriptor, data)
            if self._sync and sync:
                sync_descriptor(descriptor)
            # A fence renames the folder before it reads: if the name is still ours, it read us.
            # A log that was taken over is another file: nobody would read what is noted in this.
            owned = self._owned or self._reserved is not None
            if owned and os.stat(self.path).st_ino != os.fstat(descriptor).st_ino:
                raise FileNotFoundError(f"{self.path} is another file now")
        except OSError:
            self._failed = data
            self.close()  # the next append opens again, and writes again what may be lost
            raise
        self._tail += data
        self.size_bytes += len(data)
        if sync or not self._sync:
            self._keep(self._tail)

    def replace(self, data: bytes) -> None:
        self.close()
        if not self._owned:
            self.path.parent.mkdir(exist_ok=True)  # not its parents: the store may be away
        write_durably(self.path, data, self._sync, self._reserved)
        self._durable = self._checksum = 0
        self._failed = None
        self._keep(data)
        self.size_bytes = len(data)

    def reserve(self, owner: str) -> None:
        self._reserved = self.path.with_name(f"{self.path.name}.{owner}.own")
        self._reserved.mkdir(exist_ok=True)

    def revoke(self) -> None:
        for folder in self.path.parent.glob(f"{glob.escape(self.path.name)}.*.own"):
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _keep(self, data: bytes) -> None:
        """This is durable, too."""
        self._durable += len(data)
        self._checksum = zlib.crc32(data, self._checksum)
        self._tail = b""

    def _open(self) -> int:
        """Open for appending, after the last whole record."""
        existed = self.path.exists()
        if self._was_open and not existed:
            # Not made anew: the folder may be a mount that is away.
            raise FileNotFoundError(errno.ENOENT, "the store is gone", str(self.path))
        if not self._owned and not existed:
            if self._sync:
                make_directory(self.path.parent)
            else:
                self.path.parent.mkdir(parents=True, exist_ok=True)
        if existed and self._sync and self._failed is None:
            settle(self.path)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if self._failed is not None:
                self._mend(descriptor)
            else:
                self._begin(descriptor, existed)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._inode = os.fstat(descriptor).st_ino
        self._was_open = True
        return descriptor

    def _begin(self, descriptor: int, existed: bool) -> None:
        content = self.path.read_bytes() if existed else b""
        whole = self._whole(content, self.path) if existed else 0
        os.ftruncate(descriptor, whole)
        if self._sync and not existed:
            sync_directory(self.path.parent)
        self._durable = self._checksum = 0
        self._keep(content[:whole])
        self.size_bytes = whole

    def _mend(self, descriptor: int) -> None:
        """Write again what came after the last successful sync, but for what failed.

        That is done in this file, not in a new one.  A kernel that fails a sync takes the pages for
        clean, but cutting the file and writing makes every page behind ``_durable`` dirty anew, the
        one with the border included, so that the next sync does write them; those before it were
        not touched.  A new file would need a fence of its own: that this one is still the file that
        was claimed is known by its number.  Where the place on the disk is bad the sync fails
        again, and nothing is taken for durable.
        """
        content = self.path.read_bytes()
        rest, wanted = content[self._durable :], self._tail + (self._failed or b"")
        if (
            os.fstat(descriptor).st_ino != self._inode
            or zlib.crc32(content[: self._durable]) != self._checksum
            or len(rest) > len(wanted)
            or any(byte not in (0, own) for byte, own in zip(rest, wanted, strict=False))
        ):
            raise PeerError(
                f"{self.path} was replaced, or lost what was durable, after a write to it had "
                "failed: another process has taken over, or the disk is broken; this one must stop"
            )
        os.ftruncate(descriptor, self._durable)
        _write(descriptor, self._tail)
        self._failed = None


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while len(rest):
        rest = rest[os.write(descriptor, rest) :]
