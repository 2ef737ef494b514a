"""Messages between nodes, and the effects a node asks the engine to perform.

A message's header is a handful of numbers and does not grow with the number of shards.  The payload
(a record batch, in the engine) is opaque here.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.causal.diffs import Diff
from penstock.core.causal.times import Stamp
from penstock.core.time import Time

__all__ = [
    "DATA",
    "MARK",
    "Complete",
    "Deliver",
    "Effect",
    "EndStep",
    "Finish",
    "Message",
    "Send",
    "TellClosed",
]

DATA = 0
MARK = 1


class Message(NamedTuple):
    """What one node sends another over a link of the physical graph."""

    kind: int
    link: int
    sender: int
    target: int
    incarnation: int
    """The sender's: messages of any other incarnation are refused."""
    sequence: int
    """1, 2, 3, … per sender and target."""
    time: Time
    watermark_us: int | None = None
    """With a mark: event time has come this far."""
    cut_us: int = 0
    """With a mark: wall clock at the source when the epoch was cut; for latency figures only."""
    payload: object = None
    size: int = 0
    target_incarnation: int = 0
    """With causal recovery: whom the sender means; any other incarnation refuses it."""
    stamp: Stamp = ()
    """With causal recovery: the sender's step that made the message."""
    diff: Diff = ()
    """With causal recovery: the step, and what it was made from."""
    more: bool = False
    """With causal recovery: the next message to the same target belongs to the same step."""


class Deliver(NamedTuple):
    """Give a payload to the vertex behind a link."""

    link: int
    payload: object
    time: Time
    sender: int = -1
    """Who sent it, where that is needed to put rows in order."""


class Complete(NamedTuple):
    """Tell the vertices that an epoch is complete, then report it with ``completed``."""

    epoch: int
    watermark_us: int | None
    cut_us: int


class TellClosed(NamedTuple):
    """Tell the controller that an epoch was closed at the node's gate."""

    epoch: int
    watermark_us: int | None
    cut_us: int


class Send(NamedTuple):
    """Put a message on its way."""

    message: Message


class Finish(NamedTuple):
    """All inputs have ended and everything was passed on: the node is done."""


class EndStep(NamedTuple):
    """Everything before is delivered: call ``end_step`` and perform what it gives."""


Effect = Deliver | Complete | TellClosed | Send | Finish
