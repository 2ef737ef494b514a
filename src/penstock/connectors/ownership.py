"""Which run writes to a target: one at a time, recorded where every process can see it.

A target (an output folder, a table of a database) bears the mark of the run that took it last: the
flow, its id, which stays the same over restarts, and the process of its driver.  The mark is
durable before anything is published, so a target of a flow that has run and bears no mark of it is
another one, or was emptied.

In a folder a lock says whether that run still lasts; it goes with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from penstock.errors import SinkError
from penstock.storage import write_durably

__all__ = ["FolderClaim", "Owner", "taken"]


@dataclass(frozen=True)
class Owner:
    """A run that writes to a target."""

    run: str
    flow: str = ""
    flow_id: str = ""
    """Of the flow's store; empty: it was not noted."""
    pid: int = 0
    machine: str = ""

    @classmethod
    def here(cls, flow: str, flow_id: str | None) -> Owner:
        """A new run of this process."""
        run = uuid.uuid4().hex
        return cls(run, flow, flow_id or run, os.getpid(), os.uname().nodename)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Owner:
        """The owner that a mark names."""
        return cls(
            str(plain["run"]),
            str(plain.get("flow", "")),
            str(plain.get("flow_id", "")),
            int(plain.get("pid", 0)),
            str(plain.get("machine", "")),
        )

    def __str__(self) -> str:
        process = f"process {self.pid} on {self.machine}" if self.pid else "a process"
        return f"flow {self.flow!r} ({process})" if self.flow else process

    def is_of(self, other: Owner) -> bool:
        """Whether it may be a run of the same flow."""
        return not self.flow_id or self.flow_id == other.flow_id

    def is_alive(self) -> bool:
        """Whether it can be seen from here that another process still runs it."""
        if self.machine != os.uname().nodename or self.pid in (0, os.getpid()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def taken(what: str, owner: Owner | None) -> SinkError:
    """The error for a target that another run writes to."""
    return SinkError(
        f"{what} is being written to by another run: {owner or 'one that cannot be told'}; one run "
        "at a time may. Stop that one, or give each flow a target of its own",
        target=what,
    )


class FolderClaim:
    """The mark and the lock of an output folder; on its way to a host it loses the lock."""

    def __init__(self, folder: Path, what: str) -> None:
        self._place = folder / "_penstock"
        self._what = what
        self._lock: IO[bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None}

    @property
    def mark(self) -> Path:
        """The file that names the run."""
        return self._place / "run.json"

    def owner(self) -> Owner | None:
        """The run that took the folder last; None: there is none, or the folder is another one."""
        try:
            return Owner.from_plain(json.loads(self.mark.read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def take(self) -> None:
        """Lock the folder until :meth:`release`; refused if another run has it."""
        self._place.mkdir(parents=True, exist_ok=True)
        lock = open(self._place / "lock", "ab")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise taken(self._what, self.owner()) from None
        except OSError:
            pass  # a file system without locks: marks alone must do
        self._lock = lock

    def note(self, owner: Owner) -> None:
        """Say who has the folder, durably."""
        write_durably(self.mark, json.dumps(asdict(owner)).encode())

    def release(self) -> None:
        """Let another run have it."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()
