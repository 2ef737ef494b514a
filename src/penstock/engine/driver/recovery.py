"""Recovery on the driver: performs what the recovery machine decides.

A start of the flow is the recovery of everything: the same plan, made from what is durable (which
is nothing, the first time).  Later a lost host's nodes are placed on a spare host or on a new one;
the rest goes on.  Everything here runs in the controller's thread.
"""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, assert_never

from penstock.api.regimes import PAUSES
from penstock.connectors.base import Sink
from penstock.connectors.persist import PersistWrite
from penstock.core.causal.clocks import Position
from penstock.core.causal.codec import record_from, to_plain
from penstock.core.causal.graph import CausalGraph, Kind
from penstock.core.causal.reports import Report, Saved, Stored
from penstock.core.causal.times import ZERO
from penstock.core.control import host_orders as orders
from penstock.core.control import host_reports as reports
from penstock.core.control.assignment import NodeFacts, PlanOrders, RecoveryRules
from penstock.core.control.deadly_rows import Care
from penstock.core.control.global_hold import GlobalHold
from penstock.core.control.recovery import (
    Collect,
    FenceStore,
    GiveUp,
    OpenEdge,
    Persist,
    Record,
    RecoveryEffect,
    RecoveryMachine,
    Refuse,
    StartNode,
    Widen,
)
from penstock.core.node.causal_effects import Flushed
from penstock.core.progress.marks import EPOCH_END
from penstock.core.rollback.watch import SpanWatch
from penstock.engine.driver.progress_hub import ProgressHub
from penstock.engine.driver.recovery_history import RecoveryEntry
from penstock.engine.driver.recovery_moves import MovesOfRecovery
from penstock.engine.driver.recovery_place import RecoveryPlace
from penstock.engine.driver.rollback_request import Mark
from penstock.engine.driver.stalls import Stalls
from penstock.engine.host.causal_source import cuts_of
from penstock.engine.host.clock import now_us
from penstock.engine.settings import RunSettings
from penstock.engine.store.changed_flow import adapted, foreign_stages
from penstock.engine.store.description import FlowDescription, describe
from penstock.engine.store.durable import Beginnings, fence, read_stored, stored_incarnation
from penstock.engine.store.flow_store import BoundaryLog
from penstock.engine.store.logs import seen_epoch
from penstock.engine.store.skipped_rows import SkippedRows
from penstock.errors import PenstockError
from penstock.planning.physical import PhysicalPlan, PlannedStage
from penstock.planning.replica_plan import causal_part
from penstock.storage import storage_of

__all__ = ["Recovery", "RecoveryEntry"]

log = logging.getLogger(__name__)

HISTORY = 1000
RECORD = "recovery.json"
WITH_STATE = (Kind.STATEFUL, Kind.ORDERED)

Tell = Callable[[int, orders.AgentOrder], None]


class Recovery(MovesOfRecovery):
    """The controller's hands in a recovery."""

    def __init__(
        self,
        plan: PhysicalPlan,
        graph: CausalGraph,
        place: RecoveryPlace,
        placement: dict[int, int],
        tell: Tell,
        address_of: Callable[[int], str | None],
        published: Callable[[str], int],
        hubs: Mapping[int, ProgressHub],
        purges: bool = False,
        pause_every: int | None = None,
        window_epochs: int = 0,
        store_timeout_s: float = 0.0,
    ) -> None:
        self.plan = plan
        self.graph = graph
        self.placement = placement
        self.history: deque[RecoveryEntry] = deque(maxlen=HISTORY)
        self.directory = place.directory
        self.sync = place.sync
        self._tell = tell
        self._address_of = address_of
        self._published = published
        self._hubs = hubs
        self._purges = purges
        self._window = window_epochs
        """So many epochs are kept for rollbacks by hand."""
        self.storage = storage_of(place.directory)
        self._causal, together = causal_part(plan, graph), pause_every is not None
        self.machine = RecoveryMachine(self._causal, self._read_record(), all_together=together)
        self._pause_every = pause_every
        self._hold: GlobalHold | None = None
        self._work: deque[RecoveryEffect] = deque()
        self._unfenced: set[int] = set()
        """Hosts that have not said that they heard of the newest fence."""
        self._collect: Collect | None = None
        """What to collect then: until all have, somebody may still cut, save or publish."""
        self._early: dict[int, Stored] = {}
        """What was read before that: of nodes whose store nobody can write to any more."""
        self._saving = frozenset(self.with_state)
        self._gone: list[int] = []
        self._visited: set[int] = set()
        """Hosts that have had nodes: they hear of everything, also when they have none."""
        self._held: list[tuple[int, orders.StartNodes | orders.OpenEdges, frozenset[int]]] = []
        """Messages that wait for hosts: the receiver, and others that it must know of."""
        self.watch = SpanWatch(graph)
        self._last_lows: dict[int, tuple[int, int]] = {}
        self._told_lows: dict[int, int] = {}
        """Per region: the greatest low epoch that anybody was told."""
        described = FlowDescription.read(place.directory)
        self.description = replace(
            describe(plan, graph, together),
            foreign={} if described is None else described.foreign,
            begun={} if described is None else described.begun,
        )
        self._mark = Mark(place.directory)
        self._asked: dict[int, int] = {}
        """Per node: the newest request for a checkpoint that it has answered."""
        self.care: Callable[[int], Care] = lambda node: Care()
        """What a node must know of rows that it may not survive."""
        self.skipped = SkippedRows(self.storage, place.sync)
        self._beginnings = Beginnings(place.directory, place.sync)
        self.stalls = Stalls(store_timeout_s)
        self.stall = self.stalls.new("the driver")

    # -- what happens ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Start all nodes, from what is durable; a rollback that was asked for is done."""
        self.description.write(self.directory)
        if not self._roll_back_first():
            self._perform(self.machine.lost(dict(self.machine.record.incarnations)))

    def host_ready(self) -> None:
        """One more host can take nodes now."""
        held, self._held = self._held, []
        for host, order, near in held:
            self._send(host, order, near)

    def told(self, report: reports.RecoveryReport) -> None:
        """A host's word on a recovery."""
        machine = self.machine
        match report:
            case reports.NodeReported():
                self._perform(machine.reported(report.node, report.round, report.report))
            case reports.NodeStarted():
                effects = machine.started(report.node, report.incarnation)
                self._note_work(report.node, followed=report.followed)
                self._perform(effects)
            case reports.EdgeOpened(sender, incarnation, target, target_incarnation):
                effects = machine.opened(sender, incarnation, target, target_incarnation)
                self._note_work(target, resend_s=report.seconds)
                self._perform(effects)
            case reports.NodeRecovered():
                self._perform(machine.recovered(report.node, report.incarnation))
            case (
                reports.CheckpointSaved() | reports.CheckpointRequestMet() | reports.NodeCaughtUp()
            ):
                if report.incarnation == self._incarnation(report.node):
                    self._learned(report)
            case reports.CheckpointUnreadable():
                self._perform(machine.lost({report.node: report.incarnation}))
            case reports.NodeContradicted():
                self._perform(self.contradicted(report))
            case reports.NodeFlushed():
                self._flushed(report)
            case reports.HostFenced():
                self._fenced(report)
            case reports.WriterStalled():
                self.stalls.note(report)
            case _:
                assert_never(report)

    def _fenced(self, report: reports.HostFenced) -> None:
        """A host has heard of a fence; when all have, what is durable is collected."""
        if report.round == self.machine.round:
            self._unfenced.discard(report.host)
        if not self._unfenced and self._collect is not None:
            effect, self._collect = self._collect, None
            self._perform([effect])

    def _flushed(self, report: reports.NodeFlushed) -> None:
        """A node waits for the checkpoints of all nodes."""
        if self._hold is None or report.incarnation != self._incarnation(report.node):
            return
        epoch = self._hold.flushed(report.node, Flushed(report.epoch, report.waiting))
        if epoch is not None:
            for host in self._hosts():
                self._tell(host, orders.ResumeInput(epoch))

    # -- what is known ---------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """Whether nobody recovers."""
        return self.machine.quiet

    @property
    def open(self) -> bool:
        """Whether every edge of the last plan is open."""
        return self.machine.open

    def lows(self) -> dict[int, tuple[int, int]]:
        """Per node: the epoch that nobody who is connected with it goes back behind, and its own.

        The initial states of nodes for which there is one are of no use any more.
        """
        if self._purges:
            return {}
        if self.machine.record.limits:  # who goes back needs what is older
            return dict(self._last_lows)
        regions = self.graph.regions
        bounds: dict[int, int] = {}
        for chain in self.plan.chains:
            if chain.sinks:
                epoch = min(map(self._published, chain.sinks))
                for node in chain.nodes:
                    held = epoch - self._window
                    bounds[regions[node]] = min(held, bounds.get(regions[node], held))
                    if self.graph.kinds[node] is Kind.SINK:
                        self.watch.published(node, epoch)
        self.watch.advance()
        for node in self.graph.kinds:
            low = self.watch.low(node)
            bounds[regions[node]] = min(low, bounds.get(regions[node], low))
        try:
            self._beginnings.forget(
                self.plan.node_name(node) for node in self.with_state if bounds[regions[node]] >= 0
            )
        except OSError:  # nobody forgets anything before that is durable
            return dict(self._last_lows)
        for region, low in bounds.items():
            self._told_lows[region] = max(low, self._told_lows.get(region, -1))
        for node in self.graph.kinds:
            bound, low = bounds[regions[node]], self.watch.low(node)
            self._last_lows[node] = (bound, min(low, bound) if self._window else low)
        return dict(self._last_lows)

    def low_epoch(self) -> int:
        """Nobody goes back behind this epoch."""
        return min((low for low, _ in self.lows().values()), default=-1)

    def expect_logless(self, nodes: frozenset[int]) -> None:
        """From now on keep what is needed if these nodes have no log of what they sent."""
        if nodes != self.watch.logless:
            self.watch = self.watch.with_logless(nodes)

    def can_lose(self, nodes: frozenset[int]) -> bool:
        """Whether these nodes may lose their logs now: checkpoints that fit each other are there.

        They must be expected to.
        """
        self.watch.advance()
        return all(self.watch.region_low(node) >= 0 for node in nodes)

    def _forgotten(self) -> dict[int, int]:
        """Per node: what came before the end of this epoch may be forgotten already."""
        self.lows()
        return {
            node: self._told_lows.get(region, -1) for node, region in self.graph.regions.items()
        }

    @property
    def with_state(self) -> list[int]:
        """The nodes that save checkpoints."""
        return [node for node in self.graph.order if self.graph.kinds[node] in WITH_STATE]

    def rules(
        self, settings: RunSettings, plan: PlanOrders, one_machine: bool, stages_in_row: int | None
    ) -> RecoveryRules:
        """What hosts must know of recovery."""
        graph = self.graph
        position_first = frozenset(
            node
            for node, kind in graph.kinds.items()
            if kind is Kind.SOURCE and not graph.lossy.isdisjoint(graph.descendants[node])
        )
        return RecoveryRules(
            nodes=NodeFacts(
                kinds=dict(graph.kinds),
                determined=frozenset(graph.determined),
                logless=frozenset(graph.logless),
                clean=frozenset(graph.clean),
                untraced=frozenset(graph.untraced),
                position_first=position_first,
            ),
            plan=plan,
            store=self.storage.address,
            sync=self.sync,
            one_machine=one_machine,
            checkpoint_s=None if self._purges else settings.s("checkpointInterval"),
            followed_s=settings.followed_s,
            copies=settings.logs == "copies",
            log_bytes=settings.logBytes,
            store_timeout_s=self.stalls.timeout_s,
            stages_in_row=stages_in_row,
        )

    def incarnations(self) -> Mapping[int, int]:
        """The present incarnation of every node."""
        return self.machine.record.incarnations

    def _incarnation(self, node: int) -> int:
        return self.machine.record.incarnations[node]

    # -- effects ---------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[RecoveryEffect]) -> None:
        self._work.extend(effects)
        starts: dict[int, list[StartNode]] = {}
        edges: dict[int, list[OpenEdge]] = {}
        while self._work:
            effect = self._work.popleft()
            try:
                self._on_store(effect)
            except OSError as error:
                self._work.appendleft(effect)
                self.stall.failed(error)
                break
            if isinstance(effect, StartNode):
                starts.setdefault(self.placement[effect.node], []).append(effect)
            elif isinstance(effect, OpenEdge):
                edges.setdefault(self.placement[effect.sender], []).append(effect)
            elif isinstance(effect, Refuse | Widen):
                self._said(effect)
            elif isinstance(effect, GiveUp):
                self._give_up(effect.reason)
        else:
            self.stall.worked()
        self._start(starts)
        self._open(edges)
        self._note()

    def try_again(self) -> None:
        """Go on with what the store did not take, now and then."""
        if self._work and self.stall.is_due():
            self._perform([])

    def _on_store(self, effect: RecoveryEffect) -> None:
        """Perform an effect that has to do with the store; doing it again is fine."""
        if isinstance(effect, Persist):
            self._persist(effect.record)
        elif isinstance(effect, FenceStore):
            self._fence_store(effect.incarnations)
            self._tell_fence(effect.incarnations)
        elif isinstance(effect, Collect) and self._unfenced:
            self._collect = effect
            # The store refuses those who lost it, so what it has of them is what it will have.
            self._early = {n: self._read(n) for n in effect.nodes if n in self._saving}
        elif isinstance(effect, Collect):
            self._take_over(effect.nodes)
            early, self._early = self._early, {}
            stored = {node: early.get(node) or self._read(node) for node in effect.nodes}
            self._learn(stored)
            self._work.extend(self.machine.stored(effect.round, stored))

    def _tell_fence(self, incarnations: Mapping[int, int]) -> None:
        order = orders.FenceNodes(self.machine.round, dict(incarnations), tuple(self._gone))
        self._held.clear()  # what it was about is planned again
        self._collect, self._early = None, {}
        self._unfenced = set(self._hosts())
        for host in self._hosts():
            self._tell(host, order)

    def _start(self, starts: Mapping[int, list[StartNode]]) -> None:
        names = [self.plan.node_name(effect.node) for some in starts.values() for effect in some]
        for entry in self._unfinished() if starts else ():
            # A plan for more failures takes the place of the one before.
            entry.planned_us, entry.restarted = now_us(), names
        if starts and self._pause_every is not None:
            # Who is fed only round a loop has no parents, but checkpoints.
            fed = [node for node, kind in self.graph.kinds.items() if kind is not Kind.SOURCE]
            ahead = {e.node: e.start.completed for some in starts.values() for e in some}
            self._hold = GlobalHold(fed, self._pause_every, min(ahead.values()), ahead)
        loops = [e for some in starts.values() for e in some if e.node in self.graph.units]
        for unit, epoch in {self.graph.units[e.node]: e.start.completed for e in loops}.items():
            self._hubs[unit].restart(epoch)
        # Edges inside a loop are open from the start: whoever is in it must know all the others.
        looping = frozenset(self.placement[effect.node] for effect in loops)
        self.stalls.forget(names)
        for host, some in starts.items():
            some.sort(key=self._first_to_start)
            for effect in some:
                self.watch.restarted(effect.node, effect.start.completed)
            order = orders.StartNodes(tuple(map(self._node_start, some)), {}, {}, {})
            self._send(host, order, looping if host in looping else frozenset())

    def _node_start(self, effect: StartNode) -> orders.NodeStart:
        foreign = None
        if effect.start.checkpoint:
            foreign = foreign_stages(self.description, effect.node, effect.start.checkpoint)
        return orders.NodeStart(
            node=effect.node,
            incarnation=effect.incarnation,
            incarnations=dict(effect.incarnations),
            start=effect.start,
            foreign=None if foreign is None else tuple(foreign),
            hold=None if self._hold is None else self._hold.epoch,
            care=self.care(effect.node),
        )

    def _first_to_start(self, effect: StartNode) -> int:
        return -PAUSES.index(self.plan.chain_of_node(effect.node).pause)

    def _open(self, edges: Mapping[int, list[OpenEdge]]) -> None:
        for entry in self._unfinished() if edges else ():
            entry.started_us, entry.opened_us = now_us(), None
        # Everybody hears of it: credit goes back on a channel of the receiver's own.
        for host in self._hosts() if edges else ():
            here = edges.get(host, ())
            opened = [
                orders.EdgeOpening(e.sender, e.target, e.incarnation, e.position) for e in here
            ]
            self._send(host, orders.OpenEdges(tuple(opened), {}, {}))

    def _send(
        self,
        host: int,
        order: orders.StartNodes | orders.OpenEdges,
        near: frozenset[int] = frozenset(),
    ) -> None:
        """Send an order with where all nodes are now, once the hosts concerned can be reached."""
        if any(self._address_of(one) is None for one in {host, *near}):
            self._held.append((host, order, near))
            return
        order = replace(order, addresses=self._addresses(), placement=dict(self.placement))
        if isinstance(order, orders.OpenEdges):
            self._tell(host, order)
            return
        nodes = [one.node for one in order.nodes]
        units = sorted({self.graph.units[node] for node in nodes if node in self.graph.units})
        with ExitStack() as told:
            # What a hub broadcasts reaches the host after the welcome.
            progress = {unit: told.enter_context(self._hubs[unit].welcomed()) for unit in units}
            self._tell(host, replace(order, progress=progress))

    def _hosts(self) -> list[int]:
        hosts = sorted({*self.placement.values(), *self._visited})
        return [host for host in hosts if self._address_of(host) is not None]

    def _addresses(self) -> dict[int, str]:
        return {host: str(self._address_of(host)) for host in self._hosts()}

    def _unfinished(self) -> list[RecoveryEntry]:
        return [entry for entry in self.history if entry.recovered_us is None]

    def _note(self) -> None:
        """Keep the history."""
        for entry in self._unfinished():
            if entry.started_us is not None and entry.opened_us is None and self.machine.open:
                entry.opened_us = now_us()
            if entry.opened_us is not None and self.machine.quiet:
                entry.recovered_us = now_us()
                for host in self._hosts():
                    self._tell(host, orders.SettleNodes())

    def _note_work(self, node: int, **found: float) -> None:
        """What a restarted node has spent, in the newest recovery that restarted it."""
        name = self.plan.node_name(node)
        entry = next((one for one in reversed(self.history) if name in one.restarted), None)
        if entry is not None and ("replay_s" in found or entry.recovered_us is None):
            work = entry.work.setdefault(name, {})
            for key, value in found.items():
                work[key] = work.get(key, 0.0) + value

    def _give_up(self, reason: str) -> None:
        """Causal recovery is impossible: everybody goes back to the last consistent checkpoint."""
        reason = re.sub(
            r"\bnode (\d+)", lambda found: f"node {self.plan.node_name(int(found[1]))}", reason
        )
        if self.machine.failed == frozenset(self.graph.kinds):
            raise PenstockError(
                f"the flow cannot be recovered: {reason}. Restore {self.directory} from a copy, or "
                "start with a new checkpointLocation and empty output"
            )
        log.warning("causal recovery is impossible (%s): the whole flow goes back", reason)
        self._work.extend(self.machine.lost(dict(self.machine.record.incarnations)))

    # -- the store -------------------------------------------------------------------------------

    def _read_record(self) -> Record:
        """Which incarnation comes next; where the record is damaged, the nodes' folders know."""
        fresh = {node: self._stored_incarnation(node) for node in self._causal.kinds}
        try:
            record: Record = record_from(json.loads(self.storage.reread(RECORD)))
            known = {node: max(fresh[node], record.incarnations.get(node, 0)) for node in fresh}
            limits = {node: to for node, to in record.limits.items() if node in known}
            return Record(known, recoveries=int(record.recoveries), limits=limits)
        except FileNotFoundError:
            return Record(fresh)
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("%s/%s is damaged and is made anew: %s", self.storage, RECORD, error)
            return Record(fresh)

    def _stored_incarnation(self, node: int) -> int:
        chain = self.plan.chain_of_node(node)
        if chain.is_source:  # replicas, or another node, may have had it before
            return self._boundaries(node).fence()
        return stored_incarnation(self.directory, chain.name, node - chain.first_node)

    def _persist(self, record: Record) -> None:
        self.storage.rewrite(RECORD, json.dumps(to_plain(record)).encode(), self.sync)

    def _fence_store(self, incarnations: Mapping[int, int]) -> None:
        for node, incarnation in incarnations.items():
            chain = self.plan.chain_of_node(node)
            shard = node - chain.first_node
            kind = self.graph.kinds[node]
            if kind in WITH_STATE:
                fence(self.directory, chain.name, shard, incarnation, self.sync)

    def _take_over(self, nodes: Iterable[int]) -> None:
        """What sources cut before anybody heard of their end counts; what they cut later does not.

        Later, only a source of a host that is taken for lost can: nobody listens to it any more.
        """
        lows = self.lows()
        for node in nodes:
            if self.graph.kinds[node] is Kind.SOURCE:
                low = lows.get(node, (-1, -1))[0]
                fence = self._incarnation(node)
                self._boundaries(node).take_over(low, ended=True, fence=fence)

    def _boundaries(self, node: int) -> BoundaryLog:
        chain = self.plan.chain_of_node(node)
        return BoundaryLog(self.directory, chain.stages[0].name, node - chain.first_node, self.sync)

    def _stored(self, node: int, newest: int | None = None) -> Stored:
        """What is durable of a node, of its checkpoints all or the newest so many."""
        chain = self.plan.chain_of_node(node)
        kind = self.graph.kinds[node]
        if kind is Kind.SOURCE:
            records = self._boundaries(node).read()
            return Stored(
                cuts=cuts_of(records),
                through=seen_epoch(records),
                ahead=max(
                    ((r["ahead"], r["epoch"]) for r in records if "ahead" in r), default=(0, -1)
                ),
            )
        if kind is Kind.STATELESS:
            return Stored()
        if kind is Kind.SINK:
            return Stored(checkpoints=(Saved(0, self._sink_report(node)),))
        found = read_stored(
            self.directory,
            chain.name,
            node - chain.first_node,
            self._incarnation(node),
            node,
            self.graph.children[node],
            self.graph.parents[node],
            self._beginnings,
            newest,
        )
        if self._purges:
            return Stored(checkpoints=found.checkpoints[:1], through=EPOCH_END)
        return adapted(self.description, node, found)

    def _has_published(self, stage: PlannedStage, shard: int) -> int:
        operator: Any = stage.operator
        if isinstance(operator, PersistWrite):
            seen = operator.committed_by(shard)
            return -1 if seen is None else seen
        seen = operator.committed()
        return max(self._published(stage.name), -1 if seen is None else seen)

    def _sink_report(self, node: int) -> Report:
        """A sink's state is what it has published."""
        chain = self.plan.chain_of_node(node)
        published = []
        for stage in chain.stages:
            if isinstance(stage.operator, Sink):
                published.append(self._has_published(stage, node - chain.first_node))
        everywhere = min((self._published(name) for name, _ in self.plan.sinks), default=-1)
        epoch = min(published, default=everywhere)
        clock = {sender: Position(ZERO, epoch) for sender in self.graph.parents[node]}
        return Report(node, completed=epoch, clock=clock)
