"""A record that is rewritten often is always there, whatever a crash tears."""

from pathlib import Path

import pytest

from penstock.storage.slots import SLOT_BYTES_MIN, read_slots, write_slots


def test_a_torn_write_leaves_what_was_there_before(tmp_path: Path) -> None:
    path = tmp_path / "record"
    for number in range(5):
        write_slots(path, b"record %d" % number)
        whole = path.read_bytes()
        assert read_slots(whole) == b"record %d" % number
    size = len(whole)
    write_slots(path, b"another record")
    after = path.read_bytes()
    changed = [at for at in range(size) if whole[at] != after[at]]
    for torn in range(changed[0] + 1, changed[-1] + 1):
        content = after[:torn] + whole[torn:]
        assert read_slots(content) in (b"record 4", b"another record")
    assert len(after) == size == 2 * SLOT_BYTES_MIN


def test_a_record_grows_and_one_that_is_damaged_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "record"
    write_slots(path, b"short")
    write_slots(path, b"x" * 3 * SLOT_BYTES_MIN)
    assert read_slots(path.read_bytes()) == b"x" * 3 * SLOT_BYTES_MIN
    for damage in (b"", b"\xff garbage", b'{"incarnations": {}}'):
        path.write_bytes(damage)
        with pytest.raises(ValueError, match="checksum"):
            read_slots(damage)
        write_slots(path, b"anew", sync=False)
        assert read_slots(path.read_bytes()) == b"anew"
