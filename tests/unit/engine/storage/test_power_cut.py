"""What was said to be durable outlives the machine, and a sync that failed.

The model: a file's bytes are on the disk as far as a successful sync covered them.  After a failed
sync the kernel takes them for clean: they can be read, and no later sync writes them, unless they
are written once more.  The names in a directory are on the disk as the last sync of the directory
found them: what was made or renamed since is gone, or where it was before.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Unpack

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.start_options import RunOptions
from penstock.connectors.epoch_log import EpochLogReader, EpochLogWriter, last_epoch
from penstock.connectors.staging import Staging
from penstock.engine.store.logs import BoundaryLog, StoreLog
from penstock.errors import PeerError, SourceError
from penstock.storage.slots import read_slots, write_slots
from penstock.storage.syncs import make_directory, write_durably
from penstock.testing.local import LocalQuery, run_local, start_local


class Disk:
    """Knows what of each file is on the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing = False
        """Whether the next sync of a file fails."""
        self.failing_name = ""
        """What the name of that file has in it."""
        self._stored: dict[tuple[int, int], bytes] = {}
        self._dropped: dict[tuple[int, int], bytes] = {}
        self._names: dict[tuple[int, int], dict[str, tuple[int, int]]] = {}
        """Per directory: what its names stand for."""
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
        key = _key(descriptor)
        if key not in self._stored and key not in self._names:
            self._held.append(os.dup(descriptor))  # so that no other file gets its number
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            self._names[key] = _names(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
            return
        content = _content(descriptor)
        if self.failing and self.failing_name in os.readlink(f"/proc/self/fd/{descriptor}"):
            self.failing = False
            self._dropped[key] = content
            self._stored.setdefault(key, b"")
            raise OSError(5, "Input/output error")
        if self._dropped.get(key) != content:
            self._stored[key] = content

    def cut_power(self, *folders: Path) -> None:
        """Leave of these folders what is on the disk; they themselves are."""
        lost = Path(tempfile.mkdtemp(dir=folders[0].parent))
        gone: dict[tuple[int, int], Path] = {}
        waiting = list(folders)
        for folder in waiting:  # what is not durable goes, with all that is in it …
            durable = self._names.get(_key(folder), {})
            for name, key in _names(folder).items():
                if durable.get(name) != key:
                    gone[key] = Path(shutil.move(folder / name, lost / f"{len(gone)}"))
                elif (folder / name).is_dir():
                    waiting.append(folder / name)
        for folder in waiting:  # … and what was there before comes back
            for name, key in self._names.get(_key(folder), {}).items():
                path = folder / name
                if key in gone and not path.exists():
                    shutil.move(gone.pop(key), path)
                    waiting += [path] if path.is_dir() else []
                if key in self._stored:
                    path.write_bytes(self._stored[key])
                elif path.is_file():
                    path.write_bytes(b"")
        shutil.rmtree(lost)

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)


def _key(file: int | Path) -> tuple[int, int]:
    status = os.stat(file)
    return status.st_dev, status.st_ino


def _names(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # removed in the meantime
            found[name] = _key(folder / name)
    return found


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


def test_a_name_is_durable_when_its_directory_was_synced(disk: Disk, tmp_path: Path) -> None:
    """The model itself."""
    folder = tmp_path / "folder"
    make_directory(folder)
    write_durably(folder / "kept", b"kept")
    write_durably(folder / "moved", b"moved")
    (folder / "moved").rename(folder / "elsewhere")
    for name, content in (("kept", b"new"), ("new", b"new")):
        (folder / "tmp").write_bytes(content)
        with open(folder / "tmp", "rb") as file:
            os.fsync(file.fileno())
        (folder / "tmp").replace(folder / name)  # and the directory is not synced
    disk.cut_power(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "kept": b"kept",
        "moved": b"moved",
    }


def test_parts_that_were_staged_and_not_published_outlive_the_machine(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    def not_now(self: Staging, epoch: int, names: object) -> bool:
        refused.append(epoch)
        raise OSError(5, "Input/output error")

    def start(**options: Unpack[RunOptions]) -> LocalQuery:
        flow = Flow("cut")
        rows = flow.generate(
            lambda offset, n: batch(*range(offset, offset + n)), rate=2000, rows=2000, shards=2
        )
        few = flow.generate(lambda offset, n: batch(*range(-n, 0)), rows=10, shards=1)
        counts = rows.union(few).groupBy("n").agg(F.count("*").alias("rows"))
        counts.parquet(str(tmp_path / "out"), name="out")
        return start_local(
            flow,
            checkpointLocation=str(tmp_path / "store"),
            checkpointInterval="50 ms",
            epochInterval="20 ms",
            **options,
        )

    for folder in ("store", "out"):
        make_directory(tmp_path / folder)
    with monkeypatch.context() as patched:
        patched.setattr(Staging, "publish", not_now)
        query = start(drainTimeout="100 ms")
        staged = tmp_path / "out" / "_staging"
        deadline = time.monotonic() + 30
        while not refused or len(list(staged.glob("*/epoch=*"))) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        query.stop()
        assert query.awaitTermination(30)
    assert list((tmp_path / "out").glob("epoch=*")) == []
    disk.cut_power(tmp_path / "store", tmp_path / "out")
    query = start(availableNow=True)
    assert query.awaitTermination(60)
    parts = sorted((tmp_path / "out").glob("epoch=*/*.parquet"))
    found = pa.concat_tables([pq.ParquetFile(part).read() for part in parts])
    assert sorted(found["n"].to_pylist()) == list(range(-10, 2000))
    assert set(found["rows"].to_pylist()) == {1}


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
    with pytest.raises(FileNotFoundError, match="another file now"):
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
