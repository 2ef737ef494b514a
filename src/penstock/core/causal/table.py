"""The execution replay table of the thesis (Section 3.3), with integer times: the reference.

Penstock replays over dense times (:mod:`..replay`); the table stays because the thesis explains the
problem with it, and to compare with.  Columns are the integer times from the first to the last
target, rows are parents.  An entry in row A, column t says that A's message makes output t.

Finding a table is scheduling unit jobs on one machine: a message may go from its release (after the
positions of its recipients, after its predecessors in the row) to its deadline (before the next
target of its row).  Propagating both along the rows and taking the earliest deadline first finds a
table whenever there is one, in n log n steps; the thesis tries all.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Pending", "is_valid", "solve"]

Key = tuple[str, int]
"""A parent and its time."""


@dataclass(frozen=True)
class Pending:
    """A buffered message of a parent, and who would get its output."""

    parent: str
    time: int
    children: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """The parent and its time."""
        return self.parent, self.time


def windows(
    pending: Sequence[Pending], targets: Mapping[int, Key], resume: Mapping[str, int], first: int
) -> dict[Key, tuple[int, int | None]]:
    """The columns that each message may take: from, and up to (None: no bound, it may wait).

    ``resume`` is the time at which each child resumes, ``first`` the first column.
    """
    column = {key: at for at, key in targets.items()}
    found: dict[Key, tuple[int, int | None]] = {}
    rows: dict[str, list[Pending]] = {}
    for message in sorted(pending, key=lambda m: m.key):
        rows.setdefault(message.parent, []).append(message)
    for row in rows.values():
        release = first
        for message in row:
            release = max([release, *(resume[child] for child in message.children)])
            at = column.get(message.key)
            if at is not None:
                release = at
            found[message.key] = (release, None)
            release += 1
        deadline: int | None = None
        for message in reversed(row):
            at = column.get(message.key)
            if at is not None:
                deadline = at
            start, _ = found[message.key]
            if not message.children and at is None:
                start = min(start, first)
            found[message.key] = (start, deadline)
            if deadline is not None:
                deadline -= 1
    return found


def solve(
    pending: Iterable[Pending], targets: Mapping[int, Key], resume: Mapping[str, int], first: int
) -> dict[int, Key] | None:
    """A table (column to entry) that satisfies the three constraints, or None.

    Messages that no target needs may be discarded; messages without a later target in their row
    wait.
    """
    sent = [m for m in pending if m.children or m.key in set(targets.values())]
    found = windows(sent, targets, resume, first)
    last = max(targets, default=first - 1)
    jobs = sorted(
        (start, end, key)
        for key, (start, end) in found.items()
        if end is not None and key not in set(targets.values())
    )
    table: dict[int, Key] = dict(targets)
    ready: list[tuple[int, Key]] = []
    at = first
    position = 0
    while at <= last:
        while position < len(jobs) and jobs[position][0] <= at:
            _, end, key = jobs[position]
            heapq.heappush(ready, (end, key))
            position += 1
        if at not in targets and ready:
            end, key = heapq.heappop(ready)
            if end < at:
                return None
            table[at] = key
        at += 1
    if ready or position < len(jobs):
        return None
    return table if is_valid(table, sent, targets, resume) else None


def is_valid(
    table: Mapping[int, Key],
    pending: Iterable[Pending],
    targets: Mapping[int, Key],
    resume: Mapping[str, int],
) -> bool:
    """Monotonicity, Regularity and Eventuality (Section 3.3.1)."""
    messages = {message.key: message for message in pending}
    if any(table.get(at) != key for at, key in targets.items()):
        return False
    if len(set(table.values())) != len(table):
        return False
    newest: dict[str, int] = {}
    for at in sorted(table):
        parent, time = table[at]
        if newest.get(parent, -1) >= time:
            return False
        newest[parent] = time
        message = messages.get(table[at])
        if message is None:
            return False
        if at not in targets and any(at < resume[child] for child in message.children):
            return False
    placed = set(table.values())
    for parent, time in newest.items():
        for key, message in messages.items():
            if key[0] == parent and key[1] < time and key not in placed and message.children:
                return False
    return True
