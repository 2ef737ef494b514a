"""What becomes of a host that was given up and is not dead: it is refused, and learns why.

Others do not listen to it any more: what it sends is dropped, its connections are refused with the
word that it was replaced.  The store refuses what its nodes write.  All of that is counted.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.control.host_reports import RefusalCounts

__all__ = ["Refusals"]

Refused = Callable[[int, RefusalCounts], None]


class Refusals:
    """One transport's part in it.

    >>> told = []
    >>> refusals = Refusals()
    >>> refusals.on_refused = lambda peer, counts: told.append((peer, counts))
    >>> refusals.frame(3, messages=2)
    >>> refusals.connection(3, writes=1)
    >>> told[0], told[1][1].writes
    ((3, RefusalCounts(messages=2, connections=0, writes=0)), 1)
    """

    def __init__(self) -> None:
        self.on_refused: Refused | None = None
        """Called when something of a peer's was refused here."""
        self.on_given_up: Callable[[int], None] | None = None
        """Called when a peer refuses this host for good."""
        self.writes = 0
        """How often the store has refused what this host's nodes wrote; its greetings say so."""

    def frame(self, peer: int, messages: int) -> None:
        """Messages of a peer that was given up were dropped."""
        if self.on_refused is not None and messages:
            self.on_refused(peer, RefusalCounts(messages=messages))

    def connection(self, peer: int, writes: int) -> None:
        """A connection of such a peer was refused."""
        if self.on_refused is not None:
            self.on_refused(peer, RefusalCounts(connections=1, writes=writes))

    def given_up(self, peer: int) -> None:
        """A peer says that another process is in this host's place."""
        if self.on_given_up is not None:
            self.on_given_up(peer)
