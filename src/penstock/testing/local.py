"""Flows without Spark: every host a thread of this process, everything else as on a cluster.

The controller, the hosts, the channels between them (real ones, on loopback) and the store are the
same as under Spark; only Spark itself is missing, and with it the seconds that a session takes to
start.  So a flow can be tried in a unit test:

    >>> import pyarrow as pa
    >>> from penstock import Flow
    >>> flow = Flow("example")
    >>> numbers = flow.memory(pa.schema({"n": pa.int64()}))
    >>> even = numbers.filter("n % 2 = 0").memory()
    >>> numbers.push([{"n": n} for n in range(6)])
    >>> _ = run_local(flow)
    >>> sorted(row["n"] for row in even.toPylist())
    [0, 2, 4]

:func:`run_local` runs a flow until its input is used up; :func:`start_local` returns the handle at
once, as ``flow.start(spark)`` does.  Both take the options of ``start``.

What differs: functions do not travel, so they may hold what Spark could not ship; hosts share one
interpreter, so it is no measure of speed; and a host that is stuck in a user's function cannot be
killed, only left behind.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any, NoReturn, Unpack

from penstock.api.flow import Flow
from penstock.api.start_options import RunOptions
from penstock.connectors.spark_stage import SparkWork
from penstock.core.control.host_reports import HostBeat, HostRegistered
from penstock.core.control.roster import DRIVER
from penstock.engine.driver.drills import nodes_named
from penstock.engine.driver.frame_runner import FrameJob
from penstock.engine.driver.launcher import OnEnd
from penstock.engine.driver.prepare import prepare_run
from penstock.engine.driver.query import FlowQuery
from penstock.engine.host.last_words import exit_words
from penstock.engine.host.task import BEAT_S, GRACE_S, HostProcess, HostTask
from penstock.engine.settings import RunSettings
from penstock.errors import HostLostError, PenstockError, SettingsError, TransientError
from penstock.planning.physical import physical_plan
from penstock.testing.held_input import release_input

__all__ = ["LocalQuery", "die", "run_local", "start_local"]

SHARED: RunOptions = {"pingInterval": "500 ms", "pingTimeout": "10 seconds", "linger": "20 ms"}
"""What suits threads that share an interpreter: they may be late, but they do not freeze; and steps
cost all of them time, so sources make fewer of them."""

FREEZE_S = 1.0


def start_local(flow: Flow, hosts: int = 2, **options: Unpack[RunOptions]) -> LocalQuery:
    """Start a flow on ``hosts`` threads; the handle reads like that of ``flow.start``."""
    settings = RunSettings.checked({"hosts": hosts, **SHARED, **options})
    plan = physical_plan(
        flow,
        settings.parallelism or hosts,
        None,
        settings.regime,
        settings.guarantee,
        settings.onError,
    )
    run = prepare_run(flow, plan, settings, hosts)
    query = LocalQuery(_LocalLauncher(), run, ("127.0.0.1", "127.0.0.1"))
    query._start()
    return query


def run_local(
    flow: Flow, hosts: int = 2, *, timeout: float = 60.0, **options: Unpack[RunOptions]
) -> LocalQuery:
    """Run a flow until the input that exists now is used up; raise what made it fail."""
    options.setdefault("availableNow", True)
    query = start_local(flow, hosts, **options)
    if not query.awaitTermination(timeout):
        query.stop()
        raise TransientError(f"flow {flow.name!r} did not end within {timeout:g} s")
    return query


_here = threading.local()


class _Died(BaseException):
    """A function has ended its host."""


def die(status: int = 1) -> NoReturn:
    """End the host whose function calls this, as ``os._exit(status)`` would end its process."""
    process: _LocalHost = _here.process
    exit_words(process.host, process.task.plan, process._tell, status)
    process.died, process.host.orderly = True, False
    raise _Died


class _LocalHost(HostProcess):
    """A host that must leave the process as it found it."""

    died = False
    """Whether it was killed: it says nothing more."""

    def __init__(self, task: HostTask, number: int) -> None:
        super().__init__(task, number)
        self._woken = threading.Event()

    def run(self) -> None:
        _here.process = self
        transport = self.host.transport
        transport.connect(DRIVER, self.task.driver)
        self._tell(HostRegistered(transport.address, None))
        beat = threading.Thread(target=self._keep_lease, name="penstock-beat", daemon=True)
        beat.start()
        try:
            self.host.run()
            if not self.died:
                self._tell(HostBeat(self._figures(), {}))
                transport.drain(GRACE_S, DRIVER)
        finally:
            self._close()
            transport.close()
            beat.join()

    def _keep_lease(self) -> None:
        while not self.host.ended.wait(BEAT_S):
            self._beat()

    def _beat(self) -> None:
        if not self.ring.frozen:
            super()._beat()

    def freeze(self, seconds: float) -> None:
        """Stand still for a while, or until it is woken up, as a stopped process does."""
        woken = self._woken = threading.Event()

        def stand_still() -> None:
            woken.wait(seconds)
            self.ring.frozen = False

        self.ring.frozen = True
        self.host.call(stand_still)

    def unfreeze(self) -> bool:
        """Go on; whether it stood still."""
        self._woken.set()
        return self.ring.frozen

    def _kill(self) -> None:
        self.died, self.host.orderly = True, False
        self.host.end()
        self.host.transport.close()

    def _given_up(self, peer: int) -> None:
        self.died, self.host.orderly = True, False
        self.host.end()

    def _end_soon(self) -> None:
        """A thread cannot be killed: the controller leaves it behind."""

    def die_out(self) -> None:
        """The flow is over and this host still here: end as soon as that is possible.

        It was given up, or left behind, and nobody is there who would tell it.  A process would
        miss the driver and end itself; a thread would go on calling its peers for ever.
        """
        self.died, self.host.orderly = True, False
        self.host.end()
        self._woken.set()


class _LocalJob:
    """A host in a thread."""

    def __init__(self, task: HostTask, on_end: OnEnd) -> None:
        self.host = task.slot
        self.ended = threading.Event()
        self._on_end = on_end
        self._task = task
        self.process: _LocalHost | None = None
        self._over = False
        """Whether the flow has ended."""
        self.thread = threading.Thread(
            target=self._run, name=f"penstock-host-{task.slot}", daemon=True
        )

    def start(self) -> None:
        """Run the host."""
        self.thread.start()

    def _run(self) -> None:
        error = None
        try:
            host = self.process = _LocalHost(self._task, self._task.slot)
            if self._over:
                host.die_out()
            with suppress(_Died):
                host.run()
            if host.died:
                host.host.transport.close()
                error = HostLostError(f"host {self.host} was lost: killed", host=self.host)
        except Exception as raised:
            error = HostLostError(f"host {self.host} was lost: {raised!r}", host=self.host)
        self.ended.set()
        self._on_end(self.host, error)

    def die_out(self) -> None:
        """The flow is over: so is this host, if it has not ended."""
        self._over = True
        if self.process is not None and not self.ended.is_set():
            self.process.die_out()

    def leave(self) -> None:
        """Go on without this host, which did not end."""
        self._on_end(self.host, HostLostError(f"host {self.host} did not end"))


class _LocalLauncher:
    """Runs hosts as threads."""

    one_machine = True
    retries = False

    def __init__(self) -> None:
        self.jobs: dict[int, _LocalJob] = {}

    def host_job(self, task: HostTask, on_end: OnEnd, keep_memory: bool) -> _LocalJob:
        """A thread for a host; memory is that of this process."""
        job = self.jobs[task.slot] = _LocalJob(task, on_end)
        return job

    def frame_job(self, flow: str, stage: str, work: SparkWork) -> FrameJob:
        """Stages that work on DataFrames need a session all the same."""
        from pyspark.sql import SparkSession

        from penstock.engine.spark.frames import SparkJob

        session = SparkSession.getActiveSession()
        if session is None:
            raise SettingsError(
                f"stage {stage!r} runs Spark jobs: make a SparkSession first", stage=stage
            )
        return SparkJob(session, flow, stage, work)

    def cancel(self) -> None:
        """A thread cannot be killed: report that it has ended, and leave it behind."""
        for job in self.jobs.values():
            if job.thread.is_alive():
                job.leave()


class LocalQuery(FlowQuery):
    """The handle of a flow that runs in threads of this process."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._frozen: dict[int, tuple[int | str, _LocalHost]] = {}
        """Hosts that were frozen: for which node, and the process.  When it wakes up, the node may
        run elsewhere and another process may have its number."""

    def freeze(self, node: int | str, seconds: float | None = None) -> list[dict[str, Any]]:
        """Let the host of a node stand still for a while, as a stopped process would.

        It goes on after ``seconds`` (1 by default), or when ``unfreeze`` is called.
        """
        hosts = sorted({one["host"] for one in nodes_named(self, node, "freeze")} - {DRIVER})
        for host in hosts:
            process = self._jobs[host].process
            if process is not None:
                process.freeze(seconds or FREEZE_S)
                self._frozen[host] = node, process
        return [{"host": host, "pid": None} for host in hosts]

    def unfreeze(self, node: int | str | None = None) -> list[dict[str, Any]]:
        """Let the host that stands still for a node go on; without a node, all of them."""
        woken = []
        for host, (target, process) in sorted(self._frozen.items(), key=lambda one: one[0]):
            if node in (None, target) and process.unfreeze():
                woken.append({"host": host, "pid": None})
        if node is not None and not woken:
            raise SettingsError(f"unfreeze: {node!r} is not frozen")
        return woken

    def finish(self, timeout: float = 60.0) -> None:
        """Let the generated rows that are left come at once, and wait for the end of the flow."""
        release_input(self.flow)
        if not self.awaitTermination(timeout):
            raise TransientError(f"flow {self.name!r} did not end within {timeout:g} s")

    def join(self, timeout: float = 10.0) -> bool:
        """Wait until the threads of a flow that has ended are gone; say whether they are."""
        controller = self._controller
        threads = [job.thread for job in self._jobs.values()]
        threads += [controller._host_thread, controller._thread]
        deadline = time.monotonic() + timeout
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _on_ended(self, error: PenstockError | None) -> None:
        for job in list(self._jobs.values()):
            job.die_out()
        super()._on_ended(error)

    @property
    def _jobs(self) -> dict[int, _LocalJob]:
        launcher = self._controller._launcher
        return launcher.jobs if isinstance(launcher, _LocalLauncher) else {}
