"""Which hosts keep up with the states of nodes that run elsewhere.

Theory of operation
-------------------
A host that *follows* a node reads each new checkpoint of it as soon as it is durable, so that the
node can start there from memory.  A spare follows all nodes; a home follows the nodes that are
about to move there.

    begin(host) --newest checkpoints--> the host reads --followed--> current --end--> it has nodes

A host is *current* when it has the newest checkpoint of every node that it follows, or the one
before: a node that saves often would otherwise never be.  Checkpoints count only if the present
incarnation of their node made them: a restarted node may have gone back behind an older one.

The machine asks for nothing but ``TellFollow``.  It forgets a host that is lost when it is told to
``end``; checkpoints that come later are not told to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from penstock.core.control.host_orders import CheckpointNews

__all__ = ["Following", "Followers", "TellFollow"]


class TellFollow(NamedTuple):
    """Tell a host of new checkpoints of nodes that it follows."""

    host: int
    nodes: Mapping[int, CheckpointNews]


class Following(NamedTuple):
    """How far a host is that follows."""

    host: int
    nodes: int
    bytes: int
    behind: int
    """Checkpoints of the node that it is furthest behind with."""


class Followers:
    """Knows who follows whom, and how far each host is.

    >>> followers = Followers(lambda: {7: 1})
    >>> followers.saved(7, CheckpointNews(1, 5, 100))
    []
    >>> followers.begin(3)
    [TellFollow(host=3, nodes={7: CheckpointNews(incarnation=1, key=5, size=100)})]
    >>> followers.is_current(3), followers.followed(3, 7, 5), followers.is_current(3)
    (False, None, True)
    """

    def __init__(self, incarnations: Callable[[], Mapping[int, int]]) -> None:
        self._incarnations = incarnations
        """The present incarnation of every node."""
        self._saved: dict[int, CheckpointNews] = {}
        self._wanted: dict[int, frozenset[int] | None] = {}
        """Per host the nodes that it follows; None: all."""
        self._reached: dict[int, dict[int, int]] = {}
        """Per host and node: the key of the checkpoint that it has."""

    def begin(self, host: int, nodes: Iterable[int] | None = None) -> list[TellFollow]:
        """Let a host follow these nodes, or all of them."""
        self._wanted[host] = None if nodes is None else frozenset(nodes)
        self._reached[host] = {}
        news = {node: self._saved[node] for node in self._followable(host)}
        return [TellFollow(host, news)] if news else []

    def end(self, host: int) -> None:
        """A host follows nothing any more: it has nodes of its own, or is gone."""
        self._wanted.pop(host, None)
        self._reached.pop(host, None)

    def saved(self, node: int, state: CheckpointNews) -> list[TellFollow]:
        """A checkpoint of a node is durable."""
        if state.incarnation != self._incarnations()[node]:
            return []
        self._saved[node] = state
        return [
            TellFollow(host, {node: state})
            for host, wanted in self._wanted.items()
            if wanted is None or node in wanted
        ]

    def followed(self, host: int, node: int, key: int) -> None:
        """A host has the state of a checkpoint in memory."""
        if host in self._reached:
            self._reached[host][node] = key

    def is_current(self, host: int) -> bool:
        """Whether a host has the states of all that it follows, but for the newest checkpoints."""
        reached = self._reached.get(host)
        return reached is not None and all(
            reached.get(node, -1) >= self._saved[node].key - 1 for node in self._followable(host)
        )

    def status(self) -> list[Following]:
        """How far the hosts are, for people; may be called from any thread."""
        return [
            Following(
                host,
                len(nodes := self._followable(host)),
                sum(self._saved[node].size for node in nodes),
                max((self._saved[node].key - reached.get(node, 0) for node in nodes), default=0),
            )
            for host, reached in list(self._reached.items())
        ]

    def _followable(self, host: int) -> list[int]:
        """The nodes whose newest checkpoint is of their present incarnation."""
        wanted, now = self._wanted.get(host), self._incarnations()
        return [
            node
            for node, state in list(self._saved.items())
            if state.incarnation == now[node] and (wanted is None or node in wanted)
        ]
