"""Notifications: when a stage may be told that a time is complete, and what it may do then.

Decides order and readiness of one node's notifications and which counts they hold. Follows the
Naiad paper, sections 2.2 to 2.4. A notification has two times:

*guarantee* t_g: it is delivered only when nothing at or before t_g can arrive any more;
*capability* t_c: when it is delivered, the node may send at t_c or later. Until then the pointstamp
(stage, t_c) is counted, so all stages downstream wait for it.

Usually both are the same. A later t_c lets downstream times between the two complete already. No
t_c at all, for cleaning up, holds no stage back and allows no sending. An earlier t_c is allowed as
long as what could be sent at t_c cannot come round a loop to the same stage at or before t_g: it
would wait for itself.

What is counted when (the engine merges the deltas of one callback into one step):

===================================  =============================================================
``sendBy(connector, t)``             +1 at (connector, t) when called, before the message leaves
``onRecv`` returns                   -1 at (connector, t) of the message handled, in the same step
                                     as everything that it sent and asked for
``notifyAt(t_g, t_c)``               +1 at (stage, t_c) when called
``onNotify`` returns                 -1 at (stage, t_c), with everything that it sent and asked for
===================================  =============================================================
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

from penstock.core.progress.deltas import Deltas
from penstock.core.progress.reachability import Reachability
from penstock.core.progress.view import FrontierView
from penstock.core.time import Time
from penstock.errors import InvariantError, UsageError

__all__ = ["Notification", "NotificationQueue"]


class Notification(NamedTuple):
    """Delivered when ``guarantee`` is complete; may send at ``capability`` (None: not at all)."""

    guarantee: Time
    capability: Time | None

    @classmethod
    def at(cls, time: Time) -> Notification:
        """The usual notification: both times are the same."""
        return cls(time, time)


class NotificationQueue:
    """The notifications that one node has asked for and not yet handled.

    Laws
      * each different notification is delivered once, however often it was asked for meanwhile;
      * :meth:`take` gives the ready one with the least guarantee by ``sort_key``: never one whose
        guarantee is after another ready one's;
      * the sum of the deltas returned is one event per pending or running notification that has a
        capability, at (stage, capability).

    >>> from penstock.core.graph import GraphBuilder
    >>> from penstock.core.progress.tracker import Tracker
    >>> b = GraphBuilder()
    >>> names = b.input("in"), b.stage("count"), b.connect("in", "count", "rows")
    >>> tracker = Tracker(b.build())
    >>> moved = tracker.apply([(0, Time(0), +1)])
    >>> queue = NotificationQueue(tracker.reachability, place=1)
    >>> asked = queue.ask(Notification.at(Time(0)), now=Time(0)); asked
    ((1, Time(0), 1),)
    >>> moved = tracker.apply(asked); queue.take(tracker) is None
    True
    >>> moved = tracker.apply([(0, Time(1), +1), (0, Time(0), -1)])
    >>> ready = queue.take(tracker); ready.guarantee
    Time(0)
    >>> queue.handled(ready)
    ((1, Time(0), -1),)
    """

    def __init__(self, reachability: Reachability, place: int) -> None:
        self._graph = reachability.graph
        self._place = place
        self._round_trips = [summary.compiled() for summary in reachability.round_trips(place)]
        self._pending: list[Notification] = []
        self._known: set[Notification] = set()
        self._running: Notification | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def pending(self) -> tuple[Notification, ...]:
        """Return what is waiting, by guarantee: a part of the node's checkpoint."""
        return tuple(self._pending)

    def ask(self, wanted: Notification, now: Time | None) -> Deltas:
        """Ask for a notification from a callback that runs at ``now``; return what it holds.

        ``now`` is the time of the message, or the capability of the notification, that the callback
        is for; None if it has none. Nothing may be asked for in the past of ``now``.
        """
        self._check(wanted, now)
        if wanted in self._known:
            return ()
        self._known.add(wanted)
        insort(self._pending, wanted, key=_sort_key)
        return () if wanted.capability is None else ((self._place, wanted.capability, 1),)

    def take(self, view: FrontierView) -> Notification | None:
        """Return the next notification whose guarantee holds, if any; end it with ``handled``."""
        if not self._pending:
            return None
        total = self._graph.depth(self._place) == 0
        for index, notification in enumerate(self._pending):
            if view.complete(self._place, notification.guarantee):
                del self._pending[index]
                self._known.discard(notification)
                self._running = notification
                return notification
            if total:
                return None  # outside loops whatever comes later waits as well
        return None

    def handled(self, notification: Notification) -> Deltas:
        """Return what the notification gives up when its callback has returned."""
        if notification != self._running:
            raise InvariantError(f"{notification} is not being delivered", place=self._place)
        self._running = None
        if notification.capability is None:
            return ()
        return ((self._place, notification.capability, -1),)

    def _check(self, wanted: Notification, now: Time | None) -> None:
        name = self._graph.name_of(self._place)
        for time in wanted:
            if time is not None and time.depth != self._graph.depth(self._place):
                raise UsageError(
                    f"{name!r} asked for a notification at {time!r}; its times have "
                    f"{self._graph.depth(self._place)} loop counters",
                    stage=name,
                )
        if wanted.capability is not None and now is None:
            raise UsageError(
                f"{name!r} asked for a notification that may send at {wanted.capability!r} from a "
                "callback that may not send itself",
                stage=name,
            )
        for time in wanted:
            if time is not None and now is not None and not now.less_equal(time):
                raise UsageError(
                    f"{name!r} is at {now!r} and asked for a notification at {time!r}, which is "
                    "not at or after it; ask for the present or the future",
                    stage=name,
                )
        if wanted.capability is not None:
            for transform in self._round_trips:
                if transform(wanted.capability).less_equal(wanted.guarantee):
                    raise UsageError(
                        f"{name!r} asked to be notified when {wanted.guarantee!r} is complete and "
                        f"to send at {wanted.capability!r}, which could come round the loop before "
                        "that: it would wait for itself",
                        stage=name,
                    )


def _sort_key(wanted: Notification) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(wanted.guarantee), tuple(wanted.capability or ())
