"""Publishing an epoch's files by one atomic rename: staged, made durable, then made visible.

    <path>/epoch=N/part-SSSSS.parquet          published: whole epochs only
    <path>/_staging/<run>/epoch=N/part-...     being made; names with _ are hidden from readers
    <path>/_staging/<run>/writing/...          open files, each under a name of its own
    <path>/_penstock/run.json                  which run may write now, and whose it is
    <path>/_penstock/lock                      held by the driver of that run
    <path>/_penstock/committed.json            the last epoch published

Each run stages in a directory of its own, so a frozen process of an earlier run that wakes up
writes into the void.  What earlier runs staged and did not publish goes over to the next run: a
writer that is restored after such an epoch does not make its part again.  A part that is made twice
(its node was restarted) is made of the same rows, and the second takes the first one's place.

Epochs are published in order; so the greatest published number is how far it got.  The marker adds
what a listing cannot know when old epochs were moved away.  It is written after the rename
is durable: it may claim too little, which publishing again mends, never too much.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from penstock.connectors.ownership import FolderClaim, Owner, taken
from penstock.errors import NotWrittenError, SinkError
from penstock.paths import local_path
from penstock.storage.syncs import make_directory, sync_directory, sync_written

__all__ = ["Staging"]

_EPOCH = re.compile(r"epoch=([0-9]+)\Z")
_NO_RUN = "run"


class Staging:
    """The directory of a sink that publishes epochs; all methods are idempotent."""

    def __init__(self, path: str) -> None:
        self.path = Path(local_path(path, "parquet", SinkError))
        self.run = _NO_RUN
        self.claim = FolderClaim(self.path, f"parquet: {self.path}")

    # -- on the driver, at start -----------------------------------------------------------------

    def check(self) -> None:
        """Refuse a path that cannot be written to; a run that writes there now goes on."""
        try:
            (self.path / "_penstock").mkdir(parents=True, exist_ok=True)
            probe = self.path / "_penstock" / f"probe-{uuid.uuid4().hex}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise SinkError(
                f"parquet: cannot write to {self.path}: {error.strerror or error}; give a path "
                "that this user may write to",
                path=str(self.path),
            ) from error

    def begin(self, owner: Owner | None = None) -> None:
        """Open a new run that goes on with what earlier ones staged; drop what they had not."""
        self.check()
        staged, gone = self.path / "_staging", self.path / f"_staging-{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):
            # At once: a committer of an earlier run must find either all of an epoch or none.
            os.rename(staged, gone)
        owner = owner or Owner(uuid.uuid4().hex)
        self.run = owner.run
        make_directory(self._staged)
        self._take_over()
        sync_directory(self._staged)
        for left in self.path.glob("_staging-*"):
            shutil.rmtree(left, ignore_errors=True)
        self.claim.note(owner)

    def _take_over(self) -> None:
        published = self.committed()
        for place in sorted(self.path.glob("_staging-*/*/epoch=*")):
            found = _EPOCH.match(place.name)
            if found and (published is None or int(found[1]) > published):
                with contextlib.suppress(OSError):  # there already: of a start that was cut short
                    os.rename(place, self._staged / place.name)

    def committed(self) -> int | None:
        """The last epoch that was published, None before the first."""
        try:
            published = [
                int(found[1]) for name in os.listdir(self.path) if (found := _EPOCH.match(name))
            ]
        except FileNotFoundError:
            return None
        try:
            marked = json.loads((self.path / "_penstock" / "committed.json").read_text())
            published.append(int(marked["epoch"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # torn by a power cut, or not there yet: the listing knows enough
        return max(published, default=None)

    # -- in the hosts ----------------------------------------------------------------------------

    def join(self) -> None:
        """Take part in the run that was begun last."""
        self.run = self._begun_last()
        if not self.claim.mark.parent.is_dir():  # to make it again would hide that it was lost
            raise NotWrittenError(f"parquet: {self.path} is gone")
        try:
            make_directory(self._staged / "writing")
        except OSError as error:
            raise NotWrittenError(f"parquet: {self._staged}: {error}") from error

    def still_joined(self) -> bool:
        """Whether the run is still the one that was begun last; makes its folder again if so."""
        mine = self._begun_last() == self.run
        if mine:
            self.join()
        return mine

    def taken(self) -> SinkError:
        """What to say when this run may not write here any more."""
        owner = self.claim.owner()
        if owner is not None:
            return taken(f"parquet: {self.path}", owner)
        return SinkError(
            f"parquet: {self.path} was deleted or replaced while the flow was writing to it: what "
            "was published there is gone. Put it back from a copy and start the flow again, or "
            "begin anew with another folder and a new checkpointLocation",
            path=str(self.path),
        )

    def _begun_last(self) -> str:
        owner = self.claim.owner()
        return _NO_RUN if owner is None else owner.run

    def new_file(self, name: str) -> Path:
        """A file to write, under a name of its own."""
        return self._staged / "writing" / f"{uuid.uuid4().hex}-{name}"

    def stage(self, written: Path, epoch: int, name: str) -> int:
        """Make a written file durable and give it its place in the epoch; returns its size.

        If it cannot be made durable it is removed, and must be written again.
        """
        size = sync_written(written)
        place = self._staged / f"epoch={epoch}"
        try:
            os.rename(written, place / name)
        except FileNotFoundError:
            place.mkdir(exist_ok=True)
            os.rename(written, place / name)
        # A checkpoint says from here on that this part need not be made again.
        sync_directory(place)
        sync_directory(self._staged)
        return size

    # -- in the one node that publishes ----------------------------------------------------------

    def publish(self, epoch: int, names: Iterable[str]) -> bool:
        """Make an epoch visible; False if it already was."""
        staged, public = self._staged / f"epoch={epoch}", self.path / f"epoch={epoch}"
        if public.exists():
            sync_directory(self.path)  # the process that renamed it may have died before this
            self.mark(epoch)
            shutil.rmtree(staged, ignore_errors=True)
            return False
        wanted, there = set(names), set(os.listdir(staged))
        missing = sorted(wanted - there)
        if missing:
            raise SinkError(
                f"parquet: {staged / missing[0]} is gone; does another flow write to {self.path}?",
                path=str(self.path),
            )
        for stale in sorted(there - wanted):
            os.unlink(staged / stale)  # of a run that was killed; this one did not name it
        if there - wanted:
            sync_directory(staged)
        os.rename(staged, public)
        sync_directory(self.path)
        self.mark(epoch)
        return True

    def mark(self, epoch: int) -> None:
        """Remember that everything up to ``epoch`` was published.

        Written over in place, always the same length, within one sector: replacing a file by
        renaming costs half a millisecond on ext4, which flushes the new one first.
        """
        marker = self.path / "_penstock" / "committed.json"
        descriptor = os.open(marker, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, (json.dumps({"epoch": epoch}).ljust(63) + "\n").encode(), 0)
        finally:
            os.close(descriptor)

    def finish(self) -> None:
        """Clear up behind oneself; files that others write, and unpublished epochs, stay."""
        with contextlib.suppress(OSError):  # not empty: a process still writes, or was killed
            (self._staged / "writing").rmdir()
        published = self.committed()
        with contextlib.suppress(OSError):  # not empty, or cleared up by another process
            for name in os.listdir(self._staged):
                found = _EPOCH.match(name)
                if found and published is not None and int(found[1]) <= published:
                    shutil.rmtree(self._staged / name, ignore_errors=True)
            self._staged.rmdir()

    @property
    def _staged(self) -> Path:
        return self.path / "_staging" / self.run
