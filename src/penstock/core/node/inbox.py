"""What has arrived at a node and waits for its turn.

What one step of a sender sent here is handled together, when it is whole.  Where all nodes take
their checkpoints at the same epoch, input of later epochs is held back until ``release``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from penstock.core.node.messages import MARK, Message
from penstock.core.node.standing import Item
from penstock.core.progress.marks import EPOCH_END

__all__ = ["Inbox"]


class Inbox:
    """Bundles in the order of their arrival, and those that are held back."""

    def __init__(self, hold_after: int | None) -> None:
        self.hold_after = hold_after
        """Input of epochs after this one waits."""
        self._partial: dict[int, list[Message]] = {}
        self._queue: deque[Item] = deque()
        self._held: dict[int, deque[Item]] = {}
        """Per sender: what waits behind the epoch after which input is held."""
        self._held_marks: set[int] = set()
        """Senders that have marked an epoch among what waits."""

    def whole(self, message: Message) -> Item | None:
        """Take a message; give all that its sender's step sent here with the last of it."""
        parts = self._partial.setdefault(message.sender, [])
        parts.append(message)
        return None if message.more else tuple(self._partial.pop(message.sender))

    def put(self, item: Item) -> None:
        """Let a bundle wait for its turn."""
        self._queue.append(item)

    def next(self) -> Item | None:
        """The next bundle that is not held back."""
        while self._queue:
            item = self._queue.popleft()
            if self.hold_after is None or not self._holds(item, self.hold_after):
                return item
            self._held.setdefault(item[0].sender, deque()).append(item)
            if any(message.kind == MARK for message in item):
                self._held_marks.add(item[0].sender)
        return None

    def _holds(self, item: Item, last: int) -> bool:
        """Whether an input waits.  The end of the stream does not: no checkpoint follows."""
        if item[0].sender in self._held:
            return True
        return any(last < message.time.epoch < EPOCH_END for message in item)

    def ended_by(self, marked: Mapping[int, int]) -> frozenset[int]:
        """Senders that have nothing left up to the hold, if no sender has anything left.

        A sender that has ended a later epoch has ended the ones before, marked or not.  Rows of a
        later epoch do not say so: a source that is lost before it has cut that epoch may read them
        again in an earlier one, which must not be complete by then.
        """
        last = self.hold_after
        if last is None or not self._held_marks:
            return frozenset()
        ended = all(s in self._held_marks or epoch >= last for s, epoch in marked.items())
        return frozenset(self._held_marks) if ended else frozenset()

    def waiting(self, marked: Mapping[int, int]) -> int | None:
        """The least epoch that is still to come, if every sender's next one is here."""
        least = EPOCH_END
        for sender, epoch in marked.items():
            if sender in self._held:
                least = min(least, *(m.time.epoch for m in self._held[sender][0]))
            elif epoch < EPOCH_END:
                return None
        return least if marked else None

    def release(self, epoch: int | None) -> bool:
        """Go on, and hold after a later epoch (None: never); False: it holds there already."""
        if self.hold_after is None or (epoch is not None and epoch <= self.hold_after):
            return False
        self.hold_after = epoch
        waiting = [item for sender in sorted(self._held) for item in self._held[sender]]
        self._queue = deque([*waiting, *self._queue])
        self._held = {}
        self._held_marks = set()
        return True

    def fence(self, sender: int) -> None:
        """A sender has a new incarnation, which sends again what was not handled."""
        self._partial.pop(sender, None)
        self._queue = deque(item for item in self._queue if item[0].sender != sender)
        self._held.pop(sender, None)
        self._held_marks.discard(sender)
