"""A chain that is restored from disk goes on as if nothing had happened, byte for byte."""

from __future__ import annotations

import tempfile
from collections import Counter, deque
from typing import Any, NamedTuple
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Flow
from penstock.api.flow import Stream
from penstock.api.vertex import Vertex
from penstock.core.causal.reports import NodeReport
from penstock.core.node.causal_effects import Checkpoint
from penstock.core.time import Time
from penstock.engine.host.chain import ChainRunner
from penstock.engine.store.durable import NodeStore, fence, segments
from penstock.operators import terms as F
from penstock.planning.physical import PhysicalPlan, physical_plan

ROWS = pa.schema(
    {"k": pa.string(), "t": pa.timestamp("us"), "n": pa.int64(), "x": pa.float64(), "i": pa.int64()}
)
EVENTS = 40


def make(offset: int, n: int) -> pa.RecordBatch:
    raise NotImplementedError


class Ordered(Vertex):
    """Its output depends on the order of its input, and on more than the newest."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.last: deque[pa.RecordBatch] = deque(maxlen=2)
        self.due: dict[Time, list[int]] = {}
        self.total = 0

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.seen.update(str(key) for key in batch.column("k").to_pylist())
        self.last.append(batch)
        self.total = (self.total * 31 + batch.num_rows) % 1_000_003
        self.due.setdefault(time.next_epoch(), []).append(self.total)
        self.notifyAt(time.next_epoch())
        self.sendBy(0, self.last[0], time)

    def onNotify(self, time: Time) -> None:
        sums = self.due.pop(time)
        mark = self.watermark(Time.root(max(0, time.epoch - 2)))
        row = {
            "k": str(sorted(self.seen.items())),
            "t": 0,
            "n": sum(sums),
            "x": float(mark or 0),
            "i": len(self.last),
        }
        self.sendBy(0, pa.RecordBatch.from_pylist([row], ROWS), time)


class Sums(Vertex):
    """Keeps its state in a table of its own making."""

    orderSensitive = False

    def __init__(self) -> None:
        self._sums: dict[int, int] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self._sums[time.epoch] = self._sums.get(time.epoch, 0) + batch.num_rows
        self.notifyAt(time)

    def onNotify(self, time: Time) -> None:
        row = {"k": "", "t": 0, "n": self._sums[time.epoch], "x": 0.0, "i": len(self._sums)}
        self.sendBy(0, pa.RecordBatch.from_pylist([row], ROWS), time)

    def snapshot(self) -> dict[str, pa.Table]:
        return {"sums": pa.table({"e": list(self._sums), "n": list(self._sums.values())})}

    def restore(self, state: Any, time: Time) -> None:
        table = state["sums"]
        self._sums = dict(zip(table["e"].to_pylist(), table["n"].to_pylist(), strict=True))


AGGREGATES = [F.count("*"), F.sum("n"), F.sum("x"), F.avg("x"), F.min("n"), F.max("k").alias("m")]


def marked(stream: Stream) -> Stream:
    return stream.withWatermark("t", 0.000_010, idleEpochs=3)


def joined(how: str) -> Any:
    def build(stream: Stream) -> Stream:
        other = marked(stream._flow.generate(make, schema=ROWS))
        right = other.select("k", "t AS u", "i AS j")
        return marked(stream).join(right, "k", how, within=0.000_020, time=("t", "u"))

    return build


FAMILIES: dict[str, Any] = {
    "aggregate": lambda s: s.groupBy("k").agg(*AGGREGATES),
    "aggregate of everything": lambda s: s.groupBy().agg(*AGGREGATES),
    "aggregate and more": lambda s: s.groupBy("k").agg(*AGGREGATES).filter("count > 1"),
    "distinct": lambda s: s.dropDuplicates(["k", "n"]),
    "distinct within": lambda s: marked(s).dropDuplicates(["k"], within=0.000_020),
    "inner join": joined("inner"),
    "left join": joined("left"),
    "tumbling": lambda s: marked(s).groupBy(F.window("t", 0.000_020), "k").agg(*AGGREGATES),
    "sliding and late": lambda s: (
        marked(s)
        .groupBy(F.window("t", 0.000_020, 0.000_005), "k")
        .agg(*AGGREGATES, allowedLateness=0.000_015)
    ),
    "session": lambda s: (
        marked(s)
        .groupBy(F.session_window("t", 0.000_007), "k")
        .agg(*AGGREGATES, allowedLateness=0.000_010)
    ),
    "watermark behind an exchange": lambda s: marked(s.keyBy("k")).dropDuplicates(["k"]),
    "watermark alone": lambda s: marked(s.keyBy("k")),
    "ordered": lambda s: marked(s).keyBy("k").filter("n IS NULL OR n > 0").process(Ordered, ROWS),
    "two vertices": lambda s: s.keyBy("k").process(Ordered, ROWS).process(Ordered, ROWS),
    "vertex with a snapshot": lambda s: s.process(Sums, ROWS).process(Ordered, ROWS),
}

keys = st.sampled_from(["a", "b", "c", None])
rows = st.fixed_dictionaries(
    {
        "k": keys,
        "t": st.integers(0, 100),
        "n": st.sampled_from([-1, 1, 2, None, 2**40]),
        "x": st.sampled_from([0.1, 0.2, 0.3, -0.3, 1e16, None]),
    }
)
batches = st.tuples(st.integers(0, 1), st.integers(0, 2), st.lists(rows, max_size=6))
"""Which source, how many epochs ahead, rows."""
histories = st.lists(st.none() | batches, min_size=1, max_size=EVENTS)


class Event(NamedTuple):
    """A batch for the chain, or the end of an epoch."""

    link: int
    payload: Any
    time: Time


class Run:
    """One chain with state behind the chains that feed it; everything has one shard."""

    def __init__(self, build: Any) -> None:
        flow = Flow()
        build(flow.generate(make, schema=ROWS)).memory()
        self.plan: PhysicalPlan = physical_plan(flow, 1)
        self.target = self.plan.chains[-2]
        self.out: list[tuple[int, Time, bytes]] = []

    def runner(self, index: int, produce: Any) -> ChainRunner:
        chain = self.plan.chains[index]
        runner = ChainRunner(self.plan, chain, chain.first_node, produce)
        runner.repeatable = runner.keep_pending = True
        return runner

    def events(self, history: list[Any]) -> list[Event]:
        """What the chain gets, made by the real chains before it."""
        found: list[Event] = []
        target = self.target.index
        before = {chain.index: chain for chain in self.plan.chains[:target]}
        runners: dict[int, ChainRunner] = {}
        marks: dict[int, int | None] = {}

        def produce(link: int, parts: Any, time: Time) -> None:
            to = self.plan.links[link].target_chain
            for _, batch, _ in parts:
                if to == target:
                    found.append(Event(link, batch, time))
                else:
                    runners[to].deliver(self.plan.links[link].target_port, batch, time)

        for index in before:
            runners[index] = self.runner(index, produce)
            runners[index].open()
        sources = [index for index, chain in before.items() if chain.is_source]
        epoch = number = 0
        for step in history:
            if step is None:
                for index in before:
                    into = [link.index for link in self.plan.links_into(index)]
                    mark = marks[into[0]] if into else None
                    marks.update(runners[index].complete(epoch, mark))
                ends = [marks[link.index] for link in self.plan.links_into(target)]
                low = None if None in ends else min(ends)
                found.append(Event(-1, low, Time.root(epoch)))
                epoch += 1
                continue
            source, ahead, content = step
            content = [{**row, "i": number + i} for i, row in enumerate(content)]
            number += len(content)
            batch = pa.RecordBatch.from_pylist(content, ROWS)
            runners[sources[source % len(sources)]].emit(batch, Time.root(epoch + ahead))
        return found

    def chain(self) -> ChainRunner:
        return self.runner(self.target.index, self._produce)

    def _produce(self, link: int, parts: Any, time: Time) -> None:
        for _, batch, _ in parts:
            self.out.append((link, time, batch.serialize().to_pybytes()))

    def perform(self, runner: ChainRunner, event: Event) -> Any:
        if event.link >= 0:
            runner.deliver(self.plan.links[event.link].target_port, event.payload, event.time)
            return None
        return runner.complete(event.time.epoch, event.payload)


class Restarts:
    """Checkpoints of a chain in a store, each with the moment when it was taken."""

    def __init__(self, run: Run, directory: str) -> None:
        self.run = run
        self.directory = directory
        self.incarnation = 0
        self.taken: dict[int, tuple[int, int, int]] = {0: (0, -1, 0)}
        """By key: the events handled, the last complete epoch, what was sent."""
        self.next()

    def next(self) -> None:
        self.incarnation += 1
        fence(self.directory, "chain", 0, self.incarnation)
        self.store = NodeStore(self.directory, "chain", 0, self.incarnation, sync=False)

    def save(self, chain: ChainRunner, number: int, completed: int) -> None:
        key = max(self.taken) + 1
        checkpoint = Checkpoint(NodeReport(0, completed=completed), {})
        self.store.write_checkpoint(key, checkpoint, chain.snapshot())
        self.taken[key] = (number, completed, len(self.run.out))

    def restart(self, key: int) -> tuple[ChainRunner, int, int]:
        """A new chain in the state of a checkpoint, by way of files, and the moment to go on."""
        self.next()
        self.store.roll_back(key, ())
        self.taken = {one: when for one, when in self.taken.items() if one <= key}
        number, completed, sent = self.taken[key]
        del self.run.out[sent:]
        chain = self.run.chain()
        if key:
            chain.restore(self.store.load_checkpoint(key)[1], completed)
        else:
            chain.open()
        assert len(self.run.out) == sent, "what was sent before is not sent again"
        return chain, number, completed


actions = st.dictionaries(
    st.integers(0, EVENTS),
    st.sampled_from(["save", "restart", "back", "back twice", "forget"]),
    min_size=1,
    max_size=10,
)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None)
@given(history=histories, actions=actions)
def test_a_restored_chain_goes_on_as_if_nothing_had_happened(family, history, actions):
    whole, broken = Run(FAMILIES[family]), Run(FAMILIES[family])
    events = whole.events([*history, None, None, None])
    one, other = whole.chain(), broken.chain()
    one.open()
    other.open()
    told = [whole.perform(one, event) for event in events]
    number, completed = 0, -1
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.object(segments, "SEGMENT_BYTES_MIN", 1),
    ):
        restarts = Restarts(broken, directory)
        while number <= len(events):
            action = actions.pop(number, None)
            if action is not None:
                restarts.save(other, number, completed)
            if action == "forget":
                restarts.store.keep_from(completed)
                kept = restarts.store.keys()
                restarts.taken = {key: restarts.taken[key] for key in kept}
            elif action not in (None, "save"):
                keys = sorted(restarts.taken)
                back = {"restart": 1, "back": 2, "back twice": 3}[action]
                other, number, completed = restarts.restart(keys[-min(back, len(keys))])
            if number < len(events):
                event = events[number]
                assert told[number] == broken.perform(other, event)
                completed = event.time.epoch if event.link < 0 else completed
            number += 1
    assert broken.out == whole.out
    assert other.watermark_us == one.watermark_us
    assert other.asked == one.asked
