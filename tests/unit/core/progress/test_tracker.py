"""The tracker on small graphs, by hand; random graphs are in tests/property."""

from __future__ import annotations

import pytest

from penstock.core.antichain import EMPTY, Antichain
from penstock.core.graph import GraphBuilder, LogicalGraph
from penstock.core.progress.pointstamps import Pointstamps
from penstock.core.progress.reachability import Reachability
from penstock.core.progress.tracker import Tracker
from penstock.core.time import Time
from penstock.errors import InvariantError


def loop_graph() -> LogicalGraph:
    builder = GraphBuilder()
    builder.input("in")
    builder.loop("loop")
    builder.ingress("enter", "loop")
    builder.stage("body", "loop")
    builder.feedback("again", "loop")
    builder.egress("leave", "loop")
    builder.stage("out")
    for edge in ("in enter", "enter body", "body again", "again body", "body leave", "leave out"):
        builder.connect(*edge.split())
    return builder.build()


def test_a_message_in_a_loop_allows_this_and_later_iterations_only() -> None:
    tracker = Tracker(loop_graph())
    place = tracker.graph.place
    tracker.apply([(place("body->again"), Time(4, (2,)), 1)])
    assert tracker.frontier(place("body->again")) == Antichain([Time(4, (2,))])
    assert tracker.frontier(place("body")) == Antichain([Time(4, (3,))])
    assert tracker.frontier(place("out")) == Antichain([Time(4)])
    assert tracker.frontier(place("in")) == EMPTY
    assert tracker.complete(place("body"), Time(4, (2,)))
    assert not tracker.complete(place("body"), Time(4, (3,)))
    assert not tracker.complete(place("out"), Time(4))


def test_different_epochs_progress_side_by_side_in_a_loop() -> None:
    tracker = Tracker(loop_graph())
    body = tracker.graph.place("body")
    again = tracker.graph.place("again->body")
    tracker.apply([(again, Time(1, (5,)), 1), (again, Time(2, (1,)), 1)])
    assert tracker.frontier(body) == Antichain([Time(1, (5,)), Time(2, (1,))])
    assert tracker.complete(body, Time(1, (4,)))
    assert tracker.complete(body, Time(2, (0,)))
    assert not tracker.complete(body, Time(2, (1,)))


def test_a_stage_own_events_do_not_keep_its_notifications_back() -> None:
    tracker = Tracker(loop_graph())
    body = tracker.graph.place("body")
    tracker.apply([(body, Time(0, (1,)), 2), (body, Time(0, (0,)), 1)])
    assert tracker.frontier(body) == Antichain([Time(0, (0,))])
    assert tracker.complete(body, Time(0, (0,)))
    assert not tracker.complete(body, Time(0, (1,))), "what is sent at (0, 0) may come round"


def test_negative_counts_hold_the_frontier_like_positive_ones() -> None:
    tracker = Tracker(loop_graph())
    out = tracker.graph.place("leave->out")
    tracker.apply([(out, Time(3), -1)])
    assert tracker.frontier(out) == Antichain([Time(3)])
    assert tracker.apply([(out, Time(3), +1)]) == (out, tracker.graph.place("out"))
    assert tracker.finished


def test_deltas_of_a_batch_that_cancel_out_move_nothing() -> None:
    tracker = Tracker(loop_graph())
    assert tracker.apply([(0, Time(3), 1), (0, Time(3), -1)]) == ()
    assert tracker.apply([]) == ()


def test_a_time_of_the_wrong_depth_is_refused_and_not_counted() -> None:
    tracker = Tracker(loop_graph())
    body = tracker.graph.place("body")
    with pytest.raises(InvariantError, match="0 counters, but 'body' is in 1 loops"):
        tracker.apply([(body, Time(3), 1)])
    assert tracker.count(body, Time(3)) == 0


def test_reset_starts_from_other_counts_and_may_go_back() -> None:
    tracker = Tracker(loop_graph())
    source, out = tracker.graph.place("in"), tracker.graph.place("out")
    tracker.apply([(source, Time(9), 1)])
    assert out in tracker.reset([(source, Time(4), 1)])
    assert tracker.frontier(out) == Antichain([Time(4)])
    assert tracker.snapshot() == ((source, Time(4), 1),)
    other = Tracker(tracker.graph)
    other.apply(tracker.snapshot())
    assert all(other.frontier(p) == tracker.frontier(p) for p in range(len(tracker.graph)))
    assert tracker.reset(tracker.snapshot()) == ()


def test_a_pointstamp_that_comes_later_still_raises_precursor_counts() -> None:
    graph = loop_graph()
    pointstamps = Pointstamps(Reachability(graph))
    late = (graph.place("out"), Time(1))
    pointstamps.update(late, 1)
    assert pointstamps.frontier() == (late,)
    early = (graph.place("in"), Time(0))
    pointstamps.update(early, 1)
    assert pointstamps.precursors(late) == 1
    assert pointstamps.frontier() == (early,)
    assert pointstamps.occurrences(early) == 1
