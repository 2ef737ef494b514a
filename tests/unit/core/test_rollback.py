"""Rollback by example: the cases of the paper, and those that it leaves out."""

import pytest

from penstock.bench.monitor import bench_monitor
from penstock.core.rollback.cascades import StageEdge, Trouble, cascades
from penstock.core.rollback.metadata import Edge, NodeMetadata, Offer, RollbackGraph, Witness
from penstock.core.rollback.monitor import SpanMonitor
from penstock.core.rollback.regimes import (
    BATCH,
    CAUSAL,
    EAGER,
    EPHEMERAL,
    EPHEMERAL_LOGGED,
    REPLICATED,
    SOURCE,
    RollbackRegime,
    lazy,
)
from penstock.core.rollback.solver import Cause, Reason, solve
from penstock.core.rollback.spans import EMPTY, TOP, NumberedTime, Span
from penstock.core.rollback.transformers import (
    ENTERING,
    LEAVING,
    TURNING,
    UNKNOWN,
    Custom,
    Recorded,
    epochs_to_numbers,
)
from penstock.core.time import CONVERGED, Time
from penstock.errors import GraphError, InvariantError, SettingsError

E = Span.epoch
SOURCE_NODE = SOURCE.kept(9).alive(discarded=EMPTY)


def live(regime: RollbackRegime, completed: int, *checkpoints: int) -> NodeMetadata:
    gone = EMPTY if regime.keeps_output else None
    return regime.kept(completed, checkpoints).alive(
        E(completed + 1), discarded=gone, complete=E(completed)
    )


@pytest.mark.parametrize(
    ("regime", "failed", "child"),
    [
        # Who failed restarts at what it has; the child undoes what came after that.
        (EPHEMERAL, E(6), E(6)),
        (EPHEMERAL.stateful(), EMPTY, EMPTY),
        (EPHEMERAL_LOGGED.stateful(), E(6), E(6)),
        (BATCH, E(6), E(6)),
        (lazy(4).stateful(), E(4), E(4)),
        (EAGER.stateful(), E(6), E(6)),
    ],
)
def test_a_failed_node_goes_back_as_far_as_its_regime_says(
    regime: RollbackRegime, failed: Span, child: Span
) -> None:
    graph = RollbackGraph(3, [Edge(0, 1, logged=True), Edge(1, 2)])
    found = solve(graph, [SOURCE_NODE, regime.kept(6, [0, 4]), live(EAGER, 7)])
    assert found.spans == (TOP, failed, child)
    assert found.causes[2] == Cause(1, Reason.UNDONE)


def test_an_eager_node_releases_nothing_that_it_could_lose() -> None:
    graph = RollbackGraph(2, [Edge(0, 1)])
    child = EAGER.kept(6).alive(E(6), discarded=EMPTY, complete=E(6))
    assert solve(graph, [EAGER.stateful().kept(6), child]).spans == (E(6), TOP)


def test_a_child_that_lags_takes_its_parent_along_unless_the_edge_is_logged() -> None:
    kept = [SOURCE_NODE, live(EPHEMERAL, 8), lazy(5).stateful().kept(8, [5])]
    edges = [Edge(0, 1, logged=True), Edge(1, 2)]
    assert solve(RollbackGraph(3, edges), kept).spans == (TOP, E(5), E(5))
    persisted = [edges[0], Edge(1, 2, logged=True)]
    assert solve(RollbackGraph(3, persisted), kept).spans == (TOP, TOP, E(5))


def test_what_was_under_way_to_a_live_child_is_made_again() -> None:
    graph = RollbackGraph(2, [Edge(0, 1)])
    parent = EPHEMERAL.kept(6)
    child = EAGER.kept(3).alive(E(4), discarded=EMPTY, complete=E(4))
    assert solve(graph, [parent, child]).spans == (E(4), TOP)


def test_a_causal_node_that_can_replay_does_not_force_its_child_back() -> None:
    # The source's messages 1 and 2 became the node's messages 1 and 2; the child has both.
    graph = RollbackGraph(3, [Edge(0, 1, UNKNOWN, logged=True), Edge(1, 2, UNKNOWN)])
    source = NodeMetadata.spans(EMPTY).alive(discarded=EMPTY)
    made = tuple(Witness(1, NumberedTime(1, n), ((0, NumberedTime(0, n)),)) for n in (1, 2))
    child = NodeMetadata(
        (Offer(EMPTY),), {1: frozenset({NumberedTime(1, 1), NumberedTime(1, 2)})}
    ).alive()
    failed = NodeMetadata((Offer(EMPTY),), {0: frozenset()}, witnesses=made)
    assert solve(graph, [source, failed, child]).spans == (TOP, EMPTY, TOP)
    forgotten = NodeMetadata((Offer(EMPTY),), {0: frozenset()}, witnesses=made[:1])
    assert solve(graph, [source, forgotten, child]).spans == (TOP, EMPTY, EMPTY)
    # If the source itself comes back otherwise, a replay cannot help.
    lost = NodeMetadata.spans(EMPTY)
    assert solve(graph, [lost, failed, child]).spans == (EMPTY, EMPTY, EMPTY)


def test_a_chain_of_causal_nodes_replays_through_all_of_it() -> None:
    graph = RollbackGraph(4, [Edge(0, 1, UNKNOWN, True), Edge(1, 2, UNKNOWN), Edge(2, 3, UNKNOWN)])
    one = NodeMetadata(
        (Offer(EMPTY),), {0: frozenset()}, witnesses=(Witness(1, Time(1), ((0, Time(1)),)),)
    )
    two = NodeMetadata(
        (Offer(EMPTY),), {1: frozenset()}, witnesses=(Witness(2, Time(1), ((1, Time(1)),)),)
    )
    child = NodeMetadata((Offer(EMPTY),), {2: frozenset({Time(1)})}).alive(E(1))
    source = NodeMetadata.spans(EMPTY).alive(discarded=EMPTY)
    assert solve(graph, [source, one, two, child]).spans[3] is TOP
    gone = NodeMetadata((Offer(EMPTY),), {0: frozenset()})
    assert solve(graph, [source, gone, two, child]).spans[3] == EMPTY


def test_a_message_made_from_itself_is_refused() -> None:
    graph = RollbackGraph(1, [Edge(0, 0)])
    circular = (Witness(0, Time(1), ((0, Time(1)),)),)
    kept = NodeMetadata((Offer(EMPTY),), {0: frozenset({Time(1)})}, witnesses=circular)
    with pytest.raises(GraphError, match="made from itself"):
        solve(graph, [kept])


def test_a_loop_goes_back_to_an_iteration() -> None:
    body = [Edge(0, 1, ENTERING, True), Edge(1, 1, TURNING), Edge(1, 2, LEAVING)]
    graph = RollbackGraph(3, body)
    inside = Span.of(Time(3, (CONVERGED,)), Time(4, (2,)))
    loop = NodeMetadata((Offer(EMPTY), Offer(E(2, 1)), Offer(inside, discarded=EMPTY)))
    after = live(EAGER, 3)
    assert solve(graph, [SOURCE_NODE, loop, after]).spans == (TOP, inside, E(3))


def test_epochs_become_sequence_numbers() -> None:
    graph = RollbackGraph(2, [Edge(0, 1, epochs_to_numbers(0, {3: 10, 4: 14, 5: 20}))])
    numbers = [Span.of(NumberedTime(0, n)) for n in (8, 12, 16)]
    billing = NodeMetadata((Offer(EMPTY), *(Offer(span) for span in numbers)))
    assert solve(graph, [BATCH.kept(4), billing]).spans == (E(4), numbers[1])


def test_metadata_that_make_no_sense_are_refused() -> None:
    graph = RollbackGraph(2, [Edge(0, 1, Custom("odd", lambda s: E(5 - (s.scalar or 0))))])
    with pytest.raises(GraphError, match="odd of the edge from 0 to 1 is not monotone"):
        solve(graph, [NodeMetadata.spans(E(1), E(2)), NodeMetadata.spans(EMPTY)])
    with pytest.raises(GraphError, match="each must have all of the one before"):
        solve(graph, [NodeMetadata.spans(E(2), E(1)), NodeMetadata.spans(EMPTY)])
    with pytest.raises(GraphError, match="metadata of 1"):
        solve(graph, [NodeMetadata.spans(EMPTY)])
    with pytest.raises(GraphError, match="nodes go from 0 to 1"):
        RollbackGraph(2, [Edge(0, 2)])
    with pytest.raises(GraphError, match="must grow"):
        Recorded([(E(2), E(2)), (E(1), E(3))])
    with pytest.raises(GraphError, match="sequence number"):
        ENTERING.fixed(Span.of(NumberedTime(0, 1)))
    with pytest.raises(SettingsError, match="from 1 up"):
        lazy(0)
    with pytest.raises(InvariantError, match="before its oldest offer"):
        solve(RollbackGraph(2, [Edge(0, 1)]), [NodeMetadata.spans(EMPTY), NodeMetadata.spans(E(3))])


def test_the_monitor_frees_what_no_failure_can_ask_for() -> None:
    edges = [Edge(0, 1, logged=True), Edge(1, 2, logged=True)]
    monitor = SpanMonitor(RollbackGraph(3, edges), sources=[0], sinks=[2])
    monitor.offer(0, *(SOURCE.offer(epoch) for epoch in range(9)))
    counting = lazy(3).stateful()
    monitor.offer(1, counting.offer(3), counting.offer(6))
    done = monitor.advance()
    assert done.raised == {0: E(8), 1: E(6)}
    assert done.checkpoints[-1] == (1, E(3))
    assert done.logs == ((0, E(6)),)
    assert done.acknowledged == {0: E(6)}
    assert done.released == {}
    monitor.offer(2, EAGER.offer(5))
    done = monitor.advance()
    assert (done.released, done.logs) == ({2: E(5)}, ((1, E(5)),))
    found = monitor.rollback({0: SOURCE_NODE.offers[-1]})
    assert found.spans == (TOP, E(6), E(5))


def test_a_persisted_edge_lets_a_source_forget_early() -> None:
    graph = RollbackGraph(2, [Edge(0, 1, logged=True)])
    monitor = SpanMonitor(graph, sources=[0], persisted=[0])
    monitor.offer(0, SOURCE.offer(4))
    assert monitor.advance().acknowledged == {0: E(4)}


def test_the_monitor_refuses_what_would_lower_a_low_watermark() -> None:
    monitor = SpanMonitor(RollbackGraph(1, []))
    monitor.offer(0, Offer(E(2)))
    monitor.advance()
    with pytest.raises(GraphError, match="go on offering its low-watermark"):
        monitor.learn(0, NodeMetadata.spans(E(1)))
    with pytest.raises(GraphError, match="only what is durable"):
        monitor.offer(0, Offer(TOP))


def test_cascades_are_found_before_anything_runs() -> None:
    regimes = {
        "tweets": SOURCE,
        "parse": EPHEMERAL,
        "window": lazy(4).stateful(),
        "rank": lazy(6).stateful(),
        "serve": EAGER,
        "guess": EPHEMERAL.stateful(),
        "sum": CAUSAL.stateful(),
    }
    edges = [
        StageEdge("tweets", "parse"),
        StageEdge("parse", "window"),
        StageEdge("parse", "serve"),
        StageEdge("window", "rank"),
        StageEdge("serve", "guess"),
        StageEdge("tweets", "sum"),
    ]
    found = {cascade.trouble: cascade for cascade in cascades(regimes, edges)}
    assert found.keys() == set(Trouble)
    assert StageEdge("window", "rank") in found[Trouble.DOMINO].edges
    assert found[Trouble.SIDEWAYS].edges == (StageEdge("parse", "window"),)
    assert "serve must undo" in found[Trouble.SIDEWAYS].message
    assert found[Trouble.BEGINNING].message.startswith("guess has state but keeps none")
    mended = {**regimes, "guess": EPHEMERAL_LOGGED.stateful(), "rank": lazy(8).stateful()}
    edges[1] = StageEdge("parse", "window", persisted=True)
    assert cascades(mended, edges) == []


def test_the_benchmark_rolls_most_of_the_ad_serving_graph_back() -> None:
    measured = bench_monitor([1000], runs=1)
    assert measured["edges"][0] >= 1000
    assert measured["spans_per_node_min"][0] >= 10
    assert measured["rolled_back_percent"][0] > 50
    assert len(measured["seconds"]) == 1


def test_a_replicated_stage_goes_on_after_any_epoch_that_its_sinks_have() -> None:
    """It keeps no checkpoints; its senders keep what it needs, so that nobody goes back with it."""
    kept = REPLICATED.kept(6, since=4)
    assert [offer.span for offer in kept.offers] == [E(4), E(5), E(6)]
    assert all(offer.discarded is EMPTY for offer in kept.offers)
    graph = RollbackGraph(3, [Edge(0, 1), Edge(1, 2)])
    child = EAGER.kept(6).alive(E(6), discarded=EMPTY, complete=E(6))
    assert solve(graph, [SOURCE_NODE, kept, child]).spans == (TOP, E(6), TOP)
