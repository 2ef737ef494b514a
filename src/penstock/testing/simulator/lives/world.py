"""The world of a simulated life: processes, jobs, words under way, and time.

Everything moves in ticks of ``TICK_MS``: what is due arrives, every host that is awake works, beats
and watches, the driver looks around.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from penstock.core.control.membership_events import ConnectionBroken, HostCameUp, JobEnded
from penstock.core.control.roster import DRIVER, SLOTS
from penstock.core.control.suspicion import ProcessState
from penstock.core.delivery.ring import RingMember
from penstock.core.progress.marks import EPOCH_END
from penstock.errors import HostLostError, PenstockError
from penstock.testing.simulator.cases import Case
from penstock.testing.simulator.lives.driver import (
    Completed,
    LifeDriver,
    Report,
    SavedState,
    StateFollowed,
)
from penstock.testing.simulator.lives.faults import plan_faults, strike
from penstock.testing.simulator.lives.hosts import INTERVAL_MS, TIMEOUT_MS, Host, NodeRun
from penstock.testing.simulator.lives.monitor import LifeMonitor
from penstock.testing.simulator.lives.shape import shape_of
from penstock.testing.simulator.lives.store import LifeStore
from penstock.testing.simulator.violations import Violation

__all__ = ["TICK_MS", "LifeWorld"]

TICK_MS = 25
TICKS_MAX = 12_000
ATTEMPTS = 4
"""How often the cluster manager runs a task that dies."""


@dataclass
class _Job:
    """What runs the processes of a slot."""

    attempts: int = 0
    over: bool = False


class LifeWorld:
    """One simulated run."""

    def __init__(self, case: Case, trace: list[str] | None = None) -> None:
        self.random = Random(case.seed)
        self.trace = trace
        self.shape = shape_of(self.random)
        self.store = LifeStore()
        self.faults: Counter[str] = Counter()
        self.steps = 0
        self.hosts: list[Host] = []
        self.reached = dict.fromkeys(self.shape.nodes, -1)
        """Per node: the last epoch that any of its incarnations that counted has completed."""
        self.last = dict.fromkeys(self.shape.nodes, -1)
        """The same without the end of the stream."""
        self.heard = dict.fromkeys(self.shape.nodes, -1)
        """What the driver knows of that."""
        self.incarnations = dict.fromkeys(self.shape.nodes, 0)
        self.connected: set[tuple[int, int]] = set()
        self.lull_ms = 0
        """Nothing comes before then, and all nodes rest."""
        self.cut_short = False
        """Whether a process dies in the middle of the next call that it announces."""
        self.sees = self.random.random() < 0.4
        """Whether the driver can look at the processes of its hosts."""
        self._jobs: dict[tuple[int, int], _Job] = {}
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._arrives_ms: dict[tuple[int, int, bool], int] = {}
        self.pending: list[tuple[int, str]] = []
        plan_faults(self)
        self.driver = LifeDriver(self, 0)
        self._begin()

    @property
    def now_ms(self) -> int:
        """The time."""
        return self.steps * TICK_MS

    @property
    def monitor(self) -> LifeMonitor:
        """What watches the present driver."""
        return self.driver.monitor

    def _begin(self) -> None:
        """A driver and its own host begin."""
        self._start_host(DRIVER)
        self.driver.begin()

    # -- running ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Run to the end; raise Violation if an invariant breaks."""
        try:
            while not self.driver.over:
                self._tick()
        except PenstockError as error:
            raise Violation("refused", f"{type(error).__name__}: {error}") from error
        except (LookupError, TypeError, ValueError) as error:
            raise Violation("broken", f"{type(error).__name__}: {error}") from error

    def _tick(self) -> None:
        self.steps += 1
        if self.steps > TICKS_MAX:
            raise Violation("Eventuality", f"no end after {self.now_ms} ms")
        while self.pending and self.pending[0][0] <= self.now_ms:
            strike(self, self.pending.pop(0)[1])
        while self._due and self._due[0][0] <= self.now_ms:
            heapq.heappop(self._due)[2]()
        for host in list(self.hosts):
            if host.is_awake and self.now_ms >= self.lull_ms:
                host.tick()
            elif host.is_awake:
                host.rest()
        self.hosts = [host for host in self.hosts if host.alive]
        self.driver.time_passed()

    def later(self, after_ms: int, action: Callable[[], None]) -> None:
        """Something happens then."""
        self._count += 1
        heapq.heappush(self._due, (self.now_ms + after_ms, self._count, action))

    # -- words -----------------------------------------------------------------------------------

    def _latency_ms(self, host: Host, to_driver: bool) -> int:
        """Words between a host and the driver stay in order."""
        key = host.run, host.number, to_driver
        least_ms = max(self.now_ms + self.random.choice((0, 5, 40)), self._arrives_ms.get(key, 0))
        if to_driver:
            least_ms = max(least_ms, host.muted_ms)
        self._arrives_ms[key] = least_ms
        return least_ms - self.now_ms

    def say(self, host: Host, report: Report) -> None:
        """A host's word to its driver."""

        def arrive() -> None:
            if host.run == self.driver.run and not self.driver.over:
                self.driver.heard(host.number, report)

        self.later(self._latency_ms(host, to_driver=True), arrive)

    def say_and_wait(self, host: Host, report: Report) -> None:
        """A word that a host waits with until it is heard."""
        if host.run == self.driver.run and host.is_heard:
            self.driver.heard(host.number, report)

    def say_and_end(self, host: Host, report: Report) -> None:
        """A host's last word: it ends when that was heard."""

        def arrive() -> None:
            if host.alive:
                if host.run == self.driver.run and not self.driver.over:
                    self.driver.heard(host.number, report)
                self.ended(host)

        self.later(self._latency_ms(host, to_driver=True), arrive)

    def tell_followed(self, host: Host, node: int, key: int) -> None:
        """A host has a state in memory."""
        self.say(host, StateFollowed(node, key))

    def order(self, number: int, action: Callable[[Host], None]) -> None:
        """The driver's word to a host; one that it refuses hears no more."""
        run, host = self.driver.run, self.present(number)
        if host is None:
            return

        def arrive() -> None:
            if not host.alive or host.run != run or number in self.driver.fenced:
                return
            if self.now_ms < host.frozen_ms:
                self.later(host.frozen_ms - self.now_ms, arrive)
            else:
                action(host)

        self.later(self._latency_ms(host, to_driver=False), arrive)

    # -- processes -------------------------------------------------------------------------------

    def present(self, number: int) -> Host | None:
        """The process of the present driver with a number, if it is there."""
        for host in self.hosts:
            if host.number == number and host.run == self.driver.run and host.alive:
                return host
        return None

    def workers(self) -> list[Host]:
        """The processes of the present driver but its own, whether it refuses them or not."""
        return [h for h in self.hosts if h.alive and h.number and h.run == self.driver.run]

    def has_job(self, slot: int, run: int) -> bool:
        """Whether something runs in a slot, or soon will."""
        job = self._jobs.get((run, slot))
        return job is not None and not job.over

    def launch(self, slot: int, run: int) -> None:
        """The cluster manager runs a job."""
        self._jobs[run, slot] = _Job()
        if self.shape.trouble != "slow" or slot <= self.shape.hosts + self.shape.standby:
            self._attempt(run, slot)
        elif self.random.random() < 0.2:
            self.later(7_000, lambda: self._attempt(run, slot))

    def _attempt(self, run: int, slot: int) -> None:
        """A process comes up soon, or dies before it can say so."""
        job = self._jobs[run, slot]
        number = slot + job.attempts * SLOTS
        job.attempts += 1

        def come_up() -> None:
            if run != self.driver.run or job.over:
                return
            host = self._start_host(number)
            if self.random.random() < (0.9 if self.shape.trouble == "stillborn" else 0.02):
                self.kill(host)
            else:
                self.say(host, HostCameUp(number, f"host {number}", number))

        self.later(self.random.choice((50, 150, 600)), come_up)

    def _start_host(self, number: int) -> Host:
        host = Host(self, number, self.driver.run, RingMember(number, INTERVAL_MS, TIMEOUT_MS))
        host.offset_ms = self.random.choice((0, 700, 40_000))
        self.hosts.append(host)
        self.note(host, "comes up")
        return host

    def kill(self, host: Host) -> None:
        """A process dies."""
        if host.alive:
            self.note(host, "dies")
            self._gone(host, lost=True)

    def ended(self, host: Host) -> None:
        """A process comes to its end."""
        self.note(host, "ends")
        self._gone(host, lost=False)

    def _gone(self, host: Host, lost: bool) -> None:
        host.alive = False
        driver, run, slot = self.driver, host.run, host.slot
        if host.number == DRIVER:
            self.later(5, lambda: driver.perform([*driver.life.host_ended(DRIVER, None)]))
            return
        if (run, host.number) in self.connected and self.random.random() < 0.6:
            broken = ConnectionBroken(host.number)
            self.later(self.random.choice((5, 60)), lambda: self._driver_hears(run, broken))
        job = self._jobs[run, slot]
        if lost and self.shape.retried and job.attempts < ATTEMPTS and not job.over:
            self._attempt(run, slot)
            return
        self._end_job(run, slot, "was lost: killed" if lost else None)

    def _end_job(self, run: int, slot: int, why: str | None) -> None:
        job = self._jobs[run, slot]
        if not job.over:
            job.over = True
            error = None if why is None else HostLostError(f"host {slot} {why}").to_dict()
            after_ms = self.random.choice((20, 400, 1_500))
            self.later(after_ms, lambda: self._driver_hears(run, JobEnded(slot, error)))

    def break_connection(self, host: Host) -> None:
        """A connection between a host and the driver breaks, and both live."""
        self._driver_hears(host.run, ConnectionBroken(host.number))

    def _driver_hears(self, run: int, event: ConnectionBroken | JobEnded) -> None:
        if run == self.driver.run:
            self.driver.take(event)

    def cancel(self, run: int) -> None:
        """The cluster manager ends the jobs of a run."""
        for host in self.hosts:
            if host.alive and host.run == run and host.number and not host.stuck:
                host.alive = False
        stuck = {host.slot for host in self.hosts if host.alive and host.run == run}
        for of_run, slot in self._jobs:
            if of_run == run and slot not in stuck:
                self._end_job(run, slot, "was cancelled")

    @staticmethod
    def told_to_end(host: Host) -> None:
        """A host is to end."""
        host.ends = True

    def refused(self, number: int) -> None:
        """A host that the driver refuses hears that, and dies before long."""
        host = self.present(number)
        if host is not None:
            self.count("zombie")
            if self.random.random() < 0.3:
                self.kill(host)

    def seen(self, number: int) -> ProcessState:
        """What the driver sees of the process of a host, if it can see any."""
        host = self.present(number)
        if not self.sees:
            return ProcessState.UNSEEN
        if host is None or not host.is_awake:
            return ProcessState.STOPPED
        return ProcessState.RUNNING

    def rewire(self, number: int, next_: int | None, timing: tuple[int, int]) -> None:
        """A host is told whom to watch."""

        def learn(host: Host) -> None:
            if host.ring.timing != timing:
                host.ring = RingMember(number, *timing)
            host.ring.rewired(next_, self.now_ms + host.offset_ms)

        self.order(number, learn)

    def restart_driver(self) -> None:
        """The driver dies, its hosts with it; another one goes on from what is durable."""
        self.note("the driver restarts")
        for host in self.hosts:
            host.alive = False
        self.driver = LifeDriver(self, self.driver.run + 1)
        self._begin()

    # -- nodes -----------------------------------------------------------------------------------

    def next_incarnation(self, node: int) -> int:
        """From now on only this one may write."""
        self.incarnations[node] += 1
        for host in self.hosts:
            host.nodes.pop(node, None) if host.is_heard else None
        return self.incarnations[node]

    def start_epoch(self, node: int, incarnation: int) -> int:
        """Where an incarnation starts: from the newest checkpoint that can be read."""
        return self.store.restarted(node, damaged=self.random.random() < 0.1)

    def completed(self, host: Host, run: NodeRun) -> None:
        """A node has completed an epoch; it may save its state then."""
        node = run.node
        if run.incarnation != self.incarnations[node]:
            return  # what it sends is refused
        self.note(self.shape.names[node], "completes", run.epoch)
        self.reached[node] = max(self.reached[node], run.epoch)
        if run.epoch < EPOCH_END:
            self.last[node] = max(self.last[node], run.epoch)
        self.say(host, Completed(node, run.incarnation, run.epoch))
        if self.random.random() < 0.4 and run.epoch < EPOCH_END:
            self.save(host, run)

    def save(self, host: Host, run: NodeRun) -> None:
        """A node makes its state durable, unless it was replaced."""
        if run.incarnation == self.incarnations[run.node] and run.epoch < EPOCH_END:
            saved = self.store.save(run.node, run.incarnation, run.epoch)
            self.say(host, SavedState(run.node, saved.news))

    # -- traces ----------------------------------------------------------------------------------

    def count(self, what: str) -> None:
        """Count something that went wrong."""
        self.faults[what] += 1

    def note(self, *words: object) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.steps:5d}  {' '.join(map(str, words))}")
