"""Which hosts keep up with the states of nodes that run elsewhere, and what they are told.

Everything here runs in the controller's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["Followers"]


class Followers:
    """Tells hosts of new checkpoints, and knows how far each of them is.

    >>> said = []
    >>> followers = Followers(lambda: {7: 1}, lambda host, body: said.append((host, body["nodes"])))
    >>> followers.saved({"node": 7, "incarnation": 1, "key": 5, "state": 100})
    >>> followers.begin(3)
    >>> said
    [(3, {7: (1, 5, 100)})]
    >>> followers.is_current(3), followers.followed({"host": 3, "node": 7, "key": 5})
    (False, None)
    >>> followers.is_current(3)
    True
    """

    def __init__(
        self,
        incarnations: Callable[[], Mapping[int, int]],
        tell: Callable[[int, dict[str, Any]], None],
    ) -> None:
        self._incarnations = incarnations
        """The present one of every node."""
        self._tell = tell
        self._saved: dict[int, tuple[int, int, int]] = {}
        """Per node its newest checkpoint: by which incarnation, key, bytes."""
        self._wanted: dict[int, frozenset[int] | None] = {}
        """Per host the nodes that it follows; None: all."""
        self._reached: dict[int, dict[int, int]] = {}

    def begin(self, host: int, nodes: Iterable[int] | None = None) -> None:
        """Let a host follow all nodes, or these: when :meth:`is_current`, they start there soon."""
        self._wanted[host] = None if nodes is None else frozenset(nodes)
        self._reached[host] = {}
        news = {node: self._saved[node] for node in self._followable(host)}
        if news:
            self._tell(host, {"kind": "follow", "nodes": news})

    def end(self, host: int) -> None:
        """A host follows nobody any more: it has nodes of its own, or is gone."""
        self._wanted.pop(host, None)
        self._reached.pop(host, None)

    def saved(self, body: Mapping[str, Any]) -> None:
        """A checkpoint of a node is durable."""
        node = body["node"]
        if body["incarnation"] != self._incarnations()[node]:
            return
        self._saved[node] = (body["incarnation"], body["key"], body["state"])
        for host, wanted in self._wanted.items():
            if wanted is None or node in wanted:
                self._tell(host, {"kind": "follow", "nodes": {node: self._saved[node]}})

    def followed(self, body: Mapping[str, Any]) -> None:
        """A host has the state of a checkpoint."""
        if body["host"] in self._reached:
            self._reached[body["host"]][body["node"]] = body["key"]

    def is_current(self, host: int, behind: int = 1) -> bool:
        """Whether a host has the states of all that it follows, but for the newest checkpoints."""
        reached = self._reached.get(host)
        return reached is not None and all(
            reached.get(node, -behind) >= self._saved[node][1] - behind
            for node in self._followable(host)
        )

    def status(self) -> list[dict[str, Any]]:
        """For people: the hosts that follow, how much, and how many checkpoints they are behind."""
        return [
            {
                "host": host,
                "nodes": len(nodes := self._followable(host)),
                "bytes": sum(self._saved[node][2] for node in nodes),
                "behind": max(
                    (self._saved[node][1] - reached.get(node, 0) for node in nodes), default=0
                ),
            }
            for host, reached in list(self._reached.items())
        ]

    def _followable(self, host: int) -> list[int]:
        """The nodes whose newest checkpoint is of their present incarnation."""
        wanted, now = self._wanted.get(host), self._incarnations()
        return [
            node
            for node, (incarnation, _, _) in list(self._saved.items())
            if incarnation == now[node] and (wanted is None or node in wanted)
        ]
