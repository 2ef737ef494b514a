"""Spark's hash functions: Murmur3 and xxHash64 of rows, and digests of bytes.

Values of a column are hashed together, a word of each at a time; the seed of a value is the hash of
what comes before it in the row, and a null leaves the seed as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from penstock.expressions.bytes import from_bytes, spread
from penstock.expressions.call import Call
from penstock.expressions.coerce import folded, strict
from penstock.expressions.digests import crc32_of, digest_of
from penstock.expressions.lists import arrays_of, parts
from penstock.expressions.nodes import Apply, Node
from penstock.expressions.types import is_binary, is_decimal, is_string

__all__ = ["FUNCTIONS"]

Build = Callable[[Call], Node]
Hashes = Any


class _Murmur:
    """Murmur3 of 32 bits as Spark computes it (the last bytes one by one, with their sign)."""

    kind, word = pa.int32(), np.uint32

    @staticmethod
    def _mixed(seed: Hashes, word: Hashes) -> Hashes:
        k = word * np.uint32(0xCC9E2D51)
        k = (k << np.uint32(15)) | (k >> np.uint32(17))
        seed = seed ^ (k * np.uint32(0x1B873593))
        seed = (seed << np.uint32(13)) | (seed >> np.uint32(19))
        return seed * np.uint32(5) + np.uint32(0xE6546B64)

    @staticmethod
    def _finished(seed: Hashes, length: Hashes) -> Hashes:
        seed = seed ^ length.astype(np.uint32)
        seed = (seed ^ (seed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        seed = (seed ^ (seed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return seed ^ (seed >> np.uint32(16))

    def integers(self, values: Any, seed: Hashes) -> Hashes:
        return self._finished(self._mixed(seed, values.view(np.uint32)), np.uint32(4) + 0 * seed)

    def longs(self, values: Any, seed: Hashes) -> Hashes:
        words = values.view(np.uint64)
        low, high = words.astype(np.uint32), (words >> np.uint64(32)).astype(np.uint32)
        made = self._mixed(self._mixed(seed, low), high)
        return self._finished(made, np.uint32(8) + 0 * seed)

    def bytes(self, data: Any, lengths: Any, seed: Hashes) -> Hashes:
        starts = np.cumsum(lengths) - lengths
        padded = np.concatenate([data, np.zeros(8, np.uint8)])
        seed = seed.copy()
        whole = lengths // 4
        for step in range(int(whole.max(initial=0))):
            rows = np.flatnonzero(whole > step)
            at = starts[rows] + 4 * step
            word = sum(padded[at + k].astype(np.uint32) << np.uint32(8 * k) for k in range(4))
            seed[rows] = self._mixed(seed[rows], word)
        for step in range(3):
            rows = np.flatnonzero(lengths - 4 * whole > step)
            signed = padded[starts[rows] + 4 * whole[rows] + step].view(np.int8)
            seed[rows] = self._mixed(seed[rows], signed.astype(np.int32).view(np.uint32))
        return self._finished(seed, lengths)


_P1, _P2, _P3 = (np.uint64(p) for p in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
_P4, _P5 = (np.uint64(p) for p in (0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5))


def _rotated(values: Hashes, bits: int) -> Hashes:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


class _XxHash:
    """xxHash of 64 bits."""

    kind, word = pa.int64(), np.uint64

    @staticmethod
    def _finished(made: Hashes) -> Hashes:
        made = (made ^ (made >> np.uint64(33))) * _P2
        made = (made ^ (made >> np.uint64(29))) * _P3
        return made ^ (made >> np.uint64(32))

    @staticmethod
    def _eight(made: Hashes, word: Hashes) -> Hashes:
        return _rotated(made ^ (_rotated(word * _P2, 31) * _P1), 27) * _P1 + _P4

    @staticmethod
    def _four(made: Hashes, word: Hashes) -> Hashes:
        return _rotated(made ^ (word * _P1), 23) * _P2 + _P3

    def integers(self, values: Any, seed: Hashes) -> Hashes:
        word = values.view(np.uint32).astype(np.uint64)
        return self._finished(self._four(seed + _P5 + np.uint64(4), word))

    def longs(self, values: Any, seed: Hashes) -> Hashes:
        return self._finished(self._eight(seed + _P5 + np.uint64(8), values.view(np.uint64)))

    def bytes(self, data: Any, lengths: Any, seed: Hashes) -> Hashes:
        starts = np.cumsum(lengths) - lengths
        padded = np.concatenate([data, np.zeros(32, np.uint8)])

        def word(at: Any, width: int) -> Hashes:
            return sum(padded[at + k].astype(np.uint64) << np.uint64(8 * k) for k in range(width))

        made = seed + _P5
        stripes = lengths // 32
        long = np.flatnonzero(stripes)
        if len(long):
            lanes = [seed[long] + _P1 + _P2, seed[long] + _P2, seed[long].copy(), seed[long] - _P1]
            for step in range(int(stripes.max())):
                active = np.flatnonzero(stripes[long] > step)
                for lane in range(4):
                    at = starts[long[active]] + 32 * step + 8 * lane
                    old = lanes[lane][active]
                    lanes[lane][active] = _rotated(old + word(at, 8) * _P2, 31) * _P1
            joint = sum(
                _rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)
            )
            for lane in lanes:
                joint = (joint ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4
            made[long] = joint
        made = made + lengths.astype(np.uint64)
        done = stripes * 32
        for width, mix in ((8, self._eight), (4, self._four)):
            while (rows := np.flatnonzero(lengths - done >= width)).size:
                made[rows] = mix(made[rows], word(starts[rows] + done[rows], width))
                done[rows] += width
        while (rows := np.flatnonzero(lengths > done)).size:
            byte = padded[starts[rows] + done[rows]].astype(np.uint64)
            made[rows] = _rotated(made[rows] ^ (byte * _P5), 11) * _P1
            done[rows] += 1
        return self._finished(made)


def _hashed(values: pa.Array, seed: Hashes, method: Any) -> Hashes:
    """The hashes of values, each with its own seed; null leaves the seed."""
    if t.is_null(values.type):
        return seed
    made = _hash_values(values, seed, method)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    return np.where(valid, made, seed)


def _hash_values(values: pa.Array, seed: Hashes, method: Any) -> Hashes:
    kind = values.type
    if is_string(kind) or is_binary(kind):
        data, lengths, _ = spread(values)
        return method.bytes(data, lengths, seed)
    if t.is_struct(kind):
        for field in values.flatten():
            seed = _hashed(field, seed, method)
        return seed
    if t.is_list(kind) or t.is_map(kind):
        return _hash_lists(values, seed, method)
    if is_decimal(kind):
        return _hash_decimals(values, seed, method)
    if t.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), kind), values)
        plain = pc.add(values, pa.scalar(0.0, kind))
        values = plain.view(pa.int32() if t.is_float32(kind) else pa.int64())
    elif t.is_timestamp(kind) or t.is_duration(kind):
        micros = pa.timestamp("us", kind.tz) if t.is_timestamp(kind) else pa.duration("us")
        values = pc.cast(values, micros).view(pa.int64())
    elif t.is_date32(kind):
        values = values.view(pa.int32())
    elif values.type != pa.int64():
        values = values.cast(pa.int32())
    numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    return (
        method.longs(numbers, seed) if values.type == pa.int64() else method.integers(numbers, seed)
    )


def _hash_lists(values: pa.Array, seed: Hashes, method: Any) -> Hashes:
    lists, seed = parts(values), seed.copy()
    for step in range(int(lists.lengths.max(initial=0))):
        rows = np.flatnonzero(lists.lengths > step)
        elements = lists.values.take(pa.array(lists.starts[rows] + step))
        seed[rows] = _hashed(elements, seed[rows], method)
    return seed


def _hash_decimals(values: pa.Array, seed: Hashes, method: Any) -> Hashes:
    """Up to 18 digits as a long; more as the bytes of the integer, the highest first."""
    kind = values.type
    filled = pc.fill_null(values, pa.scalar(0, pa.int32()).cast(pa.decimal128(10, 0)).cast(kind))
    words = np.frombuffer(filled.buffers()[1], np.int64)[filled.offset * 2 :][: 2 * len(filled)]
    if kind.precision <= 18:
        return method.longs(np.ascontiguousarray(words[0::2]), seed)
    whole = np.ascontiguousarray(words.reshape(-1, 2)).view(np.uint8).reshape(-1, 16)[:, ::-1]
    sign = np.where(whole[:, :1] >= 128, 255, 0)
    # Leading bytes that only repeat the sign are left out.
    repeats = (whole[:, :-1] == sign) & ((whole[:, 1:] >= 128) == (sign == 255))
    skip = np.cumprod(repeats, axis=1).sum(axis=1)
    shown = np.arange(16) >= skip[:, None]
    return method.bytes(whole[shown], 16 - skip, seed)


def _row_hash(method: Any) -> Build:
    def build(call: Call) -> Node:
        call.arity(1, 1000)
        for i, node in enumerate(call.args):
            if t.is_map(node.type):
                call.refuse("does not take maps, as in Spark", i)
        return folded(Apply(_hash_rows, call.args, method.kind, method=method))

    return build


def _hash_rows(*values: Any, method: Any) -> pa.Array:
    arrays = arrays_of(*values)
    seed = np.full(len(arrays[0]), 42, method.word)
    with np.errstate(over="ignore"):
        for one in arrays:
            seed = _hashed(one, seed, method)
    return pa.array(seed.view(np.int32 if method.word is np.uint32 else np.int64), method.kind)


def _digest(name: str) -> Build:
    def build(call: Call) -> Node:
        call.arity(1)
        return strict(_digests, [call.binary(0)], pa.string(), name=name)

    return build


def _sha2(call: Call) -> Node:
    call.arity(2)
    bits = call.constant(1)
    names = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}
    if bits not in names:
        call.refuse("the number of bits is 224, 256, 384, 512, or 0 for 256", 1)
    return strict(_digests, [call.binary(0)], pa.string(), name=names[bits])


_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


def _digests(values: Any, name: str) -> pa.Array:
    (values,) = arrays_of(values)
    data, lengths, _ = spread(values)
    digest = digest_of(name, data, lengths)
    text = np.stack([_HEX[digest >> 4], _HEX[digest & 15]], axis=2).ravel()
    return from_bytes(text, np.full(len(values), 2 * digest.shape[1]), values, pa.string())


def _crc32(call: Call) -> Node:
    call.arity(1)
    return strict(_checksums, [call.binary(0)], pa.int64())


def _checksums(values: Any) -> pa.Array:
    (values,) = arrays_of(values)
    data, lengths, _ = spread(values)
    return pa.array(crc32_of(data, lengths), pa.int64(), mask=np.asarray(values.is_null()))


FUNCTIONS: dict[str, Build] = {
    "hash": _row_hash(_Murmur()),
    "xxhash64": _row_hash(_XxHash()),
    "md5": _digest("md5"),
    "sha": _digest("sha1"),
    "sha1": _digest("sha1"),
    "sha2": _sha2,
    "crc32": _crc32,
}
