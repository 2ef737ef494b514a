"""Checkpoints of all nodes at one epoch: who waits for whom.

Theory of operation
-------------------
All nodes hold their input after the same epoch, a multiple of ``every``:

    flushed(node, Flushed)   ->  None, or the epoch after which to hold from now on

A node is flushed when that epoch is complete and its checkpoint, if it has state, is durable.  When
all of them are, all may ``resume`` until the next multiple.  So at any time a node's newest
checkpoint is at the last multiple or at the one before.

A controller that restarts asks all nodes for what they said last; it needs nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.core.node.causal_effects import Flushed

__all__ = ["GlobalHold", "multiple_at"]


def multiple_at(epoch: int, every: int) -> int:
    """The first epoch from this one on at which a multiple of ``every`` ends.

    >>> [multiple_at(epoch, 3) for epoch in (-1, 0, 2, 3)]
    [-1, 2, 2, 5]
    """
    return -(-(epoch + 1) // every) * every - 1


class GlobalHold:
    """Waits for the checkpoints of all nodes.

    >>> hold = GlobalHold([1, 2], every=5)
    >>> hold.epoch, hold.flushed(1, Flushed(4, None)), hold.flushed(2, Flushed(4, 13))
    (4, None, 9)
    """

    def __init__(
        self,
        nodes: Iterable[int],
        every: int,
        completed: int = -1,
        ahead: Mapping[int, int] | None = None,
    ) -> None:
        self.every = every
        self._ahead = ahead or {}
        """Where nodes start: who starts at or after a hold has come to it before."""
        self.epoch = multiple_at(completed + 1, every)
        """After this one all nodes hold their input."""
        self._nodes = frozenset(nodes)
        self._said: dict[int, Flushed] = {}

    def flushed(self, node: int, said: Flushed) -> int | None:
        """A node has come to its hold, durably; gives the next hold if all have."""
        if node not in self._nodes:
            return None
        self._said[node] = said
        nothing = Flushed(-1, None)
        told = [(self._ahead.get(n, -1), self._said.get(n, nothing)) for n in self._nodes]
        last = min(max(ahead, one.epoch) for ahead, one in told)
        if last < self.epoch:
            return None
        # A node that says nothing of what waits may get something of the very next epoch, unless it
        # started later.
        least = min(
            max(ahead, one.waiting)
            if one.waiting is not None and one.epoch == last
            else max(ahead, last) + 1
            for ahead, one in told
        )
        self.epoch = multiple_at(max(least, last + 1), self.every)
        return self.epoch
