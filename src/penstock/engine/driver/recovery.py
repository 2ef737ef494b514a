"""Recovery on the driver: performs what the recovery machine decides.

A start of the flow is the recovery of everything: the same plan, made from what is durable (which
is nothing, the first time).  Later a lost host's nodes are placed on a spare host or on a new one;
the rest goes on.  Everything here runs in the controller's thread.  What it is made of:

    machine     who restarts, and where (:mod:`penstock.core.control.recovery`)
    retention   what may be forgotten (:mod:`penstock.core.control.retention`)
    store       the record, fences, what is durable
    orders      what hosts are told
    history     what happened, for people
    story       the same line by line, in the store
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, assert_never

from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.reports import Stored
from penstock.core.control import host_orders
from penstock.core.control import host_reports as reports
from penstock.core.control.assignment import NodeFacts, PlanOrders, RecoveryRules
from penstock.core.control.global_hold import GlobalHold
from penstock.core.control.recovery import (
    CollectStored,
    FenceHosts,
    FenceSources,
    FenceStore,
    GiveUp,
    OpenEdge,
    PersistRecord,
    ReadStates,
    RecoveryEffect,
    RecoveryMachine,
    Refuse,
    StartNode,
    Widen,
)
from penstock.core.control.retention import Low, RetentionMachine
from penstock.core.node.causal_effects import Flushed
from penstock.engine.driver.links import HostLinks
from penstock.engine.driver.node_orders import NodeOrders
from penstock.engine.driver.progress_hub import ProgressHub
from penstock.engine.driver.recovery_history import RecoveryHistory
from penstock.engine.driver.recovery_place import RecoveryPlace
from penstock.engine.driver.recovery_requests import RecoveryRequests
from penstock.engine.driver.recovery_store import RecoveryStore
from penstock.engine.driver.recovery_story import RecoveryStory
from penstock.engine.driver.stalls import Stalls
from penstock.engine.host.causal_agent import checkpoints_of
from penstock.engine.settings import RunSettings
from penstock.engine.store.description import FlowDescription, describe
from penstock.engine.store.skipped_rows import SkippedRows
from penstock.engine.store.story_log import StoryLog
from penstock.errors import PenstockError
from penstock.planning.physical import PhysicalPlan
from penstock.planning.replica_plan import causal_part

__all__ = ["EpochFacts", "Recovery"]

log = logging.getLogger(__name__)


class EpochFacts(NamedTuple):
    """The controller's record of epochs, as far as a recovery needs it."""

    published: Callable[[str], int]
    """The last epoch of a sink that is recorded."""
    started: Callable[[int, int], None]
    """A node starts after this epoch."""


class Recovery:
    """The driver's hands in a recovery."""

    def __init__(
        self,
        plan: PhysicalPlan,
        graph: CausalGraph,
        place: RecoveryPlace,
        placement: dict[int, int],
        links: HostLinks,
        epochs: EpochFacts,
        hubs: Mapping[int, ProgressHub],
        settings: RunSettings,
    ) -> None:
        self.plan = plan
        self.graph = graph
        self._epochs = epochs
        self._settings = settings
        self._purges = settings.recovery == "purge"
        """Whether any loss takes all nodes back to their initial states."""
        self._pause_every = settings.pause_every
        together = self._pause_every is not None
        described = FlowDescription.read(place.directory)
        self.description = replace(
            describe(plan, graph, together),
            foreign={} if described is None else described.foreign,
            begun={} if described is None else described.begun,
        )
        self.store = RecoveryStore(
            plan, graph, place, self.description, epochs.published, initial_only=self._purges
        )
        self.orders = NodeOrders(plan, graph, self.description, placement, links, hubs)
        causal = causal_part(plan, graph)
        record = self.store.read_record(causal.kinds)
        self.retention = RetentionMachine(graph, settings.rollback_epochs, record.forgotten)
        self.machine = RecoveryMachine(
            causal, record, self.orders.hosts, together, lambda: self.retention.watch.logless
        )
        self.skipped = SkippedRows(self.store.storage, place.sync)
        self.history = RecoveryHistory()
        self.story = RecoveryStory(StoryLog(self.store.storage), causal, plan.node_name, record)
        self.stalls = Stalls(settings.s("storeTimeout"))
        self.stall = self.stalls.new("the driver")
        self.requests = RecoveryRequests(self)
        self._hold: GlobalHold | None = None
        self._work: deque[RecoveryEffect] = deque()
        self._early: dict[int, Stored] = {}
        """What was read of nodes whose store takes no other writes any more."""
        self._has_begun = False
        """Whether what is durable of all nodes was read."""

    # -- what happens ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Start all nodes, from what is durable; a rollback that was asked for is done."""
        self.description.write(self.store.place.directory)
        if not self.requests.roll_back_first():
            self.perform(self.machine.lost(dict(self.machine.record.incarnations)))

    def host_lost(self, host: int, takers: Mapping[int, int], reason: str) -> None:
        """A host is gone; its nodes will run on others."""
        placement, causal = self.orders.placement, self.machine.graph.kinds
        nodes = [n for n, at in placement.items() if at == host and n in causal]
        self.orders.place({node: takers[node] for node in nodes})
        self.orders.host_gone(host)
        self.stalls.forget([checkpoints_of(host)])
        if not nodes:
            self.perform(self.machine.host_gone(host))
            return
        reason = reason.removeprefix(f"host {host} was lost: ")
        names = self._names(nodes)
        log.warning("host %d was lost (%s): %s start again", host, reason, ", ".join(names))
        self.history.add(names, reason).host = host
        self._lose(self.graph.kinds if self._purges else nodes)

    def move(self, places: Mapping[int, int], reason: str) -> None:
        """Nodes that live start again on other hosts that live."""
        names = self._names(places)
        log.info("%s: %s", ", ".join(names), reason)
        self.orders.place(places)
        self.history.add(names, reason).moved = True
        self._lose(places)

    def _lose(self, nodes: Iterable[int]) -> None:
        self.perform(self.machine.lost({node: self._incarnation(node) for node in nodes}))

    def told(self, report: reports.RecoveryReport) -> None:
        """A host's word on a recovery."""
        machine = self.machine
        match report:
            case reports.NodeReported():
                self.perform(machine.reported(report.node, report.round, report.report))
            case reports.NodeStarted():
                effects = machine.started(report.node, report.incarnation)
                self._worked(report.node, followed=report.followed)
                self.perform(effects)
            case reports.EdgeOpened(sender, incarnation, target, target_incarnation):
                effects = machine.opened(sender, incarnation, target, target_incarnation)
                self._worked(target, resend_s=report.seconds)
                if machine.open:
                    self.story.opened()
                self.perform(effects)
            case reports.NodeRecovered():
                self.perform(machine.recovered(report.node, report.incarnation))
            case (
                reports.CheckpointSaved() | reports.CheckpointRequestMet() | reports.NodeCaughtUp()
            ):
                if report.incarnation == self._incarnation(report.node):
                    self._learned(report)
            case reports.CheckpointUnreadable():
                self.perform(machine.lost({report.node: report.incarnation}))
            case reports.NodeContradicted():
                self.perform(machine.contradicted(report.node, report.incarnation, report.reason))
            case reports.NodeFlushed():
                self._flushed(report)
            case reports.HostFenced():
                self.story.fenced(report.round, report.host)
                self.perform(machine.host_fenced(report.round, report.host))
            case reports.WriterStalled():
                self.stalls.note(report)
            case _:
                assert_never(report)

    def _learned(
        self,
        report: reports.CheckpointSaved | reports.CheckpointRequestMet | reports.NodeCaughtUp,
    ) -> None:
        """A node has done something that no other node waits for."""
        match report:
            case reports.NodeCaughtUp():
                self.story.caught_up(report)
                self._worked(
                    report.node,
                    restore_s=report.restore_s,
                    replay_s=report.replay_s,
                    rows=report.rows,
                )
            case reports.CheckpointRequestMet():
                self.requests.met(report.node, report.asked)
            case reports.CheckpointSaved():
                self.retention.checkpoint_saved(report.node, report.epoch, report.serves_from)
            case _:
                assert_never(report)

    def _flushed(self, report: reports.NodeFlushed) -> None:
        """A node waits for the checkpoints of all nodes."""
        if self._hold is None or report.incarnation != self._incarnation(report.node):
            return
        epoch = self._hold.flushed(report.node, Flushed(report.epoch, report.waiting))
        if epoch is not None:
            self.orders.tell_all(host_orders.ResumeInput(epoch))

    # -- what is known ---------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """Whether no node is still recovering."""
        return self.machine.quiet

    @property
    def open(self) -> bool:
        """Whether every edge of the last plan is open."""
        return self.machine.open

    @property
    def settled(self) -> bool:
        """Whether nothing recovers, and nodes may be moved."""
        all_go_back = self._purges or self.machine.all_together
        return self.machine.quiet and self.machine.open and not self._work and not all_go_back

    def incarnations(self) -> Mapping[int, int]:
        """The present incarnation of every node."""
        return self.machine.record.incarnations

    def _incarnation(self, node: int) -> int:
        return self.machine.record.incarnations[node]

    def _names(self, nodes: Iterable[int]) -> list[str]:
        return [self.plan.node_name(node) for node in nodes]

    def _worked(self, node: int, **found: float) -> None:
        self.history.worked(self.plan.node_name(node), **found)

    # -- what may be forgotten -------------------------------------------------------------------

    def lows(self) -> Mapping[int, Low]:
        """Behind which epochs no recovery goes, as far as nodes may be told."""
        if self._purges:
            return {}
        self.learn_published()
        due = self.retention.due(going_back=bool(self.machine.record.limits))
        if due is not None:
            try:
                self.store.forget_beginnings(due.begun)
            except OSError:  # nothing is forgotten before that is durable
                return self.retention.lows
            self.retention.forgotten(due)
        return self.retention.lows

    def learn_published(self) -> None:
        """Tell the retention machine what sinks have published."""
        for chain in self.plan.chains:
            if chain.sinks:
                epoch = min(map(self._epochs.published, chain.sinks))
                for node in chain.nodes:
                    self.retention.sink_published(node, epoch)

    def rules(
        self, settings: RunSettings, plan: PlanOrders, one_machine: bool, stages_in_row: int | None
    ) -> RecoveryRules:
        """What hosts must know of recovery."""
        graph = self.graph
        return RecoveryRules(
            nodes=NodeFacts(
                kinds=dict(graph.kinds),
                determined=frozenset(graph.determined),
                logless=frozenset(graph.logless),
                clean=frozenset(graph.clean),
                untraced=frozenset(graph.untraced),
                position_first=graph.position_first,
            ),
            plan=plan,
            store=self.store.storage.address,
            sync=self.store.place.sync,
            one_machine=one_machine,
            checkpoint_s=None if self._purges else settings.s("checkpointInterval"),
            followed_s=settings.followed_s,
            copies=settings.logs == "copies",
            log_bytes=settings.logBytes,
            store_timeout_s=self.stalls.timeout_s,
            stages_in_row=stages_in_row,
        )

    # -- effects ---------------------------------------------------------------------------------

    def perform(self, effects: Iterable[RecoveryEffect]) -> None:
        """Perform effects, in order; what the store does not take now is tried again."""
        self._work.extend(effects)
        starts: list[StartNode] = []
        edges: list[OpenEdge] = []
        while self._work:
            effect = self._work.popleft()
            try:
                self._work.extend(self._perform(effect, starts, edges))
                self.story.performed(effect)
            except OSError as error:
                self._work.appendleft(effect)
                self.stall.failed(error)
                break
        else:
            self.stall.worked()
        if starts:
            self._start(starts)
        if edges:
            self.history.started()
            self.story.opening(edges)
            self.orders.open(edges)
        if self.history.looked(self.machine.open, self.machine.quiet):
            self.orders.tell_all(host_orders.SettleNodes())

    def try_again(self) -> None:
        """Go on with what the store did not take, now and then."""
        if self._work and self.stall.is_due():
            self.perform([])

    def _perform(
        self, effect: RecoveryEffect, starts: list[StartNode], edges: list[OpenEdge]
    ) -> list[RecoveryEffect]:
        """Perform an effect, and give those that follow from it; doing it again is fine."""
        match effect:
            case PersistRecord():
                self.store.write_record(effect.record)
            case FenceStore():
                self.store.fence_states(effect.incarnations)
            case FenceHosts():
                self.orders.fence(effect)
            case ReadStates():
                self._early = self._read(effect.nodes)
            case FenceSources():
                lows = self.lows()
                for node, incarnation in effect.incarnations.items():
                    self.store.fence_source(node, incarnation, lows.get(node, Low()).region)
            case CollectStored():
                return self._collect(effect)
            case StartNode():
                starts.append(effect)
            case OpenEdge():
                edges.append(effect)
            case Refuse():
                log.warning("rollback: not possible any more (%s)", effect.reason)
            case Widen():
                self._widened(effect)
            case GiveUp():
                self.story.performed(effect)
                reason = self.story.with_names(effect.reason)
                raise PenstockError(
                    f"the flow cannot be recovered: {reason}. Restore "
                    f"{self.store.storage} from a copy, or start with a new checkpointLocation and "
                    "empty output"
                )
            case _:
                assert_never(effect)
        return []

    def _collect(self, effect: CollectStored) -> list[RecoveryEffect]:
        rest = {n: newest for n, newest in effect.nodes.items() if n not in self._early}
        stored = {**self._early, **self._read(rest)}
        whole = [node for node, newest in effect.nodes.items() if newest is None]
        self.retention.stored_read(stored, whole)
        if not self._has_begun:
            self._has_begun = True
            self.learn_published()
            self.retention.begun()
        return self.machine.stored(effect.round, stored, self.retention.gone_before())

    def _read(self, nodes: Mapping[int, int | None]) -> dict[int, Stored]:
        return {
            node: self.store.stored(node, self._incarnation(node), newest)
            for node, newest in nodes.items()
        }

    def _start(self, starts: list[StartNode]) -> None:
        names = self._names(effect.node for effect in starts)
        self.history.planned(names)
        self.story.planned(starts)
        self.stalls.forget(names)
        if self._pause_every is not None:
            # A node that is fed only round a loop has no parents, but checkpoints.
            fed = [node for node, kind in self.graph.kinds.items() if kind is not NodeKind.SOURCE]
            ahead = {effect.node: effect.start.completed for effect in starts}
            self._hold = GlobalHold(fed, self._pause_every, min(ahead.values()), ahead)
        for effect in starts:
            self.retention.node_restarted(effect.node, effect.start.completed)
            self._epochs.started(effect.node, effect.start.completed)
        self.orders.start(starts, None if self._hold is None else self._hold.epoch)

    def _widened(self, effect: Widen) -> None:
        """Say that more restarts than was lost."""
        reason = self.story.with_names(effect.reason)
        if effect.node is None:
            log.warning("causal recovery is impossible (%s): the whole flow goes back", reason)
            return
        name = self.plan.node_name(effect.node)
        self.history.add([name], f"{name} could not repeat what others know of it: {reason}")
        log.warning(
            "recovery: steps that are known contradict each other (%s); all that is connected with "
            "that node goes back to the last published epochs and checkpoints, and works on what "
            "came after once more. Nothing is lost, nothing comes twice",
            reason,
        )
