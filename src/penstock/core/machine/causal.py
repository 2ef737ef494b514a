"""A node that can be restarted without its neighbours' noticing.

Theory of operation
-------------------
A node works in *steps*.  A step handles one input: what one step of a sender sent here (a bundle),
or the completion of an epoch, or (at a source) a range of its input.  Everything that a step makes
gets the step's stamp and a diff, is logged per child, and leaves if the child's edge is open:

    received(message)        ->  Deliver …, EndStep       a bundle is whole; handle it
    end_step()               ->  Send …, next step        the vertices are done with it
    completed(epoch, …)      ->  Send …, next step        … or with a Complete

A node starts fresh, with all edges open, or from a :class:`Start`, with all edges closed.  Then it
replays: its inputs are taken in the order that the targets prescribe (:mod:`..causal.replay`), at
stamps that fit between what its children have seen.  When the last target was hit it says
``Recovered`` and is as good as any other node.

    fence({node: incarnation}, round)      refuse the old ones, close edges to them, report
    open(child, incarnation, position)     send again what lies beyond the position, then go on

A node with determinants holds its output back until the order of the inputs behind it is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import completion
from penstock.core.causal.logs import DiffLog, Part
from penstock.core.causal.replay import Replay, Turn
from penstock.core.causal.reports import Report, Start
from penstock.core.causal.times import ZERO, Stamp
from penstock.core.machine.causal_effects import (
    CausalEffect,
    Checkpoint,
    Recovered,
    Retire,
    TakeCheckpoint,
    TellOpened,
    TellReport,
)
from penstock.core.machine.causal_output import FREE, CausalOutput, Item, Step
from penstock.core.machine.messages import (
    DATA,
    MARK,
    Deliver,
    EndStep,
    Finish,
    Message,
)
from penstock.core.machine.node import Outlet
from penstock.core.progress.marks import EPOCH_END, Completion
from penstock.core.time import Time
from penstock.errors import PeerError, require

__all__ = ["CausalMachine"]


class CausalMachine(CausalOutput):
    """One node under causal recovery.

    >>> from penstock.core.causal.diffs import Link
    >>> node = CausalMachine(5, inputs={0: [1]}, outlets=[Outlet(9, (7,))])
    >>> message = Message(DATA, 0, 1, 5, 0, 1, Time.root(0), stamp=(4,), diff=(Link(1, (4,), 0),))
    >>> node.received(message)
    [Deliver(link=0, payload=None, time=Time(0)), EndStep()]
    >>> node.produced(9, [(7, "rows", 4)], Time.root(0))
    []
    >>> [send.message.diff for send in node.end_step()]
    [(Link(node=5, stamp=(1,), epoch=0), Link(node=1, stamp=(4,), epoch=0))]
    """

    def __init__(
        self,
        node: int,
        inputs: Mapping[int, Sequence[int]],
        outlets: Iterable[Outlet],
        incarnation: int = 0,
        incarnations: Mapping[int, int] | None = None,
        determined: bool = False,
        start: Start | None = None,
        checkpoint: Checkpoint | None = None,
        budget_bytes: int | None = None,
    ) -> None:
        super().__init__(
            node,
            inputs,
            outlets,
            incarnation,
            incarnations,
            completed=-1 if start is None else start.completed,
            determined=determined,
            is_open=start is None,
            budget_bytes=budget_bytes,
        )
        self.senders = sorted({sender for ids in inputs.values() for sender in ids})
        self.diffs = DiffLog()
        self._clock: dict[int, Stamp] = dict.fromkeys(self.senders, ZERO)
        self._base = dict(self._clock)
        """Clocks as the present connections began: what they bring again was handled before."""
        self._marked = dict.fromkeys(self.senders, self.completed_epoch)
        self._partial: dict[int, list[Message]] = {}
        self._queue: deque[Item] = deque()
        self._completable: deque[Completion] = deque()
        self._replay: Replay[Item] | None = None
        self.checkpoint_due = False
        """Set it, and a checkpoint is taken between the present step and the next."""
        if start is not None:
            self._start(start, checkpoint)

    def _start(self, start: Start, checkpoint: Checkpoint | None) -> None:
        self.stamp = start.stamp
        self._top = start.top
        self._taken = start.taken
        self._durable = max(start.trim, start.stamp)
        for sender, position in start.clock.items():
            self._clock[sender] = self._base[sender] = position.stamp
        if checkpoint is not None:
            self.newest = checkpoint.report.newest
            self.diffs.diffs = list(checkpoint.report.diffs)
            self.diffs.minimum = {(f.node, f.parent): f for f in checkpoint.report.facts}
            self.log.restore(checkpoint.log)
        for child, position in start.positions.items():
            self.positions[child] = position
            if checkpoint is not None:
                floor = checkpoint.report.floors[child]
            else:
                floor = Floor(start.stamp, start.completed, start.horizon)
            self.log.set_floor(child, floor)
        self._horizon = start.horizon
        self._replay = Replay(start.targets, self.senders)

    @property
    def replaying(self) -> bool:
        """Whether targets are left."""
        return self._replay is not None

    @property
    def clock(self) -> Mapping[int, Stamp]:
        """Per sender: the last stamp that was handled."""
        return self._clock

    def incarnation_of(self, sender: int) -> int:
        """The incarnation of a sender that counts here."""
        return self._incarnations[sender]

    def begin(self) -> list[CausalEffect]:
        """Called once, after a start: what can be done before any input."""
        return self._pump()

    # -- input -----------------------------------------------------------------------------------

    def accept(self, message: Message) -> bool:
        """Whether a message counts: right incarnations on both sides, in order, each once."""
        return message.target_incarnation == self.incarnation and super().accept(message)

    def received(self, message: Message) -> list[CausalEffect]:  # type: ignore[override]
        """A message from a sender of ours; its step is handled when it is whole."""
        if not self.accept(message):
            return []
        parts = self._partial.setdefault(message.sender, [])
        parts.append(message)
        if message.more:
            return []
        item = tuple(self._partial.pop(message.sender))
        if self._replay is not None:
            epoch = min(part.time.epoch for part in item)
            marks = all(part.kind == MARK for part in item)
            self._replay.arrived(message.sender, message.stamp, epoch, item, marks)
        else:
            self._queue.append(item)
        return self._pump()

    def _pump(self) -> list[CausalEffect]:
        effects: list[CausalEffect] = []
        if self.checkpoint_due and self._step is None and self._replay is None:
            self.checkpoint_due = False
            effects.append(TakeCheckpoint(self.checkpoint()))
        while self._step is None:
            turn = self._turn(effects)
            if turn is None:
                break
            effects += self._begin(turn)
        return effects

    def _turn(self, effects: list[CausalEffect]) -> Turn[Item] | None:
        if self._replay is not None:
            if not self._replay.over:
                return self._replay.next(self._marked, [c.epoch for c in self._completable])
            while (turn := self._replay.next(self._marked, ())) is not None:
                if turn.item is not None:
                    self._queue.append(turn.item)
            self._replay = None
            effects.append(Recovered())
        if self._completable:
            return FREE
        return Turn(self._queue.popleft(), None, None) if self._queue else None

    def _begin(self, turn: Turn[Item]) -> list[CausalEffect]:
        if turn.item is None:
            done = self._completable.popleft()
            self._step = Step((completion(done.epoch),), turn)
            return [self._complete(done)]
        first = turn.item[0]
        data = [
            message
            for message in turn.item
            if message.kind == DATA and message.stamp > self._base[first.sender]
        ]
        if not data:
            self._absorb(turn.item)
            return []
        for message in data:
            self.newest = max(self.newest, message.time.epoch)
            if message.time.epoch <= self._aligner.completed:
                raise PeerError(
                    f"node {self.node}: node {message.sender} sent rows of epoch "
                    f"{message.time.epoch}, which is complete"
                )
        self._step = Step(first.diff, turn)
        return [*(Deliver(m.link, m.payload, m.time) for m in data), EndStep()]

    def _absorb(self, item: Item) -> None:
        """The bundle was handled: clock, diff log and marks move on."""
        first = item[0]
        sender = first.sender
        # Marks may overtake rows in a replay, so they do not move the clock.
        if first.stamp > self._clock[sender] and any(m.kind == DATA for m in item):
            self._clock[sender] = first.stamp
        if first.diff:
            self.diffs.append(first.diff)
        for message in item:
            if message.kind == MARK and message.time.epoch > self._marked[sender]:
                epoch = message.time.epoch
                self._cuts_us[epoch] = max(self._cuts_us.get(epoch, 0), message.cut_us)
                self._completable.extend(
                    self._aligner.mark((message.link, sender), epoch, message.watermark_us)
                )
        marks = [message.time.epoch for message in item if message.kind == MARK]
        self._marked[sender] = max([self._marked[sender], *marks])
        self.newest = max([self.newest, *marks])

    # -- output ----------------------------------------------------------------------------------

    def end_step(self) -> list[CausalEffect]:
        """The vertices are done with what was delivered."""
        step, self._step = self._current(), None
        effects = self._log_step(step)
        if step.turn.item is not None:
            self._absorb(step.turn.item)
        return effects + self._pump()

    def completed(  # type: ignore[override]
        self, epoch: int, watermarks_us: Mapping[int, int | None], cut_us: int
    ) -> list[CausalEffect]:
        """The vertices have worked on a Complete; these are the watermarks to pass on, per link."""
        step, self._step = self._current(), None
        self.completed_epoch = epoch
        self.newest = max(self.newest, epoch)
        time = Time.root(epoch)
        for outlet in self.outlets.values():
            for target in outlet.targets:
                step.add(target, Part(MARK, outlet.link, time, watermarks_us[outlet.link], cut_us))
        effects = self._log_step(step)
        if epoch >= EPOCH_END:
            self.finished = True
            effects.append(Finish())
        return effects + self._pump()

    # -- durable things --------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """The node as it is between two steps; its vertices' state belongs to it."""
        require(self._step is None, f"node {self.node}: no checkpoint inside a step")
        report = self.report()
        # Marks beyond the completed epoch are asked for again: no need to keep the aligner.
        clock = {
            sender: Position(stamp, self.completed_epoch) for sender, stamp in self._clock.items()
        }
        return Checkpoint(
            Report(
                report.node,
                report.stamp,
                report.completed,
                report.newest,
                clock,
                report.floors,
                report.diffs,
                report.facts,
            ),
            self.log.snapshot(),
        )

    def truncate(self, positions: Mapping[int, Position], epoch: int) -> None:
        """Nobody goes back behind these positions, nor behind this epoch."""
        for child, position in positions.items():
            self.log.truncate(child, position)
        self.diffs.compact(epoch)

    # -- recovery of others ----------------------------------------------------------------------

    def report(self) -> Report:
        """What this node knows now."""
        return Report(
            self.node,
            self.stamp,
            self.completed_epoch,
            self.newest,
            {s: Position(self._clock[s], self._marked[s]) for s in self.senders},
            self.log.floors(),
            tuple(self.diffs.diffs),
            self.diffs.facts,
        )

    def fence(self, fences: Mapping[int, int], round_: int) -> list[CausalEffect]:
        """These nodes have new incarnations: refuse the old ones, send them nothing, report."""
        if fences.get(self.node, self.incarnation) > self.incarnation:
            return [Retire()]
        for node, incarnation in fences.items():
            if node in self._clock:
                self._incarnations[node] = incarnation
                self._base[node] = self._clock[node]
                self._partial.pop(node, None)
                self._queue = deque(item for item in self._queue if item[0].sender != node)
                for key in self._received:
                    if key[1] == node:
                        self._received[key] = 0
            if node in self._open:
                self._open[node] = False
                self.peers[node] = incarnation
        return [TellReport(round_, self.report())]

    def open(self, child: int, incarnation: int, position: Position) -> list[CausalEffect]:
        """Send again what lies beyond a position, then go on; one atomic step."""
        if self._open[child] or self.peers[child] != incarnation:
            return []
        self.positions[child] = position
        self._open[child] = True
        for key in self._sent:
            if key[1] == child:
                self._sent[key] = 0
        self.log.rewind(child)
        return [*self._flush(child), TellOpened(child, incarnation)]
