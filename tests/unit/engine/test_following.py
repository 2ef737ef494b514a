"""A host that stands by has the states of others ready, and they are what the store has."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.vertex import Time
from penstock.core.causal.reports import NodeReport
from penstock.core.control.host_orders import CheckpointNews
from penstock.core.node.causal_effects import Checkpoint
from penstock.engine.host import warm_standby as following
from penstock.engine.host.chain_state import ChainState, StageState, captured, given_back
from penstock.engine.host.warm_standby import Follower, WarmState
from penstock.engine.store.durable import NodeStore, fence, segments
from penstock.operators.aggregate import RunningMerge, RunningVertex
from penstock.planning.physical import PhysicalPlan, physical_plan

KEYS = 3_000
WAIT_S = 60.0
EVENT = pa.schema({"k": pa.int64(), "n": pa.int64()})


class Node:
    """A node that counts per key, its store, and a follower of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        flow = Flow("following")
        counts = flow.memory(EVENT, name="events").groupBy("k").agg(F.sum("n").alias("n"))
        counts.name("counts").memory(name="out")
        self.plan: PhysicalPlan = physical_plan(flow, 1)
        self.chain = next(
            chain
            for chain in self.plan.chains
            if any(isinstance(stage.operator, RunningMerge) for stage in chain.stages)
        )
        self.node = self.chain.first_node
        self.at = next(
            number
            for number, stage in enumerate(self.chain.stages)
            if isinstance(stage.operator, RunningMerge)
        )
        self.operator = self.chain.stages[self.at].operator
        self.vertex = self.made()
        self.key = self.incarnation = 0
        self.reached = threading.Condition()
        self.followed: list[int] = []
        self.restart()
        self.follower = Follower(self.plan, self.opened, self.told)

    def made(self) -> RunningVertex:
        vertex = self.operator.vertex()
        assert isinstance(vertex, RunningVertex)
        return vertex

    def opened(self, _node: int, incarnation: int) -> NodeStore:
        return NodeStore(self.path, "counts", 0, incarnation, sync=False)

    def told(self, _node: int, key: int) -> None:
        with self.reached:
            self.followed.append(key)
            self.reached.notify()

    def restart(self) -> None:
        """The next incarnation has the store."""
        self.incarnation += 1
        fence(self.path, "counts", 0, self.incarnation)
        self.store = self.opened(self.node, self.incarnation)

    def update(self, keys: Any, value: int) -> None:
        rows = {"k": keys, "$rows": np.ones(len(keys), np.int64)}
        self.vertex._store.put(pa.table({**rows, "$sum(n)": np.full(len(keys), value)}))

    def save(self) -> int:
        """Write a checkpoint; how many bytes that took."""
        self.key += 1
        kept = captured(self.operator, self.vertex, {}, {})
        stages = [StageState() for _ in self.chain.stages]
        stages[self.at] = kept
        checkpoint = Checkpoint(NodeReport(self.node, (self.key,), self.key, self.key), {})
        return self.store.write_checkpoint(self.key, checkpoint, ChainState(tuple(stages)))

    def follow(self, size: int = 0) -> None:
        self.follower.follow({self.node: CheckpointNews(self.incarnation, self.key, size)})

    def await_followed(self, key: int) -> None:
        with self.reached:
            assert self.reached.wait_for(lambda: key in self.followed, WAIT_S)

    def restored(self, ready: WarmState) -> RunningVertex:
        """The vertex that a start makes of it."""
        vertex = ready.vertices[self.at]
        assert isinstance(vertex, RunningVertex)
        given_back(ready.read.state.stages[self.at], vertex, Time.root(0))
        return vertex

    def stored(self, key: int) -> pa.Table:
        """What the store has."""
        vertex = self.made()
        read = self.opened(self.node, self.incarnation).read_checkpoint(key)
        given_back(read.state.stages[self.at], vertex, Time.root(0))
        return vertex._store.table()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(segments, "SEGMENT_BYTES_MIN", 1 << 10)
    made = Node(tmp_path)
    made.update(np.arange(KEYS), 0)
    yield made
    made.follower.close()


@pytest.mark.parametrize("seed", range(6))
def test_what_a_follower_has_is_what_the_store_has(node: Node, seed: int) -> None:
    chance = np.random.default_rng(seed)
    for number in range(1, int(chance.integers(2, 25))):
        for _ in range(chance.integers(1, 4)):  # epochs between two checkpoints
            fresh = chance.integers(0, 2 * KEYS, int(chance.integers(1, KEYS)))
            node.update(np.unique(fresh), number)
        node.save()
        if chance.random() < 0.7:  # others are skipped
            node.follow()
            if chance.random() < 0.5:
                node.await_followed(node.key)
    node.follow()
    node.await_followed(node.key)
    wanted = node.key - int(chance.integers(0, 2))
    node.restart()
    ready = node.follower.take(node.node, node.store, wanted)
    assert ready is not None
    assert node.restored(ready)._store.table().equals(node.stored(wanted))


def test_who_takes_over_writes_only_what_has_changed(node: Node) -> None:
    full = node.save()
    node.follow()
    node.await_followed(node.key)
    node.restart()
    ready = node.follower.take(node.node, node.store, node.key)
    assert ready is not None
    node.vertex = node.restored(ready)
    node.update(np.arange(20), 5)
    assert node.save() < full / 4
    assert node.stored(node.key).equals(node.vertex._store.table())


def test_a_history_that_went_back_is_not_taken_for_the_one_that_was_followed(node: Node) -> None:
    node.save()
    node.update(np.arange(100), 1)
    node.save()
    node.follow()
    node.await_followed(2)
    node.restart()  # elsewhere, from the first checkpoint
    read = node.store.read_checkpoint(1)
    node.store.go_on(read.known)
    node.store.roll_back(1, ())
    node.vertex = node.made()
    given_back(read.state.stages[node.at], node.vertex, Time.root(0))
    node.update(np.arange(200, 500), 2)
    node.save()
    node.restart()
    assert node.follower.take(node.node, node.store, node.key) is None  # not known here
    node.follow()
    node.await_followed(node.key)
    node.restart()
    ready = node.follower.take(node.node, node.store, node.key)
    assert ready is not None
    assert node.restored(ready)._store.table().equals(node.vertex._store.table())


def test_a_damaged_checkpoint_is_left_to_who_reads_the_store(node: Node) -> None:
    node.save()
    node.follow()
    node.await_followed(1)
    node.update(np.arange(KEYS), 1)
    node.save()
    name = next(name for name in node.store.folder.names() if name.startswith("state-000000000002"))
    path = Path(str(node.store.path)) / name
    path.write_bytes(path.read_bytes()[:-9] + b"damaged!!")
    node.follow()
    node.restart()
    assert node.follower.take(node.node, node.store, 2) is None


def test_there_is_a_limit_to_what_is_followed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FOLLOWED_BYTES_MAX", 1000)
    node.save()
    node.follow(size=1001)
    node.save()
    node.follow(size=1000)
    node.await_followed(2)
    assert node.followed == [2]
