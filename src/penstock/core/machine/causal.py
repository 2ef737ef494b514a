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
from dataclasses import dataclass, field

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import Diff, Link, completion
from penstock.core.causal.logs import Bundle, DiffLog, Part, PayloadLog
from penstock.core.causal.replay import Replay, Turn, slot
from penstock.core.causal.reports import Report, Start
from penstock.core.causal.times import END, ZERO, Stamp, after
from penstock.core.machine.causal_effects import (
    CausalEffect,
    Checkpoint,
    Recovered,
    Retire,
    Spill,
    StoreDeterminants,
    TakeCheckpoint,
    TellOpened,
    TellReport,
)
from penstock.core.machine.messages import (
    DATA,
    MARK,
    Deliver,
    EndStep,
    Finish,
    Message,
    Send,
)
from penstock.core.machine.node import NodeMachine, Outlet
from penstock.core.progress.marks import EPOCH_END, Completion
from penstock.core.time import Time
from penstock.errors import InvariantError, PeerError, require

__all__ = ["CausalMachine"]

Item = tuple[Message, ...]
FREE: Turn[Item] = Turn(None, None, None)


@dataclass
class Step:
    """What is being handled, and what it has made so far, per child."""

    made_from: Diff
    turn: Turn[Item]
    parts: dict[int, list[Part]] = field(default_factory=dict)

    def add(self, target: int, part: Part) -> None:
        """The step sends a child something."""
        self.parts.setdefault(target, []).append(part)


class CausalMachine(NodeMachine):
    """One node under causal recovery.

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
        )
        self.determined = determined
        self.senders = sorted({sender for ids in inputs.values() for sender in ids})
        self.children = sorted({t for outlet in self.outlets.values() for t in outlet.targets})
        self.peers = {child: (incarnations or {}).get(child, 0) for child in self.children}
        self.stamp: Stamp = ZERO
        self.newest = self.completed_epoch
        self.diffs = DiffLog()
        self.log = PayloadLog(self.children, budget_bytes)
        self.positions = {child: Position() for child in self.children}
        self._clock: dict[int, Stamp] = dict.fromkeys(self.senders, ZERO)
        self._base = dict(self._clock)
        """Clocks as the present connections began: what they bring again was handled before."""
        self._marked = dict.fromkeys(self.senders, self.completed_epoch)
        self._open = dict.fromkeys(self.children, start is None)
        self._partial: dict[int, list[Message]] = {}
        self._queue: deque[Item] = deque()
        self._completable: deque[Completion] = deque()
        self._replay: Replay[Item] | None = None
        self._step: Step | None = None
        self._durable: Stamp = ZERO
        self._top: Stamp = ZERO
        self._taken: frozenset[Stamp] = frozenset()
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
            self.log.set_floor(child, Floor(position.stamp, position.epoch, start.horizon))
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
            self._replay.arrived(message.sender, message.stamp, epoch, item)
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
        if first.stamp > self._clock[sender]:
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

    def produced(  # type: ignore[override]
        self, link: int, parts: Iterable[tuple[int, object, int]], time: Time
    ) -> list[CausalEffect]:
        """The vertices made output in this step; it leaves with the end of the step."""
        if self._step is None:
            raise InvariantError(f"node {self.node}: output outside of a step")
        if time.epoch <= self.completed_epoch:
            raise InvariantError(
                f"node {self.node}: output at epoch {time.epoch}, which was already passed on as "
                "complete"
            )
        for target, payload, size in parts:
            self._step.add(target, Part(DATA, link, time, None, 0, payload, size))
        return []

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

    def _current(self) -> Step:
        if self._step is None:
            raise InvariantError(f"node {self.node}: there is no step to end")
        return self._step

    def _log_step(self, step: Step) -> list[CausalEffect]:
        """Give a step its stamp and log what it made."""
        skipped: tuple[int, ...] = ()
        known = True
        exactly, before = step.turn.exactly, step.turn.before
        if exactly is not None:
            stamp = exactly
        elif before is not None and before != END:
            rows = [c for c, parts in step.parts.items() if any(p.kind == DATA for p in parts)]
            stamp, skipped = slot(self.stamp, before, rows, self.positions, self._taken)
            # Marks that go before a target we start after: their stamp means nothing.
            known = stamp < before
        else:
            before = None
            stamp = after(max(self.stamp, self._top))
        self.stamp = max(self.stamp, stamp)
        effects: list[CausalEffect] = []
        made_from = step.made_from
        if self.determined:
            newest = max((p.time.epoch for ps in step.parts.values() for p in ps), default=-1)
            require(before is None, f"node {self.node}: a step before {before} has no determinant")
            if exactly is None:
                effects.append(StoreDeterminants(((Link(self.node, stamp, newest), *made_from),)))
            made_from = ()
        for child, parts in step.parts.items():
            if child in skipped:
                parts = [part for part in parts if part.kind == MARK]
            if parts:
                link = Link(self.node, stamp, max(part.time.epoch for part in parts))
                diff: Diff = (link, *made_from) if known else ()
                self.log.append(child, Bundle(stamp, diff, tuple(parts)))
        for child in step.parts:
            effects += self._flush(child)
        effects += [Spill(child, bundle) for child, bundle in self.log.over_budget()]
        return effects

    def _flush(self, child: int) -> list[CausalEffect]:
        """Send what is logged for a child and was not sent on this connection."""
        effects: list[CausalEffect] = []
        position = self.positions[child]
        while self._open[child] and (bundle := self.log.take(child)) is not None:
            if self.determined and bundle.stamp > self._durable:
                break
            self.log.taken(child)
            parts = [
                part
                for part in bundle.parts
                if position.beyond(bundle.stamp, part.time.epoch, part.kind == MARK)
            ]
            for number, part in enumerate(parts, 1):
                message = self._message(
                    part.kind,
                    part.link,
                    child,
                    part.time,
                    part.watermark_us,
                    part.cut_us,
                    part.payload,
                    part.size,
                )
                effects.append(
                    Send(
                        message._replace(
                            target_incarnation=self.peers[child],
                            stamp=bundle.stamp,
                            diff=bundle.diff,
                            more=number < len(parts),
                        )
                    )
                )
        return effects

    # -- durable things --------------------------------------------------------------------------

    def determinants_stored(self, stamp: Stamp) -> list[CausalEffect]:
        """The order of inputs is durable up to a step: what depended on that may leave."""
        self._durable = max(self._durable, stamp)
        return [effect for child in self.children for effect in self._flush(child)]

    def spilled(self, child: int, stamp: Stamp, references: tuple[object, ...]) -> None:
        """A bundle's payloads were moved out of memory."""
        self.log.spilled(child, stamp, references)

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
