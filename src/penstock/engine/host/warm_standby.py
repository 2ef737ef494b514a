"""A host that stands by keeps the states of nodes ready that run elsewhere.

Theory of operation.  Whenever a node's checkpoint is durable, the controller tells the spare host.
A thread of its own reads what is new in that checkpoint
(:class:`penstock.engine.store.durable.BlockCache`) and brings vertices that can follow up to date.
When the node is to start here from that checkpoint, its state is in memory and its vertices are
ready; any other checkpoint is read as always.

- No node waits for a follower: it reads files that are there anyway.  One that falls behind skips
  to the newest checkpoint.
- What is followed was written by one incarnation of the node, whose history only grows.  With the
  next one the following begins anew: it may have gone back.
- A checkpoint that is gone, damaged or of a fenced incarnation is not followed; the one before is
  no worse than it was.
- All states together may have ``FOLLOWED_BYTES_MAX``; nodes beyond that are not followed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.api.vertex import Vertex
from penstock.core.control.host_orders import CheckpointNews
from penstock.engine.host.chain_state import ChainState
from penstock.engine.store.durable import BlockCache, DamagedError, NodeStore, Read
from penstock.engine.store.state_codec import thaw
from penstock.errors import PeerError
from penstock.operators.stateful import StatefulVertex
from penstock.planning.physical import PhysicalPlan

__all__ = ["FOLLOWED_BYTES_MAX", "Follower", "WarmState"]

log = logging.getLogger(__name__)

FOLLOWED_BYTES_MAX = 2 << 30
LEFT_S = 1.0
"""How long states stay in memory after the last use, since freeing them takes time."""


class WarmState(NamedTuple):
    """What a node starts with."""

    read: Read
    vertices: tuple[Vertex | None, ...]
    """Per stage: one that has the state, or had an earlier one; None: there is none."""


class _Followed:
    """One node, as far as it is followed."""

    def __init__(self, plan: PhysicalPlan, node: int, incarnation: int) -> None:
        self.incarnation = incarnation
        self.size = 0
        self.lock = threading.Lock()
        self._cache = BlockCache()
        self._newest: tuple[int, Read] | None = None
        made = [stage.operator.vertex() for stage in plan.chain_of_node(node).stages]
        self._vertices = tuple(
            vertex if isinstance(vertex, StatefulVertex) and vertex.can_follow else None
            for vertex in made
        )

    def follow(self, store: NodeStore, news: CheckpointNews) -> None:
        """Bring it up to a checkpoint."""
        read = store.read_checkpoint(news.key, self._cache)
        self._load(read.state)
        self._newest, self.size = (news.key, read), news.size

    def ready(self, store: NodeStore, key: int) -> WarmState | None:
        """What the next incarnation starts with, from a checkpoint; None: it has to be read."""
        if self._newest is not None and self._newest[0] == key:
            read = self._newest[1]
            if store.manifest(key, store.names()).rest == read.manifest.rest:
                store.go_on(read.known)
                return WarmState(read, self._vertices)
        if store.incarnation != self.incarnation + 1:
            return None  # another incarnation was there in between
        read = store.read_checkpoint(key, self._cache)
        store.go_on(read.known)
        return WarmState(read, self._vertices)

    def _load(self, state: ChainState) -> None:
        for vertex, kept in zip(self._vertices, state.stages, strict=True):
            if isinstance(vertex, StatefulVertex) and kept.values is not None:
                vertex.load(thaw(kept.values, kept.tables, type(vertex)))


class Follower:
    """Follows the nodes that it is told of, in a thread of its own."""

    def __init__(
        self,
        plan: PhysicalPlan,
        store_of: Callable[[int, int], NodeStore],
        followed: Callable[[int, int], None],
    ) -> None:
        self._plan = plan
        self._store_of = store_of
        self._told = followed
        self._nodes: dict[int, _Followed] = {}
        self._left: dict[int, _Followed] = {}
        self._news: dict[int, CheckpointNews] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def follow(self, news: Mapping[int, CheckpointNews]) -> None:
        """These nodes have new checkpoints."""
        with self._changed:
            self._news.update(news)
            self._changed.notify()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="penstock-follower", daemon=True
                )
                self._thread.start()

    def take(self, node: int, store: NodeStore, key: int) -> WarmState | None:
        """A node starts here, from a checkpoint; it is not followed any more."""
        with self._changed:
            self._news.pop(node, None)
            followed = self._nodes.pop(node, None)
        if followed is None:
            return None
        with followed.lock:
            try:
                return followed.ready(store, key)
            except (DamagedError, FileNotFoundError):
                return None  # who reads it as always says what is wrong

    def clear(self) -> None:
        """Follow no node; memory is freed once the nodes that have just started are at work."""
        with self._changed:
            self._news.clear()
            left, self._nodes = self._nodes, {}
            if left:
                self._left = left
                self._changed.notify()

    def close(self) -> None:
        """The host ends."""
        with self._changed:
            self._closed = True
            self._news.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._news and not self._closed:
                    if not self._changed.wait(LEFT_S if self._left else None):
                        self._left = {}
                if self._closed:
                    return
                node = next(iter(self._news))
                news = self._news.pop(node)
                followed = self._of(node, news)
                if followed is None:
                    continue
                followed.lock.acquire()
            try:
                followed.follow(self._store_of(node, news.incarnation), news)
            except Exception as error:  # it is read as always, should it be needed
                self._stopped(node, followed, error)
            else:
                self._told(node, news.key)
            finally:
                followed.lock.release()

    def _of(self, node: int, news: CheckpointNews) -> _Followed | None:
        """Whom to bring up to date; None: there is no room."""
        followed = self._nodes.get(node)
        if followed is None or followed.incarnation != news.incarnation:
            followed = self._nodes[node] = _Followed(self._plan, node, news.incarnation)
        others = sum(one.size for number, one in self._nodes.items() if number != node)
        if others + news.size <= FOLLOWED_BYTES_MAX:
            return followed
        del self._nodes[node]
        return None

    def _stopped(self, node: int, followed: _Followed, error: Exception) -> None:
        gone = isinstance(error, FileNotFoundError | DamagedError | PeerError)
        if not gone:
            log.warning("node %s is not followed: %r", self._plan.node_name(node), error)
            with self._changed:
                if self._nodes.get(node) is followed:
                    del self._nodes[node]
