"""Durable logs: append-only files of JSON records, each with a checksum.

A record is one line, ``crc32 json``, and is durable when ``append`` returns.  A crash can tear only
the record that was being appended: it was never relied on, so it is dropped and the next append
writes over it.  Anything else that does not check is damage, and is refused rather than guessed at.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Self

from penstock.core.progress.marks import EPOCH_END
from penstock.errors import PeerError, SettingsError, SourceError
from penstock.storage import AppendFile, StoreLike, storage_of, sync_directory, write_durably
from penstock.storage.append_file import LocalAppendFile

__all__ = [
    "BoundaryLog",
    "CommitLog",
    "ResumePoint",
    "StoreLog",
    "newest_position",
    "refuse_forgotten",
    "seen_epoch",
    "sync_directory",
    "write_durably",
]

Record = dict[str, Any]

TRIES = 10
_FENCE_ONLY = {"epoch", "seen", "fence"}
_COMMITS_BYTES_MAX = 1 << 20


class StoreLog:
    """An append-only file of JSON records, each with a checksum.

    >>> import tempfile
    >>> log = StoreLog(Path(tempfile.mkdtemp()) / "example.log")
    >>> log.append({"epoch": 3})
    >>> log.read()
    [{'epoch': 3}]
    >>> log.close()
    """

    def __init__(self, file: Path | AppendFile, sync: bool = True) -> None:
        self._file: AppendFile = (
            LocalAppendFile(file, sync, _whole) if isinstance(file, Path) else file
        )

    @classmethod
    def of(cls, store: StoreLike, name: str, sync: bool = True) -> Self:
        """A log of a flow's store."""
        return cls(storage_of(store).log(name, sync, _whole))

    def exists(self) -> bool:
        """Whether anything was ever written."""
        try:
            self._file.read()
        except FileNotFoundError:
            return False
        return True

    @property
    def path(self) -> PurePath:
        """What to call it."""
        return self._file.path

    @property
    def size_bytes(self) -> int:
        """Its size, as far as it was written."""
        return self._file.size_bytes

    def read(self) -> list[Record]:
        """Every whole record, oldest first; a torn last one is left out."""
        try:
            data = self._file.read()
        except FileNotFoundError:
            return []
        return _parse(data, self.path)[0]

    def append(self, record: Record, sync: bool = True) -> None:
        """Add a record; returns when it is durable, without ``sync`` only if processes crash."""
        self._file.append(_line(record), sync)

    def replace(self, records: Sequence[Record]) -> None:
        """Put other records in the place of all there are, at once and durably."""
        self._file.replace(b"".join(map(_line, records)))

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        self._file.close()


@dataclass(frozen=True)
class ResumePoint:
    """Where one shard of a source goes on, and what it must read again first."""

    position: Any = None
    """The end of the last epoch that need not be repeated; None: the beginning."""
    journal: tuple[Any, ...] = ()
    """Every journal entry ever recorded, oldest first."""
    replay: tuple[Record, ...] = ()
    """The records of the epochs to repeat, in order."""
    watermark_us: int | None = None
    """The watermark at ``position``, if one was recorded."""


class BoundaryLog(StoreLog):
    """The epochs' ends of one shard of a source.

    A record has ``epoch`` and ``position``, and where it applies ``journal``, ``watermark_us`` and
    what a restart of the shard needs (``offset``, ``state``).  One without a position has a journal
    entry that could not wait for the end of its epoch.
    The first record of a compacted log stands for all that it replaced, with their ``journals``.
    """

    def __init__(
        self,
        store: StoreLike,
        source_name: str,
        shard: int,
        sync: bool = True,
    ) -> None:
        self._incarnation: int | None = None
        self._claimed = False
        name = f"sources/{source_name}/shard-{shard:05d}.log"
        super().__init__(storage_of(store).log(name, sync, _whole))

    def resume(self, after_epoch: int | None) -> ResumePoint:
        """Where to go on when every epoch up to ``after_epoch`` is published (None: none is)."""
        done, replay, journal = self._split(after_epoch)
        if done is None and after_epoch is not None:
            refuse_forgotten(replay, after_epoch, self.path)
        return ResumePoint(
            position=done["position"] if done else None,
            journal=tuple(journal),
            replay=tuple(r for r in replay if "position" in r and r["epoch"] < EPOCH_END),
            watermark_us=done.get("watermark_us") if done else None,
        )

    def compact(self, after_epoch: int | None) -> None:
        """Put one record in the place of those up to ``after_epoch``.

        Of their journal entries only ``passing`` ones before the last position are dropped.
        """
        self._check_claim()
        records = self.read()
        compacted = _compacted(records, after_epoch)
        if len(compacted) < len(records):
            self._claimed = False  # the next append opens another file
            try:
                self.replace(compacted)
            except FileNotFoundError as error:
                raise PeerError(
                    f"{self.path} was taken over by another incarnation of its source while this "
                    "one compacted it: this one must stop"
                ) from error

    def append(self, record: Record, sync: bool = True) -> None:
        """Add a record; who has claimed the log does so again whenever it is opened again."""
        if self._incarnation is not None and not self._claimed:
            self.claim(self._incarnation)
        try:
            super().append(record, sync)
        except OSError:
            self._claimed = False
            raise

    def take_over(
        self,
        after_epoch: int | None,
        ended: bool = False,
        reached: int = -1,
        fence: int = 0,
    ) -> list[Record]:
        """Compact into a file that no earlier process has open, and give its records.

        What an earlier process still appends goes into the old file, which is not read; one that
        has claimed the log finds that out as it appends, and must not act on it.  That a stream had
        ended counts only as long as its run does (``ended``); what remains of it is how far the
        others have ``reached`` without it.  Incarnations before ``fence`` may not :meth:`claim` it
        any more.
        """
        for _ in range(TRIES):
            try:
                return self._take_over(after_epoch, ended, reached, fence)
            except PeerError:
                continue  # it wrote something just now: once more
        raise PeerError(f"{self.path} is being written to by another process all the time")

    def claim(self, incarnation: int) -> None:
        """Open it for an incarnation of a source, unless a later one was fenced off from it.

        It is opened before the fence is looked for: what is opened before a fence comes is the old
        file, which is not read any more.  So is what a compaction needs: a fence takes it away.
        """
        self._incarnation = incarnation
        self._file.open()
        self._file.reserve(str(incarnation))
        self._check_claim()
        self._claimed = True

    def fence(self) -> int:
        """The least incarnation that may claim it."""
        return max((record.get("fence", 0) for record in self.read()), default=0)

    def _check_claim(self) -> None:
        if self._incarnation is None:
            return
        newest = self.fence()
        if newest > self._incarnation:
            raise PeerError(
                f"{self.path} belongs to incarnation {newest} of its source: incarnation "
                f"{self._incarnation} was replaced and must stop"
            )

    def _take_over(
        self, after_epoch: int | None, ended: bool, reached: int, fence: int
    ) -> list[Record]:
        found = self.read()
        if not ended and any(r["epoch"] >= EPOCH_END for r in found):
            found = [r for r in found if r["epoch"] < EPOCH_END]
            seen = max(reached, seen_epoch(found))
            found.append({"epoch": seen, "seen": seen})
        records = _compacted(found, after_epoch)
        if fence:
            seen = seen_epoch(records)
            fence = max(fence, *(record.get("fence", 0) for record in records), 0)
            records = [r for r in records if not r.keys() <= _FENCE_ONLY]
            records.append({"epoch": seen, "seen": seen, "fence": fence})
        if self.exists():  # also if it is empty: an earlier process may have it open
            self._replace_for_good(records)
        elif records:
            self._file.open()  # makes its folder
            self._replace_for_good(records)
        return records

    def _replace_for_good(self, records: list[Record]) -> None:
        """Replace the log, and let no earlier process that is compacting it replace it again."""
        self.replace(records)
        self._file.revoke()
        if self.read() != records:
            raise PeerError(f"{self.path} was replaced by an earlier process at this moment")

    def _split(self, after_epoch: int | None) -> tuple[Record | None, list[Record], list[Any]]:
        records = self.read()
        done = [record for record in records if _is_done(record, after_epoch)]
        ends = [record for record in done if "position" in record]
        return ends[-1] if ends else None, records[len(done) :], _journal(records)


def _compacted(records: Sequence[Record], after_epoch: int | None) -> list[Record]:
    past = [record for record in records if _is_done(record, after_epoch)]
    ends = [record for record in past if "position" in record]
    if len(past) < 2 or not ends:
        return list(records)
    base = {key: value for key, value in ends[-1].items() if key not in ("journal", "journals")}
    base["seen"] = seen_epoch(past)
    fence = max(record.get("fence", 0) for record in past)
    if fence:
        base["fence"] = fence
    cut = max(place for place, record in enumerate(past) if "position" in record)
    journals = [entry for entry in _journal(past[: cut + 1]) if not _passes(entry)]
    return [{**base, "journals": journals + _journal(past[cut + 1 :])}, *records[len(past) :]]


def _passes(entry: Any) -> bool:
    """Whether a journal entry is not needed behind the next position."""
    return isinstance(entry, dict) and entry.get("passing") is True


def refuse_forgotten(records: Sequence[Record], completed: int, path: PurePath) -> None:
    """Refuse to go back behind the record that stands for all before it.

    Called when no cut at or before ``completed`` is found: without any it is the beginning.
    """
    first = records[0] if records else {}
    if "journals" in first and first["epoch"] > completed:
        raise SourceError(
            f"{path}: the source would have to be read again from before the end of epoch "
            f"{first['epoch']}, its oldest cut, to go on after epoch {completed}: something in "
            "the store is older than what was acknowledged, so it was damaged or copied back in "
            "part. Restore the whole checkpointLocation from one copy, or start with a new one",
            epoch=first["epoch"],
            completed=completed,
        )


def seen_epoch(records: Sequence[Record]) -> int:
    """The newest epoch that a log of boundaries knows of, though its record may be gone."""
    return max((int(record.get("seen") or record["epoch"]) for record in records), default=-1)


def newest_position(records: Sequence[Record]) -> Any:
    """The last position that a log of boundaries has; None: it has none."""
    return next((r["position"] for r in reversed(records) if "position" in r), None)


class CommitLog(StoreLog):
    """The last completed epoch of a sink; grows a little and is cut back."""

    def last(self) -> int | None:
        """The last epoch recorded, None before the first."""
        records = self.read()
        return records[-1]["epoch"] if records else None

    def commit(self, epoch: int) -> None:
        """Record that every epoch up to this one is complete at the sink."""
        if self.size_bytes > _COMMITS_BYTES_MAX:
            self.replace([{"epoch": epoch}])
        else:
            self.append({"epoch": epoch})


def _line(record: Record) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _whole(data: bytes, path: PurePath) -> int:
    """The length of a log's whole records."""
    return _parse(data, path)[1]


def _parse(data: bytes, path: PurePath) -> tuple[list[Record], int]:
    """The whole records and where the last one ends."""
    records: list[Record] = []
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        record = _record(data[start:end]) if end >= 0 else None
        if record is None:
            # One append is one line without a NUL.  What a crash left of the last one lacks its
            # end, or has holes; a whole line that does not check is damage.
            torn = end < 0 or (end == len(data) - 1 and b"\0" in data[start:end])
            if torn:
                break
            raise SettingsError(
                f"{path} is damaged at byte {start}: a record does not match its checksum. "
                "Restore the file from a copy, or start with a new checkpointLocation",
                path=str(path),
                offset=start,
            )
        records.append(record)
        start = end + 1
    return records, start


def _record(line: bytes) -> Record | None:
    checksum, _, text = line.partition(b" ")
    try:
        if len(checksum) != 8 or int(checksum, 16) != zlib.crc32(text):
            return None
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _is_done(record: Record, after_epoch: int | None) -> bool:
    return after_epoch is not None and record["epoch"] <= after_epoch


def _journal(records: Sequence[Record]) -> list[Any]:
    entries: list[Any] = []
    for record in records:
        entries += record.get("journals", ())
        if record.get("journal") is not None:
            entries.append(record["journal"])
    return entries
