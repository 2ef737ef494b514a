"""Notifications: order, readiness, guarantee and capability times."""

from __future__ import annotations

import pytest

from penstock.core.graph import GraphBuilder
from penstock.core.progress.notifications import Notification, NotificationQueue
from penstock.core.progress.tracker import Tracker
from penstock.core.time import Time
from penstock.errors import InvariantError, UsageError


def chain() -> tuple[Tracker, NotificationQueue]:
    builder = GraphBuilder()
    builder.input("in")
    builder.stage("count")
    builder.stage("sink")
    builder.connect("in", "count")
    builder.connect("count", "sink")
    tracker = Tracker(builder.build())
    tracker.apply([(0, Time(0), 1)])
    return tracker, NotificationQueue(tracker.reachability, tracker.graph.place("count"))


def advance(tracker: Tracker, old: int, new: int) -> None:
    tracker.apply([(0, Time(new), 1), (0, Time(old), -1)])


def test_notifications_come_in_order_once_complete() -> None:
    tracker, queue = chain()
    for epoch in (2, 0, 1):
        tracker.apply(queue.ask(Notification.at(Time(epoch)), Time(0)))
    assert queue.take(tracker) is None
    advance(tracker, 0, 2)
    taken = []
    while (ready := queue.take(tracker)) is not None:
        taken.append(ready.guarantee.epoch)
        tracker.apply(queue.handled(ready))
    assert taken == [0, 1]
    assert queue.pending() == (Notification.at(Time(2)),)


def test_asking_twice_gives_one_notification_and_one_count() -> None:
    tracker, queue = chain()
    assert len(queue.ask(Notification.at(Time(0)), Time(0))) == 1
    assert queue.ask(Notification.at(Time(0)), Time(0)) == ()
    advance(tracker, 0, 1)
    assert queue.take(tracker) is not None
    assert len(queue.ask(Notification.at(Time(0)), Time(0))) == 1, "a new one may be asked for"


def test_a_capability_holds_those_downstream_until_it_is_handled() -> None:
    tracker, queue = chain()
    sink = tracker.graph.place("sink")
    tracker.apply(queue.ask(Notification.at(Time(0)), Time(0)))
    advance(tracker, 0, 1)
    ready = queue.take(tracker)
    assert ready is not None
    assert not tracker.complete(sink, Time(0)), "onNotify may still send at 0"
    tracker.apply(queue.handled(ready))
    assert tracker.complete(sink, Time(0))


def test_a_later_capability_lets_downstream_complete_the_guarantee_time() -> None:
    tracker, queue = chain()
    sink = tracker.graph.place("sink")
    tracker.apply(queue.ask(Notification(guarantee=Time(0), capability=Time(5)), Time(0)))
    advance(tracker, 0, 7)
    assert tracker.complete(sink, Time(4))
    assert not tracker.complete(sink, Time(5))


def test_no_capability_holds_nobody_and_allows_no_further_asking_for_one() -> None:
    tracker, queue = chain()
    assert queue.ask(Notification(Time(0), None), Time(0)) == ()
    advance(tracker, 0, 1)
    ready = queue.take(tracker)
    assert ready == Notification(Time(0), None)
    with pytest.raises(UsageError, match=r"'count' asked .* callback that may not send"):
        queue.ask(Notification.at(Time(1)), ready.capability)
    assert queue.ask(Notification(Time(1), None), ready.capability) == ()
    assert queue.handled(ready) == ()


@pytest.mark.parametrize(
    "wanted",
    [Notification.at(Time(2)), Notification(Time(2), Time(4)), Notification(Time(4), Time(2))],
)
def test_asking_for_the_past_is_refused_and_names_the_stage(wanted: Notification) -> None:
    _, queue = chain()
    with pytest.raises(UsageError, match=r"'count' is at Time\(3\) and asked .* Time\(2\)"):
        queue.ask(wanted, Time(3))


def test_a_time_of_the_wrong_depth_is_refused() -> None:
    _, queue = chain()
    with pytest.raises(UsageError, match="its times have 0 loop counters"):
        queue.ask(Notification.at(Time(3, (0,))), Time(3))


def test_only_what_is_being_delivered_can_be_handled() -> None:
    _, queue = chain()
    with pytest.raises(InvariantError, match="not being delivered"):
        queue.handled(Notification.at(Time(0)))


def test_a_notification_in_a_loop_that_would_wait_for_itself_is_refused() -> None:
    builder = GraphBuilder()
    builder.loop("loop")
    builder.stage("body", "loop")
    builder.feedback("again", "loop")
    builder.connect("body", "again")
    builder.connect("again", "body")
    tracker = Tracker(builder.build())
    queue = NotificationQueue(tracker.reachability, tracker.graph.place("body"))
    now = Time(0, (0,))
    with pytest.raises(UsageError, match="wait for itself"):
        queue.ask(Notification(guarantee=Time(0, (1,)), capability=now), now)
    tracker.apply(queue.ask(Notification(Time(0, (1,)), Time(0, (1,))), now))
    assert queue.take(tracker) is not None


def test_in_a_loop_one_epoch_does_not_wait_for_another() -> None:
    builder = GraphBuilder()
    builder.loop("loop")
    builder.stage("body", "loop")
    builder.feedback("again", "loop")
    builder.connect("body", "again")
    back = builder.connect("again", "body")
    tracker = Tracker(builder.build())
    queue = NotificationQueue(tracker.reachability, tracker.graph.place("body"))
    for time in (Time(0, (9,)), Time(1, (2,))):
        tracker.apply(queue.ask(Notification.at(time), time))
    tracker.apply([(tracker.graph.place(back), Time(0, (5,)), 1)])
    assert queue.take(tracker) == Notification.at(Time(1, (2,)))
    assert queue.take(tracker) is None, "(0, 5) may still be followed by (0, 9)"
