"""The brain of the controller: the life of a flow, from its hosts' registration to its end.

Theory of operation
-------------------
    LAUNCHING --all hosts registered--> PREPARING --all hosts ready--> RUNNING
        RUNNING --stop asked, or a source used up--> DRAINING --all nodes finished--> ENDING
        any --a failure, or draining took too long--> ENDING --all hosts ended--> ENDED

Three phases have a limit: starting (``start_ms``, then the flow fails), draining (``drain_ms``,
then it ends all the same) and ending.  Hosts that have not ended ``END_MS`` after they were told to
have their jobs cancelled; ``LEAVE_MS`` later the flow is over without them, and their leases end
them.

The machine takes events (method calls) and returns effects; it keeps no clock: its caller passes
the time in milliseconds.  It is off the data path: no message between nodes waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from penstock.core.progress.marks import EPOCH_END
from penstock.errors import HostLostError, TransientError

__all__ = [
    "Assign",
    "CancelJobs",
    "Commit",
    "ControllerEffect",
    "ControllerMachine",
    "EndHosts",
    "Ended",
    "Failure",
    "FlowPhase",
    "Go",
    "LeaveHosts",
    "StopSources",
]

END_MS = 700
"""How long hosts may take to end before their jobs are cancelled."""
LEAVE_MS = 15_000
"""How long they may take then before they are left behind."""

Failure = Mapping[str, Any]
"""A PenstockError as a plain dict."""


class FlowPhase(Enum):
    """Where a flow is in its life."""

    LAUNCHING = "launching hosts"
    PREPARING = "preparing nodes"
    RUNNING = "running"
    DRAINING = "draining"
    ENDING = "ending hosts"
    ENDED = "ended"


@dataclass(frozen=True)
class Assign:
    """Tell every host its nodes and the addresses of all hosts."""

    addresses: Mapping[int, str]


@dataclass(frozen=True)
class Go:
    """Let the sources read."""


@dataclass(frozen=True)
class StopSources:
    """Let the sources end their streams."""


@dataclass(frozen=True)
class EndHosts:
    """Tell every host to end."""


@dataclass(frozen=True)
class CancelJobs:
    """Cancel the jobs of hosts that did not end when they were told to."""


@dataclass(frozen=True)
class LeaveHosts:
    """Say that the flow ends without these hosts."""

    hosts: tuple[int, ...]


@dataclass(frozen=True)
class Commit:
    """An epoch is complete at all nodes of a sink."""

    sink: str
    epoch: int


@dataclass(frozen=True)
class Ended:
    """The flow is over."""

    failure: Failure | None


ControllerEffect = Assign | Go | StopSources | EndHosts | CancelJobs | LeaveHosts | Commit | Ended


class ControllerMachine:
    """Decides what happens next in a flow's life.

    >>> machine = ControllerMachine(hosts=[1], nodes=[0], sinks={"out": [0]}, drain_ms=1000)
    >>> machine.registered(1, "tcp://127.0.0.1:1")
    [Assign(addresses={1: 'tcp://127.0.0.1:1'})]
    >>> machine.ready(1), machine.phase
    ([Go()], <FlowPhase.RUNNING: 'running'>)
    >>> machine.sink_completed("out", 0, 4)
    [Commit(sink='out', epoch=4)]
    """

    def __init__(
        self,
        hosts: Iterable[int],
        nodes: Iterable[int],
        sinks: Mapping[str, Sequence[int]],
        drain_ms: int,
        completed: int = -1,
        start_ms: int = 60_000,
    ) -> None:
        self.phase = FlowPhase.LAUNCHING
        self.has_run = False
        """Whether it has ever been running."""
        self.failure: Failure | None = None
        self.addresses: dict[int, str] = {}
        self.committed = dict.fromkeys(sinks, completed)
        self._hosts = set(hosts)
        self._ready: set[int] = set()
        self._gone: set[int] = set()
        self._unfinished = set(nodes)
        self._sinks = {name: dict.fromkeys(members, completed) for name, members in sinks.items()}
        self._drain_ms = drain_ms
        self._drain_until_ms: int | None = None
        self._start_ms = start_ms
        self._start_by_ms: int | None = None
        self._end_by_ms: int | None = None
        self._cancelled = False

    @property
    def missing(self) -> list[int]:
        """Hosts that have not registered (while launching) or are not ready yet."""
        have = self.addresses.keys() if self.phase is FlowPhase.LAUNCHING else self._ready
        return sorted(self._hosts - set(have))

    @property
    def unended(self) -> list[int]:
        """Hosts whose end is not known."""
        return sorted(self._hosts - self._gone)

    # -- events ----------------------------------------------------------------------------------

    def registered(self, host: int, address: str) -> list[ControllerEffect]:
        """A host's process is up."""
        if self.phase is not FlowPhase.LAUNCHING or host not in self._hosts:
            return []
        self.addresses[host] = address
        if len(self.addresses) < len(self._hosts):
            return []
        self.phase = FlowPhase.PREPARING
        return [Assign(dict(self.addresses))]

    def ready(self, host: int) -> list[ControllerEffect]:
        """A host has built its nodes."""
        if host in self._hosts:
            self._ready.add(host)
        if self.phase is not FlowPhase.PREPARING or self._ready != self._hosts:
            return []
        self.phase, self.has_run = FlowPhase.RUNNING, True
        return [Go()]

    def sink_completed(self, sink: str, node: int, epoch: int) -> list[ControllerEffect]:
        """An epoch is complete at one node of a sink."""
        epochs = self._sinks[sink]
        epochs[node] = max(epochs[node], epoch)
        reached = min(epochs.values())
        if reached <= self.committed[sink]:
            return []
        self.committed[sink] = reached
        return [Commit(sink, reached)]

    def node_started(self, node: int, epoch: int) -> list[ControllerEffect]:
        """A node starts after an epoch: it has completed that one, whoever was told of it."""
        effects: list[ControllerEffect] = []
        for sink, epochs in self._sinks.items():
            if node in epochs and epoch < EPOCH_END:
                effects += self.sink_completed(sink, node, epoch)
        return effects

    def node_finished(self, node: int) -> list[ControllerEffect]:
        """A node has come to the end of all its inputs."""
        self._unfinished.discard(node)
        if self._unfinished or self.phase not in (FlowPhase.RUNNING, FlowPhase.DRAINING):
            return []
        return self._end(None)

    def stop_asked(self, now_ms: int) -> list[ControllerEffect]:
        """A person wants the flow to stop."""
        if self.phase is FlowPhase.RUNNING:
            self.phase = FlowPhase.DRAINING
            self._drain_until_ms = now_ms + self._drain_ms
            return [StopSources()]
        if self.phase in (FlowPhase.LAUNCHING, FlowPhase.PREPARING):
            return self._end(None)
        return []

    def failed(self, failure: Failure) -> list[ControllerEffect]:
        """A node, a host or the launch failed."""
        if self.phase in (FlowPhase.ENDING, FlowPhase.ENDED):
            return []
        return self._end(failure)

    def host_ended(self, host: int, failure: Failure | None) -> list[ControllerEffect]:
        """A host's process is gone; ``failure`` says why, if that is known."""
        if failure is None and self.phase not in (FlowPhase.ENDING, FlowPhase.ENDED):
            lost = HostLostError(f"host {host} was lost: it ended without having been told to")
            failure = lost.to_dict()
        self._gone.add(host)
        effects: list[ControllerEffect] = []
        if failure is not None:
            effects += self.failed(failure)
        if self._gone >= self._hosts and self.phase is not FlowPhase.ENDED:
            self.phase = FlowPhase.ENDED
            effects.append(Ended(self.failure))
        return effects

    def replaced(self, host: int, other: int) -> None:
        """Another host takes the place of one that was lost, perhaps under the same number."""
        self._hosts.discard(host)
        self._hosts.add(other)
        self._ready.discard(host)
        self.addresses.pop(host, None)

    def time_passed(self, now_ms: int) -> list[ControllerEffect]:
        """Called now and then: starting, draining and ending have limits."""
        if self.phase in (FlowPhase.LAUNCHING, FlowPhase.PREPARING):
            return self._start_in_time(now_ms)
        if self.phase is FlowPhase.DRAINING and self._drain_until_ms is not None:
            return self._end(None) if now_ms >= self._drain_until_ms else []
        if self.phase is FlowPhase.ENDING:
            return self._end_in_time(now_ms)
        return []

    def _start_in_time(self, now_ms: int) -> list[ControllerEffect]:
        if self._start_by_ms is None:
            self._start_by_ms = now_ms + self._start_ms
        if now_ms < self._start_by_ms:
            return []
        missing = ", ".join(map(str, self.missing))
        late = TransientError(
            f"the flow did not start within {self._start_ms / 1000:g} s: host {missing} still "
            f"{self.phase.value}; is the session busy, or has it too few task slots?"
        )
        return self.failed(late.to_dict())

    def _end_in_time(self, now_ms: int) -> list[ControllerEffect]:
        if self._end_by_ms is None:
            self._end_by_ms = now_ms + END_MS
        effects: list[ControllerEffect] = []
        if now_ms >= self._end_by_ms and not self._cancelled:
            self._cancelled = True
            effects.append(CancelJobs())
        if now_ms >= self._end_by_ms + LEAVE_MS:
            effects.append(LeaveHosts(tuple(self.unended)))
            for host in self.unended:
                effects += self.host_ended(host, None)
        return effects

    def _end(self, failure: Failure | None) -> list[ControllerEffect]:
        self.phase = FlowPhase.ENDING
        self.failure = failure
        return [EndHosts()]
