"""Blocks of bytes in files: Arrow IPC streams, or plain bytes, each with a checksum."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from penstock.errors import InvariantError
from penstock.operators.grown import Lineage
from penstock.storage.folder import Folder, Writer
from penstock.wire.frames import has_dictionary

__all__ = ["Block", "BlockCache", "BlockReader", "BlockWriter", "DamagedError"]

T = TypeVar("T")

MAGIC = b"PENSTOCK"
_ALIGN = 64
_ROWS = 1 << 16
_BYTES = 4 << 20
"""A table is written in blocks of ``_ROWS`` rows, or of ``_BYTES`` if these are more rows."""


class DamagedError(Exception):
    """A file is not what was written."""


class Block(NamedTuple):
    """Where bytes are, and what they must be."""

    file: str
    """"": the file in which this is said."""
    offset: int
    length: int
    checksum: int
    is_stream: bool

    def seen_from(self, file: str) -> Block:
        """The same block, as said in any other file than ``file``."""
        return self if self.file else self._replace(file=file)


class BlockWriter:
    """Writes blocks into a file; payloads wait until all of their schema are known."""

    def __init__(self, file: Writer) -> None:
        self._file = file
        self.size = 0
        self.write(MAGIC)

    def write(self, data: Any) -> None:
        """Add bytes that are no block."""
        self.size += memoryview(data).nbytes
        self._file.write(data)

    def raw(self, data: Any) -> Block:
        """Write bytes."""
        offset = self._align()
        self.write(data)
        return Block("", offset, self.size - offset, zlib.crc32(data), False)

    def table(self, table: pa.Table) -> Block:
        """Write a table."""
        rows = max(_ROWS, _BYTES * table.num_rows // max(1, table.nbytes))
        return self.stream(table.schema, table.to_batches(max_chunksize=rows))

    def stream(self, schema: pa.Schema, batches: list[pa.RecordBatch]) -> Block:
        """Write batches of one schema."""
        offset, checksum = self._align(), 0
        for data in _messages(schema, batches):
            self.write(data)
            checksum = zlib.crc32(data, checksum)
        return Block("", offset, self.size - offset, checksum, True)

    def payloads(self, payloads: Iterable[Any]) -> tuple[list[Block], dict[int, Any]]:
        """Write batches and buffers, equal ones once.

        Returns the blocks, and by each one's ``id`` where it is: (block, index) or (block,).
        """
        blocks: list[Block | None] = []
        places: dict[int, Any] = {}
        groups: dict[pa.Schema, tuple[int, list[pa.RecordBatch]]] = {}
        for payload in payloads:
            if id(payload) in places:
                continue
            if isinstance(payload, pa.RecordBatch):
                if payload.schema not in groups:
                    groups[payload.schema] = (len(blocks), [])
                    blocks.append(None)
                group = groups[payload.schema]
                places[id(payload)] = (group[0], len(group[1]))
                group[1].append(payload)
            elif isinstance(payload, pa.Buffer):
                places[id(payload)] = (len(blocks),)
                blocks.append(self.raw(payload))
            else:
                raise InvariantError(
                    f"a payload is a record batch or a buffer, not {type(payload)}"
                )
        for schema, (number, batches) in groups.items():
            blocks[number] = self.stream(schema, batches)
        return [block for block in blocks if block is not None], places

    def _align(self) -> int:
        self.write(bytes(-self.size % _ALIGN))
        return self.size


def _messages(schema: pa.Schema, batches: list[pa.RecordBatch]) -> Iterable[Any]:
    """An IPC stream in pieces; one piece if dictionaries travel with the batches."""
    if has_dictionary(schema):
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        yield out.getvalue()
        return
    yield schema.serialize()
    for batch in batches:
        yield batch.serialize()


class BlockCache:
    """What was made of segments' blocks when a node's checkpoint before was read.

    Who reads checkpoint after checkpoint thus reads what is new; a block's checksum is part of what
    it is known by.  Tables that are in both are of one lineage.
    """

    def __init__(self) -> None:
        self._before: dict[Block, Any] = {}
        self._now: dict[Block, Any] = {}
        self._lineages: dict[Block, Lineage] = {}

    def once(self, block: Block, make: Callable[[], T]) -> T:
        """What is made of a block, which may have been made before."""
        if not block.file:  # the checkpoint's own file: the next one has another
            return make()
        if block not in self._now:
            self._now[block] = self._before[block] if block in self._before else make()
        made: T = self._now[block]
        return made

    def lineage(self, blocks: Iterable[Block]) -> Lineage:
        """The lineage of a table that only grows, by any part of it that is known."""
        parts = [block for block in blocks if block.file]
        found = next((self._lineages[part] for part in parts if part in self._lineages), Lineage())
        self._lineages.update(dict.fromkeys(parts, found))
        return found

    def turn(self) -> None:
        """A checkpoint was read: forget what it does not refer to."""
        self._before, self._now = self._now, {}
        self._lineages = {
            block: lineage for block, lineage in self._lineages.items() if block in self._before
        }


class BlockReader:
    """Reads blocks of a folder's files, each once."""

    def __init__(
        self, folder: Folder, file: str, data: pa.Buffer, cache: BlockCache | None = None
    ) -> None:
        self.cache = BlockCache() if cache is None else cache
        self._folder = folder
        self._file = file
        self._data = data
        """All of the file in which blocks without a file's name are."""
        self._batches: dict[Block, list[pa.RecordBatch]] = {}

    def bytes(self, block: Block) -> pa.Buffer:
        """What is in a block."""
        if block.file:
            data = self._folder.read(block.file, block.offset, block.length)
        else:
            data = self._data.slice(block.offset, block.length)
        if data.size != block.length or zlib.crc32(data) != block.checksum:
            where = block.file or self._file
            raise DamagedError(f"the checksum of the block at {block.offset} of {where} is wrong")
        return data

    def table(self, block: Block) -> pa.Table:
        """The table that a block holds."""

        def read() -> pa.Table:
            with pa.ipc.open_stream(self.bytes(block)) as stream:
                return stream.read_all()

        return self.cache.once(block, read)

    def payload(self, block: Block, *index: int) -> Any:
        """A batch of a block, or its bytes."""
        if not block.is_stream:
            return self.bytes(block)
        if block not in self._batches:
            with pa.ipc.open_stream(self.bytes(block)) as stream:
                self._batches[block] = list(stream)
        return self._batches[block][index[0]]
