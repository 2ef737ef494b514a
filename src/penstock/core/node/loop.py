"""The links inside of a loop: part of a unit that fails and starts as a whole.

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

A restarted node says ``TellClosed(epoch, watermark)`` for the epoch where it starts, before it says
``Restated``: the watermark at its gate, for the tracker that aligns the gates.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.causal.logs import Bundle, Part
from penstock.core.node.causal_effects import CausalEffect
from penstock.core.node.messages import DATA, Deliver, Message, Send
from penstock.core.node.output import Output
from penstock.core.node.standing import Standing
from penstock.core.node.tracking import NodeCounts
from penstock.core.time import Time
from penstock.errors import PeerError

__all__ = ["LoopLinks"]

_UNSTAMPED = Bundle((), (), ())


class LoopLinks:
    """Rows that go round."""

    def __init__(
        self,
        links: frozenset[int],
        standing: Standing,
        output: Output,
        counts: NodeCounts | None,
    ) -> None:
        self.links = links
        self._standing = standing
        self._output = output
        self._counts = counts
        self._early: list[Message] = []
        """What came before the watermark of the start was known."""

    def received(self, message: Message) -> list[CausalEffect]:
        """An accepted message from inside; times may be handled in any order."""
        if self._standing.restating:
            self._early.append(message)
            return []
        return [self._enter(message)]

    def restated(self) -> list[CausalEffect]:
        """The watermark of the start is known: what came early is handled now."""
        early, self._early = self._early, []
        return [self._enter(message) for message in early]

    def _enter(self, message: Message) -> CausalEffect:
        epoch = message.time.epoch
        if epoch <= self._standing.completed:
            raise PeerError(
                f"node {self._standing.node}: node {message.sender} sent rows of epoch {epoch} "
                "round the loop, which is complete"
            )
        if self._counts is not None:
            self._counts.handled(message.link, message.time)
        return Deliver(message.link, message.payload, message.time)

    def produced(
        self, link: int, parts: Iterable[tuple[int, object, int]], time: Time
    ) -> list[CausalEffect]:
        """Send rows round, at once."""
        effects: list[CausalEffect] = []
        for target, payload, size in parts:
            if self._counts is not None:
                self._counts.sent(link, time)
            part = Part(DATA, link, time, None, 0, payload, size)
            effects.append(Send(self._output.message(target, part, _UNSTAMPED, more=False)))
        return effects
