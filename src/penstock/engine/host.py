"""A host: one process that runs nodes, one at a time, in a single loop.

The loop takes what the channels brought, lets each node that has something to do and credit to send
handle one message, and lets each source read one batch.  Messages go before sources, so what is in
the flow already moves first.  A node whose children have no credit left is passed over until they
have: that is all that back-pressure is.

The same class runs inside a Spark task and, for sinks and sources that must live there, inside the
driver.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core.machine.messages import Complete, Deliver, Effect, Finish, Message, Send
from penstock.core.machine.node import NodeMachine, Outlet
from penstock.core.time import Time
from penstock.engine.chain import ChainRunner
from penstock.engine.clock import now_us
from penstock.engine.source import SourceDriver
from penstock.engine.transport import Transport
from penstock.errors import PenstockError
from penstock.physical import PhysicalPlan
from penstock.wire.frames import read_batch

__all__ = ["Host", "NodeRunner"]

log = logging.getLogger(__name__)

LOCAL = -1
"""The peer number of messages that never leave the host."""


@dataclass
class NodeRunner:
    """One node: its machine, its vertices, its queue and its figures."""

    node: int
    name: str
    machine: NodeMachine
    chain: ChainRunner
    targets: tuple[int, ...]
    ports: Mapping[int, tuple[int, Any]]
    """Input port and schema of each link into the node."""
    sinks: tuple[str, ...]
    source: SourceDriver | None = None
    queue: deque[tuple[int, Message]] = field(default_factory=deque)
    queued_bytes: int = 0
    rows_in: int = 0
    batches_in: int = 0
    busy_ns: int = 0
    latency_us: int | None = None
    """Of the last epoch: from the cut at its source to its completion here."""


class Host:
    """Runs nodes until it is told to end."""

    def __init__(
        self,
        number: int,
        transport_factory: Callable[[Host], Transport],
        on_control: Callable[[int, dict[str, Any]], None],
        on_failure: Callable[[PenstockError], None],
        on_sink: Callable[[str, int, int, int], None],
        on_finished: Callable[[int], None],
        on_broken: Callable[[int, str], None],
    ) -> None:
        self.number = number
        self.nodes: dict[int, NodeRunner] = {}
        self.placement: dict[int, int] = {}
        self.failed: PenstockError | None = None
        self.running = threading.Event()
        self.ended = threading.Event()
        self.loops = 0
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._sources: list[NodeRunner] = []
        self._stop = False
        self._flowing = False
        self.on_control = on_control
        self.on_failure = on_failure
        self.on_sink = on_sink
        self.on_finished = on_finished
        self.on_broken = on_broken
        self.transport = transport_factory(self)

    # -- called from other threads ---------------------------------------------------------------

    def arrived(self, peer: int, message: Message) -> None:
        """A channel brought a message."""
        self._inbox.put((peer, message))

    def wake(self) -> None:
        """Something changed (credit, rows pushed): look again."""
        self._inbox.put(None)

    def call(self, function: Callable[[], None]) -> None:
        """Run something in the loop's thread."""
        self._inbox.put(function)

    def end(self) -> None:
        """Leave the loop."""
        self._stop = True
        self._inbox.put(None)

    # -- nodes -----------------------------------------------------------------------------------

    def add_node(
        self,
        plan: PhysicalPlan,
        node: int,
        source: Callable[[ChainRunner, Callable[[int, int | None, int], None]], SourceDriver]
        | None = None,
        completed: int = -1,
    ) -> NodeRunner:
        """Build a node and open its vertices."""
        chain = plan.chain_of_node(node)
        into = plan.links_into(chain.index)
        out = plan.links_out_of(chain.index)
        machine = NodeMachine(
            node,
            {link.index: plan.senders(link, node) for link in into},
            [Outlet(link.index, plan.targets(link, node)) for link in out],
            completed=completed,
        )

        def produce(link: int, parts: Any, at: Time) -> None:
            self._perform(runner, machine.produced(link, parts, at))

        runner = NodeRunner(
            node,
            plan.node_name(node),
            machine,
            ChainRunner(plan, chain, node, produce),
            tuple(sorted({t for link in out for t in plan.targets(link, node)})),
            {link.index: (link.target_port, link.schema) for link in into},
            tuple(chain.sinks),
        )
        runner.chain.open()
        if source is not None:

            def cut(epoch: int, watermark_us: int | None, cut_us: int) -> None:
                self._perform(runner, machine.cut(epoch, watermark_us, cut_us))

            runner.source = source(runner.chain, cut)
            self._sources.append(runner)
        self.nodes[node] = runner
        return runner

    def start_sources(self) -> None:
        """Let the sources read; called in the loop's thread."""
        self._flowing = True

    def stop_sources(self) -> None:
        """Let the sources end their streams; called in the loop's thread."""
        for runner in self._sources:
            if runner.source is not None:
                runner.source.stop()

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """The loop; returns when the host was told to end or a node failed."""
        self.running.set()
        try:
            self._loop()
        except PenstockError as error:
            self.failed = error
            self.on_failure(error)
        except Exception as error:
            log.exception("host %d: the loop failed", self.number)
            self.failed = PenstockError(f"host {self.number}: {type(error).__name__}: {error}")
            self.on_failure(self.failed)
        finally:
            self._close()
            self.ended.set()

    def _loop(self) -> None:
        while not self._stop:
            self.loops += 1
            worked = self._work()
            worked = self._read_sources() or worked
            self._take(0.0 if worked else self._idle_s())

    def _take(self, timeout_s: float) -> None:
        """Move what arrived to the nodes' queues, waiting for it if there is nothing to do."""
        inbox = self._inbox
        try:
            item = inbox.get(timeout=timeout_s) if timeout_s > 0 else inbox.get_nowait()
            while True:
                if item is None:
                    pass
                elif callable(item):
                    item()
                else:
                    peer, message = item
                    self._enqueue(peer, message)
                item = inbox.get_nowait()
        except queue.Empty:
            pass

    def _enqueue(self, peer: int, message: Message) -> None:
        runner = self.nodes.get(message.target)
        if runner is None:
            log.warning("host %d has no node %d: message dropped", self.number, message.target)
            return
        runner.queue.append((peer, message))
        runner.queued_bytes += message.size

    def _work(self) -> bool:
        """One message for each node that has one and may send; say whether there was any."""
        worked = False
        for runner in self.nodes.values():
            if runner.queue and self._may_send(runner):
                started = time.perf_counter_ns()
                peer, message = runner.queue.popleft()
                runner.queued_bytes -= message.size
                self._handle(runner, message)
                if peer != LOCAL:
                    self.transport.consumed(peer, runner.node, message.size)
                runner.busy_ns += time.perf_counter_ns() - started
                worked = True
        return worked

    def _read_sources(self) -> bool:
        worked = False
        if self._flowing:
            for runner in self._sources:
                source = runner.source
                if source is not None and not source.ended and self._may_send(runner):
                    started = time.perf_counter_ns()
                    if source.step(now_us()):
                        worked = True
                    runner.busy_ns += time.perf_counter_ns() - started
        return worked

    def _may_send(self, runner: NodeRunner) -> bool:
        for target in runner.targets:
            host = self.placement[target]
            if host == self.number:
                if self.nodes[target].queued_bytes >= self.transport.window_bytes:
                    return False
            elif not self.transport.open(host, target):
                return False
        return True

    def _idle_s(self) -> float:
        """How long to wait for a message before a source has something to do again."""
        wait = 0.1
        if self._flowing:
            for runner in self._sources:
                source = runner.source
                if source is not None and not source.ended and self._may_send(runner):
                    wait = min(wait, max(source.wait_s(), 0.0005))
        return wait

    # -- effects ---------------------------------------------------------------------------------

    def _handle(self, runner: NodeRunner, message: Message) -> None:
        self._perform(runner, runner.machine.received(message))

    def _perform(self, runner: NodeRunner, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect.message)
            elif isinstance(effect, Deliver):
                port, schema = runner.ports[effect.link]
                payload: Any = effect.payload
                batch = payload if hasattr(payload, "num_rows") else read_batch(payload, schema)
                runner.rows_in += batch.num_rows
                runner.batches_in += 1
                runner.chain.deliver(port, batch, effect.time)
            elif isinstance(effect, Complete):
                watermarks = runner.chain.complete(effect.epoch, effect.watermark_us)
                self._perform(
                    runner, runner.machine.completed(effect.epoch, watermarks, effect.cut_us)
                )
                if effect.cut_us:
                    runner.latency_us = now_us() - effect.cut_us
                for sink in runner.sinks:
                    self.on_sink(sink, runner.node, effect.epoch, effect.cut_us)
            elif isinstance(effect, Finish):
                runner.chain.close()
                self.on_finished(runner.node)

    def _send(self, message: Message) -> None:
        host = self.placement[message.target]
        if host == self.number:
            self._enqueue(LOCAL, message)
        else:
            self.transport.send(host, message)

    def _close(self) -> None:
        for runner in self.nodes.values():
            if not runner.machine.finished:
                try:
                    runner.chain.close()
                except PenstockError as error:
                    log.warning("while closing node %s: %s", runner.name, error)
