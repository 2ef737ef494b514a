"""The sending half of a node under causal recovery: steps get stamps, logs and wings.

A step's output is collected while its vertices run, and stamped when they are done: the stamp of a
replayed step depends on who gets something (:func:`penstock.core.causal.replay.slot`).  It is
logged per child.  What is logged leaves when the child's edge is open, if it lies beyond the
child's position and, for a node with determinants, if the order of inputs behind it is durable.

A child that starts at an epoch is first told of the watermark at that epoch, by a mark of just that
epoch, as soon as it is certain: when the node has completed that epoch or a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import Diff, DiffLink
from penstock.core.causal.logs import Bundle, Part, PayloadLog
from penstock.core.causal.replay import slot
from penstock.core.causal.reports import Start, Target
from penstock.core.causal.times import END, ZERO, Stamp, after
from penstock.core.node.causal_effects import (
    CausalEffect,
    Checkpoint,
    Spill,
    StoreDeterminants,
    TellOpened,
)
from penstock.core.node.messages import DATA, MARK, Message, Send
from penstock.core.node.options import NodeOptions, Wiring
from penstock.core.node.standing import Standing, Step
from penstock.core.time import Time
from penstock.errors import require

__all__ = ["Output"]


class Output:
    """Stamps, logs and sends what steps make."""

    def __init__(
        self, wiring: Wiring, options: NodeOptions, standing: Standing, is_open: bool
    ) -> None:
        self._standing = standing
        self._node = wiring.node
        self._incarnation = wiring.incarnation
        self._traced = options.traced
        self.determined = options.determined
        self._logged = options.logged
        self._stateful = options.stateful
        self._forgets_epochs = options.stateful and not options.clean
        """Without a log: whether it forgets whole epochs, as checkpoints in the midst of one ask
        for, or everything at once."""
        self.outlets = {o.link: o for o in wiring.outlets if o.link not in options.inside}
        targets = {t for outlet in wiring.outlets for t in outlet.targets}
        self.children = sorted({t for o in self.outlets.values() for t in o.targets})
        self.peers = {target: wiring.incarnations.get(target, 0) for target in sorted(targets)}
        self._released = standing.completed if options.eager else None
        """The newest epoch whose checkpoint is durable, if output waits for that."""
        self.log = PayloadLog(self.children, options.budget_bytes)
        self.positions = {child: Position() for child in self.children}
        self._open = dict.fromkeys(self.children, is_open)
        self._sent: dict[tuple[int, int], int] = {}
        self._unstated: set[int] = set()
        """Children that were not told of the watermark at their positions, nor of marks beyond
        these that the log does not hold any more."""
        self._durable: Stamp = ZERO
        self._top: Stamp = ZERO
        self._taken: Mapping[Stamp, DiffLink | None] = {}
        self._horizon = -1
        self._targets: Sequence[Target] = ()

    def start(self, start: Start, saved: Checkpoint | None, horizon: int) -> None:
        """Begin in the midst: with a checkpoint's log, at the positions of the children."""
        self._top = start.top
        self._taken = start.taken
        self._targets = start.targets
        self._durable = max(start.trim, start.stamp)
        self._horizon = horizon
        if saved is not None:
            self.log.restore(saved.log)
        for child, position in start.positions.items():
            self.positions[child] = position
            if saved is not None:
                floor = saved.report.floors[child]
            else:
                floor = Floor(start.stamp, start.completed, horizon)
            self.log.set_floor(child, floor)

    def replayed(self) -> None:
        """Every target was hit."""
        self._taken, self._targets = {}, ()

    # -- the log ---------------------------------------------------------------------------------

    @property
    def logged(self) -> bool:
        """Whether the node keeps what it has sent.  It may be changed at any time.

        A node that does not makes its children's senders of old rows work again: itself.  What it
        has not sent yet it keeps.  The floors say from where on the log is whole.
        """
        return self._logged

    @logged.setter
    def logged(self, logged: bool) -> None:
        self._logged = logged
        for child in self.children:
            self._forget_sent(child)

    def _forget_sent(self, child: int) -> None:
        # The floor stays where it was reported while an edge is closed; and a child that was not
        # told of the watermark where it stands may need marks that are under way.
        if not self._logged and self._open[child] and child not in self._unstated:
            through = self._standing.completed if self._forgets_epochs else None
            self.log.forget_sent(child, through)

    def truncate(self, positions: Mapping[int, Position]) -> None:
        """No recovery goes back behind these positions."""
        for child, position in positions.items():
            self.log.truncate(child, position)

    # -- steps -----------------------------------------------------------------------------------

    def log_step(self, step: Step) -> list[CausalEffect]:
        """Give a step its stamp, log what it made, send what may leave."""
        standing = self._standing
        stamp, before, skipped = self._stamped(step)
        # Marks that go before a target we start after: their stamp means nothing.
        known = before is None or stamp < before
        standing.stamp = max(standing.stamp, stamp)
        effects: list[CausalEffect] = []
        made_from = step.made_from
        if self.determined:
            require(before is None, f"node {self._node}: a step before {before} has no determinant")
            if step.turn.exactly is None:
                newest = max((p.time.epoch for ps in step.parts.values() for p in ps), default=-1)
                own = DiffLink(self._node, stamp, newest, step.values)
                effects.append(StoreDeterminants(((own, *made_from),)))
            if self._stateful:  # without state no other node would know what came
                made_from = ()
        for child, parts in step.parts.items():
            if child in skipped:
                parts = self._skipped(child, parts)
            if parts:
                link = DiffLink(self._node, stamp, max(part.time.epoch for part in parts))
                diff: Diff = (link, *made_from) if known and self._traced else ()
                self.log.append(child, Bundle(stamp, diff, tuple(parts)))
        for child in step.parts:
            effects += self.flush(child)
        effects += [Spill(child, bundle) for child, bundle in self.log.over_budget()]
        return effects

    def _stamped(self, step: Step) -> tuple[Stamp, Stamp | None, tuple[int, ...]]:
        """A step's stamp, the target that it comes before, the children that have it already."""
        standing = self._standing
        exactly, before = step.turn.exactly, step.turn.before
        if exactly is not None:
            return exactly, None, ()
        if before is not None and before != END:
            rows = [c for c, parts in step.parts.items() if any(p.kind == DATA for p in parts)]
            if rows and before <= standing.stamp:
                # We started after that target; a child that is behind needs a stamp of its own.
                before = self._next_target()
        if before is None or before == END:
            return after(max(standing.stamp, self._top)), None, ()
        made_from = step.made_from[0]
        stamp, skipped = slot(standing.stamp, before, rows, self.positions, self._taken, made_from)
        return stamp, before, skipped

    def _skipped(self, child: int, parts: list[Part]) -> list[Part]:
        """The child has rows at a stamp that is not known: the log begins after its position."""
        position = self.positions[child]
        floor = Floor(position.stamp, position.epoch, self._horizon)
        if self._logged:
            self.log.set_floor(child, floor)
        else:
            self.log.raise_floor(child, floor)
        return [part for part in parts if part.kind == MARK]

    def _next_target(self) -> Stamp | None:
        """The first target after the node's present stamp."""
        stamp = self._standing.stamp
        return next((target.stamp for target in self._targets if target.stamp > stamp), None)

    # -- sending ---------------------------------------------------------------------------------

    def flush(self, child: int) -> list[CausalEffect]:
        """Send what is logged for a child and was not sent on this connection."""
        effects: list[CausalEffect] = []
        position = self.positions[child]
        if child in self._unstated and self._open[child]:
            effects += self._state(child, position.epoch)
        while self._open[child] and (bundle := self.log.take(child)) is not None:
            if self.determined and bundle.stamp > self._durable:
                break
            if self._released is not None and self._released < bundle.parts[-1].time.epoch:
                break
            self.log.taken(child)
            parts = [
                part
                for part in bundle.parts
                if position.beyond(bundle.stamp, part.time.epoch, part.kind == MARK)
            ]
            effects += self._sends(child, bundle._replace(parts=tuple(parts)))
        self._forget_sent(child)
        return effects

    def flush_all(self) -> list[CausalEffect]:
        """Send what may leave now, to all children."""
        return [effect for child in self.children for effect in self.flush(child)]

    def _state(self, child: int, epoch: int) -> list[CausalEffect]:
        """Tell a child the watermarks at the epoch where it stands, if they are certain."""
        if self._standing.restating or self._standing.completed < epoch:
            return []
        self._unstated.discard(child)
        # A node without a log may have told the one before of later marks, and not tell them again.
        later = tuple(p for p in self.log.forgotten_marks(child) if p.time.epoch > epoch)
        told = self._sends(child, Bundle(ZERO, (), self._marks_at(child, epoch)))
        return told + self._sends(child, Bundle(ZERO, (), later))

    def _marks_at(self, child: int, epoch: int) -> tuple[Part, ...]:
        """Marks of just that epoch; there is none to state before the first one."""
        if epoch < 0:
            return ()
        marks = self.log.marks_at(child, epoch)
        return tuple(
            Part(MARK, link, Time.root(epoch), marks[link].watermark_us if link in marks else None)
            for link, outlet in self.outlets.items()
            if child in outlet.targets
        )

    def restate(self, watermarks_us: Mapping[int, int | None]) -> list[CausalEffect]:
        """The node's watermark at its start is known; these are the ones to pass on, per link."""
        epoch = self._standing.completed
        time = Time.root(epoch)
        effects: list[CausalEffect] = []
        for child in self.children:
            known = self.log.marks_at(child, epoch)
            parts = tuple(
                Part(MARK, link, time, watermarks_us[link])
                for link, outlet in self.outlets.items()
                if child in outlet.targets and (link not in known or known[link].time != time)
            )
            if parts:
                self.log.append(child, Bundle(ZERO, (), parts))
            effects += self.flush(child)
        return effects

    def _sends(self, child: int, bundle: Bundle) -> list[CausalEffect]:
        last = len(bundle.parts)
        return [
            Send(self.message(child, part, bundle, number < last))
            for number, part in enumerate(bundle.parts, 1)
        ]

    def message(self, target: int, part: Part, bundle: Bundle, more: bool) -> Message:
        """A part of a bundle as the next message on its link to a target."""
        sequence = self._sent.get((part.link, target), 0) + 1
        self._sent[part.link, target] = sequence
        return Message(
            part.kind,
            part.link,
            self._node,
            target,
            self._incarnation,
            sequence,
            part.time,
            part.watermark_us,
            part.cut_us,
            part.payload,
            part.size,
            self.peers[target],
            bundle.stamp,
            bundle.diff,
            more,
        )

    # -- edges and what is durable ---------------------------------------------------------------

    def is_open(self, child: int) -> bool:
        """Whether what is made for a child leaves at once."""
        return self._open[child]

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
        self._unstated.add(child)
        return [*self.flush(child), TellOpened(child, incarnation)]

    def close(self, child: int, incarnation: int) -> None:
        """A child has a new incarnation: send nothing until its edge is opened again."""
        if child in self._open:
            self._open[child] = False
            self.peers[child] = incarnation

    def determinants_stored(self, stamp: Stamp) -> list[CausalEffect]:
        """The order of inputs is durable up to a step: what depended on that may leave."""
        self._durable = max(self._durable, stamp)
        return self.flush_all()

    def checkpoint_stored(self, epoch: int) -> list[CausalEffect]:
        """A checkpoint is durable: the output that had to wait for it may leave."""
        if self._released is None or epoch <= self._released:
            return []
        self._released = epoch
        return self.flush_all()
