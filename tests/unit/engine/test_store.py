"""The store keeps what was recorded, drops what was torn, and refuses what is damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.control.deadly_rows import SkippedRow
from penstock.engine.store import logs
from penstock.engine.store.flow_store import BoundaryLog, FlowStore, StageRecord
from penstock.engine.store.logs import CommitLog, StoreLog
from penstock.engine.store.skipped_rows import SKIPPED, SkippedRows
from penstock.errors import PeerError, SettingsError
from penstock.storage import storage_of

RECORDS: list[dict[str, Any]] = [
    {"epoch": 1, "position": 10, "journal": {"block": 7, "name": "ä\n"}},
    {"epoch": 2, "position": {"file": 0, "row": 3}, "journal": None, "watermark_us": 5},
    {"epoch": 4, "position": {"file": 2, "row": 0}, "journal": [["a", 1], ["b", 2]]},
]


def written(path: Path, records: list[dict[str, Any]] = RECORDS) -> StoreLog:
    log = StoreLog(path)
    for record in records:
        log.append(record)
    log.close()
    return log


def test_records_are_read_back_in_order(tmp_path: Path) -> None:
    assert written(tmp_path / "x.log").read() == RECORDS
    assert StoreLog(tmp_path / "absent.log").read() == []


def test_log_cut_at_every_byte_keeps_the_whole_records_and_can_go_on(tmp_path: Path) -> None:
    data = written(tmp_path / "x.log").path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]
    path = tmp_path / "torn.log"
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        whole = RECORDS[: sum(end <= length for end in ends)]
        log = StoreLog(path)
        assert log.read() == whole
        log.append({"epoch": 9})
        assert log.read() == [*whole, {"epoch": 9}]
        log.close()


def test_a_compaction_that_is_overtaken_by_a_fence_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = BoundaryLog(tmp_path, "numbers", 0)
    frozen.claim(1)
    for epoch in range(5):
        frozen.append({"epoch": epoch, "position": epoch, "journal": None})
    heir = BoundaryLog(tmp_path, "numbers", 0)
    compacted = logs._compacted

    def taken_over_meanwhile(records: list[Any], after: int | None) -> list[Any]:
        monkeypatch.setattr(logs, "_compacted", compacted)
        heir.take_over(1, fence=2)
        heir.claim(2)
        heir.append({"epoch": 5, "position": 50, "journal": None})
        return compacted(records, after)

    monkeypatch.setattr(logs, "_compacted", taken_over_meanwhile)
    with pytest.raises(PeerError, match="taken over"):
        frozen.compact(3)
    assert heir.read()[-1]["position"] == 50
    assert heir.fence() == 2
    heir.compact(3)
    assert [record["epoch"] for record in heir.read()] == [3, 4, 4, 5]


def test_last_record_with_holes_is_torn(tmp_path: Path) -> None:
    """A power cut can leave zeros where a page did not reach the disk."""
    data = written(tmp_path / "x.log").path.read_bytes()
    start = data.rindex(b"\n", 0, -1) + 1
    path = tmp_path / "torn.log"
    for tail in (b"\0" * 40, data[start : start + 9] + b"\0" * 20 + data[-3:]):
        path.write_bytes(data[:start] + tail)
        assert StoreLog(path).read() == RECORDS[:2]


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    data = written(tmp_path / "x.log").path.read_bytes()
    path = tmp_path / "damaged.log"
    for index in range(len(data) - 1):  # without its last byte, the end is torn
        damaged = bytearray(data)
        damaged[index] ^= 0x01
        path.write_bytes(damaged)
        with pytest.raises(SettingsError, match="damaged at byte"):
            StoreLog(path).read()
        with pytest.raises(SettingsError, match="damaged at byte"):
            StoreLog(path).append({"epoch": 5})
        assert path.read_bytes() == bytes(damaged)


def test_failed_append_is_not_half_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = written(tmp_path / "x.log")
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) <= 5:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:-5])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        log.append({"epoch": 5})
    monkeypatch.undo()
    assert log.read() == RECORDS
    log.append({"epoch": 6})
    assert log.read() == [*RECORDS, {"epoch": 6}]


@given(
    entries=st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 100), st.none() | st.lists(st.text())),
        max_size=12,
    ),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_compaction_changes_nothing_about_resuming(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Any], data: st.DataObject
) -> None:
    log = BoundaryLog(tmp_path_factory.mktemp("log"), "numbers", 3)
    epoch = 0
    for step, position, journal in entries:
        epoch += step
        log.append({"epoch": epoch, "position": position, "journal": journal})
    after = data.draw(st.none() | st.integers(-1, epoch + 1))
    expected = log.resume(after)
    assert list(expected.journal) == [entry[2] for entry in entries if entry[2] is not None]
    log.compact(after)
    assert log.resume(after) == expected
    later = data.draw(st.integers(-1 if after is None else after, epoch + 2))
    expected = log.resume(later)
    log.compact(later)
    assert log.resume(later) == expected
    log.close()


def test_resume_splits_at_the_published_epoch(tmp_path: Path) -> None:
    log = BoundaryLog(tmp_path, "numbers", 0)
    assert log.resume(None).position is None
    for record in RECORDS:
        log.append(record)
    resume = log.resume(3)
    assert resume.position == {"file": 0, "row": 3}
    assert resume.watermark_us == 5
    assert [record["epoch"] for record in resume.replay] == [4]
    assert len(resume.journal) == 2
    assert log.resume(None).position is None
    assert len(log.resume(None).replay) == 3


def test_commit_log_is_cut_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.store.logs._COMMITS_BYTES_MAX", 200)
    log = CommitLog(tmp_path / "sink.log")
    assert log.last() is None
    for epoch in range(100):
        log.commit(epoch)
        assert log.last() == epoch
    assert log.path.stat().st_size < 300


STAGES = {"files": StageRecord("source", 2, {"x": "int64"}), "out": StageRecord("parquet", 2)}


def test_flow_keeps_its_id(tmp_path: Path) -> None:
    store = FlowStore(tmp_path / "a" / "b")
    first = store.begin("flow", "0.1.0", STAGES)
    assert store.fresh
    store.close()
    store = FlowStore(f"file://{tmp_path}/a/b")
    assert store.begin("flow", "0.2.0", STAGES) == first
    assert not store.fresh
    store.close()


@pytest.mark.parametrize(
    ("name", "stages", "words"),
    [
        ("other", STAGES, "the flow was named 'flow', now 'other'"),
        ("flow", {"out": STAGES["out"]}, "stage 'files' is gone"),
        ("flow", {**STAGES, "more": StageRecord("memory")}, "stage 'more' is new"),
        (
            "flow",
            {**STAGES, "files": StageRecord("source", 3, {"x": "int64"})},
            "stage 'files' had shards 2, now 3",
        ),
        ("flow", {**STAGES, "out": StageRecord("csv", 2)}, "'out' had kind parquet, now csv"),
        (
            "flow",
            {**STAGES, "files": StageRecord("source", 2, {"x": "string", "y": "int8"})},
            "column 'x' was int64, now string; stage 'files': column 'y' is new",
        ),
    ],
)
def test_changed_flow_is_refused_with_what_changed(
    tmp_path: Path, name: str, stages: dict[str, StageRecord], words: str
) -> None:
    store = FlowStore(tmp_path)
    store.begin("flow", "0.1.0", STAGES)
    with pytest.raises(SettingsError) as raised:
        store.begin(name, "0.1.0", stages)
    assert words in str(raised.value)
    store.close()


def test_damaged_metadata_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text('{"format": 1')
    store = FlowStore(tmp_path)
    with pytest.raises(SettingsError, match=r"metadata\.json is damaged"):
        store.begin("flow", "0.1.0", STAGES)
    store.close()


def test_second_driver_is_refused_and_told_the_pid(tmp_path: Path) -> None:
    store = FlowStore(tmp_path)
    with pytest.raises(SettingsError, match=f"in use by pid {os.getpid()} on "):
        FlowStore(tmp_path)
    store.close()
    FlowStore(tmp_path).close()


def test_lock_goes_with_a_killed_driver(tmp_path: Path) -> None:
    code = (
        "import sys, time, subprocess; from penstock.engine.store.flow_store import FlowStore\n"
        "store = FlowStore(sys.argv[1]); subprocess.Popen(['sleep', '5'])\n"
        "print('locked', flush=True); time.sleep(60)"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "locked\n"
    with pytest.raises(SettingsError, match=f"pid {driver.pid}"):
        FlowStore(tmp_path)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    FlowStore(tmp_path).close()  # although its child still lives


def test_unwritable_location_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be written to"):
        FlowStore(tmp_path / "file" / "below")
    with pytest.raises(SettingsError, match="nowhere://bucket/x is neither a path nor"):
        FlowStore("nowhere://bucket/x")
    if os.getuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(SettingsError, match="Permission denied"):
            FlowStore(tmp_path / "closed")


def test_a_store_of_an_earlier_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text('{"format": 1, "name": "flow", "stages": {}}')
    with pytest.raises(SettingsError, match="has format 1, this version of Penstock reads 2"):
        FlowStore(tmp_path).begin("flow", "1", {})


def test_skipped_rows_are_kept_and_a_damaged_record_is_refused(tmp_path: Path) -> None:
    rows = [SkippedRow("parsed", 2**64 - 1, 7, "exit status 3"), SkippedRow("parsed", 1, 9, "ä")]
    record = SkippedRows(storage_of(tmp_path), sync=True)
    assert record.read() == []
    for row in rows:
        record.add(row)
    assert SkippedRows(storage_of(tmp_path), sync=True).read() == rows
    (tmp_path / SKIPPED).write_text("[{")
    with pytest.raises(SettingsError, match="is damaged"):
        record.read()
