"""Connections between simulated hosts: which are dead, in which direction, and until when."""

from __future__ import annotations

__all__ = ["Links"]


class Links:
    """Dead directions between hosts.

    What is sent in a dead direction is lost; so are the acknowledgements of what comes the other
    way.  When a connection is found dead it is opened anew, and what was not acknowledged is sent
    again.

    >>> links = Links()
    >>> links.half_open(1, 2, until=10)
    >>> links.passes(1, 2), links.passes(2, 1), links.mended(10), links.passes(1, 2)
    (False, True, [(1, 2)], True)
    """

    def __init__(self) -> None:
        self.dead: dict[tuple[int, int], int] = {}

    def partition(self, one: int, other: int, until: int) -> None:
        """Nothing passes between two hosts."""
        self.dead[one, other] = self.dead[other, one] = until

    def half_open(self, sender: int, target: int, until: int) -> None:
        """Nothing passes from one host to another; the other direction works."""
        self.dead[sender, target] = until

    def passes(self, sender: int, target: int) -> bool:
        """Whether what one host sends reaches the other."""
        return (sender, target) not in self.dead

    def mended(self, now: int) -> list[tuple[int, int]]:
        """The directions that work again from now on."""
        found = [pair for pair, until in self.dead.items() if until <= now]
        for pair in found:
            del self.dead[pair]
        return found
