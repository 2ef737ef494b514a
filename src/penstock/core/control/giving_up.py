"""When a flow gives up, and what its error says then.

Theory of operation
-------------------
A process that dies of its input dies again when the input is replayed.  So losses are counted per
node, and a node that is lost more than ``limit`` times in a row ends the flow.  The count of a node
begins anew

- when the node has completed an epoch that none of its incarnations had completed before.  That a
  restarted node has replayed what others know of it is no progress: what killed it comes later;
- or when it was not lost for ``QUIET_MS``.

Hosts without nodes count as one node, ``NO_NODE``, so that a cluster on which no process survives
ends the flow too.

A node that was lost half as often as allowed is started as a *careful* one: it says before each
call into a stage what the call is about.  These last words make the error name stage, rows and
epoch instead of a dead process.

A stage that may skip rows passes over those that its process does not survive
(:mod:`.deadly_rows`).  Its nodes are careful from the second loss on; losses that narrow down which
row it is do not count, and when it is found the nodes of the host may be lost as often as before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from penstock.core.control.controller import Failure
from penstock.core.control.deadly_rows import ROWS_MAX, Care, DeadlyRows, SkippedRow
from penstock.core.control.host_reports import LastWords
from penstock.errors import HostLostError

__all__ = ["LOSSES_MAX", "NO_NODE", "QUIET_MS", "GivingUp", "Judgement", "Losses"]

LOSSES_MAX = 10
QUIET_MS = 60_000
SOON = 2
"""Nodes that may skip rows are careful after this many losses."""
NO_NODE = -1
"""Stands for the nodes of a host that has none."""


class Losses:
    """Counts losses in a row, per node.

    >>> losses = Losses(limit=1)
    >>> losses.lost([7], now_ms=0), losses.lost([7], now_ms=1)
    ([], [7])
    >>> losses.completed(7, 3)
    >>> losses.lost([7], now_ms=2)
    []
    """

    def __init__(self, limit: int = LOSSES_MAX) -> None:
        self.limit = limit
        self._counts: dict[int, int] = {}
        self._lost_ms: dict[int, int] = {}
        self._reached: dict[int, int] = {}
        self._most: dict[int, int] = {}
        """Per node: the greatest count of those that it was lost with last."""

    def completed(self, node: int, epoch: int) -> None:
        """A node has completed an epoch."""
        if epoch > self._reached.get(node, -1):
            self._reached[node] = epoch
            self._counts.pop(node, None)

    def lost(self, nodes: Iterable[int], now_ms: int) -> list[int]:
        """The host of these nodes is gone; give those that were lost too often."""
        chosen = list(nodes) or [NO_NODE]
        for node in chosen:
            if now_ms - self._lost_ms.get(node, now_ms) > QUIET_MS:
                self._counts.pop(node, None)
            self._lost_ms[node] = now_ms
            self._counts[node] = self._counts.get(node, 0) + 1
        self._most.update(dict.fromkeys(chosen, max(self._counts[node] for node in chosen)))
        return [node for node in chosen if self._counts[node] > self.limit]

    def forgive(self, nodes: Iterable[int]) -> None:
        """What has ended these nodes will not do so again; they stay careful."""
        for node in nodes:
            self._counts[node] = min(self._counts.get(node, 0), SOON)
            self._most[node] = min(self._most.get(node, 0), SOON)

    def careful(self, node: int, soon: bool) -> bool:
        """Whether a node's next incarnation shall say what it is about to work on.

        It may get further now and then, and yet be what ends its host before others do.
        """
        many = self.limit // 2 + 1
        often = soon and self._counts.get(node, 0) >= min(SOON, many)
        return often or self._most.get(node, 0) >= many


class Judgement(NamedTuple):
    """What a loss means for the flow."""

    failure: Failure | None = None
    """The flow ends with it."""
    skip: SkippedRow | None = None
    """A row to pass over, once that is durable."""


class GivingUp:
    """Decides when it is hopeless, and says why.

    ``names`` are the names of the nodes; those in ``skipping`` have stages that may skip rows.

    >>> giving_up = GivingUp({7: "sums[0]"})
    >>> found = [giving_up.lost(1, 1, [7], "killed", now_ms=n).failure for n in range(11)]
    >>> found[9] is None, found[10]["message"][:58]
    (True, 'node sums[0] was lost 11 times without getting any further')
    """

    def __init__(self, names: Mapping[int, str], skipping: Collection[int] = ()) -> None:
        self._names = names
        self._skipping = {node: names[node] for node in skipping}
        self._losses = Losses()
        self._rows = DeadlyRows()
        self._by_node: dict[str, LastWords] = {}
        """Per node: what it said that it was about to do."""
        self._by_host: dict[int, LastWords] = {}
        self._ended: dict[int, str] = {}
        """Per slot of a lost host: how its job ended."""

    def care(self, node: int) -> Care:
        """What a node's next incarnation must know of earlier ones."""
        if node not in self._skipping:
            return Care(self._losses.careful(node, soon=False))
        suspects = self._rows.suspects(self._names[node])
        announces = bool(suspects) or self._losses.careful(node, soon=True)
        return Care(announces, suspects, self._rows.skipped)

    def recorded(self, rows: Iterable[SkippedRow]) -> None:
        """Rows that are durably known as passed over."""
        self._rows.recorded(rows)

    def progressed(self, epochs: Mapping[int, int]) -> None:
        """Some nodes have completed these epochs."""
        for node, epoch in epochs.items():
            self._losses.completed(node, epoch)

    def working(self, host: int, words: LastWords) -> None:
        """A host says what it is about to do, or the last thing that it does."""
        if words == LastWords():
            self._by_host.pop(host, None)
            return
        self._by_host[host] = words
        if words.node is not None:
            self._by_node[words.node] = words

    def job_ended(self, slot: int, message: str) -> None:
        """The cluster manager says how a host ended that was known to be lost."""
        self._ended[slot] = message

    def lost(
        self,
        host: int,
        slot: int,
        nodes: list[int],
        reason: str,
        now_ms: int,
        failure: Failure | None = None,
    ) -> Judgement:
        """Count a loss, unless it narrows down which row it is due to.

        ``failure`` is what a stage raised, if that is what ended the host.
        """
        words = self._by_host.pop(host, None)
        if words is not None and words.node in self._skipping.values() and failure is None:
            narrowed = self._rows.lost(words, self._how(slot, reason, words))
            if narrowed is not None:
                if narrowed.found is not None:
                    self._losses.forgive(nodes)
                return Judgement(skip=narrowed.found)
        over = self._losses.lost(nodes, now_ms)
        if not over:
            return Judgement()
        if failure is not None:
            ending = f" (after {self._losses.limit} restarts, none of which got any further)"
            return Judgement({**failure, "message": failure["message"] + ending})
        return Judgement(self._given_up(host, slot, over, reason, words))

    def _given_up(
        self, host: int, slot: int, over: list[int], reason: str, words: LastWords | None
    ) -> Failure:
        limit = self._losses.limit
        names = [self._names[node] for node in over if node != NO_NODE]
        if words is None:
            words = next((self._by_node[n] for n in names if n in self._by_node), LastWords())
        node = words.node or (names[0] if names else f"of host {host}")
        how, where = self._how(slot, reason, words), _where(words)
        if not where:
            advice = (
                f"see what hosts log, and how much memory they have (it ran {', '.join(names)})"
            )
        elif self._rows.is_full(words.stage or ""):
            advice = (
                f"stage {words.stage!r} has passed over {ROWS_MAX} rows already, and may no more"
            )
        else:
            advice = (
                f"look at what stage {words.stage!r} does with them; a stage without state can "
                'pass over rows that it does not survive, with onError("skip")'
            )
        return HostLostError(
            f"node {node} was lost {limit + 1} times without getting any further, and is given up: "
            f"{how}{where}. {advice[0].upper()}{advice[1:]}",
            **{**_known(words), "node": node, "host": host, "losses": limit + 1},
        ).to_dict()

    def _how(self, slot: int, reason: str, words: LastWords) -> str:
        if words.status is not None:
            return f"its process ended itself with exit status {words.status}"
        told = self._ended.get(slot) or next(reversed(self._ended.values()), "")
        return told.partition("was lost: ")[2] or reason.partition("was lost: ")[2] or reason


def _where(words: LastWords) -> str:
    if words.stage is None:
        return ""
    rows = words.rows or "a batch"
    return f", while stage {words.stage!r} was working on {rows}, epoch {words.epoch}"


def _known(words: LastWords) -> dict[str, Any]:
    """What is known, for an error's parameters."""
    known: dict[str, Any] = {} if words.status is None else {"status": words.status}
    if words.stage is not None:
        known |= {"stage": words.stage, "epoch": words.epoch, "rows": words.rows}
    return known
