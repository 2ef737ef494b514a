"""Which offsets a shard of a Kafka source has read, and which a replay reads.

Theory of operation
-------------------
A shard reads some partitions of some topics.  Its rows are numbered from 0 in the order in which
they left it; a position is that number and the next offset of each partition.

A replay is asked for rows by their numbers, from a recorded position on, so it must know which
partition each row came from.  With one partition that is clear.  With several it depends on which
broker answered first, so the order is noted, in the journal, before the rows leave: *runs* of
(partition, number of rows), from a row on.  An entry at a row makes void what earlier ones say of
that row and those after it: they were written by an incarnation whose rows nobody has seen.
Entries are ``passing``: none is needed behind a recorded position.

A partition that is *found* while the flow runs is noted with the offset at which its reading
starts, so that "earliest" and "latest" mean the same offset ever after.

What is read again must be the same rows.  Rows that a broker has deleted, or that compaction has
taken away, would shift all that follow: at the newest recorded position the offsets have to agree
with the number of rows, and :meth:`ShardReading.check` says if they do not.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Partition", "Stretch", "ShardReading", "shard_of"]


class Partition(NamedTuple):
    """One partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


class Stretch(NamedTuple):
    """Rows that follow each other and come from one partition."""

    partition: Partition
    rows: int


class _Noted(NamedTuple):
    """A run and the number of its first row."""

    start: int
    run: Stretch


def shard_of(partition: Partition, shards: int) -> int:
    """The shard that reads a partition; those of one topic are dealt out in turn.

    >>> [shard_of(Partition("orders", number), 2) for number in range(4)]
    [0, 1, 0, 1]
    """
    return (zlib.crc32(partition.topic.encode()) + partition.number) % shards


class ShardReading:
    """How far one shard is.

    >>> a, b = Partition("t", 0), Partition("t", 1)
    >>> live = ShardReading(None, [])
    >>> live.found({a: 10, b: 0})
    >>> live.took([Stretch(a, 2), Stretch(b, 1)], {a: 12, b: 1})
    >>> entry = live.take_note()
    >>> again = ShardReading(None, [entry])
    >>> again.next_run(); again.took([Stretch(a, 2)], {a: 12}, new=False); again.next_run()
    Stretch(partition=Partition(topic='t', number=0), rows=2)
    Stretch(partition=Partition(topic='t', number=1), rows=1)
    """

    def __init__(self, position: Mapping[str, Any] | None, journal: Iterable[Any]) -> None:
        self.rows = 0
        """Rows that have left so far."""
        self.offsets: dict[Partition, int] = {}
        """The offset that comes next, of every known partition."""
        self.is_new = True
        """Whether nothing was ever recorded of the shard."""
        self._known_since: dict[Partition, int] = {}
        self._runs: deque[_Noted] = deque()
        self._new_found: list[list[Any]] = []
        self._new_runs: list[Stretch] = []
        self._new_start = 0
        for entry in journal:
            self._recall(entry)
        if position is not None:
            self.is_new = False
            self.rows = position["rows"]
            for topic, number, offset in position["offsets"]:
                self.offsets[Partition(topic, number)] = offset
                self._known_since.setdefault(Partition(topic, number), 0)

    def _recall(self, entry: Mapping[str, Any]) -> None:
        self.is_new = False
        for topic, number, offset, row in entry.get("found", ()):
            partition = Partition(topic, number)
            self.offsets[partition] = offset
            self._known_since[partition] = row
        if "runs" not in entry:
            return
        start = entry["row"]
        while self._runs and self._runs[-1].start + self._runs[-1].run.rows > start:
            last = self._runs.pop()
            if last.start < start:
                self._runs.append(
                    _Noted(last.start, Stretch(last.run.partition, start - last.start))
                )
                break
        for topic, number, rows in entry["runs"]:
            self._runs.append(_Noted(start, Stretch(Partition(topic, number), rows)))
            start += rows

    # -- partitions ------------------------------------------------------------------------------

    def found(self, starts: Mapping[Partition, int]) -> None:
        """Read these partitions, too, from these offsets; those that are known stay as they are."""
        for partition in sorted(starts.keys() - self.offsets.keys()):
            self.offsets[partition] = starts[partition]
            self._known_since[partition] = self.rows
            self._new_found.append([*partition, starts[partition], self.rows])

    # -- reading ---------------------------------------------------------------------------------

    def took(
        self, runs: Sequence[Stretch], offsets: Mapping[Partition, int], new: bool = True
    ) -> None:
        """These rows leave next, and these are the offsets after them; not ``new``: once more."""
        if new:
            if not self._new_runs:
                self._new_start = self.rows
            self._new_runs += runs
        self.rows += sum(run.rows for run in runs)
        self.offsets.update(offsets)

    def next_run(self) -> Stretch | None:
        """Where the next rows come from that are read again; None: that was not noted.

        The number of rows is an upper limit.
        """
        while self._runs and self._runs[0].start + self._runs[0].run.rows <= self.rows:
            self._runs.popleft()
        first = self._runs[0] if self._runs else None
        if first is not None and first.start <= self.rows:
            return Stretch(first.run.partition, first.start + first.run.rows - self.rows)
        known = [partition for partition, row in self._known_since.items() if row <= self.rows]
        if len(known) != 1:
            return None
        later = [row for row in self._known_since.values() if row > self.rows]
        if first is not None:
            later.append(first.start)
        return Stretch(known[0], min(later, default=1 << 62) - self.rows)

    def take_note(self) -> dict[str, Any] | None:
        """What must be durable before the rows leave that were taken since the last call."""
        note: dict[str, Any] = {}
        if self._new_runs and len(self.offsets) > 1:
            note = {"row": self._new_start, "passing": True}
            note["runs"] = [[*run.partition, run.rows] for run in _joined(self._new_runs)]
        if self._new_found or self.is_new:
            note |= {"found": self._new_found, "passing": False}
        self._new_runs, self._new_found, self.is_new = [], [], False
        return note or None

    def position(self) -> dict[str, Any]:
        """Where it is, as JSON."""
        offsets = [[*partition, self.offsets[partition]] for partition in sorted(self.offsets)]
        return {"rows": self.rows, "offsets": offsets}

    def check(self, recorded: Mapping[str, Any] | None) -> dict[Partition, tuple[int, int]]:
        """The partitions that are not where they were after as many rows: (recorded, now)."""
        if recorded is None or recorded["rows"] != self.rows:
            return {}
        return {
            Partition(topic, number): (offset, now)
            for topic, number, offset in recorded["offsets"]
            if (now := self.offsets.get(Partition(topic, number), offset)) != offset
        }


def _joined(runs: Sequence[Stretch]) -> list[Stretch]:
    """The same rows in as few runs as possible."""
    joined: list[Stretch] = []
    for run in runs:
        if joined and joined[-1].partition == run.partition:
            joined[-1] = Stretch(run.partition, joined[-1].rows + run.rows)
        else:
            joined.append(run)
    return joined
