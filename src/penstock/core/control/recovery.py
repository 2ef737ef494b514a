"""The controller's part of causal recovery: fence, collect, plan, start, open.

Theory of operation
-------------------
    QUIET --nodes lost--> FENCING --all hosts have heard--> COLLECTING --all reports in-->
    STARTING --all started--> OPENING --all edges open, all targets hit--> QUIET
                any --more nodes lost, or joining--> FENCING

- The failed set is every node that was lost, every node not durably recorded as recovered, and the
  nodes that are in a loop with one of them.
- New incarnations for all of it are made durable before any host hears of them.  The store of a
  node with state refuses the old ones from then on, so what it holds can be read at once
  (``ReadStates``).  Hosts stop the old nodes, and refuse what these had sent.
- When every host that can be reached has heard of it (``host_fenced``), no live process cuts, saves
  or publishes for an old incarnation any more.  Only then the logs of sources are fenced and the
  rest is collected.  A process on a host that was given up may still write: the store refuses it.
- Survivors answer with reports made after the fence.  The plan is a pure function of these and of
  what is durable.  If it needs more nodes to restart, they are fenced too and all survivors are
  asked again, in a new round; answers of older rounds are ignored.
- Nodes of the failed set get their starts; when all have acknowledged, each edge is opened by one
  message to its sender.
- When a node cannot repeat all its known steps, every node connected with it restarts from whole
  epochs, and no known steps remain; should it happen again, from older ones.  When there is no plan
  at all, every node of the flow restarts.
- A node counts as failed until it has hit all its targets and all its edges are open: until then
  no plan could rely on it.

Every effect has the ``round`` that caused it: the number of a fence, which rises with each of them.
A driver that starts again reads the :class:`RecoveryRecord` and declares every node lost: a start
of a flow is the recovery of everything.

The machine never reads the store: ``CollectStored`` asks for what is durable, ``stored`` brings it.
It asks ``reachable`` which hosts have to hear of a fence; tell it of hosts that are gone
(``host_gone``).  It asks ``logless`` which nodes have no whole log just now, where that changes
while the flow runs (:mod:`.planned_logs`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.core.causal.clocks import Position
from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.plan import limited, not_before, plan
from penstock.core.causal.reports import NodeReport, RecoveryPlan, Start, Stored
from penstock.core.progress.marks import EPOCH_END

__all__ = [
    "CONTRADICTIONS_MAX",
    "NEWEST",
    "CollectStored",
    "FenceHosts",
    "FenceSources",
    "FenceStore",
    "GiveUp",
    "OpenEdge",
    "PersistRecord",
    "ReadStates",
    "RecoveryEffect",
    "RecoveryMachine",
    "RecoveryRecord",
    "Refuse",
    "StartNode",
    "Widen",
]

NEWEST = 2
"""Checkpoints that a plan may ask for: the newest, or the one before it where that is damaged."""
CONTRADICTIONS_MAX = 2
"""How often nodes of a region may find that they cannot repeat their steps, in one recovery."""


@dataclass(frozen=True)
class RecoveryRecord:
    """What the controller must not forget."""

    incarnations: Mapping[int, int]
    unfinished: frozenset[int] = frozenset()
    """Nodes that were restarted and have not recovered."""
    recoveries: int = 0
    limits: Mapping[int, int] = field(default_factory=dict)
    """Where a person wants unfinished nodes to start: at or before these epochs."""
    forgotten: Mapping[int, int] = field(default_factory=dict)
    """What was forgotten when a person took nodes back: what came before the end of these epochs.
    What is durable after that no longer says so."""


class PersistRecord(NamedTuple):
    """Make the record durable before performing anything that follows."""

    record: RecoveryRecord


class FenceStore(NamedTuple):
    """Let the store refuse every other incarnation of these nodes with state, at once."""

    incarnations: Mapping[int, int]
    round: int


class FenceHosts(NamedTuple):
    """Tell hosts which nodes have new incarnations.

    A host stops the older ones, answers ``host_fenced``, and every other node of it ``reported``.
    """

    round: int
    hosts: tuple[int, ...]
    incarnations: Mapping[int, int]


class ReadStates(NamedTuple):
    """Read what the store has of these nodes while hosts hear of the fence; it will not change."""

    nodes: Mapping[int, int | None]
    """How many of the newest checkpoints a plan may ask for; None: any."""
    round: int


class FenceSources(NamedTuple):
    """Let the logs of sources take nothing more of every other incarnation of them."""

    incarnations: Mapping[int, int]
    round: int


class CollectStored(NamedTuple):
    """Bring what the store has of these nodes: call ``stored``."""

    round: int
    nodes: Mapping[int, int | None]
    """How many of the newest checkpoints a plan may ask for; None: any."""


class StartNode(NamedTuple):
    """Start a new incarnation of a node; it answers ``started``."""

    node: int
    incarnation: int
    incarnations: Mapping[int, int]
    """Its neighbours', and its own: a node of a loop may send to itself."""
    start: Start
    round: int


class OpenEdge(NamedTuple):
    """Tell a sender to send again after a position, then to go on."""

    sender: int
    target: int
    incarnation: int
    """The target's."""
    position: Position
    round: int


class Refuse(NamedTuple):
    """The checkpoints that a person asked for are gone; the nodes start from the newest instead."""

    reason: str
    round: int


class Widen(NamedTuple):
    """Say that more nodes restart than were lost, and why."""

    reason: str
    node: int | None
    """The node that could not repeat its steps; None: there is no plan for less than everything."""
    round: int
    """The one in which that was found; a new one follows."""


class GiveUp(NamedTuple):
    """Too much was lost for causal recovery."""

    reason: str
    round: int


RecoveryEffect = (
    PersistRecord
    | FenceStore
    | FenceHosts
    | ReadStates
    | FenceSources
    | CollectStored
    | StartNode
    | OpenEdge
    | Refuse
    | Widen
    | GiveUp
)


@dataclass
class _Round:
    number: int
    failed: frozenset[int]
    unfenced: set[int]
    """Hosts that have not heard of the fence."""
    waiting: set[int]
    reports: dict[int, NodeReport] = field(default_factory=dict)
    stored: Mapping[int, Stored] | None = None
    plan: RecoveryPlan | None = None
    starting: set[int] = field(default_factory=set)


class RecoveryMachine:
    """Decides, from losses and reports, who restarts where.

    >>> from penstock.core.causal.graph import NodeKind
    >>> kinds = {0: NodeKind.SOURCE, 1: NodeKind.STATELESS, 2: NodeKind.SINK}
    >>> graph = CausalGraph(kinds, {1: (0,), 2: (1,)})
    >>> machine = RecoveryMachine(graph, RecoveryRecord({0: 1, 1: 1, 2: 1}), lambda: [7])
    >>> effects = machine.lost({1: 1})
    >>> [type(effect).__name__ for effect in effects]
    ['PersistRecord', 'FenceStore', 'FenceHosts', 'ReadStates']
    >>> machine.record.incarnations[1], machine.failed
    (2, frozenset({1}))
    >>> machine.host_fenced(machine.round, host=7)
    [FenceSources(incarnations={}, round=1), CollectStored(round=1, nodes={1: 2})]
    """

    def __init__(
        self,
        graph: CausalGraph,
        record: RecoveryRecord,
        reachable: Callable[[], Iterable[int]],
        all_together: bool = False,
        logless: Callable[[], Collection[int]] | None = None,
    ) -> None:
        self.graph = graph
        self.record = record
        self.all_together = all_together
        """Any loss fails every node, and all start from the newest epoch that all have."""
        self._reachable = reachable
        self._logless = logless
        self._number = record.recoveries
        self._round: _Round | None = None
        self._unopened: set[tuple[int, int]] = set()
        self._hit: set[int] = set()
        self._contradictions: dict[int, int] = {}
        """Per region: how often its nodes could not repeat their steps since all had recovered."""
        self.history: list[RecoveryPlan] = []

    @property
    def failed(self) -> frozenset[int]:
        """The nodes that are restarting or have not recovered."""
        return self.record.unfinished

    @property
    def quiet(self) -> bool:
        """Whether no node is still recovering."""
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

    def lost(self, nodes: Mapping[int, int]) -> list[RecoveryEffect]:
        """These incarnations of nodes are gone, or taken for gone; old news changes nothing."""
        gone = frozenset(node for node, number in nodes.items() if number == self._now(node))
        return self._again(gone) if gone else []

    def contradicted(self, node: int, incarnation: int, reason: str) -> list[RecoveryEffect]:
        """A restarted node cannot repeat all the steps that others know of.

        Every node connected with it restarts from durable state.  For sinks and clean nodes that
        is whole epochs, so no step has to be repeated.  If it happens again before all of them
        have recovered, they go back to older checkpoints; after that, give up.
        """
        if incarnation != self._now(node):
            return []
        number = self.graph.regions[node]
        region = frozenset(n for n, r in self.graph.regions.items() if r == number)
        times = self._contradictions[number] = self._contradictions.get(number, 0) + 1
        if region <= self.record.unfinished or times > CONTRADICTIONS_MAX:
            return [GiveUp(reason, self._number)]
        older: dict[int, int] = {}
        if times > 1 and self.history:
            starts = self.history[-1].starts
            with_state = [n for n in sorted(region) if n in starts and self._has_state(n)]
            older = {n: starts[n].completed - 1 for n in with_state}
        return [Widen(reason, node, self._number), *self._again(region, older)]

    def rollback(self, to: int, gone: Mapping[int, int]) -> list[RecoveryEffect]:
        """A person asks for it: all goes back to checkpoints at or before an epoch.

        Sinks keep what they have published.  What may be asked for is what :mod:`.going_back` says;
        ``gone`` is what may be forgotten already.  Checkpoints must not be deleted, nor logs cut,
        until ``record.limits`` is empty again.
        """
        kinds = self.graph.kinds
        limits = {node: to for node in self.graph.order if kinds[node] is not NodeKind.SINK}
        before = self.record.forgotten
        forgotten = {node: max(low, before.get(node, -1)) for node, low in gone.items()}
        self.record = replace(self.record, forgotten=forgotten)
        return self._again(frozenset(kinds), limits)

    def host_fenced(self, round_: int, host: int) -> list[RecoveryEffect]:
        """A host has stopped the nodes that have new incarnations."""
        current = self._round
        if current is None or current.number != round_:
            return []
        return self._heard(current, host)

    def host_gone(self, host: int) -> list[RecoveryEffect]:
        """A host was given up: it need not hear of any fence."""
        return [] if self._round is None else self._heard(self._round, host)

    def _heard(self, current: _Round, host: int) -> list[RecoveryEffect]:
        if host not in current.unfenced:
            return []
        current.unfenced.discard(host)
        return self._maybe_collect(current)

    def reported(self, node: int, round_: int, report: NodeReport) -> list[RecoveryEffect]:
        """A survivor's answer to a fence."""
        current = self._round
        if current is None or current.number != round_ or node not in current.waiting:
            return []
        current.waiting.discard(node)
        current.reports[node] = report
        return self._maybe_plan(current)

    def stored(
        self, round_: int, stored: Mapping[int, Stored], gone: Mapping[int, int]
    ) -> list[RecoveryEffect]:
        """What is durable of the failed nodes.

        What came before the end of an epoch may be forgotten (``gone``): older checkpoints are of
        no use, even if they are still there.
        """
        current = self._round
        if current is None or current.number != round_:
            return []
        current.stored = not_before(stored, gone)
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
            OpenEdge(
                sender, target, self._now(target), found.position(sender, target), current.number
            )
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
        """Record the nodes that have recovered."""
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
        recovering = {self.graph.regions[node] for node in self.record.unfinished}
        self._contradictions = {r: n for r, n in self._contradictions.items() if r in recovering}
        return [PersistRecord(self.record)]

    def plan(
        self,
        failed: frozenset[int],
        reports: Mapping[int, NodeReport],
        stored: Mapping[int, Stored],
    ) -> RecoveryPlan:
        """The pure function behind it all."""
        return plan(self.graph, failed, reports, stored)

    # -- inside ----------------------------------------------------------------------------------

    def _now(self, node: int) -> int:
        return self.record.incarnations[node]

    def _again(
        self, nodes: frozenset[int], limits: Mapping[int, int] | None = None
    ) -> list[RecoveryEffect]:
        """Fence the failed set, grown by some nodes, and ask all survivors."""
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
        self._number = self.record.recoveries + 1
        self.record = RecoveryRecord(
            incarnations, failed, self._number, merged, self.record.forgotten
        )
        # What is not connected with any of them has nothing to say.
        regions = {self.graph.regions[node] for node in failed}
        near = [node for node in self.graph.order if self.graph.regions[node] in regions]
        hosts = tuple(sorted(self._reachable()))
        survivors = {node for node in near if node not in failed}
        current = self._round = _Round(self._number, failed, set(hosts), survivors)
        self._unopened, self._hit = set(), set()
        fences = self._incarnations(failed)
        states = {node: self._newest(node) for node in sorted(failed) if self._has_state(node)}
        return [
            PersistRecord(self.record),
            FenceStore(self._incarnations(states), self._number),
            FenceHosts(self._number, hosts, fences),
            ReadStates(states, self._number),
            *self._maybe_collect(current),
        ]

    def _maybe_collect(self, current: _Round) -> list[RecoveryEffect]:
        """Ask for what is durable, once no host works for an old incarnation any more."""
        if current.unfenced:
            return []
        kinds = self.graph.kinds
        sources = [node for node in current.failed if kinds[node] is NodeKind.SOURCE]
        wanted = {node: self._newest(node) for node in sorted(current.failed)}
        number = current.number
        return [FenceSources(self._incarnations(sources), number), CollectStored(number, wanted)]

    def _incarnations(self, nodes: Iterable[int]) -> dict[int, int]:
        return {node: self._now(node) for node in sorted(nodes)}

    def _has_state(self, node: int) -> bool:
        return self.graph.kinds[node] in (NodeKind.STATEFUL, NodeKind.ORDERED)

    def _newest(self, node: int) -> int | None:
        """How many of a node's newest checkpoints a plan may ask for; None: any.

        The log of a checkpoint reaches back to the low epoch, so the newest will do, unless several
        nodes have to agree on an epoch.
        """
        graph = self.graph
        logless = graph.logless if self._logless is None else self._logless()
        alone = node not in graph.units and graph.kinds.keys().isdisjoint(logless)
        running = self.record.unfinished < frozenset(graph.kinds)
        return NEWEST if alone and running and not self.record.limits else None

    def _maybe_plan(self, current: _Round) -> list[RecoveryEffect]:
        if current.waiting or current.stored is None or current.plan is not None:
            return []
        effects: list[RecoveryEffect] = []
        limits = self._limits(current.stored)
        found = self.plan(current.failed, current.reports, limited(current.stored, limits))
        if found.impossible is not None and limits:
            if self.record.limits:
                self.record = replace(self.record, limits={})
                effects = [PersistRecord(self.record), Refuse(found.impossible, current.number)]
            found = self.plan(current.failed, current.reports, current.stored)
        if found.impossible is not None:
            return [*effects, *self._without_plan(found.impossible)]
        if found.joining:
            return [*effects, *self._again(frozenset(found.joining))]
        current.plan = found
        current.starting = set(found.starts)
        self.history.append(found)
        effects += [
            StartNode(node, self._now(node), self._neighbours(node), start, current.number)
            for node in self.graph.order
            if (start := found.starts.get(node)) is not None
        ]
        return effects

    def _without_plan(self, reason: str) -> list[RecoveryEffect]:
        """Too much was lost: start everything from what is durable, unless that is what failed."""
        everything = frozenset(self.graph.kinds)
        if self.record.unfinished == everything:
            return [GiveUp(reason, self._number)]
        return [Widen(reason, None, self._number), *self._again(everything)]

    def _limits(self, stored: Mapping[int, Stored]) -> Mapping[int, int]:
        """At or before which epochs nodes have to start, though they could start later."""
        if not self.all_together:
            return self.record.limits
        kinds = self.graph.kinds
        epochs = {
            node: {saved.report.completed for saved in kept.checkpoints}
            for node, kept in stored.items()
            if kinds[node] in (NodeKind.STATEFUL, NodeKind.ORDERED)
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
