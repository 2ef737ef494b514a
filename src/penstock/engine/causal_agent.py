"""The recovery side of a host: it starts, fences, opens and truncates nodes as it is told.

The controller decides (:mod:`penstock.core.machine.recovery`), every host has one agent that does
it.  All of it happens in the host's loop, between two steps of its nodes.

    {"kind": "start", "nodes": [...], "placement": {...}}     start incarnations of nodes
    {"kind": "fence", "round": n, "incarnations": {...}, …}   refuse the old ones, report
    {"kind": "open", "edges": [...]}                          send again after a position, go on
    {"kind": "plan", "orders": {...}}                         checkpoint so often, log or not
    {"kind": "resume", "epoch": n}                            everybody has a checkpoint: go on
    {"kind": "settled"}                                       everybody is as good as any other
    {"kind": "meet", "addresses": {...}}                      connect to a host that may take nodes
    {"kind": "follow", "nodes": {...}}                        keep up with nodes that run elsewhere
    {"kind": "checkpoint", "epoch": e, "now": False}          save the state when e is complete
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.connectors.base import SourceContext
from penstock.connectors.driver import DriverSink
from penstock.core.causal.codec import position_from, start_from
from penstock.core.causal.graph import Kind
from penstock.core.causal.reports import Start
from penstock.core.machine.causal import CausalMachine
from penstock.core.machine.causal_effects import Checkpoint
from penstock.core.machine.causal_loop import CausalLoop
from penstock.core.machine.causal_source import CausalSource
from penstock.core.progress.deltas import decode_changes
from penstock.core.progress.exchange import Broadcast, LocalProgress
from penstock.core.progress.marks import EPOCH_END
from penstock.engine.build import inputs_of, opened, outlets_of, wired
from penstock.engine.causal_loop import LoopRunner
from penstock.engine.causal_node import CausalRunner
from penstock.engine.causal_source import CausalSourceDriver, resume_record
from penstock.engine.changed_flow import cleaned
from penstock.engine.clean_node import CleanRunner, waits
from penstock.engine.clock import EpochClock, work_clock_s
from penstock.engine.durable import CheckpointWriter, NodeStore, SpillFile, Stall
from penstock.engine.following import Follower
from penstock.engine.host import Host
from penstock.engine.replicas.agent import ReplicaAgent
from penstock.engine.store import BoundaryLog
from penstock.engine.warm_up import warm_up
from penstock.errors import NotWrittenError, PeerError, PenstockError, TransientError
from penstock.physical import PhysicalPlan
from penstock.regimes import PAUSES, Eager
from penstock.tracking import TrackingPlan
from penstock.vertex import Vertex

__all__ = ["CausalAgent", "checkpoints_of"]

log = logging.getLogger(__name__)

KEPT_IN_LOOPS = 6
PAUSE_MAX_S = 2.0
"""So long at most nodes that can wait do so during a recovery."""
_WITH_STATE = (Kind.STATEFUL, Kind.ORDERED)
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
        tracking: TrackingPlan | None,
        run: dict[str, Any],
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self.host = host
        self.plan = plan
        self.tracking = tracking
        self.run = run
        self.tell = tell
        self.writer = CheckpointWriter(self._failed, self._stall(checkpoints_of(host.number)))
        self.spill = SpillFile()
        self._clock = EpochClock(run["base"], run["origin_us"], run["interval_us"])
        self._lows: dict[int, tuple[int, int]] = {}
        self._left: dict[int, CausalRunner] = {}
        """Nodes that were here until they had to start again, here or elsewhere."""
        self.follower = Follower(plan, self._store, self._told_followed)
        self._newest: dict[int, int] = {}
        """The newest incarnations of nodes that were to be started here."""
        self.replicas = None if run["replicas"] is None else ReplicaAgent(host, plan, run, tell)
        host.placement = dict(run["placement"])
        self._connect(run["addresses"])
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

    def _failed(self, name: str, error: Exception) -> None:
        if isinstance(error, PeerError):
            self.write_refused()

        def failed() -> None:
            for runner in self._runners():
                if runner.name == name:
                    log.warning("a checkpoint of %s could not be written: %s", name, error)
                    runner.not_saved()

        self.call(failed)

    # -- what the controller asks for ------------------------------------------------------------

    def take(self, body: dict[str, Any]) -> None:
        """Do what a message of the controller's says."""
        kind = body["kind"]
        if kind in ("replicas", "replica") and self.replicas is not None:
            self.replicas.take(body)
        elif kind == "fence":
            self._fence(body)
        elif kind == "start":
            self.host.placement.update(body["placement"])
            self._connect(body["addresses"])
            if "progress" in body:
                self._track(body)
            for spec in body["nodes"]:
                stall = self._stall(self.plan.node_name(spec["node"]))
                self._newest[spec["node"]] = spec["incarnation"]
                if not self._started(spec, stall):
                    self.host.retries.append(partial(self._started, spec, stall))
            self.follower.clear()  # no spare any more
        elif kind == "open":
            self._open(body)
        elif kind == "settled":
            self._left.clear()
            self.host.pause(0.0)
        elif kind == "meet":
            self._connect(body["addresses"])
        elif kind == "follow":
            self.follower.follow(body["nodes"])
        elif kind == "resume":
            for runner in self._runners():
                runner.perform(runner.causal.resume(body["epoch"]))
                self.host.count(runner)
        elif kind == "checkpoint":
            for runner in self._runners():
                if runner.node in body.get("nodes", (runner.node,)):
                    runner.ask_checkpoint(body["epoch"], body["now"])
        elif kind == "plan":
            self.run = {**self.run, "orders": body["orders"]}
            for runner in self._runners():
                self._ordered(runner)

    def _ordered(self, runner: CausalRunner) -> None:
        """What the plan in force says of a node."""
        orders = self.run["orders"]
        runner.checkpoint_epochs = orders["epochs"].get(runner.node)
        if runner.node in orders["logged"]:
            runner.causal.logged = orders["logged"][runner.node]
            runner.remembers = runner.remembers or not runner.causal.logged

    def truncate(self, lows: dict[int, tuple[int, int]]) -> None:
        """No recovery goes back behind these epochs any more."""
        if self.replicas is not None:
            self.replicas.truncate(lows)
        for runner in self._runners():
            low = lows.get(runner.node, _NOTHING_GONE)
            if low != self._lows.get(runner.node, _NOTHING_GONE):
                self._lows[runner.node] = low
                runner.truncate(*low)

    def _started(self, spec: dict[str, Any], stall: Stall) -> bool:
        """Start a node, unless another start takes its place; False: the store must come back."""
        if self._newest[spec["node"]] > spec["incarnation"]:
            stall.worked()
            return True
        if not stall.is_due():
            return False
        try:
            self._start(spec)
        except PeerError as error:
            log.info("not started: %s", error)  # replaced in the meantime
        except (OSError, NotWrittenError) as error:
            stall.failed(error)
            return False
        stall.worked()
        return True

    def _stall(self, name: str) -> Stall:
        """How a node, or whoever else writes, waits for the store."""
        return Stall(name, self.run["store_timeout_s"], self._told_stall)

    def _told_stall(self, **news: Any) -> None:
        self.tell({"kind": "stalled", **news})

    def _runners(self) -> list[CausalRunner]:
        return [r for r in list(self.host.nodes.values()) if isinstance(r, CausalRunner)]

    def _connect(self, addresses: dict[int, str]) -> None:
        for peer, address in addresses.items():
            if peer != self.host.number:
                self.host.transport.connect(peer, address)

    def _fence(self, body: dict[str, Any]) -> None:
        for peer in body["gone"]:
            self.host.transport.forget(peer)
        self._newest.update(
            {n: i for n, i in body["incarnations"].items() if i > self._newest.get(n, -1)}
        )
        self.host.pause(PAUSE_MAX_S)
        for runner in sorted(self._runners(), key=lambda runner: runner.pause):
            runner.perform(runner.causal.fence(body["incarnations"], body["round"]))
        self.tell({"kind": "fenced", "round": body["round"], "host": self.host.number})

    def _open(self, body: dict[str, Any]) -> None:
        self.host.placement.update(body["placement"])
        self._connect(body["addresses"])
        for sender, target, incarnation, position in body["edges"]:
            runner = self.host.nodes.get(sender)
            if isinstance(runner, CausalRunner):
                runner.open(target, incarnation, position_from(position))

    def _track(self, body: dict[str, Any]) -> None:
        """Count the progress of loops anew: all their nodes start from one epoch."""
        tracking, progress = self.tracking, body["progress"]
        if tracking is None:
            return
        here = frozenset(spec["node"] for spec in body["nodes"])
        sequence, changes = progress["welcome"]
        self.host.track(
            LocalProgress(
                tracking.graph,
                Broadcast(sequence, (), decode_changes(tracking.graph, changes)),
                held=tracking.held(self.plan, progress["epoch"] + 1, here),
            ),
            progress["generation"],
        )

    # -- starting a node -------------------------------------------------------------------------

    def _start(self, spec: dict[str, Any]) -> None:
        began_s = work_clock_s()
        node, incarnation = spec["node"], spec["incarnation"]
        start = start_from(spec["start"])
        before = self.host.nodes.get(node)
        if before is not None:
            self.host.remove(node)
        before = self._left.pop(node, before)
        remembered = before.memory if isinstance(before, CausalRunner) else {}
        chain = self.plan.chain_of_node(node)
        store, checkpoint, state = None, None, None
        ready: tuple[Vertex | None, ...] = ()
        followed = False
        if Kind(self.run["kinds"][node]) in _WITH_STATE and self.run["checkpoint_s"] is not None:
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
                    self.tell({"kind": "broken", "node": node, "incarnation": incarnation})
                    return
            store.roll_back(start.checkpoint or 0, start.trim, start.observed)
            if spec["foreign"] is not None and checkpoint is not None and state is not None:
                names = [stage.name for stage in chain.stages]
                checkpoint, state = cleaned(checkpoint.report, state, start, spec["foreign"], names)
                ready = ()
        machine = self._machine(
            node, incarnation, spec["incarnations"], start, checkpoint, spec["hold"]
        )
        runner = wired(self.plan, self.host, machine, self._maker(node, store))
        runner.chain.repeatable = True
        self._ordered(runner)
        runner.pause = PAUSES.index(chain.pause)
        runner.chain.keep_pending = store is not None and not machine.clean
        runner.checkpoint_epoch = start.completed
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
            runner.source = self._source(runner, start)
        self.host.add(runner)
        told = {"kind": "started", "node": node, "incarnation": incarnation}
        self.tell({**told, "followed": followed})
        # Its receivers have the marks of the epochs that it had completed.
        had = max((position.epoch for position in start.positions.values()), default=-1)
        if before is not None:
            had = max(had, before.machine.completed_epoch)
        runner.work.restarted(had, work_clock_s() - began_s)
        cpu_ns = time.thread_time_ns()
        runner.perform(runner.causal.begin())
        runner.cpu_ns += time.thread_time_ns() - cpu_ns

    def _told_followed(self, node: int, key: int) -> None:
        self.tell({"kind": "followed", "host": self.host.number, "node": node, "key": key})

    def _maker(self, node: int, store: NodeStore | None) -> Callable[..., CausalRunner]:
        """How to make a node's runner."""
        chain = self.plan.chain_of_node(node)
        checkpoint_s = self.run["checkpoint_s"] or 0.0
        common: dict[str, Any] = {
            "keeper": self,
            "store": store,
            "checkpoint_s": min(checkpoint_s, self.run["followed_s"] or checkpoint_s),
            "followed": self.run["followed_s"] is not None,
            "copies": self.run["copies"],
            "stall": self._stall(chain.node_name(node)),
        }
        if chain.loops:
            block = self._every(node) if store is not None else EPOCH_END
            return partial(LoopRunner, **common, remembers=True, block_epochs=block)
        if not self._is_clean(node):
            return partial(CausalRunner, **common)
        return partial(CleanRunner, **common, remembers=True, waits=waits(chain))

    def _every(self, node: int) -> int:
        """Epochs from one checkpoint of a node to the next, where they are counted."""
        interval_us = self.run["interval_us"]
        by_time = round((self.run["checkpoint_s"] or 0.0) * 1e6 / interval_us)
        return self.plan.chain_of_node(node).regime.epochs(interval_us) or max(1, by_time)

    def _is_clean(self, node: int) -> bool:
        return node in self.run["clean"]

    def _store(self, node: int, incarnation: int) -> NodeStore:
        chain = self.plan.chain_of_node(node)
        return NodeStore(
            self.run["store"],
            chain.name,
            node - chain.first_node,
            incarnation,
            self.run["sync"],
            # The nodes of a loop need one that all have, and one may be slower than another.
            **({"kept": KEPT_IN_LOOPS} if chain.loops else {}),
        )

    def _machine(
        self,
        node: int,
        incarnation: int,
        incarnations: dict[int, int],
        start: Start,
        checkpoint: Checkpoint | None,
        hold_after: int | None,
    ) -> CausalMachine:
        chain = self.plan.chain_of_node(node)
        counted = None if self.tracking is None else self.tracking.node(chain)
        outlets = outlets_of(self.plan, node, counted)
        budget = self.run["log_bytes"]
        logged = node not in self.run["logless"]
        checkpointed = Kind(self.run["kinds"][node]) in _WITH_STATE
        traced = node not in self.run["untraced"]
        if self.tracking is not None and counted is not None:
            return CausalLoop(
                node,
                inputs_of(self.plan, node),
                outlets,
                incarnation,
                incarnations,
                inside=frozenset(self.tracking.links),
                start=start,
                checkpoint=checkpoint,
                budget_bytes=budget,
                tracking=counted,
                logged=logged,
                hold_after=hold_after,
            )
        if chain.is_source:
            return CausalSource(
                node,
                {},
                outlets,
                incarnation,
                incarnations,
                start=start,
                budget_bytes=budget,
                logged=logged,
                traced=traced,
            )
        return CausalMachine(
            node,
            inputs_of(self.plan, node),
            outlets,
            incarnation,
            incarnations,
            determined=node in self.run["determined"],
            stateful=Kind(self.run["kinds"][node]) in _WITH_STATE,
            start=start,
            checkpoint=checkpoint,
            budget_bytes=budget,
            clean=self._is_clean(node),
            logged=logged,
            traced=traced,
            checkpoint_every=self._every(node) if self._is_clean(node) else None,
            eager=isinstance(chain.regime, Eager) and checkpointed,
            hold_after=hold_after,
        )

    def _source(self, runner: CausalRunner, start: Start) -> CausalSourceDriver:
        chain = self.plan.chain_of_node(runner.node)
        stage = chain.stages[0]
        shard = runner.node - chain.first_node
        boundaries = BoundaryLog(self.run["store"], stage.name, shard, self.run["sync"])
        boundaries.claim(runner.machine.incarnation)
        base = resume_record(boundaries.read(), start.completed)
        context = SourceContext(
            shard,
            chain.shards,
            None if base is None else base["position"],
            boundaries.resume(None).journal,
            self.run["available_now"],
            self.run["started_us"],
        )
        operator: Any = stage.operator
        driver = CausalSourceDriver(
            stage.name,
            runner.name,
            opened(operator.source, context, stage.name, runner.name),
            runner.chain,
            self._clock,
            runner.cut,
            boundaries,
            grid_us=self.plan.cut_grid_us,
            rows_max=self.run["rows_max"],
            linger_us=self.run["linger_us"],
            node=runner,
            start=start,
            position_first=runner.node in self.run["position_first"],
            machines=not self.run["one_machine"],
        )
        try:
            driver.begin(base)
        except PenstockError as error:
            error.parameters.setdefault("node", runner.name)
            raise
        if self.run["stopping"]:
            driver.stop()
        return driver

    def stop_sources(self) -> None:
        """Sources that are started from now on end their streams, too."""
        self.run = {**self.run, "stopping": True}
        if self.replicas is not None:
            self.replicas.stop_sources()
