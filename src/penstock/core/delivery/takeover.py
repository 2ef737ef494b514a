"""Who gets the roles of a dead host.

    next            the host that comes after it in the ring
    least-loaded    the host that has least to do
    split           all of them, in turn, those with least to do first

The same choice serves roles of replicated stages (:mod:`.ring_controller`) and nodes that recover
from their neighbours' logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

__all__ = ["Takeover", "taker", "takers"]

R = TypeVar("R")


class Takeover(Enum):
    """Who gets the roles of a dead host."""

    NEXT = "next"
    LEAST_LOADED = "least-loaded"
    SPLIT = "split"


def taker(
    hosts: Sequence[int],
    takeover: Takeover,
    load: Callable[[int], int],
    given: Mapping[int, int],
) -> int | None:
    """Who takes one more role; ``given``: how many each host was given already.

    ``hosts`` are those that can, in the order of the ring, beginning after the dead one.
    """
    if not hosts:
        return None
    if takeover is Takeover.NEXT:
        return hosts[0]
    if takeover is Takeover.LEAST_LOADED:
        return min(hosts, key=load)
    return min(hosts, key=lambda host: (given.get(host, 0), load(host)))


def takers(
    roles: Iterable[R], hosts: Sequence[int], takeover: Takeover, load: Callable[[int], int]
) -> dict[R, int]:
    """Which host takes which role; nothing if there is no host.

    >>> loads = {2: 30, 3: 10, 4: 20}
    >>> takers("abc", [2, 3, 4], Takeover.NEXT, loads.__getitem__)
    {'a': 2, 'b': 2, 'c': 2}
    >>> takers("abc", [2, 3, 4], Takeover.LEAST_LOADED, loads.__getitem__)
    {'a': 3, 'b': 3, 'c': 3}
    >>> takers("abcd", [2, 3, 4], Takeover.SPLIT, loads.__getitem__)
    {'a': 3, 'b': 4, 'c': 2, 'd': 3}
    >>> takers("abc", [], Takeover.NEXT, loads.__getitem__)
    {}
    """
    found: dict[R, int] = {}
    given: dict[int, int] = {}
    for role in roles:
        host = taker(hosts, takeover, load, given)
        if host is not None:
            found[role] = host
            given[host] = given.get(host, 0) + 1
    return found
