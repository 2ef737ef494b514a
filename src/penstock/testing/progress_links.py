"""Ways to connect workers that exchange progress, with channels that deliver when they are told to.

Used by :mod:`penstock.testing.progress_world`. :class:`ControllerLinks` is what the engine does:
workers flush to the controller, which broadcasts. :class:`SharedHostLinks` puts a host between
them. :class:`PeerLinks` is the paper's base protocol: every worker tells all workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from random import Random
from typing import Any, Protocol

from penstock.core.progress.deltas import Deltas
from penstock.core.progress.exchange import (
    Accumulator,
    Flush,
    LocalProgress,
    ProgressBroadcast,
    ProgressBuffer,
)
from penstock.core.progress.inputs import EpochInput, IdleInputs
from penstock.core.progress.reachability import Reachability
from penstock.core.progress.tracker import Tracker
from penstock.core.progress.view import FrontierView

__all__ = ["ControllerLinks", "PeerLinks", "ProgressLinks", "SharedHostLinks"]

Delivered = tuple[Deltas, list[tuple[int, tuple[int, ...]]]]


class ProgressLinks(Protocol):
    """Channels between workers; ``deliver`` moves the head of one of them."""

    workers: int
    can_idle: bool

    def start(self, reachability: Reachability, held: Mapping[int, Deltas]) -> None:
        """Begin, with what every worker holds from the start."""

    def view(self, worker: int) -> FrontierView:
        """Return a worker's view."""

    def record(self, worker: int, deltas: Deltas) -> None:
        """Hand over the deltas of one step."""

    def force(self, worker: int) -> None:
        """Flush a worker's buffer whether or not it must be."""

    def deliver(self, rng: Random) -> Delivered | None:
        """Deliver one message: loans moved by the controller, and which views moved where."""

    def idle(self, worker: int, source: EpochInput) -> None:
        """Lend what an idle input holds to the controller."""

    def wake(self, worker: int, source: EpochInput) -> None:
        """Ask for the loan back."""


class ControllerLinks:
    """Workers with mirrors or trackers; one accumulator; flushes may be delivered twice."""

    can_idle = True

    def __init__(
        self,
        workers: int,
        *,
        mirror: bool = True,
        duplicates: bool = False,
        buffer: type[ProgressBuffer] = ProgressBuffer,
        accumulator: type[Accumulator] = Accumulator,
    ) -> None:
        self.workers = workers
        self._mirror = mirror
        self._duplicates = duplicates
        self._buffer_type = buffer
        self._accumulator_type = accumulator
        self._up: list[deque[Any]] = [deque() for _ in range(workers)]
        self._down: list[deque[Any]] = [deque() for _ in range(workers)]
        self._asleep: dict[str, EpochInput] = {}

    def start(self, reachability: Reachability, held: Mapping[int, Deltas]) -> None:
        """Count what every worker holds, then welcome all of them."""
        self._accumulator = self._accumulator_type(Tracker(reachability.graph, reachability))
        self._idle = IdleInputs(self._accumulator.tracker)
        for deltas in held.values():
            self._accumulator.add(deltas)
        self._accumulator.flush()
        welcome = self._accumulator.welcome()
        self._locals = [
            LocalProgress(
                reachability.graph,
                welcome,
                held=held[worker],
                mirror=self._mirror,
                reachability=reachability,
            )
            for worker in range(self.workers)
        ]
        for worker, local in enumerate(self._locals):
            local.buffer = self._buffer_type(local.view, held[worker])

    def view(self, worker: int) -> FrontierView:
        """Return a worker's view."""
        return self._locals[worker].view

    def record(self, worker: int, deltas: Deltas) -> None:
        """Buffer, and flush when due."""
        self._send(worker, self._locals[worker].record(deltas))

    def force(self, worker: int) -> None:
        """Flush now."""
        self._send(worker, self._locals[worker].flush())

    def idle(self, worker: int, source: EpochInput) -> None:
        """Flush, hand the event over, tell the controller."""
        self.force(worker)
        self._locals[worker].buffer.assume(source.place, source.time, -1)
        self._up[worker].append(("lend", _name(worker, source), source.place, source.epoch))

    def wake(self, worker: int, source: EpochInput) -> None:
        """Ask the controller for the loan."""
        name = _name(worker, source)
        if name not in self._asleep:
            self._asleep[name] = source
            self._up[worker].append(("resume", name))

    def deliver(self, rng: Random) -> Delivered | None:
        """Deliver the head of a random channel."""
        channels = [(up, i) for up in (True, False) for i in range(self.workers)]
        channels = [(up, i) for up, i in channels if (self._up if up else self._down)[i]]
        if not channels:
            return None
        up, worker = rng.choice(channels)
        if not up:
            return (), self._arrive(worker, self._down[worker].popleft())
        message = self._up[worker].popleft()
        if self._duplicates and isinstance(message, Flush) and rng.random() < 0.2:
            self._up[worker].appendleft(message)
        self._control(worker, message)
        loans = self._idle.follow()
        self._accumulator.add(loans)
        if self._accumulator.due:
            broadcast = self._accumulator.flush()
            for channel in self._down:
                channel.append(broadcast)
        return loans, []

    def _control(self, worker: int, message: Any) -> None:
        if isinstance(message, Flush):
            self._accumulator.receive(str(worker), message)
        elif message[0] == "lend":
            self._idle.lend(*message[1:])
        else:
            self._down[worker].append(("resumed", message[1], self._idle.resume(message[1])))

    def _arrive(self, worker: int, message: Any) -> list[tuple[int, tuple[int, ...]]]:
        if isinstance(message, ProgressBroadcast):
            moved, flush = self._locals[worker].receive(message)
            self._send(worker, flush)
            return [(worker, moved)]
        source = self._asleep.pop(message[1])
        source.resume(message[2])
        self._locals[worker].buffer.assume(source.place, source.time)
        return []

    def _send(self, worker: int, flush: Flush | None) -> None:
        if flush is not None:
            self._up[worker].append(flush)


class SharedHostLinks:
    """Two workers share a host: their buffers flush into the host's, the host's to the rest."""

    can_idle = False

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._hosts = ControllerLinks((workers + 1) // 2)
        self._inbox: list[deque[Deltas]] = [deque() for _ in range(workers)]

    def start(self, reachability: Reachability, held: Mapping[int, Deltas]) -> None:
        """Start the hosts with what their workers hold."""
        hosts = range(self._hosts.workers)
        shared = {h: held[2 * h] + held.get(2 * h + 1, ()) for h in hosts}
        self._hosts.start(reachability, shared)
        self._buffers = [ProgressBuffer(self.view(w), held[w]) for w in range(self.workers)]

    def view(self, worker: int) -> FrontierView:
        """Return the host's view."""
        return self._hosts.view(worker // 2)

    def record(self, worker: int, deltas: Deltas) -> None:
        """Buffer at the worker; flush to the host when due."""
        if self._buffers[worker].add(deltas):
            self.force(worker)

    def force(self, worker: int) -> None:
        """Flush the worker's buffer to its host."""
        self._inbox[worker].append(self._buffers[worker].flush())

    def deliver(self, rng: Random) -> Delivered | None:
        """Deliver from a worker to its host, or between hosts and controller."""
        waiting = [worker for worker, inbox in enumerate(self._inbox) if inbox]
        if waiting and rng.random() < 0.5:
            worker = rng.choice(waiting)
            self._hosts.record(worker // 2, self._inbox[worker].popleft())
            return (), []
        result = self._hosts.deliver(rng)
        if result is None:
            return ((), []) if waiting else None
        moved = [(2 * host, places) for host, places in result[1]]
        for first, _ in moved:
            for worker in range(first, min(first + 2, self.workers)):
                if self._buffers[worker].recheck():
                    self.force(worker)
        return result[0], moved

    def idle(self, worker: int, source: EpochInput) -> None:
        """Not offered."""
        raise NotImplementedError

    def wake(self, worker: int, source: EpochInput) -> None:
        """Not offered."""
        raise NotImplementedError


class PeerLinks:
    """Every worker sends flushes to all, itself included; with ``pieces``, delta by delta."""

    can_idle = False

    def __init__(
        self,
        workers: int,
        *,
        pieces: bool = False,
        buffer: type[ProgressBuffer] = ProgressBuffer,
    ) -> None:
        self.workers = workers
        self._pieces = pieces
        self._buffer_type = buffer
        self._channels: dict[tuple[int, int], deque[Deltas]] = {
            (a, b): deque() for a in range(workers) for b in range(workers)
        }

    def start(self, reachability: Reachability, held: Mapping[int, Deltas]) -> None:
        """Every worker knows what the others hold."""
        self._trackers = [Tracker(reachability.graph, reachability) for _ in range(self.workers)]
        for tracker in self._trackers:
            for deltas in held.values():
                tracker.apply(deltas)
        self._buffers = [
            self._buffer_type(tracker, held[worker])
            for worker, tracker in enumerate(self._trackers)
        ]

    def view(self, worker: int) -> FrontierView:
        """Return a worker's tracker."""
        return self._trackers[worker]

    def record(self, worker: int, deltas: Deltas) -> None:
        """Buffer, and send to all workers when due."""
        if self._buffers[worker].add(deltas):
            self.force(worker)

    def force(self, worker: int) -> None:
        """Send to all workers now."""
        deltas = self._buffers[worker].flush()
        messages = [(delta,) for delta in deltas] if self._pieces else [deltas]
        for peer in range(self.workers):
            self._channels[worker, peer].extend(messages)

    def deliver(self, rng: Random) -> Delivered | None:
        """Deliver the head of a random channel."""
        channels = [key for key, channel in self._channels.items() if channel]
        if not channels:
            return None
        sender, worker = rng.choice(channels)
        moved = self._trackers[worker].apply(self._channels[sender, worker].popleft())
        if self._buffers[worker].recheck():
            self.force(worker)
        return (), [(worker, moved)]

    def idle(self, worker: int, source: EpochInput) -> None:
        """Not offered."""
        raise NotImplementedError

    def wake(self, worker: int, source: EpochInput) -> None:
        """Not offered."""
        raise NotImplementedError


def _name(worker: int, source: EpochInput) -> str:
    return f"{source.place}/{worker}"
