"""The watch of a running flow: nobody is ever asked for anything behind a low-watermark."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.plan import plan
from penstock.core.causal.reports import NodeReport, Saved, Stored
from penstock.core.causal.times import ZERO
from penstock.core.progress.marks import EPOCH_END
from penstock.core.rollback.watch import SpanWatch
from penstock.testing.reference_retention import durable_epochs, low_epochs

seeds = st.integers(0, 2**32)


class Life:
    """A random flow whose nodes save checkpoints at their own pace; the sinks publish."""

    def __init__(self, seed: int, loses: float = 0.0) -> None:
        self.random = random = Random(seed)
        layers = [random.randint(1, 3) for _ in range(random.randint(2, 5))]
        kinds: dict[int, NodeKind] = {}
        parents: dict[int, tuple[int, ...]] = {}
        above: list[int] = []
        for depth, width in enumerate(layers):
            here = list(range(len(kinds), len(kinds) + width))
            for node in here:
                if not depth:
                    kinds[node] = NodeKind.SOURCE
                    continue
                last = depth == len(layers) - 1
                kinds[node] = (
                    NodeKind.SINK
                    if last
                    else random.choice([NodeKind.STATELESS, NodeKind.STATEFUL])
                )
                parents[node] = tuple(sorted(random.sample(above, random.randint(1, len(above)))))
            for node in above:  # nobody works for nothing
                if not any(node in parents[other] for other in here):
                    parents[here[-1]] = tuple(sorted({*parents[here[-1]], node}))
            above = here
        logless = frozenset(
            node for node in kinds if kinds[node] is not NodeKind.SINK and random.random() < loses
        )
        self.graph = CausalGraph(kinds, parents, logless=logless)
        self.keeps = [n for n in kinds if kinds[n] not in (NodeKind.SOURCE, NodeKind.STATELESS)]
        self.saved = {node: [-1] for node in self.keeps}
        self.low = -1
        self.watch = SpanWatch(self.graph)

    def step(self) -> None:
        node = self.random.choice(self.keeps)
        epoch = self.saved[node][-1] + self.random.randint(1, 4)
        if self.graph.kinds[node] is NodeKind.SINK:
            self.saved[node] = [epoch]
            self.watch.published(node, epoch)
        else:
            self.saved[node].append(epoch)
            self.watch.saved(node, epoch)

    def stored(self) -> dict[int, Stored]:
        """What the store has, with logs that are cut at the low epoch."""
        return {
            node: Stored(
                tuple(Saved(key, self.report(node, epoch)) for key, epoch in enumerate(epochs))
            )
            for node, epochs in self.saved.items()
        }

    def report(self, node: int, epoch: int) -> NodeReport:
        return NodeReport(
            node,
            completed=epoch,
            clock=dict.fromkeys(self.graph.parents[node], Position(ZERO, epoch)),
            floors=dict.fromkeys(self.graph.children[node], Floor(ZERO, self.low, self.low)),
        )


@given(seeds, st.sampled_from([0.0, 0.4, 1.0]))
@settings(max_examples=80, deadline=None)
def test_the_low_watermarks_are_those_that_logs_are_cut_by(seed: int, loses: float) -> None:
    life = Life(seed, loses)
    for _ in range(20):
        life.step()
        life.watch.advance()
        lows = low_epochs(life.graph, *durable_epochs(life.graph, life.stored()))
        for node in life.graph.order:
            assert life.watch.region_low(node) == lows[node]
            assert life.watch.low(node) >= lows[node]
        assert life.watch.low_epoch() == min(lows.values())


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_no_failure_goes_behind_a_low_watermark_even_if_the_newest_checkpoint_is_damaged(
    seed: int,
) -> None:
    life = Life(seed)
    for _ in range(25):
        life.step()
    life.watch.advance()
    lows = {node: life.watch.low(node) for node in life.graph.order}
    for node in life.keeps:
        if life.graph.kinds[node] is not NodeKind.SINK and len(life.saved[node]) > 1:
            life.saved[node].pop()
    found = plan(life.graph, frozenset(life.graph.order), {}, life.stored())
    assert found.impossible is None
    for node, start in found.starts.items():
        assert start.completed >= lows[node]


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_what_would_restart_is_what_restarts(seed: int) -> None:
    """A causal failure restarts the failed alone; from the newest checkpoint."""
    life = Life(seed)
    for _ in range(25):
        life.step()
    life.watch.advance()
    failed = [node for node in life.graph.order if life.random.random() < 0.4]
    reached = dict.fromkeys(life.graph.order, 1_000)
    expected = life.watch.if_failed(failed, reached)
    assert [one.node for one in expected] == [n for n in life.graph.order if n in failed]
    for one in expected:
        assert one.because is None
        assert one.to == (life.saved[one.node][-1] if one.node in life.saved else None)


def test_a_sender_without_a_log_goes_back_with_its_receiver_and_stops_at_a_log() -> None:
    kinds = {
        0: NodeKind.SOURCE,
        1: NodeKind.STATEFUL,
        2: NodeKind.STATELESS,
        3: NodeKind.STATEFUL,
        4: NodeKind.SINK,
    }
    parents = {1: (0,), 2: (1,), 3: (2,), 4: (3,)}
    reached = dict.fromkeys(kinds, 20)
    for logless, back in (((), [3]), ((1, 2), [1, 3]), ((1,), [3])):
        graph = CausalGraph(kinds, parents, logless=frozenset(logless))
        watch = SpanWatch(graph)
        for epoch in (4, 9, 14, 19):
            watch.saved(1, epoch)
        for epoch in (4, 9, 14):
            watch.saved(3, epoch)
        watch.published(4, 15)
        watch.advance()
        found = watch.if_failed([3], reached)
        assert [(one.node, one.to) for one in found] == [(node, 14) for node in back]
        assert watch.low(3) == 9
        # What the first node sent must be made again, even if its checkpoint of 9 is damaged.
        assert watch.low(1) == (4 if logless else 14)


def test_a_loop_can_go_back_only_to_what_all_its_nodes_have() -> None:
    kinds = {0: NodeKind.SOURCE, 1: NodeKind.STATEFUL, 2: NodeKind.STATEFUL, 3: NodeKind.SINK}
    watch = SpanWatch(CausalGraph(kinds, {1: (0,), 2: (0,), 3: (1, 2)}, units={1: 1, 2: 1}))
    for epoch in (4, 9, 14):
        watch.saved(1, epoch)
    watch.saved(2, 4)
    watch.saved(2, 14)
    watch.published(3, 20)
    watch.advance()
    assert (watch.low(1), watch.low(2), watch.low(0)) == (4, 4, 4)
    found = watch.if_failed([2], dict.fromkeys(kinds, 21))
    assert [(one.node, one.to) for one in found] == [(1, 14), (2, 14)]
    assert watch.held_by(0) in (1, 2)


def test_regions_that_nothing_joins_have_low_watermarks_of_their_own() -> None:
    kinds = {0: NodeKind.SOURCE, 1: NodeKind.SINK, 2: NodeKind.SOURCE, 3: NodeKind.SINK}
    watch = SpanWatch(CausalGraph(kinds, {1: (0,), 3: (2,)}))
    watch.published(1, 7)
    watch.published(3, 2)
    watch.advance()
    assert (watch.region_low(0), watch.region_low(2), watch.low_epoch()) == (7, 2, 2)


def test_what_was_saved_beyond_a_restart_is_void() -> None:
    kinds = {0: NodeKind.SOURCE, 1: NodeKind.STATEFUL, 2: NodeKind.SINK}
    watch = SpanWatch(CausalGraph(kinds, {1: (0,), 2: (1,)}))
    watch.stored(1, [4, 9, 14])
    watch.published(2, 30)
    watch.restarted(1, 9)
    watch.advance()
    assert (watch.kept(1), watch.low(1)) == ((4, 9), 4)
    watch.saved(1, 12)
    watch.advance()
    assert (watch.kept(1), watch.low(1)) == ((9, 12), 9)


def test_who_has_ended_durably_does_not_go_back_when_others_fail() -> None:
    kinds = {0: NodeKind.SOURCE, 1: NodeKind.STATEFUL, 2: NodeKind.SINK, 3: NodeKind.SINK}
    watch = SpanWatch(CausalGraph(kinds, {1: (0,), 2: (1,), 3: (1,)}))
    watch.saved(1, 4)
    watch.published(2, EPOCH_END)
    watch.published(3, 4)
    watch.advance()
    found = watch.if_failed([1], {0: EPOCH_END, 1: EPOCH_END, 2: EPOCH_END, 3: 4})
    assert [would.node for would in found] == [1]
    assert [would.node for would in watch.if_failed([2], {})] == [2]
