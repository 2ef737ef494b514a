"""The files of one node: written whole, published at once, read in parts.

A folder belongs to one incarnation.  What the file system says of a folder that is gone means that
the incarnation was replaced.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from penstock.storage.syncs import sync_descriptor, sync_directory

__all__ = ["Folder", "LocalFolder", "Writer"]


class Writer(Protocol):
    """A file that is being written."""

    def write(self, data: Any) -> None:
        """Add bytes."""


class Folder(Protocol):
    """Files by name; a writer that was replaced gets a ``FileNotFoundError``."""

    def names(self) -> list[str]:
        """The files that there are."""

    def size(self, name: str) -> int:
        """The bytes of a file."""

    def read(self, name: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        """A part of a file; shorter if the file is."""

    def create(self, name: str, last: bool = True) -> contextlib.AbstractContextManager[Writer]:
        """Write a file, which is there, whole and durable, when the block ends without an error.

        Several files that belong together may be durable with the ``last`` of them.
        """

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""

    def set_aside(self, name: str, new_name: str) -> None:
        """Put an unusable file under a name that says so; what was in it may be lost."""


class LocalFolder:
    """A directory."""

    def __init__(self, path: Path, sync: bool) -> None:
        self.path = path
        self._sync = sync

    def names(self) -> list[str]:
        return os.listdir(self.path)

    def size(self, name: str) -> int:
        return os.stat(self.path / name).st_size

    def read(self, name: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        with pa.OSFile(str(self.path / name)) as file:
            if length is None:
                length = file.size()
            file.seek(min(offset, file.size()))
            return file.read_buffer(length)

    @contextmanager
    def create(self, name: str, last: bool = True) -> Iterator[Writer]:
        path = self.path / name
        temporary = path.with_suffix(".tmp")
        try:
            with open(temporary, "wb", buffering=0) as file:
                yield _Descriptor(file.fileno())
                if self._sync:
                    sync_descriptor(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        if self._sync and last:
            with contextlib.suppress(FileNotFoundError):  # fenced since then, with the file
                sync_directory(self.path)

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def set_aside(self, name: str, new_name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.path / name, self.path / new_name)


class _Descriptor:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Any) -> None:
        rest = memoryview(data)
        while len(rest):
            rest = rest[os.write(self._descriptor, rest) :]
