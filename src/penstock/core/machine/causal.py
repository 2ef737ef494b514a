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

Before that it must know the watermark at the epoch where it starts, as a function of marks that it
does not get again.  Each sender tells it by a mark of just that epoch; then

    Restated(epoch, watermark)   ->  restated(watermarks per link)

and until then no input is handled.  What a node without state passes on is a function of its
senders' watermarks; one with state (``stateful``) never goes back, and has its own in checkpoints.

Where checkpoints are everybody's affair a node holds its input after some epoch (``hold_after``):

    everything up to it was handled   ->  TakeCheckpoint, Flushed
    resume(epoch)                     ->  go on, up to another one

A node with determinants holds its output back until the order of the inputs behind it is durable,
and with it what its steps got from elsewhere (``noted``): the time, random numbers, answers of
other systems.  When such a step is replayed, ``Recall`` comes before its Deliver or Complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from penstock.core.causal.clocks import Floor
from penstock.core.causal.diffs import completion
from penstock.core.causal.logs import Bundle, Part
from penstock.core.causal.replay import Replay, Turn
from penstock.core.causal.reports import Start
from penstock.core.causal.times import ZERO, Stamp
from penstock.core.machine.causal_effects import (
    CausalEffect,
    Checkpoint,
    Flushed,
    Recall,
    Recovered,
    Restated,
    TakeCheckpoint,
)
from penstock.core.machine.causal_output import FREE, Item, Step
from penstock.core.machine.causal_peers import CausalPeers
from penstock.core.machine.messages import (
    DATA,
    MARK,
    Complete,
    Deliver,
    EndStep,
    Finish,
    Message,
)
from penstock.core.machine.node import Outlet
from penstock.core.machine.tracking import NodeTracking
from penstock.core.progress.marks import EPOCH_END, Completion, MarkAligner
from penstock.core.time import Time
from penstock.errors import PeerError, require

__all__ = ["CausalMachine"]


class CausalMachine(CausalPeers):
    """One node under causal recovery.

    >>> from penstock.core.causal.diffs import Link, show_diff
    >>> node = CausalMachine(5, inputs={0: [1]}, outlets=[Outlet(9, (7,))])
    >>> message = Message(DATA, 0, 1, 5, 0, 1, Time.root(0), stamp=(4,), diff=(Link(1, (4,), 0),))
    >>> node.received(message)
    [Deliver(link=0, payload=None, time=Time(0), sender=1), EndStep()]
    >>> node.produced(9, [(7, "rows", 4)], Time.root(0))
    []
    >>> [show_diff(send.message.diff) for send in node.end_step()]
    ['5:1 [1:4]']
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
        stateful: bool = False,
        inside: frozenset[int] = frozenset(),
        tracking: NodeTracking | None = None,
        clean: bool = False,
        logged: bool = True,
        checkpoint_every: int | None = None,
        eager: bool = False,
        hold_after: int | None = None,
        traced: bool = True,
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
            inside=inside,
            tracking=tracking,
            clean=clean,
            logged=logged,
            stateful=stateful,
            eager=eager,
            traced=traced,
        )
        if checkpoint is not None:
            self.watermark_us = checkpoint.report.watermark_us
        self._outside = [key for key in self._received if key[0] not in inside]
        self._aligner = MarkAligner(
            self._outside, self.completed_epoch, stateful, self.watermark_us
        )
        self._restating = self.completed_epoch >= 0
        self._stated: dict[tuple[int, int], int | None] = {}
        self._completable: deque[Completion] = deque()
        self._replay: Replay[Item] | None = None
        self.checkpoint_due = False
        """Set it, and a checkpoint is taken between the present step and the next."""
        self.checkpoint_every = checkpoint_every
        """So many epochs: a checkpoint where each multiple of it ends, whatever has come since."""
        self._saved_at = self.completed_epoch
        self.hold_after = hold_after
        """Input of epochs after this one waits until ``resume``."""
        self.flushed: Flushed | None = None
        """The last one that was said."""
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
            self.diffs.diffs = deque(checkpoint.report.diffs)
            self.diffs.minimum = {(f.node, f.parent): f for f in checkpoint.report.facts}
            self.log.restore(checkpoint.log)
        # A clean node makes again all of every epoch after the one that it starts at.
        horizon = start.completed if self.clean else start.horizon
        for child, position in start.positions.items():
            self.positions[child] = position
            if checkpoint is not None:
                floor = checkpoint.report.floors[child]
            else:
                floor = Floor(start.stamp, start.completed, horizon)
            self.log.set_floor(child, floor)
        self._horizon = horizon
        self._replay = Replay(start.targets, self.senders, self.determined)

    @property
    def replaying(self) -> bool:
        """Whether targets are left."""
        return self._replay is not None

    def begin(self) -> list[CausalEffect]:
        """Called once, after a start: what can be done before any input."""
        return self._stated_by_all() if self._restating else self._pump()

    def restated(self, watermarks_us: Mapping[int, int | None]) -> list[CausalEffect]:
        """The watermark of a Restated is set; these are the ones to pass on, per link."""
        require(self._restating, f"node {self.node}: its watermark was known already")
        self._restating = False
        time = Time.root(self.completed_epoch)
        effects: list[CausalEffect] = []
        for child in self.children:
            known = self.log.marks_at(child, self.completed_epoch)
            parts = tuple(
                Part(MARK, link, time, watermarks_us[link])
                for link, outlet in self.outlets.items()
                if child in outlet.targets
                and link not in self.inside
                and (link not in known or known[link].time != time)
            )
            if parts:
                self.log.append(child, Bundle(ZERO, (), parts))
            effects += self._flush(child)
        if self.completed_epoch >= EPOCH_END:
            self.finished = True
            effects.append(Finish())
        return effects + self._pump()

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
        if all(m.kind == MARK and m.time.epoch <= self._marked[m.sender] for m in item):
            return self._told(item)
        if self._replay is not None:
            epoch = min(part.time.epoch for part in item)
            marks = [part.time.epoch for part in item if part.kind == MARK]
            self._replay.arrived(
                message.sender,
                message.stamp,
                epoch,
                item,
                len(marks) == len(item),
                max(marks, default=-1),
            )
        else:
            self._queue.append(item)
        return self._pump()

    def _told(self, item: Item) -> list[CausalEffect]:
        """A sender restates its watermarks where we stood; of use only after a start."""
        if not self._restating:
            return []
        self._stated.update(((m.link, m.sender), m.watermark_us) for m in item)
        return self._stated_by_all()

    def _stated_by_all(self) -> list[CausalEffect]:
        if len(self._stated) < len(self._outside):
            return []
        self.watermark_us = self._aligner.restate(self._stated)
        return [Restated(self.completed_epoch, self.watermark_us)]

    def _pump(self) -> list[CausalEffect]:
        effects: list[CausalEffect] = []
        if self._restating:
            return effects
        effects += self._checkpoint_if_due()
        while self._step is None:
            turn = self._turn(effects)
            if turn is None:
                return effects + self._checkpoint_if_due() + self._flushed_if_so()
            if turn.values:
                effects.append(Recall(turn.values))
            effects += self._begin(turn)
        return effects

    def _checkpoint_if_due(self) -> list[CausalEffect]:
        if not self.checkpoint_due or self._step is not None or self._replay is not None:
            return []
        self.checkpoint_due = False
        self._saved_at = self.completed_epoch
        return [TakeCheckpoint(self.checkpoint())]

    def _checkpoint_before(self, epoch: int) -> list[CausalEffect]:
        """The last chance for a checkpoint at the end of a multiple that no epoch here ends at."""
        every = self.checkpoint_every
        if every is None or self._replay is not None:
            return []
        if epoch // every <= (self.completed_epoch + 1) // every:
            return []
        self.checkpoint_due = self.checkpoint_due or self._saved_at < self.completed_epoch
        return self._checkpoint_if_due()

    def _turn(self, effects: list[CausalEffect]) -> Turn[Item] | None:
        if self._replay is not None:
            if not self._replay.over:
                return self._replay.next(self._marked, [c.epoch for c in self._completable])
            while (turn := self._replay.next(self._marked, ())) is not None:
                if turn.item is not None:
                    self._queue.append(turn.item)
            self._replay, self._taken = None, {}
            effects.append(Recovered())
        if self._completable:
            return FREE
        while self._queue:
            item = self._queue.popleft()
            if self.hold_after is None or not self._holds(item, self.hold_after):
                return Turn(item, None, None)
            self._held.setdefault(item[0].sender, deque()).append(item)
        self._close_gates()
        return FREE if self._completable else None

    # -- waiting for everybody's checkpoints -----------------------------------------------------

    def _holds(self, item: Item, last: int) -> bool:
        """Whether an input waits.  The end of the stream does not: no checkpoint follows."""
        if item[0].sender in self._held:
            return True
        return any(last < message.time.epoch < EPOCH_END for message in item)

    def _flushed_if_so(self) -> list[CausalEffect]:
        """Everything up to the epoch of the hold was handled: a checkpoint, and tell."""
        last = self.hold_after
        if last is None or self._replay is not None:
            return []
        if self.flushed is not None and self.flushed.epoch >= last:
            return []
        if self.completed_epoch < last:
            return []
        self.flushed = Flushed(last, self._waiting())
        if self.stateful and self._saved_at < self.completed_epoch:
            self.checkpoint_due = True
        return [*self._checkpoint_if_due(), self.flushed]

    def _waiting(self) -> int | None:
        """The least epoch that is still to come, if every sender's next one is here."""
        least = EPOCH_END
        if self.finished:
            return least
        for sender in self.senders:
            if sender in self._held:
                least = min(least, *(m.time.epoch for m in self._held[sender][0]))
            elif self._marked[sender] < EPOCH_END:
                return None
        return least if self.senders else None

    def _close_gates(self) -> None:
        """Who waits with later epochs has ended the ones before, marked or not."""
        if self.hold_after is not None and self._held and self._through(self.hold_after):
            for key in self._outside:
                if key[1] in self._held:
                    self._aligned(self._aligner.through(key, self.hold_after))

    def _through(self, last: int) -> bool:
        """Whether no sender has anything left up to an epoch."""
        return all(s in self._held or self._marked[s] >= last for s in self.senders)

    def resume(self, epoch: int | None) -> list[CausalEffect]:
        """Everybody has a checkpoint: go on, and hold after this epoch (None: never)."""
        if self.hold_after is None or (epoch is not None and epoch <= self.hold_after):
            return []
        self.hold_after = epoch
        waiting = [item for sender in sorted(self._held) for item in self._held[sender]]
        self._queue = deque([*waiting, *self._queue])
        self._held = {}
        return self._pump()

    def _begin(self, turn: Turn[Item]) -> list[CausalEffect]:
        if turn.item is None:
            done = self._completable.popleft()
            effects = self._checkpoint_before(done.epoch)
            self._step = Step((completion(done.epoch),), turn)
            self.watermark_us = done.watermark_us
            effects.append(Complete(done.epoch, done.watermark_us, self._cut_of(done.epoch)))
            return effects
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
            self.newest_rows = max(self.newest_rows, message.time.epoch)
            if message.time.epoch <= self._aligner.completed:
                raise PeerError(
                    f"node {self.node}: node {message.sender} sent rows of epoch "
                    f"{message.time.epoch}, which is complete"
                )
        self._step = Step(first.diff, turn)
        return [*(Deliver(m.link, m.payload, m.time, m.sender) for m in data), EndStep()]

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
                self._note_cut(message)
                self._aligned(
                    self._aligner.mark(
                        (message.link, sender), message.time.epoch, message.watermark_us
                    )
                )
        marks = [message.time.epoch for message in item if message.kind == MARK]
        self._marked[sender] = max([self._marked[sender], *marks])
        self.newest = max([self.newest, *marks])

    def _aligned(self, completions: list[Completion]) -> None:
        """All senders have marked these epochs."""
        self._completable.extend(completions)

    def take_checkpoint(self) -> list[CausalEffect]:
        """Take a checkpoint now if that is possible, else between this step and the next."""
        self.checkpoint_due = True
        return self._pump()

    def _next_target(self) -> Stamp | None:
        targets = () if self._replay is None else self._replay.targets
        return next((target.stamp for target in targets if target.stamp > self.stamp), None)

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
        for link, outlet in self.outlets.items():
            if link not in self.inside:
                for target in outlet.targets:
                    step.add(target, Part(MARK, link, time, watermarks_us[link], cut_us))
        effects = self._log_step(step)
        if self.checkpoint_every is not None and (epoch + 1) % self.checkpoint_every == 0:
            self.checkpoint_due = True
        if epoch >= EPOCH_END:
            self.finished = True
            effects.append(Finish())
        return effects + self._pump()
