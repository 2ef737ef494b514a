"""Files of the simulated store that end within a record, read by the engine's own logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from random import Random

from penstock.core.causal.diffs import Diff
from penstock.core.causal.reports import Cut
from penstock.engine.store.durable.determinants import DeterminantLog
from penstock.engine.store.logs import StoreLog

__all__ = ["MemoryFile", "torn_cuts", "torn_determinants"]


class MemoryFile:
    """An append file in memory."""

    def __init__(self, name: str, data: bytes = b"") -> None:
        self.path = PurePath(name)
        self.data = data

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return len(self.data)

    def read(self) -> bytes:
        """All of it."""
        return self.data

    def open(self) -> None:
        """Nothing to do."""

    def append(self, data: bytes, sync: bool = True) -> None:
        """Add to the end."""
        self.data += data

    def replace(self, data: bytes) -> None:
        """Put something else in its place."""
        self.data = data

    def close(self) -> None:
        """Nothing to do."""

    def reserve(self, owner: str) -> None:
        """Nothing to do: there is one owner."""

    def revoke(self) -> None:
        """Nothing to do."""

    def tear(self, whole: int, random: Random) -> None:
        """Lose the end of what follows the first ``whole`` bytes, but not all of it."""
        self.data = self.data[: random.randint(whole + 1, len(self.data) - 1)]


def torn_cuts(cuts: Sequence[Cut], last: Cut, random: Random) -> list[Cut]:
    """What a log of cuts reads as when the machine failed while the last one was written."""
    file = MemoryFile("cuts.log")
    log = StoreLog(file)
    for cut in cuts:
        log.append(cut._asdict())
    whole = file.size_bytes
    log.append(last._asdict())
    file.tear(whole, random)
    return [Cut(**record) for record in log.read()]


def torn_determinants(
    determinants: Sequence[Diff], last: Sequence[Diff], random: Random
) -> list[Diff]:
    """What a log of determinants reads as when the machine failed during the last append."""
    file = MemoryFile("determinants.log")
    log = DeterminantLog(file)
    for diff in determinants:
        log.append([diff])
    whole = file.size_bytes
    log.append(last)
    file.tear(whole, random)
    return list(log.read()[1])
