"""What runs inside a Spark task: a host, its lease and its heartbeat.

The task never ends by itself.  It registers with the controller on the driver, gets its nodes, runs
them, and returns when the controller says so.  A thread beside the loop ends the process when the
controller was not heard for too long or the parent process is gone, so that nothing is left behind
when a driver dies.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark import TaskContext

from penstock.connectors.base import SourceContext
from penstock.core.progress.deltas import decode_changes
from penstock.core.progress.exchange import Broadcast, LocalProgress
from penstock.engine.build import add_node, opened
from penstock.engine.causal_agent import CausalAgent
from penstock.engine.clock import EpochClock
from penstock.engine.host import Host
from penstock.engine.node import NodeRunner
from penstock.engine.ring import RING_KINDS, Ring
from penstock.engine.source import SourceDriver, SourceRecord
from penstock.engine.storage.objects import ObjectStorage
from penstock.engine.store import BoundaryLog, Resume
from penstock.engine.transport import Transport
from penstock.engine.tuning import Tuning
from penstock.errors import PenstockError
from penstock.operators.base import SourceOperator
from penstock.physical import PhysicalPlan
from penstock.tracking import TrackingPlan

__all__ = [
    "DRIVER",
    "HostTask",
    "build_nodes",
    "forget",
    "host_number",
    "node_figures",
    "stop_sources",
    "take_frontier",
]

log = logging.getLogger(__name__)

DRIVER = 0
"""The driver's number among the hosts."""
SLOTS = 10_000
"""The attempts of a task have numbers that are so far apart."""
BEAT_S = 0.2
FROZEN_S = 1.0
"""A gap this long between two beats means that this process did not run."""
_FOR_AGENT = {"fence", "start", "open", "plan", "resume", "settled", "checkpoint", "follow"}
_FOR_AGENT |= {"meet", "replicas", "replica"}
GRACE_S = 0.5
"""How long a loop may take to end once it was told to."""


@dataclass(frozen=True)
class HostTask:
    """Everything a host needs to come up; travels through Spark with the code."""

    slot: int
    plan: PhysicalPlan
    driver: str
    tracking: TrackingPlan | None
    secret: str
    lease_s: float
    window_bytes: int
    tuning: Tuning = field(default_factory=Tuning)
    store: ObjectStorage | None = None
    """The flow's store, if it is none that every process can find."""

    def __call__(self, _partition: Iterator[Any]) -> Iterator[int]:
        """The body of the task."""
        if self.store is not None:
            self.store.introduce()
        _HostProcess(self, host_number(self.slot, _attempt())).run()
        yield self.slot
        leave_worker()


class _HostProcess:
    """A host in this process."""

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
            host.arrived,
            self._control_arrived,
            host.wake,
            self._on_broken,
            self._on_failure,
            self.task.window_bytes,
            self.task.tuning,
        )

    def run(self) -> None:
        prepare_process(self.task.tuning)
        transport = self.host.transport
        transport.connect(DRIVER, self.task.driver)
        self._tell({"kind": "registered", "address": transport.address, "pid": os.getpid()})
        threading.Thread(target=self._keep_lease, name="penstock-lease", daemon=True).start()
        try:
            self.host.run()
            self._tell({"kind": "beat", "figures": self._figures()})
            transport.drain(GRACE_S, DRIVER)  # other hosts may be gone already
        finally:
            self._close()
            transport.close()

    def _close(self) -> None:
        if self._agent is not None:
            self._agent.close()

    def _tell(self, body: dict[str, Any]) -> None:
        self.host.transport.control(DRIVER, body)

    # -- from the controller ---------------------------------------------------------------------

    def _control_arrived(self, peer: int, body: dict[str, Any]) -> None:
        if peer == DRIVER:  # other hosts speak, too
            self.heard = time.monotonic()
        kind = body["kind"]
        if kind in RING_KINDS:
            self.ring.take(peer, body)
        elif kind == "assign":
            self.host.call(lambda: self._assign(body))
        elif kind == "go":
            self.host.call(self.host.start_sources)
        elif kind == "stop_sources":
            self.host.call(lambda: stop_sources(self.host, self._agent))
        elif kind == "ping":
            self.host.call(lambda: forget(self.host, self._agent, body))
        elif kind in _FOR_AGENT:
            self.host.call(lambda: self._recover(body))
        elif kind == "slow":
            self.host.call(lambda: self.host.slow_down(body["delays_us"]))
        elif kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "frontier":
            self.host.call(lambda: take_frontier(self.host, self.task.tracking, body))
        elif kind == "sever":
            for peer in body["peers"]:
                self.host.transport.sever(peer)
        elif kind == "end":
            self.host.end()
            threading.Thread(target=self._end_soon, name="penstock-end", daemon=True).start()

    def _end_soon(self) -> None:
        """A loop that is stuck in somebody's function must not keep the process alive."""
        if not self.host.ended.wait(GRACE_S):
            os._exit(1)

    def _recover(self, body: dict[str, Any]) -> None:
        if self._agent is not None:
            self._agent.take(body)

    def _assign(self, body: dict[str, Any]) -> None:
        self.host.slow_down(body["delays_us"])
        self.host.on_progress = lambda flush, gates: self._tell(
            {
                "kind": "progress",
                "t": self.host.generation,
                "n": flush.sequence,
                "d": flush.deltas,
                "g": gates,
            }
        )
        if body["recovery"]:
            self._agent = CausalAgent(
                self.host, self.task.plan, self.task.tracking, body, self._tell
            )
            self._tell({"kind": "ready"})
            return
        for peer, address in body["addresses"].items():
            if peer != self.host.number:
                self.host.transport.connect(peer, address)
        build_nodes(self.host, self.task.plan, self.task.tracking, body)
        self._tell({"kind": "ready"})

    # -- to the controller -----------------------------------------------------------------------

    def _on_failure(self, error: PenstockError) -> None:
        self._tell({"kind": "failed", "error": error.to_dict()})

    def _on_sink(self, sink: str, node: int, epoch: int, cut_us: int) -> None:
        self._tell({"kind": "sink", "sink": sink, "node": node, "epoch": epoch, "cut_us": cut_us})

    def _on_finished(self, node: int) -> None:
        self._tell({"kind": "finished", "node": node, "figures": self._figures()})

    def _on_refused(self, peer: int, counts: dict[str, int]) -> None:
        self._tell({"kind": "refused", "host": peer, "counts": counts})

    def _given_up(self, peer: int) -> None:
        """Somebody has the controller's word that another process is in this one's place."""
        log.warning("host %d was given up, says host %d: it ends", self.host.number, peer)
        os._exit(1)

    def _on_broken(self, peer: int, why: str) -> None:
        log.info("host %d: channel to %d broke: %s", self.host.number, peer, why)

    def _figures(self) -> dict[int, dict[str, Any]]:
        return {node: node_figures(runner) for node, runner in list(self.host.nodes.items())}

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
        self._tell({"kind": "beat", "figures": self._figures(), "loads": self.ring.loads()})


def host_number(slot: int, attempt: int) -> int:
    """Every process has a number of its own, also when Spark starts a task again."""
    return slot + attempt * SLOTS


def _attempt() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def stop_sources(host: Host, agent: CausalAgent | None) -> None:
    """End the streams of the sources here, and of those that are started here later."""
    if agent is not None:
        agent.stop_sources()
    host.stop_sources()


def forget(host: Host, agent: CausalAgent | None, body: dict[str, Any]) -> None:
    """Forget what nobody will ask for again."""
    if agent is not None:
        agent.truncate(body["lows"])
    else:
        host.committed(body["committed"])


def take_frontier(host: Host, tracking: TrackingPlan | None, body: dict[str, Any]) -> None:
    """What the controller broadcast of progress."""
    if tracking is not None and body["t"] == host.generation:
        changes = decode_changes(tracking.graph, body["c"])
        host.frontier_moved(Broadcast(body["n"], (), changes), body["w"])


def build_nodes(
    host: Host, plan: PhysicalPlan, tracking: TrackingPlan | None, body: dict[str, Any]
) -> None:
    """Build the nodes that an assignment gives a host."""
    host.placement = dict(body["placement"])
    if tracking is not None:
        mine = frozenset(node for node, at in host.placement.items() if at == host.number)
        sequence, changes = body["welcome"]
        host.track(
            LocalProgress(
                tracking.graph,
                Broadcast(sequence, (), decode_changes(tracking.graph, changes)),
                held=tracking.held(plan, body["resume"] + 1, mine),
            )
        )
    clock = EpochClock(body["base"], body["origin_us"], body["interval_us"])
    for node, at in host.placement.items():
        if at == host.number:
            chain = plan.chain_of_node(node)
            factory = None
            if chain.is_source:
                factory = _source_factory(plan, node, clock, body)
            counted = None if tracking is None else tracking.node(chain)
            add_node(host, plan, node, factory, completed=body["resume"], tracking=counted)


def _source_factory(plan: PhysicalPlan, node: int, clock: EpochClock, body: dict[str, Any]) -> Any:
    chain = plan.chain_of_node(node)
    stage = chain.stages[0]
    operator: Any = stage.operator
    if not isinstance(operator, SourceOperator):
        raise TypeError(f"{stage.name} is not a source")
    shard = node - chain.first_node

    def make(runner: NodeRunner) -> SourceDriver:
        boundaries, resume = None, Resume()
        if body["store"] is not None:
            boundaries = BoundaryLog(body["store"], stage.name, shard)
            resume = boundaries.resume(body["resume"])
        context = SourceContext(
            shard,
            chain.shards,
            resume.position,
            resume.journal,
            body["available_now"],
            body["started_us"],
        )
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
            body["rows_max"],
            body["linger_us"],
        )

    return make


def node_figures(runner: NodeRunner) -> dict[str, Any]:
    """What a heartbeat says of a node."""
    source = runner.source
    figures = {
        "rows_in": runner.rows_in if source is None else source.rows,
        "rows_out": runner.chain.rows_out,
        "batches_in": runner.batches_in if source is None else source.batches,
        "busy_ns": runner.busy_ns,
        "cpu_ns": runner.cpu_ns,
        "epoch": runner.machine.completed_epoch,
        "queued": len(runner.queue),
        "queued_bytes": runner.queued_bytes,
        "latency_us": runner.latency_us,
        "watermark_us": runner.chain.watermark_us,
        "counters_of_loops": list(runner.chain.now.counters),
        "counters": _counters(runner),
    }
    return figures | runner.figures()


def _counters(runner: NodeRunner) -> dict[str, int]:
    counters = dict(runner.chain.counters)
    if runner.source is not None:
        for name, value in runner.source.reader.counters.items():
            counters[f"{runner.source.stage}.{name}"] = value
    return counters


def prepare_process(tuning: Tuning) -> None:
    """One thread for kernels, quick answers, and death together with the parent."""
    pa.set_cpu_count(1)
    tuning.apply()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def leave_worker() -> None:
    """End this process once its task is over, where Spark would keep it for the next one.

    Hosts have a daemon of their own, so nobody else's task can be given to this process.
    """
    if not os.environ.get("SPARK_REUSE_WORKER"):
        return
    main_thread = threading.main_thread().ident

    def wait_and_leave() -> None:
        while True:
            time.sleep(0.01)
            frame = sys._current_frames().get(main_thread or 0)
            if frame is not None and frame.f_code.co_name == "read_int":
                os._exit(0)

    threading.Thread(target=wait_and_leave, name="penstock-leave", daemon=True).start()


def local_address(peer: str) -> str:
    """The address of this machine that reaches a peer, without sending anything."""
    parts = urlsplit(peer)
    family = socket.AF_INET6 if ":" in (parts.hostname or "") else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port))
        return str(probe.getsockname()[0])
