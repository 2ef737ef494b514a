"""One checkpoint as one file that refers to segments.

    magic · block · block · … · footer · length and checksum of the footer, magic

The last block says what the others are, here and in segments (:mod:`.segments`), with their
checksums.  The footer has the node's report and the names and sizes of the segments, so that a plan
reads nothing else.  Batches that several bundles share are stored once.

A checkpoint is there when its file is: its segments were written before it.  Nothing in a file is
ever run: values are plain, and Arrow data is checked before it is used.
"""

from __future__ import annotations

import struct
import zlib
from functools import partial
from typing import Any, NamedTuple

import msgpack
import pyarrow as pa

from penstock.core.causal.codec import report_from, to_plain
from penstock.core.causal.reports import NodeReport
from penstock.core.node.causal_effects import Checkpoint
from penstock.core.progress.notifications import Notification
from penstock.core.time import Time
from penstock.engine.host.chain_state import ChainState, StageState
from penstock.engine.store.durable.blocks import (
    MAGIC,
    Block,
    BlockCache,
    BlockReader,
    BlockWriter,
    DamagedError,
)
from penstock.engine.store.durable.segments import (
    Chunk,
    Known,
    Piece,
    place_log,
    place_tables,
    read_bundles,
)
from penstock.operators.grown import Grown
from penstock.storage.folder import Folder

__all__ = [
    "BlockCache",
    "DamagedError",
    "Manifest",
    "Read",
    "read_checkpoint",
    "read_manifest",
    "write_checkpoint",
]

VERSION = 2
_TAIL = struct.Struct("<QI8s")
_END_BYTES = 1 << 16
"""A file's end is read in one go; most footers are shorter than that."""


class Manifest(NamedTuple):
    """What the end of a file says."""

    report: NodeReport
    rest: Block
    """The block that says what the others are."""
    segments: dict[str, int]
    """The files that it refers to, and their sizes."""


class Written(NamedTuple):
    """A checkpoint that is durable."""

    size: int
    """The bytes that were written for it."""
    log_size: int
    """Of these, what the node had sent."""
    state_size: int
    """The bytes of its state, written now or before."""
    manifest: Manifest
    known: Known


def write_checkpoint(
    folder: Folder, name: str, checkpoint: Checkpoint, state: ChainState, known: Known
) -> Written:
    """Write a checkpoint, but for what is ``known`` to be durable."""
    now = Known()
    stem = name.rpartition(".")[0].removeprefix("checkpoint-")
    with folder.create(name) as opened:
        own = BlockWriter(opened)
        files = (f"state-{stem}.arrow", f"log-{stem}.arrow")
        tables = [_grown(one) for stage in state.stages for one in stage.tables]
        placed = iter(place_tables(tables, known, folder, files[0], own, now))
        log = place_log(checkpoint.log, known, folder, files[1], own, now)
        stages = [
            (
                stage.values,
                [(isinstance(one, Grown), next(placed)) for one in stage.tables],
                [(tuple(a.guarantee), a.capability and tuple(a.capability)) for a in stage.asked],
                stage.watermarks,
            )
            for stage in state.stages
        ]
        blocks, places = own.payloads(batch for _, _, batch in state.pending)
        pending = [(port, tuple(time), places[id(batch)]) for port, time, batch in state.pending]
        rest = own.raw(msgpack.packb((stages, blocks, pending, state.watermarks, log)))
        footer = msgpack.packb((VERSION, to_plain(checkpoint.report), rest, now.sizes))
        own.write(footer)
        own.write(_TAIL.pack(len(footer), zlib.crc32(footer), MAGIC))
    sizes = now.sizes
    return Written(
        own.size + sum(sizes.get(file, 0) for file in files),
        sizes.get(files[1], 0),
        own.size + sum(size for file, size in sizes.items() if file.startswith("state-")),
        Manifest(checkpoint.report, rest, dict(sizes)),
        now,
    )


def _grown(table: pa.Table | Grown) -> Grown:
    return table if isinstance(table, Grown) else Grown.of(table, table)


def read_manifest(folder: Folder, name: str) -> Manifest:
    """What the end of a file says."""
    size = folder.size(name)
    data = folder.read(name, max(0, size - _END_BYTES))
    length = _footer_length(data, size)
    if length + _TAIL.size > data.size:
        data = folder.read(name, size - length - _TAIL.size)
    return _manifest(data, length)


class Read(NamedTuple):
    """A checkpoint that was read."""

    checkpoint: Checkpoint
    state: ChainState
    known: Known
    """What is durable with it."""
    manifest: Manifest


def read_checkpoint(folder: Folder, name: str, cache: BlockCache | None = None) -> Read:
    """All of a checkpoint, but for what ``cache`` has; batches refer to files' bytes."""
    data = folder.read(name)
    manifest = _manifest(data, _footer_length(data, data.size))
    reader = BlockReader(folder, name, data, cache)
    known = Known()
    known.sizes = manifest.segments
    stages, blocks, pending, watermarks, log = msgpack.unpackb(
        reader.bytes(manifest.rest), use_list=False, strict_map_key=False
    )
    where = [Block(*block) for block in blocks]
    state = ChainState(
        tuple(_stage(plain, reader, known) for plain in stages),
        tuple(
            (port, Time.from_wire(time), reader.payload(where[at[0]], *at[1:]))
            for port, time, at in pending
        ),
        watermarks,
    )
    checkpoint = Checkpoint(manifest.report, _log(log, reader, known))
    reader.cache.turn()
    return Read(checkpoint, state, known, manifest)


def _stage(plain: tuple[Any, ...], reader: BlockReader, known: Known) -> StageState:
    values, tables, asked, watermarks = plain
    return StageState(
        values,
        tuple(_table(grows, blocks, reader, known) for grows, blocks in tables),
        tuple(Notification(Time.from_wire(at), to and Time.from_wire(to)) for at, to in asked),
        watermarks,
    )


def _table(grows: bool, plain: Any, reader: BlockReader, known: Known) -> pa.Table | Grown:
    blocks = [Block(*block) for block in plain]
    parts = [reader.table(block) for block in blocks]
    table = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
    made = Grown.of(table, reader.cache.lineage(blocks)) if grows else table
    lineage = made.lineage if isinstance(made, Grown) else table
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + part.num_rows)
    ranges = zip(ends, ends[1:], blocks, strict=False)
    known.learn(lineage, [Piece(*one) for one in ranges if one[2].file])
    return made


def _log(plain: Any, reader: BlockReader, known: Known) -> dict[int, Any]:
    log: dict[int, Any] = {}
    for child, blocks in plain:
        bundles: list[Any] = []
        some: list[Chunk] = []
        for at, skipped in blocks:
            block = Block(*at)
            found = reader.cache.once(block, partial(read_bundles, reader, block))
            bundles += found[skipped:]
            if block.file:
                stamps = tuple(bundle.stamp for bundle in found)
                some.append(Chunk(stamps, block))
        log[child] = tuple(bundles)
        known.chunks[child] = tuple(some)
    return log


def _footer_length(data: Any, size: int) -> int:
    if data.size < len(MAGIC) + _TAIL.size:
        raise DamagedError(f"it is {data.size} bytes long")
    length, _, magic = _TAIL.unpack(memoryview(data)[-_TAIL.size :])
    if magic != MAGIC or length + _TAIL.size > size:
        raise DamagedError("its end is not that of a checkpoint")
    return int(length)


def _manifest(data: Any, length: int) -> Manifest:
    """The footer of a file whose end ``data`` is."""
    end = memoryview(data)[-_TAIL.size - length :]
    packed = end[: -_TAIL.size]
    if zlib.crc32(packed) != _TAIL.unpack(end[-_TAIL.size :])[1]:
        raise DamagedError("the checksum of its footer is wrong")
    version, *parts = msgpack.unpackb(packed, use_list=False)
    if version != VERSION:
        raise DamagedError(f"it has format {version}, not {VERSION}")
    report, rest, segments = parts
    return Manifest(report_from(report), Block(*rest), segments)
