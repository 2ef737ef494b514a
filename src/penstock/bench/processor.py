"""How much processor time this process and its children use, by what they are.  Linux only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Used", "measured"]

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
DRIVER, JVM, HOSTS = "driver", "jvm", "hosts"


@dataclass
class Used:
    """What a group of processes has used; filled in when the measurement ends."""

    seconds: float = 0.0
    cores: dict[str, float] = field(default_factory=lambda: dict.fromkeys((DRIVER, JVM, HOSTS), 0))
    switches: float = 0.0
    """Context switches in a second, without the JVM's."""

    @property
    def total(self) -> float:
        """Cores in all."""
        return sum(self.cores.values())


@contextmanager
def measured() -> Iterator[Used]:
    """Measure what is used while the body runs."""
    used = Used()
    before, began = dict(_processes()), time.perf_counter()
    yield used
    used.seconds = time.perf_counter() - began
    for pid, (kind, cpu_s, switches) in _processes():
        _, cpu_before, switches_before = before.get(pid, (kind, 0.0, 0))
        used.cores[kind] += (cpu_s - cpu_before) / used.seconds
        if kind != JVM:
            used.switches += (switches - switches_before) / used.seconds


def _processes() -> Iterator[tuple[int, tuple[str, float, int]]]:
    """This process and all below it: what it is, seconds of processor time, switches."""
    children: dict[int, list[tuple[int, str, float]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended
                name, fields = _stat(entry)
                cpu_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
                children.setdefault(int(fields[1]), []).append((int(entry.name), name, cpu_s))
    me = os.getpid()
    times = os.times()
    yield me, (DRIVER, times.user + times.system, _switches(me))
    waiting = [me]
    while waiting:
        for pid, name, cpu_s in children.get(waiting.pop(), ()):
            yield pid, (JVM if name == "java" else HOSTS, cpu_s, _switches(pid))
            waiting.append(pid)


def _stat(process: Path) -> tuple[str, list[str]]:
    head, _, rest = (process / "stat").read_text(encoding="utf-8").rpartition(")")
    return head.partition("(")[2], rest.split()


def _switches(pid: int) -> int:
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(OSError):
            for line in status.read_text(encoding="utf-8").splitlines():
                if "ctxt_switches" in line:
                    count += int(line.split()[1])
    return count
