"""The replay rule over dense times: in which order a restarted node handles its inputs again.

The targets are steps that a survivor has seen, in the order of their stamps.  The replay goes from
target to target.  Just before one, it handles the pending predecessors of the target's own row (of
every row, if the target is a completion, but only what belongs to its epoch or an earlier one: a
mark overtakes rows of later epochs, which may be before it only because the sender restarted), at
stamps strictly between the previous one and the target: :func:`slot`.  What has no later target
in its row follows after the last one.

Senders need not mark every epoch: a completion needs a mark of its epoch or a later one from each
of them, and the rows before that mark.

Where no order fits all targets, it says so (ContradictionError); the controller then lets all that
is connected start from whole epochs, where there are no targets.

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
from penstock.core.causal.diffs import COMPLETION, DiffLink
from penstock.core.causal.reports import Target
from penstock.core.causal.times import Stamp, between
from penstock.errors import ContradictionError

__all__ = ["Replay", "Turn", "slot"]

I = TypeVar("I")  # noqa: E741
_NONE: Mapping[Stamp, DiffLink | None] = {}


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

    >>> replay = Replay([Target((5,), DiffLink(1, (3,), 0))], [1, 2])
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
    positions: Mapping[int, Position] = field(default_factory=dict)
    """Where the children resume."""
    settled: int = -1
    """The last epoch that all have completed who know steps of this node."""
    _rows: dict[int, deque[_Arrival[I]]] = field(init=False)
    _places: dict[int, int] = field(init=False)
    """Of the completions among the targets, by epoch."""
    _next: int = 0
    _arrivals: int = 0
    _completed: int = -1
    _bound: dict[tuple[int, Stamp], int] = field(init=False)
    """The places of the inputs that targets are made from."""
    _looked: set[int] = field(default_factory=set)
    """Rows in which nothing serves the present target, and nothing has come since that could."""

    def __post_init__(self) -> None:
        self._rows = {sender: deque() for sender in self.senders}
        self._places = {
            target.made_from.epoch: place
            for place, target in enumerate(self.targets)
            if target.made_from.node == COMPLETION
        }
        self._bound = {
            (target.made_from.node, target.made_from.stamp): place
            for place, target in enumerate(self.targets)
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
        while self._next < len(self.targets) and self._is_out_of_reach(marked, completable):
            self._reached()
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
            raise ContradictionError(
                f"the input of target {target} is missing: its row goes on with {stamp}",
                target=target,
            )
        if stamp < target.made_from.stamp:
            return self._unknown(row, target, marked)
        row.popleft()
        self._reached()
        return Turn(item, target.stamp, None, target.values)

    def _unknown(
        self, row: deque[_Arrival[I]], target: Target, marked: Mapping[int, int]
    ) -> Turn[I] | None:
        """Handle an input that no survivor knows, because its row has a known one behind it.

        If it is of an epoch after those that are settled, these come first, where rows allow it.
        Else what is made of it could come to a child before rows of a settled epoch which that
        child, to complete the epoch, has to handle before steps that others know.
        """
        first: deque[_Arrival[I]] | None = None
        is_missing = False
        later = not self.determined and row[0].epoch > self.settled
        for sender in sorted(self._rows) if later else ():
            other = self._rows[sender]
            if marked.get(sender, -1) >= self.settled:
                continue
            place = self._wanted(other, self.settled) if other else None
            if place is None:
                is_missing = True
            elif other[place].only_marks:
                item = other[place].item
                del other[place]
                return Turn(item, None, target.stamp)
            elif other[0].epoch > self.settled or self._is_bound(sender, other[0].stamp):
                return Turn(row.popleft().item, None, target.stamp)
            elif first is None:
                first = other
        if first is None and is_missing:
            return None
        return Turn((row if first is None else first).popleft().item, None, target.stamp)

    def _is_bound(self, sender: int, stamp: Stamp) -> bool:
        """Whether an input has its place at or after the present target."""
        return self._bound.get((sender, stamp), -1) >= self._next

    def _was_before(self, epoch: int, target: Target) -> bool:
        """Whether to handle a completion that no survivor knows before a target that one knows.

        All its marks are here, and completions do not wait for rows.  But a child that has seen
        the target and has not seen the mark did not get what the completion made: for it the
        completion comes after everything that it has seen.  One that is known keeps its own place.
        """
        if self.determined:
            return False
        if any(p.stamp >= target.stamp and p.epoch < epoch for p in self.positions.values()):
            return False
        return epoch < target.made_from.epoch and self._places.get(epoch, -1) < self._next

    def _is_out_of_reach(self, marked: Mapping[int, int], completable: Sequence[int]) -> bool:
        """Whether a loose target asks for what contradicts a known step.

        A child that restarts may take a mark before rows that were sent ahead of it, if these are
        of later epochs.  So the order that others saw there need not be the sender's own, and the
        sender's own known steps go first: its mark overtakes the same rows again.
        """
        target = self.targets[self._next]
        if not target.loose or completable:
            return False
        epoch = target.made_from.epoch
        for sender, row in self._rows.items():
            if not row or sender in self._looked or marked.get(sender, -1) >= epoch:
                continue
            place = self._wanted(row, epoch)
            if place is None or row[place].only_marks:
                continue
            if self._bound.get((sender, row[0].stamp), -1) > self._next:
                return True
        return False

    @staticmethod
    def _wanted(row: deque[_Arrival[I]], epoch: int) -> int | None:
        """The first arrival of a row that the completion of an epoch waits for.

        Senders need not mark every epoch: the mark of a later one stands for this one, too, with
        the rows before it.
        """
        last = epoch
        if row[0].epoch > epoch:
            last = next((a.marked for a in row if a.marked >= epoch), epoch)
        return next((place for place, a in enumerate(row) if a.epoch <= last), None)

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
                raise ContradictionError(
                    f"the completion of target {target} is missing: {completable[0]} is next",
                    target=target,
                )
            return Turn(None, target.stamp, None, target.values)
        for sender in sorted(self._rows):
            row = self._rows[sender]
            if sender in self._looked or marked.get(sender, -1) >= epoch:
                continue
            place = self._wanted(row, epoch) if row else None
            if place is None:
                self._looked.add(sender)
                continue
            arrival = row[place]
            if arrival.only_marks:
                del row[place]
                return Turn(arrival.item, None, target.stamp)
            return Turn(row.popleft().item, None, target.stamp)
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
    taken: Mapping[Stamp, DiffLink | None] = _NONE,
    made_from: DiffLink | None = None,
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
