"""What was said to be durable outlives the machine, and a sync that failed.

The model: a file's bytes are on the disk as far as a successful sync covered them.  After a failed
sync the kernel takes them for clean: they can be read, and no later sync writes them, unless they
are written once more.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Flow
from penstock.connectors.epoch_log import EpochLogReader, EpochLogWriter, last_epoch
from penstock.engine.store.logs import BoundaryLog, StoreLog
from penstock.errors import PeerError, SourceError
from penstock.storage.slots import read_slots, write_slots
from penstock.testing.local import run_local


class Disk:
    """Knows what of each file is on the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing = False
        """Whether the next sync of a file fails."""
        self.failing_name = ""
        """What the name of that file has in it."""
        self._stored: dict[tuple[int, int], bytes] = {}
        self._dropped: dict[tuple[int, int], bytes] = {}
        self._held: list[int] = []
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._sync)
        self._patch_writes(monkeypatch)

    def _patch_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def noticed(real: Callable[..., int]) -> Callable[..., int]:
            def write(descriptor: int, *rest: object) -> int:
                self._dropped.pop(_key(descriptor), None)  # what is written again is dirty again
                return real(descriptor, *rest)

            return write

        for name in ("write", "writev", "pwrite"):
            monkeypatch.setattr(os, name, noticed(getattr(os, name)))

    def _sync(self, descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            return
        key = _key(descriptor)
        if key not in self._stored:
            self._held.append(os.dup(descriptor))  # so that no other file gets its number
        content = _content(descriptor)
        if self.failing and self.failing_name in os.readlink(f"/proc/self/fd/{descriptor}"):
            self.failing = False
            self._dropped[key] = content
            self._stored.setdefault(key, b"")
            raise OSError(5, "Input/output error")
        if self._dropped.get(key) != content:
            self._stored[key] = content

    def cut_power(self, folder: Path) -> None:
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            status = path.stat()
            path.write_bytes(self._stored.get((status.st_dev, status.st_ino), b""))

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)


def _key(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _content(descriptor: int) -> bytes:
    return Path(f"/proc/self/fd/{descriptor}").read_bytes()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk(monkeypatch)
    yield made
    made.close()


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def epochs(folder: Path) -> list[int]:
    reader, found = EpochLogReader(folder, -1), []
    while (record := reader.next()) is not None:
        found.append(record.epoch)
    reader.close()
    return found


def test_a_persisted_epoch_without_rows_outlives_the_machine(disk: Disk, tmp_path: Path) -> None:
    log = EpochLogWriter(tmp_path)
    log.append(0, [batch(1)], None)
    for epoch in (1, 2, 3):
        log.append(epoch, [], None)
    log.close()
    disk.cut_power(tmp_path)
    assert last_epoch(tmp_path) == 3


def test_a_persisted_epoch_is_read_by_nobody_before_it_is_durable(
    disk: Disk, tmp_path: Path
) -> None:
    log = EpochLogWriter(tmp_path)
    log.append(0, [batch(1)], None)
    disk.failing = True
    with pytest.raises(OSError, match="Input/output"):
        log.append(1, [batch(2)], None)
    assert epochs(tmp_path) == [0]
    log.append(1, [batch(2)], None)
    log.append(2, [], None)
    assert epochs(tmp_path) == [0, 1, 2]
    log.close()
    disk.cut_power(tmp_path)
    assert last_epoch(tmp_path) == 2
    EpochLogWriter(tmp_path).close()
    assert epochs(tmp_path) == [0, 1, 2]


def test_what_a_killed_writer_left_is_durable_before_it_is_sealed(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("penstock.connectors.epoch_log.sync_descriptor", lambda descriptor: None)
        EpochLogWriter(tmp_path).append(0, [batch(1)], None)  # killed before its sync
    assert EpochLogWriter(tmp_path).last == 0
    disk.cut_power(tmp_path)
    assert last_epoch(tmp_path) == 0


def test_the_first_length_that_a_segment_is_sealed_with_stands(tmp_path: Path) -> None:
    frozen = EpochLogWriter(tmp_path)
    frozen.append(0, [batch(1)], None)
    successor = EpochLogWriter(tmp_path)
    frozen.append(1, [batch(66)], None)
    frozen._is_suspect = True
    with pytest.raises(PeerError, match="was replaced"):
        frozen.append(2, [batch(66)], None)
    successor.append(1, [batch(2)], None)
    assert epochs(tmp_path) == [0, 1]


def test_a_log_whose_sync_failed_is_written_again(disk: Disk, tmp_path: Path) -> None:
    log = StoreLog(tmp_path / "a.log")
    log.append({"epoch": 1})
    log.append({"epoch": 2}, sync=False)
    disk.failing = True
    with pytest.raises(OSError, match="Input/output"):
        log.append({"epoch": 3})
    log.append({"epoch": 3})
    disk.cut_power(tmp_path)
    assert log.read() == [{"epoch": n} for n in (1, 2, 3)]


def test_a_log_that_was_taken_over_is_not_mended_by_the_one_before(
    disk: Disk, tmp_path: Path
) -> None:
    frozen = BoundaryLog(tmp_path, "numbers", 0)
    frozen.claim(1)
    frozen.append({"epoch": 1, "position": 10})
    disk.failing = True
    with pytest.raises(OSError, match="Input/output"):
        frozen.append({"epoch": 2, "position": 20})
    successor = BoundaryLog(tmp_path, "numbers", 0)
    successor.take_over(None, ended=True, fence=2)
    with pytest.raises(PeerError, match="this one must stop"):
        frozen.append({"epoch": 2, "position": 20})


def test_a_slot_whose_sync_failed_leaves_the_durable_one_alone(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "record"
    write_slots(path, b"one")
    before = path.stat().st_ino
    disk.failing = True
    with pytest.raises(OSError, match="Input/output"):
        write_slots(path, b"two")
    write_slots(path, b"three")  # over the slot of "one", a power cut could leave neither
    assert path.stat().st_ino != before
    disk.cut_power(tmp_path)
    assert read_slots(path.read_bytes()) == b"three"


def test_a_parquet_part_whose_sync_failed_is_written_again(disk: Disk, tmp_path: Path) -> None:
    def failing(offset: int, n: int) -> pa.RecordBatch:
        disk.failing = offset == 0
        return batch(*range(offset, offset + n))

    flow = Flow()
    rows = flow.generate(failing, rows=100, shards=1, schema=batch().schema)
    rows.parquet(str(tmp_path / "out"))
    run_local(flow)
    assert not disk.failing
    disk.cut_power(tmp_path / "out")
    parts = sorted((tmp_path / "out").glob("epoch=*/*.parquet"))
    found = pa.concat_tables([pq.read_table(part, partitioning=None) for part in parts])
    assert sorted(found["n"].to_pylist()) == list(range(100))


def test_a_version_of_a_table_whose_sync_failed_is_written_again(
    disk: Disk, tmp_path: Path
) -> None:
    def failing(offset: int, n: int) -> pa.RecordBatch:
        disk.failing, disk.failing_name = offset == 0, "writing-"
        return batch(*range(offset, offset + n))

    flow = Flow()
    rows = flow.generate(failing, rows=100, shards=1, schema=batch().schema)
    table = rows.toTable("numbers", path=str(tmp_path / "table"))
    query = run_local(flow, checkpointLocation=str(tmp_path / "store"))
    assert not disk.failing
    assert query.exception() is None
    disk.cut_power(tmp_path / "table")
    assert table.read()["n"].to_pylist() == list(range(100))
    assert len(list((tmp_path / "table").glob("writing-*"))) == 0


def test_a_source_that_froze_before_its_first_cut_is_fenced(tmp_path: Path) -> None:
    frozen = BoundaryLog(tmp_path, "numbers", 0)
    frozen.claim(1)
    late = BoundaryLog(tmp_path, "numbers", 0)
    successor = BoundaryLog(tmp_path, "numbers", 0)
    successor.take_over(None, ended=True, fence=2)
    successor.claim(2)
    frozen.append({"epoch": 0, "position": 66})
    with pytest.raises(PeerError, match="belongs to incarnation 2"):
        late.claim(1)
    successor.append({"epoch": 0, "position": 10})
    assert successor.resume(0).position == 10
    assert successor.resume(0).replay == ()


def test_a_source_is_not_read_from_before_its_oldest_cut(tmp_path: Path) -> None:
    log = BoundaryLog(tmp_path, "numbers", 0)
    for epoch in (1, 2, 3):
        log.append({"epoch": epoch, "position": 10 * epoch})
    log.compact(2)
    assert log.resume(2).position == 20
    with pytest.raises(SourceError, match="before the end of epoch 2, its oldest cut"):
        log.resume(1)
