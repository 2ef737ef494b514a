"""A process that runs a drawn flow and does to it what was drawn, up to its own death.

    python -m penstock.bench.random_flows.life threads

It says ``UP``, reads lines ``FOLDER LIFE LIMIT_S`` from standard input and answers each with
``DONE`` on standard output.  What was drawn is in ``FOLDER/drawn.json``; what happens is added to
``FOLDER/LIFE.jsonl``, an object per line, so that it is known after a ``kill -9`` as well.  With
``spark`` instead of ``threads`` it has a Spark session, which it keeps from one line to the next.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from penstock.bench.random_flows.draw import DRIVER, QUICK, STOP, Drawn, Fault, build, regime_of
from penstock.engine.driver.query import FlowQuery
from penstock.errors import PenstockError
from penstock.testing.cluster import descendants
from penstock.testing.local import start_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Life", "main"]

SLOTS = 5
"""Hosts that a drawn flow has at most, with one that stands by."""
RECOVERED_S_MAX = 10.0
POLL_S = 0.01
HUNG = 3
"""Exit status of a process whose flow did not end in time."""


class Life:
    """One run of a flow."""

    def __init__(self, folder: Path, number: int, limit_s: float) -> None:
        self._folder = folder
        self._number = number
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        drawn = json.loads((folder / "drawn.json").read_text(encoding="utf-8"))
        self._drawn = Drawn.from_json(drawn)
        lives = self._drawn.lives()
        self._faults = lives[number] if number < len(lives) else []
        self._log = (folder / f"{number}.jsonl").open("a", encoding="utf-8")
        self._query: FlowQuery | None = None

    def run(self, spark: SparkSession | None) -> None:
        """Start the flow, play the faults, and wait for its end if it has one."""
        watchdog = threading.Timer(self._limit_s, self._hung)
        watchdog.daemon = True
        watchdog.start()
        early = next((fault for fault in self._faults if fault.early), None)
        if early is not None:
            threading.Thread(target=self._die, args=(early.after_s,), daemon=True).start()
        try:
            self._play(spark)
        except PenstockError as error:
            self._say("error", kind=type(error).__name__, text=str(error))
        finally:
            watchdog.cancel()
            self._log.close()

    def _play(self, spark: SparkSession | None) -> None:
        query = self._query = self._start(spark)
        self._say("running")
        for fault in self._faults:
            if not query.isActive:
                break
            if fault.kind == QUICK:
                time.sleep(fault.after_s)
            else:
                self._await_recovery(query)
                query.awaitTermination(fault.after_s)
            if fault.kind == DRIVER and not fault.early:
                self._die(0)
            elif fault.kind == STOP:
                self._say("fault", kind=STOP)
                query.stop()
                query.awaitTermination(self._limit_s)
            elif fault.kind != DRIVER:
                self._kill(query, fault)
        query.awaitTermination(self._limit_s)
        self._say("ended")

    def _start(self, spark: SparkSession | None) -> FlowQuery:
        flow = build(self._drawn, self._folder)
        options = dict(self._drawn.options)
        if self._drawn.regime is not None:
            options["regime"] = regime_of(self._drawn.regime)
        options["checkpointLocation"] = str(self._folder / "checkpoint")
        if spark is not None:
            return flow.start(spark, **options)
        return start_local(flow, **options)

    def _await_recovery(self, query: FlowQuery) -> None:
        """Wait until the last kill was made good: what comes next is another matter."""
        until = time.monotonic() + RECOVERED_S_MAX
        while query.isActive and time.monotonic() < until:
            if all(one["recovered_us"] is not None for one in query.recoveries[-1:]):
                return
            time.sleep(POLL_S)

    def _kill(self, query: FlowQuery, fault: Fault) -> None:
        up = {host["host"] for host in query.hosts if host["address"]}
        known = {node["host"]: node["node"] for node in query.nodes() if node["host"] in up}
        killed = []
        for pick in fault.picks:
            if known:
                host = sorted(known)[int(pick * len(known))]
                try:
                    query.kill(known.pop(host))
                except PenstockError as error:
                    self._say("missed", kind=fault.kind, text=str(error))
                else:
                    killed.append(host)
        if killed:
            self._say("fault", kind=fault.kind, hosts=killed)

    def _die(self, after_s: float) -> None:
        time.sleep(after_s)
        self._say("fault", kind=DRIVER, below=descendants([os.getpid()]))
        os.kill(os.getpid(), signal.SIGKILL)

    def _hung(self) -> None:
        """Write the stacks of all threads, and end."""
        with (self._folder / f"{self._number}.stacks").open("w", encoding="utf-8") as stacks:
            faulthandler.dump_traceback(stacks, all_threads=True)
        query = self._query
        standing: dict[str, Any] = {"status": None}
        if query is not None:
            last = query.lastProgress
            standing = {
                "status": query.status,
                "hosts": query.hosts,
                "recoveries": query.recoveries[-2:],
                "progress": None if last is None else dict(last),
            }
        self._say("hung", below=descendants([os.getpid()]), **standing)
        os._exit(HUNG)

    def _say(self, event: str, **more: Any) -> None:
        said = {"event": event, "at": round(time.time(), 3), **more}
        self._log.write(json.dumps(said, default=str) + "\n")
        self._log.flush()


def main(arguments: Sequence[str], orders: TextIO) -> None:
    """Live as often as told."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: die with who started us
    spark = None
    if arguments[0] == "spark":
        from penstock.engine.spark.session import local_session

        spark = local_session("penstock chaos", hosts=SLOTS)
    print("UP", flush=True)
    for order in orders:
        folder, number, limit_s = order.rsplit(maxsplit=2)
        Life(Path(folder), int(number), float(limit_s)).run(spark)
        print("DONE", flush=True)
    if spark is not None:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:], sys.stdin)
    sys.stdout.flush()
    os._exit(0)  # a thread that was left behind must not hold it up
