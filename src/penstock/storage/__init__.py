"""Where a flow's store is: a directory, or any file system that pyarrow knows.

A store consists of three kinds of things, which both ways offer:

- logs that are appended to (``AppendFile``): sources' epochs, sinks' commits, determinants;
- small files that are replaced as a whole: the flow's metadata, the record of recoveries;
- a folder per node, of files that are written once (``Folder``), which belongs to one incarnation.

In a directory they are files: see :mod:`.append_file` and :mod:`.folder`.  Elsewhere they are
objects: see :mod:`.objects`.
"""

from penstock.storage.append_file import AppendFile
from penstock.storage.folder import Folder, Writer
from penstock.storage.storage import (
    LocalStorage,
    NodeHome,
    Storage,
    StoreLike,
    storage_of,
)
from penstock.storage.syncs import sync_directory, write_durably

__all__ = [
    "AppendFile",
    "Folder",
    "LocalStorage",
    "NodeHome",
    "Storage",
    "StoreLike",
    "Writer",
    "storage_of",
    "sync_directory",
    "write_durably",
]
