"""A small file that is rewritten often: two slots, written in turn.

    number · checksum · data · spaces · newline        twice, of the same length

The slot with the greatest number that matches its checksum counts.  Writing touches neither the
file's size nor its directory, so making it durable does not wait for what others are writing; a
crash can tear the slot that is being written, and then the other one still holds what was there.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "record"
    ...     for text in (b"one", b"two", b"three"):
    ...         write_slots(path, text)
    ...     read_slots(path.read_bytes())
    b'three'
"""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path

from penstock.storage.syncs import sync_descriptor, write_durably

__all__ = ["read_slots", "write_slots"]

SLOT_BYTES_MIN = 4096
_suspect: set[Path] = set()
"""Files of which a slot may not be on the disk, though it can be read: they are written anew."""
_SLOT = re.compile(rb"(\d+) ([0-9a-f]{8}) ([^\n]*?) *")


def write_slots(path: Path, data: bytes, sync: bool = True) -> None:
    """Put data without newlines in the place of what was there, at once and durably."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        _begin(path, 1, data, sync)
        return
    try:
        content = os.read(descriptor, os.fstat(descriptor).st_size)
        numbers = [found[0] for found in _parsed(content)]
        number = max(numbers, default=0) + 1
        length = len(content) // 2
        slot = _slot(number, data)
        if len(numbers) != 2 or len(slot) >= length or path in _suspect:
            _begin(path, number, data, sync)
            _suspect.discard(path)
            return
        at = length * numbers.index(min(numbers))
        _suspect.add(path)
        os.pwrite(descriptor, slot.ljust(length - 1) + b"\n", at)
        if sync:
            sync_descriptor(descriptor)
        _suspect.discard(path)
    finally:
        os.close(descriptor)


def read_slots(content: bytes) -> bytes:
    """What was written last; ``ValueError`` if neither slot is what was written."""
    found = max(_parsed(content), default=None)
    if found is None:
        raise ValueError("neither of its parts matches its checksum")
    return found[1]


def _begin(path: Path, number: int, data: bytes, sync: bool) -> None:
    slot = _slot(number, data)
    length = max(SLOT_BYTES_MIN, 2 * len(slot))
    older = _slot(number - 1, data)
    write_durably(path, b"".join(one.ljust(length - 1) + b"\n" for one in (slot, older)), sync)


def _slot(number: int, data: bytes) -> bytes:
    return b"%d %08x %b" % (number, zlib.crc32(b"%d %b" % (number, data)), data)


def _parsed(content: bytes) -> list[tuple[int, bytes]]:
    """Number and data of the slots that are whole, in their order."""
    found = [_SLOT.fullmatch(line) for line in content.split(b"\n")[:2]]
    slots = [(int(one[1]), one[3], int(one[2], 16)) for one in found if one is not None]
    return [(n, data) for n, data, crc in slots if crc == zlib.crc32(b"%d %b" % (n, data))]
