"""Channels between hosts: plain connections, one for each ordered pair of hosts.

The sender makes the connection and writes to it; nothing but the answer to its greeting ever comes
back on it.  Messages are written by the thread that sends them while little is waiting.  All else
happens in one thread of the process, which waits for all connections at once, so that neither a
slow network nor a frozen peer ever stops a node.

When a connection breaks it is made again and goes on where the receiver stopped.  Numbering and
credits are decided by :mod:`penstock.core.channel`, what is said on a connection by
:mod:`penstock.wire`; the ends of a channel are in :mod:`.outgoing` and :mod:`.incoming`.

Who is called hears nothing before the caller has shown that it has the flow's secret.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.core.control.messages import ControlMessage
from penstock.core.node.messages import Message
from penstock.engine.host.incoming import Incoming, Listener
from penstock.engine.host.outgoing import Outgoing
from penstock.engine.host.poller import Poller
from penstock.engine.host.stale_peers import Refusals
from penstock.engine.host.tuning import Tuning
from penstock.errors import InvariantError, PenstockError
from penstock.wire.control import Control, encode

__all__ = ["WINDOW_MESSAGES", "Transport", "TransportCalls"]

log = logging.getLogger(__name__)

WINDOW_BYTES = 4 << 20
"""Credit per sending host and receiving node."""
WINDOW_MESSAGES = 128
"""Messages that use up the credit, however small they are: then batches grow at the sources."""
CLOSE_S = 0.3
"""How long the end of all channels may take."""


@dataclass(frozen=True)
class TransportCalls:
    """What a transport calls, mostly from a thread of its own: nothing here may block."""

    message: Callable[[int, Message], None]
    """A peer's message has come."""
    control: Callable[[int, Control], None]
    """A peer's control message has come."""
    credit: Callable[[], None]
    """Some peer takes more."""
    broken: Callable[[int, str], None]
    """The connection with a peer broke."""
    failure: Callable[[PenstockError], None]
    """Something failed that ends the host."""


class Transport:
    """All channels of one host, and the thread that waits for them."""

    def __init__(
        self,
        host: int,
        bind: str,
        secret: str,
        calls: TransportCalls,
        window_bytes: int = WINDOW_BYTES,
        tuning: Tuning | None = None,
    ) -> None:
        self.host = host
        self.secret = secret
        self.window_bytes = window_bytes
        self.message_bytes = max(64, window_bytes // WINDOW_MESSAGES)
        self.tuning = tuning or Tuning()
        self.calls = calls
        self._outgoing: dict[int, Outgoing] = {}
        self._incoming: dict[int, Incoming] = {}
        self._forgotten: set[int] = set()
        self._corker: int | None = None
        self._dirty: dict[Outgoing, None] = {}
        self._lock = threading.Lock()
        self.closed = False
        self.refusals = Refusals()
        self.session = uuid.uuid4().hex
        """Tells this process from another one with the same host number."""
        self.poller = Poller("penstock-channels", self._on_time, self._failed)
        self._listener = Listener(self, bind)
        self.poller.call(self._listener.start)
        self.poller.start()
        self.address = f"tcp://{_bracketed(bind)}:{self._listener.port}"

    # -- peers -----------------------------------------------------------------------------------

    def connect(self, peer: int, address: str) -> None:
        """Open the channel to a peer; connecting and reconnecting happen in the background."""
        with self._lock:
            before = self._outgoing.get(peer)
            if peer in self._forgotten or (before is not None and before.address == address):
                return
            channel = Outgoing(self, peer, address)
            self._outgoing[peer] = channel
        if before is not None:
            before.stop()
        channel.start()

    def forget(self, peer: int) -> None:
        """A peer is gone for good: send it nothing more, and hear nothing from it."""
        with self._lock:
            self._forgotten.add(peer)  # first: a sender that finds no channel must see why
            channel = self._outgoing.pop(peer, None)
            end = self._incoming.get(peer)
        if channel is not None:
            channel.stop()
        if end is not None:
            end.forget()

    def forgot(self, peer: int) -> bool:
        """Whether a peer is gone for good."""
        return peer in self._forgotten

    def incoming(self, peer: int) -> Incoming:
        """The receiving end of a peer's channel, which outlives its connections."""
        with self._lock:
            end = self._incoming.get(peer)
            if end is None:
                end = self._incoming[peer] = Incoming(self, peer)
            return end

    def outgoing(self, peer: int) -> Outgoing | None:
        """The sending end of the channel to a peer."""
        return self._outgoing.get(peer)

    # -- sending ---------------------------------------------------------------------------------

    def send(self, peer: int, message: Message) -> None:
        """Send a message of a node."""
        channel = self._outgoing.get(peer)
        if channel is None:
            if peer in self._forgotten:
                return
            raise InvariantError(f"there is no channel to host {peer}")
        channel.push(message, message.target, self._cost(message.size))

    def cork(self) -> None:
        """Let what this thread sends wait until :meth:`uncork`: messages then travel together."""
        self._corker = threading.get_ident()

    def uncork(self) -> None:
        """Let what has waited go."""
        self._corker = None
        dirty, self._dirty = self._dirty, {}
        for channel in dirty:
            channel.flush()

    def waits(self, channel: Outgoing) -> bool:
        """Whether the calling thread's messages wait."""
        if self._corker != threading.get_ident():
            return False
        self._dirty[channel] = None
        return True

    def control(self, peer: int, message: ControlMessage) -> None:
        """Send a control message; credit does not count for these."""
        self.control_all([peer], message)

    def control_all(self, peers: Iterable[int], message: ControlMessage) -> None:
        """The same for several peers, packed once."""
        packed = encode(message)
        for peer in peers:
            channel = self._outgoing.get(peer)
            if channel is not None:
                channel.push(packed, -1, self._cost(len(packed)))
            elif peer not in self._forgotten:
                raise InvariantError(f"there is no channel to host {peer}")

    def open(self, peer: int, node: int) -> bool:
        """Whether there is credit to send to a node on a peer."""
        channel = self._outgoing.get(peer)
        return channel is None or channel.sender.open(node)

    def consumed(self, peer: int, node: int, size: int) -> None:
        """A node of ours has consumed a message of a peer's."""
        self.incoming(peer).consume(node, self._cost(size))

    def _cost(self, size: int) -> int:
        """What a message costs of its target's credit: small ones are work, too."""
        return size + self.message_bytes

    # -- ending ----------------------------------------------------------------------------------

    def sever(self, peer: int) -> bool:
        """Break the connection to a peer, for drills; it is made again at once."""
        channel = self._outgoing.get(peer)
        return channel is not None and channel.sever()

    def drain(self, timeout_s: float, peer: int | None = None) -> bool:
        """Wait until everything sent (to a peer) has been acknowledged, for a bounded time."""
        deadline = time.monotonic() + timeout_s
        while any(
            channel.sender.kept
            for channel in list(self._outgoing.values())
            if peer is None or channel.peer == peer
        ):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def close(self) -> None:
        """End all channels; a frozen peer cannot delay this."""
        self.closed = True
        for channel in list(self._outgoing.values()):
            channel.stop()
        self.poller.call(self._listener.close)
        self.poller.stop()
        self.poller.join(CLOSE_S)

    # -- in the poller's thread ------------------------------------------------------------------

    def _on_time(self, now: float) -> float | None:
        """Do what is due; say when something will be."""
        first: float | None = None
        ends: list[Listener | Outgoing] = [self._listener, *self._outgoing.values()]
        for end in ends:
            due = end.due_at()
            if due is not None and due <= now:
                end.on_time(now)
                due = end.due_at()
            if due is not None and (first is None or due < first):
                first = due
        return first

    def _failed(self, error: Exception) -> None:
        log.error("the channels of host %d failed", self.host, exc_info=error)
        self.calls.failure(InvariantError(f"the channels of host {self.host} failed: {error}"))


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
