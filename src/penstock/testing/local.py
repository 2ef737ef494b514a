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
interpreter, so it is no measure of speed; and a host that is stuck in somebody's function cannot be
killed, only left behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from penstock.engine.settings import RunSettings
from penstock.engine.spark.controller import Controller
from penstock.engine.spark.drills import nodes_named
from penstock.engine.spark.host_task import BEAT_S, DRIVER, GRACE_S, HostTask, _HostProcess
from penstock.engine.spark.launch import Job
from penstock.engine.spark.query import FlowQuery
from penstock.engine.spark.start import prepare_run
from penstock.errors import HostLostError, PenstockError, TransientError
from penstock.flow import Flow
from penstock.physical import physical_plan

__all__ = ["LocalQuery", "run_local", "start_local"]

PINGS = {"pingInterval": "500 ms", "pingTimeout": "10 seconds"}
"""Threads of one busy interpreter may be late, but they do not freeze."""

FREEZE_S = 1.0


def start_local(flow: Flow, hosts: int = 2, **options: Any) -> LocalQuery:
    """Start a flow on ``hosts`` threads; the handle reads like that of ``flow.start``."""
    settings = RunSettings.checked({"hosts": hosts, **PINGS, **options})
    plan = physical_plan(
        flow, settings.parallelism or hosts, None, settings.regime, settings.guarantee
    )
    store, resume, base, flow_id = prepare_run(flow, plan, settings)
    query = LocalQuery(
        None,
        flow,
        plan,
        settings,
        hosts,
        store,
        resume,
        base,
        flow_id,
        ("127.0.0.1", "127.0.0.1"),
    )
    query._start()
    return query


def run_local(flow: Flow, hosts: int = 2, *, timeout: float = 60.0, **options: Any) -> LocalQuery:
    """Run a flow until the input that exists now is used up; raise what made it fail."""
    query = start_local(flow, hosts, **{"availableNow": True, **options})
    if not query.awaitTermination(timeout):
        query.stop()
        raise TransientError(f"flow {flow.name!r} did not end within {timeout:g} s")
    return query


class _LocalHost(_HostProcess):
    """A host that must leave the process as it found it."""

    died = False
    """Whether it was killed: it says nothing more."""

    def run(self) -> None:
        transport = self.host.transport
        transport.connect(DRIVER, self.task.driver)
        self._tell({"kind": "registered", "address": transport.address, "pid": None})
        beat = threading.Thread(target=self._keep_lease, name="penstock-beat", daemon=True)
        beat.start()
        try:
            self.host.run()
            if not self.died:
                self._tell({"kind": "beat", "figures": self._figures()})
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
        """Stand still for a while, as a stopped process does: work nothing, answer nobody."""

        def stand_still() -> None:
            time.sleep(seconds)
            self.ring.frozen = False

        self.ring.frozen = True
        self.host.call(stand_still)

    def _control_arrived(self, peer: int, body: dict[str, Any]) -> None:
        if body["kind"] == "kill":
            self.died, self.host.orderly = True, False
            self.host.end()
            self.host.transport.close()
        else:
            super()._control_arrived(peer, body)

    def _given_up(self, peer: int) -> None:
        self.died, self.host.orderly = True, False
        self.host.end()

    def _end_soon(self) -> None:
        """A thread cannot be killed: the controller leaves it behind."""


class _LocalJob:
    """A host in a thread."""

    def __init__(self, task: HostTask, on_end: Callable[[int, PenstockError | None], None]) -> None:
        self.host = task.slot
        self.ended = threading.Event()
        self._on_end = on_end
        self._task = task
        self.process: _LocalHost | None = None
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
            host.run()
            if host.died:
                error = HostLostError(f"host {self.host} was lost: killed", host=self.host)
        except Exception as raised:
            error = HostLostError(f"host {self.host} was lost: {raised!r}", host=self.host)
        self.ended.set()
        self._on_end(self.host, error)


class _LocalController(Controller):
    """Runs hosts as threads."""

    def _job(self, task: HostTask) -> Job:
        return _LocalJob(task, self._job_ended)

    def threads(self) -> list[threading.Thread]:
        """Everything that runs for this flow and should end with it."""
        jobs = [job.thread for job in self._jobs.values() if isinstance(job, _LocalJob)]
        return [*jobs, self._host_thread, self._thread]

    def freeze(self, host: int, seconds: float) -> None:
        """Let a host stand still for a while."""
        job = self._jobs[host]
        if isinstance(job, _LocalJob) and job.process is not None:
            job.process.freeze(seconds)

    def _one_machine(self) -> bool:
        return True

    def _retries(self) -> bool:
        return False

    def _cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            for job in self._jobs.values():
                if isinstance(job, _LocalJob) and job.thread.is_alive():
                    self._job_ended(job.host, HostLostError(f"host {job.host} did not end"))


class LocalQuery(FlowQuery):
    """The handle of a flow that runs in threads of this process."""

    _controller_type: ClassVar[type[Controller]] = _LocalController

    def freeze(self, node: int | str, seconds: float | None = None) -> list[dict[str, Any]]:
        """Let the host of a node stand still for a while, as a stopped process would."""
        controller = self._controller
        hosts = sorted({one["host"] for one in nodes_named(self, node, "freeze")} - {DRIVER})
        for host in hosts:
            if isinstance(controller, _LocalController):
                controller.freeze(host, seconds or FREEZE_S)
        return [{"host": host, "pid": None} for host in hosts]

    def join(self, timeout: float = 10.0) -> bool:
        """Wait until the threads of a flow that has ended are gone; say whether they are."""
        controller = self._controller
        threads = controller.threads() if isinstance(controller, _LocalController) else []
        deadline = time.monotonic() + timeout
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)
