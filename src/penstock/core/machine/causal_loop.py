"""A node in a loop: part of a unit that fails and starts as a whole.

Theory of operation
-------------------
What comes into the loop and what leaves it is stamped, logged and replayed as everywhere.  What
travels on the links *inside* is neither: it is delivered as it comes, and refused only by
incarnation.  That is enough because all nodes of a loop start together, from one epoch at which
nothing was under way inside.

    received(message on a link inside)   ->  Deliver              no step, no end_step
    produced(a link inside, …)           ->  Send …               at once
    all senders have marked an epoch     ->  Report               the gate is closed
    region_completed(epoch, …)           ->  Complete             nothing is under way inside

What leaves the loop leaves with the completion of its epoch, so it depends on a set of inputs, not
on their order.  A checkpoint has the state at its epoch and nothing of later ones: after a start
everything after that epoch comes again.

A restarted node says ``Report(epoch, watermark)`` for the epoch where it starts, before it says
``Restated``: the watermark at its gate, for whoever aligns the gates.  The watermark that it passes
on is the greatest that it was given, and is in its checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.core.causal.reports import Start
from penstock.core.machine.causal import CausalMachine
from penstock.core.machine.causal_effects import CausalEffect, Checkpoint, Restated
from penstock.core.machine.messages import DATA, Deliver, Message, Report, Send
from penstock.core.machine.node import Outlet
from penstock.core.machine.tracking import NodeTracking
from penstock.core.progress.marks import WATERMARK_IDLE, Completion
from penstock.core.time import Time
from penstock.errors import PeerError

__all__ = ["CausalLoop"]


class CausalLoop(CausalMachine):
    """One node of a loop.

    >>> node = CausalLoop(5, {0: [1], 8: [6]}, [Outlet(8, (6,))], inside=frozenset({8}))
    >>> node.received(Message(DATA, 8, 6, 5, 0, 1, Time.root(0)))
    [Deliver(link=8, payload=None, time=Time(0), sender=-1)]
    >>> [effect.message.target for effect in node.produced(8, [(6, "rows", 4)], Time.root(0))]
    [6]
    >>> node.region_completed(0, None, 0)
    [Complete(epoch=0, watermark_us=None, cut_us=0)]
    """

    def __init__(
        self,
        node: int,
        inputs: Mapping[int, Sequence[int]],
        outlets: Iterable[Outlet],
        incarnation: int = 0,
        incarnations: Mapping[int, int] | None = None,
        inside: frozenset[int] = frozenset(),
        start: Start | None = None,
        checkpoint: Checkpoint | None = None,
        budget_bytes: int | None = None,
        tracking: NodeTracking | None = None,
        logged: bool = True,
        checkpoint_every: int | None = None,
        hold_after: int | None = None,
    ) -> None:
        super().__init__(
            node,
            inputs,
            outlets,
            incarnation,
            incarnations,
            start=start,
            checkpoint=checkpoint,
            budget_bytes=budget_bytes,
            inside=inside,
            tracking=tracking,
            clean=True,
            logged=logged,
            checkpoint_every=checkpoint_every,
            hold_after=hold_after,
        )
        self._closed: list[CausalEffect] = []
        self._early: list[Message] = []
        """What came inside before the watermark of the start was known."""

    # -- inside ----------------------------------------------------------------------------------

    def received(self, message: Message) -> list[CausalEffect]:  # type: ignore[override]
        """A message from a sender of ours, in the loop or outside of it."""
        if message.link not in self.inside:
            return super().received(message)
        return self.handle(message) if self.accept(message) else []

    def handle(self, message: Message) -> list[CausalEffect]:  # type: ignore[override]
        """What an accepted message from inside asks for; times may be handled in any order."""
        if self._restating:
            self._early.append(message)
            return []
        return [self._enter(message)]

    def _enter(self, message: Message) -> CausalEffect:
        if message.time.epoch <= self.completed_epoch:
            raise PeerError(
                f"node {self.node}: node {message.sender} sent rows of epoch "
                f"{message.time.epoch} round the loop, which is complete"
            )
        if self.counts is not None:
            self.counts.handled(message.link, message.time)
        return Deliver(message.link, message.payload, message.time)

    def produced(  # type: ignore[override]
        self, link: int, parts: Iterable[tuple[int, object, int]], time: Time
    ) -> list[CausalEffect]:
        """The vertices made output: inside it goes at once, outside when the epoch is complete."""
        if link not in self.inside:
            return super().produced(link, parts, time)
        effects: list[CausalEffect] = []
        for target, payload, size in parts:
            if self.counts is not None:
                self.counts.sent(link, time)
            message = self._message(DATA, link, target, time, payload=payload, size=size)
            effects.append(Send(message._replace(target_incarnation=self.peers[target])))
        return effects

    # -- epochs ----------------------------------------------------------------------------------

    def _aligned(self, completions: list[Completion]) -> None:
        for done in completions:
            if self.counts is not None:
                self.counts.closed(done.epoch)
            self._closed.append(Report(done.epoch, done.watermark_us, self._cut_of(done.epoch)))

    def _pump(self) -> list[CausalEffect]:
        effects = super()._pump()
        closed, self._closed = self._closed, []
        return closed + effects

    def region_completed(  # type: ignore[override]
        self, epoch: int, watermark_us: int | None, cut_us: int
    ) -> list[CausalEffect]:
        """All gates of the loop are closed and nothing of the epoch is under way inside."""
        last = self._completable[-1].watermark_us if self._completable else self.watermark_us
        if watermark_us is None or watermark_us == WATERMARK_IDLE:
            watermark_us = last
        elif last is not None:
            watermark_us = max(last, watermark_us)
        self._cuts_us[epoch] = cut_us
        self._completable.append(Completion(epoch, watermark_us))
        return self._pump()

    # -- starts ----------------------------------------------------------------------------------

    def _stated_by_all(self) -> list[CausalEffect]:
        if len(self._stated) < len(self._outside):
            return []
        effects: list[CausalEffect] = []
        if self._outside:
            gate_us = self._aligner.restate(self._stated)
            effects.append(Report(self.completed_epoch, gate_us, 0))
        return [*effects, Restated(self.completed_epoch, self.watermark_us)]

    def restated(self, watermarks_us: Mapping[int, int | None]) -> list[CausalEffect]:
        """The watermark of a Restated is set; what came early inside is handled now."""
        effects = super().restated(watermarks_us)
        early, self._early = self._early, []
        return effects + [self._enter(message) for message in early]
