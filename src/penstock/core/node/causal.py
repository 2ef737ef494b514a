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
``TellRecovered`` and is as good as any other node.  Should no order fit all targets it says
``Contradicted`` and stands still: everything that it is connected with starts from whole epochs.

Before that it must know the watermark at the epoch where it starts, as a function of marks that it
does not get again.  Each sender tells it by a mark of just that epoch; then

    Restated(epoch, watermark)   ->  restated(watermarks per link)

and until then no input is handled.  What a node without state passes on is a function of its
senders' watermarks; one with state (``stateful``) never goes back, and has its own in checkpoints.

Where all nodes take checkpoints together, a node holds its input after an epoch (``hold_after``):

    everything up to it was handled   ->  TakeCheckpoint, Flushed
    resume(epoch)                     ->  go on, up to another one

A node with determinants holds its output back until the order of the inputs behind it is durable,
and with it what its steps got from elsewhere (``noted``): the time, random numbers, answers of
other systems.  When such a step is replayed, ``Recall`` comes before its Deliver or Complete.

For others' recoveries it does three things:

    fence({node: incarnation}, round)      refuse the old ones, close edges to them, report
    open(child, incarnation, position)     send again what lies beyond the position, then go on
    truncate(positions, epoch)             no recovery goes back behind these

The machine is made of parts, which share a :class:`~.standing.Standing`: the intake says which
messages count, the inbox which of them is next, the gate when an epoch is complete, the senders
what was handled, the output what is stamped, logged and sent, the checkpoints when the node is
saved, and the links inside of a loop what goes round.  The machine decides what follows what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from penstock.core.causal.clocks import Position
from penstock.core.causal.diffs import Diff, completion
from penstock.core.causal.logs import DiffLog, Part, PayloadLog
from penstock.core.causal.replay import Replay, Turn
from penstock.core.causal.reports import NodeReport, Start
from penstock.core.causal.times import ZERO, Stamp
from penstock.core.node.causal_effects import (
    CausalEffect,
    Checkpoint,
    Contradicted,
    Flushed,
    Recall,
    Retire,
    TakeCheckpoint,
    TellRecovered,
    TellReport,
)
from penstock.core.node.checkpoints import Checkpoints, in_the_midst, whole_epochs
from penstock.core.node.gate import Gate, LoopGate
from penstock.core.node.inbox import Inbox
from penstock.core.node.intake import Intake
from penstock.core.node.loop import LoopLinks
from penstock.core.node.messages import (
    DATA,
    MARK,
    Complete,
    Deliver,
    EndStep,
    Finish,
    Message,
)
from penstock.core.node.options import DEFAULTS, NodeOptions, Wiring
from penstock.core.node.output import Output
from penstock.core.node.senders import Senders
from penstock.core.node.standing import FREE, Item, Standing, Step
from penstock.core.node.tracking import NodeCounts
from penstock.core.progress.marks import EPOCH_END, Completion
from penstock.core.time import Time
from penstock.errors import ContradictionError, InvariantError, PeerError, require

__all__ = ["CausalMachine"]


class CausalMachine:
    """One node under causal recovery.

    >>> from penstock.core.causal.diffs import DiffLink, show_diff
    >>> from penstock.core.node.options import Outlet
    >>> node = CausalMachine(Wiring(5, {0: [1]}, (Outlet(9, (7,)),)))
    >>> diff = (DiffLink(1, (4,), 0),)
    >>> message = Message(DATA, 0, 1, 5, 0, 1, Time.root(0), stamp=(4,), diff=diff)
    >>> node.received(message)
    [Deliver(link=0, payload=None, time=Time(0), sender=1), EndStep()]
    >>> node.produced(9, [(7, "rows", 4)], Time.root(0))
    []
    >>> [show_diff(send.message.diff) for send in node.end_step()]
    ['5:1 [1:4]']

    In a loop:

    >>> wiring = Wiring(5, {0: [1], 8: [6]}, (Outlet(8, (6,)),))
    >>> node = CausalMachine(wiring, NodeOptions(inside=frozenset({8})))
    >>> node.received(Message(DATA, 8, 6, 5, 0, 1, Time.root(0)))
    [Deliver(link=8, payload=None, time=Time(0), sender=-1)]
    >>> [effect.message.target for effect in node.produced(8, [(6, "rows", 4)], Time.root(0))]
    [6]
    >>> node.region_completed(0, None, 0)
    [Complete(epoch=0, watermark_us=None, cut_us=0)]
    """

    def __init__(
        self,
        wiring: Wiring,
        options: NodeOptions = DEFAULTS,
        start: Start | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        if options.inside:
            options = replace(options, clean=True)
        completed = -1 if start is None else start.completed
        self.node = wiring.node
        self.incarnation = wiring.incarnation
        self.outlets = {outlet.link: outlet for outlet in wiring.outlets}
        self.inside = options.inside
        self.clean = options.clean
        self.stateful = options.stateful
        self.traced = options.traced
        self.finished = False
        self.counts = (
            None if options.tracking is None else NodeCounts(options.tracking, completed + 1)
        )
        self.standing = Standing(self.node, completed, completed, restating=completed >= 0)
        if checkpoint is not None:
            self.standing.watermark_us = checkpoint.report.watermark_us
        self._intake = Intake(wiring, addressed=True)
        self.is_source = not self._intake.keys
        outside = [key for key in self._intake.keys if key[0] not in self.inside]
        self.senders = Senders((sender for _, sender in outside), completed)
        self._inbox = Inbox(options.hold_after)
        self._output = Output(wiring, options, self.standing, is_open=start is None)
        self.checkpoints = Checkpoints(options, completed)
        self._gate: Gate
        self._loop: LoopLinks | None = None
        if self.inside:
            self._gate = LoopGate(outside, self.standing, self.counts)
            self._loop = LoopLinks(self.inside, self.standing, self._output, self.counts)
        else:
            watermark_us = self.standing.watermark_us
            self._gate = Gate(outside, completed, options.stateful, watermark_us)
        self._step: Step | None = None
        self._replay: Replay[Item] | None = None
        self.repeats = -1
        """The last epoch that it repeats after a start, because others know it; -1: none."""
        self._contradicted = False
        if start is not None:
            self._start(start, checkpoint)

    def _start(self, start: Start, checkpoint: Checkpoint | None) -> None:
        self.standing.stamp = start.stamp
        if checkpoint is not None:
            self.standing.newest = checkpoint.report.newest
        self.senders.start(start.clock, None if checkpoint is None else checkpoint.report)
        # A clean node makes again all of every epoch after the one that it starts at.
        horizon = start.completed if self.clean else start.horizon
        self._output.start(start, checkpoint, horizon)
        determined = self._output.determined
        self._replay = Replay(
            start.targets, self.senders.ids, determined, start.positions, start.settled
        )
        self.repeats = max((target.made_from.epoch for target in start.targets), default=-1)

    # -- what others may know --------------------------------------------------------------------

    @property
    def completed_epoch(self) -> int:
        """The last epoch that it has completed."""
        return self.standing.completed

    @property
    def newest(self) -> int:
        """The largest epoch of anything that was handled or made."""
        return self.standing.newest

    @property
    def replaying(self) -> bool:
        """Whether targets are left."""
        return self._replay is not None

    @property
    def working_on(self) -> Diff:
        """What the present step is made from; empty between steps."""
        return () if self._step is None else self._step.made_from

    @property
    def clock(self) -> Mapping[int, Stamp]:
        """Per sender: the last stamp that was handled."""
        return self.senders.clock

    @property
    def diffs(self) -> DiffLog:
        """What was handled, and what it was made from."""
        return self.senders.diffs

    @property
    def log(self) -> PayloadLog:
        """What was sent, as far as it is kept."""
        return self._output.log

    @property
    def logged(self) -> bool:
        """Whether the node keeps what it has sent; see :attr:`.output.Output.logged`."""
        return self._output.logged

    @logged.setter
    def logged(self, logged: bool) -> None:
        self._output.logged = logged

    def is_open(self, child: int) -> bool:
        """Whether what is made for a child leaves at once."""
        return self._output.is_open(child)

    def incarnation_of(self, sender: int) -> int:
        """The incarnation of a sender that counts here."""
        return self._intake.incarnations[sender]

    # -- a start ---------------------------------------------------------------------------------

    def begin(self) -> list[CausalEffect]:
        """Called once, after a start: what can be done before any input."""
        return self._gate.restated(self.standing) if self.standing.restating else self._pump()

    def restated(self, watermarks_us: Mapping[int, int | None]) -> list[CausalEffect]:
        """The watermark of a Restated is set; these are the ones to pass on, per link."""
        require(self.standing.restating, f"node {self.node}: its watermark was known already")
        self.standing.restating = False
        effects = self._output.restate(watermarks_us)
        if self.standing.completed >= EPOCH_END:
            self.finished = True
            effects.append(Finish())
        effects += self._pump()
        return effects if self._loop is None else effects + self._loop.restated()

    def contradict(self, reason: str) -> list[CausalEffect]:
        """What others know of its steps cannot be repeated: stand still, and say so."""
        self._contradicted = True
        return [Contradicted(f"node {self.node}: {reason}")]

    # -- input -----------------------------------------------------------------------------------

    def accept(self, message: Message) -> bool:
        """Whether a message counts: right incarnations on both sides, in order, each once."""
        return self._intake.accept(message)

    def received(self, message: Message) -> list[CausalEffect]:
        """A message from a sender of ours; its step is handled when it is whole."""
        if not self._intake.accept(message):
            return []
        if self._loop is not None and message.link in self.inside:
            return self._loop.received(message)
        item = self._inbox.whole(message)
        if item is None:
            return []
        if self.senders.is_known(item):
            return self._told(item)
        if self._replay is None:
            self._inbox.put(item)
        else:
            epoch = min(part.time.epoch for part in item)
            marks = [part.time.epoch for part in item if part.kind == MARK]
            only_marks = len(marks) == len(item)
            last = max(marks, default=-1)
            self._replay.arrived(message.sender, message.stamp, epoch, item, only_marks, last)
        return self._pump()

    def handle_inside(self, message: Message) -> list[CausalEffect]:
        """What an accepted message from inside of the loop asks for."""
        require(self._loop is not None, f"node {self.node} is not in a loop")
        return [] if self._loop is None else self._loop.received(message)

    def _told(self, item: Item) -> list[CausalEffect]:
        """A sender restates its watermarks where we stood; of use only after a start."""
        if not self.standing.restating:
            return []
        self._gate.told(item)
        return self._gate.restated(self.standing)

    def region_completed(
        self, epoch: int, watermark_us: int | None, cut_us: int
    ) -> list[CausalEffect]:
        """All gates of the loop are closed and nothing of the epoch is under way inside."""
        if not isinstance(self._gate, LoopGate):
            raise InvariantError(f"node {self.node} is not in a loop")
        done = Completion(epoch, watermark_us)
        self._gate.region_completed(done, cut_us, self.standing.watermark_us)
        return self._pump()

    def resume(self, epoch: int | None) -> list[CausalEffect]:
        """All nodes have a checkpoint: go on, and hold after this epoch (None: never)."""
        return self._pump() if self._inbox.release(epoch) else []

    def _pump(self) -> list[CausalEffect]:
        effects: list[CausalEffect] = []
        if self.standing.restating or self._contradicted:
            return effects
        effects += self._checkpoint_if_due()
        while self._step is None:
            turn = self._turn(effects)
            if turn is None:
                effects += self._checkpoint_if_due()
                effects += self._flushed_if_so()
                break
            if turn.values:
                effects.append(Recall(turn.values))
            effects += self._begin(turn)
        if self._gate.closed:
            closed, self._gate.closed = self._gate.closed, []
            effects = closed + effects
        return effects

    def _turn(self, effects: list[CausalEffect]) -> Turn[Item] | None:
        """What to handle next, if there is anything."""
        complete = self._gate.complete
        if self._replay is not None:
            marked = self.senders.marked
            if not self._replay.over:
                try:
                    return self._replay.next(marked, [done.epoch for done in complete])
                except ContradictionError as error:
                    effects += self.contradict(error.message)
                    return None
            while (turn := self._replay.next(marked, ())) is not None:
                if turn.item is not None:
                    self._inbox.put(turn.item)
            self._replayed(effects)
        if complete:
            return FREE
        item = self._inbox.next()
        if item is not None:
            return Turn(item, None, None)
        self._close_gates()
        return FREE if complete else None

    def _replayed(self, effects: list[CausalEffect]) -> None:
        """Every target was hit: the node is as good as any other."""
        self._replay = None
        self._output.replayed()
        effects.append(TellRecovered())

    def _close_gates(self) -> None:
        last = self._inbox.hold_after
        if last is not None:
            self._gate.through(self._inbox.ended_by(self.senders.marked), last)

    def _begin(self, turn: Turn[Item]) -> list[CausalEffect]:
        """Begin a step: an input, or a completion."""
        if turn.item is None:
            done = self._gate.complete.popleft()
            effects = self._checkpoint_before(done.epoch)
            self._step = Step((completion(done.epoch),), turn)
            self.standing.watermark_us = done.watermark_us
            cut_us = self._gate.cut_of(done.epoch)
            effects.append(Complete(done.epoch, done.watermark_us, cut_us))
            return effects
        first = turn.item[0]
        base = self.senders.base[first.sender]
        data = [m for m in turn.item if m.kind == DATA and m.stamp > base]
        if not data:
            self._absorb(turn.item)
            return []
        for message in data:
            epoch = message.time.epoch
            self.standing.saw_rows(epoch)
            if epoch <= self._gate.aligner.completed:
                raise PeerError(
                    f"node {self.node}: node {message.sender} sent rows of epoch {epoch}, "
                    "which is complete"
                )
        self._step = Step(first.diff, turn)
        return [*(Deliver(m.link, m.payload, m.time, m.sender) for m in data), EndStep()]

    def _absorb(self, item: Item) -> None:
        """The bundle was handled: clock, diff log and marks move on."""
        self.senders.handled(item)
        marked, sender = self.senders.marked, item[0].sender
        newest = marked[sender]
        for message in item:
            if message.kind == MARK:
                if message.time.epoch > marked[sender]:
                    self._gate.mark(message)
                newest = max(newest, message.time.epoch)
        if newest > marked[sender]:
            marked[sender] = newest
            self.standing.newest = max(self.standing.newest, newest)

    # -- output ----------------------------------------------------------------------------------

    def produced(
        self, link: int, parts: Iterable[tuple[int, object, int]], time: Time
    ) -> list[CausalEffect]:
        """The vertices made output: inside of a loop it goes at once, else when the step ends."""
        if self._loop is not None and link in self.inside:
            return self._loop.produced(link, parts, time)
        step = self._step
        if step is None:
            raise InvariantError(f"node {self.node}: output outside of a step")
        if self.clean and step.turn.item is not None:
            raise InvariantError(
                f"node {self.node}: output of epoch {time.epoch} leaves before the epoch is "
                "complete; hold it back"
            )
        if time.epoch <= self.standing.completed:
            raise InvariantError(
                f"node {self.node}: output at epoch {time.epoch}, which was already passed on as "
                "complete"
            )
        for target, payload, size in parts:
            step.add(target, Part(DATA, link, time, None, 0, payload, size))
        return []

    def noted(self, values: bytes) -> None:
        """What the present step got from outside of its input: replays are given it again."""
        require(
            self._output.determined or not self._output.children,
            f"node {self.node} notes values, but the graph does not say so",
        )
        self._current().values = values

    def _current(self) -> Step:
        if self._step is None:
            raise InvariantError(f"node {self.node}: there is no step to end")
        return self._step

    def end_step(self) -> list[CausalEffect]:
        """The vertices are done with what was delivered."""
        step, self._step = self._current(), None
        effects = self._output.log_step(step)
        if step.turn.item is not None:
            self._absorb(step.turn.item)
        return effects + self._pump()

    def completed(
        self, epoch: int, watermarks_us: Mapping[int, int | None], cut_us: int
    ) -> list[CausalEffect]:
        """The vertices have worked on a Complete; these are the watermarks to pass on, per link."""
        step, self._step = self._current(), None
        self.standing.completed = epoch
        self.standing.newest = max(self.standing.newest, epoch)
        time = Time.root(epoch)
        for link, outlet in self._output.outlets.items():
            for target in outlet.targets:
                step.add(target, Part(MARK, link, time, watermarks_us[link], cut_us))
        effects = self._output.log_step(step)
        self.checkpoints.ended(epoch)
        if epoch >= EPOCH_END:
            self.finished = True
            effects.append(Finish())
        return effects + self._pump()

    def determinants_stored(self, stamp: Stamp) -> list[CausalEffect]:
        """The order of inputs is durable up to a step: what depended on that may leave."""
        return self._output.determinants_stored(stamp)

    def checkpoint_stored(self, epoch: int) -> list[CausalEffect]:
        """A checkpoint is durable: the output that had to wait for it may leave."""
        return self._output.checkpoint_stored(epoch)

    def spilled(self, child: int, stamp: Stamp, references: tuple[object, ...]) -> None:
        """A bundle's payloads were moved out of memory."""
        self._output.log.spilled(child, stamp, references)

    # -- checkpoints -----------------------------------------------------------------------------

    def take_checkpoint(self) -> list[CausalEffect]:
        """Take a checkpoint now if that is possible, else between this step and the next."""
        self.checkpoints.due = True
        return self._pump()

    def checkpoint(self) -> Checkpoint:
        """The node as it is between two steps; its vertices' state belongs to it.

        A clean one has nothing of epochs after the completed one, and neither must that state: all
        of it comes again.  So clean nodes make output only when they complete an epoch.
        """
        require(self._step is None, f"node {self.node}: no checkpoint inside a step")
        log = self._output.log.snapshot()
        if self.clean:
            return whole_epochs(self.report(), log, self.senders.ids)
        return in_the_midst(self.report(), log)

    def _checkpoint_if_due(self, last: bool = False) -> list[CausalEffect]:
        if not self.checkpoints.due or self._step is not None or self._replay is not None:
            return []
        self.checkpoints.taken(self.standing.completed)
        return [TakeCheckpoint(self.checkpoint(), last)]

    def _checkpoint_before(self, epoch: int) -> list[CausalEffect]:
        """The last chance for one, at a multiple that no epoch here ends at or before the end."""
        if self._replay is None and self.checkpoints.is_last_chance(epoch, self.standing.completed):
            return self._checkpoint_if_due(epoch >= EPOCH_END)
        return []

    def _flushed_if_so(self) -> list[CausalEffect]:
        """Everything up to the epoch of a hold was handled: a checkpoint, and tell."""
        last, completed = self._inbox.hold_after, self.standing.completed
        if last is None or self._replay is not None:
            return []
        if not self.checkpoints.is_flushed(last, completed):
            return []
        waiting = EPOCH_END if self.finished else self._inbox.waiting(self.senders.marked)
        flushed = Flushed(last, waiting)
        self.checkpoints.flush(flushed, completed)
        return [*self._checkpoint_if_due(), flushed]

    # -- others' recoveries ----------------------------------------------------------------------

    def report(self) -> NodeReport:
        """What this node knows now."""
        standing, senders = self.standing, self.senders
        return NodeReport(
            self.node,
            standing.stamp,
            standing.completed,
            standing.newest,
            senders.positions(),
            self._output.log.floors(),
            tuple(senders.diffs.diffs),
            senders.diffs.facts,
            standing.watermark_us,
            standing.newest_rows,
        )

    def fence(self, fences: Mapping[int, int], round_: int) -> list[CausalEffect]:
        """These nodes have new incarnations: refuse the old ones, send them nothing, report."""
        if fences.get(self.node, self.incarnation) > self.incarnation:
            return [Retire()]
        for node, incarnation in fences.items():
            if node in self.senders.clock:
                self._intake.fence(node, incarnation)
                self.senders.fence(node)
                self._inbox.fence(node)
            self._output.close(node, incarnation)
        report = self.report()
        about = tuple(
            diff for diff in report.diffs if any(link.node in fences for link in diff)
        )  # a plan asks for nothing else
        return [TellReport(round_, replace(report, diffs=about))]

    def open(self, child: int, incarnation: int, position: Position) -> list[CausalEffect]:
        """Send again what lies beyond a position, then go on; one atomic step."""
        return self._output.open(child, incarnation, position)

    def truncate(self, positions: Mapping[int, Position], epoch: int) -> None:
        """No recovery goes back behind these positions, nor behind this epoch."""
        self._output.truncate(positions)
        self.senders.diffs.compact(epoch)

    def truncate_to(self, epoch: int) -> None:
        """No recovery goes back behind an epoch."""
        self.truncate(dict.fromkeys(self._output.children, Position(ZERO, epoch)), epoch)
