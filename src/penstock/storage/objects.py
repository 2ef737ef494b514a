"""A store of whole objects, on any file system that pyarrow knows: S3, HDFS, or a directory.

Objects are written once and read; nothing is renamed, and nothing is appended to.  A name that is
listed may be of an object that is being written: whatever is read has a checksum.

**Logs** are one object per append: ``name/<generation>-<writer>-<number>``.  Who opens one for
appending begins a new generation with all that is there, and who replaces its content does so, too.
Read is the newest generation whose first object is whole; the older ones go.  So a writer of an
older generation is not read any more, and when it would begin another one it is refused.  A small
file is a log that is only ever replaced.

**Node folders** are ``prefix/<incarnation>/<file>``.  A fence first says ``prefix/fence-<n>``, then
lists what the incarnation before it has, and writes that list into the new one's folder: only now
it exists.  What the old one writes later is in no list, so it is not read.  After it has written
something, an incarnation looks for a fence: if there is none, the list will have what it wrote; if
there is one, it is told.  (This needs listings that show what was written before, as S3's and
HDFS's do.)
"""

from __future__ import annotations

import contextlib
import json
import re
import struct
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs

from penstock.errors import PeerError, SettingsError
from penstock.storage.append_file import AppendFile, Whole
from penstock.storage.folder import Writer
from penstock.storage.storage import LOG, NodeHome, Storage, node_prefix, refuse_older

__all__ = ["ObjectStorage", "given_store"]

_GIVEN = "pyarrow-fs:"
_HEAD = struct.Struct("<II")
_LOG_OBJECT = re.compile(r"(\d{8,})-([0-9a-f]{8})-(\d{8,})")
_LIST = "inherited.json"
OBJECTS_MAX = 128
"""Number of appends that are objects of their own before they are merged into one."""
_NOTHING = (0, "")
"""The generation of a log that does not exist."""
TRIES = 20
PAUSE_S = 0.05


class Objects:
    """A pyarrow file system below a root; errors are those of files."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self.filesystem = filesystem
        self.root = root.strip("/") if not root.startswith("/") else root.rstrip("/")
        self._made: set[str] = set()

    def at(self, name: str) -> str:
        return f"{self.root}/{name}" if self.root else name

    def names(self, folder: str) -> list[str]:
        """All objects below a folder, relative to it."""
        base = self.at(folder).rstrip("/")
        selector = fs.FileSelector(base, recursive=True, allow_not_found=True)
        found = self.filesystem.get_file_info(selector)
        return sorted(
            info.path[len(base) :].lstrip("/") for info in found if info.type == fs.FileType.File
        )

    def size(self, name: str) -> int:
        info = self.filesystem.get_file_info(self.at(name))
        if info.type != fs.FileType.File:
            raise FileNotFoundError(f"there is no object {self.at(name)}")
        return int(info.size)

    def get(self, name: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        with self.filesystem.open_input_file(self.at(name)) as file:
            size = file.size()
            offset = min(offset, size)
            wanted = size - offset if length is None else min(length, size - offset)
            file.seek(offset)
            return file.read_buffer(wanted)

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        path = self.at(name)
        parent = path.rpartition("/")[0]
        if parent and parent not in self._made:
            self.filesystem.create_dir(parent, recursive=True)
            self._made.add(parent)
        with self.filesystem.open_output_stream(path) as stream:
            yield stream

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self.at(name))

    def put_checked(self, name: str, data: bytes) -> None:
        """Write an object that says what must be in it."""
        with self.create(name) as stream:
            stream.write(_HEAD.pack(len(data), zlib.crc32(data)) + data)

    def get_checked(self, name: str) -> bytes | None:
        """What was put; None if the object is not whole."""
        data = bytes(memoryview(self.get(name)))
        if len(data) < _HEAD.size:
            return None
        length, checksum = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        return body if len(body) == length and zlib.crc32(body) == checksum else None


class ObjectStorage:
    """A store on a pyarrow file system."""

    def __init__(self, objects: Objects, address: str, name: str) -> None:
        self.objects = objects
        self._address = address
        self._name = name

    @classmethod
    def of(cls, filesystem: fs.FileSystem) -> ObjectStorage:
        """The root of a file system, such as a ``SubTreeFileSystem``."""
        base = getattr(filesystem, "base_path", "")
        address = f"{_GIVEN}{uuid.uuid4().hex}"
        made = cls(Objects(filesystem, ""), address, f"{filesystem.type_name}:{base}")
        made.introduce()
        return made

    @classmethod
    def at(cls, address: str) -> ObjectStorage:
        """By a URI that pyarrow understands, or by the address of another one."""
        if address in _INTRODUCED:
            return _INTRODUCED[address]
        try:
            filesystem, root = fs.FileSystem.from_uri(address)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ImportError) as error:
            raise SettingsError(
                f"checkpointLocation {address} is neither a path nor an address of a file system "
                f"that pyarrow knows here: {error}",
                path=address,
            ) from error
        except OSError as error:
            raise SettingsError(
                f"checkpointLocation {address} cannot be reached: {error}", path=address
            ) from error
        return cls(Objects(filesystem, root), address, address)

    def introduce(self) -> None:
        """Let this process find it by its address; for one that came here with the code."""
        _INTRODUCED[self._address] = self

    def __str__(self) -> str:
        return self._name

    @property
    def address(self) -> str:
        return self._address

    @property
    def directory(self) -> Path | None:
        return None

    def read(self, name: str) -> bytes:
        return self._file(name).read()

    def write(self, name: str, data: bytes, sync: bool = True) -> None:
        self._file(name).replace(data)

    def rewrite(self, name: str, data: bytes, sync: bool = True) -> None:
        self.write(name, data)

    def reread(self, name: str) -> bytes:
        return self.read(name)

    def delete(self, name: str) -> None:
        for found in self.objects.names(name):
            self.objects.delete(f"{name}/{found}")

    def log(self, name: str, sync: bool, whole: Whole) -> AppendFile:
        return self._file(name)

    def _file(self, name: str) -> ObjectFile:
        return ObjectFile(self.objects, name, PurePosixPath(f"{self._name}/{name}"))

    # -- nodes -----------------------------------------------------------------------------------

    def node(self, stage: str, shard: int, incarnation: int, sync: bool, whole: Whole) -> NodeHome:
        prefix = node_prefix(stage, shard)
        path = PurePosixPath(f"{self._name}/{prefix}/{incarnation}")
        folder = ObjectFolder(self.objects, prefix, incarnation)
        log = ObjectFile(
            self.objects, f"{prefix}/{incarnation}/{LOG}", path / LOG, folder.check_mine
        )
        return NodeHome(path, folder, log, lambda: False)  # then there is another error

    def fence(self, stage: str, shard: int, incarnation: int, sync: bool) -> None:
        prefix = node_prefix(stage, shard)
        names = self.objects.names(prefix)
        there = max(_owners(names), default=0)
        refuse_older(stage, shard, max([there, *_fences(names)]), incarnation)
        if there == incarnation:
            return
        self.objects.put_checked(f"{prefix}/fence-{incarnation}", b"")
        inherited: dict[str, int] = {}
        if there:
            before = ObjectFolder(self.objects, prefix, there)
            inherited = before.origins(self.objects.names(prefix))
            with contextlib.suppress(FileNotFoundError):
                old = self._file(f"{prefix}/{there}/{LOG}").read()
                self._file(f"{prefix}/{incarnation}/{LOG}").replace(old)
        data = json.dumps(inherited).encode()
        self.objects.put_checked(f"{prefix}/{incarnation}/{_LIST}", data)
        self._clean(prefix, incarnation, inherited)

    def _clean(self, prefix: str, incarnation: int, inherited: dict[str, int]) -> None:
        """Remove what belongs to older incarnations alone."""
        kept = {f"{origin}/{name}" for name, origin in inherited.items()}
        for name in self.objects.names(prefix):
            owner = name.partition("/")[0].removeprefix("fence-")
            if owner.isdigit() and int(owner) < incarnation and name not in kept:
                self.objects.delete(f"{prefix}/{name}")

    def incarnation(self, stage: str, shard: int) -> int:
        return max(_owners(self.objects.names(node_prefix(stage, shard))), default=0)


_INTRODUCED: dict[str, ObjectStorage] = {}
"""Stores on file systems that have no address of their own, by the one that they were given."""


def given_store(store: Storage) -> ObjectStorage | None:
    """A store that other processes know only if it is brought to them."""
    is_given = isinstance(store, ObjectStorage) and store.address in _INTRODUCED
    return store if is_given and isinstance(store, ObjectStorage) else None


def _owners(names: list[str]) -> list[int]:
    """The incarnations whose folders exist."""
    parts = [name.split("/") for name in names]
    return [int(one[0]) for one in parts if len(one) == 2 and one[1] == _LIST]


def _fences(names: list[str]) -> list[int]:
    found = [re.fullmatch(r"fence-(\d+)", name) for name in names]
    return [int(one.group(1)) for one in found if one]


class ObjectFolder:
    """The files of one incarnation of a node: its own, and those that it has inherited."""

    def __init__(self, objects: Objects, prefix: str, incarnation: int) -> None:
        self._objects = objects
        self._prefix = prefix
        self._incarnation = incarnation
        self._inherited: dict[str, int] | None = None

    def check_mine(self) -> None:
        """Fail if another incarnation has been given the folder."""
        if self._newest(self._objects.names(self._prefix)) != self._incarnation:
            raise FileNotFoundError(f"{self._prefix}/{self._incarnation} was replaced")

    def _newest(self, names: list[str]) -> int:
        return max([*_owners(names), *_fences(names)], default=0)

    def origins(self, names: list[str]) -> dict[str, int]:
        """The incarnation that wrote each file, given all objects of the node."""
        if self._inherited is None:
            data = self._objects.get_checked(f"{self._prefix}/{self._incarnation}/{_LIST}")
            if data is None:
                raise FileNotFoundError(f"{self._prefix}/{self._incarnation} does not exist")
            self._inherited = json.loads(data)
        there = set(names)
        found = {
            name: origin for name, origin in self._inherited.items() if f"{origin}/{name}" in there
        }
        for name in names:
            owner, _, file = name.partition("/")
            if owner == str(self._incarnation) and file != _LIST and "/" not in file and file:
                found[file] = self._incarnation
        return found

    def names(self) -> list[str]:
        names = self._objects.names(self._prefix)
        if self._newest(names) != self._incarnation:
            raise FileNotFoundError(f"{self._prefix}/{self._incarnation} was replaced")
        return sorted(self.origins(names))

    def _at(self, name: str) -> str:
        own = f"{self._prefix}/{self._incarnation}/{name}"
        if self._inherited is None:
            self.origins([])
        origin = (self._inherited or {}).get(name)
        if origin is None:
            return own
        with contextlib.suppress(FileNotFoundError):
            self._objects.size(own)
            return own  # written again since then
        return f"{self._prefix}/{origin}/{name}"

    def size(self, name: str) -> int:
        return self._objects.size(self._at(name))

    def read(self, name: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        return self._objects.get(self._at(name), offset, length)

    @contextmanager
    def create(self, name: str, last: bool = True) -> Iterator[Writer]:
        path = f"{self._prefix}/{self._incarnation}/{name}"
        try:
            with self._objects.create(path) as stream:
                yield stream
        except BaseException:
            with contextlib.suppress(OSError):
                self._objects.delete(path)
            raise
        if last:
            self.check_mine()

    def delete(self, name: str) -> None:
        self._objects.delete(self._at(name))

    def set_aside(self, name: str, new_name: str) -> None:
        with self._objects.create(f"{self._prefix}/{self._incarnation}/{new_name}"):
            pass
        self.delete(name)


class ObjectFile:
    """A log, or a small file; see the module."""

    def __init__(
        self, objects: Objects, name: str, path: PurePath, check_mine: Any = lambda: None
    ) -> None:
        self.path = path
        self.size_bytes = 0
        self._objects = objects
        self._name = name
        self._check_mine = check_mine
        self._writer = uuid.uuid4().hex[:8]
        self._seen: tuple[int, str] | None = None
        """The generation that was newest when this object read it, or that it began."""
        self._wrote = False
        self._number: int | None = None
        """Of the next object; None: not open."""
        self._failed: bytes | None = None
        """What could not be appended last."""

    def read(self) -> bytes:
        generation, data = self._read()
        if not self._wrote:
            self._seen = generation
        if generation == _NOTHING:
            raise FileNotFoundError(f"there is no {self.path}")
        return data

    def open(self) -> None:
        """Nothing to do: a process that takes over begins a generation; others are refused."""

    def append(self, data: bytes, sync: bool = True) -> None:
        try:
            self._append(data)
        except OSError:
            self._failed = data
            raise
        self._failed = None
        self._check_mine()

    def _append(self, data: bytes) -> None:
        if self._number is None or self._number > OBJECTS_MAX:
            newest, before = self._read()
            there = self._failed == data and before.endswith(data)  # though it was said to fail
            self._begin(newest, before if there else before + data)
            return
        number = self._number
        self._number = None  # until it is written
        self._objects.put_checked(self._object(self._seen or _NOTHING, number), data)
        self._number = number + 1
        self.size_bytes += len(data)

    def replace(self, data: bytes) -> None:
        newest, _ = self._read()
        self._begin(newest, data)

    def reserve(self, owner: str) -> None:
        """Nothing to do: a replacement is a generation of its own, and :meth:`_begin` checks."""

    def revoke(self) -> None:
        """Nothing to do, see :meth:`reserve`."""

    def close(self) -> None:
        self._number = None

    def _begin(self, newest: tuple[int, str], data: bytes) -> None:
        """Begin a generation with some content, after the one that is known."""
        if self._seen is not None and newest != self._seen and newest[1] != self._writer:
            raise PeerError(f"{self.path} was taken over by another process: this one must stop")
        self._number = None
        mine = (newest[0] + 1, self._writer)
        self._objects.put_checked(self._object(mine, 0), data)
        self._seen, self._number, self.size_bytes = mine, 1, len(data)
        self._wrote = True
        for generation, numbers in self._generations().items():
            if generation < mine:
                for number in numbers:
                    self._objects.delete(self._object(generation, number))

    def _object(self, generation: tuple[int, str], number: int) -> str:
        return f"{self._name}/{generation[0]:08d}-{generation[1]}-{number:08d}"

    def _generations(self) -> dict[tuple[int, str], list[int]]:
        found: dict[tuple[int, str], list[int]] = {}
        for name in self._objects.names(self._name):
            match = _LOG_OBJECT.fullmatch(name)
            if match:
                found.setdefault((int(match[1]), match[2]), []).append(int(match[3]))
        return found

    def _read(self) -> tuple[tuple[int, str], bytes]:
        """The newest generation, and what is in it."""
        for _ in range(TRIES):
            try:
                return self._read_once()
            except FileNotFoundError:
                time.sleep(PAUSE_S)  # a newer generation is there by now
        raise SettingsError(
            f"{self.path} cannot be read: an object of it is missing, or it changes all the time. "
            "Restore it from a copy, or start with a new checkpointLocation"
        )

    def _read_once(self) -> tuple[tuple[int, str], bytes]:
        found = self._generations()
        for generation in sorted(found, reverse=True):
            parts: list[bytes] = []
            for number in range(max(found[generation]) + 1):
                data = self._objects.get_checked(self._object(generation, number))
                if data is None:
                    if number < max(found[generation]):
                        raise SettingsError(
                            f"{self.path} is damaged: {self._object(generation, number)} does not "
                            "match its checksum. Restore it from a copy, or start with a new "
                            "checkpointLocation"
                        )
                    break
                parts.append(data)
            if parts:
                return generation, b"".join(parts)
        return _NOTHING, b""
