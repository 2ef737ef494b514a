"""The sending end of a channel: a connection to one peer, made again whenever it breaks.

Messages are numbered and kept by :class:`penstock.core.channel.ChannelSender`.  They are written by
the thread that sends them while little is waiting and the kernel takes it, else by the poller's
thread.  Neither ever blocks: a peer that does not read only makes what waits here grow, and credit
bounds that.  Frames also carry what was received and consumed in the opposite direction, at the
latest :data:`ACKNOWLEDGE_S` after it came.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.core.channel import ChannelSender
from penstock.core.node.messages import Message
from penstock.engine.host.incoming import HANDSHAKE_S, keep_alive
from penstock.engine.host.poller import READ, WRITE
from penstock.errors import InvariantError, PeerError
from penstock.wire.control import Control
from penstock.wire.frames import Frame, encode_frame
from penstock.wire.handshake import (
    ANSWER_MAX,
    CHALLENGE_BYTES,
    NONCE_BYTES,
    Admission,
    CallingSide,
    message_in,
)

if TYPE_CHECKING:
    from penstock.engine.host.transport import Transport

__all__ = ["GivenUpError", "Outgoing"]

FRAME_BYTES = 1 << 20
"""A frame is closed once it holds this much."""
FRAME_MESSAGES = 256
ACKNOWLEDGE_S = 0.05
"""How long acknowledgements may wait for something to travel with."""
RETRY_S = 0.02
RETRY_S_MAX = 0.2


class GivenUpError(PeerError):
    """A peer says that another process is in the place of this one."""


class Outgoing:
    """One channel's sending end."""

    def __init__(self, transport: Transport, peer: int, address: str) -> None:
        self.transport = transport
        self.peer = peer
        self.address = address
        self.sender: ChannelSender[Message | Control] = ChannelSender(transport.window_bytes)
        self._acknowledge_at: float | None = None
        """When the peer must be told what has come from it."""
        self._at: float | None = None
        """When the connection is to be tried again, or the peer has not answered in time."""
        self._retry_s = RETRY_S
        self._unwritten: deque[tuple[int, Message | Control]] = deque()
        self._unwritten_bytes = 0
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        """Held by the thread that writes, and when connections change."""
        self._connection: socket.socket | None = None
        self._events = 0
        """What the poller waits for on it."""
        self._calling: CallingSide | None = None
        """While the two sides get to know each other."""
        self._greeted = False
        self._heard = bytearray()
        self._is_up = False
        self._pending: deque[memoryview] = deque()
        """The rest of a frame that the kernel did not take."""
        self._reported = (-1, -1)
        self._fault: Exception | None = None
        self._stop = False
        self._complained = False
        """Whether the present break, or the lasting absence of the peer, was reported."""

    # -- from any thread -------------------------------------------------------------------------

    def start(self) -> None:
        """Connect."""
        self.transport.poller.call(lambda: self.on_time(time.monotonic()))

    def push(self, message: Message | Control, node: int, size: int) -> None:
        """Let a message go to the peer."""
        with self._lock:
            number = self.sender.push(message, node, size)
            self._unwritten.append((number, message))
            self._unwritten_bytes += size
        if not self.transport.waits(self):
            self.flush()

    def flush(self) -> None:
        """Let what was pushed go: at once if that is little, by the poller's thread otherwise."""
        little = self._unwritten_bytes < self.transport.tuning.passing_bytes
        if not (little and self._write_in_passing()):
            self.wake()

    def wake(self) -> None:
        """Let the poller's thread write what there is."""
        self.transport.poller.call(self.write)

    def acknowledged(self, number: int, consumed: dict[int, int]) -> bool:
        """The peer has these; say whether a node that had no credit has some now."""
        with self._lock:
            return self.sender.acknowledged(number, consumed)

    def sever(self) -> bool:
        """Break the connection, for drills; it is made again."""
        connection = self._connection
        if connection is None or not self._is_up:
            return False
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        return True

    def owes_answer(self) -> None:
        """Something has come from the peer; called in the poller's thread."""
        if self._acknowledge_at is None:
            self._acknowledge_at = time.monotonic() + ACKNOWLEDGE_S

    def stop(self) -> None:
        """Send nothing more."""
        self._stop = True
        self.transport.poller.call(self._hang_up)

    # -- writing ---------------------------------------------------------------------------------

    def _write_in_passing(self) -> bool:
        """Write from the sender's own thread; say whether everything is written."""
        if not self._writing.acquire(blocking=False):
            return False
        try:
            return self._is_up and not self._pending and self._write_frames()
        finally:
            self._writing.release()

    def write(self) -> None:
        """Write what there is, and what there is to acknowledge; in the poller's thread."""
        with self._writing:
            if not self._is_up:
                return
            done = self._fault is None and self._write_frames()
            fault = self._fault
        if fault is None:
            self._wait_for(READ if done else READ | WRITE)
        else:
            self._broke(fault)

    def _wait_for(self, events: int) -> None:
        connection = self._connection
        if connection is not None and events != self._events:
            self._events = events
            self.transport.poller.watch(connection, events, self._ready)

    def _write_frames(self) -> bool:
        """Write until everything is written (True) or the kernel takes no more."""
        try:
            while True:
                if self._pending and not self._write_pending():
                    return False
                frame = self._next_frame()
                if frame is None:
                    return True
                self._pending.extend(memoryview(part).cast("B") for part in frame if len(part))
        except OSError as error:
            self._fault = error
            return False

    def _write_pending(self) -> bool:
        connection, pending = self._connection, self._pending
        while pending and connection is not None:
            some = [pending[i] for i in range(min(len(pending), 512))]
            try:
                written = connection.sendmsg(some)
            except BlockingIOError:
                return False
            for part in some:
                if written < len(part):
                    break
                written -= len(part)
                pending.popleft()
            if written:
                pending[0] = pending[0][written:]
        return True

    def _next_frame(self) -> list[Any] | None:
        with self._lock:
            batch: list[tuple[int, Message | Control]] = []
            size = 0
            while self._unwritten and len(batch) < FRAME_MESSAGES and size < FRAME_BYTES:
                number, message = self._unwritten.popleft()
                size += message.size if isinstance(message, Message) else len(message)
                batch.append((number, message))
            if not self._unwritten:
                self._unwritten_bytes = 0
        incoming = self.transport.incoming(self.peer)
        if not batch and incoming.state() == self._reported:
            return None
        received, total, consumed = incoming.report(everything=self._reported[1] < 0)
        self._reported = (received, total)
        first = batch[0][0] if batch else 0
        return self._packed(Frame(first, received, consumed, [one for _, one in batch]))

    def _packed(self, frame: Frame) -> list[Any]:
        """A packed frame; one that cannot be packed is a bug, not a broken connection."""
        try:
            return encode_frame(frame)
        except Exception as error:
            failure = InvariantError(f"a message cannot be packed: {error}")
            self._stop = True
            self.transport.calls.failure(failure)
            self.transport.poller.call(self._hang_up)
            return []

    # -- in the poller's thread ------------------------------------------------------------------

    def due_at(self) -> float | None:
        """When something has to be done for this channel, if nothing happens before."""
        if self._stop:
            return None
        if self._is_up:
            return self._acknowledge_at
        return self._at

    def on_time(self, now: float) -> None:
        """It is time: connect, give up waiting for an answer, or acknowledge."""
        if self._stop:
            return
        if self._is_up:
            self._acknowledge_at = None
            self.write()
        elif self._connection is None:
            self._connect(now)
        else:
            self._broke(TimeoutError(f"no answer within {HANDSHAKE_S:g} s"))

    def _connect(self, now: float) -> None:
        parts = urlsplit(self.address)
        host, port = parts.hostname or "", parts.port or 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._at = now + HANDSHAKE_S
        self._calling = CallingSide(self.transport.secret, secrets.token_bytes(NONCE_BYTES))
        self._greeted, self._heard = False, bytearray()
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        keep_alive(connection)
        self._connection = connection
        self._wait_for(READ)
        try:
            connection.connect((host, port))
        except BlockingIOError:
            pass
        except OSError as error:
            self._broke(error)

    def _ready(self, events: int) -> None:
        """The connection can be read from, or written to again."""
        if events & READ:
            try:
                self._read()
            except (OSError, PeerError) as error:
                self._broke(error)
                return
        if events & WRITE:
            self.write()

    def _read(self) -> None:
        """Nothing but answers to the call comes on this connection, and its end."""
        if self._connection is None:
            return
        try:
            data = self._connection.recv(ANSWER_MAX)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("the peer hung up")
        self._heard += data
        if self._calling is not None:
            self._get_to_know(self._connection, self._calling)

    def _get_to_know(self, connection: socket.socket, calling: CallingSide) -> None:
        if len(self._heard) < CHALLENGE_BYTES:
            return
        transport = self.transport
        if not self._greeted:
            challenge = bytes(self._heard[:CHALLENGE_BYTES])
            writes = transport.refusals.writes
            greeting = calling.greeting(challenge, transport.host, transport.session, writes)
            if connection.send(greeting) != len(greeting):
                raise ConnectionResetError("the greeting did not fit")
            self._greeted = True
        packed = message_in(self._heard[CHALLENGE_BYTES:], ANSWER_MAX)
        if packed is None:
            return
        answer = calling.answered(packed)
        if answer.admission is Admission.GIVEN_UP:
            raise GivenUpError(answer.why, host=self.peer)
        if answer.admission is Admission.REFUSED:
            raise PeerError(answer.why, host=self.peer)
        self._begin(answer.received)

    def _begin(self, received: int) -> None:
        """The connection stands: send again what the peer lacks, then everything that comes."""
        with self._writing:
            with self._lock:
                self._unwritten = deque(self.sender.resume(received))
            self._calling, self._heard = None, bytearray()
            self._pending.clear()
            self._reported, self._fault = (-1, -1), None
            self._complained, self._retry_s = False, RETRY_S
            self._is_up = True
        self.write()

    def _broke(self, error: Exception) -> None:
        """The connection is of no more use: say so once, and try again soon."""
        self._hang_up()
        if self._stop or self.transport.closed:
            return
        self._at = time.monotonic() + self._retry_s
        self._retry_s = min(RETRY_S_MAX, 2 * self._retry_s)
        if isinstance(error, GivenUpError):
            self.transport.refusals.given_up(self.peer)
        if not self._complained:
            self._complained = True
            why = error.message if isinstance(error, PeerError) else str(error)
            self.transport.calls.broken(self.peer, why or "the peer hung up")

    def _hang_up(self) -> None:
        with self._writing:
            connection, self._connection = self._connection, None
            self._is_up, self._calling = False, None
            self._fault, self._acknowledge_at = None, None
            self._pending.clear()
            self._events = 0
        if connection is not None:
            self.transport.poller.forget(connection)
            connection.close()
