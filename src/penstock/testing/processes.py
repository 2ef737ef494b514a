"""Processes of flows under test: who is alive, who is gone, how much memory, drivers to be killed.

Everything is found and ended by process id, and every wait has an end.  Needs psutil.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from penstock.engine.driver.query import FlowQuery

__all__ = ["DriverScript", "alive", "hosts_of", "rss_mb", "wait_gone", "wait_until"]

POLL_S = 0.02


def wait_until(condition: Callable[[], Any], within_s: float, what: str) -> float:
    """Wait for a condition; returns how long it took, raises TimeoutError when it did not come."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > within_s:
            raise TimeoutError(f"{what}: not within {within_s} s")
        time.sleep(POLL_S)
    return time.monotonic() - began


def hosts_of(query: FlowQuery) -> dict[int, psutil.Process]:
    """The processes of those hosts of a flow that have come up."""
    return {info["host"]: psutil.Process(info["pid"]) for info in query.hosts if info["pid"]}


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; one that has ended and waits to be reaped does not."""
    return [process for process in processes if _is_alive(process)]


def wait_gone(processes: Iterable[psutil.Process], within_s: float) -> float:
    """Wait until none of them runs; returns how long it took."""
    watched = list(processes)
    return wait_until(lambda: not alive(watched), within_s, f"the end of {watched}")


def rss_mb(processes: Mapping[int, psutil.Process]) -> dict[int, float]:
    """Resident memory of each process."""
    return {key: process.memory_info().rss / (1 << 20) for key, process in processes.items()}


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class DriverScript:
    """A Python script in a process of its own, that a test talks with through its output.

    Leaving the ``with`` block ends the script and every process below it.
    """

    def __init__(
        self, text: str, folder: Path, *arguments: str, env: Mapping[str, str] | None = None
    ) -> None:
        path = folder / f"driver-{time.monotonic_ns()}.py"
        path.write_text(text, encoding="utf-8")
        self.command = [sys.executable, str(path), *arguments]
        self.lines: list[str] = []
        self._env = dict(os.environ) | dict(env or {})
        self._errors = path.with_suffix(".err")
        self._below: dict[int, psutil.Process] = {}

    def __enter__(self) -> DriverScript:
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=errors, env=self._env, text=True
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.descendants()
        if self.process.poll() is None:
            self.process.kill()
        for process in alive(self._below.values()):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(10)
        self._reader.join(10)

    def line(self, prefix: str, within_s: float) -> str:
        """The rest of the next line that begins with ``prefix``; the line is then forgotten."""

        def found() -> bool:
            if any(line.startswith(prefix) for line in list(self.lines)):
                return True
            if self.process.poll() is not None:
                self._reader.join(5)
                if not any(line.startswith(prefix) for line in self.lines):
                    raise RuntimeError(f"the script ended without {prefix!r}: {self.errors()}")
            return False

        try:
            wait_until(found, within_s, f"a line with {prefix!r}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.lines} {self.errors()}") from None
        index = next(i for i, line in enumerate(self.lines) if line.startswith(prefix))
        return self.lines.pop(index)[len(prefix) :].strip()

    def errors(self) -> str:
        """The end of what the script wrote to standard error."""
        return self._errors.read_text(encoding="utf-8", errors="replace")[-4000:]

    def descendants(self) -> Sequence[psutil.Process]:
        """Every process ever seen below the script."""
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                self._below[process.pid] = process
        return list(self._below.values())

    def _read(self) -> None:
        if self.process.stdout is not None:
            for line in self.process.stdout:
                self.lines.append(line.rstrip("\n"))
