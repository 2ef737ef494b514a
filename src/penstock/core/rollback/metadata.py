"""What the solver knows: the graph, what each node can go back to, what witnesses remember.

Inert data, checked when the solver reads it. Follows Falkirk Wheel, section 3.3, with these names:

==============  ====================================================================
the paper       here
==============  ====================================================================
Ŝ(p)            ``NodeMetadata.offers``, each larger than the one before
T_D(s)          the edge's ``sent`` of ``Offer.discarded``; nothing on a logged edge
T_M ∩ s         ``Offer.events`` ∩ the edge, or exactly ``NodeMetadata.delivered[edge] ∩ s``
notifications   among ``Offer.events``; exactly, ``NodeMetadata.notified ∩ s``
⊤               an offer with the span ``TOP``
==============  ====================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from penstock.core.rollback.spans import EMPTY, TOP, Moment, Span
from penstock.core.rollback.transformers import SAME, Transformer
from penstock.errors import GraphError

__all__ = ["Edge", "Need", "NodeMetadata", "Offer", "RollbackGraph", "Witness"]

_NONE: Mapping[int, frozenset[Moment]] = MappingProxyType({})
_AS_SPAN = Span((), None)


@dataclass(frozen=True, slots=True)
class Edge:
    """Messages from one node to another.

    ``logged``: what went over it can be sent again after any failure, because it is durable, or
    because the sender is a source that reads it again.
    """

    source: int
    target: int
    transformer: Transformer = SAME
    logged: bool = False


class RollbackGraph:
    """Nodes ``range(nodes)`` and edges, numbered as listed; cycles are allowed.

    >>> graph = RollbackGraph(3, [Edge(0, 1), Edge(1, 2, logged=True)])
    >>> graph.ins[2], graph.outs[0], len(graph)
    ((1,), (0,), 3)
    """

    nodes: int
    edges: tuple[Edge, ...]
    ins: tuple[tuple[int, ...], ...]
    outs: tuple[tuple[int, ...], ...]

    def __init__(self, nodes: int, edges: Iterable[Edge]) -> None:
        self.nodes = nodes
        self.edges = tuple(edges)
        ins: list[list[int]] = [[] for _ in range(nodes)]
        outs: list[list[int]] = [[] for _ in range(nodes)]
        for number, edge in enumerate(self.edges):
            if not (0 <= edge.source < nodes and 0 <= edge.target < nodes):
                raise GraphError(
                    f"edge {number} joins {edge.source} and {edge.target}, but nodes go from 0 to "
                    f"{nodes - 1}"
                )
            ins[edge.target].append(number)
            outs[edge.source].append(number)
        self.ins = tuple(map(tuple, ins))
        self.outs = tuple(map(tuple, outs))

    def __len__(self) -> int:
        return self.nodes


@dataclass(frozen=True, slots=True)
class Offer:
    """Something a node can go back to: its state after exactly the events of ``span``.

    ``events``: no event of that state was later than this; for ``TOP``, how far the node has come.
    A larger offer has all events of a smaller one.
    ``discarded``: of the messages that events of ``span`` sent over edges that are not logged, only
    those of events in here are gone: all of them (the default), none when the node keeps or makes
    its output again, the truncated part for a log in memory.
    ``complete``: for ``TOP``, times of which nothing can be under way to the node any more.

    >>> Offer(Span.epoch(3)).discarded, Offer(TOP, events=Span.epoch(5)).discarded
    (Span(Time(3)), Span(Time(5)))
    """

    span: Span
    events: Span = _AS_SPAN
    discarded: Span = _AS_SPAN
    complete: Span = EMPTY

    def __post_init__(self) -> None:
        if self.events is _AS_SPAN:
            object.__setattr__(self, "events", self.span)
        if self.discarded is _AS_SPAN:
            object.__setattr__(self, "discarded", self.events)

    def to_plain(self) -> list[Any]:
        """Return a form that msgpack and JSON can carry."""
        parts = (self.span, self.events, self.discarded, self.complete)
        return [part.to_plain() for part in parts]

    @classmethod
    def from_plain(cls, plain: Iterable[Any]) -> Offer:
        """Return the offer that :meth:`to_plain` described."""
        return cls(*map(Span.from_plain, plain))


Need: TypeAlias = tuple[int, Moment]
"""A message that another was made from: the edge it came on, its time."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A survivor knows what a causal node's message was made from.

    ``needs`` is the message's own input for a stateless node; for a stateful one, all inputs that
    the node handled before it after its oldest offer. Replayed in the known order they give the
    same message again.
    """

    edge: int
    time: Moment
    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True)
class NodeMetadata:
    """Everything known about a node.

    ``delivered``: per edge in, the exact times of what was handled; edges that are not listed are
    taken to have delivered every time of the node's events. ``notified``: exact times of
    notifications, for the listed edges. ``witnesses``: of messages that this node sent.
    """

    offers: tuple[Offer, ...]
    delivered: Mapping[int, frozenset[Moment]] = field(default_factory=lambda: _NONE)
    notified: frozenset[Moment] = frozenset()
    witnesses: tuple[Witness, ...] = ()

    @classmethod
    def spans(cls, *spans: Span) -> NodeMetadata:
        """Return what a node keeps that offers these spans and logs nothing."""
        return cls(tuple(map(Offer, spans)))

    def alive(
        self,
        events: Span = TOP,
        *,
        discarded: Span | None = None,
        complete: Span = EMPTY,
    ) -> NodeMetadata:
        """Return this with the offer to go on as it is; its events have all that was offered.

        >>> NodeMetadata.spans(EMPTY).alive(Span.epoch(4)).offers[-1].span
        TOP
        """
        if self.offers:
            events = events | self.offers[-1].events
        live = Offer(TOP, events, events if discarded is None else discarded, complete)
        return replace(self, offers=(*self.offers, live))
