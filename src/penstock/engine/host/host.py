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
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.core.control.host_orders import MoveFrontier
from penstock.core.control.host_progress import HostProgress
from penstock.core.control.host_reports import GateClosing, ProgressMade
from penstock.core.node.messages import Message
from penstock.core.node.tracking import NodeTracking
from penstock.engine.host.clock import now_us
from penstock.engine.host.node import NodeRunner
from penstock.engine.host.transport import WINDOW_MESSAGES, Transport
from penstock.errors import InvariantError, PenstockError

__all__ = ["Host"]

log = logging.getLogger(__name__)

AGAIN_S = 0.05
"""How often nodes that wait for the store try again."""
LOOK_S = 0.01
"""How often deferred work is retried while the host is busy."""
LOCAL = -1
"""The peer number of messages that never leave the host."""


class Host:
    """Runs nodes until it is told to end."""

    def __init__(
        self,
        number: int,
        transport_factory: Callable[[Host], Transport],
        on_failure: Callable[[PenstockError], None],
        on_sink: Callable[[str, int, int, int], None],
        on_finished: Callable[[int], None],
    ) -> None:
        self.number = number
        self.nodes: dict[int, NodeRunner] = {}
        self.starting: NodeRunner | None = None
        """A node that is being made ready: its stages may be called already."""
        self.placement: dict[int, int] = {}
        self.failed: PenstockError | None = None
        self.ended = threading.Event()
        self.orderly = True
        """Whether its nodes are closed when it ends; a host that plays dead leaves them as is."""
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._sources: list[NodeRunner] = []
        self._stop = False
        self._flowing = False
        self.on_failure = on_failure
        self.on_sink = on_sink
        self.on_finished = on_finished
        self.on_progress: Callable[[ProgressMade], None] | None = None
        self._progress: dict[int, HostProgress] = {}
        """Per unit whose progress is tracked and that has nodes here."""
        self._tracked: list[NodeRunner] = []
        self._look = False
        self._turns: list[NodeRunner] = []
        """The nodes in the order in which they get their turns."""
        self._paused_until = 0.0
        self._delays_s: dict[int, float] = {}
        self._held_s: dict[int, float] = {}
        """When nodes that are slowed down may work again."""
        self._again_s = self._look_s = 0.0
        self.retries: list[Callable[[], bool]] = []
        """Called now and then, each until it says that it is done."""
        self.on_stray: Callable[[Message], None] | None = None
        """Called with messages for nodes that are not here."""
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

    def add(self, runner: NodeRunner) -> None:
        """Run a node from now on."""
        self.nodes[runner.node], self.starting = runner, None
        self._turns = sorted(self.nodes.values(), key=lambda other: -other.pause)
        if runner.machine.counts is not None:
            self._tracked.append(runner)
        if runner.source is not None:
            self._sources.append(runner)

    def remove(self, node: int) -> None:
        """Run a node no more; what waits for it is dropped, and counts as consumed."""
        runner = self.nodes.pop(node)
        if runner.source is not None:
            runner.source.close()
        self._turns = [other for other in self._turns if other is not runner]
        self._tracked = [other for other in self._tracked if other is not runner]
        self._sources = [other for other in self._sources if other is not runner]
        for peer, message in runner.queue:
            if peer != LOCAL:
                self.transport.consumed(peer, node, message.size)

    def track(self, progress: HostProgress) -> None:
        """Begin to count in a unit, with what the controller says is the state of things."""
        self._progress[progress.unit] = progress

    @property
    def tracks(self) -> bool:
        """Whether any node here has its progress tracked."""
        return bool(self._tracked)

    def frontier_moved(self, moved: MoveFrontier) -> None:
        """The controller's word on a unit: frontiers, and what is closed at all its gates."""
        progress = self._progress.get(moved.unit)
        if progress is None:
            return
        heard = progress.receive(moved)
        if not heard.counted:
            return
        self._report(heard.made)
        for runner in self._tracked:
            if _tracking(runner).unit == moved.unit and not runner.machine.is_source:
                runner.gates_closed(moved.closed)
        self._look = True

    def slow_down(self, delays_us: Mapping[int, int]) -> None:
        """Make nodes wait after each batch, for a drill; called in the loop's thread."""
        self._delays_s = {node: us / 1_000_000 for node, us in delays_us.items()}
        self._held_s = {}

    def _held(self, node: int, worked: bool = False) -> bool:
        """Whether a node waits; one that has just worked does."""
        delay_s = self._delays_s.get(node)
        if delay_s is None:
            return False
        if worked:
            self._held_s[node] = time.monotonic() + delay_s
        return time.monotonic() < self._held_s.get(node, 0.0)

    def start_sources(self) -> None:
        """Let the sources read; called in the loop's thread."""
        self._flowing = True

    def committed(self, epoch: int) -> None:
        """Every sink has the epochs up to this one; called in the loop's thread."""
        for runner in self._sources:
            if runner.source is not None:
                runner.source.committed(epoch)
        for runner in self.nodes.values():
            runner.chain.released(epoch, runner.machine.completed_epoch)

    def stop_sources(self) -> None:
        """Let the sources end their streams; called in the loop's thread."""
        for runner in self._sources:
            if runner.source is not None:
                runner.source.stop()

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """The loop; returns when the host was told to end or a node failed."""
        try:
            self._loop()
        except PenstockError as error:
            self.failed = error
            self.on_failure(error)
        except Exception as error:
            log.exception("host %d: the loop failed", self.number)
            self.failed = InvariantError(
                f"host {self.number}: {type(error).__name__}: {error}",
                traceback=traceback.format_exc(),
            )
            self.on_failure(self.failed)
        finally:
            self._close()
            self.ended.set()

    def _loop(self) -> None:
        while not self._stop:
            worked = self._work()
            if self._tracked:
                worked = self._notify() or worked
            worked = self._read_sources() or worked
            self._try_again()
            self._take(0.0 if worked else self._idle_s())

    def _try_again(self) -> None:
        """Do what was put off; let those who wait for the store try again, now and then."""
        now = time.monotonic()
        if now < self._look_s:
            return
        self._look_s = now + LOOK_S
        self.retries = [retry for retry in self.retries if not retry()]
        if now < self._again_s:
            return
        self._again_s = now + AGAIN_S
        for runner in list(self.nodes.values()):
            if runner.stalled:
                runner.try_again()
                self.count(runner)

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
                    self.deliver(peer, message)
                item = inbox.get_nowait()
        except queue.Empty:
            pass

    def deliver(self, peer: int, message: Message) -> None:
        """Let a message wait for its node's turn."""
        runner = self.nodes.get(message.target)
        if runner is None:
            log.debug("host %d has no node %d: message dropped", self.number, message.target)
            if self.on_stray is not None:
                self.on_stray(message)
            if peer != LOCAL:
                self.transport.consumed(peer, message.target, message.size)
            return
        if not runner.takes(message):
            if peer != LOCAL:
                self.transport.consumed(peer, message.target, message.size)
            return
        runner.queue.append((peer, message))
        runner.queued_bytes += message.size

    def _work(self) -> bool:
        """One message for each node that has one and may send; say whether there was any."""
        worked = False
        self.transport.cork()
        try:
            for runner in list(self._turns):
                if runner.queue and self._may_send(runner):
                    if self._delays_s and self._held(runner.node):
                        continue
                    started, cpu = time.perf_counter_ns(), time.thread_time_ns()
                    self._next(runner)
                    runner.busy_ns += time.perf_counter_ns() - started
                    runner.cpu_ns += time.thread_time_ns() - cpu
                    worked = True
                    if self._delays_s:
                        self._held(runner.node, worked=True)
        finally:
            self.transport.uncork()
        return worked

    def _next(self, runner: NodeRunner) -> None:
        taken = runner.next_messages()
        runner.sender = taken[0][1].sender
        runner.handle([message for _, message in taken])
        self.count(runner)
        for peer, message in taken:
            runner.queued_bytes -= message.size
            if peer != LOCAL:
                self.transport.consumed(peer, runner.node, message.size)

    def _read_sources(self) -> bool:
        worked = False
        if self._flowing:
            for runner in self._sources:
                source = runner.source
                if source is not None and not source.ended and self._may_send(runner):
                    if self._delays_s and self._held(runner.node):
                        continue
                    started, cpu = time.perf_counter_ns(), time.thread_time_ns()
                    if source.step(now_us()):
                        worked = True
                        self._held(runner.node, worked=True)
                    self.count(runner)
                    runner.busy_ns += time.perf_counter_ns() - started
                    runner.cpu_ns += time.thread_time_ns() - cpu
        return worked

    # -- tracked progress ------------------------------------------------------------------------

    def _notify(self) -> bool:
        """Deliver notifications and completions that the frontiers allow."""
        if not self._look:
            return False
        self._look = False
        worked = False
        for runner in self._tracked:
            tracking = _tracking(runner)
            progress, place = self._progress[tracking.unit], tracking.place
            if not self._may_send(runner):
                self._look = True
                continue
            started, cpu = time.perf_counter_ns(), time.thread_time_ns()
            if tracking.depth:
                while runner.chain.notify(partial(progress.view.complete, place)):
                    self.count(runner)
                    worked = True
            if runner.advance(progress.least_open(tracking)):
                self.count(runner)
                worked = True
            runner.busy_ns += time.perf_counter_ns() - started
            runner.cpu_ns += time.thread_time_ns() - cpu
        return worked

    def count(self, runner: NodeRunner) -> None:
        """Hand over what one step of a node changed."""
        if runner.machine.counts is None:
            return
        self._look = True
        deltas = runner.machine.counts.take()
        if deltas:
            self._report(self._progress[_tracking(runner).unit].record(deltas))

    def _report(self, made: ProgressMade | None) -> None:
        if made is not None and self.on_progress is not None:
            self.on_progress(made)

    def pause(self, seconds: float) -> None:
        """Pause pausable nodes for at most ``seconds`` while others recover; 0: go on."""
        self._paused_until = time.monotonic() + seconds

    def _may_send(self, runner: NodeRunner) -> bool:
        if runner.stalled:
            return False
        paused = not runner.pause and time.monotonic() < self._paused_until
        if paused and not runner.machine.replaying:  # who recovers is waited for
            return False
        for target in runner.targets:
            if not runner.waits_for(target):
                continue
            host = self.placement[target]
            if host == self.number:
                here = self.nodes.get(target)
                if here is not None and (
                    here.queued_bytes >= self.transport.window_bytes
                    or len(here.queue) >= WINDOW_MESSAGES
                ):
                    return False
            elif not self.transport.open(host, target):
                return False
        return True

    def _idle_s(self) -> float:
        """How long to wait for a message before a source has something to do again."""
        wait = 0.1
        for until_s in self._held_s.values():
            wait = min(wait, max(until_s - time.monotonic(), 0.001))
        if self._flowing:
            for runner in self._sources:
                source = runner.source
                if source is not None and not source.ended and self._may_send(runner):
                    wait = min(wait, max(source.wait_s(), 0.0001))
        return wait

    # -- for the nodes ---------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Bring a message to its target, here or elsewhere."""
        host = self.placement[message.target]
        if host == self.number:
            self.deliver(LOCAL, message)
        else:
            self.transport.send(host, message)

    def sink_completed(self, sink: str, node: int, epoch: int, cut_us: int) -> None:
        """An epoch is complete at a sink."""
        self.on_sink(sink, node, epoch, cut_us)

    def gate_closed(self, node: int, epoch: int, watermark_us: int | None, cut_us: int) -> None:
        """An epoch was closed where rows enter a loop."""
        unit = _tracking(self.nodes[node]).unit
        self._progress[unit].gate_closed(GateClosing(node, epoch, watermark_us, cut_us))

    def finished(self, node: int) -> None:
        """A node has come to the end of all its inputs."""
        self.on_finished(node)

    def look(self) -> None:
        """A node can do what the frontiers allowed before."""
        self._look = True

    def _close(self) -> None:
        for runner in self.nodes.values():
            if runner.source is not None:
                runner.source.close(self.orderly)
            if self.orderly and not runner.machine.finished:
                try:
                    runner.chain.close()
                except PenstockError as error:
                    log.warning("while closing node %s: %s", runner.name, error)


def _tracking(runner: NodeRunner) -> NodeTracking:
    """Where a node is counted that is."""
    counts = runner.machine.counts
    if counts is None:
        raise InvariantError(f"node {runner.name}: its progress is not tracked")
    return counts.tracking
