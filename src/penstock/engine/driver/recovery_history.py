"""The history of a flow's recoveries, for people: who was lost, who restarted, what it took.

The controller's thread writes it and any thread reads it.  So what an entry holds is never changed:
a field is given a new value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core.control.host_reports import RefusalCounts
from penstock.engine.host.clock import now_us

__all__ = ["RecoveryEntry", "RecoveryHistory"]

ENTRIES_MAX = 1000


@dataclass
class RecoveryEntry:
    """One recovery in a flow's history; times are wall clock in microseconds."""

    number: int
    lost: list[str]
    reason: str
    lost_us: int
    restarted: list[str] = field(default_factory=list)
    planned_us: int | None = None
    started_us: int | None = None
    opened_us: int | None = None
    recovered_us: int | None = None
    work: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Per restarted node: seconds to restore its state, to be sent what it needs again, and to
    complete again what it had completed before."""

    host: int | None = None
    """The host that was lost."""
    moved: bool = False
    """Whether the nodes moved to another host on purpose, and no host was lost."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """What was refused of the lost host, which was not dead after all: messages, connections, and,
    by the store, writes of its nodes."""

    @property
    def work_s(self) -> float | None:
        """Restoring and replaying, summed over nodes; None: not all of them have caught up."""
        work = self.work
        caught_up = [name for name, one in work.items() if "replay_s" in one]
        if not self.restarted or not set(caught_up) >= set(self.restarted):
            return None
        keys = ("restore_s", "resend_s", "replay_s")
        return sum(one.get(key, 0.0) for one in work.values() for key in keys)

    def to_dict(self) -> dict[str, Any]:
        """For people and for JSON."""
        return {**vars(self), "work_s": self.work_s}


class RecoveryHistory:
    """The last recoveries, oldest first."""

    def __init__(self) -> None:
        self._entries: deque[RecoveryEntry] = deque(maxlen=ENTRIES_MAX)

    def __iter__(self) -> Iterator[RecoveryEntry]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, lost: list[str], reason: str) -> RecoveryEntry:
        """A recovery begins."""
        number = self._entries[-1].number + 1 if self._entries else 1
        self._entries.append(RecoveryEntry(number, lost, reason, now_us()))
        return self._entries[-1]

    @property
    def unfinished(self) -> list[RecoveryEntry]:
        """The recoveries that are under way."""
        return [entry for entry in self._entries if entry.recovered_us is None]

    # -- what happens ----------------------------------------------------------------------------

    def planned(self, restarted: list[str]) -> None:
        """Nodes are being started; a plan for more losses takes the place of the one before."""
        for entry in self.unfinished:
            entry.planned_us, entry.restarted = now_us(), restarted

    def started(self) -> None:
        """All nodes have started, and edges are being opened."""
        for entry in self.unfinished:
            entry.started_us, entry.opened_us = now_us(), None

    def looked(self, opened: bool, quiet: bool) -> bool:
        """How the flow is now; whether a recovery is over with it."""
        over = False
        for entry in self.unfinished:
            if entry.started_us is not None and entry.opened_us is None and opened:
                entry.opened_us = now_us()
            if entry.opened_us is not None and quiet:
                entry.recovered_us = now_us()
                over = True
        return over

    def worked(self, name: str, **found: float) -> None:
        """What a restarted node has spent, in the newest recovery that restarted it."""
        entry = next((one for one in reversed(self._entries) if name in one.restarted), None)
        if entry is not None and ("replay_s" in found or entry.recovered_us is None):
            before = entry.work.get(name, {})
            summed = {key: before.get(key, 0.0) + value for key, value in found.items()}
            entry.work = {**entry.work, name: {**before, **summed}}

    def refused(self, host: int, counts: RefusalCounts) -> None:
        """Something of a lost host was refused: it was not dead after all."""
        entry = next((one for one in reversed(self._entries) if one.host == host), None)
        if entry is None:  # it had no nodes
            return
        refused = dict(entry.refused)
        for key, count in counts._asdict().items():
            before = refused.get(key, 0)
            if count:
                refused[key] = max(before, count) if key == "writes" else before + count
        entry.refused = refused
