"""The brain of a node: which messages count, when epochs are complete, what to send.

Theory of operation
-------------------
A node is driven from outside by four calls and answers each with effects, in the order in which
they must be performed:

    received(message)   ->  Deliver | Complete …       a message came in
    produced(...)       ->  Send …                     its vertices made output
    completed(...)      ->  Send …, Finish             the vertices have worked on a Complete
    cut(...)            ->  Complete                   (sources) the reader's epoch has ended

It never touches payloads, never asks a clock, and does no I/O.  The same class runs in a Spark task
and under a simulated schedule.

Where progress is tracked (in loops) the node also counts its events for the trackers, see
:mod:`penstock.core.node.tracking`: marks then close its gate, and completions come from outside
(``region_completed``) once no count is left that could result in the epoch.

Messages from one sender carry consecutive numbers and the sender's incarnation.  A repeated number
is dropped, a gap or a foreign incarnation is refused: after a fence, nothing of the old incarnation
gets through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.core.node.gate import Gate
from penstock.core.node.intake import Intake
from penstock.core.node.messages import (
    DATA,
    MARK,
    Complete,
    Deliver,
    Effect,
    Finish,
    Message,
    Send,
    TellClosed,
)
from penstock.core.node.options import Wiring
from penstock.core.node.tracking import NodeCounts, NodeTracking
from penstock.core.progress.marks import EPOCH_END, Completion
from penstock.core.time import Time
from penstock.errors import InvariantError, PeerError

__all__ = ["NodeMachine"]


class NodeMachine:
    """One shard of a chain of stages.

    >>> from penstock.core.node.options import Outlet
    >>> node = NodeMachine(Wiring(5, {0: [1, 2]}, (Outlet(9, (7,)),)))
    >>> node.received(Message(MARK, 0, 1, 5, 0, 1, Time.root(0), watermark_us=10))
    []
    >>> node.received(Message(MARK, 0, 2, 5, 0, 1, Time.root(0), watermark_us=12))
    [Complete(epoch=0, watermark_us=10, cut_us=0)]
    >>> [effect.message.kind for effect in node.completed(0, {9: 10}, 0)]
    [1]
    """

    replaying = False
    """What is lost is not made again."""

    def __init__(
        self, wiring: Wiring, completed: int = -1, tracking: NodeTracking | None = None
    ) -> None:
        self.node = wiring.node
        self.incarnation = wiring.incarnation
        self.outlets = {outlet.link: outlet for outlet in wiring.outlets}
        self.counts = None if tracking is None else NodeCounts(tracking, completed + 1)
        self._intake = Intake(wiring)
        self.is_source = not self._intake.keys
        inside = () if tracking is None else tracking.links
        self._gate = Gate((key for key in self._intake.keys if key[0] not in inside), completed)
        self.completed_epoch = completed
        self.finished = False
        self._sent: dict[tuple[int, int], int] = {}

    # -- input -----------------------------------------------------------------------------------

    def received(self, message: Message) -> list[Effect]:
        """A message from a sender of ours: accept it and handle it."""
        return self.handle(message) if self.accept(message) else []

    def accept(self, message: Message) -> bool:
        """Whether a message counts; in the order of arrival, each once."""
        return self._intake.accept(message)

    def handle(self, message: Message) -> list[Effect]:
        """What an accepted message asks for; in a loop, times may be handled in any order."""
        if message.kind == DATA:
            if self.counts is not None:
                self.counts.handled(message.link, message.time)
            elif message.time.epoch <= self._gate.aligner.completed:
                raise PeerError(
                    f"node {self.node}: node {message.sender} sent rows of epoch "
                    f"{message.time.epoch}, which is complete"
                )
            return [Deliver(message.link, message.payload, message.time)]
        if message.kind != MARK:
            raise PeerError(f"node {self.node}: unknown kind of message {message.kind}")
        self._gate.mark(message)
        effects = [self._complete(completion) for completion in self._gate.complete]
        self._gate.complete.clear()
        return effects

    def _complete(self, completion: Completion) -> Effect:
        cut_us = self._gate.cut_of(completion.epoch)
        if self.counts is None:
            return Complete(completion.epoch, completion.watermark_us, cut_us)
        self.counts.closed(completion.epoch)
        return TellClosed(completion.epoch, completion.watermark_us, cut_us)

    def region_completed(self, epoch: int, watermark_us: int | None, cut_us: int) -> list[Effect]:
        """No count is left that could result in an epoch here."""
        return [Complete(epoch, watermark_us, cut_us)]

    def cut(self, epoch: int, watermark_us: int | None, cut_us: int) -> list[Effect]:
        """A source's reader has come to the end of an epoch."""
        if not self.is_source or epoch <= self.completed_epoch:
            raise InvariantError(
                f"node {self.node}: cannot cut epoch {epoch} after {self.completed_epoch}"
            )
        return [Complete(epoch, watermark_us, cut_us)]

    # -- output ----------------------------------------------------------------------------------

    def produced(
        self, link: int, parts: Iterable[tuple[int, object, int]], time: Time
    ) -> list[Effect]:
        """The vertices made output: ``(target, payload, size)`` for each target that gets some."""
        if time.epoch <= self.completed_epoch:
            raise InvariantError(
                f"node {self.node}: output at epoch {time.epoch}, which was already passed on as "
                "complete"
            )
        effects: list[Effect] = []
        for target, payload, size in parts:
            if self.counts is not None:
                self.counts.sent(link, time)
            effects.append(
                Send(self._message(DATA, link, target, time, payload=payload, size=size))
            )
        return effects

    def completed(
        self, epoch: int, watermarks_us: Mapping[int, int | None], cut_us: int
    ) -> list[Effect]:
        """The vertices have worked on a Complete; these are the watermarks to pass on, per link."""
        self.completed_epoch = epoch
        time = Time.root(epoch)
        effects: list[Effect] = [
            Send(self._message(MARK, outlet.link, target, time, watermarks_us[outlet.link], cut_us))
            for outlet in self.outlets.values()
            if outlet.marked
            for target in outlet.targets
        ]
        if self.is_source and self.counts is not None:
            self.counts.closed(epoch)
            least = min((w for w in watermarks_us.values() if w is not None), default=None)
            effects.append(TellClosed(epoch, least, cut_us))
        if epoch >= EPOCH_END:
            self.finished = True
            effects.append(Finish())
        return effects

    def _message(
        self,
        kind: int,
        link: int,
        target: int,
        time: Time,
        watermark_us: int | None = None,
        cut_us: int = 0,
        payload: object = None,
        size: int = 0,
    ) -> Message:
        sequence = self._sent.get((link, target), 0) + 1
        self._sent[link, target] = sequence
        return Message(
            kind,
            link,
            self.node,
            target,
            self.incarnation,
            sequence,
            time,
            watermark_us,
            cut_us,
            payload,
            size,
        )
