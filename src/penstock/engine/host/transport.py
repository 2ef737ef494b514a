"""Channels between hosts over Arrow Flight.

One channel joins each ordered pair of hosts: a ``do_exchange`` call, opened by the sender and
written by a thread of its own, so that neither a slow network nor a frozen peer ever stops a node.
When the connection breaks, the thread opens a new one and goes on where the receiver stopped; the
numbering and the credits are decided by :mod:`penstock.core.channel`, this module only moves bytes.

A break shows only when something is written.  A silent channel therefore says now and then what it
has received and consumed.  Otherwise neither end would notice that something was lost with the
connection, and a sender could wait for ever for credit that was granted into the void.

Every call carries the flow's secret; the server refuses a call without it.
"""

from __future__ import annotations

import hmac
import logging
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.flight as flight

from penstock.core.channel import ChannelReceiver, ChannelSender
from penstock.core.control.messages import ControlMessage
from penstock.core.node.messages import Message
from penstock.engine.host.stale_peers import Refusals
from penstock.engine.host.tuning import Tuning
from penstock.errors import InvariantError, PeerError, PenstockError
from penstock.wire.control import Control, Greeting, decode_greeting, encode, encode_greeting
from penstock.wire.frames import FRAME_SCHEMA, Frame, decode_frame, encode_frame

__all__ = ["WINDOW_MESSAGES", "Transport", "TransportCalls"]

log = logging.getLogger(__name__)

FRAME_BYTES = 1 << 20
"""A frame is closed once it holds this much."""
FRAME_MESSAGES = 256
WINDOW_BYTES = 4 << 20
"""Credit per sending host and receiving node."""
WINDOW_MESSAGES = 128
"""Messages that use up the credit, however small they are: then batches grow at the sources."""
IDLE_S = 0.05
"""How long acknowledgements may wait for something to travel with."""
PROBE_S = 0.25
"""How long a channel may be silent before it is tried."""
RETRY_S = 0.02
CLOSE_S = 0.3
"""How long an orderly end of all channels may take before they are cut."""

_NO_ROWS = pa.RecordBatch.from_arrays([pa.array([], pa.large_binary())], schema=FRAME_SCHEMA)
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]


@dataclass(frozen=True)
class TransportCalls:
    """What a transport calls, from threads of its own."""

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
    """All channels of one host: a server for what comes in, a thread per peer for what goes out."""

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
        self._outgoing: dict[int, _Outgoing] = {}
        self._incoming: dict[int, _Incoming] = {}
        self._forgotten: set[int] = set()
        self._corker: int | None = None
        self._dirty: dict[_Outgoing, None] = {}
        self._lock = threading.Lock()
        self._server = _Server(self, f"grpc://{_bracketed(bind)}:0")
        self.address = f"grpc://{_bracketed(bind)}:{self._server.port}"
        self.closed = False
        self.refusals = Refusals()
        self.session = uuid.uuid4().hex
        """Tells this process from another one with the same host number."""

    # -- peers -----------------------------------------------------------------------------------

    def connect(self, peer: int, address: str) -> None:
        """Open the channel to a peer; connecting and reconnecting happen in the background."""
        with self._lock:
            before = self._outgoing.get(peer)
            if peer in self._forgotten or (before is not None and before.address == address):
                return
            channel = _Outgoing(self, peer, address)
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
            channel.sever()
        if end is not None:
            end.close()

    def forgot(self, peer: int) -> bool:
        """Whether a peer is gone for good."""
        return peer in self._forgotten

    def incoming(self, peer: int) -> _Incoming:
        """The receiving end of a peer's channel, which outlives its connections."""
        with self._lock:
            end = self._incoming.get(peer)
            if end is None:
                end = self._incoming[peer] = _Incoming(self, peer)
            return end

    def outgoing(self, peer: int) -> _Outgoing | None:
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

    def waits(self, channel: _Outgoing) -> bool:
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
        channels = list(self._outgoing.values())
        for channel in channels:
            channel.stop()
        deadline = time.monotonic() + CLOSE_S
        for channel in channels:
            channel.close(max(0.0, deadline - time.monotonic()))
        for end in list(self._incoming.values()):
            end.close()
        threading.Thread(target=self._server.shutdown, daemon=True).start()


class _Outgoing:
    """The sending end of a channel and the thread that writes it."""

    def __init__(self, transport: Transport, peer: int, address: str) -> None:
        self.transport = transport
        self.peer = peer
        self.address = address
        self.sender: ChannelSender[Message | Control] = ChannelSender(transport.window_bytes)
        self._unwritten: deque[tuple[int, Message | Control]] = deque()
        self._lock = threading.Lock()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._awake = False
        self._nudged = False
        self._stop = False
        self._complained = False
        """Whether the present break, or the lasting absence of the peer, was reported."""
        self._probe_at = 0.0
        self._reader: Any = None
        self._writer: Any = None
        self._writing = threading.Lock()
        """Held while a frame is written: by the channel's thread, or by a sender in passing."""
        self._reported = (-1, -1)
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"penstock-send-{peer}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def push(self, message: Message | Control, node: int, size: int) -> None:
        with self._lock:
            number = self.sender.push(message, node, size)
            self._unwritten.append((number, message))
            alone = len(self._unwritten) == 1
        if not self.transport.waits(self):
            self.flush(alone)

    def flush(self, alone: bool = True) -> None:
        """Let what was pushed go: at once if that is little, by the channel's thread otherwise."""
        paid = self.sender.kept * self.transport.message_bytes
        little = self.sender.kept_bytes - paid < self.transport.tuning.passing_bytes
        if not (alone and little and self._write_in_passing()):
            self.wake()

    def _write_in_passing(self) -> bool:
        """Write at once from the sender's own thread, where that cannot block.

        While so little is under way the peer's receive window has room, even if it is frozen.  It
        saves a message the wait for another thread.
        """
        if not self._writing.acquire(blocking=False):
            return False
        try:
            if self._writer is None or self._fault is not None:
                return False
            self._write_frame()
        except Exception as error:
            self._fault = error
            return False
        finally:
            self._writing.release()
        return not self._unwritten

    def acknowledged(self, number: int, consumed: dict[int, int]) -> None:
        with self._lock:
            self.sender.acknowledged(number, consumed)

    def wake(self) -> None:
        """Let the thread look; cheap when it is awake already."""
        self._nudged = True
        if not self._awake:
            self._awake = True
            self._wake.put(None)

    def sever(self) -> bool:
        reader = self._reader
        if reader is not None:
            reader.cancel()
        return reader is not None

    def stop(self) -> None:
        self._stop = True
        self.wake()

    def close(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.sever()

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop:
            try:
                self._connection()
            except (pa.ArrowException, OSError, PeerError, StopIteration) as error:
                if self._stop or self.transport.closed:
                    return
                self.transport.refusals.broken(self.peer, error)
                if not self._complained:
                    self._complained = True
                    self.transport.calls.broken(self.peer, str(error) or "the peer hung up")
                time.sleep(RETRY_S)
            except InvariantError as error:
                self.transport.calls.failure(error)
                return
            except Exception as error:
                log.exception("the channel to host %d failed", self.peer)
                self.transport.calls.failure(
                    InvariantError(f"the channel to host {self.peer} failed: {error}")
                )
                return

    def _connection(self) -> None:
        """One connection: greet, send again what the peer lacks, then everything that comes."""
        transport = self.transport
        client = flight.FlightClient(self.address, generic_options=_OPTIONS)
        writer = None
        try:
            greeting = Greeting(
                transport.secret, transport.host, transport.session, transport.refusals.writes
            )
            command = flight.FlightDescriptor.for_command(encode_greeting(greeting))
            writer, reader = client.do_exchange(command)
            self._reader = reader
            writer.begin(FRAME_SCHEMA)
            received = msgpack.unpackb(reader.read_chunk().app_metadata)
            with self._lock:
                self._unwritten = deque(self.sender.resume(received))
            self._complained = False
            self._reported, self._fault = (-1, -1), None
            self._writer = writer
            while not self._stop:
                self._write_or_wait()
            with self._writing:
                self._writer = None
                writer.done_writing()
        finally:
            with self._writing:
                self._writer = None
            if writer is not None:
                with suppress(pa.ArrowException, OSError):
                    writer.close()
            self._reader = None
            client.close()

    def _write_or_wait(self) -> None:
        """Write a frame, or wait until there is something to write."""
        if self._fault is not None:
            raise self._fault
        self._nudged = False
        with self._writing:
            if self._write_frame():
                return
        self._awake = False
        if not self._nudged and not self._stop:
            with suppress(queue.Empty):
                self._wake.get(timeout=IDLE_S)
        self._awake = True

    def _write_frame(self) -> bool:
        """Write what waits, and what there is to acknowledge; say whether there was anything."""
        with self._lock:
            batch: list[tuple[int, Message | Control]] = []
            size = 0
            while self._unwritten and len(batch) < FRAME_MESSAGES and size < FRAME_BYTES:
                number, message = self._unwritten.popleft()
                size += message.size if isinstance(message, Message) else 0
                batch.append((number, message))
        state = self.transport.incoming(self.peer).report()
        now = time.monotonic()
        if not batch and state[:2] == self._reported and now < self._probe_at:
            return False
        self._probe_at = now + PROBE_S
        first = batch[0][0] if batch else 0
        metadata, rows = _packed(Frame(first, state[0], state[2], [m for _, m in batch]))
        if rows is None and self.transport.tuning.plain_frames:
            self._writer.write_metadata(metadata)
        else:
            self._writer.write_with_metadata(_NO_ROWS if rows is None else rows, metadata)
        self._reported = state[:2]
        return True


def _packed(frame: Frame) -> tuple[bytes, pa.RecordBatch | None]:
    """A packed frame; one that cannot be packed is a bug, not a broken connection."""
    try:
        return encode_frame(frame)
    except Exception as error:
        raise InvariantError(f"a message cannot be packed: {error}") from error


class _Incoming:
    """The receiving end of a peer's channel."""

    def __init__(self, transport: Transport, peer: int) -> None:
        self.transport = transport
        self.peer = peer
        self.receiver = ChannelReceiver()
        self._unreported = 0
        self._total = 0
        self._lock = threading.Lock()
        self._handing_over = threading.Lock()
        self._connection = 0
        self._sessions: list[str] = []
        """The processes that this host number has had, the present one last."""

    def consume(self, node: int, size: int) -> None:
        with self._lock:
            self.receiver.consume(node, size)
            self._total += size
            self._unreported += size
            tell = self._unreported >= self.transport.window_bytes // 4
        if tell:
            channel = self.transport.outgoing(self.peer)
            if channel is not None:
                channel.wake()

    def report(self) -> tuple[int, int, dict[int, int]]:
        """What to acknowledge: received number, bytes in all, bytes per node."""
        with self._lock:
            self._unreported = 0
            return self.receiver.received, self._total, dict(self.receiver.consumed)

    def serve(self, session: str, reader: Any, writer: Any) -> None:
        """Take in one connection until it ends or a newer one takes its place.

        What was accepted is handed over before another thread accepts: a new connection's first
        messages must not overtake the last ones of the old.
        """
        with self._handing_over, self._lock:
            self._meet(session)
            self._connection += 1
            mine = self._connection
            received = self.receiver.received
        writer.write_metadata(msgpack.packb(received))
        while not self.transport.closed:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                break
            frame = decode_frame(chunk.app_metadata, chunk.data)
            with self._handing_over:
                with self._lock:
                    if mine != self._connection:
                        if self.transport.forgot(self.peer):
                            self.transport.refusals.frame(self.peer, len(frame.messages))
                        return
                    fresh = self._take(frame)
                for message in fresh:
                    if isinstance(message, Message):
                        self.transport.calls.message(self.peer, message)
                    else:
                        self._take_control(message)
            self._acknowledge(frame.acknowledged, frame.consumed)

    def _take_control(self, packed: Control) -> None:
        """Hand a control message over; one that cannot be understood ends the flow."""
        try:
            self.transport.calls.control(self.peer, packed)
        except PeerError as error:
            self.transport.calls.failure(error)

    def _meet(self, session: str) -> None:
        """A new process begins to count anew; one that was replaced is not heard any more."""
        if self._sessions and session == self._sessions[-1]:
            return
        if session in self._sessions:
            raise PeerError(f"host {self.peer} was replaced by another process", host=self.peer)
        if self._sessions:
            self.receiver, self._total, self._unreported = ChannelReceiver(), 0, 0
        self._sessions.append(session)

    def _take(self, frame: Frame) -> list[Message | Control]:
        """The messages of a frame that are new."""
        numbered = enumerate(frame.messages, frame.first)
        return [message for number, message in numbered if self.receiver.accept(number)]

    def _acknowledge(self, number: int, consumed: dict[int, int]) -> None:
        channel = self.transport.outgoing(self.peer)
        if channel is not None:
            channel.acknowledged(number, consumed)
            if consumed:
                self.transport.calls.credit()

    def close(self) -> None:
        with self._lock:
            self._connection += 1


class _Server(flight.FlightServerBase):
    """Accepts the channels of peers that know the secret."""

    def __init__(self, transport: Transport, location: str) -> None:
        self._transport = transport
        super().__init__(location)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """A peer's channel, for as long as its connection lasts."""
        try:
            greeting = decode_greeting(descriptor.command)
        except PeerError as error:
            raise flight.FlightUnauthenticatedError(error.message) from error
        offered = greeting.secret.encode(errors="replace")
        if not hmac.compare_digest(offered, self._transport.secret.encode()):
            raise flight.FlightUnauthenticatedError(
                "this call does not carry the flow's secret: it is refused"
            )
        peer = greeting.host
        if self._transport.forgot(peer):
            self._transport.refusals.connection(peer, greeting.writes)
            raise flight.FlightUnauthorizedError(f"host {peer} was replaced by another process")
        try:
            self._transport.incoming(peer).serve(greeting.session, reader, writer)
        except PeerError as error:
            raise flight.FlightUnauthorizedError(error.message) from error
        except (pa.ArrowException, OSError) as error:
            if not self._transport.closed:
                self._transport.calls.broken(peer, str(error))
        except Exception as error:
            log.exception("a frame of host %d could not be taken in", peer)
            self._transport.calls.failure(
                InvariantError(f"a frame of host {peer} could not be taken in: {error}")
            )
        else:
            if not self._transport.closed:
                self._transport.calls.broken(peer, "the peer closed the connection")


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
