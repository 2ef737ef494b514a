"""The sending half of a node under causal recovery: steps get stamps, logs and wings.

A step's output is collected while its vertices run, and stamped when they are done: the stamp of a
replayed step depends on who gets something (:func:`penstock.core.causal.replay.slot`).  It is
logged per child.  What is logged leaves when the child's edge is open, if it lies beyond the
child's position and, for a node with determinants, if the order of inputs behind it is durable.

A child that starts at an epoch is first told of the watermark at that epoch, by a mark of just that
epoch, as soon as it is certain: when the node has completed that epoch or a later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import Diff, Link
from penstock.core.causal.logs import Bundle, Part, PayloadLog
from penstock.core.causal.replay import Turn, slot
from penstock.core.causal.times import END, ZERO, Stamp, after
from penstock.core.machine.causal_effects import CausalEffect, Spill, StoreDeterminants
from penstock.core.machine.messages import DATA, MARK, Message, Send
from penstock.core.machine.node import NodeMachine, Outlet
from penstock.core.machine.tracking import NodeTracking
from penstock.core.time import Time
from penstock.errors import InvariantError, require

__all__ = ["FREE", "CausalOutput", "Item", "Step"]

Item = tuple[Message, ...]
FREE: Turn[Item] = Turn(None, None, None)


@dataclass
class Step:
    """What is being handled, and what it has made so far, per child."""

    made_from: Diff
    turn: Turn[Item]
    parts: dict[int, list[Part]] = field(default_factory=dict)
    values: bytes = b""
    """What it has noted."""

    def add(self, target: int, part: Part) -> None:
        """The step sends a child something."""
        self.parts.setdefault(target, []).append(part)


class CausalOutput(NodeMachine):
    """Stamps, logs and sends what steps make."""

    def __init__(
        self,
        node: int,
        inputs: Mapping[int, Sequence[int]],
        outlets: Iterable[Outlet],
        incarnation: int,
        incarnations: Mapping[int, int] | None,
        completed: int,
        determined: bool,
        is_open: bool,
        budget_bytes: int | None,
        inside: frozenset[int],
        tracking: NodeTracking | None,
        logged: bool,
        stateful: bool,
        clean: bool,
        eager: bool,
        traced: bool,
    ) -> None:
        super().__init__(node, inputs, outlets, incarnation, incarnations, completed, tracking)
        self.traced = traced
        """Whether what it makes says what it was made from."""
        self.determined = determined
        self._logged = logged
        self.stateful = stateful
        self.clean = clean
        self._forgets_epochs = stateful and not clean
        """Without a log: whether it forgets whole epochs, as checkpoints in the midst of one ask
        for, or everything at once."""
        self.inside = inside
        """Links inside of a loop: nothing on them is stamped or logged."""
        targets = {t for outlet in self.outlets.values() for t in outlet.targets}
        self.children = sorted(
            {
                t
                for link, outlet in self.outlets.items()
                if link not in inside
                for t in outlet.targets
            }
        )
        self.peers = {target: (incarnations or {}).get(target, 0) for target in sorted(targets)}
        self._released = completed if eager else None
        """The newest epoch whose checkpoint is durable, if output waits for that."""
        self.stamp: Stamp = ZERO
        self.newest = self.completed_epoch
        self.newest_rows = -1
        """The largest epoch of rows that were handled or made."""
        self.log = PayloadLog(self.children, budget_bytes)
        self.positions = {child: Position() for child in self.children}
        self._open = dict.fromkeys(self.children, is_open)
        self._unstated: set[int] = set()
        """Children that were not told of the watermark at their positions."""
        self._restating = False
        """Whether the node's own watermark at its start is not known yet."""
        self._step: Step | None = None
        self._durable: Stamp = ZERO
        self._top: Stamp = ZERO
        self._taken: Mapping[Stamp, Link | None] = {}
        self._horizon = -1

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
            self.log.forget_sent(child, self.completed_epoch if self._forgets_epochs else None)

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

    def noted(self, values: bytes) -> None:
        """What the present step got from outside of its input: replays are given it again."""
        require(
            self.determined or not self.children,
            f"node {self.node} notes values, but the graph does not say so",
        )
        self._current().values = values

    def _current(self) -> Step:
        if self._step is None:
            raise InvariantError(f"node {self.node}: there is no step to end")
        return self._step

    def _log_step(self, step: Step) -> list[CausalEffect]:
        """Give a step its stamp and log what it made."""
        skipped: tuple[int, ...] = ()
        known = True
        exactly, before = step.turn.exactly, step.turn.before
        rows = [c for c, parts in step.parts.items() if any(p.kind == DATA for p in parts)]
        if rows and before is not None and before <= self.stamp:
            # We started after that target; a child that is behind needs a stamp of its own.
            before = self._next_target()
        if exactly is not None:
            stamp = exactly
        elif before is not None and before != END:
            stamp, skipped = slot(
                self.stamp, before, rows, self.positions, self._taken, step.made_from[0]
            )
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
                own = Link(self.node, stamp, newest, step.values)
                effects.append(StoreDeterminants(((own, *made_from),)))
        if self.determined and self.stateful:  # without state nobody else would know what came
            made_from = ()
        for child, parts in step.parts.items():
            if child in skipped:
                # The child has it at a stamp that nobody knows: the log begins after its position.
                position = self.positions[child]
                floor = Floor(position.stamp, position.epoch, self._horizon)
                if self._logged:
                    self.log.set_floor(child, floor)
                else:
                    self.log.raise_floor(child, floor)
                parts = [part for part in parts if part.kind == MARK]
            if parts:
                link = Link(self.node, stamp, max(part.time.epoch for part in parts))
                diff: Diff = (link, *made_from) if known and self.traced else ()
                self.log.append(child, Bundle(stamp, diff, tuple(parts)))
        for child in step.parts:
            effects += self._flush(child)
        effects += [Spill(child, bundle) for child, bundle in self.log.over_budget()]
        return effects

    def _next_target(self) -> Stamp | None:
        """The first target after the node's present stamp."""
        return None

    def _flush(self, child: int) -> list[CausalEffect]:
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

    def _state(self, child: int, epoch: int) -> list[CausalEffect]:
        """Tell a child the watermarks at the epoch where it stands, if they are certain."""
        if self._restating or self.completed_epoch < epoch:
            return []
        self._unstated.discard(child)
        marks = self.log.marks_at(child, epoch)
        time = Time.root(epoch)
        parts = tuple(
            Part(MARK, link, time, marks[link].watermark_us if link in marks else None)
            for link, outlet in self.outlets.items()
            if child in outlet.targets and link not in self.inside
        )
        # A node without a log may have told the one before of later marks, and not tell them again.
        later = tuple(p for p in self.log.forgotten_marks(child) if p.time.epoch > epoch)
        told = self._sends(child, Bundle(ZERO, (), parts))
        return told + self._sends(child, Bundle(ZERO, (), later))

    def _sends(self, child: int, bundle: Bundle) -> list[CausalEffect]:
        effects: list[CausalEffect] = []
        for number, part in enumerate(bundle.parts, 1):
            sequence = self._sent.get((part.link, child), 0) + 1
            self._sent[part.link, child] = sequence
            message = Message(
                part.kind,
                part.link,
                self.node,
                child,
                self.incarnation,
                sequence,
                part.time,
                part.watermark_us,
                part.cut_us,
                part.payload,
                part.size,
                self.peers[child],
                bundle.stamp,
                bundle.diff,
                number < len(bundle.parts),
            )
            effects.append(Send(message))
        return effects

    def is_open(self, child: int) -> bool:
        """Whether what is made for a child leaves at once."""
        return self._open[child]

    def determinants_stored(self, stamp: Stamp) -> list[CausalEffect]:
        """The order of inputs is durable up to a step: what depended on that may leave."""
        self._durable = max(self._durable, stamp)
        return [effect for child in self.children for effect in self._flush(child)]

    def checkpoint_stored(self, epoch: int) -> list[CausalEffect]:
        """A checkpoint is durable: the output that had to wait for it may leave."""
        if self._released is None or epoch <= self._released:
            return []
        self._released = epoch
        return [effect for child in self.children for effect in self._flush(child)]

    def spilled(self, child: int, stamp: Stamp, references: tuple[object, ...]) -> None:
        """A bundle's payloads were moved out of memory."""
        self.log.spilled(child, stamp, references)
