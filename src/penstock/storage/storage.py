"""A flow's store as a whole, and how it is named."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from pyarrow import fs

from penstock.errors import PeerError
from penstock.storage.append_file import AppendFile, LocalAppendFile, Whole
from penstock.storage.folder import Folder, LocalFolder
from penstock.storage.slots import read_slots, write_slots
from penstock.storage.syncs import make_directory, sync_directory, write_durably

__all__ = ["LocalStorage", "NodeHome", "Storage", "StoreLike", "node_prefix", "storage_of"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
LOG = "determinants.log"


class NodeHome(NamedTuple):
    """What one incarnation of a node has of the store."""

    path: PurePath
    """What to call it."""
    folder: Folder
    log: AppendFile
    is_away: Callable[[], bool]
    """Whether it is the store that is not there, as a mount may be, and not this part of it."""


class Storage(Protocol):
    """A store.  Names are relative, with slashes."""

    @property
    def address(self) -> str:
        """What :func:`storage_of` finds it by, in any process."""

    @property
    def directory(self) -> Path | None:
        """Where it is, if it is a directory that programs can use as they like."""

    def read(self, name: str) -> bytes:
        """A small file; ``FileNotFoundError`` if there is none."""

    def write(self, name: str, data: bytes, sync: bool = True) -> None:
        """Put a small file in the place of what was there, at once."""

    def rewrite(self, name: str, data: bytes, sync: bool = True) -> None:
        """The same for a line of text that is written often, and read by :meth:`reread` alone."""

    def reread(self, name: str) -> bytes:
        """What :meth:`rewrite` wrote; ``ValueError`` if it is damaged."""

    def delete(self, name: str) -> None:
        """Remove a small file, if it is there."""

    def log(self, name: str, sync: bool, whole: Whole) -> AppendFile:
        """A log; ``whole`` says how much of it is whole records."""

    def node(self, stage: str, shard: int, incarnation: int, sync: bool, whole: Whole) -> NodeHome:
        """What an incarnation of a node has; :meth:`fence` must have made it."""

    def fence(self, stage: str, shard: int, incarnation: int, sync: bool) -> None:
        """Give what a node has to a new incarnation, and refuse every older one."""

    def incarnation(self, stage: str, shard: int) -> int:
        """The incarnation that what a node has belongs to; 0: it has nothing yet."""


StoreLike = str | os.PathLike[str] | Storage


def storage_of(where: Any) -> Storage:
    """A store by its path or address, of a pyarrow file system, or as it is.

    >>> storage_of("file:///data/store").address
    '/data/store'
    """
    from penstock.storage.objects import ObjectStorage

    if isinstance(where, LocalStorage | ObjectStorage):
        return where
    if isinstance(where, fs.FileSystem):
        return ObjectStorage.of(where)
    text = os.fspath(where)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    elif _SCHEME.match(text):
        return ObjectStorage.at(text)
    return LocalStorage(Path(text).absolute())


def stage_prefix(stage: str) -> str:
    """The name of the part of a store that the nodes of a stage have."""
    return f"state/{quote(stage, safe='[]() ')}"


def node_prefix(stage: str, shard: int) -> str:
    """The name of a node's part of a store."""
    return f"{stage_prefix(stage)}/{shard:05d}"


def refuse_older(stage: str, shard: int, there: int, incarnation: int) -> None:
    """A store is never given back."""
    if there > incarnation:
        raise PeerError(
            f"the store of {stage}[{shard}] belongs to incarnation {there} already, so it "
            f"cannot be given to {incarnation}: does another driver run this flow?"
        )


class LocalStorage:
    """A directory.

    The folder of a node's incarnation is made by a fence alone.  Fencing renames it to
    the new incarnation's, in one step.  A process that still writes for the old one finds that its
    folder is gone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def address(self) -> str:
        return str(self.path)

    @property
    def directory(self) -> Path | None:
        return self.path

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, data: bytes, sync: bool = True) -> None:
        write_durably(self.path / name, data, sync)

    def rewrite(self, name: str, data: bytes, sync: bool = True) -> None:
        write_slots(self.path / name, data, sync)

    def reread(self, name: str) -> bytes:
        return read_slots(self.read(name))

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def log(self, name: str, sync: bool, whole: Whole) -> AppendFile:
        return LocalAppendFile(self.path / name, sync, whole)

    def node(self, stage: str, shard: int, incarnation: int, sync: bool, whole: Whole) -> NodeHome:
        path = self.path / node_prefix(stage, shard) / str(incarnation)
        log = LocalAppendFile(path / LOG, sync, whole, owned=True)
        return NodeHome(path, LocalFolder(path, sync), log, lambda: not path.parent.exists())

    def fence(self, stage: str, shard: int, incarnation: int, sync: bool) -> None:
        folder = self.path / node_prefix(stage, shard)
        if sync:
            make_directory(folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
        there = self.incarnation(stage, shard)
        refuse_older(stage, shard, there, incarnation)
        path = folder / str(incarnation)
        if not there:
            path.mkdir(exist_ok=True)
        elif there < incarnation:
            os.rename(folder / str(there), path)
        if sync:
            sync_directory(folder)
        for name in os.listdir(path):
            if name.endswith(".tmp"):
                (path / name).unlink(missing_ok=True)

    def incarnation(self, stage: str, shard: int) -> int:
        try:
            names = os.listdir(self.path / node_prefix(stage, shard))
        except FileNotFoundError:
            return 0
        return max((int(name) for name in names if name.isdigit()), default=0)
