"""The two ends of an ordered, reliable, credit-limited channel between two hosts.

Theory of operation
-------------------
All messages from one host to another travel on one channel and are numbered 1, 2, 3, …  The
sending end keeps each message until the receiving end has acknowledged its number, so that a broken
connection costs nothing: on reconnecting, the receiver says how far it got (``resume``) and
everything after that is sent again.

Credit is counted separately, per receiving node and in bytes: a node's window limits what was sent
to it and not consumed by it yet.  One slow node therefore never holds up its neighbours, and (in a
graph without cycles) no ring of hosts can wait for each other: the node at the end of a path
always consumes.  A message may overdraw its node's window once, so a message larger than the
window still passes.

Acknowledgements and consumption are running totals.  Losing one, or seeing one twice or late,
changes nothing.

These classes hold no locks and do no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from penstock.errors import PeerError

__all__ = ["ChannelReceiver", "ChannelSender"]

M = TypeVar("M")


@dataclass
class ChannelSender(Generic[M]):
    """The sending end.

    >>> end = ChannelSender[str](window_bytes=10)
    >>> end.push("a", node=7, size=8), end.open(7), end.push("b", node=7, size=8), end.open(7)
    (1, True, 2, False)
    >>> end.acknowledged(1, {7: 8}), end.open(7), end.resume(1)
    (True, True, [(2, 'b')])
    """

    window_bytes: int
    _next: int = 1
    _kept: deque[tuple[int, M, int]] = field(default_factory=deque)
    _kept_bytes: int = 0
    _sent: dict[int, int] = field(default_factory=dict)
    _consumed: dict[int, int] = field(default_factory=dict)

    def open(self, node: int) -> bool:
        """Whether there is credit to send to a node."""
        return self.outstanding(node) < self.window_bytes

    def outstanding(self, node: int) -> int:
        """Bytes that were sent to a node and that it has not consumed."""
        return self._sent.get(node, 0) - self._consumed.get(node, 0)

    def push(self, message: M, node: int, size: int) -> int:
        """Number a message and keep it; give the number."""
        number = self._next
        self._next += 1
        self._kept.append((number, message, size))
        self._kept_bytes += size
        self._sent[node] = self._sent.get(node, 0) + size
        return number

    def acknowledged(self, number: int, consumed: Mapping[int, int]) -> bool:
        """The receiver has everything up to ``number``; its nodes consumed these totals.

        Says whether a node that had no credit left has some now.
        """
        if number >= self._next:
            raise PeerError(f"message {number} was acknowledged but never sent", number=number)
        while self._kept and self._kept[0][0] <= number:
            self._kept_bytes -= self._kept.popleft()[2]
        opened = False
        for node, total in consumed.items():
            if total > self._consumed.get(node, 0):
                was_open = self.open(node)
                self._consumed[node] = total
                opened = opened or (not was_open and self.open(node))
        return opened

    def resume(self, number: int) -> list[tuple[int, M]]:
        """After a reconnection: what to send again, given what the receiver has."""
        self.acknowledged(number, {})
        return [(kept, message) for kept, message, _ in self._kept]

    @property
    def kept(self) -> int:
        """How many messages wait for their acknowledgement."""
        return len(self._kept)

    @property
    def kept_bytes(self) -> int:
        """Their size."""
        return self._kept_bytes


@dataclass
class ChannelReceiver:
    """The receiving end.

    >>> end = ChannelReceiver()
    >>> end.accept(1), end.accept(2), end.accept(2)
    (True, True, False)
    >>> end.consume(7, 100); end.received, end.consumed
    (2, {7: 100})
    """

    received: int = 0
    consumed: dict[int, int] = field(default_factory=dict)

    def accept(self, number: int) -> bool:
        """Whether a message is new; a gap means that the peer broke the protocol."""
        if number <= self.received:
            return False
        if number != self.received + 1:
            raise PeerError(
                f"message {number} arrived after {self.received}: something in between is missing",
                number=number,
            )
        self.received = number
        return True

    def consume(self, node: int, size: int) -> None:
        """A node has taken a message: its bytes are free again."""
        self.consumed[node] = self.consumed.get(node, 0) + size
