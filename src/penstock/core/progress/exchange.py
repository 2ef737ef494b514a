"""The exchange of deltas: worker buffers, the controller's accumulator, the broadcast back.

Theory of operation
-------------------
Follows the Naiad paper, section 3.3. Every worker (a host, or a node on it) has a *view* of the
frontiers that is fed by broadcasts only, and a *buffer* of deltas that it has made and not yet sent
on. The controller adds up what it receives and broadcasts the net effect to every worker, the
sender included. Channels are first in, first out.

*Safety.* No view is ever ahead of the true frontier. A step takes an event away and puts in what it
caused; its deltas enter the buffer together and leave it together, so a view that knows that the
event is gone knows what it caused. Nothing here depends on how long a buffer waits. A batch lists
positive deltas first, so applying it piece by piece is safe as well.

*Holding.* A buffer should wait while sending cannot move any frontier, and must send when it might.
A delta at pointstamp p may be held while

  (a) another pointstamp that is active in the view could result in p (so p is on no frontier), or
  (b) p is at a stage, and this worker itself still holds p: the sum of everything it ever recorded
      there is positive (so p stays active whatever others do).

The paper's (b) adds the worker's view of the global count instead of its own sum. That is right for
physical vertices, which belong to one worker. With counts per *stage* two workers could each see
the other's event as the reason to wait, for ever; a sum of one's own is never mistaken. It needs
that a worker takes away at a stage only what it put there itself, which the buffer checks.

*The accumulator* holds as long as no frontier has moved since its last broadcast. Workers compare
frontiers only, so they cannot tell the difference; counts that cancel out are never sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.core.graph import LogicalGraph
from penstock.core.progress.deltas import Delta, Deltas, FrontierChange, positive_first
from penstock.core.progress.reachability import Reachability
from penstock.core.progress.tracker import Tracker
from penstock.core.progress.view import FrontierMirror, FrontierView
from penstock.core.time import Time
from penstock.errors import InvariantError, PeerError

__all__ = ["Accumulator", "Flush", "LocalProgress", "ProgressBroadcast", "ProgressBuffer"]


class Flush(NamedTuple):
    """Deltas on their way from a worker to the controller; ``sequence`` counts from 1."""

    sequence: int
    deltas: Deltas


class ProgressBroadcast(NamedTuple):
    """The net effect of many flushes, for every worker; ``sequence`` counts from 1.

    ``deltas`` is for workers with a tracker, ``changes`` (the frontiers that moved) for workers
    with a mirror. An engine sends the part that its workers use.
    """

    sequence: int
    deltas: Deltas
    changes: tuple[FrontierChange, ...]


class ProgressBuffer:
    """Adds up a worker's deltas and says when they must be sent.

    Laws
      * the sum of everything flushed and everything buffered is the sum of everything added;
      * after :meth:`add` or :meth:`recheck` returned False, sending now would move no frontier
        that this worker can know of; :meth:`flush` is safe at any moment all the same;
      * buffers nest: what one flushes can be added to the next (worker, host, controller).

    >>> from penstock.core.graph import GraphBuilder
    >>> b = GraphBuilder()
    >>> names = b.input("in"), b.stage("count"), b.connect("in", "count", "rows")
    >>> view = Tracker(b.build())
    >>> opened = (0, Time(0), +1)
    >>> moved = view.apply([opened])
    >>> buffer = ProgressBuffer(view, held=[opened])
    >>> buffer.add([(2, Time(0), +1)])               # a message sent: the input is before it
    False
    >>> buffer.add([(0, Time(1), +1), (0, Time(0), -1)])   # epoch 0 closed: must be told
    True
    >>> buffer.flush()
    ((2, Time(0), 1), (0, Time(1), 1), (0, Time(0), -1))
    """

    def __init__(self, view: FrontierView, held: Iterable[Delta] = ()) -> None:
        self._view = view
        self._stages = len(view.graph.stages)
        self._net: dict[tuple[int, Time], int] = {}
        self._own: dict[tuple[int, Time], int] = {}
        for place, time, count in held:
            self.assume(place, time, count)

    def __len__(self) -> int:
        """The number of pointstamps whose net change is held."""
        return len(self._net)

    def add(self, deltas: Iterable[Delta]) -> bool:
        """Add all deltas of one step (never a part of one); tell whether to flush now."""
        net, stages = self._net, self._stages
        touched: list[tuple[int, Time]] = []
        for place, time, count in deltas:
            pointstamp = (place, time)
            if place < stages:
                self.assume(place, time, count)
            total = net.get(pointstamp, 0) + count
            if total:
                net[pointstamp] = total
                touched.append(pointstamp)
            else:
                net.pop(pointstamp, None)
        return any(pointstamp in net and not self._may_hold(pointstamp) for pointstamp in touched)

    def recheck(self) -> bool:
        """Tell whether to flush now, after the view has changed."""
        return not all(map(self._may_hold, self._net))

    def flush(self) -> Deltas:
        """Return the net deltas, positive ones first, and start anew."""
        deltas = positive_first(self._net)
        self._net = {}
        return deltas

    def assume(self, place: int, time: Time, count: int = 1) -> None:
        """Take over (or, with a negative count, hand over) events that all views count already.

        For what a worker holds from the start, and for what it gives to or gets from another one.
        """
        pointstamp = (place, time)
        total = self._own.get(pointstamp, 0) + count
        if total > 0:
            self._own[pointstamp] = total
        elif total == 0:
            self._own.pop(pointstamp, None)
        else:
            raise InvariantError(
                f"more events were taken away than put in at {self._view.graph.name_of(place)!r}, "
                f"{time!r}: a worker gives back only what it holds",
                place=place,
                time=time,
            )

    def _may_hold(self, pointstamp: tuple[int, Time]) -> bool:
        if self._own.get(pointstamp, 0) > 0:
            return True
        place, time = pointstamp
        return not self._view.complete(place, time)


class Accumulator:
    """The controller's sum of all deltas, and what is to be broadcast.

    Laws
      * ``tracker`` holds the sum of every flush received, each counted once;
      * whenever :attr:`due` is False, the sum of all broadcasts gives the same frontiers as
        ``tracker`` has;
      * the tracker's frontiers are never ahead of the true ones.

    >>> from penstock.core.graph import GraphBuilder
    >>> b = GraphBuilder()
    >>> names = b.input("in"), b.stage("count"), b.connect("in", "count", "rows")
    >>> accumulator = Accumulator(Tracker(b.build()))
    >>> accumulator.add([(0, Time(0), +2)]), accumulator.flush().sequence     # two shards open
    ((0, 2, 1), 1)
    >>> closing = ((0, Time(1), +1), (0, Time(0), -1))
    >>> accumulator.receive("host-a", Flush(1, closing)), accumulator.due
    ((), False)
    >>> accumulator.receive("host-b", Flush(1, closing)), accumulator.due
    ((0, 2, 1), True)
    >>> accumulator.flush().deltas
    ((0, Time(1), 2), (0, Time(0), -2))
    """

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self._net: dict[tuple[int, Time], int] = {}
        self._moved: dict[int, None] = {}
        self._sequence = 0
        self._received: dict[str, int] = {}

    @property
    def due(self) -> bool:
        """Tell whether a frontier moved since the last broadcast."""
        return bool(self._moved)

    def receive(self, origin: str, flush: Flush) -> tuple[int, ...]:
        """Add a worker's flush, once; return the places whose frontier moved."""
        expected = self._received.get(origin, 0) + 1
        if flush.sequence < expected:
            return ()
        if flush.sequence > expected:
            raise PeerError(
                f"progress of {origin} jumps from {expected - 1} to {flush.sequence}: flushes "
                "were lost, and counts without them would be wrong",
                origin=origin,
            )
        self._received[origin] = expected
        return self.add(flush.deltas)

    def add(self, deltas: Iterable[Delta]) -> tuple[int, ...]:
        """Add the controller's own deltas; return the places whose frontier moved."""
        deltas = tuple(deltas)
        net = self._net
        for place, time, count in deltas:
            pointstamp = (place, time)
            total = net.get(pointstamp, 0) + count
            if total:
                net[pointstamp] = total
            else:
                net.pop(pointstamp, None)
        moved = self.tracker.apply(deltas)
        for place in moved:
            self._moved[place] = None
        return moved

    def flush(self) -> ProgressBroadcast:
        """Return what every worker is to be told, and start anew."""
        self._sequence += 1
        broadcast = ProgressBroadcast(
            self._sequence, positive_first(self._net), self.tracker.changes(sorted(self._moved))
        )
        self._net = {}
        self._moved = {}
        return broadcast

    def welcome(self) -> ProgressBroadcast:
        """Return what a new worker must be told to be where the last broadcast left the others.

        Call it when nothing is due and before anything else is received; a new worker's own
        flushes start at 1 after :meth:`forget`.
        """
        if self._moved:
            raise InvariantError("a worker was welcomed while a broadcast was due")
        counts = {(place, time): count for place, time, count in self.tracker.snapshot()}
        for pointstamp, count in self._net.items():
            counts[pointstamp] = counts.get(pointstamp, 0) - count
        everywhere = range(len(self.tracker.graph))
        return ProgressBroadcast(
            self._sequence, positive_first(counts), self.tracker.changes(everywhere)
        )

    def restart(self, counts: Iterable[Delta]) -> ProgressBroadcast:
        """Start again from rebuilt counts, as after a recovery; return the new welcome.

        Every worker begins anew with it (a new :class:`LocalProgress` that holds what the worker
        holds of ``counts``), and flushes from before are the engine's to refuse: they belong to
        older incarnations. A frontier goes back only if the rebuilt counts say so.
        """
        self.tracker.reset(counts)
        self._net = {}
        self._moved = {}
        self._received = {}
        self._sequence += 1
        return self.welcome()

    def forget(self, origin: str) -> None:
        """Expect the next flush of ``origin`` to be number 1 again (a new incarnation)."""
        self._received.pop(origin, None)


class LocalProgress:
    """A worker's end of the exchange: its view, its buffer, and the numbers of both directions.

    With ``mirror=True`` the view repeats the controller's frontiers, which costs next to nothing;
    otherwise it is a tracker of the worker's own, fed with deltas. It begins with the controller's
    welcome: before that an empty view would mean "nothing comes any more".

    >>> from penstock.core.graph import GraphBuilder
    >>> b = GraphBuilder()
    >>> names = b.input("in"), b.stage("count"), b.connect("in", "count", "rows")
    >>> graph = b.build()
    >>> opened = [(0, Time(0), +1)]
    >>> accumulator = Accumulator(Tracker(graph))
    >>> moved = accumulator.add(opened); sent = accumulator.flush()
    >>> local = LocalProgress(graph, accumulator.welcome(), held=opened)
    >>> flush = local.record([(0, Time(1), +1), (0, Time(0), -1)])
    >>> moved = accumulator.receive("host", flush)
    >>> local.receive(accumulator.flush())
    ((0, 1, 2), None)
    >>> local.view.complete(1, Time(0))
    True
    """

    def __init__(
        self,
        graph: LogicalGraph,
        welcome: ProgressBroadcast,
        *,
        held: Iterable[Delta] = (),
        mirror: bool = True,
        reachability: Reachability | None = None,
    ) -> None:
        self._tracker = None if mirror else Tracker(graph, reachability)
        self._mirror = FrontierMirror(graph)
        self.view: FrontierView = self._tracker or self._mirror
        self.buffer = ProgressBuffer(self.view, held)
        self._sent = 0
        self._received = welcome.sequence
        self._apply(welcome)

    def record(self, deltas: Iterable[Delta]) -> Flush | None:
        """Add all deltas of one step; return what to send to the controller now, if anything."""
        return self.flush() if self.buffer.add(deltas) else None

    def receive(self, broadcast: ProgressBroadcast) -> tuple[tuple[int, ...], Flush | None]:
        """Take a broadcast in; return the places that moved and what to send now, if anything."""
        if broadcast.sequence <= self._received:
            return (), None
        if broadcast.sequence != self._received + 1:
            raise PeerError(
                f"progress jumps from broadcast {self._received} to {broadcast.sequence}: one was "
                "lost, and frontiers without it would be wrong"
            )
        self._received = broadcast.sequence
        moved = self._apply(broadcast)
        return moved, self.flush() if len(self.buffer) and self.buffer.recheck() else None

    def flush(self) -> Flush | None:
        """Return everything that is held, for when it must not wait longer; None if nothing is."""
        deltas = self.buffer.flush()
        if not deltas:
            return None
        self._sent += 1
        return Flush(self._sent, deltas)

    def _apply(self, broadcast: ProgressBroadcast) -> tuple[int, ...]:
        if self._tracker is not None:
            return self._tracker.apply(broadcast.deltas)
        return self._mirror.apply(broadcast.changes)
