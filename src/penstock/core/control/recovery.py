"""The controller's part of causal recovery: fence, collect, plan, start, open.

Theory of operation
-------------------
    QUIET --nodes lost--> COLLECTING --all reports in--> STARTING --all started--> OPENING --> QUIET
                              ^------------- more nodes lost, or joining -------------'

- The failed set is every node that was lost and every node not durably recorded as recovered, and
  whoever is in a loop with one of them.
- New incarnations for all of it are made durable before anybody hears of them.  The store refuses
  the old ones from then on; so does every node that has been told.
- Survivors answer with reports made after the fence.  The plan is a pure function of these and of
  what is durable.  If it needs more nodes to restart, they are fenced too and everybody is asked
  again, in a new round; answers of older rounds are ignored.
- Nodes of the failed set get their starts; when all have acknowledged, each edge is opened by one
  message to its sender.
- When a node cannot repeat all its known steps, every node connected with it restarts from whole
  epochs, and no known steps remain.
- A node counts as failed until it has hit all its targets and all its edges are open: until then
  nobody could plan around it.

A controller that restarts reads its :class:`Record` and does the same again with the same failed
set, at new incarnations.  It needs nothing else.

The machine never reads the store: ``Collect`` asks for what is durable, ``stored`` brings it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.core.causal.clocks import Position
from penstock.core.causal.graph import CausalGraph, Kind
from penstock.core.causal.plan import limited, plan
from penstock.core.causal.reports import Plan, Report, Start, Stored
from penstock.core.causal.times import ZERO
from penstock.core.progress.marks import EPOCH_END
from penstock.errors import UsageError

__all__ = [
    "Collect",
    "Fence",
    "FenceStore",
    "GiveUp",
    "OpenEdge",
    "Persist",
    "Record",
    "RecoveryEffect",
    "RecoveryMachine",
    "Refuse",
    "StartNode",
    "Truncate",
    "Widen",
]


@dataclass(frozen=True)
class Record:
    """What the controller must not forget."""

    incarnations: Mapping[int, int]
    unfinished: frozenset[int] = frozenset()
    """Nodes that were restarted and have not recovered."""
    recoveries: int = 0
    limits: Mapping[int, int] = field(default_factory=dict)
    """Where a person wants unfinished nodes to start: at or before these epochs."""


class Persist(NamedTuple):
    """Make the record durable before performing anything that follows."""

    record: Record


class FenceStore(NamedTuple):
    """Let the store refuse every other incarnation of these nodes, at once."""

    incarnations: Mapping[int, int]


class Collect(NamedTuple):
    """Bring what the store has of these nodes: call ``stored``."""

    round: int
    nodes: tuple[int, ...]


class Fence(NamedTuple):
    """Tell a survivor who has new incarnations; it answers with its report."""

    node: int
    round: int
    incarnations: Mapping[int, int]


class StartNode(NamedTuple):
    """Start a new incarnation of a node; it answers ``started``."""

    node: int
    incarnation: int
    incarnations: Mapping[int, int]
    """Its neighbours', and its own: a node of a loop may send to itself."""
    start: Start


class OpenEdge(NamedTuple):
    """Tell a sender to send again after a position, then to go on."""

    sender: int
    target: int
    incarnation: int
    """The target's."""
    position: Position


class Truncate(NamedTuple):
    """Tell a node that nobody goes back behind these positions, nor behind this epoch."""

    node: int
    positions: Mapping[int, Position]
    epoch: int


class Refuse(NamedTuple):
    """The checkpoints that a person asked for are gone; the nodes start from the newest instead."""

    reason: str


class Widen(NamedTuple):
    """Say that all that is connected with a node restarts, and why."""

    reason: str


class GiveUp(NamedTuple):
    """Too much was lost for causal recovery."""

    reason: str


RecoveryEffect = (
    Persist
    | FenceStore
    | Collect
    | Fence
    | StartNode
    | OpenEdge
    | Truncate
    | Refuse
    | Widen
    | GiveUp
)


@dataclass
class _Round:
    number: int
    failed: frozenset[int]
    fences: dict[int, int]
    waiting: set[int]
    reports: dict[int, Report] = field(default_factory=dict)
    stored: Mapping[int, Stored] | None = None
    plan: Plan | None = None
    starting: set[int] = field(default_factory=set)


class RecoveryMachine:
    """Decides, from losses and reports, who restarts where.

    >>> from penstock.core.causal.graph import Kind
    >>> graph = CausalGraph({0: Kind.SOURCE, 1: Kind.STATELESS, 2: Kind.SINK}, {1: (0,), 2: (1,)})
    >>> machine = RecoveryMachine(graph, Record({0: 1, 1: 1, 2: 1}))
    >>> effects = machine.lost({1: 1})
    >>> [type(effect).__name__ for effect in effects]
    ['Persist', 'FenceStore', 'Fence', 'Fence', 'Collect']
    >>> machine.record.incarnations[1], machine.failed
    (2, frozenset({1}))
    """

    def __init__(
        self, graph: CausalGraph, record: Record, round_: int = 0, all_together: bool = False
    ) -> None:
        self.graph = graph
        self.record = record
        self.all_together = all_together
        """Any loss fails every node, and all start from the newest epoch that all have."""
        self._number = round_
        self._round: _Round | None = None
        self._unopened: set[tuple[int, int]] = set()
        self._hit: set[int] = set()
        self._truncated: Mapping[int, int] = {}
        self.history: list[Plan] = []

    @property
    def failed(self) -> frozenset[int]:
        """The nodes that are restarting or have not recovered."""
        return self.record.unfinished

    @property
    def quiet(self) -> bool:
        """Whether everybody is as good as everybody else."""
        return not self.record.unfinished

    @property
    def round(self) -> int:
        """The number of the newest fence."""
        return self._number

    @property
    def open(self) -> bool:
        """Whether every edge of the newest plan is open."""
        return self._round is None and not self._unopened

    # -- events ----------------------------------------------------------------------------------

    def resumed(self) -> list[RecoveryEffect]:
        """A new controller has read the record: run unfinished recoveries again."""
        return self._again(frozenset()) if self.record.unfinished else []

    def lost(self, nodes: Mapping[int, int]) -> list[RecoveryEffect]:
        """These incarnations of nodes are gone, or taken for gone; old news changes nothing."""
        gone = frozenset(node for node, number in nodes.items() if number == self._now(node))
        return self._again(gone) if gone else []

    def contradicted(self, node: int, incarnation: int, reason: str) -> list[RecoveryEffect]:
        """A restarted node cannot repeat all the steps that others know of.

        Every node connected with it restarts from durable state.  For sinks and clean nodes that
        is whole epochs, so no step has to be repeated.  If all of them have restarted already,
        give up.
        """
        if incarnation != self._now(node):
            return []
        region = frozenset(
            n for n, r in self.graph.regions.items() if r == self.graph.regions[node]
        )
        if region <= self.record.unfinished:
            return [GiveUp(reason)]
        return [Widen(reason), *self._again(region)]

    def rollback(self, to: int, nodes: Iterable[int] | None = None) -> list[RecoveryEffect]:
        """A person asks for it: all goes back to checkpoints at or before an epoch.

        With ``nodes``, only what is connected with them.  Sinks keep what they have published.
        What may be asked for is what :func:`~..causal.retention.rollback_from` says; checkpoints
        must not be deleted, nor logs cut, until ``record.limits`` is empty again.
        """
        chosen = self.graph.order if nodes is None else tuple(nodes)
        regions = {self.graph.regions[node] for node in chosen}
        back = frozenset(node for node in self.graph.order if self.graph.regions[node] in regions)
        void = sorted(self.graph.unrepeatable & back)
        if void:
            raise UsageError(
                f"node {void[0]} cannot repeat what it has made, and sinks have published what "
                "follows from it: a flow with such a stage is not rolled back by hand"
            )
        limits = {node: to for node in sorted(back) if self.graph.kinds[node] is not Kind.SINK}
        return self._again(back, limits)

    def reported(self, node: int, round_: int, report: Report) -> list[RecoveryEffect]:
        """A survivor's answer to a fence."""
        current = self._round
        if current is None or current.number != round_ or node not in current.waiting:
            return []
        current.waiting.discard(node)
        current.reports[node] = report
        return self._maybe_plan(current)

    def stored(self, round_: int, stored: Mapping[int, Stored]) -> list[RecoveryEffect]:
        """What is durable of the failed nodes."""
        current = self._round
        if current is None or current.number != round_:
            return []
        current.stored = stored
        return self._maybe_plan(current)

    def started(self, node: int, incarnation: int) -> list[RecoveryEffect]:
        """A new incarnation has taken its start."""
        current = self._round
        if current is None or current.plan is None or incarnation != self._now(node):
            return []
        current.starting.discard(node)
        if current.starting:
            return []
        found, self._round = current.plan, None
        self._unopened = set(found.edges())
        return [
            OpenEdge(sender, target, self._now(target), found.position(sender, target))
            for sender, target in found.edges()
        ]

    def opened(
        self, sender: int, incarnation: int, target: int, target_incarnation: int
    ) -> list[RecoveryEffect]:
        """A sender has opened an edge."""
        if incarnation != self._now(sender) or target_incarnation != self._now(target):
            return []
        self._unopened.discard((sender, target))
        return self._settle()

    def recovered(self, node: int, incarnation: int) -> list[RecoveryEffect]:
        """A restarted node has hit all its targets."""
        if incarnation != self._now(node) or node not in self.record.unfinished:
            return []
        self._hit.add(node)
        return self._settle()

    def _settle(self) -> list[RecoveryEffect]:
        """Record the nodes that are as good as any other now."""
        if self._round is not None:
            return []
        waiting = {node for edge in self._unopened for node in edge}
        settled = frozenset(n for n in self.record.unfinished if n in self._hit - waiting)
        if not settled:
            return []
        self.record = replace(
            self.record,
            unfinished=self.record.unfinished - settled,
            limits={n: to for n, to in self.record.limits.items() if n not in settled},
        )
        return [Persist(self.record)]

    def truncate_due(self, lows: Mapping[int, int]) -> list[RecoveryEffect]:
        """Now and then, with the low epochs of what is durable: what may be forgotten."""
        if self.record.limits:
            return []
        before, self._truncated = self._truncated, lows
        return [
            Truncate(
                node,
                dict.fromkeys(self.graph.children[node], Position(ZERO, lows[node])),
                lows[node],
            )
            for node in self.graph.order
            if lows[node] > before.get(node, -1)
        ]

    def plan(
        self, failed: frozenset[int], reports: Mapping[int, Report], stored: Mapping[int, Stored]
    ) -> Plan:
        """The pure function behind it all."""
        return plan(self.graph, failed, reports, stored)

    # -- inside ----------------------------------------------------------------------------------

    def _now(self, node: int) -> int:
        return self.record.incarnations[node]

    def _again(
        self, nodes: frozenset[int], limits: Mapping[int, int] | None = None
    ) -> list[RecoveryEffect]:
        """Fence the failed set, grown by some nodes, and ask everybody else."""
        failed = self.graph.closure(self.record.unfinished | nodes)
        if self.all_together:
            failed = frozenset(self.graph.order)
        incarnations = {
            node: number + 1 if node in failed else number
            for node, number in self.record.incarnations.items()
        }
        merged = dict(self.record.limits)
        for node, to in (limits or {}).items():
            merged[node] = min(to, merged.get(node, to))
        self.record = Record(incarnations, failed, self.record.recoveries + 1, merged)
        self._number = self.record.recoveries
        fences = {node: incarnations[node] for node in sorted(failed)}
        # Who is not connected with any of them has nothing to say, and need not hear of it.
        regions = {self.graph.regions[node] for node in failed}
        near = [node for node in self.graph.order if self.graph.regions[node] in regions]
        survivors = [node for node in near if node not in failed]
        self._round = _Round(self._number, failed, fences, set(survivors))
        self._unopened, self._hit = set(), set()
        return [
            Persist(self.record),
            FenceStore(fences),
            *(Fence(node, self._number, fences) for node in survivors),
            Collect(self._number, tuple(sorted(failed))),
        ]

    def _maybe_plan(self, current: _Round) -> list[RecoveryEffect]:
        if current.waiting or current.stored is None or current.plan is not None:
            return []
        effects: list[RecoveryEffect] = []
        limits = self._limits(current.stored)
        found = self.plan(current.failed, current.reports, limited(current.stored, limits))
        if found.impossible is not None and limits:
            if self.record.limits:
                self.record = replace(self.record, limits={})
                effects = [Persist(self.record), Refuse(found.impossible)]
            found = self.plan(current.failed, current.reports, current.stored)
        if found.impossible is not None:
            return [GiveUp(found.impossible)]
        if found.joining:
            return self._again(frozenset(found.joining))
        current.plan = found
        current.starting = set(found.starts)
        self.history.append(found)
        effects += [
            StartNode(node, self._now(node), self._neighbours(node), found.starts[node])
            for node in self.graph.order
            if node in found.starts
        ]
        return effects

    def _limits(self, stored: Mapping[int, Stored]) -> Mapping[int, int]:
        """At or before which epochs nodes have to start, though they could start later."""
        if not self.all_together:
            return self.record.limits
        kinds = self.graph.kinds
        epochs = {
            node: {saved.report.completed for saved in kept.checkpoints}
            for node, kept in stored.items()
            if kinds[node] in (Kind.STATEFUL, Kind.ORDERED)
        }
        if not epochs:
            return {}
        wanted = min(self.record.limits.values(), default=EPOCH_END)
        newest = min(max((e for e in kept if e <= wanted), default=-1) for kept in epochs.values())
        # Where some leave an epoch out there is none that all have: then the plan alone decides.
        common = all(newest in kept for kept in epochs.values())
        return dict.fromkeys(epochs, newest) if common else self.record.limits

    def _neighbours(self, node: int) -> dict[int, int]:
        graph = self.graph
        near = {*graph.parents[node], *graph.children[node], *graph.members[node]}
        return {other: self._now(other) for other in sorted(near)}
