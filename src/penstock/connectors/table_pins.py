"""Which versions of a published table a recovery may need: readers pin them, the writer heeds that.

    <table>/readers/<flow>.<stage>.<shard>.json     {"version": 44}: that one and later ones

A node that notes versions with its rows pins the oldest one that rows of its open history have.
History ends at the flow's low epoch: no recovery goes back behind it, so neither logs nor
checkpoints nor notes of earlier epochs are used again.  The pin is there before the first version
is noted and moves only forward; so the writer deletes only what no reader will ask for.  A pin that
cannot be read holds everything.

A new incarnation of a node keeps the pin that it finds until the low epoch has passed everything
that the one before may have noted.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection
from pathlib import Path

from penstock.storage import write_durably

__all__ = ["TEMPORARY", "TablePin", "drop_pins", "pinned"]

TEMPORARY = "run-"
"""How the names of readers begin whose flow has no store: nothing of them outlives the run."""
_ALL = -1
STALE_S = 86_400.0
"""How long such a reader may be silent before it is taken for dead."""


class TablePin:
    """What one node needs of one table."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / "readers" / f"{name}.json"
        self._noted: dict[int, int] = {}
        self._held_until: int | None = None
        self._version: int | None = None

    def open(self, newest: int | None) -> None:
        """Pin what an earlier incarnation did, or all versions from the newest on."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._version = _version(self._path)
        if self._version is None:
            self._write(_ALL if newest is None else newest, sync=True)

    def noted(self, epoch: int, version: int | None) -> None:
        """Rows of an epoch see a version."""
        if version is not None:
            self._noted[epoch] = min(version, self._noted.get(epoch, version))

    def released(self, low: int, completed: int, newest: int | None) -> None:
        """No recovery goes back behind the epoch ``low``; ``completed`` is the node's own.

        Not to be called while the node repeats what an earlier incarnation did.
        """
        if self._held_until is None:
            self._held_until = completed
        for epoch in [epoch for epoch in self._noted if epoch <= low]:
            del self._noted[epoch]
        if low < self._held_until:
            return
        needed = min(self._noted.values(), default=_ALL if newest is None else newest)
        if self._version is None or needed > self._version:
            with contextlib.suppress(OSError):  # then the next time
                self._write(needed)

    def _write(self, version: int, sync: bool = False) -> None:
        write_durably(self._path, json.dumps({"version": version}).encode(), sync)
        self._version = version


def pinned(folder: Path) -> tuple[int, str] | None:
    """The oldest version that a reader may need, and which reader; None: no reader needs any."""
    found = []
    for path in (folder / "readers").glob("*.json"):
        version = _version(path)
        if version is not None and not _is_stale(path):
            found.append((version, path.stem))
    return min(found, default=None)


def drop_pins(folder: Path, flow: str, kept: Collection[str] = ()) -> None:
    """Remove the pins of a flow's readers, except for some: they are gone, or the run has ended."""
    for path in (folder / "readers").glob(f"{flow}.*.json"):
        if path.stem not in kept:
            path.unlink(missing_ok=True)


def _version(path: Path) -> int | None:
    """The version that a pin holds, with all later ones; None: there is no such pin."""
    try:
        return int(json.loads(path.read_bytes())["version"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return _ALL


def _is_stale(path: Path) -> bool:
    if not path.name.startswith(TEMPORARY):
        return False
    try:
        return time.time() - path.stat().st_mtime > STALE_S
    except OSError:
        return True
