"""Hosts as Spark jobs: one job of one task each, started, watched and ended from the driver.

Each job runs in a FAIR pool and under a tag of its own.  When a session has no FAIR scheduler the
pool counts for nothing and hosts queue with all other jobs.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import InheritableThread, TaskContext
from pyspark.errors import PySparkException

from penstock.engine.host.task import HostProcess, HostTask, host_number
from penstock.errors import (
    HostLostError,
    PenstockError,
    SessionError,
    SettingsError,
    SlotsError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["KEEP_MEMORY", "HostJob", "awaited_slots", "check_session", "hosts_that_fit"]

log = logging.getLogger(__name__)

EXECUTORS_S = 45.0
"""How long a cluster's first executor may take to join a session."""
SETTLED_S = 2.0
"""When no executor has joined for this long, all are taken to be there."""
TOO_FEW_S = 6.0
"""The same, where more are needed than there are: busy machines start them one by one."""

_DEADLY = {
    "spark.speculation": "a second copy of a host would be started beside the first",
    "spark.sql.execution.pyspark.udf.killOnIdleTimeout": "silent hosts would be killed",
    "spark.python.worker.killOnIdleTimeout": "silent hosts would be killed",
}


def check_session(spark: Any) -> SparkContext:
    """Refuse sessions that cannot carry hosts, with the reason."""
    try:
        context = spark.sparkContext
    except PySparkException as error:
        raise SessionError(
            "a Spark Connect session has no sparkContext, and hosts are tasks of a SparkContext: "
            "start the flow on a classic SparkSession, in the driver's own process"
        ) from error
    except AttributeError as error:
        raise SessionError(f"start: expected a SparkSession, got {type(spark).__name__}") from error
    if context._jsc is None or context._jsc.sc().isStopped():
        raise SessionError("this SparkSession has been stopped: make a new one")
    conf = context.getConf()
    for key, why in _DEADLY.items():
        if str(conf.get(key, "false")).lower() == "true":
            raise SessionError(f"{key} is true in this session: {why}; set it to false", key=key)
    if str(conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true":
        log.warning("spark.dynamicAllocation.enabled: executors with hosts are never idle")
    return context


def free_slots(context: SparkContext) -> tuple[int, int]:
    """Task slots in all, and those that no task uses right now."""
    per_task = int(context.getConf().get("spark.task.cpus", "1"))
    executors = context._jsc.sc().statusStore().executorList(True)
    total = sum(
        executors.apply(index).totalCores() // per_task for index in range(executors.size())
    )
    # The scheduler's own count: that of the status store may be seconds old.
    running = context._jsc.sc().taskScheduler().runningTasksByExecutors().values().iterator()
    busy = 0
    while running.hasNext():
        busy += running.next()
    return total, max(0, total - busy)


def hosts_that_fit(context: SparkContext, wanted: int | None, useful: int) -> int:
    """How many hosts to start: as asked, or what fits with one slot left for DataFrame jobs."""
    total, free = awaited_slots(context, wanted)
    if wanted is None:
        if free < 1:
            raise SlotsError(
                f"all {total} task slots of this session are taken: stop something, or use a "
                "master with more, such as local[8]",
                total=total,
                free=free,
            )
        return max(1, min(free - 1, useful))
    if wanted > free:
        raise SlotsError(
            f"hosts={wanted}, but only {free} of the session's {total} task slots are free: ask "
            "for fewer hosts, or use a master with more slots, such as "
            f"local[{wanted + 1}]",
            hosts=wanted,
            total=total,
            free=free,
        )
    return wanted


def awaited_slots(context: SparkContext, wanted: int | None) -> tuple[int, int]:
    """The slots, with those of executors that are still on their way to a new session."""
    total, free = free_slots(context)
    if context.master.startswith("local"):
        return total, free
    began = changed = time.monotonic()
    settled_s = SETTLED_S if wanted is None else TOO_FEW_S
    while wanted is None or free < wanted:
        now = time.monotonic()
        if total and now - changed > settled_s:
            break
        if now - began > EXECUTORS_S:
            raise SlotsError(
                f"no executor has joined the session within {EXECUTORS_S:.0f} s: has the cluster "
                f"at {context.master} free cores and memory?",
                total=total,
            )
        time.sleep(0.1)
        before = total
        total, free = free_slots(context)
        if total != before:
            changed = time.monotonic()
    return total, free


class HostJob:
    """The Spark job of one host."""

    def __init__(
        self,
        spark: SparkSession,
        task: HostTask,
        tag: str,
        on_end: Callable[[int, PenstockError | None], None],
        environment: Mapping[str, str],
    ) -> None:
        self.host = task.slot
        self._environment = environment
        self.ended = threading.Event()
        self._context = spark.sparkContext
        self._task = task
        self._tag = tag
        self._on_end = on_end
        self._thread = InheritableThread(target=self._run, name=f"penstock-job-{task.slot}")
        self._thread.daemon = True

    def start(self) -> None:
        """Submit the job."""
        self._thread.start()

    def _run(self) -> None:
        context, error = self._context, None
        try:
            context.setLocalProperty("spark.scheduler.pool", f"{self._tag}-{self.host}")
            context.setLocalProperty("spark.job.description", f"Penstock host {self.host}")
            context.addJobTag(self._tag)
            rdd = context.parallelize([self.host], 1).mapPartitions(partial(run_host, self._task))
            with _own_workers(context, self._environment):
                rdd._jrdd  # noqa: B018  the function is wrapped, with its environment, here
            rdd.collect()
        except Exception as raised:
            error = _host_lost(self.host, raised)
        finally:
            self.ended.set()
            self._on_end(self.host, error)


def run_host(task: HostTask, _partition: Iterator[Any]) -> Iterator[int]:
    """The body of a host's Spark task."""
    if task.store is not None:
        task.store.introduce()
    context = TaskContext.get()
    attempt = 0 if context is None else context.attemptNumber()
    HostProcess(task, host_number(task.slot, attempt)).run()
    yield task.slot
    leave_worker()


def leave_worker() -> None:
    """End this process once its task is over, where Spark would keep it for the next one.

    Hosts have a daemon of their own, so no other task can be given to this process.
    """
    if not os.environ.get("SPARK_REUSE_WORKER"):
        return
    main_thread = threading.main_thread().ident

    def wait_and_leave() -> None:
        while True:
            time.sleep(0.01)
            frame = sys._current_frames().get(main_thread or 0)
            if frame is not None and frame.f_code.co_name == "read_int":
                os._exit(0)

    threading.Thread(target=wait_and_leave, name="penstock-leave", daemon=True).start()


KEEP_MEMORY = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(2 << 30),
}
"""Hosts of replicas keep freed memory for what comes next: what they send is freed when it is
settled, later than new memory is asked for, and pages that the system has to clear first cost more
than the work on the rows in them.  Ignored where the C library is not glibc.  Others do not have
it: with many small batches Arrow's own pool answers sooner."""


@contextmanager
def _own_workers(context: SparkContext, own: Mapping[str, str]) -> Iterator[None]:
    """Workers with an environment of their own come from a daemon of their own."""
    with _ENVIRONMENT_LOCK:
        before = dict(context.environment)
        context.environment.update({**own, **before, "PENSTOCK_HOST": "1"})
        try:
            yield
        finally:
            context.environment.clear()
            context.environment.update(before)


_ENVIRONMENT_LOCK = threading.Lock()
_FINAL = ("cancelled", "SparkContext was shut down")
"""Signs that another attempt would end like this one."""


def _host_lost(host: int, raised: Exception) -> PenstockError:
    """Spark's word on why a host's task ended."""
    text = str(raised)
    if "No module named 'penstock'" in text:
        return SessionError(
            "the executors' Python has no penstock: install it there (pip install penstock), or "
            "set PYSPARK_PYTHON to a Python that has it before the session is made",
            host=host,
        )
    missing = re.search(r"ModuleNotFoundError: No module named '([^']+)'", text)
    if missing:
        return SettingsError(
            f"the hosts cannot import {missing[1]!r}, which a function of the flow refers to: "
            "install it where the executors run, send it along with "
            "spark.sparkContext.addPyFile(path), or define the function in the script itself",
            host=host,
            module=missing[1],
        )
    known = {
        "Python worker exited unexpectedly": "its process ended (killed, or out of memory)",
        "cancelled": "its Spark job was cancelled",
        "ExecutorLostFailure": "its executor was lost",
        "SparkContext was shut down": "the Spark session was stopped",
    }
    why = next((meaning for sign, meaning in known.items() if sign in text), None)
    fatal = re.search(r"Fatal Python error: (.+)", text)
    if fatal:
        why = f"its process crashed: {fatal[1]}"
    raises = re.findall(r"^[\w.]+(?:Error|Exception): .*$", text.partition("Traceback")[2], re.M)
    raised_there = why is None and bool(raises)
    if raised_there:
        why = raises[0]
    return HostLostError(
        f"host {host} was lost: {why or text.splitlines()[0] if text else type(raised).__name__}",
        host=host,
        detail=text[:4000],
        repeats=raised_there or any(sign in text for sign in _FINAL),
    )
