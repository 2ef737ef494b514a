"""When the epochs of a lane are complete at a role, told by its parcels alone.

Every read of a lane sends one parcel along each way, with or without rows.  Each says which epoch
the read belongs to, with which number that epoch began, whether it ended there, which epoch came
before, and what the watermark was then.  So any player of a role, from whatever epoch on, knows
without asking: an epoch is complete when the one before it is, and all its numbers have come on all
ways.

A sink publishes an epoch when it is complete in all lanes, and is done with its parcels then.  Its
watermark is the least of the lanes', whoever plays the role: a lane that a new player has heard
nothing of since the last published epoch counts with the watermark that it had by then.  The end of
the stream is no epoch to go on after: what a player has written of it counts no more when another
one plays the role, who therefore keeps its parcels and ends, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.core.delivery.ids import Lane, ParcelId
from penstock.core.progress.marks import EPOCH_END, Completion, MarkAligner

__all__ = ["LaneEpochs", "LaneRead", "SinkEpochs"]


class LaneRead(NamedTuple):
    """Where a read of a source is among the epochs of its lane."""

    epoch: int
    first: int
    """The number of the first read of the epoch."""
    last: bool
    """Whether the epoch ended with this read."""
    previous: int
    """The lane's epoch before this one."""
    previous_us: int | None
    """The watermark after that one."""
    watermark_us: int | None
    """The watermark after this epoch, where it has ended."""


@dataclass
class _Epoch:
    first: int
    previous: int
    previous_us: int | None
    last: int | None = None
    whole: int = 0
    """Numbers that have come on all ways."""
    watermark_us: int | None = None


class LaneEpochs:
    """The epochs of one lane at one role; what was published before counts as complete.

    >>> lane = LaneEpochs(ways=2, completed=4)
    >>> five = LaneRead(epoch=5, first=7, last=True, previous=3, previous_us=8, watermark_us=10)
    >>> lane.came(7, five), lane.came(7, five), lane.before_us
    ([], [(5, 10)], 8)
    >>> lane.came(9, LaneRead(6, first=8, last=True, previous=5, previous_us=10, watermark_us=20))
    []
    >>> lane.missing(floor=7), lane.missing(floor=8)
    (None, 8)
    """

    def __init__(self, ways: int, completed: int) -> None:
        self.completed = completed
        self.before_us: int | None = None
        """The lane's watermark where it began, known when its first epoch is complete."""
        self._begun = False
        self._ways = ways
        self._came: dict[int, int] = {}
        self._epochs: dict[int, _Epoch] = {}

    def came(self, number: int, read: LaneRead) -> list[tuple[int, int | None]]:
        """One parcel of a read; gives the epochs that are complete now, with their watermarks."""
        if read.epoch <= self.completed:
            return []
        found = self._epochs.get(read.epoch)
        if found is None:
            found = _Epoch(read.first, read.previous, read.previous_us)
            self._epochs[read.epoch] = found
        came = self._came[number] = self._came.get(number, 0) + 1
        found.whole += came == self._ways
        if read.last:
            found.last, found.watermark_us = number, read.watermark_us
        return self._complete()

    def _complete(self) -> list[tuple[int, int | None]]:
        done: list[tuple[int, int | None]] = []
        while self._epochs:
            epoch = min(self._epochs)
            found = self._epochs[epoch]
            if found.previous > self.completed or found.last is None:
                break
            if found.whole <= found.last - found.first:
                break
            for number in range(found.first, found.last + 1):
                del self._came[number]
            del self._epochs[epoch]
            if not self._begun:
                self._begun, self.before_us = True, found.previous_us
            self.completed = epoch
            done.append((epoch, found.watermark_us))
        return done

    def missing(self, floor: int) -> int | None:
        """A number that is needed and at or before a floor, so that it will never come."""
        if not self._epochs:
            return None
        found = self._epochs[min(self._epochs)]
        if found.previous > self.completed:
            needed = found.first - 1  # the epoch before it: of that nothing has come
        else:
            needed = found.first
            while self._came.get(needed) == self._ways and needed != found.last:
                needed += 1
        return needed if needed <= floor and self._came.get(needed) != self._ways else None


class SinkEpochs:
    """The epochs of a sink's role: what is to be published, and what that is done with.

    ``lanes`` are the sources that reach it, with the number of ways; ``completed`` is the last
    epoch that was published before.

    >>> from penstock.core.delivery.ids import Role
    >>> lane = Role(0, 0)
    >>> sink = SinkEpochs({lane: 1}, completed=4)
    >>> sink.came(ParcelId(lane, 7), LaneRead(5, 7, True, 3, previous_us=8, watermark_us=10))
    [Completion(epoch=5, watermark_us=10)]
    >>> [done.number for done in sink.published(5)], sink.completed
    ([7], 5)
    >>> sink.came(ParcelId(lane, 8), LaneRead(EPOCH_END, 8, True, 5, 10, watermark_us=20))
    [Completion(epoch=4611686018427387904, watermark_us=20)]
    >>> sink.published(EPOCH_END), sink.completed, sink.ended
    ([], 5, True)
    """

    def __init__(self, lanes: Mapping[Lane, int], completed: int) -> None:
        self.completed = completed
        """The last epoch that is published.  The next player of the role goes on after it."""
        self.ended = False
        """Whether the end of the stream is published."""
        self._lanes = {lane: LaneEpochs(ways, completed) for lane, ways in lanes.items()}
        # The watermark is a function of the lanes': a new player knows nothing else.
        self._aligner: MarkAligner[Lane] = MarkAligner(lanes, completed, keeps=False)
        self._unstated = set(lanes)
        """Lanes whose watermark at the epoch where the player began is not known."""
        self._parcels: dict[int, list[ParcelId]] = {}

    def came(self, parcel: ParcelId, read: LaneRead) -> list[Completion]:
        """A parcel of an epoch that is not published; gives what is to be published now."""
        self._parcels.setdefault(read.epoch, []).append(parcel)
        lane = parcel.lane
        epochs = self._lanes[lane]
        done = epochs.came(parcel.number, read)
        if done and lane in self._unstated:
            self._unstated.discard(lane)
            self._aligner.restate({lane: epochs.before_us})
        return [found for mark in done for found in self._aligner.mark(lane, *mark)]

    def published(self, epoch: int) -> list[ParcelId]:
        """An epoch is published; gives the parcels that are done with."""
        if epoch >= EPOCH_END:
            self.ended = True
            return []
        self.completed = epoch
        done = [other for other in self._parcels if other <= epoch]
        return [parcel for other in done for parcel in self._parcels.pop(other)]

    def missing(self, floors: Mapping[Lane, int]) -> tuple[Lane, int] | None:
        """A read that is needed and at or before its lane's floor, so that it will never come."""
        for lane, epochs in self._lanes.items():
            number = epochs.missing(floors.get(lane, 0))
            if number is not None and epochs.completed < EPOCH_END:
                return lane, number
        return None
