"""A random computation on several workers that exchange progress over slow channels.

:class:`ProgressWorld` runs a made-up program on a logical graph: shards handle messages in any
order, send, ask for notifications, open and close epochs, fall idle. Every channel is first in,
first out, and delivers when the random generator says so. An omniscient tracker counts every step
at once. After each delivery the world checks *safety* (no view is ahead of the truth; nothing is
notified too early), at quiet moments *liveness* (views equal the truth when nothing is under way),
and in the end that everything drained. What it finds raises :class:`ProgressViolationError`.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

from penstock.core.graph import LogicalGraph, StageKind
from penstock.core.progress.deltas import Deltas
from penstock.core.progress.inputs import EpochInput, InputState
from penstock.core.progress.notifications import Notification, NotificationQueue
from penstock.core.progress.reachability import Reachability, step
from penstock.core.progress.tracker import Tracker
from penstock.core.time import Time
from penstock.errors import UsageError
from penstock.testing.progress_links import ProgressLinks

__all__ = ["ProgressViolationError", "ProgressWorld"]


class ProgressViolationError(AssertionError):
    """A promise of progress tracking was broken."""


class ProgressWorld:
    """One run: a graph, some workers, the links between them, and the truth.

    ``run`` takes a number of random steps, closes the inputs and drains. ``steps``, ``notified``
    and ``checks`` say how much happened, so that a test can tell that it tested something.
    """

    def __init__(
        self, rng: Random, graph: LogicalGraph, links: ProgressLinks, fuel: int = 80
    ) -> None:
        self._rng = rng
        self._graph = graph
        self._links = links
        self._fuel = fuel
        self._workers = range(links.workers)
        reachability = Reachability(graph)
        self._steps = [step(graph, place) for place in range(len(graph))]
        self._queues = {
            (worker, place): NotificationQueue(reachability, place)
            for worker in self._workers
            for place in range(len(graph.stages))
            if graph.kind(place) is StageKind.PLAIN
        }
        self._inputs = {
            (worker, place): EpochInput(place)
            for worker in self._workers
            for place in graph.inputs()
        }
        self._messages: list[tuple[int, int, Time]] = []
        self.truth = Tracker(graph, reachability)
        self.notified = self.steps = self.checks = 0
        held = {worker: self._opened(worker) for worker in self._workers}
        for deltas in held.values():
            self.truth.apply(deltas)
        links.start(reachability, held)

    def run(self, steps: int = 150) -> None:
        """Take random steps, then close everything and drain."""
        for _ in range(steps):
            self._random_step()
        self._settle()
        self._close()
        while self._messages or self._deliver_any():
            if self._messages:
                self._handle_message()
            self._settle()
        if any(map(len, self._queues.values())):
            raise ProgressViolationError("notifications were never delivered")
        for worker in self._workers:
            if not self._links.view(worker).finished:
                raise ProgressViolationError(f"worker {worker} never saw the end")

    def _random_step(self) -> None:
        self.steps += 1
        choice = self._rng.random()
        if choice < 0.35:
            if self._messages:
                self._handle_message()
        elif choice < 0.45:
            self._deliver_any()
        elif choice < 0.60:
            self._act_on_input()
        elif choice < 0.62:
            self._settle()
        elif choice < 0.64:
            self._links.force(self._rng.choice(self._workers))
        else:
            self._transfer()

    def _opened(self, worker: int) -> Deltas:
        return tuple(d for (w, _), i in self._inputs.items() if w == worker for d in i.opened())

    # -- the program -------------------------------------------------------------------------

    def _handle_message(self) -> None:
        index = self._rng.randrange(len(self._messages))
        worker, connector, time = self._messages.pop(index)
        stage = self._graph.successors(connector)[0]
        produced = self._react(worker, stage, time)
        self._record(worker, (*produced, (connector, time, -1)))

    def _deliver_any(self) -> bool:
        """Deliver one notification that some worker may see as ready; check that it is."""
        keys = [key for key, queue in self._queues.items() if len(queue)]
        self._rng.shuffle(keys)
        for worker, place in keys:
            queue = self._queues[worker, place]
            ready = queue.take(self._links.view(worker))
            if ready is None:
                continue
            if not self.truth.complete(place, ready.guarantee):
                raise ProgressViolationError(f"{ready} came too early at place {place}")
            self.notified += 1
            produced = self._react(worker, place, ready.capability)
            self._record(worker, (*produced, *queue.handled(ready)))
            return True
        return False

    def _react(self, worker: int, stage: int, now: Time | None) -> Deltas:
        """Send and ask for notifications at random, from a callback at ``now``."""
        deltas: list[tuple[int, Time, int]] = []
        if now is None:
            return ()
        queue = self._queues.get((worker, stage))
        for connector in self._graph.successors(stage):
            while self._fuel > 0 and self._rng.random() < 0.6:
                self._fuel -= 1
                time = self._later(now) if queue is not None else now
                sent = self._steps[stage](time)
                self._messages.append((self._rng.choice(self._workers), connector, sent))
                deltas.append((connector, sent, 1))
        if queue is not None and self._fuel > 0 and self._rng.random() < 0.5:
            self._fuel -= 1
            guarantee = self._later(now)
            capability = self._rng.choice((guarantee, guarantee, now, None))
            with suppress(UsageError):  # it would have waited for itself
                deltas.extend(queue.ask(Notification(guarantee, capability), now))
        return tuple(deltas)

    def _later(self, time: Time) -> Time:
        choice = self._rng.random()
        if choice < 0.1:
            return time.next_epoch()
        if choice < 0.2 and time.depth:
            return time.advanced()
        return time

    def _act_on_input(self) -> None:
        (worker, place), source = self._rng.choice(list(self._inputs.items()))
        choice = self._rng.random()
        if source.state is InputState.OPEN:
            if choice < 0.5:
                self._record(worker, self._react(worker, place, source.time))
            elif choice < 0.85:
                self._record(worker, source.close_epoch(source.epoch + self._rng.choice((1, 1, 3))))
            elif choice < 0.95 and self._links.can_idle:
                self._record(worker, source.go_idle())
                self._links.idle(worker, source)
            elif choice >= 0.95:
                self._record(worker, source.close())
        elif source.state is InputState.IDLE and choice < 0.3:
            self._links.wake(worker, source)

    def _close(self) -> None:
        self._fuel = 0
        for (worker, _), source in self._inputs.items():
            if source.state is InputState.IDLE:
                self._links.wake(worker, source)
        self._settle()
        for (worker, _), source in self._inputs.items():
            if source.state is InputState.OPEN:
                self._record(worker, source.close())
        self._settle()

    # -- what is exchanged, and the checks ---------------------------------------------------

    def _record(self, worker: int, deltas: Deltas) -> None:
        for place, time, delta in deltas:  # one by one, in order: the truth may not go back either
            if delta < 0 and self.truth.count(place, time) <= 0:
                raise ProgressViolationError(f"nothing to take away at {place}, {time}")
            before = self.truth.frontier(place)
            self.truth.apply([(place, time, delta)])
            if not before.precedes(self.truth.frontier(place)):
                raise ProgressViolationError(f"the true frontier went back at place {place}")
        self._links.record(worker, deltas)

    def _transfer(self) -> bool:
        """Deliver the head of one channel; check the views that changed."""
        result = self._links.deliver(self._rng)
        if result is None:
            return False
        moved_loans, changed = result
        for place, time, delta in moved_loans:
            self.truth.apply([(place, time, delta)])
        for worker, moved in changed:
            view = self._links.view(worker)
            for place in moved:
                self.checks += 1
                if not view.frontier(place).precedes(self.truth.frontier(place)):
                    raise ProgressViolationError(
                        f"worker {worker} sees {view.frontier(place)} at place {place}, ahead of "
                        f"the truth, {self.truth.frontier(place)}"
                    )
        return True

    def _settle(self) -> None:
        """Deliver all progress; then every view must equal the truth."""
        while self._transfer():
            pass
        for worker in self._workers:
            view = self._links.view(worker)
            for place in range(len(self._graph)):
                self.checks += 1
                if view.frontier(place) != self.truth.frontier(place):
                    raise ProgressViolationError(
                        f"worker {worker} is stuck at {view.frontier(place)} at place {place}; the "
                        f"truth is {self.truth.frontier(place)}"
                    )
