"""What simulated nodes compute, and what they must have computed in the end.

Rows are (id, value).  Where a row goes and whether it is filtered depends on its id alone, so the
rows that reach a node in an epoch are known from the sources' cuts.  Values may depend on the order
in which an *ordered* node handled its inputs; given that order, they are known too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.reports import Cut
from penstock.core.progress.marks import WATERMARK_END, WATERMARK_IDLE
from penstock.testing.simulator.roles.shape import ReplicatedShape

__all__ = [
    "Row",
    "Rows",
    "Shape",
    "Vertex",
    "distribute",
    "enter",
    "epochs_of",
    "expected",
    "fresh",
    "hop",
    "hops_of",
    "mix",
    "of_epoch",
    "random_shape",
    "source_rows",
    "watermark_at",
    "watermarks_of",
]

Row = tuple[int, int]
Rows = tuple[Row, ...]
MASK = (1 << 32) - 1


def mix(first: int, second: int) -> int:
    """Two numbers as one; the same everywhere."""
    value = (first * 1_000_003 ^ (second + 7) * 2_654_435_761) & MASK
    return (value ^ value >> 15) & MASK


@dataclass(frozen=True)
class Shape:
    """A graph, what its nodes do, and how much the sources read."""

    graph: CausalGraph
    modes: Mapping[int, str]
    epochs: int
    """Epochs are numbered below this; a source may leave some out, and then ends its stream."""
    batch_max: int = 3
    cut_share: float = 0.35
    skip_share: float = 0.0
    """How often a source leaves epochs out."""
    budget_bytes: int | None = None
    """How much of its log a node keeps in memory."""
    regimes: Mapping[int, str] = field(default_factory=dict)
    """Of inner nodes; causal where it is not said."""
    every: Mapping[int, int] = field(default_factory=dict)
    """(Lazy …) how many epochs from checkpoint to checkpoint."""
    pairs: Mapping[int, int] = field(default_factory=dict)
    """(Persisted edges) per source the sink that has published what it reads."""
    switched: frozenset[int] = frozenset()
    """Nodes whose logs are turned on and off."""
    global_every: int | None = None
    """(Global checkpoints) how many epochs from one to the next."""
    cuts_multiples: bool = True
    """(Global checkpoints) whether sources never leave out the epochs of checkpoints."""
    functions: Mapping[int, NodeKind] = field(default_factory=dict)
    """What nodes are, where recovery takes them for less."""
    links: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """(Planned flows) per node its branches: each gets every row, at one of its nodes."""
    hosts: Mapping[int, int] = field(default_factory=dict)
    """(Planned flows) the host of each node."""
    replicated: ReplicatedShape | None = None
    """What replicas play, beside the nodes."""
    whole: CausalGraph = field(init=False)
    """The graph with what goes from sinks to sources."""

    def __post_init__(self) -> None:
        graph = self.graph
        fed = {source: (sink,) for source, sink in self.pairs.items()}
        whole = CausalGraph(graph.kinds, {**graph.parents, **fed}, graph.units)
        object.__setattr__(self, "whole", whole if fed else graph)

    def holds(self, node: int) -> bool:
        """Whether a node keeps its output back until an epoch is complete."""
        return node in self.graph.clean and node not in self.graph.units

    def vertex(self, node: int) -> Vertex:
        """A node's vertex in its initial state."""
        quiet = not self.cuts_multiples
        kind = self.functions.get(node, self.graph.kinds[node])
        return Vertex(kind, node, self.modes[node], self.holds(node), quiet)

    def is_forced(self, epoch: int) -> bool:
        """Whether an epoch may be complete because checkpoints are due, though no source cut it."""
        every = self.global_every
        return every is not None and not self.cuts_multiples and (epoch + 1) % every == 0


def source_rows(source: int, start: int, end: int) -> Rows:
    """Rows of a source by offset."""
    return tuple((mix(source, offset), offset % 10) for offset in range(start, end))


def distribute(shape: Shape, node: int, rows: Rows) -> dict[int, Rows]:
    """Which child gets which rows."""
    children = shape.graph.children[node]
    if not rows or not children:
        return {}
    mode = shape.modes[node]
    if mode == "broadcast":
        return dict.fromkeys(children, rows)
    parts: dict[int, list[Row]] = {}
    branches = shape.links.get(node, (children,))
    for row in rows:
        if mode == "filter" and row[0] >> 2 & 1:
            continue
        for branch in branches:
            parts.setdefault(branch[(row[0] >> 5) % len(branch)], []).append(row)
    return {child: tuple(parts[child]) for child in sorted(parts)}


def of_epoch(epoch: int) -> int:
    """Stands for the end of an epoch where a row's id would."""
    return -1 - epoch


def enter(node: int, row: Row) -> Row:
    """A row that comes into a loop at a node: rows that came in elsewhere are others."""
    return mix(row[0], 200 + node), row[1]


def hops_of(row: int) -> int:
    """How often a row goes round a loop."""
    return (row >> 7) % 4


def hop(members: tuple[int, ...], row: int, hops: int) -> tuple[int | None, int]:
    """Where a row goes next in a loop, and how often after that; None: it settles."""
    if not hops:
        return None, 0
    return members[mix(row, hops) % len(members)], hops - 1


def _settled(members: tuple[int, ...], inputs: Mapping[int, list[Row]]) -> dict[int, list[Row]]:
    """Where the rows that come into a loop end up."""
    found: dict[int, list[Row]] = {member: [] for member in members}
    for member in members:
        for row in (enter(member, outside) for outside in inputs[member]):
            node, hops = member, hops_of(row[0])
            while hops:
                following, hops = hop(members, row[0], hops)
                node = node if following is None else following
            found[node].append(row)
    return found


@dataclass
class Vertex:
    """A node's function and state; copied for checkpoints."""

    kind: NodeKind
    node: int
    mode: str
    holds: bool = False
    """(Clean) whether output waits for the end of its epoch."""
    quiet: bool = False
    """Whether it makes nothing of an epoch without rows."""
    epochs: dict[int, list[Row]] = field(default_factory=dict)
    """(Stateful, sink) rows by epoch that is not complete."""
    total: int = 0
    history: list[Row] = field(default_factory=list)
    """(Ordered) its inputs, in order."""
    digest: int = 0

    def copy(self) -> Vertex:
        """An independent copy."""
        return Vertex(
            self.kind,
            self.node,
            self.mode,
            self.holds,
            self.quiet,
            {epoch: list(rows) for epoch, rows in self.epochs.items()},
            self.total,
            list(self.history),
            self.digest,
        )

    def receive(self, rows: Rows, epoch: int) -> Rows:
        """Handle rows; give the output."""
        if self.kind is NodeKind.ORDERED:
            out = []
            for row in rows:
                self.history.append(row)
                self.digest = mix(self.digest, row[0] ^ row[1])
                out.append((mix(row[0], self.node), self.digest % 1000))
            return tuple(out)
        if self.holds or self.kind in (NodeKind.STATEFUL, NodeKind.SINK):
            self.epochs.setdefault(epoch, []).extend(rows)
            if self.holds or self.kind is NodeKind.SINK or self.mode != "broadcast":
                return ()
        return tuple((mix(row[0], self.node), row[1] + 1) for row in rows)

    def complete(self, epoch: int) -> tuple[Rows, list[Row]]:
        """An epoch is complete: the output, and the rows that it had."""
        rows = sorted(self.epochs.pop(epoch, []))
        if self.kind not in (NodeKind.STATEFUL, NodeKind.SINK):
            return tuple((mix(row[0], self.node), row[1] + 1) for row in rows), rows
        self.total += sum(value for _, value in rows)
        if self.kind is NodeKind.SINK or (self.quiet and not rows):
            return (), rows
        out = [(mix(self.node + 100, epoch % 1009), self.total % 1000)]
        if self.mode == "loop" or (self.holds and self.mode == "broadcast"):
            out += [(mix(row[0], self.node), row[1] + 1) for row in rows]
        return tuple(out), rows


def epochs_of(shape: Shape, cuts: Mapping[int, list[Cut]], node: int) -> list[int]:
    """The epochs that end at a node: those that any source above it has cut."""
    above = (
        source
        for source in cuts
        if source not in shape.pairs and node in shape.whole.descendants[source]
    )
    return sorted({cut.epoch for source in above for cut in cuts[source]})


def expected(
    shape: Shape,
    cuts: Mapping[int, list[Cut]],
    epoch: int,
    vertices: Mapping[int, Vertex],
    orders: Mapping[int, Mapping[int, int]] | None = None,
    noise: Mapping[tuple[int, int], int] | None = None,
) -> dict[int, list[Row]]:
    """The rows that reach each node in an epoch, sorted.

    ``vertices`` carries the totals from epoch to epoch.  ``orders`` gives, for ordered nodes, the
    value of each output id; ``noise`` what a node added to a row, or to what an epoch led to.
    """
    noise = noise or {}
    graph = shape.graph
    inputs: dict[int, list[Row]] = {node: [] for node in graph.order}
    for node in shape.whole.order:
        if node in graph.units and node == graph.members[node][0]:
            inputs.update(_settled(graph.members[node], inputs))
        batches: list[Rows] = []
        if node in shape.pairs:
            batches = [(row,) for row in inputs[shape.pairs[node]]]
        elif graph.kinds[node] is NodeKind.SOURCE:
            offset = 0
            for cut in cuts[node]:
                if cut.epoch == epoch:
                    batches = [(row,) for row in source_rows(node, offset, cut.offset)]
                offset = cut.offset
        else:
            rows = inputs[node] = sorted(inputs[node])
            vertex = vertices[node]
            noisy = [(i, value + noise.get((node, i), 0)) for i, value in rows]
            batches = [vertex.receive((row,), epoch) for row in noisy]
            if epoch in epochs_of(shape, cuts, node):
                made, _ = vertex.complete(epoch)
                extra = noise.get((node, of_epoch(epoch)), 0)
                batches.append(tuple((i, value + extra) for i, value in made))
            if orders is not None and node in orders:
                order = orders[node]
                batches = [tuple((i, order.get(i, -1)) for i, _ in rows_) for rows_ in batches]
        for batch in batches:
            for child, part in distribute(shape, node, batch).items():
                inputs[child].extend(part)
    return inputs


def watermark_at(shape: Shape, cuts: Mapping[int, list[Cut]], node: int, epoch: int) -> int | None:
    """The watermark of a node after an epoch, from the sources' cuts alone."""
    return watermarks_of(shape, cuts)(node, epoch)


def watermarks_of(shape: Shape, cuts: Mapping[int, list[Cut]]) -> Callable[[int, int], int | None]:
    """The watermark of a node after an epoch; what was found once is taken to stay."""
    return _Watermarks(shape, cuts).at


class _Watermarks:
    """Watermarks that follow from some cuts, each found once."""

    def __init__(self, shape: Shape, cuts: Mapping[int, list[Cut]]) -> None:
        self.shape = shape
        self.cuts = cuts
        self._known: dict[tuple[int, int], int | None] = {}

    def at(self, node: int, epoch: int) -> int | None:
        key = (node, epoch)
        if key not in self._known:
            self._known[key] = self._find(node, epoch)
        return self._known[key]

    def _find(self, node: int, epoch: int) -> int | None:
        kind = self.shape.graph.kinds[node]
        if node in self.shape.pairs:
            return self.at(self.shape.pairs[node], epoch)
        if kind is NodeKind.SOURCE:
            past = [cut.watermark_us for cut in self.cuts[node] if cut.epoch <= epoch]
            return past[-1] if past else None
        if kind not in (NodeKind.STATEFUL, NodeKind.ORDERED):
            return self._least(node, epoch)
        greatest: int | None = None
        for past_epoch in epochs_of(self.shape, self.cuts, node):
            if past_epoch > epoch:
                break
            least = self._least(node, past_epoch)
            if least is not None and least != WATERMARK_IDLE:
                greatest = least if greatest is None else max(greatest, least)
        return greatest

    def _least(self, node: int, epoch: int) -> int | None:
        graph = self.shape.graph
        above = [
            self.at(parent, epoch)
            for member in graph.members[node]
            for parent in graph.parents[member]
        ]
        if None in above:
            return None
        known = [watermark for watermark in above if watermark is not None]
        busy = [one for one in known if one not in (WATERMARK_IDLE, WATERMARK_END)]
        ended = bool(known) and WATERMARK_IDLE not in known
        return min(busy, default=WATERMARK_END if ended else WATERMARK_IDLE)


def fresh(shape: Shape) -> dict[int, Vertex]:
    """A vertex for each node."""
    return {node: shape.vertex(node) for node in shape.graph.order}


def random_shape(random: Random, twice: bool = False) -> Shape:
    """A layered graph without cycles: sources, one to three inner layers, sinks.

    Some have a loop; with ``twice`` all have two, side by side or one after the other.
    """
    layers: list[list[int]] = []
    kinds: dict[int, NodeKind] = {}
    modes: dict[int, str] = {}
    parents: dict[int, tuple[int, ...]] = {}
    units: dict[int, int] = {}
    noted_share = random.choice((0.0, 0.0, 0.3))
    inner = random.choice((1, 2, 2, 3))
    sizes = [random.choice((1, 2, 2)), *(random.choice((1, 1, 2, 2)) for _ in range(inner)), 1]
    sizes[-1] = random.choice((1, 2))
    loops = _two_loops(random, inner) if twice else _one_loop(random, inner)
    for depth, members in loops.items():
        sizes[depth] = len(members)
    number = 0
    for depth, size in enumerate(sizes):
        layer = []
        for place in range(size):
            kinds[number], modes[number] = _random_node(random, depth, loops, len(sizes))
            if depth in loops:
                units[number] = loops[depth][place]
            layer.append(number)
            number += 1
        layers.append(layer)
    for depth in range(1, len(layers)):
        above = layers[depth - 1]
        for node in layers[depth]:
            chosen = [other for other in above if random.random() < 0.75] or [random.choice(above)]
            if depth > 1 and random.random() < 0.15:
                chosen.append(random.choice(layers[depth - 2]))
            parents[node] = tuple(sorted(set(chosen)))
        if depth in loops and random.random() < 0.4:
            parents[random.choice(layers[depth])] = ()
        for other in above:
            if any(other in parents.get(node, ()) for node in layers[depth]):
                continue
            if depth - 1 not in loops or twice or random.random() < 0.5:
                node = random.choice(layers[depth])
                parents[node] = tuple(sorted({*parents[node], other}))
    noted = frozenset(
        node
        for node, kind in kinds.items()
        if kind not in (NodeKind.SOURCE, NodeKind.SINK)
        and node not in units
        and random.random() < noted_share
    )
    kinds.update(dict.fromkeys(noted, NodeKind.ORDERED))  # its steps are recorded in their order
    return Shape(
        CausalGraph(kinds, parents, units, noted),
        modes,
        epochs=random.choice((2, 3, 4, 6, 9)),
        skip_share=random.choice((0.0, 0.3, 0.6)),
        budget_bytes=random.choice((None, 0, 40)),
    )


Loops = dict[int, tuple[int, ...]]
"""Per layer that is in loops: the unit of each of its nodes."""


def _one_loop(random: Random, inner: int) -> Loops:
    """A loop, now and then."""
    depth = random.randint(1, inner) if random.random() < 0.25 else 0
    return {depth: (0,) * random.choice((2, 2, 3))} if depth else {}


def _two_loops(random: Random, inner: int) -> Loops:
    """Two loops, in one layer or in two."""
    first, second = ((unit,) * random.choice((2, 2, 3)) for unit in (0, 1))
    if inner < 2 or random.random() < 0.4:
        return {random.randint(1, inner): first + second}
    above, below = sorted(random.sample(range(1, inner + 1), 2))
    return {above: first, below: second}


def _random_node(random: Random, depth: int, loops: Loops, layers: int) -> tuple[NodeKind, str]:
    mode = random.choice(("split", "split", "filter", "broadcast"))
    if depth == 0:
        return NodeKind.SOURCE, mode
    if depth == layers - 1:
        return NodeKind.SINK, mode
    if depth in loops:
        return NodeKind.STATEFUL, "loop"
    inner = (
        NodeKind.STATELESS,
        NodeKind.STATELESS,
        NodeKind.STATELESS,
        NodeKind.STATEFUL,
        NodeKind.ORDERED,
    )
    return random.choice(inner), mode
