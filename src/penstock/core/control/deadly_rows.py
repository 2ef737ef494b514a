"""Which rows to pass over because processes do not survive them.

Theory of operation
-------------------
A stage with ``onError("skip")`` may meet a row that ends its process.  No exception says which one:
all that is left are the last words of the host (:class:`~.host_reports.LastWords`), the digests of
the rows that the stage was called with.  From one loss to the next they become fewer:

    batch    a node without suspects is called with whole batches; a loss makes the rows of the
             batch the suspects of that stage in that node
    pieces   the next incarnation calls the stage with suspects in pieces, the others as before;
             a loss leaves the rows of one piece
    alone    pieces of one row: a row that was alone at ``CONFIRMED`` losses is to be passed over

Of n suspects a piece has the square root of n, or one row if they are few.  So a batch of n rows
takes about log log n losses, and 2 √n calls that are announced.

A loss that leaves fewer suspects, or the same single one, is no step towards giving up.  Any other
is: losses that have nothing to do with rows (a machine that fails, a person who kills hosts) name
other rows each time, and the node's limit ends them.  No stage loses more than ``ROWS_MAX`` rows
this way: a function that survives none of its rows ends the flow.

A row is known by the digest of its values, not by its place: a source may cut its batches anew when
it is replayed, but a stage that can skip is a function of the row.  A row counts from the epoch on
in which it was found: what has left in earlier epochs must be made again as it was.  No output of a
lost call has left, so no step that any node knows contains the row.

``lost`` gives the row that is to be passed over.  It counts once it is durable, which the driver
says with ``recorded``: if it cannot be written, the next loss gives the row again.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt
from typing import NamedTuple

from penstock.core.control.host_reports import LastWords

__all__ = ["ROWS_MAX", "Care", "DeadlyRows", "Narrowed", "SkippedRow", "Suspects"]

CONFIRMED = 2
ROWS_MAX = 100
"""How many rows of one stage may be passed over."""
FEW = 64
"""Up to this many suspects are called one by one."""


class SkippedRow(NamedTuple):
    """A row that a stage is not called with any more."""

    stage: str
    digest: int
    since: int
    """The epoch in which it was found."""
    error: str
    """How the process ended."""


class Suspects(NamedTuple):
    """Rows of which at least one has ended a process."""

    stage: str
    digests: tuple[int, ...]
    piece: int
    """Call the stage with this many of them at a time."""


class Care(NamedTuple):
    """What a node is told of the rows that its predecessors did not survive."""

    announces: bool = False
    """Say before every call into a stage what it is about."""
    suspects: tuple[Suspects, ...] = ()
    skipped: tuple[SkippedRow, ...] = ()


class Narrowed(NamedTuple):
    """A loss that has left fewer suspects; with it, perhaps, the row that it was."""

    found: SkippedRow | None = None


class DeadlyRows:
    """Narrows down which rows a stage does not survive.

    >>> rows = DeadlyRows()
    >>> words = LastWords("parsed", "parsed[0]", 7, digests=(11, 12, 13))
    >>> rows.lost(words, "exit status 3")  # these are the first suspects
    >>> rows.suspects("parsed[0]")
    (Suspects(stage='parsed', digests=(11, 12, 13), piece=1),)
    >>> rows.lost(words._replace(digests=(12,)), "exit status 3")
    Narrowed(found=None)
    >>> rows.lost(words._replace(digests=(12,)), "exit status 3").found
    SkippedRow(stage='parsed', digest=12, since=7, error='exit status 3')
    """

    def __init__(self) -> None:
        self._suspects: dict[tuple[str, str], tuple[frozenset[int], int]] = {}
        """Per node and stage: digests, and at how many losses in a row it was these."""
        self._skipped: dict[tuple[str, int], SkippedRow] = {}

    def suspects(self, node: str) -> tuple[Suspects, ...]:
        """What the next incarnation of a node calls in pieces."""
        return tuple(
            Suspects(stage, tuple(sorted(digests)), _piece(len(digests)))
            for (name, stage), (digests, _) in sorted(self._suspects.items())
            if name == node
        )

    @property
    def skipped(self) -> tuple[SkippedRow, ...]:
        """The rows that are passed over."""
        return tuple(self._skipped.values())

    def is_full(self, stage: str) -> bool:
        """Whether as many rows of a stage are passed over as may be."""
        return sum(row.stage == stage for row in self._skipped.values()) >= ROWS_MAX

    def lost(self, words: LastWords, how: str) -> Narrowed | None:
        """A host is gone after these words; None: they do not narrow anything down."""
        if words.node is None or words.stage is None or not words.digests:
            return None
        if self.is_full(words.stage):
            return None
        place, rows = (words.node, words.stage), frozenset(words.digests)
        before, times = self._suspects.get(place, (frozenset[int](), 0))
        times = times + 1 if rows == before else 1
        self._suspects[place] = rows, times
        if len(rows) == 1 and times >= CONFIRMED:
            (digest,) = rows
            known = self._skipped.get((words.stage, digest))
            if known is not None and known.since <= words.epoch:
                return None  # it was to be passed over
            return Narrowed(SkippedRow(words.stage, digest, words.epoch, how))
        return Narrowed() if rows < before else None

    def recorded(self, rows: Iterable[SkippedRow]) -> None:
        """These rows are durable as passed over; the earliest epoch of a row counts."""
        for row in rows:
            known = self._skipped.get((row.stage, row.digest), row)
            self._skipped[row.stage, row.digest] = row if row.since < known.since else known
            found = frozenset((row.digest,))
            self._suspects = {
                place: kept
                for place, kept in self._suspects.items()
                if (place[1], kept[0]) != (row.stage, found)
            }


def _piece(suspects: int) -> int:
    return 1 if suspects <= FEW else isqrt(suspects)
