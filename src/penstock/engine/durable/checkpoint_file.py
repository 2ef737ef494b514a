"""One checkpoint as one file: Arrow data in blocks, then a footer that says what they are.

    magic · block · block · … · footer · length and checksum of the footer, magic

A block is an Arrow IPC stream (a table of a vertex, or all batches of one schema) or plain bytes.
The last block says what the others are, with their checksums.  The footer has the node's report, so
that a plan reads nothing else.  Batches that several bundles share are stored once.

Nothing in a file is ever run: values are plain, and Arrow data is checked before it is used.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pyarrow as pa

from penstock.core.causal.codec import diff_from, report_from, to_plain
from penstock.core.causal.logs import Bundle, Part, Spilled
from penstock.core.causal.reports import Report
from penstock.core.machine.causal_effects import Checkpoint
from penstock.core.progress.notifications import Notification
from penstock.core.time import Time
from penstock.engine.chain_state import ChainState, StageState
from penstock.errors import InvariantError
from penstock.wire.frames import has_dictionary

__all__ = ["DamagedError", "read_checkpoint", "read_report", "write_checkpoint"]

MAGIC = b"PENSTOCK"
VERSION = 1
_TAIL = struct.Struct("<QI8s")
_ALIGN = 64
_ROWS = 1 << 16
_BYTES = 4 << 20
"""Of a table so many rows are written at once, or so many bytes if these are more rows."""


class DamagedError(Exception):
    """A file is not what was written."""


class _Block(NamedTuple):
    offset: int
    length: int
    checksum: int
    is_stream: bool


def write_checkpoint(path: Path, checkpoint: Checkpoint, state: ChainState, sync: bool) -> int:
    """Write a file; returns its size when it is complete (and on disk, if ``sync``)."""
    with open(path, "wb", buffering=0) as file:
        out = _Output(file.fileno())
        stages = [
            (
                stage.values,
                [out.table(table) for table in stage.tables],
                [(tuple(a.guarantee), a.capability and tuple(a.capability)) for a in stage.asked],
                stage.watermarks,
            )
            for stage in state.stages
        ]
        pending = [(port, tuple(time), out.payload(batch)) for port, time, batch in state.pending]
        bundles = [
            (child, [_plain_bundle(bundle, out) for bundle in logged])
            for child, logged in sorted(checkpoint.log.items())
        ]
        out.flush()
        blocks = tuple(out.blocks)
        rest = out.raw(msgpack.packb((blocks, stages, pending, state.watermarks, bundles)))
        footer = msgpack.packb((VERSION, to_plain(checkpoint.report), rest))
        out.write(footer)
        out.write(_TAIL.pack(len(footer), zlib.crc32(footer), MAGIC))
        if sync:
            os.fsync(file.fileno())
        return out.size


def read_report(path: Path) -> Report:
    """The report in a file."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < len(MAGIC) + _TAIL.size:
            raise DamagedError(f"it is {size} bytes long")
        file.seek(size - _TAIL.size)
        length = _tail(file.read(_TAIL.size), size)
        file.seek(size - _TAIL.size - length)
        data = file.read(length + _TAIL.size)
    return report_from(_footer(data)[1])


def read_checkpoint(path: Path) -> tuple[Checkpoint, ChainState]:
    """All of a file; batches refer to its bytes."""
    with pa.OSFile(str(path)) as file:
        data = file.read_buffer()
    if data.size < len(MAGIC) + _TAIL.size:
        raise DamagedError(f"it is {data.size} bytes long")
    length = _tail(memoryview(data)[-_TAIL.size :], data.size)
    footer = _footer(memoryview(data)[-_TAIL.size - length :])
    rest = _Input(data, [_Block(*footer[2])]).payload((0,))
    blocks, stages, pending, watermarks, bundles = msgpack.unpackb(
        rest, use_list=False, strict_map_key=False
    )
    source = _Input(data, [_Block(*block) for block in blocks])
    state = ChainState(
        tuple(
            StageState(
                values,
                tuple(source.table(block) for block in tables),
                tuple(Notification(_time(at), at_ and _time(at_)) for at, at_ in asked),
                own,
            )
            for values, tables, asked, own in stages
        ),
        tuple((port, _time(time), source.payload(where)) for port, time, where in pending),
        watermarks,
    )
    log = {child: tuple(_bundle(plain, source) for plain in logged) for child, logged in bundles}
    return Checkpoint(report_from(footer[1]), log), state


def _tail(data: Any, size: int) -> int:
    length, _, magic = _TAIL.unpack(data)
    if magic != MAGIC or length + _TAIL.size > size:
        raise DamagedError("its end is not that of a checkpoint")
    return int(length)


def _footer(data: Any) -> tuple[Any, ...]:
    """The parts of a footer, which a tail follows."""
    packed, tail = data[: -_TAIL.size], data[-_TAIL.size :]
    if zlib.crc32(packed) != _TAIL.unpack(tail)[1]:
        raise DamagedError("the checksum of its footer is wrong")
    parts: tuple[Any, ...] = msgpack.unpackb(packed, use_list=False)
    if parts[0] != VERSION:
        raise DamagedError(f"it has format {parts[0]}, not {VERSION}")
    return parts


def _time(plain: Iterable[int]) -> Time:
    return Time.from_wire(plain)


def _plain_bundle(bundle: Bundle, out: _Output) -> tuple[Any, ...]:
    parts = [
        (*part._replace(time=tuple(part.time), payload=out.payload(part.payload)),)  # type: ignore[arg-type]
        for part in bundle.parts
    ]
    return (bundle.stamp, to_plain(tuple(bundle.diff)), parts, *bundle[3:])


def _bundle(plain: tuple[Any, ...], source: _Input) -> Bundle:
    stamp, diff, parts, *rest = plain
    made = (Part(*part) for part in parts)
    return Bundle(
        stamp,
        diff_from(diff),
        tuple(
            part._replace(time=_time(part.time), payload=source.payload(part.payload))
            for part in made
        ),
        *rest,
    )


class _Output:
    """Writes blocks; batches wait until all of their schema are known."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = 0
        self.blocks: list[_Block | None] = []
        self._groups: dict[pa.Schema, tuple[int, list[pa.RecordBatch]]] = {}
        self._known: dict[int, tuple[Any, Any]] = {}
        self.write(MAGIC)

    def write(self, data: Any) -> None:
        rest = memoryview(data)
        self.size += len(rest)
        while len(rest):
            rest = rest[os.write(self._descriptor, rest) :]

    def table(self, table: pa.Table) -> int:
        """The number of the block that a table is written to now."""
        rows = max(_ROWS, _BYTES * table.num_rows // max(1, table.nbytes))
        self.blocks.append(self._stream(table.schema, table.to_batches(max_chunksize=rows)))
        return len(self.blocks) - 1

    def payload(self, payload: Any) -> Any:
        """Where a payload will be: None, (block, index) or (block,)."""
        if payload is None:
            return None
        if isinstance(payload, Spilled):
            return self.payload(payload.reference.read())  # type: ignore[attr-defined]
        known = self._known.get(id(payload))
        if known is None:
            known = self._known[id(payload)] = (self._place(payload), payload)
        return known[0]

    def _place(self, payload: Any) -> Any:
        if isinstance(payload, pa.RecordBatch):
            group = self._groups.get(payload.schema)
            if group is None:
                group = self._groups[payload.schema] = (len(self.blocks), [])
                self.blocks.append(None)
            group[1].append(payload)
            return (group[0], len(group[1]) - 1)
        if isinstance(payload, pa.Buffer):
            self.blocks.append(self.raw(payload))
            return (len(self.blocks) - 1,)
        raise InvariantError(f"a payload is a record batch or a buffer, not {type(payload)}")

    def raw(self, data: Any) -> _Block:
        """Write bytes now."""
        offset = self._align()
        self.write(data)
        return _Block(offset, self.size - offset, zlib.crc32(data), False)

    def flush(self) -> None:
        """Write the batches."""
        for schema, (block, batches) in self._groups.items():
            self.blocks[block] = self._stream(schema, batches)

    def _stream(self, schema: pa.Schema, batches: list[pa.RecordBatch]) -> _Block:
        offset, checksum = self._align(), 0
        for data in _messages(schema, batches):
            self.write(data)
            checksum = zlib.crc32(data, checksum)
        return _Block(offset, self.size - offset, checksum, True)

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


class _Input:
    """Reads blocks, each once."""

    def __init__(self, data: pa.Buffer, blocks: list[_Block]) -> None:
        self._data = data
        self._blocks = blocks
        self._read: dict[int, list[pa.RecordBatch]] = {}

    def table(self, block: int) -> pa.Table:
        with pa.ipc.open_stream(self._bytes(block)) as stream:
            return stream.read_all()

    def payload(self, where: Any) -> Any:
        if where is None:
            return None
        block, *index = where
        if not self._blocks[block].is_stream:
            return self._bytes(block)
        if block not in self._read:
            with pa.ipc.open_stream(self._bytes(block)) as stream:
                self._read[block] = list(stream)
        return self._read[block][index[0]]

    def _bytes(self, block: int) -> pa.Buffer:
        offset, length, checksum, _ = self._blocks[block]
        data = self._data.slice(offset, length)
        if data.size != length or zlib.crc32(data) != checksum:
            raise DamagedError(f"the checksum of block {block} is wrong")
        return data
