"""The largest consistent rollback: metadata in, one span per node out. A pure function.

Theory of operation
-------------------
Falkirk Wheel, section 3.3, as the greatest fixed point of constraints between neighbours. On an
edge from p to q, with choices s(p) and s(q):

1. **Nothing is lost.** What p discarded of its output is in q's state: T_D(s(p)) ⊆ s(q). If q goes
   on as it is while p goes back, what was under way between them is gone too: then
   T_D(s(p)) must be complete at q.
2. **Nothing is undone.** What q handled (messages and notifications) p will not make otherwise:
   T_M ∩ s(q) ⊆ Fix, where Fix is φ(s(p)) and, for a causal p, whatever can be replayed
   (:mod:`~penstock.core.rollback.witnessed`).

Each constraint, for a given choice at one end, holds for all larger choices at the other end. So of
two consistent choices the node-by-node larger is consistent as well, there is one largest, and
lowering nodes from their largest offers in any order arrives at it. A worklist does so: only
neighbours of what was lowered are looked at again. Who is furthest back goes first: where rollbacks
cascade, the rest then follows in one step and not in many.

Costs: a node is lowered at most once per offer, each time at the cost of its edges: linear in edges
times offers, and in practice a few visits per edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush

from penstock.core.rollback.constraints import Constraints
from penstock.core.rollback.metadata import NodeMetadata, RollbackGraph
from penstock.core.rollback.spans import TOP, Span
from penstock.core.rollback.witnessed import Witnessed
from penstock.errors import InvariantError

__all__ = ["Cause", "Reason", "Rollback", "settle", "solve"]


class Reason(Enum):
    """Why a neighbour's choice lowers a node's."""

    RESEND = "must send again what it did not keep"
    UNDONE = "has handled what may come out differently"


@dataclass(frozen=True, slots=True)
class Cause:
    """Who forced a node back, and why."""

    node: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Rollback:
    """For each node the span to go back to, and its number among the node's offers.

    ``causes`` says who lowered a node last; which of several neighbours it names is arbitrary.
    """

    spans: tuple[Span, ...]
    choices: tuple[int, ...]
    causes: tuple[Cause | None, ...]

    @property
    def rolled_back(self) -> tuple[int, ...]:
        """The nodes that do not go on as they are."""
        return tuple(node for node, span in enumerate(self.spans) if span is not TOP)


def solve(graph: RollbackGraph, kept: Sequence[NodeMetadata]) -> Rollback:
    """Return the largest consistent choice of one offer per node.

    >>> from penstock.core.rollback.metadata import Edge
    >>> from penstock.core.rollback.spans import EMPTY
    >>> source = NodeMetadata.spans(EMPTY, Span.epoch(9)).alive()
    >>> lazy = NodeMetadata.spans(EMPTY, Span.epoch(3), Span.epoch(6))
    >>> sink = NodeMetadata.spans(EMPTY, Span.epoch(5)).alive(Span.epoch(8))
    >>> edges = [Edge(0, 1, logged=True), Edge(1, 2)]
    >>> solve(RollbackGraph(3, edges), [source, lazy, sink]).spans
    (TOP, EMPTY, EMPTY)

    The failed node 1 offers 6, which the sink has passed; the sink can only go back to 5; what node
    1 sent until 6 is not logged, so it must start from 3, which the sink has passed, and so on. A
    log between the two ends that:

    >>> edges[1] = Edge(1, 2, logged=True)
    >>> solve(RollbackGraph(3, edges), [source, lazy, sink]).spans
    (TOP, Span(Time(6)), Span(Time(5)))
    """
    constraints = Constraints(graph, kept)
    at = [constraints.top(node) for node in range(len(graph))]
    failed = [node for node in range(len(graph)) if not constraints.is_live(node)]
    causes = settle(constraints, at, failed)
    return Rollback(
        tuple(kept[node].offers[choice].span for node, choice in enumerate(at)),
        tuple(at),
        tuple(causes),
    )


def settle(constraints: Constraints, at: list[int], work: Iterable[int]) -> list[Cause | None]:
    """Lower the choices ``at`` until they are consistent; return who caused what.

    ``work`` must have every node that is not at ``TOP``, except for nodes whose constraints with
    all their neighbours hold.
    """
    constraints.link()
    return _Descent(constraints, at, work).run()


class _Descent:
    def __init__(self, constraints: Constraints, at: list[int], work: Iterable[int]) -> None:
        self.constraints = constraints
        self.at = at
        self.waiting = bytearray(len(at))
        self.queue: list[tuple[int, int]] = []
        for node in work:
            self.waiting[node] = 1
            self.queue.append((constraints.level(node, at[node]), node))
        heapify(self.queue)
        # Twice the node that caused it, and one more if it undid something.
        self.cause = [-1] * len(at)
        self.witnessed = Witnessed(constraints)
        plain = constraints.plain
        self.gone = [t[i] if f else -1 for t, i, f in zip(constraints.gone, at, plain, strict=True)]
        self.events = [
            t[i] if f else -1 for t, i, f in zip(constraints.events, at, plain, strict=True)
        ]
        self.received = [
            t[i] if f else -1 for t, i, f in zip(constraints.received, at, plain, strict=True)
        ]

    def run(self) -> list[Cause | None]:
        """Go on until no node is waiting."""
        constraints, queue, waiting = self.constraints, self.queue, self.waiting
        plain = constraints.plain
        while queue:
            _, node = heappop(queue)
            if not waiting[node]:
                continue
            waiting[node] = 0
            if plain[node]:
                self._plain(node)
            if constraints.odd_in[node] or constraints.odd_out[node]:
                self._odd(node)
            if self.witnessed:
                for receiver, capped in self.witnessed.lost(node, self.at):
                    if self.at[receiver] >= capped:
                        self._lower(receiver, capped - 1, 2 * node + 1)
        undone = (Reason.RESEND, Reason.UNDONE)
        return [Cause(c >> 1, undone[c & 1]) if c >= 0 else None for c in self.cause]

    def _plain(self, node: int) -> None:
        """Check the edges between whole epochs: the loops that everything is spent in."""
        constraints, gone, events = self.constraints, self.gone, self.events
        limit = self.received[node]
        for above in constraints.above_unlogged[node]:
            if gone[above] > limit:
                self._fit(above, constraints.gone[above], limit, 2 * node)
        limit = constraints.state[node][self.at[node]]
        for below in constraints.below[node]:
            if events[below] > limit:
                self._fit(below, constraints.events[below], limit, 2 * node + 1)
        received = self.received
        for below in constraints.below_unlogged[node]:
            if gone[node] > received[below]:
                self._fit(node, constraints.gone[node], received[below], 2 * below)

    def _odd(self, node: int) -> None:
        constraints, at, edges = self.constraints, self.at, self.constraints.graph.edges
        for number in constraints.odd_in[node]:
            above = edges[number].source
            choice = at[above]
            while choice >= 0 and not constraints.nothing_lost(number, choice, at[node]):
                choice -= 1
            self._lower(above, choice, 2 * node)
        for number in constraints.odd_out[node]:
            below = edges[number].target
            if number not in constraints.exact:
                choice = at[below]
                while choice >= 0 and not constraints.nothing_undone(number, at[node], choice):
                    choice -= 1
                self._lower(below, choice, 2 * node + 1)
            choice = at[node]
            while choice >= 0 and not constraints.nothing_lost(number, choice, at[below]):
                choice -= 1
            self._lower(node, choice, 2 * below)

    def _fit(self, node: int, table: list[int], limit: int, cause: int) -> None:
        choice = self.at[node]
        while choice >= 0 and table[choice] > limit:
            choice -= 1
        self._lower(node, choice, cause)

    def _lower(self, node: int, choice: int, cause: int) -> None:
        if choice == self.at[node]:
            return
        constraints = self.constraints
        if choice < 0:
            raise InvariantError(
                f"node {node} would have to go back before its oldest offer "
                f"{constraints.kept[node].offers[0].span}, because of node {cause >> 1}",
                node=node,
                because=cause >> 1,
            )
        self.at[node] = choice
        self.cause[node] = cause
        if constraints.plain[node]:
            self.gone[node] = constraints.gone[node][choice]
            self.events[node] = constraints.events[node][choice]
            self.received[node] = constraints.received[node][choice]
        self.waiting[node] = 1
        heappush(self.queue, (constraints.level(node, choice), node))
