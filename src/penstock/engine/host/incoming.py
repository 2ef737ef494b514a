"""The receiving end of a channel, and the calls that bring its messages.

A channel's receiving end outlives its connections: it knows which messages have come and what was
consumed.  A *call* is one connection that a peer has made.  It first shows that it has the flow's
secret (:mod:`penstock.wire.handshake`), then brings frames, until it breaks or a newer call of the
same peer takes its place.

Calls are read by the poller's thread alone, so messages are handed over in the order in which they
came, whatever connection brought them.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.core.channel import ChannelReceiver
from penstock.core.node.messages import Message
from penstock.engine.host.poller import READ
from penstock.errors import InvariantError, PeerError
from penstock.wire.control import Control
from penstock.wire.frames import Frame, FrameReader
from penstock.wire.handshake import (
    GREETING_MAX,
    NONCE_BYTES,
    Admission,
    Answer,
    CalledSide,
    message_in,
)

if TYPE_CHECKING:
    from penstock.engine.host.transport import Transport

__all__ = ["HANDSHAKE_S", "Incoming", "Listener", "keep_alive"]

log = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
"""How long either side may take to show who it is."""
STRANGERS_MAX = 64
"""Calls that have not shown yet who they are; beyond this the oldest is cut off."""
READS_PER_TURN = 4
"""How often one call is read before the others get their turn."""
SILENT_S = 2
"""After this much silence the kernel asks whether the other machine is still there."""
GONE_S = 10
"""What was sent and not taken for so long breaks the connection."""


class Incoming:
    """The receiving end of a peer's channel."""

    def __init__(self, transport: Transport, peer: int) -> None:
        self.transport = transport
        self.peer = peer
        self.receiver = ChannelReceiver()
        self.call: AcceptedCall | None = None
        """The connection that is listened to."""
        self._changed: set[int] = set()
        """Nodes that have consumed something since that was last reported."""
        self._unreported = 0
        self._total = 0
        self._lock = threading.Lock()
        self._sessions: list[str] = []
        """The processes that this host number has had, the present one last."""

    def consume(self, node: int, size: int) -> None:
        """A node here has consumed a message of the peer's."""
        with self._lock:
            self.receiver.consume(node, size)
            self._changed.add(node)
            self._total += size
            self._unreported += size
            tell = self._unreported >= self.transport.window_bytes // 4
        if tell:
            channel = self.transport.outgoing(self.peer)
            if channel is not None:
                channel.wake()

    def state(self) -> tuple[int, int]:
        """Changes whenever there is something to acknowledge."""
        return self.receiver.received, self._total

    def report(self, everything: bool) -> tuple[int, int, dict[int, int]]:
        """What to acknowledge: the state, and what nodes have consumed in all.

        Only of nodes for which that has changed, unless the peer may have missed a report.
        """
        with self._lock:
            consumed = self.receiver.consumed
            nodes = consumed if everything else self._changed
            changed = {node: consumed[node] for node in nodes}
            self._changed.clear()
            self._unreported = 0
            return self.receiver.received, self._total, changed

    def begin(self, call: AcceptedCall, session: str) -> int:
        """Listen to a call from now on; say how many messages its sender need not repeat."""
        with self._lock:
            self._meet(session)
            before, self.call = self.call, call
        if before is not None:
            before.hang_up()
        return self.receiver.received

    def _meet(self, session: str) -> None:
        """A new process begins to count anew; one that was replaced is not heard any more."""
        if self._sessions and session == self._sessions[-1]:
            return
        if session in self._sessions:
            raise PeerError(f"host {self.peer} was replaced by another process", host=self.peer)
        if self._sessions:
            self.receiver, self._total, self._unreported = ChannelReceiver(), 0, 0
            self._changed.clear()
        self._sessions.append(session)

    def take(self, frame: Frame) -> None:
        """Hand over what a frame brings."""
        calls = self.transport.calls
        for number, message in enumerate(frame.messages, frame.first):
            with self._lock:
                fresh = self.receiver.accept(number)
            if not fresh:
                continue
            if isinstance(message, Message):
                calls.message(self.peer, message)
            else:
                self._take_control(message)
        channel = self.transport.outgoing(self.peer)
        if channel is None:
            return
        if frame.messages:
            channel.owes_answer()
        if channel.acknowledged(frame.acknowledged, frame.consumed):
            calls.credit()

    def _take_control(self, packed: Control) -> None:
        """Hand a control message over; one that cannot be understood ends the flow."""
        try:
            self.transport.calls.control(self.peer, packed)
        except PeerError as error:
            self.transport.calls.failure(error)

    def forget(self) -> None:
        """Hear nothing more; what still comes is counted and dropped."""
        self.call = None


class Listener:
    """Where a host is called; runs in the poller's thread."""

    def __init__(self, transport: Transport, bind: str) -> None:
        self._transport = transport
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        self._socket = socket.create_server((bind, 0), family=family, backlog=256)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._calls: dict[AcceptedCall, None] = {}
        self._strangers: dict[AcceptedCall, float] = {}
        """Since when; in order of their coming."""

    def start(self) -> None:
        """Take calls."""
        self._transport.poller.watch(self._socket, READ, self._accept)

    def _accept(self, _events: int) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # out of files, for instance: there may be some again later
            log.warning("a call cannot be taken: %s", error)
            time.sleep(0.01)
            return
        connection.setblocking(False)
        keep_alive(connection)
        call = AcceptedCall(self._transport, self, connection)
        self._calls[call] = None
        self._strangers[call] = time.monotonic()
        if len(self._strangers) > STRANGERS_MAX:
            next(iter(self._strangers)).hang_up()
        call.start()

    def known(self, call: AcceptedCall) -> None:
        """A call has shown who it is."""
        self._strangers.pop(call, None)

    def ended(self, call: AcceptedCall) -> None:
        """A call is over."""
        self._strangers.pop(call, None)
        self._calls.pop(call, None)

    def due_at(self) -> float | None:
        """When the next call has had its time to show who it is."""
        return next((since + HANDSHAKE_S for since in self._strangers.values()), None)

    def on_time(self, now: float) -> None:
        """Cut off those that have not shown who they are in time."""
        for call, since in list(self._strangers.items()):
            if since + HANDSHAKE_S <= now:
                call.hang_up()

    def close(self) -> None:
        """Take no more calls, and end those that there are."""
        self._transport.poller.forget(self._socket)
        self._socket.close()
        for call in list(self._calls):
            call.hang_up()


class AcceptedCall:
    """One connection that was made to this host; runs in the poller's thread."""

    def __init__(self, transport: Transport, listener: Listener, connection: socket.socket) -> None:
        self._transport = transport
        self._listener = listener
        self._connection: socket.socket | None = connection
        self._side = CalledSide(transport.secret, secrets.token_bytes(NONCE_BYTES))
        self._heard = bytearray()
        self._reader = FrameReader()
        self._incoming: Incoming | None = None

    def start(self) -> None:
        """Say the first word, and listen."""
        if self._connection is not None:
            self._transport.poller.watch(self._connection, READ, self._ready)
            self._say(self._side.challenge())

    def hang_up(self) -> None:
        """End the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._transport.poller.forget(connection)
            connection.close()
            self._listener.ended(self)

    def _say(self, words: bytes) -> None:
        """A few bytes, for which an unused connection has room."""
        with suppress(OSError):  # it is read next, and that shows the end
            if self._connection is not None:
                self._connection.send(words)

    def _ready(self, _events: int) -> None:
        try:
            for _ in range(READS_PER_TURN):
                if self._connection is None or not self._read(self._connection):
                    return
        except (OSError, PeerError) as error:
            self._broke(error.message if isinstance(error, PeerError) else str(error))
        except Exception as error:
            peer = None if self._incoming is None else self._incoming.peer
            log.exception("what host %s sent could not be taken in", peer)
            self._broke(str(error))
            self._transport.calls.failure(
                InvariantError(f"what host {peer} sent could not be taken in: {error}")
            )

    def _read(self, connection: socket.socket) -> bool:
        """Read once; say whether there may be more."""
        known = self._incoming
        try:
            if known is None:
                data = connection.recv(GREETING_MAX)
                if not data:
                    raise ConnectionResetError("the caller hung up")
                self._heard += data
                self._get_to_know()
                return False
            space = self._reader.space()
            count = connection.recv_into(space)
        except BlockingIOError:
            return False
        if not count:
            raise ConnectionResetError("the peer closed the connection")
        for frame in self._reader.filled(count):
            if known.call is not self:
                self._refuse(known.peer, frame)
                return False
            known.take(frame)
        return count == len(space)

    def _get_to_know(self) -> None:
        packed = message_in(self._heard, GREETING_MAX)
        if packed is None:
            return
        transport = self._transport
        try:
            greeting = self._side.greeted(packed)
        except PeerError as error:
            self._refuse_call(Admission.REFUSED, error.message)
            return
        peer = greeting.host
        if transport.forgot(peer):
            transport.refusals.connection(peer, greeting.writes)
            self._refuse_call(Admission.GIVEN_UP, f"host {peer} was replaced by another process")
            return
        incoming = transport.incoming(peer)
        try:
            received = incoming.begin(self, greeting.session)
        except PeerError as error:
            self._refuse_call(Admission.GIVEN_UP, error.message)
            return
        self._incoming = incoming
        self._listener.known(self)
        self._say(self._side.answer(Answer(Admission.ADMITTED, received, "")))

    def _refuse_call(self, admission: Admission, why: str) -> None:
        self._say(self._side.answer(Answer(admission, 0, why)))
        self.hang_up()

    def _refuse(self, peer: int, frame: Frame) -> None:
        """What comes by a connection that nobody listens to any more."""
        if self._transport.forgot(peer):
            self._transport.refusals.frame(peer, len(frame.messages))
        self.hang_up()

    def _broke(self, why: str) -> None:
        self.hang_up()
        incoming, transport = self._incoming, self._transport
        if incoming is not None and incoming.call is self and not transport.closed:
            transport.calls.broken(incoming.peer, why)


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel notice that the other machine is gone, and send small messages at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_S * 1000)
