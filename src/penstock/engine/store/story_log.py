"""``story.log`` of a flow's store: what happened in its recoveries, line by line, for people.

Lines are written by a thread of their own, so that a slow store holds up no recovery.  Nothing is
synced, and nothing depends on the file: a line that cannot be written is left out.  The file is
bounded: when it is full, its newer half is kept.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

from penstock.engine.store.logs import StoreLog
from penstock.errors import PenstockError, SettingsError
from penstock.storage import StoreLike

__all__ = ["STORY", "StoryLine", "StoryLog", "read_story", "told_recoveries"]

log = logging.getLogger(__name__)

STORY = "story.log"
BYTES_MAX = 1 << 20
CLOSE_S = 5.0
STEPS = {
    "fenced": "fence",
    "planned": "plan",
    "started": "start",
    "opened": "open",
    "recovered": "replay",
}
"""What the end of each step of a recovery is called, in order, and the step itself."""


class StoryLine(NamedTuple):
    """One thing that happened."""

    at_us: int
    cause: int | None
    """The number of the membership event that led to it; None: a person's request, or a node's."""
    round: int
    """The number of the fence that it belongs to."""
    step: str
    """``begin`` (the flow starts), ``lost``, the end of a step (:data:`STEPS`), or ``note``."""
    text: str


class StoryLog:
    """Writes lines, in the order in which they are added."""

    def __init__(self, store: StoreLike, bytes_max: int = BYTES_MAX) -> None:
        self._log = StoreLog.of(store, STORY, sync=False)
        self._bytes_max = bytes_max
        self._lines: queue.SimpleQueue[StoryLine | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failed = False

    def add(self, line: StoryLine) -> None:
        """Have a line written soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="story", daemon=True)
            self._thread.start()
        self._lines.put(line)

    def close(self) -> None:
        """Write what was added, and end; a store that does not answer is waited for in vain."""
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(CLOSE_S)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._write(line._asdict())
                self._failed = False
            except (OSError, PenstockError) as error:
                if not self._failed:
                    log.warning("the story of recoveries cannot be written: %s", error)
                self._failed = True
        self._log.close()

    def _write(self, record: dict[str, Any]) -> None:
        try:
            self._log.append(record)
        except SettingsError as error:  # the machine crashed, and more than the last line is torn
            log.warning("%s; it is begun anew", error.message)
            self._log.replace([record])
        if self._log.size_bytes > self._bytes_max:
            self._log.replace(_newer_half(self._log.read(), self._log.size_bytes // 2))


def _newer_half(records: list[dict[str, Any]], bytes_max: int) -> list[dict[str, Any]]:
    """As many of the newest records as have about this size."""
    size, first = 0, len(records)
    while first and size < bytes_max:
        first -= 1
        size += len(str(records[first]))
    return records[first:]


def read_story(store: StoreLike) -> list[StoryLine]:
    """All lines, oldest first; empty where there is no story."""
    return [StoryLine(**record) for record in StoreLog.of(store, STORY).read()]


def told_recoveries(lines: Iterable[StoryLine]) -> list[dict[str, Any]]:
    """The lines grouped by recovery, oldest first, with what each step took.

    A recovery lasts from a loss until all nodes have recovered; further losses and nodes that join
    give it further rounds.  What nodes say later belongs to it, too.

    >>> lines = [StoryLine(1000, 7, 2, "lost", "host 1 was lost")]
    >>> lines += [StoryLine(3500, 7, 2, "recovered", "all nodes have recovered")]
    >>> [told] = told_recoveries(lines)
    >>> told["rounds"], told["recovered"], told["took_ms"], told["steps_ms"]
    ([2], True, 2.5, {'replay': 2.5})
    """
    groups: list[list[StoryLine]] = []
    over = True
    for line in lines:
        later = not groups or line.round > groups[-1][-1].round
        if line.step == "begin" or (over and later):
            groups.append([])
            over = False
        groups[-1].append(line)
        over = over or line.step == "recovered"
    return [_told(group) for group in groups]


def _told(lines: list[StoryLine]) -> dict[str, Any]:
    begun_us = lines[0].at_us
    ends = {line.step: line.at_us for line in lines if line.step in STEPS}
    steps_ms: dict[str, float] = {}
    before_us = begun_us
    for end, step in STEPS.items():
        if end in ends and ends[end] >= before_us:
            steps_ms[step] = (ends[end] - before_us) / 1000
            before_us = ends[end]
    recovered_us = ends.get("recovered")
    return {
        "rounds": sorted({line.round for line in lines}),
        "begun_us": begun_us,
        "lost": lines[0].step == "lost",
        "recovered": recovered_us is not None,
        "took_ms": None if recovered_us is None else (recovered_us - begun_us) / 1000,
        "steps_ms": steps_ms,
        "lines": [{"ms": (line.at_us - begun_us) / 1000, **line._asdict()} for line in lines],
    }
