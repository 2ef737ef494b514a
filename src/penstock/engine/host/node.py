"""A node in its host: its machine, its vertices, its queue and its figures.

The machine decides, the runner performs: it delivers batches to the vertices, gives the machine
what they made, and hands messages to the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, assert_never

import pyarrow as pa

from penstock.core.control.figures import NodeFigures
from penstock.core.node.blocks import RegionEpoch
from penstock.core.node.messages import (
    DATA,
    Complete,
    Deliver,
    Effect,
    Finish,
    Message,
    Send,
    TellClosed,
)
from penstock.core.node.node import NodeMachine
from penstock.core.node.tracking import NodeCounts
from penstock.core.time import Time
from penstock.engine.host.chain import ChainRunner
from penstock.engine.host.clock import now_us
from penstock.engine.host.source import SourceDriver
from penstock.errors import InvariantError
from penstock.wire.frames import read_batch

__all__ = ["Machine", "NodeHost", "NodeRunner", "PlainRunner"]

E = TypeVar("E")


class NodeHost(Protocol):
    """What a node asks of its host."""

    def send(self, message: Message) -> None:
        """Bring a message to its target, here or elsewhere."""

    def sink_completed(self, sink: str, node: int, epoch: int, cut_us: int) -> None:
        """An epoch is complete at a sink."""

    def gate_closed(self, node: int, epoch: int, watermark_us: int | None, cut_us: int) -> None:
        """An epoch was closed where rows enter a loop."""

    def finished(self, node: int) -> None:
        """A node has come to the end of all its inputs."""

    def look(self) -> None:
        """A node can do what the frontiers allowed before: let it advance again."""


class Machine(Protocol):
    """What a host asks of any node's machine."""

    @property
    def node(self) -> int:
        """Its number."""

    @property
    def incarnation(self) -> int:
        """Which of the node's incarnations it is."""

    @property
    def is_source(self) -> bool:
        """Whether nothing is sent to it."""

    @property
    def counts(self) -> NodeCounts | None:
        """What it does to progress, where that is tracked."""

    @property
    def completed_epoch(self) -> int:
        """The last epoch that it has completed."""

    @property
    def replaying(self) -> bool:
        """Whether it recovers, and others wait for it."""

    @property
    def finished(self) -> bool:
        """Whether its input has ended and was handled."""

    def accept(self, message: Message) -> bool:
        """Whether a message counts."""


@dataclass
class NodeRunner(ABC):
    """One node."""

    node: int
    name: str
    machine: Machine
    chain: ChainRunner
    host: NodeHost
    targets: tuple[int, ...]
    """The nodes whose credit limits what this one sends."""
    ports: Mapping[int, tuple[int, Any]]
    """Input port and schema of each link into the node."""
    sinks: tuple[str, ...]
    in_loop: bool = False
    pause: int = 1
    """How early it is stopped in a rollback: 0 first, 2 last; the last goes first otherwise."""
    source: SourceDriver | None = None
    _region: deque[RegionEpoch] = field(default_factory=deque)
    """Epochs that are closed at every gate and not yet complete here."""
    sender: int | None = None
    """Who sent what it has handled last."""
    queue: deque[tuple[int, Message]] = field(default_factory=deque)
    queued_bytes: int = 0
    rows_in: int = 0
    batches_in: int = 0
    busy_ns: int = 0
    cpu_ns: int = 0
    """The part of its busy time in which it had a processor."""
    latency_us: int | None = None
    """Of the last epoch: from the cut at its source to its completion here."""

    @abstractmethod
    def produce(self, link: int, parts: Iterable[tuple[int, Any, int]], at: Time) -> None:
        """The vertices made output."""

    @abstractmethod
    def handle(self, messages: Iterable[Message]) -> None:
        """Work on messages, all for the same link and time if there are several."""

    @abstractmethod
    def region_completed(self, epoch: int, watermark_us: int | None, cut_us: int) -> None:
        """An epoch is complete in the node's loop."""

    def waits_for(self, target: int) -> bool:
        """Whether a target's credit counts now."""
        return True

    @property
    def stalled(self) -> bool:
        """Whether it waits for the store, and handles nothing until that has taken its writes."""
        return False

    def try_again(self) -> None:
        """Try to write what it waits for."""
        raise InvariantError(f"node {self.name} does not wait for the store")

    def figures(self) -> NodeFigures:
        """What a heartbeat says of it."""
        source, chain = self.source, self.chain
        counters = dict(chain.counters)
        if source is not None:
            for name, value in source.reader.counters.items():
                counters[f"{source.stage}.{name}"] = value
        return NodeFigures(
            rows_in=self.rows_in if source is None else source.rows,
            rows_out=chain.rows_out,
            batches_in=self.batches_in if source is None else source.batches,
            busy_ns=self.busy_ns,
            cpu_ns=self.cpu_ns,
            epoch=self.machine.completed_epoch,
            queued=len(self.queue),
            queued_bytes=self.queued_bytes,
            latency_us=self.latency_us,
            watermark_us=chain.watermark_us,
            loop_counters=chain.now.counters,
            counters=counters,
            incarnation=self.machine.incarnation,
        )

    def gates_closed(self, epochs: Iterable[RegionEpoch]) -> None:
        """These epochs are closed at all gates of the node's loop."""
        self._region.extend(epochs)

    def advance(self, least_open: int) -> bool:
        """Complete what lies before the least open epoch; say whether there was anything."""
        worked = False
        while self._region and self._region[0][0] < least_open:
            self.region_completed(*self._region.popleft())
            worked = True
        return worked

    def takes(self, message: Message) -> bool:
        """Whether a message that has arrived is to be handled, once its turn comes."""
        return not self.in_loop or self.machine.accept(message)

    # -- messages --------------------------------------------------------------------------------

    def next_messages(self) -> list[tuple[int, Message]]:
        """The next message; in a loop, all that wait for the same link and time.

        A loop's messages would otherwise be divided among the shards at every turn until each has
        one row.
        """
        taken = [self.queue.popleft()]
        _, first = taken[0]
        if self.in_loop and self.queue and first.kind == DATA:  # marks keep their order
            others: deque[tuple[int, Message]] = deque()
            for item in self.queue:
                message = item[1]
                same = message.link == first.link and message.time == first.time
                same = same and message.kind == DATA
                (taken if same else others).append(item)
            self.queue = others
        return taken

    def _merged(self, effects: list[E]) -> list[E | Deliver]:
        """Several deliveries of one link and time as one."""
        rows = [effect for effect in effects if isinstance(effect, Deliver)]
        if len(rows) < 2:
            return [*effects]
        whole = Deliver(
            rows[0].link, pa.concat_batches([self._batch(e) for e in rows]), rows[0].time
        )
        return [whole, *(effect for effect in effects if not isinstance(effect, Deliver))]

    def _batch(self, effect: Deliver) -> pa.RecordBatch:
        payload: Any = effect.payload
        if isinstance(payload, pa.RecordBatch):
            return payload
        return read_batch(payload, self.ports[effect.link][1])

    def _deliver(self, effect: Deliver) -> None:
        port = self.ports[effect.link][0]
        batch = self._batch(effect)
        self.rows_in += batch.num_rows
        self.batches_in += 1
        self.chain.deliver(port, batch, effect.time)

    def _completed(self, epoch: int, cut_us: int) -> None:
        if cut_us:
            self.latency_us = now_us() - cut_us
        for sink in self.sinks:
            self.host.sink_completed(sink, self.node, epoch, cut_us)

    def _finish(self) -> None:
        self.chain.close()
        self.host.finished(self.node)


@dataclass
class PlainRunner(NodeRunner):
    """A node without recovery."""

    machine: NodeMachine

    def produce(self, link: int, parts: Iterable[tuple[int, Any, int]], at: Time) -> None:
        self.perform(self.machine.produced(link, parts, at))

    def cut(self, epoch: int, watermark_us: int | None, cut_us: int) -> None:
        """The source's epoch has ended, and its end is recorded."""
        self.perform(self.machine.cut(epoch, watermark_us, cut_us))

    def handle(self, messages: Iterable[Message]) -> None:
        take = self.machine.handle if self.in_loop else self.machine.received
        effects = [effect for message in messages for effect in take(message)]
        self.perform(self._merged(effects) if len(effects) > 1 else effects)

    def region_completed(self, epoch: int, watermark_us: int | None, cut_us: int) -> None:
        self.perform(self.machine.region_completed(epoch, watermark_us, cut_us))

    def perform(self, effects: Iterable[Effect]) -> None:
        """Perform what the machine asks for, in order."""
        for effect in effects:
            match effect:
                case Send():
                    self.host.send(effect.message)
                case Deliver():
                    self._deliver(effect)
                case Complete():
                    self._complete(effect)
                case TellClosed():
                    self.host.gate_closed(
                        self.node, effect.epoch, effect.watermark_us, effect.cut_us
                    )
                case Finish():
                    self._finish()
                case _:
                    assert_never(effect)

    def _complete(self, effect: Complete) -> None:
        watermarks = self.chain.complete(effect.epoch, effect.watermark_us)
        self.perform(self.machine.completed(effect.epoch, watermarks, effect.cut_us))
        self._completed(effect.epoch, effect.cut_us)
