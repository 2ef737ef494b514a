"""The recovery side of a host: it starts, fences, opens and truncates nodes as it is told.

The controller decides (:mod:`penstock.core.control.recovery`), every host has one agent that does
it.  All of it happens in the host's loop, between two steps of its nodes.  What it can be told is
:data:`penstock.core.control.host_orders.AgentOrder`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

from penstock.api.regimes import PAUSES, Eager
from penstock.api.vertex import Vertex
from penstock.connectors.driver import DriverSink
from penstock.core.causal.graph import NodeKind
from penstock.core.causal.reports import Start
from penstock.core.control.assignment import Assignment, RecoveryRules
from penstock.core.control.host_orders import (
    AgentOrder,
    ApplyPlan,
    FenceNodes,
    FollowCheckpoints,
    MeetHosts,
    NodeStart,
    OpenEdges,
    PlayRoles,
    ResumeInput,
    SaveCheckpoints,
    SettleNodes,
    StartNodes,
)
from penstock.core.control.host_reports import (
    CheckpointFollowed,
    CheckpointUnreadable,
    HostFenced,
    HostReport,
    NodeStarted,
)
from penstock.core.control.messages import RoleEnvelopes
from penstock.core.node.causal import CausalMachine
from penstock.core.node.causal_effects import Checkpoint
from penstock.core.node.options import NodeOptions
from penstock.core.node.source import CausalSource
from penstock.core.progress.marks import EPOCH_END
from penstock.engine.host.build import opened, source_context, wired, wiring_of
from penstock.engine.host.causal_loop import LoopRunner
from penstock.engine.host.causal_node import CausalRunner
from penstock.engine.host.causal_source import CausalSourceDriver, resume_record
from penstock.engine.host.clean_node import CleanRunner, HoldingRunner, waits
from penstock.engine.host.clock import EpochClock, work_clock_s
from penstock.engine.host.host import Host
from penstock.engine.host.last_words import Announcer, take_care
from penstock.engine.host.replicas.agent import ReplicaAgent
from penstock.engine.host.warm_standby import Follower
from penstock.engine.host.warm_up import warm_up
from penstock.engine.store.changed_flow import cleaned
from penstock.engine.store.durable import CheckpointWriter, NodeStore, SpillFile, Stall
from penstock.engine.store.logs import BoundaryLog, ResumePoint, newest_position, refuse_forgotten
from penstock.errors import NotWrittenError, PeerError, PenstockError, TransientError
from penstock.planning.physical import PhysicalPlan
from penstock.planning.tracking import TrackingPlan, tracked_with

__all__ = ["CausalAgent", "checkpoints_of"]

log = logging.getLogger(__name__)

KEPT_IN_LOOPS = 6
PAUSE_MAX_S = 2.0
"""Longest pause of pausable nodes during a recovery."""
_WITH_STATE = (NodeKind.STATEFUL, NodeKind.ORDERED)
_NOTHING_GONE = (-1, -1)


def checkpoints_of(host: int) -> str:
    """Who waits when a host's checkpoints cannot be written."""
    return f"the checkpoints of host {host}"


class CausalAgent:
    """Does what the controller's recovery asks of one host."""

    def __init__(
        self,
        host: Host,
        plan: PhysicalPlan,
        tracking: tuple[TrackingPlan, ...],
        run: Assignment,
        rules: RecoveryRules,
        tell: Callable[[HostReport], None],
    ) -> None:
        self.host = host
        self.plan = plan
        self.tracking = tracking
        self.run = run
        self.rules = rules
        self.tell = tell
        self.writer = CheckpointWriter(self._failed, self._stall(checkpoints_of(host.number)))
        self.spill = SpillFile()
        self._clock = EpochClock(*run.epochs)
        self._lows: dict[int, tuple[int, int]] = {}
        self._left: dict[int, CausalRunner] = {}
        """Nodes that were here until they had to start again, here or elsewhere."""
        self.follower = Follower(plan, self._store, self._told_followed)
        self._newest: dict[int, int] = {}
        """The newest incarnations of nodes that were to be started here."""
        self._orders = rules.plan
        self._stopping = run.sources.stopping
        self.replicas: ReplicaAgent | None = None
        if rules.stages_in_row is not None:
            self.replicas = ReplicaAgent(host, plan, run, rules, tell)
        host.placement = dict(run.placement)
        self._connect(run.addresses)
        if host.number not in host.placement.values():
            warm_up(plan)

    def close(self) -> None:
        """The host ends: stop writing, drop what was spilled."""
        self.follower.close()
        self.writer.close()
        self.spill.close()

    # -- Keeper ----------------------------------------------------------------------------------

    def call(self, function: Callable[[], None]) -> None:
        """Run something in the host's loop."""
        self.host.call(function)

    def retire(self, node: int) -> None:
        """Another incarnation has taken a node's place; what it remembers may be of use to it."""
        runner = self.host.nodes[node]
        if isinstance(runner, CausalRunner):
            self._left[node] = runner
        self.host.remove(node)

    def write_refused(self) -> None:
        """The store has refused what a node wrote; if this host was given up, others will know."""
        self.host.transport.refusals.writes += 1

    def _failed(self, store: NodeStore, error: Exception) -> None:
        if isinstance(error, PeerError):
            self.write_refused()

        def failed() -> None:
            for runner in self._runners():
                if runner.store is store:  # a later start of the node has another one
                    log.warning("a checkpoint of %s could not be written: %s", store.name, error)
                    runner.not_saved()

        self.call(failed)

    # -- what the controller asks for ------------------------------------------------------------

    def take(self, order: AgentOrder | RoleEnvelopes) -> None:
        """Do what the driver, or another host's replicas, ask for."""
        match order:
            case RoleEnvelopes() | PlayRoles():
                if self.replicas is not None:
                    self.replicas.take(order)
            case FenceNodes():
                self._fence(order)
            case StartNodes():
                self._start_all(order)
            case OpenEdges():
                self._open(order)
            case SettleNodes():
                self._left.clear()
                self.host.pause(0.0)
            case MeetHosts():
                self._connect(order.addresses)
            case FollowCheckpoints():
                self.follower.follow(order.nodes)
            case ResumeInput():
                for runner in self._runners():
                    runner.perform(runner.machine.resume(order.epoch))
                    self.host.count(runner)
            case SaveCheckpoints():
                for runner in self._runners():
                    if order.nodes is None or runner.node in order.nodes:
                        runner.ask_checkpoint(order.epoch, order.now)
            case ApplyPlan():
                self._orders = order.orders
                for runner in self._runners():
                    self._ordered(runner)
            case _:
                assert_never(order)

    def _start_all(self, order: StartNodes) -> None:
        self.host.placement.update(order.placement)
        self._connect(order.addresses)
        self._track(order)
        for one in order.nodes:
            stall = self._stall(self.plan.node_name(one.node))
            self._newest[one.node] = one.incarnation
            if not self._started(one, stall):
                self.host.retries.append(partial(self._started, one, stall))
        self.follower.clear()  # no spare any more

    def _ordered(self, runner: CausalRunner) -> None:
        """What the plan in force says of a node."""
        orders = self._orders
        runner.checkpoint_epochs = orders.epochs.get(runner.node)
        if runner.node in orders.logged:
            runner.machine.logged = orders.logged[runner.node]
            runner.remembers = runner.remembers or not runner.machine.logged

    def truncate(self, lows: Mapping[int, tuple[int, int]]) -> None:
        """No recovery goes back behind these epochs any more."""
        if self.replicas is not None:
            self.replicas.truncate(lows)
        everywhere = min((low for low, _ in lows.values()), default=-1)
        for runner in self._runners():
            if lows and not runner.machine.replaying:
                runner.chain.released(everywhere, runner.machine.completed_epoch)
            low = lows.get(runner.node, _NOTHING_GONE)
            if low != self._lows.get(runner.node, _NOTHING_GONE):
                self._lows[runner.node] = low
                runner.truncate(*low)

    def _started(self, order: NodeStart, stall: Stall) -> bool:
        """Start a node, unless another start takes its place; False: the store must come back."""
        if self._newest[order.node] > order.incarnation:
            stall.worked()
            return True
        if not stall.is_due():
            return False
        try:
            self._start(order)
        except PeerError as error:
            log.info("not started: %s", error)  # replaced in the meantime
        except (OSError, NotWrittenError) as error:
            stall.failed(error)
            return False
        stall.worked()
        return True

    def _stall(self, name: str) -> Stall:
        """How a node, or another writer, waits for the store."""
        return Stall(name, self.rules.store_timeout_s, self.tell)

    def _runners(self) -> list[CausalRunner]:
        return [r for r in list(self.host.nodes.values()) if isinstance(r, CausalRunner)]

    def _connect(self, addresses: Mapping[int, str]) -> None:
        for peer, address in addresses.items():
            if peer != self.host.number:
                self.host.transport.connect(peer, address)

    def _fence(self, order: FenceNodes) -> None:
        for peer in order.gone:
            self.host.transport.forget(peer)
        self._newest.update(
            {n: i for n, i in order.incarnations.items() if i > self._newest.get(n, -1)}
        )
        self.host.pause(PAUSE_MAX_S)
        for runner in sorted(self._runners(), key=lambda runner: runner.pause):
            runner.perform(runner.machine.fence(order.incarnations, order.round))
        self.tell(HostFenced(order.round, self.host.number))

    def _open(self, order: OpenEdges) -> None:
        self.host.placement.update(order.placement)
        self._connect(order.addresses)
        for sender, target, incarnation, position in order.edges:
            runner = self.host.nodes.get(sender)
            if isinstance(runner, CausalRunner):
                runner.open(target, incarnation, position)

    def _track(self, order: StartNodes) -> None:
        """Count the progress of loops anew: all nodes of one start from one epoch."""
        here = frozenset(one.node for one in order.nodes)
        for tracking in self.tracking:
            begun = order.progress.get(tracking.unit)
            if begun is not None:
                self.host.track(tracking.host_progress(self.plan, begun, here))

    # -- starting a node -------------------------------------------------------------------------

    def _start(self, order: NodeStart) -> None:
        began_s = work_clock_s()
        node, incarnation, start = order.node, order.incarnation, order.start
        before = self.host.nodes.get(node)
        if before is not None:
            self.host.remove(node)
        before = self._left.pop(node, before)
        remembered = before.memory if isinstance(before, CausalRunner) else {}
        chain = self.plan.chain_of_node(node)
        store, checkpoint, state = None, None, None
        ready: tuple[Vertex | None, ...] = ()
        followed = False
        if self._has_state(node) and self.rules.checkpoint_s is not None:
            store = self._store(node, incarnation)
            if start.checkpoint in remembered:
                checkpoint, state = remembered[start.checkpoint]
            elif start.checkpoint:
                try:
                    found = self.follower.take(node, store, start.checkpoint)
                    if found is None:
                        checkpoint, state = store.load_checkpoint(start.checkpoint)
                    else:
                        followed, ready = True, found.vertices
                        checkpoint, state = found.read.checkpoint, found.read.state
                except TransientError as error:
                    log.warning("%s", error)
                    self.tell(CheckpointUnreadable(node, incarnation))
                    return
            store.roll_back(start.checkpoint or 0, start.trim, start.observed)
            if order.foreign is not None and checkpoint is not None and state is not None:
                names = [stage.name for stage in chain.stages]
                checkpoint, state = cleaned(checkpoint.report, state, start, order.foreign, names)
                ready = ()
        machine = self._machine(
            node, incarnation, order.incarnations, start, checkpoint, order.hold
        )
        runner = wired(self.plan, self.host, machine, self._maker(node, store))
        runner.chain.repeatable = True
        self._ordered(runner)
        runner.pause = PAUSES.index(chain.pause)
        runner.chain.keep_pending = store is not None and not machine.clean
        runner.checkpoint_epoch = start.completed
        # Its receivers have the marks of the epochs that it had completed.
        had = max((position.epoch for position in start.positions.values()), default=-1)
        if before is not None:
            had = max(had, before.machine.completed_epoch)
        self.host.starting = runner
        take_care(order.care, Announcer(self.host, self.plan, self.tell, runner, had))
        if store is not None:
            runner.key = store.newest()
        if state is not None:
            runner.chain.restore(state, start.completed, ready)
            runner.checkpoint_epoch = start.completed
        else:
            runner.chain.open()
        for stage in chain.stages:
            if isinstance(stage.operator, DriverSink):
                stage.operator.resume(start.completed + 1)
        if chain.is_source:
            self._start_source(runner, start)
        self.host.add(runner)
        self.tell(NodeStarted(node, incarnation, followed))
        runner.work.restarted(had, work_clock_s() - began_s)
        cpu_ns = time.thread_time_ns()
        runner.perform(runner.machine.begin())
        runner.cpu_ns += time.thread_time_ns() - cpu_ns

    def _told_followed(self, node: int, key: int) -> None:
        self.tell(CheckpointFollowed(self.host.number, node, key))

    def _has_state(self, node: int) -> bool:
        return self.rules.nodes.kinds[node] in _WITH_STATE

    def _maker(self, node: int, store: NodeStore | None) -> Callable[..., CausalRunner]:
        """How to make a node's runner."""
        chain = self.plan.chain_of_node(node)
        rules = self.rules
        checkpoint_s = rules.checkpoint_s or 0.0
        common: dict[str, Any] = {
            "agent": self,
            "store": store,
            "checkpoint_s": min(checkpoint_s, rules.followed_s or checkpoint_s),
            "followed": rules.followed_s is not None,
            "copies": rules.copies,
            "stall": self._stall(chain.node_name(node)),
        }
        if chain.loops:
            block = self._every(node) if store is not None else EPOCH_END
            return partial(LoopRunner, **common, remembers=True, block_epochs=block)
        if not self._is_clean(node):
            return partial(CausalRunner, **common)
        if not self._counts_epochs(node):
            return partial(HoldingRunner, **common)
        return partial(CleanRunner, **common, remembers=True, waits=waits(chain))

    def _every(self, node: int) -> int:
        """Epochs from one checkpoint of a node to the next, where they are counted."""
        interval_us = self.run.epochs.interval_us
        by_time = round((self.rules.checkpoint_s or 0.0) * 1e6 / interval_us)
        return self.plan.chain_of_node(node).regime.epochs(interval_us) or max(1, by_time)

    def _is_clean(self, node: int) -> bool:
        return node in self.rules.nodes.clean

    def _counts_epochs(self, node: int) -> bool:
        """Whether a clean node's checkpoints are due by epochs, not by time."""
        return self._is_clean(node) and self.plan.chain_of_node(node).regime.clean

    def _store(self, node: int, incarnation: int) -> NodeStore:
        chain = self.plan.chain_of_node(node)
        return NodeStore(
            self.rules.store,
            chain.name,
            node - chain.first_node,
            incarnation,
            self.rules.sync,
            # The nodes of a loop need one that all have, and one may be slower than another.
            **({"kept": KEPT_IN_LOOPS} if chain.loops else {}),
        )

    def _machine(
        self,
        node: int,
        incarnation: int,
        incarnations: Mapping[int, int],
        start: Start,
        checkpoint: Checkpoint | None,
        hold_after: int | None,
    ) -> CausalMachine:
        chain = self.plan.chain_of_node(node)
        tracking = tracked_with(self.tracking, chain)
        counted = None if tracking is None else tracking.node(chain)
        wiring = wiring_of(self.plan, node, counted, incarnation, incarnations)
        facts = self.rules.nodes
        checkpointed = self._has_state(node)
        options = NodeOptions(
            logged=node not in facts.logless,
            traced=node not in facts.untraced,
            budget_bytes=self.rules.log_bytes,
            resumable=self.run.store is not None,
            hold_after=hold_after,
        )
        if counted is not None:
            inside = frozenset(counted.links)
            options = replace(options, inside=inside, tracking=counted, traced=True)
            return CausalMachine(wiring, options, start, checkpoint)
        if chain.is_source:
            return CausalSource(wiring, replace(options, hold_after=None), start)
        options = replace(
            options,
            determined=node in facts.determined,
            stateful=checkpointed,
            clean=self._is_clean(node),
            checkpoint_every=self._every(node) if self._counts_epochs(node) else None,
            eager=isinstance(chain.regime, Eager) and checkpointed,
        )
        return CausalMachine(wiring, options, start, checkpoint)

    def _start_source(self, runner: CausalRunner, start: Start) -> None:
        """Let a source read what it has read before, from the cut before its start."""
        chain = self.plan.chain_of_node(runner.node)
        stage = chain.stages[0]
        shard = runner.node - chain.first_node
        boundaries = BoundaryLog(self.rules.store, stage.name, shard, self.rules.sync)
        boundaries.claim(runner.machine.incarnation)
        records = boundaries.read()
        base = resume_record(records, start.completed)
        if base is None:
            refuse_forgotten(records, start.completed, boundaries.path)
        position = None if base is None else base["position"]
        resume = ResumePoint(position, boundaries.resume(None).journal)
        recorded = newest_position(records)
        context = source_context(self.run, shard, chain.shards, resume, recorded)
        operator: Any = stage.operator
        runner.source = driver = CausalSourceDriver(
            stage.name,
            runner.name,
            opened(operator.source, context, stage.name, runner.name),
            runner.chain,
            self._clock,
            runner.ended,
            boundaries,
            grid_us=self.plan.cut_grid_us,
            rows_max=self.run.sources.rows_max,
            linger=self.run.sources.linger,
            node=runner,
            start=start,
            position_first=runner.node in self.rules.nodes.position_first,
            machines=not self.rules.one_machine,
        )
        try:
            driver.begin(base)
        except PenstockError as error:
            error.parameters.setdefault("node", runner.name)
            raise
        if self._stopping:
            driver.stop()

    def stop_sources(self) -> None:
        """Sources that are started from now on end their streams, too."""
        self._stopping = True
        if self.replicas is not None:
            self.replicas.stop_sources()
