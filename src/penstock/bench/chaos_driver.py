"""``penstock chaos --driver``: the driver itself is killed, again and again, and started again.

The flow runs in a child process with Spark and all hosts below it.  The child is killed with
``kill -9`` at random moments, some of them while it is still starting, and started again with the
same command and the same ``checkpointLocation``, at once: what is left of the old hosts may still
be at it.  At the end the published tables must hold exactly what the events say.

How long a flow takes to resume is measured from the moment when Spark is up in the new process
until a reader of the output sees the first epoch that the new run has published.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from penstock.bench.chaos_flow import ChaosTables
from penstock.bench.published import Published
from penstock.engine.host.clock import now_us
from penstock.errors import TransientError
from penstock.terminal import stderr
from penstock.testing.cluster import birth, descendants

__all__ = ["kill_drivers"]

TABLES = ("counts", "numbers", "steps")
RUN_S_MAX = 2.0
"""Longest life of a driver after it has published something."""
LEAD_S = 2.0
EARLY = 0.25
"""Share of the kills that come while the driver is starting the flow."""
EARLY_S_MAX = 2.5
UP_S_MAX = 90.0
RESUMED_S_MAX = 90.0
END_S_MAX = 120.0
POLL_S = 0.005


def kill_drivers(kills: int, rate: float, seed: int = 1) -> dict[str, Any]:
    """Run the flow, killing its driver; give figures."""
    chance = random.Random(seed)
    rows = int(rate * (LEAD_S + kills * RUN_S_MAX))
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        tables = ChaosTables(rate, rows, folder, now_us())
        command = [str(folder), str(rate), str(rows), str(tables.events.origin_us)]
        watched = [stack.enter_context(Published(folder / name)) for name in TABLES]
        done: list[dict[str, Any]] = []
        ended = False
        while not ended:
            with _Life(command, folder) as life:
                up_ns = life.said("UP", UP_S_MAX)
                if len(done) == kills:
                    resumed_s = _resumed_s(life, watched, up_ns)
                    life.said("ENDED", END_S_MAX)
                    ended = True
                elif chance.random() < EARLY:
                    resumed_s = None
                    time.sleep(chance.uniform(0, EARLY_S_MAX))
                else:
                    resumed_s = _resumed_s(life, watched, up_ns)
                    time.sleep(chance.uniform(0, RUN_S_MAX))
                    ended = life.ended  # this machine is busy: the input was used up before
                if not ended:
                    life.kill()
            done.append({"killed": not ended, "early": resumed_s is None, "resume_s": resumed_s})
            _say(done)
        outcome = tables.check()
    lives = [one["resume_s"] for one in done[1:] if one["resume_s"] is not None]
    return {
        "kills": sum(one["killed"] for one in done),
        "early_kills": sum(one["killed"] and one["early"] for one in done),
        "resume_s": {
            "p50": round(float(np.median(lives)), 3) if lives else None,
            "max": max(lives, default=None),
        },
        "lost": outcome.lost,
        "duplicated": outcome.duplicated,
        "disordered": outcome.disordered,
        "equal": outcome.equal,
        "rows": outcome.rows,
        "events": rows,
        "seed": seed,
        "each": done,
    }


def _resumed_s(life: _Life, watched: list[Published], up_ns: int) -> float:
    """Wait for the first epoch that this run publishes; give how long after Spark was up."""

    def first_ns() -> int | None:
        seen = []
        for table in watched:
            # From here on no process of an earlier run can publish.
            with suppress(FileNotFoundError):
                begun_ns = (table.folder / "_penstock" / "run.json").stat().st_mtime_ns
                seen += [ns for ns in list(table.seen_ns.values()) if ns > max(begun_ns, up_ns)]
        return min(seen, default=None)

    life.wait(lambda: first_ns() is not None, RESUMED_S_MAX, "an epoch of the new run")
    return round(((first_ns() or up_ns) - up_ns) / 1e9, 3)


class _Life:
    """One process of the driver, from its start to its end or to its kill."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self._command = [sys.executable, "-m", "penstock.bench.chaos_child", *arguments]
        self._log = folder / f"driver-{time.monotonic_ns()}.log"
        self._said: dict[str, int] = {}
        self._below: dict[int, str | None] = {}

    def __enter__(self) -> _Life:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._reader = threading.Thread(target=self._read, name="penstock-child", daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.kill()
            self._end_hosts()
        elif self.ended:
            self._process.wait(END_S_MAX)

    @property
    def ended(self) -> bool:
        """Whether the flow has come to its end by itself."""
        return "ENDED" in self._said

    def kill(self) -> None:
        """Kill the driver alone."""
        self._below = descendants([self._process.pid])
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)

    def said(self, word: str, within_s: float) -> int:
        """Wait for a word; give when it was said, by the wall clock in ns."""
        self.wait(lambda: word in self._said, within_s, word)
        return self._said[word]

    def wait(self, done: Callable[[], bool], within_s: float, what: str) -> None:
        """Wait for something that this process brings about."""
        deadline = time.monotonic() + within_s
        while not done():
            gone = self._process.poll() is not None
            if gone:
                self._reader.join(5)
            if gone and not done():
                why = f"the driver ended with status {self._process.returncode}"
            elif time.monotonic() > deadline:
                why = f"it did not come within {within_s:g} s"
            else:
                time.sleep(POLL_S)
                continue
            text = self._log.read_text(encoding="utf-8", errors="replace")[-3000:]
            raise TransientError(f"chaos: waited for {what}, but {why}; it said:\n{text}")

    def _end_hosts(self) -> None:
        """After an error nothing is left behind; normally the hosts go by themselves."""
        for pid, born in self._below.items():
            if birth(pid) == born:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _read(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                self._said.setdefault(line.strip(), time.time_ns())


def _say(done: list[dict[str, Any]]) -> None:
    one = done[-1]
    how = "killed while it started" if one["early"] else f"resumed after {one['resume_s']} s"
    end = ", then killed" if one["killed"] and not one["early"] else ""
    end = end if one["killed"] else "; it came to its end"
    stderr.print(f"{len(done)}: the driver: {how}{end}", highlight=False)
