"""Making bytes durable: the only place that calls ``fsync``.

After a failed sync the kernel may have dropped what it could not write, and the next sync of the
same file reports success.  So a sync that failed is never repeated on its own.  The caller
writes the bytes again, from memory:

- a file that is written whole is removed when its sync fails, so that no process can go on with it
  (:func:`sync_written`, :func:`write_durably`);
- a file that is appended to gets again whatever came after its last successful sync
  (:class:`~penstock.storage.append_file.LocalAppendFile`), or a successor
  (:mod:`penstock.connectors.epoch_log`).

Names of files are metadata, which file systems keep in a journal: when that cannot be written they
refuse all further writes.  A directory may be synced again, but not taken for synced.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

__all__ = [
    "make_directory",
    "settle",
    "sync_descriptor",
    "sync_directory",
    "sync_written",
    "write_durably",
]


def sync_descriptor(descriptor: int) -> None:
    """Make what was written to an open file durable; if that fails, write it again first."""
    os.fdatasync(descriptor)


def sync_written(path: Path) -> int:
    """Make a file durable that was written whole; returns its size.

    If that fails the file is removed: it must be written again.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_descriptor(descriptor)
        return os.fstat(descriptor).st_size
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)


def settle(path: Path) -> None:
    """Make durable what a process that has ended wrote to a file, in a new file if need be."""
    with open(path, "rb") as file:
        try:
            sync_descriptor(file.fileno())
        except OSError:
            write_durably(path, file.read())


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make a directory and what is missing above it, all durable."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def write_durably(path: Path, data: bytes, sync: bool = True, folder: Path | None = None) -> None:
    """Replace a file at once: after a crash it holds either the old or the new content.

    Without ``sync`` that is so after a crash of this process, not of the machine.  The new content
    is written in ``folder`` first, by default the file's own: once another process has removed that
    folder, the replacement fails.
    """
    temporary = (folder or path.parent) / f"{path.name}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                sync_descriptor(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if sync:
        sync_directory(path.parent)
