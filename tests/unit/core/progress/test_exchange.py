"""Buffers, the accumulator and inputs, step by step."""

from __future__ import annotations

import pytest

from penstock.core.antichain import EMPTY, Antichain
from penstock.core.graph import GraphBuilder, LogicalGraph
from penstock.core.progress.deltas import Delta, FrontierChange, check_changes, check_deltas
from penstock.core.progress.exchange import Accumulator, Flush, LocalProgress, ProgressBuffer
from penstock.core.progress.inputs import EpochInput, IdleInputs, InputState
from penstock.core.progress.tracker import Tracker
from penstock.core.time import Time
from penstock.errors import InvariantError, PeerError

IN, COUNT, ROWS = 0, 1, 2


def chain() -> LogicalGraph:
    builder = GraphBuilder()
    builder.input("in")
    builder.stage("count")
    builder.connect("in", "count", "rows")
    return builder.build()


def tracker_with(*deltas: tuple[int, Time, int]) -> Tracker:
    tracker = Tracker(chain())
    tracker.apply(deltas)
    return tracker


def test_deltas_behind_another_pointstamp_are_held_until_it_is_gone() -> None:
    view = tracker_with((IN, Time(0), 1))
    buffer = ProgressBuffer(view)
    assert not buffer.add([(ROWS, Time(0), 1)])
    assert not buffer.add([(ROWS, Time(1), 1), (ROWS, Time(0), -1)])
    assert len(buffer) == 1, "what cancels out is not kept"
    view.apply([(IN, Time(0), -1)])
    assert buffer.recheck()
    assert buffer.flush() == ((ROWS, Time(1), 1),)
    assert buffer.flush() == ()


def test_what_a_worker_itself_still_holds_at_a_stage_is_held_back() -> None:
    view = tracker_with((COUNT, Time(0), 2))
    buffer = ProgressBuffer(view, held=[(COUNT, Time(0), 2)])
    assert not buffer.add([(COUNT, Time(0), -1)])
    assert buffer.add([(COUNT, Time(0), -1)])


def test_what_another_worker_holds_at_a_stage_is_no_reason_to_wait() -> None:
    """With counts per stage, two workers would otherwise wait for each other for ever."""
    view = tracker_with((COUNT, Time(0), 2))
    first = ProgressBuffer(view, held=[(COUNT, Time(0), 1)])
    second = ProgressBuffer(view, held=[(COUNT, Time(0), 1)])
    assert first.add([(COUNT, Time(0), -1)])
    assert second.add([(COUNT, Time(0), -1)])


def test_a_worker_cannot_give_back_what_it_does_not_hold() -> None:
    buffer = ProgressBuffer(tracker_with((COUNT, Time(0), 1)))
    with pytest.raises(InvariantError, match="taken away than put in at 'count'"):
        buffer.add([(COUNT, Time(0), -1)])


def test_positive_deltas_are_flushed_first() -> None:
    buffer = ProgressBuffer(tracker_with((ROWS, Time(0), 1)))
    assert buffer.add([(ROWS, Time(0), -1), (COUNT, Time(1), 1)])
    assert [count for *_, count in buffer.flush()] == [1, -1]


def test_the_accumulator_is_silent_while_no_frontier_moves() -> None:
    accumulator = Accumulator(Tracker(chain()))
    accumulator.add([(IN, Time(0), 1)])
    assert accumulator.due
    accumulator.flush()
    accumulator.receive("a", Flush(1, ((ROWS, Time(0), 3),)))
    accumulator.receive("b", Flush(1, ((ROWS, Time(0), -3),)))
    assert not accumulator.due
    assert accumulator.flush().deltas == ()


def test_a_flush_that_comes_twice_counts_once_and_a_gap_is_refused() -> None:
    accumulator = Accumulator(Tracker(chain()))
    flush = Flush(1, ((IN, Time(0), 1),))
    assert accumulator.receive("a", flush)
    assert accumulator.receive("a", flush) == ()
    assert accumulator.tracker.count(IN, Time(0)) == 1
    with pytest.raises(PeerError, match="progress of a jumps from 1 to 3"):
        accumulator.receive("a", Flush(3, ()))
    accumulator.forget("a")
    assert accumulator.receive("a", Flush(1, ((IN, Time(0), -1),)))


@pytest.mark.parametrize("mirror", [True, False])
def test_a_worker_that_joins_late_sees_what_the_others_see(mirror: bool) -> None:
    accumulator = Accumulator(Tracker(chain()))
    accumulator.add([(IN, Time(0), 1)])
    with pytest.raises(InvariantError, match="while a broadcast was due"):
        accumulator.welcome()
    accumulator.flush()
    accumulator.receive("a", Flush(1, ((ROWS, Time(0), 1),)))
    late = LocalProgress(accumulator.tracker.graph, accumulator.welcome(), mirror=mirror)
    assert late.view.frontier(COUNT) == Antichain([Time(0)])
    accumulator.receive("a", Flush(2, ((IN, Time(0), -1),)))
    accumulator.receive("a", Flush(3, ((ROWS, Time(0), -1),)))
    broadcast = accumulator.flush()
    assert set(late.receive(broadcast)[0]) == {IN, COUNT, ROWS}
    assert late.receive(broadcast) == ((), None), "again: nothing happens"
    assert late.view.finished
    with pytest.raises(PeerError, match="jumps from broadcast"):
        late.receive(broadcast._replace(sequence=9))


@pytest.mark.parametrize("mirror", [True, False])
def test_after_a_restart_everybody_begins_from_the_rebuilt_counts(mirror: bool) -> None:
    accumulator = Accumulator(Tracker(chain()))
    accumulator.add([(IN, Time(5), 1)])
    accumulator.receive("a", Flush(1, ((ROWS, Time(5), 1),)))
    rebuilt = [(IN, Time(3), 1)]
    welcome = accumulator.restart(rebuilt)
    assert not accumulator.due
    local = LocalProgress(chain(), welcome, held=rebuilt, mirror=mirror)
    assert local.view.frontier(COUNT) == Antichain([Time(3)])
    flush = local.record(((IN, Time(4), 1), (IN, Time(3), -1)))
    assert flush is not None
    accumulator.receive("a", flush)
    local.receive(accumulator.flush())
    assert local.view.complete(COUNT, Time(3))


@pytest.mark.parametrize("bad", [(9, Time(0), 1), (-1, Time(0), 1), (0, Time(0, (1,)), 1)])
def test_deltas_that_do_not_fit_the_graph_are_refused(bad: Delta) -> None:
    good = (IN, Time(3), 2)
    assert check_deltas(chain(), (good,)) == (good,)
    with pytest.raises(PeerError, match="does not fit"):
        check_deltas(chain(), (good, bad))


@pytest.mark.parametrize("bad", [(9, (Time(0),)), (0, (Time(0), Time(0, (1,))))])
def test_frontiers_that_do_not_fit_the_graph_are_refused(bad: FrontierChange) -> None:
    good = (IN, (Time(3),))
    assert check_changes(chain(), (good,)) == (good,)
    with pytest.raises(PeerError, match="does not fit"):
        check_changes(chain(), (good, bad))


def test_inputs_close_epochs_and_then_for_good() -> None:
    source = EpochInput(IN)
    tracker = tracker_with(*source.opened())
    tracker.apply(source.close_epoch())
    assert tracker.complete(COUNT, Time(0))
    tracker.apply(source.close_epoch(following=10))
    assert tracker.frontier(COUNT) == Antichain([Time(10)])
    with pytest.raises(InvariantError, match="epoch 10 cannot follow epoch 10"):
        source.close_epoch(following=10)
    tracker.apply(source.close())
    assert tracker.frontier(COUNT) == EMPTY
    with pytest.raises(InvariantError, match="must be open for that; it is closed"):
        source.close_epoch()


def test_an_idle_input_holds_nobody_back_and_resumes_where_the_others_are() -> None:
    quiet, busy = EpochInput(IN), EpochInput(IN)
    tracker = tracker_with(*quiet.opened(), *busy.opened())
    idle = IdleInputs(tracker)
    tracker.apply(quiet.go_idle())
    idle.lend("quiet", IN, quiet.epoch)
    for _ in range(4):
        tracker.apply(busy.close_epoch())
        tracker.apply(idle.follow())
    assert tracker.frontier(COUNT) == Antichain([Time(4)])
    quiet.resume(idle.resume("quiet"))
    assert (quiet.state, quiet.epoch) == (InputState.OPEN, 4)
    tracker.apply(busy.close())
    assert tracker.frontier(COUNT) == Antichain([Time(4)])
    tracker.apply(quiet.close())
    assert tracker.finished


def test_when_all_inputs_are_idle_everything_sent_completes_but_the_flow_goes_on() -> None:
    first, second = EpochInput(IN), EpochInput(IN, epoch=6)
    tracker = tracker_with(*first.opened(), *second.opened())
    idle = IdleInputs(tracker)
    for name, source in (("first", first), ("second", second)):
        tracker.apply(source.go_idle())
        idle.lend(name, IN, source.epoch)
        tracker.apply(idle.follow())
    assert tracker.frontier(COUNT) == Antichain([Time(7)])
    assert idle.follow() == ()
    tracker.apply(idle.close("first"))
    assert not tracker.finished
    assert idle.resume("second") == 7


def test_loans_are_checked() -> None:
    tracker = tracker_with((IN, Time(1), 1))
    idle = IdleInputs(tracker)
    with pytest.raises(PeerError, match="lends epoch 2, which it does not hold"):
        idle.lend("a", IN, 2)
    idle.lend("a", IN, 1)
    with pytest.raises(PeerError, match="idle already"):
        idle.lend("a", IN, 1)
    with pytest.raises(PeerError, match="lends epoch 1, which it does not hold"):
        idle.lend("b", IN, 1)
    with pytest.raises(PeerError, match="is not idle"):
        idle.resume("b")
