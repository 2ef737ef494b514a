"""The replay rule over dense times: in which order a restarted node handles its inputs again.

The targets are steps that somebody has seen, in the order of their stamps.  The replay goes from
target to target.  Just before one, it handles the pending predecessors of the target's own row (of
every row, if the target is a completion, but only what belongs to its epoch or an earlier one: a
mark overtakes rows of later epochs, which may be before it only because the sender restarted), at
stamps strictly between the previous one and the target: :func:`slot`.  What has no later target
in its row follows after the last one.

Senders need not mark every epoch: a completion needs a mark of its epoch or a later one from each
of them, and the rows before that mark.

Laws, which are the constraints of the thesis's table (Section 3.3.1) for dense times:
Monotonicity: each row is handled in the order of its stamps.  Regularity: each target is hit at its
stamp with its input.  Eventuality: an input that would be sent to a child goes after the child's
position, unless its row forces it before; then the child has it, or provably had no use for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from penstock.core.causal.clocks import Position
from penstock.core.causal.diffs import COMPLETION, Link
from penstock.core.causal.reports import Target
from penstock.core.causal.times import Stamp, between
from penstock.errors import InvariantError

__all__ = ["Replay", "Turn", "slot"]

I = TypeVar("I")  # noqa: E741
_NONE: Mapping[Stamp, Link | None] = {}


class Turn(NamedTuple, Generic[I]):
    """What to handle next: an input, or the completion of an epoch."""

    item: I | None
    """None: the next completion that waits."""
    exactly: Stamp | None
    """The stamp of a target, or None …"""
    before: Stamp | None
    """… and the target that it must come before, or None: after all targets."""
    values: bytes = b""
    """What the step noted when it was done before."""


class _Arrival(NamedTuple, Generic[I]):
    number: int
    stamp: Stamp
    epoch: int
    item: I
    only_marks: bool
    marked: int


@dataclass
class Replay(Generic[I]):
    """Chooses the next input among those that have arrived.

    >>> replay = Replay([Target((5,), Link(1, (3,), 0))], [1, 2])
    >>> replay.arrived(2, (1,), 0, "x"); replay.next({}, []) is None
    True
    >>> replay.arrived(1, (2,), 0, "y"); replay.arrived(1, (3,), 0, "z")
    >>> [replay.next({}, [])[:3] for _ in range(3)]
    [('y', None, (5,)), ('z', (5,), None), ('x', None, None)]
    """

    targets: Sequence[Target]
    senders: Iterable[int]
    determined: bool = False
    """Whether the targets are all steps up to the last one."""
    _rows: dict[int, deque[_Arrival[I]]] = field(init=False)
    _places: dict[int, int] = field(init=False)
    """Of the completions among the targets, by epoch."""
    _next: int = 0
    _arrivals: int = 0
    _completed: int = -1
    _looked: set[int] = field(default_factory=set)
    """Rows in which nothing serves the present target, and nothing has come since that could."""

    def __post_init__(self) -> None:
        self._rows = {sender: deque() for sender in self.senders}
        self._places = {
            target.made_from.epoch: place
            for place, target in enumerate(self.targets)
            if target.made_from.node == COMPLETION
        }

    @property
    def over(self) -> bool:
        """Whether every target was hit."""
        return self._next == len(self.targets)

    @property
    def waiting_for(self) -> Target | None:
        """The next target."""
        return None if self.over else self.targets[self._next]

    def arrived(
        self,
        sender: int,
        stamp: Stamp,
        epoch: int,
        item: I,
        only_marks: bool = False,
        marked: int = -1,
    ) -> None:
        """An input came in; each row in order.

        ``epoch`` is the least in it, ``marked`` the epoch that it marks, if it does.
        """
        self._arrivals += 1
        self._rows[sender].append(_Arrival(self._arrivals, stamp, epoch, item, only_marks, marked))
        target = self.waiting_for
        if marked >= 0 or target is None or epoch <= target.made_from.epoch:
            self._looked.discard(sender)

    def next(self, marked: Mapping[int, int], completable: Sequence[int]) -> Turn[I] | None:
        """The next turn, if what it needs has arrived.

        ``marked`` says up to which epoch each sender has marked, ``completable`` the epochs that
        may be completed now, in order.
        """
        if self.over:
            if completable:
                return Turn(None, None, None)
            return self._first()
        target = self.targets[self._next]
        if target.made_from.node == COMPLETION:
            return self._towards_completion(target, marked, completable)
        if completable and self._was_before(completable[0], target):
            self._completed = completable[0]
            return Turn(None, None, target.stamp)
        row = self._rows[target.made_from.node]
        if not row:
            return None
        stamp, item = row[0].stamp, row[0].item
        if stamp > target.made_from.stamp:
            raise InvariantError(
                f"the input of target {target} is missing: its row goes on with {stamp}",
                target=target,
            )
        row.popleft()
        if stamp < target.made_from.stamp:
            return Turn(item, None, target.stamp)
        self._reached()
        return Turn(item, target.stamp, None, target.values)

    def _was_before(self, epoch: int, target: Target) -> bool:
        """Whether a completion that nobody knows came before a target that somebody knows.

        All its marks were handled before the target, so it was: completions do not wait for rows.
        One that is known keeps its own place.
        """
        if self.determined:
            return False
        return epoch < target.made_from.epoch and self._places.get(epoch, -1) < self._next

    def _towards_completion(
        self, target: Target, marked: Mapping[int, int], completable: Sequence[int]
    ) -> Turn[I] | None:
        epoch = target.made_from.epoch
        if completable:
            self._completed = completable[0]
            if completable[0] < epoch:
                return Turn(None, None, target.stamp)
            self._reached()
            if target.loose:
                return Turn(None, None, target.stamp)
            if completable[0] > epoch:
                raise InvariantError(
                    f"the completion of target {target} is missing: {completable[0]} is next",
                    target=target,
                )
            return Turn(None, target.stamp, None, target.values)
        for sender in sorted(self._rows):
            row = self._rows[sender]
            if sender in self._looked or marked.get(sender, -1) >= epoch:
                continue
            last = epoch
            if row and row[0].epoch > epoch:
                last = next((a.marked for a in row if a.marked >= epoch), epoch)
            for place, arrival in enumerate(row):
                if arrival.epoch > last:
                    continue
                if arrival.only_marks:
                    del row[place]
                    return Turn(arrival.item, None, target.stamp)
                return Turn(row.popleft().item, None, target.stamp)
            self._looked.add(sender)
        return None

    def _reached(self) -> None:
        """Go to the next target that is not behind us: one completion may stand for several."""
        self._next += 1
        self._looked.clear()
        while not self.over:
            target = self.targets[self._next]
            if not target.loose or target.made_from.epoch > self._completed:
                return
            self._next += 1

    def _first(self) -> Turn[I] | None:
        """After the targets: in the order of arrival."""
        rows = [(row[0].number, sender) for sender, row in self._rows.items() if row]
        if not rows:
            return None
        return Turn(self._rows[min(rows)[1]].popleft().item, None, None)


def slot(
    previous: Stamp,
    target: Stamp,
    recipients: Iterable[int],
    positions: Mapping[int, Position],
    taken: Mapping[Stamp, Link | None] = _NONE,
    made_from: Link | None = None,
) -> tuple[Stamp, tuple[int, ...]]:
    """A stamp before a target for an input with these recipients, and who is skipped.

    A recipient whose position is at or after the target cannot be reached from before the target:
    it has the message, or would provably filter it (the skip rule).  Steps that are ``taken`` keep
    their stamps, and earlier inputs of the same row come before.

    >>> slot((2,), (6,), [7, 8], {7: Position((3,), 0), 8: Position((6,), 0)})
    ((4,), (8,))
    """
    low = previous
    skipped = []
    for child in recipients:
        position = positions[child].stamp
        if position >= target:
            skipped.append(child)
        else:
            low = max(low, position)
    for stamp, link in taken.items():
        if link is None or made_from is None or link.node != made_from.node:
            continue
        if link.stamp < made_from.stamp and low < stamp < target:
            low = stamp
    if low < target:
        low = between(low, target)
        while low in taken:
            low = between(low, target)
    return low, tuple(skipped)
