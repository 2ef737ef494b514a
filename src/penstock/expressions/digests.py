"""MD5, SHA-1, SHA-2 and CRC-32 of many values at once: each step is one for all of them.

Follows RFC 1321 and FIPS 180-4.  A value is padded to whole blocks; values with fewer blocks are
done earlier.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["crc32_of", "digest_of"]

Words = Any


def digest_of(name: str, data: Any, lengths: Any) -> Any:
    """The digests, one row of bytes each, of values that lie one after the other in ``data``."""
    with np.errstate(over="ignore"):
        return _ALGORITHMS[name](data, lengths)


def _blocks(data: Any, lengths: Any, word: Any, little: bool) -> tuple[Words, Any, Any]:
    """The padded values as words: all blocks, how many each value has, and where they begin."""
    block = 16 * np.dtype(word).itemsize
    tail = block // 8
    counts = (lengths + 1 + tail + block - 1) // block
    starts = (np.cumsum(counts) - counts) * block
    padded = np.zeros(int(counts.sum()) * block, np.uint8)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    padded[starts[rows] + np.arange(len(rows)) - (np.cumsum(lengths) - lengths)[rows]] = data
    padded[starts + lengths] = 0x80
    ends = starts + counts * block
    bits = (lengths * 8).astype("<u8" if little else ">u8").view(np.uint8).reshape(-1, 8)
    for k in range(8):
        padded[ends - 8 + k] = bits[:, k]
    words = padded.view(np.dtype(word).newbyteorder("<" if little else ">")).astype(word)
    return words.reshape(-1, 16), counts, starts // block


def _run(
    data: Any,
    lengths: Any,
    word: Any,
    first: list[int],
    step: Callable[[list[Words], Words], list[Words]],
    *,
    little: bool = False,
) -> Any:
    """Merkle and Damgård: the state of each value after all its blocks, as bytes."""
    blocks, counts, starts = _blocks(data, lengths, word, little)
    state = [np.full(len(lengths), value, word) for value in first]
    for index in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > index)
        old = [part[rows] for part in state]
        new = step(old, blocks[starts[rows] + index])
        for part, before, after in zip(state, old, new, strict=True):
            part[rows] = before + after
    order = "<" if little else ">"
    made = np.stack(state, axis=1).astype(np.dtype(word).newbyteorder(order))
    return (
        np.ascontiguousarray(made).view(np.uint8).reshape(len(lengths), made.itemsize * len(first))
    )


def _left(value: Words, bits: int) -> Words:
    return (value << np.uint32(bits)) | (value >> np.uint32(32 - bits))


_SINES = [np.uint32(int(abs(math.sin(i + 1)) * 2**32)) for i in range(64)]
_TURNS = [(7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21)]


def _md5_step(state: list[Words], block: Words) -> list[Words]:
    a, b, c, d = state
    for i in range(64):
        turn = i // 16
        if turn == 0:
            f, at = (b & c) | (~b & d), i
        elif turn == 1:
            f, at = (d & b) | (~d & c), (5 * i + 1) % 16
        elif turn == 2:
            f, at = b ^ c ^ d, (3 * i + 5) % 16
        else:
            f, at = c ^ (b | ~d), (7 * i) % 16
        f = f + a + _SINES[i] + block[:, at]
        a, d, c, b = d, c, b, b + _left(f, _TURNS[turn][i % 4])
    return [a, b, c, d]


def _md5(data: Any, lengths: Any) -> Any:
    first = [0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476]
    return _run(data, lengths, np.uint32, first, _md5_step, little=True)


def _sha1_step(state: list[Words], block: Words) -> list[Words]:
    words = [block[:, i] for i in range(16)]
    for i in range(16, 80):
        words.append(_left(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1))
    a, b, c, d, e = state
    for i, word in enumerate(words):
        if i < 20:
            f, k = (b & c) | (~b & d), 0x5A827999
        elif i < 40:
            f, k = b ^ c ^ d, 0x6ED9EBA1
        elif i < 60:
            f, k = (b & c) | (b & d) | (c & d), 0x8F1BBCDC
        else:
            f, k = b ^ c ^ d, 0xCA62C1D6
        a, b, c, d, e = _left(a, 5) + f + e + np.uint32(k) + word, a, _left(b, 30), c, d
    return [a, b, c, d, e]


def _sha1(data: Any, lengths: Any) -> Any:
    first = [0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0]
    return _run(data, lengths, np.uint32, first, _sha1_step)


def _primes(count: int) -> list[int]:
    found: list[int] = []
    candidate = 2
    while len(found) < count:
        if all(candidate % prime for prime in found):
            found.append(candidate)
        candidate += 1
    return found


def _root_bits(prime: int, power: int, bits: int) -> int:
    """The first bits of the fraction of a square or cube root."""
    scaled, low, high = prime << (power * bits), 0, 1 << (bits + 10)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**power <= scaled else (low, middle - 1)
    return low & ((1 << bits) - 1)


def _sha2_step(bits: int) -> Callable[[list[Words], Words], list[Words]]:
    word = np.uint32 if bits == 32 else np.uint64
    rounds = 64 if bits == 32 else 80
    constants = [word(_root_bits(prime, 3, bits)) for prime in _primes(rounds)]
    small = ((7, 18, 3), (17, 19, 10)) if bits == 32 else ((1, 8, 7), (19, 61, 6))
    large = ((2, 13, 22), (6, 11, 25)) if bits == 32 else ((28, 34, 39), (14, 18, 41))

    def right(value: Words, count: int) -> Words:
        return (value >> word(count)) | (value << word(bits - count))

    def schedule(value: Words, turns: tuple[int, int, int]) -> Words:
        return right(value, turns[0]) ^ right(value, turns[1]) ^ (value >> word(turns[2]))

    def sigma(value: Words, turns: tuple[int, int, int]) -> Words:
        return right(value, turns[0]) ^ right(value, turns[1]) ^ right(value, turns[2])

    def step(state: list[Words], block: Words) -> list[Words]:
        words = [block[:, i] for i in range(16)]
        for i in range(16, rounds):
            words.append(
                words[i - 16]
                + schedule(words[i - 15], small[0])
                + words[i - 7]
                + schedule(words[i - 2], small[1])
            )
        a, b, c, d, e, f, g, h = state
        for constant, scheduled in zip(constants, words, strict=True):
            one = h + sigma(e, large[1]) + ((e & f) ^ (~e & g)) + constant + scheduled
            two = sigma(a, large[0]) + ((a & b) ^ (a & c) ^ (b & c))
            a, b, c, d, e, f, g, h = one + two, a, b, c, d + one, e, f, g
        return [a, b, c, d, e, f, g, h]

    return step


def _sha2(bits: int, first: list[int], size: int) -> Callable[[Any, Any], Any]:
    step = _sha2_step(bits)
    word = np.uint32 if bits == 32 else np.uint64
    return lambda data, lengths: _run(data, lengths, word, first, step)[:, :size]


_SHA256 = [_root_bits(prime, 2, 32) for prime in _primes(8)]
_SHA512 = [_root_bits(prime, 2, 64) for prime in _primes(8)]
_SHA384 = [_root_bits(prime, 2, 64) for prime in _primes(16)[8:]]
_SHA224 = [value & 0xFFFFFFFF for value in _SHA384]

_ALGORITHMS: dict[str, Callable[[Any, Any], Any]] = {
    "md5": _md5,
    "sha1": _sha1,
    "sha224": _sha2(32, _SHA224, 28),
    "sha256": _sha2(32, _SHA256, 32),
    "sha384": _sha2(64, _SHA384, 48),
    "sha512": _sha2(64, _SHA512, 64),
}


def _crc_table() -> Any:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1)
    return table


_CRC = _crc_table()


def crc32_of(data: Any, lengths: Any) -> Any:
    """The checksums of zlib, one byte of every value at a time."""
    starts = np.cumsum(lengths) - lengths
    made = np.full(len(lengths), 0xFFFFFFFF, np.uint32)
    for step in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > step)
        place = (made[rows] ^ data[starts[rows] + step]) & np.uint32(255)
        made[rows] = (made[rows] >> np.uint32(8)) ^ _CRC[place]
    return (made ^ np.uint32(0xFFFFFFFF)).astype(np.int64)
