"""What the driver can see of a host's process: whether it listens, and what it does."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

from penstock.core.control.suspicion import ProcessState

__all__ = ["is_gone", "is_running", "is_there", "process_seen"]

PROBE_S = 0.5


def process_seen(pid: int | None, address: str, here: str) -> ProcessState:
    """What a host's process does, if it is on the machine of the address ``here``."""
    if pid is None or urlsplit(address).hostname != urlsplit(here).hostname:
        return ProcessState.UNSEEN
    if is_running(pid):
        return ProcessState.RUNNING
    return ProcessState.SLEEPING if is_there(pid) else ProcessState.STOPPED


def is_running(pid: int) -> bool:
    """Whether a thread of a process runs, or could if it were given a processor.

    A stopped process has none, and one that sleeps would have answered.
    """
    try:
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
            if stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "R":
                return True
    except OSError:
        return False
    return False


def is_there(pid: int) -> bool:
    """Whether a process exists and is not stopped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "TtZX"


def is_gone(address: str) -> bool:
    """Whether nothing listens at an address any more: then the process has ended."""
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
