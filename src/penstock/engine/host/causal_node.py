"""A node under causal recovery in its host: performs what the machine asks for.

Effects are taken from a list of work, never recursively: a machine is not called while one of its
calls is being answered.  What must be durable before something else happens is written here: a
source's cut at once, determinants together for the steps of one turn of the host's loop,
checkpoints by a thread in the background.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, assert_never

import msgpack
import pyarrow as pa

from penstock.core.causal.clocks import Position
from penstock.core.causal.diffs import Diff
from penstock.core.causal.logs import Spilled
from penstock.core.causal.reports import NodeReport
from penstock.core.control.figures import CausalFigures, NodeFigures
from penstock.core.control.host_reports import (
    CheckpointRequestMet,
    CheckpointSaved,
    EdgeOpened,
    HostReport,
    NodeCaughtUp,
    NodeContradicted,
    NodeFlushed,
    NodeRecovered,
    NodeReported,
)
from penstock.core.control.retention import serves_from
from penstock.core.node.causal import CausalMachine
from penstock.core.node.causal_effects import (
    CausalEffect,
    Checkpoint,
    Contradicted,
    Flushed,
    ReadAgain,
    Recall,
    Restated,
    ResumeReading,
    Retire,
    Spill,
    StoreCut,
    StoreDeterminants,
    TakeCheckpoint,
    TellOpened,
    TellRecovered,
    TellReport,
)
from penstock.core.node.messages import (
    Complete,
    Deliver,
    EndStep,
    Finish,
    Message,
    Send,
    TellClosed,
)
from penstock.core.node.source import CausalSource
from penstock.core.progress.marks import EPOCH_END
from penstock.core.time import Time
from penstock.engine.host.causal_source import CausalSourceDriver
from penstock.engine.host.chain_state import ChainState
from penstock.engine.host.clock import work_clock_s
from penstock.engine.host.node import NodeRunner
from penstock.engine.host.node_work import NodeWork
from penstock.engine.store.durable import CheckpointWriter, NodeStore, SpillFile, Stall, Writes
from penstock.errors import InvariantError, NotWrittenError

__all__ = ["CausalRunner", "NodeAgent"]

DETERMINANTS_MAX = 64
"""Steps whose determinants are made durable together, at most."""
DIFF_SAMPLE = 64
"""The size of the diff is measured for one message out of this number."""
REMEMBERED = 2
"""Checkpoints that stay in memory, where any do."""
CHECKPOINT_SHARE = 0.05
"""Share of the time that checkpoints may take."""


class NodeAgent(Protocol):
    """The host's agent, as a causal node sees it: what the nodes of a host share."""

    writer: CheckpointWriter
    spill: SpillFile

    def tell(self, report: HostReport) -> None:
        """Tell the driver."""

    def call(self, function: Callable[[], None]) -> None:
        """Run something in the host's loop."""

    def retire(self, node: int) -> None:
        """Another incarnation has taken a node's place."""

    def write_refused(self) -> None:
        """The store has refused what a node wrote: another incarnation has taken its place."""


@dataclass
class CausalRunner(NodeRunner):
    """One node that can be restarted without its neighbours' noticing."""

    machine: CausalMachine
    agent: NodeAgent = field(kw_only=True)
    store: NodeStore | None = field(kw_only=True)
    """None: the node has no state of its own."""
    checkpoint_s: float = field(kw_only=True)
    followed: bool = False
    """Whether a host follows its checkpoints: a slow store does not make them rare, only the
    processor time that they take does."""
    copies: bool = field(kw_only=True)
    """Whether logs hold copies instead of references; for comparison only."""
    remembers: bool = False
    """Whether its newest checkpoints stay in memory: it may have to go back without being lost."""
    memory: dict[int, tuple[Checkpoint, ChainState]] = field(default_factory=dict)
    key: int = 0
    """Of the newest checkpoint."""
    checkpoint_epoch: int = -1
    asked: tuple[int, int] | None = None
    """A checkpoint was asked for: of this epoch or a later one, and by which name."""
    messages_out: int = 0
    work: NodeWork = field(default_factory=NodeWork)
    checkpoint_epochs: int | None = None
    """Set by a plan: epochs from one checkpoint to the next, whatever a checkpoint takes."""
    _diffs: int = 0
    _diff_bytes: int = 0
    _work: deque[CausalEffect] = field(default_factory=deque)
    _busy: bool = False
    _retired: bool = False
    _cut_us: int = 0
    _opening_s: float = 0.0
    _taken_at: float = 0.0
    _taken_epoch: int = -1
    """Of the newest checkpoint that is written, or being written."""
    _determinants: list[Diff] = field(default_factory=list)
    _checkpoint_at: float = field(default_factory=time.monotonic)
    _writing: int = 0
    """Checkpoints that are being written."""
    _finishing: bool = False
    """Whether it has come to its end, and that was not told."""
    _again: bool = False
    """Whether a checkpoint was wanted while another was being written."""
    _flushed: Flushed | None = None
    """To be told when the checkpoint that is being written is durable."""
    stall: Stall = field(kw_only=True)
    _interrupted: list[CausalEffect] = field(default_factory=list)
    """A completion that waits for a sink to write, and what follows it."""

    def __post_init__(self) -> None:
        self.writes = Writes(self.stall)

    @property
    def reader(self) -> CausalSourceDriver:
        """The source, by its full type."""
        if not isinstance(self.source, CausalSourceDriver):
            raise InvariantError(f"node {self.name} has no source")
        return self.source

    def waits_for(self, target: int) -> bool:
        return self.machine.is_open(target)

    def takes(self, message: Message) -> bool:
        return True

    def next_messages(self) -> list[tuple[int, Message]]:
        return [self.queue.popleft()]

    def handle(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.work.bytes_in += message.size
            self.perform(self.machine.received(message))
        self._flush_determinants()

    def region_completed(self, epoch: int, watermark_us: int | None, cut_us: int) -> None:
        self.perform(self.machine.region_completed(epoch, watermark_us, cut_us))

    # -- the store does not take something -------------------------------------------------------

    @property
    def stalled(self) -> bool:
        return self.writes.pending or bool(self._interrupted)

    def try_again(self) -> None:
        if not self.stall.is_due():
            return
        self.writes.go_on()
        if self._interrupted and not self.writes.pending:
            effects, self._interrupted = self._interrupted, []
            self.perform(effects)
            if not self._interrupted:
                self.stall.worked()
            self._flush_determinants()

    def in_turn(self, then: Callable[[], None]) -> None:
        """Do something once everything is written that was to be written before it."""
        self.writes.add(lambda: None, then)

    def produce(self, link: int, parts: Iterable[tuple[int, Any, int]], at: Time) -> None:
        if self.copies:
            parts = [(target, _copied(batch), size) for target, batch, size in parts]
        self.machine.produced(link, parts, at)

    # -- sources ---------------------------------------------------------------------------------

    def read(self, batch: pa.RecordBatch, epoch: int) -> None:
        """A step of a source: these rows."""
        self.in_turn(partial(self._read, batch, epoch))

    def _read(self, batch: pa.RecordBatch, epoch: int) -> None:
        machine = self.machine
        if isinstance(machine, CausalSource):
            machine.read(machine.offset, machine.offset + batch.num_rows, epoch)
            self.chain.emit(batch, Time.root(epoch))
            self.perform(machine.end_step())

    def ended(self, epoch: int, watermark_us: int | None, cut_us: int) -> None:
        """The end of a source's epoch."""
        self.in_turn(partial(self._ended, epoch, watermark_us, cut_us))

    def _ended(self, epoch: int, watermark_us: int | None, cut_us: int) -> None:
        machine = self.machine
        if isinstance(machine, CausalSource):
            self._cut_us = cut_us
            self.perform(machine.cut(epoch, watermark_us, machine.offset))

    def record(self, record: dict[str, Any], sync: bool = True) -> None:
        """What a source must remember before anything else."""
        log = self.reader.log
        if log is not None:
            self.writes.add(partial(log.append, record, sync), lambda: None, self._refused)

    # -- effects ---------------------------------------------------------------------------------

    def perform(self, effects: Iterable[CausalEffect]) -> None:
        """Perform effects and what they lead to, in order."""
        self._work.extendleft(reversed(list(effects)))
        if self._busy:
            return
        self._busy = True
        effect: CausalEffect | None = None
        try:
            while self._work and not self._retired:
                effect = self._work.popleft()
                self._perform(effect)
        except NotWrittenError as error:
            # What a sink could not write holds up what follows, but not what others ask for.
            if not isinstance(effect, Complete):
                raise
            self._interrupted = [effect, *self._work]
            self._work.clear()
            self.stall.failed(error)
        finally:
            self._busy = False

    def _perform(self, effect: CausalEffect) -> None:
        """Perform one effect; the frequent ones come first."""
        match effect:
            case Send():
                self._send(effect)
            case Deliver():
                self._deliver(effect)
            case EndStep():
                self._end_step()
            case Complete():
                self._complete(effect)
            case StoreDeterminants():
                self._determinants += effect.diffs
            case StoreCut():
                self._store_cut(effect)
            case TellClosed():
                self.host.gate_closed(self.node, effect.epoch, effect.watermark_us, effect.cut_us)
            case TakeCheckpoint():
                self._take_checkpoint(effect)
            case Spill():
                self._spill(effect)
            case Flushed():
                self._tell_flushed(effect)
            case Recall():
                self.chain.outside.recall(effect.values)
            case Restated():
                self._restated(effect)
            case ReadAgain():
                self._read_again(effect)
            case ResumeReading():
                self.reader.resume(effect)
            case TellRecovered():
                self.agent.tell(NodeRecovered(self.node, self.machine.incarnation))
            case Contradicted():
                incarnation = self.machine.incarnation
                self.agent.tell(NodeContradicted(self.node, incarnation, effect.reason))
            case TellReport():
                self.agent.tell(NodeReported(self.node, effect.round, effect.report))
            case TellOpened():
                self._opened(effect)
            case Finish():
                self._finish()
            case Retire():
                self._retired = True
                self.agent.retire(self.node)
            case _:
                assert_never(effect)

    def _send(self, effect: Send) -> None:
        message = effect.message
        if isinstance(message.payload, Spilled):
            message = message._replace(payload=self.agent.spill.read(message.payload.reference))
        if self.messages_out % DIFF_SAMPLE == 0:
            self._diffs += 1
            self._diff_bytes += len(msgpack.packb(message.diff))
        self.messages_out += 1
        self.host.send(message)

    def _end_step(self) -> None:
        self._note()
        self.perform(self.machine.end_step())

    def _note(self) -> None:
        """What the step got from elsewhere belongs to it."""
        values = self.chain.outside.take()
        if values and self.machine.traced:
            self.machine.noted(values)

    def _complete(self, effect: Complete) -> None:
        machine = self.machine
        cut_us = effect.cut_us or self._cut_us
        rows = self.chain.rows_out
        watermarks = self.chain.complete(effect.epoch, effect.watermark_us)
        self._release(effect.epoch)
        calm = self.chain.rows_out == rows
        if self.store is not None and self._checkpoint_due(effect.epoch, calm):
            machine.checkpoints.due = True
        self._note()
        self.perform(machine.completed(effect.epoch, watermarks, cut_us))
        self._completed(effect.epoch, cut_us)
        if self.work.completed(effect.epoch, self.cpu_ns):
            self._caught_up()

    def _release(self, epoch: int) -> None:
        """Output that waited for the completion of its epoch is part of it now."""

    def _restated(self, effect: Restated) -> None:
        watermarks = self.chain.restate(effect.epoch, effect.watermark_us)
        self.perform(self.machine.restated(watermarks))

    # -- what is durable -------------------------------------------------------------------------

    def _store_cut(self, effect: StoreCut) -> None:
        machine, log = self.machine, self.reader.log
        if not isinstance(machine, CausalSource) or log is None:
            raise InvariantError(f"node {self.name}: a cut, but there is no source or no log")
        record = self.reader.cut_record(effect)
        self.writes.add(
            partial(log.append, record),
            lambda: self.perform(machine.cut_stored(effect.epoch)),
            self._refused,
        )

    def _refused(self) -> None:
        """Another incarnation has what this one writes to, and the news is on its way."""
        self.agent.write_refused()
        self.perform([Retire()])

    def _flush_determinants(self) -> None:
        many = len(self._determinants) >= DETERMINANTS_MAX
        if self._determinants and (not self.queue or many) and not self.stalled:
            self._store_determinants()

    def _store_determinants(self) -> None:
        diffs, self._determinants = self._determinants, []

        def write() -> None:
            if self.store is not None:
                self.store.append_determinants(diffs)

        def then() -> None:
            self.perform(self.machine.determinants_stored(diffs[-1][0].stamp))

        self.writes.add(write, then, self._refused)

    def _checkpoint_due(self, epoch: int, calm: bool) -> bool:
        """Whether to take a checkpoint; better after an epoch that had no results to hurry with.

        Planned ones are taken at the same epochs everywhere: those who restart together need that.
        """
        if self._checkpoint_asked(epoch):
            return True
        if epoch >= EPOCH_END or self._writing:
            return False
        if self.checkpoint_epochs is not None:
            self.machine.checkpoints.every = self.checkpoint_epochs
            return False  # the machine says when
        if self.asked is not None:
            return False  # another one is about to be taken, of the epoch that was asked for
        wait_s = 0.0 if calm or self.followed else self.checkpoint_s
        return time.monotonic() >= self._checkpoint_at + wait_s

    def ask_checkpoint(self, epoch: int, now: bool) -> None:
        """Take a checkpoint as soon as an epoch is complete, or ``now``, whatever is complete."""
        if self.store is None or self._retired:
            return
        done = self.machine.completed_epoch
        if self.checkpoint_epoch >= (done if now else epoch):
            self._answer(epoch)
            return
        self.asked = (min(epoch, done) if now else epoch, epoch)
        if self._checkpoint_asked(done):
            self.perform(self.machine.take_checkpoint())

    def _checkpoint_asked(self, epoch: int) -> bool:
        return self.asked is not None and self.asked[0] <= epoch < EPOCH_END

    def _answer(self, asked: int) -> None:
        """What was asked for is durable."""
        self.agent.tell(CheckpointRequestMet(self.node, self.machine.incarnation, asked))

    def _take_checkpoint(self, effect: TakeCheckpoint) -> None:
        if self.store is None:
            return
        if effect.checkpoint.report.newest >= EPOCH_END:
            # A state that has an end of its input in it is of no use to the next run.
            self.perform(self.machine.checkpoint_stored(effect.checkpoint.report.completed))
            return
        if self._writing and not effect.last:
            self._again = True
            return
        if effect.last and self._taken_epoch == effect.checkpoint.report.completed:
            return
        self._taken_epoch = effect.checkpoint.report.completed
        answers = self._checkpoint_asked(effect.checkpoint.report.completed)
        asked = self.asked[1] if answers and self.asked is not None else None
        if answers:
            self.asked = None
        self._taken_at = time.monotonic()
        began = time.thread_time()
        state = self.chain.snapshot()
        self._writing += 1
        key = self.key = self.key + 1
        took = time.thread_time() - began
        self.work.snapshot_ns += int(took * 1e9)
        store = self.store
        if self.remembers:
            self.memory[key] = (effect.checkpoint, state)
            while len(self.memory) > REMEMBERED:
                del self.memory[min(self.memory)]

        def done(size: int, seconds: float) -> None:
            sizes = (size, store.log_size, store.state_size)

            def saved() -> None:
                self._saved(key, effect.checkpoint.report, sizes, took + seconds)
                if asked is not None and not self._retired:
                    self._answer(asked)

            self.agent.call(saved)

        self.agent.writer.submit(self.store, key, effect.checkpoint, state, done)

    def _saved(
        self, key: int, report: NodeReport, sizes: tuple[int, int, int], took_s: float
    ) -> None:
        """A checkpoint is durable: bytes written, of these what was sent, and of all its state."""
        size, logged, state = sizes
        epoch = report.completed
        self._writing -= 1
        self.work.saved(size, took_s)
        now = time.monotonic()
        wait_s = (now - self._taken_at) / CHECKPOINT_SHARE
        if self.followed:
            wait_s = max(now - self._taken_at, took_s / CHECKPOINT_SHARE)
        self._checkpoint_at = now + max(self.checkpoint_s, wait_s)
        self.checkpoint_epoch = epoch
        if self._retired:
            return
        self.agent.tell(
            CheckpointSaved(
                node=self.node,
                incarnation=self.machine.incarnation,
                key=key,
                epoch=epoch,
                serves_from=serves_from(report),
                bytes=size,
                log_bytes=logged,
                state_bytes=state,
                seconds=took_s,
            )
        )
        self._stored(epoch)
        self._tell_finished()

    def _stored(self, epoch: int) -> None:
        """What waited for a checkpoint may go on."""
        self.perform(self.machine.checkpoint_stored(epoch))
        if self._again and not self._writing:
            self._again = False
            self.perform(self.machine.take_checkpoint())
        if self._flushed is not None and not self._writing:
            flushed, self._flushed = self._flushed, None
            self._tell_flushed(flushed)

    def _tell_flushed(self, effect: Flushed) -> None:
        if self._writing:
            self._flushed = effect
            return
        incarnation = self.machine.incarnation
        self.agent.tell(NodeFlushed(self.node, incarnation, effect.epoch, effect.waiting))

    def not_saved(self) -> None:
        """The checkpoint that was being written is not durable: try again later."""
        self._writing = max(0, self._writing - 1)
        self._checkpoint_at = time.monotonic() + self.checkpoint_s
        self._tell_finished()

    def _finish(self) -> None:
        self.chain.close()
        self._finishing = True
        self._tell_finished()

    def _tell_finished(self) -> None:
        """It has finished when its last checkpoint is durable: the next run needs nothing else."""
        if self._finishing and not self._writing:
            self._finishing = False
            self.host.finished(self.node)

    def _spill(self, effect: Spill) -> None:
        references = tuple(
            self.agent.spill.write(part.payload)
            if part.size and not isinstance(part.payload, Spilled)
            else None
            for part in effect.bundle.parts
        )
        self.machine.spilled(effect.child, effect.bundle.stamp, references)

    # -- a restart -------------------------------------------------------------------------------

    def _read_again(self, effect: ReadAgain) -> None:
        batch = self.reader.read_again(effect)
        self.chain.emit(batch, Time.root(effect.epoch))
        self.perform(self.machine.end_step())

    def _caught_up(self) -> None:
        """All that the node had completed when it was lost is complete again."""
        work, incarnation = self.work, self.machine.incarnation
        told = NodeCaughtUp(self.node, incarnation, work.restore_s, work.replay_s, self.rows_in)
        self.agent.tell(told)

    def open(self, child: int, incarnation: int, position: Position) -> None:
        """Send again what a child needs, then go on."""
        self._opening_s = work_clock_s()
        self.perform(self.machine.open(child, incarnation, position))

    def _opened(self, effect: TellOpened) -> None:
        self.agent.tell(
            EdgeOpened(
                sender=self.node,
                incarnation=self.machine.incarnation,
                target=effect.child,
                target_incarnation=effect.incarnation,
                seconds=work_clock_s() - self._opening_s,
            )
        )

    def figures(self) -> NodeFigures:
        machine, log, work = self.machine, self.machine.log, self.work
        own = CausalFigures(
            replaying=machine.replaying,
            logged=machine.logged,
            log_bytes=log.bytes,
            log_memory_bytes=log.memory_bytes,
            checkpoint_epoch=self.checkpoint_epoch,
            diff_bytes=self._diff_bytes / max(1, self._diffs),
            diffs_measured=self._diffs,
            bytes_in=work.bytes_in,
            checkpoints=work.checkpoints,
            checkpoint_bytes=work.checkpoint_bytes,
            checkpoint_s=work.checkpoint_s,
            snapshot_ns=work.snapshot_ns,
        )
        return super().figures()._replace(messages_out=self.messages_out, causal=own)

    def truncate(self, epoch: int, keep_from: int) -> None:
        """No node goes back behind ``epoch``, nor this one behind ``keep_from``."""
        self.machine.truncate_to(epoch)
        if self.store is not None:
            self.store.low_epoch = keep_from  # the next one that is written lets older ones go
        if self.source is not None:
            self.source.committed(epoch)


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with buffers of its own."""
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
