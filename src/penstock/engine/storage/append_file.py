"""Files that are appended to: what was appended is durable, in order, also after a crash."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Protocol

__all__ = ["AppendFile", "LocalAppendFile", "Whole", "sync_directory", "write_durably"]

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

        Whoever was replaced is told by a ``FileNotFoundError``, where that matters.
        """

    def replace(self, data: bytes) -> None:
        """Put something else in the place of all of it, at once and durably."""

    def close(self) -> None:
        """Let go of it; a later append opens it again."""


class LocalAppendFile:
    """A file of a directory."""

    def __init__(self, path: Path, sync: bool, whole: Whole, owned: bool = False) -> None:
        self.path = path
        self.size_bytes = 0
        self._sync = sync
        self._whole = whole
        self._owned = owned
        """Whether an append must fail once another file has this name."""
        self._descriptor: int | None = None
        self._was_open = False
        self._failed: bytes | None = None
        """What could not be appended last."""

    def read(self) -> bytes:
        return self.path.read_bytes()

    def open(self) -> None:
        if self._descriptor is None:
            self._open()

    def append(self, data: bytes, sync: bool = True) -> None:
        descriptor = self._open() if self._descriptor is None else self._descriptor
        if self._failed == data and self._ends_with(data):
            # It was written, but not known to be durable; now it is, or there is another error.
            os.fsync(descriptor)
            self._failed = None
            return
        try:
            rest = memoryview(data)
            while len(rest):
                rest = rest[os.write(descriptor, rest) :]
            if self._sync and sync:
                os.fdatasync(descriptor)
            # A fence renames the folder before it reads: if the name is still ours, it read us.
            if self._owned and os.stat(self.path).st_ino != os.fstat(descriptor).st_ino:
                raise FileNotFoundError(f"{self.path} is another file now")
        except OSError:
            self._failed = data
            self.close()  # the next append opens again, and cuts off what was half written
            raise
        self._failed = None
        self.size_bytes += len(data)

    def _ends_with(self, data: bytes) -> bool:
        with open(self.path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(data)))
            return file.read() == data

    def replace(self, data: bytes) -> None:
        self.close()
        if not self._owned:
            self.path.parent.mkdir(exist_ok=True)  # not its parents: the store may be away
        write_durably(self.path, data, self._sync)
        self.size_bytes = len(data)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        """Open for appending, after the last whole record."""
        existed = self.path.exists()
        if self._was_open and not existed:
            # Not made anew: the folder may be a mount that is away.
            raise FileNotFoundError(errno.ENOENT, "the store is gone", str(self.path))
        if not self._owned:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            whole = self._whole(self.path.read_bytes(), self.path) if existed else 0
            os.ftruncate(descriptor, whole)
            if self._sync and not existed:
                sync_directory(self.path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._was_open = True
        self.size_bytes = whole
        return descriptor


def write_durably(path: Path, data: bytes, sync: bool = True) -> None:
    """Replace a file at once: after a crash it holds either the old or the new content.

    Without ``sync`` that is so after a crash of this process, not of the machine.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if sync:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
