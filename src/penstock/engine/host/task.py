"""What runs in a host's process: the host, its lease and its heartbeat.

It registers with the controller on the driver, gets its nodes, runs them, and returns when the
controller says so.  A thread beside the loop ends the process when the controller was not heard for
too long or the parent process is gone, so that nothing is left behind when a driver dies.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from penstock.core.control.assignment import Assignment
from penstock.core.control.figures import NodeFigures
from penstock.core.control.host_orders import (
    AgentOrder,
    EndHost,
    EndStreams,
    ForgetUpTo,
    GoOn,
    KillHost,
    MoveFrontier,
    SeverPeers,
    SlowNodes,
    StartReading,
    TakeAssignment,
    WatchNext,
)
from penstock.core.control.host_reports import (
    Failure,
    HostBeat,
    HostFailed,
    HostReady,
    HostRegistered,
    HostReport,
    NodeFinished,
    PeerRefused,
    RefusalCounts,
    SinkCompleted,
)
from penstock.core.control.messages import RingPing, RingPong, RoleEnvelopes, ToHost
from penstock.core.control.roster import DRIVER, SLOTS
from penstock.core.control.suspicion import BEAT_MS
from penstock.engine.host.build import add_node, opened, source_context
from penstock.engine.host.causal_agent import CausalAgent
from penstock.engine.host.clock import EpochClock
from penstock.engine.host.host import Host
from penstock.engine.host.last_words import speak_before_exit
from penstock.engine.host.node import PlainRunner
from penstock.engine.host.ring import Ring
from penstock.engine.host.source import SourceDriver, SourceRecord
from penstock.engine.host.transport import Transport, TransportCalls
from penstock.engine.host.tuning import Tuning
from penstock.engine.store.logs import BoundaryLog, ResumePoint, newest_position
from penstock.errors import PenstockError
from penstock.operators.base import SourceOperator
from penstock.planning.physical import PhysicalPlan
from penstock.planning.tracking import TrackingPlan, tracked_with
from penstock.storage.objects import ObjectStorage
from penstock.wire.control import Control, decode_to_host

__all__ = [
    "HostProcess",
    "HostTask",
    "build_nodes",
    "forget",
    "host_number",
    "stop_sources",
]

log = logging.getLogger(__name__)

BEAT_S = BEAT_MS / 1000
FROZEN_S = 1.0
"""A gap this long between two beats means that this process did not run."""
GRACE_S = 0.5
"""How long a loop may take to end once it was told to."""


@dataclass(frozen=True)
class HostTask:
    """Everything a host needs to come up; travels through Spark with the code."""

    slot: int
    plan: PhysicalPlan
    driver: str
    tracking: tuple[TrackingPlan, ...]
    secret: str = field(repr=False)
    lease_s: float
    window_bytes: int
    tuning: Tuning = field(default_factory=Tuning)
    store: ObjectStorage | None = None
    """The flow's store, if it is none that every process can find."""


class HostProcess:
    """A host, and the threads beside it."""

    def __init__(self, task: HostTask, number: int) -> None:
        self.task = task
        self.heard = time.monotonic()
        self._agent: CausalAgent | None = None
        self.host = Host(
            number,
            self._transport,
            self._on_failure,
            self._on_sink,
            self._on_finished,
        )
        self.ring = Ring(self.host, self._tell)
        self.host.transport.refusals.on_refused = self._on_refused
        self.host.transport.refusals.on_given_up = self._given_up

    def _transport(self, host: Host) -> Transport:
        return Transport(
            host.number,
            local_address(self.task.driver),
            self.task.secret,
            TransportCalls(
                host.arrived,
                self._control_arrived,
                host.wake,
                self._on_broken,
                self._on_failure,
            ),
            self.task.window_bytes,
            self.task.tuning,
        )

    def run(self) -> None:
        prepare_process(self.task.tuning)
        transport = self.host.transport
        transport.connect(DRIVER, self.task.driver)
        self._tell(HostRegistered(transport.address, os.getpid()))
        threading.Thread(target=self._keep_lease, name="penstock-lease", daemon=True).start()
        try:
            with speak_before_exit(self.host, self.task.plan, self._tell):
                self.host.run()
            self._beat()
            transport.drain(GRACE_S, DRIVER)  # other hosts may be gone already
        finally:
            self._close()
            transport.close()

    def _close(self) -> None:
        if self._agent is not None:
            self._agent.close()

    def _tell(self, report: HostReport) -> None:
        self.host.transport.control(DRIVER, report)

    # -- from the driver, and from other hosts ---------------------------------------------------

    def _control_arrived(self, peer: int, packed: Control) -> None:
        if peer == DRIVER:
            self.heard = time.monotonic()
        self._take(peer, decode_to_host(packed, peer))

    def _take(self, peer: int, message: ToHost) -> None:
        """Take a message; called by the threads of channels."""
        host = self.host
        match message:
            case WatchNext() | RingPing() | RingPong():
                self.ring.take(peer, message)
            case ForgetUpTo():
                host.call(lambda: forget(host, self._agent, message))
            case MoveFrontier():
                host.call(lambda: host.frontier_moved(message))
            case TakeAssignment():
                host.call(lambda: self._assign(message.assignment))
            case StartReading():
                host.call(host.start_sources)
            case EndStreams():
                host.call(lambda: stop_sources(host, self._agent))
            case SlowNodes():
                host.call(lambda: host.slow_down(message.delays_us))
            case KillHost():
                self._kill()
            case SeverPeers():
                for other in message.peers:
                    host.transport.sever(other)
            case EndHost():
                host.end()
                threading.Thread(target=self._end_soon, name="penstock-end", daemon=True).start()
            case GoOn():
                pass  # the frame that brought it has the acknowledgement
            case _:
                host.call(lambda: self._recover(message))

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _end_soon(self) -> None:
        """A loop that is stuck in a user's function must not keep the process alive."""
        if not self.host.ended.wait(GRACE_S):
            os._exit(1)

    def _recover(self, order: AgentOrder | RoleEnvelopes) -> None:
        if self._agent is not None:
            self._agent.take(order)

    def _assign(self, assignment: Assignment) -> None:
        self.host.slow_down(assignment.delays_us)
        self.host.on_progress = self._tell
        plan, tracking, rules = self.task.plan, self.task.tracking, assignment.recovery
        if rules is not None:
            self._agent = CausalAgent(self.host, plan, tracking, assignment, rules, self._tell)
        else:
            for peer, address in assignment.addresses.items():
                if peer != self.host.number:
                    self.host.transport.connect(peer, address)
            build_nodes(self.host, plan, tracking, assignment)
        self._tell(HostReady())

    # -- to the driver ---------------------------------------------------------------------------

    def _on_failure(self, error: PenstockError) -> None:
        self._tell(HostFailed(Failure(**error.to_dict())))

    def _on_sink(self, sink: str, node: int, epoch: int, cut_us: int) -> None:
        self._tell(SinkCompleted(sink, node, epoch, cut_us))

    def _on_finished(self, node: int) -> None:
        self._tell(NodeFinished(node, self._figures()))

    def _on_refused(self, peer: int, counts: RefusalCounts) -> None:
        self._tell(PeerRefused(peer, counts))

    def _given_up(self, peer: int) -> None:
        """A peer was told by the controller that another process is in this one's place."""
        log.warning("host %d was given up, says host %d: it ends", self.host.number, peer)
        os._exit(1)

    def _on_broken(self, peer: int, why: str) -> None:
        log.info("host %d: channel to %d broke: %s", self.host.number, peer, why)

    def _figures(self) -> dict[int, NodeFigures]:
        return {node: runner.figures() for node, runner in list(self.host.nodes.items())}

    # -- the lease -------------------------------------------------------------------------------

    def _keep_lease(self) -> None:
        parent = os.getppid()
        beat = time.monotonic()
        while not self.host.ended.is_set():
            time.sleep(BEAT_S)
            now = time.monotonic()
            if now - beat > FROZEN_S:
                self.heard = now
            beat = now
            if os.getppid() != parent:
                os._exit(1)
            if now - self.heard > self.task.lease_s:
                os._exit(1)
            self._beat()

    def _beat(self) -> None:
        self._tell(HostBeat(self._figures(), self.ring.loads()))


def host_number(slot: int, attempt: int) -> int:
    """Every process has a number of its own, also when Spark starts a task again."""
    return slot + attempt * SLOTS


def stop_sources(host: Host, agent: CausalAgent | None) -> None:
    """End the streams of the sources here, and of those that are started here later."""
    if agent is not None:
        agent.stop_sources()
    host.stop_sources()


def forget(host: Host, agent: CausalAgent | None, order: ForgetUpTo) -> None:
    """Forget what no recovery will ask for again."""
    if agent is not None:
        agent.truncate(order.lows)
    else:
        host.committed(order.committed)


def build_nodes(
    host: Host, plan: PhysicalPlan, tracking: tuple[TrackingPlan, ...], run: Assignment
) -> None:
    """Build the nodes that an assignment gives a host."""
    host.placement = dict(run.placement)
    mine = frozenset(node for node, at in host.placement.items() if at == host.number)
    for unit in tracking:
        host.track(unit.host_progress(plan, run.progress[unit.unit], mine))
    clock = EpochClock(*run.epochs)
    for node, at in host.placement.items():
        if at == host.number:
            chain = plan.chain_of_node(node)
            factory = None
            if chain.is_source:
                factory = _source_factory(plan, node, clock, run)
            unit_of = tracked_with(tracking, chain)
            counted = None if unit_of is None else unit_of.node(chain)
            add_node(host, plan, node, factory, completed=run.resume, tracking=counted)


def _source_factory(plan: PhysicalPlan, node: int, clock: EpochClock, run: Assignment) -> Any:
    chain = plan.chain_of_node(node)
    stage = chain.stages[0]
    operator: Any = stage.operator
    if not isinstance(operator, SourceOperator):
        raise TypeError(f"{stage.name} is not a source")
    shard = node - chain.first_node

    def make(runner: PlainRunner) -> SourceDriver:
        boundaries, resume = None, ResumePoint()
        if run.store is not None:
            boundaries = BoundaryLog(run.store, stage.name, shard)
            resume = boundaries.resume(run.resume)
        recorded = None if boundaries is None else newest_position(boundaries.read())
        context = source_context(run, shard, chain.shards, resume, recorded)
        return SourceDriver(
            stage.name,
            plan.node_name(node),
            opened(operator.source, context, stage.name, plan.node_name(node)),
            runner.chain,
            clock,
            runner.cut,
            boundaries,
            deque(SourceRecord(r["epoch"], r["position"]) for r in resume.replay),
            plan.cut_grid_us,
            run.sources.rows_max,
            run.sources.linger,
        )

    return make


def prepare_process(tuning: Tuning) -> None:
    """One thread for kernels, quick answers, and death together with the parent."""
    pa.set_cpu_count(1)
    tuning.apply()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def local_address(peer: str) -> str:
    """The address of this machine that reaches a peer, without sending anything."""
    parts = urlsplit(peer)
    family = socket.AF_INET6 if ":" in (parts.hostname or "") else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port))
        return str(probe.getsockname()[0])
