"""The controller on the driver: performs what the controller's machine decides.

One thread takes events (from hosts' channels, from Spark jobs, from the user) out of a queue, gives
them to the machine and performs the effects.  The driver is a host of its own, number 0, for the
sinks and sources that must live there; its loop runs in another thread.
"""

from __future__ import annotations

import logging
import queue
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.causal_graph import causal_graph
from penstock.connectors.driver import DriverSink
from penstock.connectors.memory import MemorySource
from penstock.core.machine.controller import (
    Assign,
    Commit,
    ControllerEffect,
    ControllerMachine,
    Ended,
    EndHosts,
    Go,
    Phase,
    StopSources,
)
from penstock.core.progress.marks import EPOCH_END
from penstock.engine.causal_agent import CausalAgent
from penstock.engine.clock import EpochClock, now_us
from penstock.engine.host import Host
from penstock.engine.progress_hub import ProgressHub
from penstock.engine.ring import RING_KINDS
from penstock.engine.settings import RunSettings
from penstock.engine.spark.commits import Commits
from penstock.engine.spark.followers import Followers
from penstock.engine.spark.frames import Frames
from penstock.engine.spark.host_task import (
    DRIVER,
    FROZEN_S,
    HostTask,
    build_nodes,
    forget,
    node_figures,
    stop_sources,
    take_frontier,
)
from penstock.engine.spark.launch import KEEP_MEMORY, HostJob, Job
from penstock.engine.spark.live_plan import LivePlan
from penstock.engine.spark.membership import Membership
from penstock.engine.spark.recovery import Recovery
from penstock.engine.spark.recovery_place import RecoveryPlace, recovery_place
from penstock.engine.spark.roster import HostInfo, Roster
from penstock.engine.spark.shipping import (
    driver_sinks,
    memory_sources,
    without_driver_operators,
)
from penstock.engine.storage.objects import given_store
from penstock.engine.store import FlowStore
from penstock.engine.transport import Transport
from penstock.errors import (
    InvariantError,
    PenstockError,
    TransientError,
    UsageError,
)
from penstock.physical import PhysicalPlan
from penstock.tracking import tracking_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Controller", "HostInfo"]

log = logging.getLogger(__name__)

T = TypeVar("T")
PING_S = 0.5
END_S = 0.7
"""How long hosts may take to end before their jobs are cancelled."""


class Controller(Membership):
    """Runs one flow on a session."""

    def __init__(
        self,
        spark: SparkSession,
        plan: PhysicalPlan,
        settings: RunSettings,
        hosts: int,
        store: FlowStore | None,
        resume: int,
        base: int,
        driver_address: tuple[str, str],
        on_progress: Callable[[], None],
        on_ended: Callable[[PenstockError | None], None],
    ) -> None:
        self.plan = plan
        self.settings = settings
        self.store = store
        self._roster = Roster(hosts, settings.spares)
        self.hosts = self._roster.hosts
        self.placement = plan.place(self._roster.workers, DRIVER)
        self.resume = resume
        self.base = base
        self.started_us = now_us()
        self.clock: EpochClock | None = None
        self.sink_latency_us: dict[str, int] = {}
        self.delays_us: dict[int, int] = {}
        """How long nodes wait after each batch, in a drill."""
        self.tracking = tracking_plan(plan, whole=settings.progress == "tracked")
        self.hub: ProgressHub | None = None
        if self.tracking is not None:
            self.hub = ProgressHub(plan, self.tracking, resume, self._broadcast)
        self._spark = spark
        self._secret = secrets.token_hex(16)
        self._tag = f"penstock-{uuid.uuid4().hex[:12]}"
        self._on_progress = on_progress
        self._on_ended = on_ended
        self._events: queue.SimpleQueue[Callable[[], list[ControllerEffect]]] = queue.SimpleQueue()
        self._jobs: dict[int, Job] = {}
        self._launches: dict[int, float] = {}
        self._agent: CausalAgent | None = None
        self._shipped = without_driver_operators(plan)
        self._stopping = False
        self._place: RecoveryPlace | None = None
        self.frames = Frames(spark, plan, self._on_failure)
        self._end_by_s: float | None = None
        self._cancelled = False
        self._over = threading.Event()
        self._start_by_s = time.monotonic() + settings.s("startTimeout")
        self.machine = ControllerMachine(
            hosts=[DRIVER, *self.hosts],
            nodes=self.placement,
            sinks={name: list(chain.nodes) for name, chain in plan.sinks},
            drain_ms=settings.us("drainTimeout") // 1000,
            completed=resume,
        )
        self.recovery = self._make_recovery()
        self.replicas = self._make_replicas()
        stalls = None if self.recovery is None else self.recovery.stalls
        self._commits = Commits(store, resume, stalls)
        self.live_plan: LivePlan | None = None
        self.followers: Followers | None = None
        if self.recovery is not None:
            if settings.followed_s is not None:
                self.followers = Followers(self.recovery.incarnations, self._to_host)
            self.live_plan = LivePlan(self.recovery, settings, self._tell_agents, self._do_later)
        bind, public = driver_address
        self.host = Host(
            DRIVER,
            lambda host: Transport(
                DRIVER,
                bind,
                self._secret,
                host.arrived,
                self._control_arrived,
                host.wake,
                self._on_broken,
                self._on_failure,
                settings.windowBytes,
                settings.tuning,
            ),
            self._on_failure,
            self._driver_sink,
            lambda node: self._post(lambda: self._finished(node)),
        )
        self.address = self.host.transport.address.replace(bind, public, 1)
        self._begin_membership()
        self._thread = threading.Thread(target=self._run, name="penstock-controller", daemon=True)
        self._host_thread = threading.Thread(
            target=self.host.run, name="penstock-driver-host", daemon=True
        )

    def _make_recovery(self) -> Recovery | None:
        """Recovery, where the flow has it."""
        place = recovery_place(self.plan, self.settings, self.store, self._one_machine())
        if place is None:
            return None
        self._place = place
        if isinstance(place.directory, Path):
            self.plan.keep_in(place.directory, place.sync)
        return Recovery(
            self.plan,
            causal_graph(self.plan),
            place,
            self.placement,
            self._to_host,
            self._address_of,
            self._committed,
            self.hub,
            purges=self.settings.recovery == "purge",
            pause_every=self._pause_every(),
            window_epochs=self.settings.us("rollbackWindow") // self.settings.us("epochInterval"),
            store_timeout_s=self.settings.s("storeTimeout"),
        )

    def _pause_every(self) -> int | None:
        """After so many epochs the whole flow waits for everybody's checkpoints; None: never."""
        regime = self.settings.regime
        if regime is None or not regime.whole_flow:
            return None
        return regime.epochs(self.settings.us("epochInterval"))

    def _one_machine(self) -> bool:
        """Whether all hosts share this machine's files."""
        return bool(self._spark.sparkContext.master.startswith("local"))

    # -- called by the handle --------------------------------------------------------------------

    def start(self) -> None:
        """Launch the hosts and begin."""
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(self._switch_interval_s, self.settings.tuning.switch_interval_s))
        self._host_thread.start()
        self._post(lambda: self.machine.registered(DRIVER, self.address))
        for number in self.hosts:
            self._launch(number)
        self._thread.start()

    def _launch(self, slot: int) -> None:
        """Have Spark run a host."""
        task = HostTask(
            slot,
            self._shipped,
            self.address,
            self.tracking,
            self._secret,
            self.settings.s("lease"),
            self.settings.windowBytes,
            self.settings.tuning,
            None if self.store is None else given_store(self.store.storage),
        )
        self._jobs[slot] = self._job(task)
        self._jobs[slot].start()

    def _job(self, task: HostTask) -> Job:
        """What will run a host."""
        memory = KEEP_MEMORY if self.replicas is not None else {}
        return HostJob(self._spark, task, self._tag, self._job_ended, memory)

    def stop(self) -> None:
        """Ask for an orderly end."""
        for operator in self._driver_sinks().values():
            operator.stopping()
        self.frames.stop()
        self._post(lambda: self.machine.stop_asked(_now_ms()))

    def slow_down(self, delays_us: dict[int, int]) -> None:
        """Let nodes wait so long after each batch, wherever they run, for drills."""
        kept = {**self.delays_us, **delays_us}
        self.delays_us = {node: us for node, us in kept.items() if us}
        self._tell_all({"kind": "slow", "delays_us": self.delays_us})
        self.host.call(partial(self.host.slow_down, self.delays_us))

    def ask(self, function: Callable[[], T], timeout_s: float) -> T:
        """Call a function in the controller's thread; give what it gives, raise what it raises.

        What is wrong with the question is the asker's alone; anything else ends the flow, too.
        """
        future: Future[T] = Future()

        def event() -> list[ControllerEffect]:
            try:
                future.set_result(function())
            except UsageError as error:
                future.set_exception(error)
            except Exception as error:
                future.set_exception(error)
                raise
            return []

        self._post(event)
        try:
            return future.result(timeout_s)
        except FutureTimeoutError as error:
            if future.done():
                raise
            raise TransientError(
                f"the controller did not answer within {timeout_s:g} s: has the flow ended?"
            ) from error

    def figures(self) -> dict[int, dict[str, Any]]:
        """The latest figures of every node."""
        merged = {n: node_figures(runner) for n, runner in list(self.host.nodes.items())}
        for info in self.hosts.values():
            merged.update(info.figures)
        return merged

    # -- events ----------------------------------------------------------------------------------

    def _post(self, event: Callable[[], list[ControllerEffect]]) -> None:
        self._events.put(event)

    def _control_arrived(self, peer: int, body: dict[str, Any]) -> None:
        if body["kind"] == "progress" and self.hub is not None:
            try:
                self.hub.receive(peer, body["t"], body["n"], body["d"], body["g"])
            except PenstockError as error:
                self._on_failure(error)
            return
        info = self.hosts.get(peer)
        if info is not None:
            info.heard_s = time.monotonic()
        if body["kind"] in RING_KINDS:
            self._own_ring.take(peer, body)
        elif body["kind"] == "replica":
            self._to_host(DRIVER, body)
        else:
            self._post(lambda: self._control(peer, body))

    def _broadcast(self, body: dict[str, Any]) -> None:
        """Frontiers for everybody; under the hub's lock, so everybody hears the same order."""
        self._tell_all(body)
        if self.host.tracks:
            self.host.call(lambda: take_frontier(self.host, self.tracking, body))

    def _driver_sink(self, sink: str, node: int, epoch: int, cut_us: int) -> None:
        """Called in the driver host's loop when an epoch is complete at a sink there."""
        operator = self._driver_sinks().get(sink)
        if operator is not None and epoch < EPOCH_END:
            operator.advance(epoch)
        self._post(lambda: self._sink(sink, node, epoch, cut_us))

    def _sink(self, sink: str, node: int, epoch: int, cut_us: int) -> list[ControllerEffect]:
        if epoch >= EPOCH_END:
            self.frames.input_ended(sink)
            return []
        if cut_us:
            self.sink_latency_us[sink] = now_us() - cut_us
        return self.machine.sink_completed(sink, node, epoch)

    def _on_failure(self, error: PenstockError) -> None:
        if self.machine.phase not in (Phase.ENDING, Phase.ENDED):
            # Before the driver's loop closes them, which would look like an orderly end.
            for operator in self._driver_sinks().values():
                operator.fail(error)
        self._post(lambda: self.machine.failed(error.to_dict()))

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        ping_at = progress_at = 0.0
        turn = time.monotonic()
        while not self._over.is_set():
            try:
                event = self._events.get(timeout=0.1)
            except queue.Empty:
                pass
            else:
                self._perform(event)
            self._perform(self._try_again)
            now = time.monotonic()
            if now - turn > FROZEN_S:  # this process did not run: nobody could be heard
                for info in self.hosts.values():
                    info.heard_s += now - turn
            turn = now
            if now >= ping_at:
                ping_at = now + PING_S
                committed = min(self.machine.committed.values(), default=self.resume)
                lows = {} if self.recovery is None else self.recovery.lows()
                ping = {"kind": "ping", "committed": committed, "lows": lows}
                self._tell_all(ping)
                self.host.call(partial(forget, self.host, self._agent, ping))
                self._look_after(now)
            if now >= progress_at:
                progress_at = now + self.settings.s("progressInterval")
                if self.live_plan is not None:
                    self.live_plan.observe(self.figures())
                self._on_progress()

    def stalls(self) -> list[dict[str, Any]]:
        """Who waits for the store, or for a sink's folder."""
        return [] if self.recovery is None else self.recovery.stalls.now()

    def _committed(self, sink: str) -> int:
        """The last epoch of a sink that is recorded, or need not be."""
        return self._commits.last(sink, self.machine.committed[sink])

    def _try_again(self) -> list[ControllerEffect]:
        """Write what could not be written."""
        if self.recovery is not None:
            self.recovery.try_again()
        if self.replicas is not None:
            self.replicas.try_again()
        self._commits.try_again()
        self._send_home(time.monotonic())
        return self._launch_due() if self._launches else []

    def _perform(self, event: Callable[[], list[ControllerEffect]]) -> None:
        try:
            for effect in event():
                self._effect(effect)
        except PenstockError as error:
            self._fail(error)
        except Exception as error:
            log.exception("the controller failed")
            self._fail(PenstockError(f"controller: {type(error).__name__}: {error}"))

    def _fail(self, error: PenstockError) -> None:
        for effect in self.machine.failed(error.to_dict()):
            self._effect(effect)

    def _effect(self, effect: ControllerEffect) -> None:
        if isinstance(effect, Assign):
            self._assign(effect)
        elif isinstance(effect, Go):
            self._tell_all({"kind": "go"})
            self.host.call(self.host.start_sources)
            self.frames.start()
        elif isinstance(effect, StopSources):
            self._stopping = True
            self._tell_all({"kind": "stop_sources"})
            self.host.call(lambda: stop_sources(self.host, self._agent))
        elif isinstance(effect, Commit):
            self._commits.add(effect.sink, effect.epoch)
            self.frames.advance(effect.sink, effect.epoch)
        elif isinstance(effect, EndHosts):
            self._end_by_s = time.monotonic() + END_S
            failure = self.machine.failure
            if failure is not None:
                error = PenstockError.from_dict(dict(failure))
                for operator in self._driver_sinks().values():
                    operator.fail(error)
            self._tell_all({"kind": "end"})
            self.host.end()
            threading.Thread(target=self._await_driver_host, daemon=True).start()
        elif isinstance(effect, Ended):
            self._finish(effect)

    def _assign(self, effect: Assign) -> None:
        self.started_us = now_us()
        self.clock = EpochClock.starting(
            self.base, self.started_us, self.settings.us("epochInterval")
        )
        body = self._assignment()
        self._tell_all(body)
        self.host.call(lambda: self._build_here(body))

    def _assignment(self) -> dict[str, Any]:
        """What a host must know of the run."""
        clock, recovery = self.clock, self.recovery
        if clock is None:
            raise InvariantError("nothing is assigned before the epochs have begun")
        body: dict[str, Any] = {
            "kind": "assign",
            "addresses": {DRIVER: self.address}
            | {info.number: info.address for info in self.hosts.values() if info.address},
            "placement": self.placement,
            "base": clock.base,
            "origin_us": clock.origin_us,
            "interval_us": clock.interval_us,
            "started_us": self.started_us,
            "resume": self.resume,
            "store": None if self.store is None else self.store.storage.address,
            "available_now": self.settings.availableNow,
            "rows_max": self.settings.rowsMax,
            "linger_us": self.settings.us("linger"),
            "welcome": None if self.hub is None else self.hub.welcome,
            "recovery": recovery is not None,
            "delays_us": self.delays_us,
            "followed_s": self.settings.followed_s,
        }
        if recovery is not None:
            body |= recovery.assignment(self.settings) | {"stopping": self._stopping}
            body["one_machine"] = self._one_machine()
            body["replicas"] = None if self.replicas is None else {"run": self.replicas.run}
        if self.live_plan is not None:
            body["orders"] = self.live_plan.orders
        return body

    def _build_here(self, body: dict[str, Any]) -> None:
        hub = self.hub
        if hub is not None:
            self.host.on_progress = lambda flush, gates: hub.receive(
                DRIVER, self.host.generation, flush.sequence, flush.deltas, gates
            )
        if self.recovery is not None:
            self._agent = CausalAgent(self.host, self.plan, self.tracking, body, self._told_here)
            self._post(lambda: self._ready(DRIVER))
        else:
            build_nodes(self.host, self.plan, self.tracking, body)
            for operator in self._driver_sinks().values():
                operator.resume(self.resume + 1)
            self._post(lambda: self.machine.ready(DRIVER))
        for source in self.memory_sources():
            source.on_push = self.host.wake

    def _look_after(self, now: float) -> None:
        """Deadlines: starting, silent hosts, draining, ending."""
        for effect in self.machine.time_passed(_now_ms()):
            log.warning(
                "not everything reached the sinks within %s; epochs that were not published will "
                "be made again by the next run",
                self.settings.drainTimeout,
            )
            self._effect(effect)
        phase = self.machine.phase
        if phase in (Phase.LAUNCHING, Phase.PREPARING) and now > self._start_by_s:
            missing = ", ".join(map(str, self.machine.missing))
            self._fail(
                TransientError(
                    f"the flow did not start within {self.settings.startTimeout}: host {missing} "
                    f"still {phase.value}; is the session busy, or has it too few task slots?"
                )
            )
        elif phase in (Phase.RUNNING, Phase.DRAINING):
            self._lose_silent(now)
        elif phase is Phase.ENDING and self._end_by_s is not None and now > self._end_by_s:
            self._cancel()

    def _cancel(self) -> None:
        """The backstop: cancel the jobs of hosts that did not end by themselves."""
        if not self._cancelled:
            self._cancelled = True
            log.warning("cancelling the Spark jobs of hosts that did not end when told")
            context = self._spark.sparkContext
            if context._jsc is not None:  # else the session was stopped, and the jobs with it
                context.cancelJobsWithTag(self._tag)

    def _await_driver_host(self) -> None:
        """The driver's loop may be inside somebody's function: do not wait for it for ever."""
        self.host.ended.wait(END_S)
        self._post(lambda: self.machine.host_ended(DRIVER, None))

    def _tell_all(self, body: dict[str, Any]) -> None:
        self.host.transport.control_all(
            [info.number for info in self.hosts.values() if info.address], body
        )

    def _tell_agents(self, body: dict[str, Any]) -> None:
        """Tell every host's agent, the driver's too."""
        for host in (DRIVER, *self.hosts):
            if host == DRIVER or self.hosts[host].address:
                self._to_host(host, body)

    def _do_later(self, function: Callable[[], None]) -> None:
        """Do something in the controller's thread."""

        def event() -> list[ControllerEffect]:
            function()
            return []

        self._post(event)

    def _finish(self, effect: Ended) -> None:
        sys.setswitchinterval(self._switch_interval_s)
        self.host.transport.close()
        if self._agent is not None:
            self._agent.close()
        if self._place is not None:
            self._place.close()
        error = self.frames.close()
        if effect.failure is not None:
            error = PenstockError.from_dict(dict(effect.failure))
        for source in self.memory_sources():
            source.on_push = None
            if error is not None:
                source.fail(error)
        for operator in self._driver_sinks().values():
            operator.end()
        if self.store is not None:
            self.store.close()
        self._on_progress()
        self._over.set()
        self._on_ended(error)

    def _driver_sinks(self) -> dict[str, DriverSink]:
        return driver_sinks(self.plan)

    def memory_sources(self) -> list[MemorySource]:
        """The sources that the driver pushes rows into."""
        return memory_sources(self.plan)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
