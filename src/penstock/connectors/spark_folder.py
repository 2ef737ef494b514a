"""The folder of a stage that runs Spark jobs: epochs that wait, work in hand, results.

    <path>/input/epoch=N/part-SSSSS.parquet   completed epochs, published by the sink in front
    <path>/begun.json                         the range of epochs that was handed over last
    <path>/work/<run>/F-L/                    what one attempt reads and writes, private to it
    <path>/kept/F-L/part-....parquet          their rows, where later jobs are given them again
    <path>/results/F-L/part-....parquet       what became of epochs F to L: whole results only
    <path>/ended.json                         the input is used up, and this is the last result

A range of epochs is durable before a job sees it and keeps its bounds until it has a result.  A
result is published by one rename, named by its range, and the newest one always stays.  So the
names alone say what is done: a driver that is started again runs the range that has no result, and
no other, and an outcome that was visible is never replaced by another.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from penstock.storage.syncs import sync_directory, sync_written, write_durably

__all__ = ["Range", "StageFolder"]

_EPOCH = re.compile(r"epoch=([0-9]+)\Z")
_RANGE = re.compile(r"([0-9]+)-([0-9]+)\Z")


class Range(NamedTuple):
    """Epochs that are handed over together.

    >>> Range(3, 12).name
    '3-12'
    """

    first: int
    last: int

    @property
    def name(self) -> str:
        """The name of what belongs to it."""
        return f"{self.first}-{self.last}"


class StageFolder:
    """What a stage with Spark jobs keeps; every step can be repeated after a crash."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.input = self.path / "input"

    # -- what waits ------------------------------------------------------------------------------

    def epochs(self) -> dict[int, Path]:
        """The epochs that are there, in order; those without rows have no folder."""
        found = {int(m[1]): name for name in _names(self.input) if (m := _EPOCH.match(name))}
        return {epoch: self.input / found[epoch] for epoch in sorted(found)}

    def has_after(self, epoch: int) -> bool:
        """Whether there are rows of later epochs."""
        return max(self.epochs(), default=-1) > epoch

    def waiting_bytes(self) -> int:
        """The size of the epochs that no result covers."""
        done = self.done()
        parts = (p for e, folder in self.epochs().items() if e > done for p in _files(folder))
        return sum(_size(part) for part in parts)

    def forget(self, before: int) -> None:
        """Delete the epochs before this one; no job will need them."""
        self._drop(range(before))

    def keep(self, epochs: Range, merged: Path) -> None:
        """Put one folder in the place of those of a range's epochs."""
        if not self._place("kept", epochs, merged):
            shutil.rmtree(merged, ignore_errors=True)
        self._drop(range(epochs.first, epochs.last + 1))

    def kept(self) -> list[Range]:
        """The ranges whose rows are merged."""
        return self._ranges("kept")

    def _drop(self, epochs: range) -> None:
        for epoch, folder in self.epochs().items():
            if epoch in epochs:
                shutil.rmtree(folder, ignore_errors=True)

    # -- ranges ----------------------------------------------------------------------------------

    def begun(self) -> Range | None:
        """The range that was handed over and has no result yet."""
        try:
            record = json.loads((self.path / "begun.json").read_text())
        except FileNotFoundError:
            return None
        found = Range(record["first"], record["last"])
        return found if found.last > self.done() else None

    def begin(self, epochs: Range) -> None:
        """Fix a range, before any job works on it."""
        write_durably(self.path / "begun.json", json.dumps(epochs._asdict()).encode())

    def done(self) -> int:
        """The last epoch that has a result, -1 before the first."""
        results = self.results()
        return results[-1].last if results else -1

    # -- work in hand ----------------------------------------------------------------------------

    def begin_run(self) -> None:
        """Drop what earlier runs had in hand: what they still write has no place to go."""
        for part in ("input", "results"):
            (self.path / part).mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.path / "work", ignore_errors=True)
        for kept in self.kept():
            self._drop(range(kept.first, kept.last + 1))
        (self.path / "ended.json").unlink(missing_ok=True)

    def workplace(self, run: str, epochs: Range, since: int) -> tuple[Path, Path]:
        """Two folders of an attempt: the rows from ``since`` on, all side by side; and the result.

        One folder of links, because Spark starts a job just to list many.
        """
        place = self.path / "work" / run / epochs.name
        shutil.rmtree(place, ignore_errors=True)
        rows = place / "rows"
        rows.mkdir(parents=True)
        kept = [found for found in self.kept() if found.last >= since]
        for found in kept:
            for part in _files(self.path / "kept" / found.name):
                _link(part, rows / f"{found.first:012d}-kept-{part.name}")
        for epoch, folder in self.epochs().items():
            if since <= epoch <= epochs.last and not any(
                found.first <= epoch <= found.last for found in kept
            ):
                for part in _files(folder):
                    _link(part, rows / f"{epoch:012d}-{part.name}")
        return rows, place / "result"

    def publish(self, epochs: Range, made: Path) -> bool:
        """Make a result durable, then visible; False if this range had one already."""
        if not self._place("results", epochs, made):
            return False
        shutil.rmtree(made.parent, ignore_errors=True)
        return True

    def _place(self, where: str, epochs: Range, made: Path) -> bool:
        """Make a folder of files durable and give it its name; False if there is such a one."""
        for part in list(made.iterdir()):
            if part.suffix == ".parquet":
                sync_written(part)
            else:
                part.unlink()  # what Spark leaves beside its files
        sync_directory(made)
        place = self.path / where / epochs.name
        if place.exists():
            sync_directory(place.parent)
            return False
        place.parent.mkdir(exist_ok=True)
        os.rename(made, place)
        sync_directory(place.parent)
        return True

    # -- results ---------------------------------------------------------------------------------

    def results(self) -> list[Range]:
        """The ranges with a result, in order."""
        return self._ranges("results")

    def _ranges(self, where: str) -> list[Range]:
        names = _names(self.path / where)
        return sorted(Range(int(m[1]), int(m[2])) for name in names if (m := _RANGE.match(name)))

    def parts(self, epochs: Range) -> list[Path]:
        """The files of a result, in order."""
        return _files(self.path / "results" / epochs.name)

    def release(self, after: int) -> None:
        """Everything up to this epoch's result was read and used; the newest result stays."""
        for found in self.results()[:-1]:
            if found.last <= after:
                shutil.rmtree(self.path / "results" / found.name, ignore_errors=True)

    def end(self, last: int) -> None:
        """Say that no result will come after this epoch's, in this run."""
        write_durably(self.path / "ended.json", json.dumps({"last": last}).encode())

    def ended(self) -> int | None:
        """The last result of the run, once that is known."""
        try:
            return int(json.loads((self.path / "ended.json").read_text())["last"])
        except FileNotFoundError:
            return None


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return os.listdir(folder)
    return []


def _files(folder: Path) -> list[Path]:
    return sorted(folder / name for name in _names(folder) if name.endswith(".parquet"))


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
