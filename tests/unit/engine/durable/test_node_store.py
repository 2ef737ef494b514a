"""The store of a node: fences, damage, what is kept and what goes."""

import logging
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import Diff, DiffLink
from penstock.core.causal.reports import NodeReport
from penstock.core.node.causal_effects import Checkpoint
from penstock.engine.host.chain_state import ChainState, StageState
from penstock.engine.store.durable import (
    Beginnings,
    CheckpointWriter,
    NodeStore,
    fence,
    node_store,
    read_stored,
)
from penstock.errors import PeerError, SettingsError, TransientError

STAGE, SHARD, NODE = "counts / per day", 3, 7
STATE = ChainState((StageState(("table", 0), (pa.table({"n": [1, 2]}),)),))


def made(stamp: int) -> Checkpoint:
    return Checkpoint(NodeReport(NODE, (stamp,), stamp, stamp), {})


def determinant(stamp: int) -> Diff:
    return DiffLink(NODE, (stamp,), 0), DiffLink(2, (10 + stamp,), 0)


def opened(path: Path, incarnation: int = 1, sync: bool = False) -> NodeStore:
    fence(path, STAGE, SHARD, incarnation)
    return NodeStore(path, STAGE, SHARD, incarnation, sync)


def stored(path: Path, incarnation: int = 1):
    return read_stored(path, STAGE, SHARD, incarnation, NODE, (8, 9), (2,))


def test_the_initial_state_is_always_there(tmp_path: Path) -> None:
    opened(tmp_path)
    (initial,) = stored(tmp_path).checkpoints
    assert initial.key == 0
    assert initial.report == NodeReport(
        NODE, clock={2: Position()}, floors={8: Floor(), 9: Floor()}
    )


@pytest.mark.parametrize("sync", [False, True])
def test_what_was_written_is_found_by_the_next_incarnation(tmp_path: Path, sync: bool) -> None:
    store = opened(tmp_path, sync=sync)
    store.write_checkpoint(1, made(5), STATE)
    store.append_determinants([determinant(6)])
    store.append_determinants([determinant(7), determinant(8)])
    fence(tmp_path, STAGE, SHARD, 4, sync)
    found = stored(tmp_path, 4)
    assert [(saved.key, saved.report.stamp) for saved in found.checkpoints] == [(0, ()), (1, (5,))]
    assert found.determinants == tuple(map(determinant, (6, 7, 8)))
    checkpoint, state = NodeStore(tmp_path, STAGE, SHARD, 4).load_checkpoint(1)
    assert checkpoint == made(5)
    assert state == STATE


def test_a_fenced_incarnation_can_write_nothing(tmp_path: Path) -> None:
    old = opened(tmp_path)
    old.append_determinants([determinant(1)])  # its file stays open
    new = opened(tmp_path, 2)
    with pytest.raises(PeerError, match="later incarnation"):
        old.append_determinants([determinant(2)])
    with pytest.raises(PeerError, match="must stop"):
        old.write_checkpoint(1, made(1), STATE)
    with pytest.raises(PeerError, match="must stop"):
        old.keys()
    new.append_determinants([determinant(3)])
    with pytest.raises(PeerError, match="later incarnation"):
        old.append_determinants([determinant(4)])
    assert stored(tmp_path, 2).determinants == (determinant(1), determinant(3))
    assert new.keys() == []


def append_until_fenced(
    store: NodeStore, first: int, durable: list[int], running: threading.Event
) -> None:
    for number in range(first, first + 100_000):
        try:
            store.append_determinants([determinant(number)])
        except PeerError:
            return
        durable.append(number)
        running.set()


def test_what_is_appended_during_a_fence_is_read_or_refused(tmp_path: Path) -> None:
    """Every determinant that its writer took for durable is there after the fence."""
    for turn in range(1, 12):
        durable: list[int] = []
        running = threading.Event()
        arguments = (opened(tmp_path, turn), turn * 1_000_000, durable, running)
        thread = threading.Thread(target=append_until_fenced, args=arguments)
        thread.start()
        running.wait()
        fence(tmp_path, STAGE, SHARD, turn + 1)
        thread.join()
        found = {diff[0].stamp[0] for diff in stored(tmp_path, turn + 1).determinants}
        assert set(durable) <= found


def test_fencing_twice_changes_nothing_and_never_goes_back(tmp_path: Path) -> None:
    opened(tmp_path, 2).write_checkpoint(1, made(5), STATE)
    fence(tmp_path, STAGE, SHARD, 2)
    assert [saved.key for saved in stored(tmp_path, 2).checkpoints] == [0, 1]
    with pytest.raises(PeerError, match="another driver"):
        fence(tmp_path, STAGE, SHARD, 1)


def test_what_was_half_written_is_cleared_away(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_determinants([determinant(1)])
    with open(store.path / "determinants.log", "ab") as file:
        file.write(b"\x20\0\0\0torn")
    (store.path / "checkpoint-000000000001.tmp").write_bytes(b"half")
    new = opened(tmp_path, 2)
    new.append_determinants([determinant(2)])
    assert stored(tmp_path, 2).determinants == (determinant(1), determinant(2))
    assert os.listdir(new.path) == ["determinants.log"]


def test_a_torn_record_is_written_over(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_determinants([determinant(1)])
    store.close()
    with open(store.path / "determinants.log", "ab") as file:
        file.write(b"\x20\0\0\0torn")
    store.append_determinants([determinant(2)])
    assert store.determinants()[1] == (determinant(1), determinant(2))


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for stamp in range(3):
        store.append_determinants([determinant(stamp)])
    path = store.path / "determinants.log"
    data = bytearray(path.read_bytes())
    data[12] ^= 1
    path.write_bytes(data)
    with pytest.raises(SettingsError, match="damaged at byte"):
        stored(tmp_path)


def test_damaged_checkpoints_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(tmp_path)
    for key in (1, 2, 3):
        store.write_checkpoint(key, made(key), STATE)
    store.checkpoint_path(2).write_bytes(b"short")
    data = bytearray(store.checkpoint_path(3).read_bytes())
    data[70] ^= 1  # a block: the footer does not show it
    store.checkpoint_path(3).write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert [saved.key for saved in stored(tmp_path).checkpoints] == [0, 1, 3]
    assert "000000000002.arrow is left out" in caplog.text
    with pytest.raises(TransientError, match="the checkpoint before it"):
        store.load_checkpoint(3)
    assert [saved.key for saved in stored(tmp_path).checkpoints] == [0, 1]


def test_the_initial_state_is_of_no_use_once_others_forget(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for key in (1, 2):
        store.write_checkpoint(key, made(key), STATE)
        store.checkpoint_path(key).write_bytes(b"short")
    assert [saved.key for saved in stored(tmp_path).checkpoints] == [0]
    Beginnings(tmp_path).forget(["other[0]"])
    assert [saved.key for saved in stored(tmp_path).checkpoints] == [0]
    Beginnings(tmp_path, sync=True).forget([store.name])
    assert stored(tmp_path).checkpoints == ()
    assert all(map(Beginnings(tmp_path).is_gone, ("other[0]", store.name)))


def test_every_checkpoint_that_a_recovery_may_ask_for_is_kept(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for key in range(1, 7):
        store.write_checkpoint(key, made(10 * key), STATE)
    assert store.epochs() == {1: 10, 2: 20, 3: 30, 4: 40, 5: 50, 6: 60}
    store.keep_from(9)
    assert len(store.keys()) == 6
    store.keep_from(39)
    assert store.epochs() == {3: 30, 4: 40, 5: 50, 6: 60}
    store.checkpoint_path(4).write_bytes(b"short")
    assert list(opened(tmp_path, 2).epochs()) == [3, 5, 6]
    new = opened(tmp_path, 3)
    new.keep_from(45)  # what cannot be read is not counted on
    assert list(new.epochs()) == [3, 5, 6]
    new.keep_from(10_000)
    assert new.epochs() == {6: 60}


def test_what_came_after_the_start_is_void(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for key in (1, 2, 3):
        store.write_checkpoint(key, made(key), STATE)
    store.append_determinants(map(determinant, range(1, 9)))
    store.roll_back(2, (5,))
    assert store.keys() == [1, 2]
    assert store.determinants()[1] == tuple(map(determinant, range(1, 6)))


def test_determinants_before_the_oldest_checkpoint_go_and_with_them_the_initial_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_store, "LOG_BYTES_MAX", 10)
    store = opened(tmp_path)
    store.append_determinants(map(determinant, range(1, 9)))
    for key, stamp in ((1, 2), (2, 4), (3, 6)):
        store.write_checkpoint(key, made(stamp), STATE)
    store.low_epoch = 4
    store.prune()
    assert store.keys() == [2, 3]
    store.append_determinants([determinant(9)])
    found = stored(tmp_path)
    assert [saved.key for saved in found.checkpoints] == [2, 3]
    assert found.determinants == tuple(map(determinant, range(5, 10)))
    store.truncate_determinants((7,))
    fence(tmp_path, STAGE, SHARD, 2)
    found = stored(tmp_path, 2)
    assert [saved.key for saved in found.checkpoints] == [2, 3]
    assert found.determinants == tuple(map(determinant, (5, 6, 7)))


def test_the_writer_keeps_what_a_recovery_may_ask_for_and_reports_errors(tmp_path: Path) -> None:
    failures: list[str] = []
    done: list[int] = []
    writer = CheckpointWriter(lambda store, error: failures.append(f"{store.name}: {error}"))
    store = opened(tmp_path)
    store.low_epoch = 3
    for key in range(1, 6):
        writer.submit(store, key, made(key), STATE, lambda size, _: done.append(size))
    writer.close()
    assert store.keys() == [3, 4, 5]
    store.low_epoch = 5
    store.prune()
    assert store.keys() == [4, 5]  # one may be damaged
    assert len(done) == 5
    assert min(done) > 100
    assert failures == []
    fence(tmp_path, STAGE, SHARD, 2)
    writer = CheckpointWriter(lambda store, error: failures.append(f"{store.name}: {error}"))
    writer.submit(store, 6, made(6), STATE, lambda size, _: done.append(size))
    writer.close()
    assert len(done) == 5
    assert "must stop" in failures[0]
