"""A role at work in a host: parcels in, the chain's work on them, parcels out.

One parcel leaves for every role that can be reached, with or without rows, so that its receiver can
count them and knows what is complete.  A sink keeps rows of open epochs, publishes an epoch when it
is complete in all lanes, and only then says that its parcels are done with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from penstock.core.control.figures import NodeFigures, ReplicaFigures
from penstock.core.delivery.ids import Lane, ParcelId, Role
from penstock.core.delivery.lane_epochs import SinkEpochs
from penstock.core.delivery.messages import Parcel
from penstock.core.delivery.player import RolePlayer
from penstock.core.node.messages import Message
from penstock.core.progress.marks import Completion
from penstock.core.time import Time
from penstock.engine.host.node import PlainRunner
from penstock.engine.host.replicas.cargo import Cargo, parcel_of
from penstock.engine.store.durable import Stall
from penstock.engine.store.durable.writes import Writes
from penstock.engine.store.logs import BoundaryLog
from penstock.errors import NotWrittenError
from penstock.wire.frames import read_batch

__all__ = ["ReplicaRunner", "RoleAgent", "SinkRunner", "SourceRunner"]


class RoleAgent(Protocol):
    """The host's agent, as a role sees it."""

    def arrived(self, runner: ReplicaRunner, message: Message) -> bool:
        """A parcel has come; say whether it is to be worked on."""

    def processed(self, runner: ReplicaRunner, id_: ParcelId, outputs: Any) -> None:
        """A parcel was turned into others."""

    def read(self, runner: ReplicaRunner, outputs: Any) -> None:
        """A source has read what comes next."""

    def role_of(self, node: int) -> Role:
        """The role that a node is."""

    def waits(self, runner: ReplicaRunner) -> bool:
        """Whether a role that it feeds has no player."""

    def counted(self, node: int) -> tuple[int, int]:
        """Messages and bytes that a node's protection took."""

    def write_refused(self) -> None:
        """The store has refused what a role wrote: another host plays it now."""


@dataclass
class ReplicaRunner(PlainRunner):
    """A role that is played here."""

    agent: RoleAgent = field(kw_only=True)
    player: RolePlayer = field(kw_only=True)
    lanes: Mapping[Lane, int] = field(kw_only=True)
    """The sources that reach it, and on how many ways."""
    _made: dict[tuple[int, int], list[tuple[pa.RecordBatch, int]]] = field(default_factory=dict)
    _ends: dict[Lane, int] = field(default_factory=dict)

    def takes(self, message: Message) -> bool:
        return self.agent.arrived(self, message)

    @property
    def stalled(self) -> bool:
        return self.agent.waits(self)

    def try_again(self) -> None:
        """Nothing to write: it goes on when the role that it feeds is played again."""

    def produce(self, link: int, parts: Iterable[tuple[int, Any, int]], at: Time) -> None:
        for target, rows, size in parts:
            self._made.setdefault((link, target), []).append((rows, size))

    def handle(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._work(parcel_of(message), message)

    def _work(self, parcel: Parcel, message: Message) -> None:
        cargo: Cargo = parcel.payload
        self._deliver_rows(cargo, message.time)
        if cargo.last:
            self._ended(parcel.id.lane, cargo.epoch)
        self.agent.processed(self, parcel.id, self.outputs(cargo))

    def _deliver_rows(self, cargo: Cargo, time: Time) -> None:
        if cargo.rows is None:
            return
        port, schema = self.ports[cargo.link]
        rows = cargo.rows
        batch = rows if isinstance(rows, pa.RecordBatch) else read_batch(rows, schema)
        self.rows_in += batch.num_rows
        self.batches_in += 1
        self.chain.deliver(port, batch, time)

    def _ended(self, lane: Lane, epoch: int) -> None:
        """For the figures: how far the lanes have come."""
        self._ends[lane] = max(epoch, self._ends.get(lane, -1))
        if len(self._ends) == len(self.lanes):
            self.machine.completed_epoch = min(self._ends.values())

    def outputs(self, cargo: Cargo) -> dict[Role, Parcel]:
        """What was made, as one parcel for every role behind; ids are given by the machine."""
        made, self._made = self._made, {}
        nameless = ParcelId(self.player.role, 0)
        found: dict[Role, Parcel] = {}
        for outlet in self.machine.outlets.values():
            for target in outlet.targets:
                parts = made.get((outlet.link, target), ())
                rows = [batch for batch, _ in parts]
                whole = rows[0] if len(rows) == 1 else pa.concat_batches(rows) if rows else None
                found[self.agent.role_of(target)] = Parcel(
                    nameless,
                    cargo._replace(link=outlet.link, rows=whole),
                    sum(size for _, size in parts),
                )
        return found

    def figures(self) -> NodeFigures:
        messages, size = self.agent.counted(self.node)
        return (
            super()
            .figures()
            ._replace(
                messages_out=messages,
                incarnation=self.player.incarnation,
                replica=ReplicaFigures(len(self.player.tables.entries), size),
            )
        )

    def left(self) -> None:
        """The role is not played here any more."""


@dataclass
class SourceRunner(ReplicaRunner):
    """A lane's source: what it reads leaves when its boundary is noted."""

    log: BoundaryLog = field(kw_only=True)
    stall: Stall = field(kw_only=True)
    surely: bool = field(kw_only=True)
    """Whether every note must outlive the machine, not only those of ends of epochs."""

    def __post_init__(self) -> None:
        self.writes = Writes(self.stall)
        self._is_refused = False

    @property
    def stalled(self) -> bool:
        return self._is_refused or self.writes.pending or super().stalled

    def try_again(self) -> None:
        if self.writes.pending and self.stall.is_due():
            self.writes.go_on()

    def leave(self, cargo: Cargo, note: dict[str, Any] | None, last: bool) -> None:
        """A read is through the chain."""
        outputs = self.outputs(cargo)
        then = partial(self._noted, cargo, outputs)
        if note is None:
            self.writes.add(lambda: None, then)
        else:
            surely = last or self.surely
            self.writes.add(partial(self.log.append, note, surely), then, self._refused)

    def _refused(self) -> None:
        """Another host plays the role, and the news is on its way: nothing more leaves."""
        self._is_refused = True
        self.agent.write_refused()

    def _noted(self, cargo: Cargo, outputs: dict[Role, Parcel]) -> None:
        if cargo.last:
            self.machine.completed_epoch = cargo.epoch
        self.agent.read(self, outputs)

    def left(self) -> None:
        self.log.close()
        if self.source is not None and not self.source.ended:
            self.source.reader.close()


@dataclass
class SinkRunner(ReplicaRunner):
    """A sink's role."""

    epochs: SinkEpochs = field(kw_only=True)
    stall: Stall = field(kw_only=True)

    def __post_init__(self) -> None:
        self._cuts_us: dict[int, int] = {}
        self._due: list[Completion] = []
        self.machine.completed_epoch = self.epochs.completed

    @property
    def stalled(self) -> bool:
        return bool(self._due)

    def try_again(self) -> None:
        if self._due and self.stall.is_due():
            self._publish()

    def _work(self, parcel: Parcel, message: Message) -> None:
        cargo: Cargo = parcel.payload
        if cargo.epoch <= self.epochs.completed:
            self.agent.processed(self, parcel.id, {})
            return
        self._deliver_rows(cargo, message.time)
        self._cuts_us[cargo.epoch] = max(cargo.cut_us, self._cuts_us.get(cargo.epoch, 0))
        self._due += self.epochs.came(parcel.id, cargo.read)
        if self._due:
            self._publish()

    def _publish(self) -> None:
        """Publish the epochs that are complete; what cannot be written now is tried again."""
        while self._due:
            due = self._due[0]
            try:
                self.chain.complete(due.epoch, due.watermark_us)
            except NotWrittenError as error:
                self.stall.failed(error)
                return
            self.stall.worked()
            self._due.pop(0)
            self._published(due.epoch)

    def _published(self, epoch: int) -> None:
        self.machine.completed_epoch = epoch
        cuts = [self._cuts_us.pop(e) for e in list(self._cuts_us) if e <= epoch]
        self._completed(epoch, max(cuts, default=0))
        for id_ in self.epochs.published(epoch):
            self.agent.processed(self, id_, {})
        if self.epochs.ended:
            self.machine.finished = True
            self._finish()

    def missing(self) -> str | None:
        """Say what is needed and will never come, if there is anything."""
        found = None if self.queue else self.epochs.missing(self.player.inputs_floor())
        if found is None:
            return None
        lane, number = found
        return f"read {number} of source {lane.stage}, shard {lane.place}"
