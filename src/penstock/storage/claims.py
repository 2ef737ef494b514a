"""One driver at a time has a store.

In a directory a lock says so, which goes with its process, however that ends.  Elsewhere there are
no locks: the owner's name is written down, and who finds one of this machine that is still alive is
refused.  An owner on another machine that has not gone in an orderly way cannot be told from a dead
one: the new driver takes over, and fences keep the old one's nodes from doing harm.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from penstock.errors import SettingsError
from penstock.storage.storage import Storage

__all__ = ["claim"]

log = logging.getLogger(__name__)

_OWNER = "owner.json"
LOCK_TRIES = 4


def claim(storage: Storage) -> Callable[[], None]:
    """Take a store; returns what gives it back.  It is refused if it cannot be written to."""
    try:
        if storage.directory is not None:
            return _locked(storage.directory)
        return _owned(storage)
    except OSError as error:
        raise SettingsError(
            f"checkpointLocation {storage} cannot be written to: {error.strerror or error}; "
            "give a place that this user may write to",
            path=str(storage),
        ) from error


def _locked(path: Path) -> Callable[[], None]:
    for part in ("sources", "commits"):
        (path / part).mkdir(parents=True, exist_ok=True)
    probe = path / f"probe-{uuid.uuid4().hex}"
    probe.touch()
    probe.unlink()
    # flock goes with the process, however it ends; descriptors are not inherited across exec.
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(descriptor)
    except OSError:
        holder = os.read(descriptor, 1000).decode(errors="replace").strip() or "a process"
        os.close(descriptor)
        raise _in_use(path, holder) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return lambda: os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Take a lock; a process that only tests it holds it for a moment."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _owner(storage: Storage) -> tuple[int, str]:
    """The process that has a store, and its machine."""
    try:
        owner = json.loads(storage.read(_OWNER))
        return int(owner["pid"]), str(owner["machine"])
    except (ValueError, KeyError, TypeError) as error:
        path = f"{storage}/{_OWNER}"
        raise SettingsError(
            f"{path} is damaged ({error!r}), so it cannot be told which driver has this "
            "checkpointLocation. Make sure that no other driver runs this flow, delete "
            f"{_OWNER}, and start again",
            path=path,
        ) from error


def _owned(storage: Storage) -> Callable[[], None]:
    with contextlib.suppress(FileNotFoundError):
        pid, machine = _owner(storage)
        holder = f"pid {pid} on {machine}"
        if machine != socket.gethostname():
            log.warning(
                "checkpointLocation %s was left by %s without a word: it is taken over",
                storage,
                holder,
            )
        elif _is_alive(pid):
            raise _in_use(storage, holder)
    owner = {"pid": os.getpid(), "machine": socket.gethostname()}
    storage.write(_OWNER, json.dumps(owner).encode())
    return lambda: storage.delete(_OWNER)


def _in_use(where: object, holder: str) -> SettingsError:
    return SettingsError(
        f"checkpointLocation {where} is in use by {holder}; stop that run first, or give this one "
        "another checkpointLocation",
        path=str(where),
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
