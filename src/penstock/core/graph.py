"""The logical graph: stages, connectors and loop contexts, as inert data that is checked once.

Decides which graphs are well formed and numbers their places; never runs anything. Follows the
Naiad paper, sections 2.1 and 3.1: an edge enters a loop through an ingress stage and leaves it
through an egress stage, and every cycle has a feedback stage of the outermost loop that the cycle
goes round in. Then every trip round a cycle makes the time later, which is what progress tracking
rests on.

Every stage and every connector is a *place*: a small integer, stages first, in the order of
definition. Shards of a stage share its place, so nothing here grows with their number. The time of
an event at a stage is the time on the stage's input side: an ingress sees outer times, an egress
and a feedback inner ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.core.components import strongly_connected
from penstock.errors import GraphError

__all__ = [
    "Connector",
    "GraphBuilder",
    "GraphStage",
    "LogicalGraph",
    "LoopContext",
    "StageKind",
]


class StageKind(Enum):
    """What a stage does to times."""

    INPUT = "input"
    PLAIN = "plain"
    INGRESS = "ingress"
    EGRESS = "egress"
    FEEDBACK = "feedback"


@dataclass(frozen=True, slots=True)
class LoopContext:
    """A loop context; ``parent`` is the loop around it, if any."""

    name: str
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class GraphStage:
    """A logical operator; ``loop`` is the loop it works in, or that it enters, leaves or turns."""

    name: str
    kind: StageKind = StageKind.PLAIN
    loop: str | None = None


@dataclass(frozen=True, slots=True)
class Connector:
    """A logical edge between two stages."""

    name: str
    source: str
    target: str


class LogicalGraph:
    """A well-formed logical graph with numbered places; malformed ones raise ``GraphError``.

    Laws
      * both ends of a connector are in the same loop context;
      * every cycle passes a feedback stage of the innermost context that contains the whole cycle;
      * ``graph.name_of(graph.place(name)) == name``; places are ``range(len(graph))``.

    >>> g = LogicalGraph([GraphStage("in", StageKind.INPUT), GraphStage("count")],
    ...                  [Connector("rows", "in", "count")])
    >>> [g.name_of(place) for place in range(len(g))], g.predecessors(g.place("count"))
    (['in', 'count', 'rows'], (2,))
    """

    stages: tuple[GraphStage, ...]
    connectors: tuple[Connector, ...]
    loops: tuple[LoopContext, ...]

    def __init__(
        self,
        stages: Iterable[GraphStage],
        connectors: Iterable[Connector] = (),
        loops: Iterable[LoopContext] = (),
    ) -> None:
        self.stages = tuple(stages)
        self.connectors = tuple(connectors)
        self.loops = tuple(loops)
        self._nesting = _nesting(self.loops)
        self._places = _numbered([*self.stages, *self.connectors])
        self._names = tuple(self._places)
        for stage in self.stages:
            self._check_stage(stage)
        for connector in self.connectors:
            self._check_connector(connector)
        contexts = [self._context_in(stage) for stage in self.stages]
        contexts += [self._context_out(self._stage(c.source)) for c in self.connectors]
        self._contexts: tuple[str | None, ...] = tuple(contexts)
        self._depths = tuple(len(self._nesting[context]) for context in contexts)
        successors: list[list[int]] = [[] for _ in self._names]
        predecessors: list[list[int]] = [[] for _ in self._names]
        for place, connector in enumerate(self.connectors, start=len(self.stages)):
            source, target = self._places[connector.source], self._places[connector.target]
            successors[source].append(place)
            successors[place].append(target)
            predecessors[place].append(source)
            predecessors[target].append(place)
        self._successors = tuple(map(tuple, successors))
        self._predecessors = tuple(map(tuple, predecessors))
        self._check_cycles()

    def __len__(self) -> int:
        """The number of places."""
        return len(self._names)

    def place(self, name: str) -> int:
        """Return the place of the stage or connector called ``name``."""
        try:
            return self._places[name]
        except KeyError:
            raise GraphError(
                f"there is no stage or connector {name!r}; there are: {', '.join(self._names)}"
            ) from None

    def name_of(self, place: int) -> str:
        """Return the name of the stage or connector at ``place``."""
        return self._names[place]

    def is_stage(self, place: int) -> bool:
        """Tell a stage's place from a connector's."""
        return place < len(self.stages)

    def kind(self, place: int) -> StageKind | None:
        """Return the kind of the stage at ``place``; None for a connector."""
        return self.stages[place].kind if place < len(self.stages) else None

    def context(self, place: int) -> str | None:
        """Return the innermost loop whose counter the times at ``place`` carry last."""
        return self._contexts[place]

    def nesting(self, loop: str | None) -> tuple[str, ...]:
        """Return the loops around and including ``loop``, outermost first."""
        return self._nesting[loop]

    def depth(self, place: int) -> int:
        """Return how many counters the times at ``place`` have."""
        return self._depths[place]

    def successors(self, place: int) -> tuple[int, ...]:
        """Return the places one step downstream."""
        return self._successors[place]

    def predecessors(self, place: int) -> tuple[int, ...]:
        """Return the places one step upstream."""
        return self._predecessors[place]

    def inputs(self) -> tuple[int, ...]:
        """Return the places of the input stages."""
        return tuple(p for p, stage in enumerate(self.stages) if stage.kind is StageKind.INPUT)

    def components(self) -> tuple[tuple[int, ...], ...]:
        """Return the strongly connected sets of places, upstream first."""
        return strongly_connected(self._successors)

    def _stage(self, name: str) -> GraphStage:
        return self.stages[self._places[name]]

    def _context_in(self, stage: GraphStage) -> str | None:
        if stage.kind is StageKind.INGRESS:
            return self._parent(stage)
        return stage.loop

    def _context_out(self, stage: GraphStage) -> str | None:
        if stage.kind is StageKind.EGRESS:
            return self._parent(stage)
        return stage.loop

    def _parent(self, stage: GraphStage) -> str | None:
        nesting = self._nesting[stage.loop]
        return nesting[-2] if len(nesting) > 1 else None

    def _check_stage(self, stage: GraphStage) -> None:
        if stage.loop not in self._nesting:
            raise GraphError(
                f"stage {stage.name!r} is in loop {stage.loop!r}, which is not defined",
                stage=stage.name,
            )
        if stage.kind is StageKind.INPUT and stage.loop is not None:
            raise GraphError(
                f"input {stage.name!r} is inside loop {stage.loop!r}; inputs bring times without "
                "loop counters: put it outside and connect it through an ingress",
                stage=stage.name,
            )
        serves_loop = (StageKind.INGRESS, StageKind.EGRESS, StageKind.FEEDBACK)
        if stage.kind in serves_loop and stage.loop is None:
            raise GraphError(
                f"{stage.kind.value} {stage.name!r} names no loop that it belongs to",
                stage=stage.name,
            )

    def _check_connector(self, connector: Connector) -> None:
        for end in (connector.source, connector.target):
            place = self._places.get(end)
            if place is None or not self.is_stage(place):
                raise GraphError(
                    f"connector {connector.name!r} ends at {end!r}, which is not a stage",
                    connector=connector.name,
                )
        source, target = self._stage(connector.source), self._stage(connector.target)
        if target.kind is StageKind.INPUT:
            raise GraphError(
                f"connector {connector.name!r} leads into input {target.name!r}; inputs are fed "
                "from outside the graph only",
                connector=connector.name,
            )
        gives, takes = self._context_out(source), self._context_in(target)
        if gives != takes:
            raise GraphError(
                f"connector {connector.name!r} goes from {self._where(source, gives)} to "
                f"{self._where(target, takes)}; an edge enters a loop through an ingress and "
                "leaves it through an egress, one loop at a time",
                connector=connector.name,
            )

    def _where(self, stage: GraphStage, context: str | None) -> str:
        counters = len(self._nesting[context])
        inside = "outside every loop" if context is None else f"in loop {context!r}"
        return f"{stage.name!r} ({inside}, times with {counters} counter(s))"

    def _check_cycles(self) -> None:
        """Refuse cycles that could come round without a later time, context by context."""
        pending: list[tuple[str | None, list[int]]] = [(None, list(range(len(self))))]
        while pending:
            context, members = pending.pop()
            for cycle in self._cycles_without_feedback(context, members):
                inner = [self._nesting[self._contexts[p]] for p in cycle]
                level = len(self._nesting[context])
                children = {nest[level] if len(nest) > level else None for nest in inner}
                child = next(iter(children))
                if len(children) > 1 or child is None:
                    listed = " -> ".join(self._names[p] for p in cycle if self.is_stage(p))
                    where = "outside every loop" if context is None else f"in loop {context!r}"
                    raise GraphError(
                        f"a cycle {where} has no feedback stage of its own: {listed}; messages "
                        "could go round for ever at one time. Put the cycle in a loop context and "
                        "a feedback stage of that context on it",
                        stages=listed,
                    )
                pending.append((child, list(cycle)))

    def _cycles_without_feedback(
        self, context: str | None, members: list[int]
    ) -> list[tuple[int, ...]]:
        """Return the cyclic components among ``members`` without the context's feedback stages."""
        kept = [
            place
            for place in members
            if not (self.kind(place) is StageKind.FEEDBACK and self.stages[place].loop == context)
        ]
        index = {place: i for i, place in enumerate(kept)}
        edges = [[index[n] for n in self._successors[p] if n in index] for p in kept]
        return [
            tuple(sorted(kept[i] for i in component))
            for component in strongly_connected(edges)
            if len(component) > 1
        ]


class GraphBuilder:
    """Collects stages, connectors and loops; :meth:`build` checks them and numbers the places.

    Every method returns the name of what it added, to connect it with.

    >>> b = GraphBuilder()
    >>> loop = b.loop("reach")
    >>> stages = [b.input("edges"), b.ingress("enter", loop), b.stage("join", loop)]
    >>> again, leave = b.feedback("again", loop), b.egress("leave", loop)
    >>> for source, target in [("edges", "enter"), ("enter", "join"), ("join", again),
    ...                        (again, "join"), ("join", leave)]:
    ...     _ = b.connect(source, target)
    >>> graph = b.build()
    >>> len(graph), graph.depth(graph.place("join")), graph.depth(graph.place("edges->enter"))
    (10, 1, 0)
    """

    def __init__(self) -> None:
        self._stages: list[GraphStage] = []
        self._connectors: list[Connector] = []
        self._loops: list[LoopContext] = []

    def input(self, name: str) -> str:
        """Add an input stage."""
        return self._add(name, StageKind.INPUT, None)

    def stage(self, name: str, loop: str | None = None) -> str:
        """Add an ordinary stage, inside ``loop`` if one is given."""
        return self._add(name, StageKind.PLAIN, loop)

    def loop(self, name: str, parent: str | None = None) -> str:
        """Add a loop context, inside ``parent`` if one is given."""
        self._loops.append(LoopContext(name, parent))
        return name

    def ingress(self, name: str, loop: str) -> str:
        """Add a stage through which edges enter ``loop``."""
        return self._add(name, StageKind.INGRESS, loop)

    def egress(self, name: str, loop: str) -> str:
        """Add a stage through which edges leave ``loop``."""
        return self._add(name, StageKind.EGRESS, loop)

    def feedback(self, name: str, loop: str) -> str:
        """Add a stage that starts the next iteration of ``loop``."""
        return self._add(name, StageKind.FEEDBACK, loop)

    def connect(self, source: str, target: str, name: str | None = None) -> str:
        """Add a connector; without a name it is called after its ends."""
        if name is None:
            name = plain = f"{source}->{target}"
            taken = {connector.name for connector in self._connectors}
            number = 2
            while name in taken:
                name, number = f"{plain}#{number}", number + 1
        self._connectors.append(Connector(name, source, target))
        return name

    def build(self) -> LogicalGraph:
        """Return the graph, or raise ``GraphError`` saying what is wrong with it."""
        return LogicalGraph(self._stages, self._connectors, self._loops)

    def _add(self, name: str, kind: StageKind, loop: str | None) -> str:
        self._stages.append(GraphStage(name, kind, loop))
        return name


def _numbered(parts: Sequence[GraphStage | Connector]) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, part in enumerate(parts):
        if part.name in places:
            raise GraphError(f"two stages or connectors are called {part.name!r}", name=part.name)
        places[part.name] = place
    return places


def _nesting(loops: Sequence[LoopContext]) -> dict[str | None, tuple[str, ...]]:
    """Return, for each loop, the loops around and including it, outermost first."""
    parents: dict[str, str | None] = {}
    for loop in loops:
        if loop.name in parents:
            raise GraphError(f"two loops are called {loop.name!r}", loop=loop.name)
        parents[loop.name] = loop.parent
    nesting: dict[str | None, tuple[str, ...]] = {None: ()}
    for loop in loops:
        chain: list[str] = []
        at: str | None = loop.name
        while at is not None:
            if at in chain:
                raise GraphError(f"loop {loop.name!r} is inside itself", loop=loop.name)
            if at not in parents:
                raise GraphError(
                    f"loop {chain[-1]!r} is inside {at!r}, which is not defined", loop=loop.name
                )
            chain.append(at)
            at = parents[at]
        nesting[loop.name] = tuple(reversed(chain))
    return nesting
