"""What earlier checkpoints have made durable, so that it need not be written again.

Theory of operation.  A checkpoint refers to *segments*: files of blocks that were written with it
or with an earlier one.  Two kinds of things are known by what they are, and are written once:

- rows of a lineage (:mod:`penstock.operators.grown`): a *piece* is a range of them.  What no piece
  covers is written, in one new piece per gap.
- bundles of the payload log, known by child and stamp: a *chunk* is some consecutive ones.

A segment is only made for enough bytes; less goes into the checkpoint's own file, and is written
again the next time.  Pieces of a segment that is mostly garbage are forgotten, and so are small
ones when there are too many: they are written anew, and the segment can go.  (The segments of the
log need no such care: they become garbage in the order in which they were made.)
"""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack
import pyarrow as pa

from penstock.core.causal.codec import diff_from, to_plain
from penstock.core.causal.logs import Bundle, Part, Spilled
from penstock.core.causal.times import ZERO, Stamp
from penstock.core.time import Time
from penstock.engine.store.durable.blocks import Block, BlockReader, BlockWriter
from penstock.operators.grown import Grown
from penstock.storage.folder import Folder

__all__ = ["Chunk", "Known", "Piece", "place_log", "place_tables", "read_bundles"]

SEGMENT_BYTES_MIN = 1 << 16
PIECES_MAX = 64
_BUNDLE_BYTES = 128


class Piece(NamedTuple):
    """Rows of a lineage, and where they are."""

    first: int
    end: int
    block: Block


class Chunk(NamedTuple):
    """Consecutive bundles for one child, and where they are."""

    stamps: tuple[Stamp, ...]
    block: Block


class Known:
    """What is durable already, as the newest checkpoint of a node refers to it."""

    def __init__(self) -> None:
        self._pieces: dict[int, tuple[weakref.ref[Any], tuple[Piece, ...]]] = {}
        self.chunks: dict[int, tuple[Chunk, ...]] = {}
        """Per child, oldest first."""
        self.sizes: dict[str, int] = {}
        """The segments' files."""

    def pieces(self, lineage: object | None) -> tuple[Piece, ...]:
        """What is durable of a lineage."""
        found = self._pieces.get(id(lineage))
        return found[1] if found is not None and found[0]() is lineage else ()

    def learn(self, lineage: object, pieces: Iterable[Piece]) -> None:
        """These pieces of a lineage are in segments."""
        self._pieces[id(lineage)] = (weakref.ref(lineage), tuple(pieces))

    def files(self) -> set[str]:
        """The segments that something refers to."""
        found = {piece.block.file for _, pieces in self._pieces.values() for piece in pieces}
        return found | {chunk.block.file for some in self.chunks.values() for chunk in some}


# -- tables --------------------------------------------------------------------------------------


class _Wanted:
    """A table on its way into a checkpoint."""

    def __init__(self, grown: Grown, pieces: Sequence[Piece]) -> None:
        self.grown = grown
        pieces = [piece for piece in pieces if piece.end <= grown.rows]
        self.pieces = pieces if len(pieces) <= PIECES_MAX else pieces[:1]
        self._table: pa.Table | None = None

    def gaps(self) -> list[tuple[int, int]]:
        """Ranges of rows that no piece has; a table without rows is one, for its schema."""
        ends = [0, *(piece.end for piece in self.pieces)]
        firsts = [*(piece.first for piece in self.pieces), self.grown.rows]
        found = [pair for pair in zip(ends, firsts, strict=True) if pair[0] < pair[1]]
        return found if self.grown.rows or self.pieces else [(0, 0)]

    def rows(self, first: int, end: int) -> pa.Table:
        if self._table is None:
            self._table = self.grown.table()
        return self._table.slice(first, end - first)

    def fill(self, out: BlockWriter, file: str) -> None:
        """Write what is missing."""
        fresh = [
            Piece(first, end, out.table(self.rows(first, end))._replace(file=file))
            for first, end in self.gaps()
        ]
        self.pieces = sorted([*self.pieces, *fresh], key=lambda piece: piece.first)
        self._table = None


def place_tables(
    tables: Sequence[Grown], known: Known, folder: Folder, file: str, own: BlockWriter, now: Known
) -> list[list[Block]]:
    """Write what is not durable of these tables; returns where each of them is.

    ``file`` is the name for a segment, ``own`` the checkpoint's own file; ``now`` learns what is
    durable with this checkpoint.
    """
    wanted = [_Wanted(grown, known.pieces(grown.lineage)) for grown in tables]
    live: dict[str, int] = {}
    for one in wanted:
        for piece in one.pieces:
            live[piece.block.file] = live.get(piece.block.file, 0) + piece.block.length
    poor = {segment for segment, used in live.items() if 2 * used < known.sizes[segment]}
    for one in wanted:
        one.pieces = [piece for piece in one.pieces if piece.block.file not in poor]
    fresh = [one for one in wanted if one.grown.lineage is not None and one.gaps()]
    size = sum(one.rows(*gap).nbytes for one in fresh for gap in one.gaps())
    if size >= SEGMENT_BYTES_MIN:
        with folder.create(file, last=False) as opened:
            out = BlockWriter(opened)
            for one in fresh:
                one.fill(out, file)
        now.sizes[file] = out.size
    for one in wanted:
        if one.gaps():
            one.fill(own, "")
        lasting = [piece for piece in one.pieces if piece.block.file]
        if one.grown.lineage is not None and lasting:
            now.learn(one.grown.lineage, lasting)
        for piece in lasting:
            now.sizes.setdefault(piece.block.file, known.sizes.get(piece.block.file, 0))
    return [[piece.block for piece in one.pieces] for one in wanted]


# -- the payload log -----------------------------------------------------------------------------


def place_log(
    log: Mapping[int, tuple[Bundle, ...]],
    known: Known,
    folder: Folder,
    file: str,
    own: BlockWriter,
    now: Known,
) -> list[tuple[int, list[tuple[Block, int]]]]:
    """Write the bundles that are not durable.

    Returns, per child, blocks of bundles, each with how many of its first ones are forgotten.
    """
    lasting = {}
    for child, logged in log.items():
        found = _matched(known.chunks.get(child, ()), logged)
        lasting[child] = found if len(found) <= PIECES_MAX else found[:1]
    heads, fresh = {}, {}
    for child, logged in log.items():
        durable = sum(len(chunk.stamps) - skipped for chunk, skipped in lasting[child])
        head = 1 if logged and logged[0].stamp == ZERO else 0
        heads[child], fresh[child] = logged[:head], logged[head + durable :]
    size = sum(map(_size, fresh.values()))
    tails: dict[int, list[tuple[Block, int]]] = {}
    if size >= SEGMENT_BYTES_MIN:
        with folder.create(file, last=False) as opened:
            out = BlockWriter(opened)
            written = _write_bundles(fresh, out)
        now.sizes[file] = out.size
        for child, block in written.items():
            stamps = tuple(bundle.stamp for bundle in fresh[child])
            lasting[child] = [*lasting[child], (Chunk(stamps, block.seen_from(file)), 0)]
    else:
        tails = {child: [(at, 0)] for child, at in _write_bundles(fresh, own).items()}
    before = {child: [(at, 0)] for child, at in _write_bundles(heads, own).items()}
    result = []
    for child in sorted(log):
        now.chunks[child] = tuple(chunk for chunk, _ in lasting[child])
        for chunk, _ in lasting[child]:
            now.sizes.setdefault(chunk.block.file, known.sizes.get(chunk.block.file, 0))
        middle = [(chunk.block, skipped) for chunk, skipped in lasting[child]]
        result.append((child, [*before.get(child, ()), *middle, *tails.get(child, ())]))
    return result


def _matched(chunks: Sequence[Chunk], logged: Sequence[Bundle]) -> list[tuple[Chunk, int]]:
    """The chunks that hold the log's oldest bundles, each with how many bundles are gone."""
    stamps = [bundle.stamp for bundle in logged]
    at = 1 if stamps and stamps[0] == ZERO else 0
    found: list[tuple[Chunk, int]] = []
    for chunk in chunks:
        if at == len(stamps):
            break
        skipped = 0 if found else bisect.bisect_left(chunk.stamps, stamps[at])
        rest = list(chunk.stamps[skipped:])
        if not rest:
            continue
        if stamps[at : at + len(rest)] != rest:
            break
        found.append((chunk, skipped))
        at += len(rest)
    return found


def _size(bundles: Sequence[Bundle]) -> int:
    return sum(_BUNDLE_BYTES + sum(part.size for part in bundle.parts) for bundle in bundles)


def _write_bundles(log: Mapping[int, Sequence[Bundle]], out: BlockWriter) -> dict[int, Block]:
    """Write bundles; returns a block per child that has some."""
    # All payloads are held until they are written: a place is known by the object's id.
    held = {
        (child, number): [_content(part.payload) for part in bundle.parts]
        for child, bundles in log.items()
        for number, bundle in enumerate(bundles)
    }
    blocks, places = out.payloads(p for some in held.values() for p in some if p is not None)
    found: dict[int, Block] = {}
    for child, bundles in sorted(log.items()):
        if bundles:
            plain = [
                _plain(bundle, [places.get(id(payload)) for payload in held[child, number]])
                for number, bundle in enumerate(bundles)
            ]
            found[child] = out.raw(msgpack.packb((blocks, plain)))
    return found


def _content(payload: Any) -> Any:
    if isinstance(payload, Spilled):
        return payload.reference.read()  # type: ignore[attr-defined]
    return payload


def _plain(bundle: Bundle, places: Sequence[Any]) -> tuple[Any, ...]:
    parts = [
        (*part._replace(time=tuple(part.time), payload=place),)  # type: ignore[arg-type]
        for part, place in zip(bundle.parts, places, strict=True)
    ]
    return (bundle.stamp, to_plain(tuple(bundle.diff)), parts, *bundle[3:])


def read_bundles(reader: BlockReader, block: Block) -> list[Bundle]:
    """The bundles of a block."""
    blocks, bundles = msgpack.unpackb(reader.bytes(block), use_list=False)
    where = [Block(*one).seen_from(block.file) for one in blocks]
    return [_bundle(plain, reader, where) for plain in bundles]


def _bundle(plain: tuple[Any, ...], reader: BlockReader, blocks: Sequence[Block]) -> Bundle:
    stamp, diff, parts, *rest = plain

    def content(place: Any) -> Any:
        return None if place is None else reader.payload(blocks[place[0]], *place[1:])

    made = (Part(*part) for part in parts)
    return Bundle(
        stamp,
        diff_from(diff),
        tuple(
            part._replace(time=Time.from_wire(part.time), payload=content(part.payload))
            for part in made
        ),
        *rest,
    )
