"""A store of objects keeps the promises of a directory: fences, whole records, what goes."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from penstock.core.causal.diffs import Diff, DiffLink
from penstock.core.causal.reports import NodeReport
from penstock.core.node.causal_effects import Checkpoint
from penstock.engine.host.chain_state import ChainState, StageState
from penstock.engine.store.durable import (
    Beginnings,
    NodeStore,
    fence,
    read_stored,
    stored_incarnation,
)
from penstock.engine.store.flow_store import BoundaryLog, CommitLog, FlowStore
from penstock.errors import PeerError, SettingsError, TransientError
from penstock.storage import objects, storage_of
from penstock.storage.objects import ObjectStorage

STAGE, SHARD, NODE = "counts / per day", 3, 7


@pytest.fixture
def store(tmp_path: Path) -> ObjectStorage:
    found = storage_of(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()))
    assert isinstance(found, ObjectStorage)
    return found


def state(*numbers: int) -> ChainState:
    return ChainState((StageState(("table", 0), (pa.table({"n": numbers}),)),))


def made(stamp: int) -> Checkpoint:
    return Checkpoint(NodeReport(NODE, (stamp,), stamp, stamp), {})


def determinant(stamp: int) -> Diff:
    return DiffLink(NODE, (stamp,), 0), DiffLink(2, (10 + stamp,), 0)


def opened(store: Any, incarnation: int) -> NodeStore:
    fence(store, STAGE, SHARD, incarnation)
    return NodeStore(store, STAGE, SHARD, incarnation)


def keys(store: Any, incarnation: int) -> list[int]:
    found = read_stored(store, STAGE, SHARD, incarnation, NODE, (8,), (2,))
    return [saved.key for saved in found.checkpoints]


# -- addresses -----------------------------------------------------------------------------------


def test_a_store_is_found_again_by_its_address(store: ObjectStorage) -> None:
    store.write("a/b.json", b"{}")
    assert storage_of(store.address).read("a/b.json") == b"{}"
    with pytest.raises(FileNotFoundError):
        store.read("a")
    store.delete("a/b.json")
    with pytest.raises(FileNotFoundError):
        store.read("a/b.json")


def test_an_address_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SettingsError, match="neither a path nor an address"):
        storage_of("nowhere://bucket/x")


# -- logs ----------------------------------------------------------------------------------------


def test_a_log_has_what_was_appended_whoever_opens_it(
    store: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "OBJECTS_MAX", 4)
    log = CommitLog.of(store, "commits/out.log")
    assert log.last() is None
    for epoch in range(11):
        log.commit(epoch)
        assert CommitLog.of(store, "commits/out.log").last() == epoch
    assert [record["epoch"] for record in log.read()] == list(range(11))
    assert len(store.objects.names("commits")) <= 5
    other = CommitLog.of(store, "commits/out.log")
    other.commit(11)
    assert [record["epoch"] for record in other.read()] == list(range(12))
    log.close()
    with pytest.raises(PeerError, match="taken over"):
        log.commit(12)


def test_what_an_earlier_process_appends_after_a_takeover_is_not_read(store: ObjectStorage) -> None:
    old = BoundaryLog(store, "input", 0)
    for epoch in range(4):
        old.append({"epoch": epoch, "position": epoch})
    new = BoundaryLog(store, "input", 0)
    assert [record["epoch"] for record in new.take_over(1)] == [1, 2, 3]
    old.append({"epoch": 4, "position": 4})
    new.append({"epoch": 5, "position": 5})
    found = BoundaryLog(store, "input", 0).read()
    assert [record["epoch"] for record in found] == [1, 2, 3, 5]
    with pytest.raises(PeerError, match="taken over"):
        old.compact(3)


def test_a_torn_object_at_the_end_does_not_count_and_another_one_is_damage(
    store: ObjectStorage, tmp_path: Path
) -> None:
    log = CommitLog.of(store, "out.log")
    for epoch in range(3):
        log.commit(epoch)
    parts = sorted((tmp_path / "out.log").iterdir())
    whole = parts[-1].read_bytes()
    parts[-1].write_bytes(whole[:-2])
    assert CommitLog.of(store, "out.log").last() == 1
    parts[-1].write_bytes(whole)
    parts[1].write_bytes(b"torn")
    with pytest.raises(SettingsError, match="does not match its checksum"):
        CommitLog.of(store, "out.log").last()


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_an_append_that_failed_is_there_once_when_it_is_repeated(
    store: ObjectStorage, monkeypatch: pytest.MonkeyPatch, landed: bool, first: bool
) -> None:
    log = CommitLog.of(store, "out.log")
    if not first:
        log.commit(0)
    put = store.objects.put_checked

    def fails(name: str, data: bytes) -> None:
        if landed:
            put(name, data)
        raise OSError("the network is down")

    monkeypatch.setattr(store.objects, "put_checked", fails)
    for _ in range(2):
        with pytest.raises(OSError, match="network"):
            log.commit(1)
    monkeypatch.undo()
    log.commit(1)
    log.commit(2)
    epochs = [record["epoch"] for record in CommitLog.of(store, "out.log").read()]
    assert epochs == ([1, 2] if first else [0, 1, 2])


def test_a_file_that_was_half_replaced_is_what_it_was(store: ObjectStorage, tmp_path: Path) -> None:
    store.write("record.json", b"old")
    first = next((tmp_path / "record.json").iterdir())
    (tmp_path / "record.json" / "00000002-0000abcd-00000000").write_bytes(first.read_bytes()[:5])
    assert store.read("record.json") == b"old"
    store.write("record.json", b"new")
    assert store.read("record.json") == b"new"
    assert len(list((tmp_path / "record.json").iterdir())) == 1


# -- nodes ---------------------------------------------------------------------------------------


def test_the_next_incarnation_finds_what_the_one_before_it_made_durable(
    store: ObjectStorage,
) -> None:
    assert stored_incarnation(store, STAGE, SHARD) == 0
    old = opened(store, 1)
    old.write_checkpoint(1, made(5), state(1, 2))
    old.append_determinants([determinant(6)])
    old.append_determinants([determinant(7), determinant(8)])
    assert opened(store, 4).load_checkpoint(1)[1] == state(1, 2)
    assert stored_incarnation(store, STAGE, SHARD) == 4
    found = read_stored(store, STAGE, SHARD, 4, NODE, (8,), (2,))
    assert found.determinants == tuple(map(determinant, (6, 7, 8)))
    assert keys(store, 4) == [0, 1]
    Beginnings(store).forget([f"{STAGE}[{SHARD}]"])
    assert keys(store, 4) == [1]
    third = opened(store, 5)
    third.write_checkpoint(2, made(9), state(3))
    fence(store, STAGE, SHARD, 5)
    assert keys(store, 5) == [1, 2]
    with pytest.raises(PeerError, match="another driver"):
        fence(store, STAGE, SHARD, 4)


def test_a_fenced_incarnation_is_told_and_what_it_writes_is_not_read(store: ObjectStorage) -> None:
    old = opened(store, 1)
    old.write_checkpoint(1, made(1), state(1))
    old.append_determinants([determinant(1)])
    new = opened(store, 2)
    with pytest.raises(PeerError, match="later incarnation"):
        old.append_determinants([determinant(2)])
    with pytest.raises(PeerError, match="must stop"):
        old.write_checkpoint(2, made(2), state(2))
    with pytest.raises(PeerError, match="must stop"):
        old.keys()
    new.append_determinants([determinant(3)])
    assert new.keys() == [1]
    opened(store, 3)
    found = read_stored(store, STAGE, SHARD, 3, NODE, (8,), (2,))
    assert found.determinants == (determinant(1), determinant(3))
    assert keys(store, 3) == [0, 1]


def append_until_fenced(
    store: NodeStore, first: int, durable: list[int], running: threading.Event
) -> None:
    for number in range(first, first + 10_000):
        try:
            store.append_determinants([determinant(number)])
        except PeerError:
            return
        durable.append(number)
        running.set()


def test_what_is_appended_during_a_fence_is_read_or_refused(store: ObjectStorage) -> None:
    for turn in range(1, 6):
        durable: list[int] = []
        running = threading.Event()
        arguments = (opened(store, turn), turn * 100_000, durable, running)
        thread = threading.Thread(target=append_until_fenced, args=arguments)
        thread.start()
        assert running.wait(30)
        fence(store, STAGE, SHARD, turn + 1)
        thread.join(30)
        found = read_stored(store, STAGE, SHARD, turn + 1, NODE, (8,), (2,)).determinants
        assert set(durable) <= {diff[0].stamp[0] for diff in found}


def test_a_fence_that_was_interrupted_is_made_again(
    store: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(store, 1).write_checkpoint(1, made(1), state(1))
    put = store.objects.put_checked

    def fails(name: str, data: bytes) -> None:
        if name.endswith("inherited.json"):
            raise OSError("the network is down")
        put(name, data)

    monkeypatch.setattr(store.objects, "put_checked", fails)
    with pytest.raises(OSError, match="network"):
        fence(store, STAGE, SHARD, 2)
    monkeypatch.undo()
    assert stored_incarnation(store, STAGE, SHARD) == 1
    assert opened(store, 3).keys() == [1]


def test_checkpoints_go_become_void_and_give_way_as_in_a_directory(
    store: ObjectStorage, tmp_path: Path
) -> None:
    table = pa.table({"n": range(20_000)})
    kept = ChainState((StageState(("table", 0), (table,)),))
    old = opened(store, 1)
    for key in range(1, 5):
        old.write_checkpoint(key, made(key), kept)
    old.keep_from(2)
    assert old.epochs() == {2: 2, 3: 3, 4: 4}
    new = opened(store, 2)
    new.load_checkpoint(3)
    new.roll_back(3, ())
    assert new.keys() == [2, 3]
    assert new.newest() == 4
    new.write_checkpoint(5, made(5), new.load_checkpoint(3)[1])
    new.keep_from(5)
    files = [path.name for path in tmp_path.rglob("*.arrow") if path.is_file()]
    assert sorted(files) == ["checkpoint-000000000005.arrow", "state-000000000001.arrow"]
    (segment,) = tmp_path.rglob("state-*.arrow")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    last = opened(store, 3)
    with pytest.raises(TransientError, match="the checkpoint before it"):
        last.load_checkpoint(5)
    assert last.keys() == []


# -- the flow's store ----------------------------------------------------------------------------


def test_one_driver_at_a_time_has_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    where = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    first = FlowStore(where)
    assert first.begin("flow", "1", {}) == first.id
    with pytest.raises(SettingsError, match="is in use by pid"):
        FlowStore(where)
    with pytest.raises(SettingsError, match="is not a directory"):
        first.path.exists()
    monkeypatch.setattr("penstock.storage.claims.socket.gethostname", lambda: "elsewhere")
    second = FlowStore(where)
    assert "is taken over" in caplog.text
    assert second.begin("flow", "1", {}) == first.id
    second.close()
    FlowStore(where).close()
