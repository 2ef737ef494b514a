"""Channels between hosts: real ones, on loopback, in one process."""

import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.core.control.host_reports import HostReady, RefusalCounts
from penstock.core.control.messages import RingPing
from penstock.core.node.messages import DATA, Message
from penstock.core.time import Time
from penstock.engine.host import incoming as incoming_module
from penstock.engine.host import outgoing as outgoing_module
from penstock.engine.host.transport import Transport, TransportCalls
from penstock.errors import InvariantError, PeerError, PenstockError
from penstock.wire.control import Control, decode_to_host, encode
from penstock.wire.frames import read_batch
from penstock.wire.handshake import (
    CHALLENGE_BYTES,
    GREETING_MAX,
    NONCE_BYTES,
    Admission,
    Answer,
    CalledSide,
    CallingSide,
    message_in,
)

SECRET = "s3cret"
WAIT_S = 60.0
SCHEMA = pa.schema({"n": pa.int64()})


class End:
    """A transport, and everything that it was told."""

    def __init__(self, host: int, secret: str = SECRET, window_bytes: int = 1 << 20) -> None:
        self.messages: dict[int, list[Message]] = defaultdict(list)
        self.controls: dict[int, list[Control]] = defaultdict(list)
        self.broken: list[tuple[int, str]] = []
        self.failures: list[PenstockError] = []
        self.credits = 0
        self.consume = True
        self.before_message: Callable[[Message], None] = lambda message: None
        self.transport = Transport(
            host,
            "127.0.0.1",
            secret,
            TransportCalls(
                self._on_message,
                self._on_control,
                self._on_credit,
                lambda peer, why: self.broken.append((peer, why)),
                self.failures.append,
            ),
            window_bytes,
        )

    def _on_message(self, peer: int, message: Message) -> None:
        self.before_message(message)
        self.messages[peer].append(message)
        if self.consume:
            self.transport.consumed(peer, message.target, message.size)

    def _on_control(self, peer: int, packed: Control) -> None:
        decode_to_host(packed, peer)
        self.controls[peer].append(packed)

    def _on_credit(self) -> None:
        self.credits += 1

    def numbers(self, peer: int) -> list[int]:
        return [message.sequence for message in list(self.messages[peer])]

    def send(self, peer: int, number: int, node: int = 7, size: int = 100) -> None:
        batch = pa.record_batch({"n": [number]}, schema=SCHEMA)
        at = Time.root(0)
        self.transport.send(
            peer, Message(DATA, 0, 1, node, 0, number, at, payload=batch, size=size)
        )


class Callee:
    """A server that is not Penstock's; each call is handled in a thread of its own."""

    def __init__(self, handle: Callable[[socket.socket], None], port: int = 0) -> None:
        self.calls = 0
        self._handle = handle
        self._socket = socket.create_server(("127.0.0.1", port))
        self.address = f"tcp://127.0.0.1:{self._socket.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._run, daemon=True)]
        self._threads[0].start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.calls += 1
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(WAIT_S)
            self._handle(connection)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join(WAIT_S)


def hears(connection: socket.socket) -> bytes:
    """Everything until the other side hangs up."""
    heard = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(4096):
            heard += data
    return heard


def answers_well(connection: socket.socket) -> None:
    side = CalledSide(SECRET, b"n" * NONCE_BYTES)
    connection.sendall(side.challenge())
    heard = b""
    while (packed := message_in(heard, GREETING_MAX)) is None:
        heard += connection.recv(4096)
    side.greeted(packed)
    connection.sendall(side.answer(Answer(Admission.ADMITTED, 0, "")))


Ends = Callable[..., End]


@pytest.fixture
def ends() -> Iterator[Ends]:
    made: list[End] = []

    def make(host: int, **options: Any) -> End:
        made.append(End(host, **options))
        return made[-1]

    yield make
    for end in made:
        end.transport.close()
    assert [failure for end in made for failure in end.failures] == []


def join(*ends: End) -> None:
    for one in ends:
        for other in ends:
            if one is not other:
                one.transport.connect(other.transport.host, other.transport.address)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.002)


def test_messages_arrive_in_order_with_their_rows(ends: Ends) -> None:
    one, two = ends(1), ends(2)
    join(one, two)
    for number in range(1000):
        one.send(2, number)
    wait_for(lambda: len(two.messages[1]) == 1000, "all messages")
    assert two.numbers(1) == list(range(1000))
    last = two.messages[1][-1]
    assert read_batch(last.payload, SCHEMA).to_pylist() == [{"n": 999}]


def test_three_hosts_send_to_each_other(ends: Ends) -> None:
    all_ends = [ends(host) for host in (1, 2, 3)]
    join(*all_ends)
    pairs = [(one, two) for one in all_ends for two in all_ends if one is not two]
    for number in range(200):
        for one, two in pairs:
            one.send(two.transport.host, number)
    for one, two in pairs:
        wait_for(
            lambda one=one, two=two: len(two.messages[one.transport.host]) == 200,  # type: ignore[misc]
            f"{one.transport.host} to {two.transport.host}",
        )
        assert two.numbers(one.transport.host) == list(range(200))


def test_everything_sent_is_acknowledged(ends: Ends) -> None:
    one, two = ends(1), ends(2)
    join(one, two)
    for number in range(50):
        one.send(2, number)
    assert one.transport.drain(WAIT_S)
    wait_for(lambda: len(two.messages[1]) == 50, "all messages")


def test_a_break_is_noticed_and_mended_though_nothing_is_sent(ends: Ends) -> None:
    one, two = ends(1), ends(2)
    join(one, two)
    one.send(2, 0)
    wait_for(lambda: len(two.messages[1]) == 1, "the message")
    assert one.transport.sever(2)
    wait_for(lambda: bool(two.broken), "word at the receiver")
    wait_for(lambda: bool(one.broken), "word at the sender")
    one.send(2, 1)
    wait_for(lambda: two.numbers(1) == [0, 1], "the next message")


def test_a_peer_that_hangs_up_is_called_again(ends: Ends) -> None:
    one = ends(1)
    rude = Callee(lambda connection: None)
    try:
        one.transport.connect(2, rude.address)
        wait_for(lambda: rude.calls >= 3, "several attempts")
    finally:
        one.transport.close()
        rude.close()


def test_drain_gives_up_when_the_peer_does_not_answer(ends: Ends) -> None:
    one = ends(1)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        one.transport.connect(2, f"tcp://127.0.0.1:{mute.getsockname()[1]}")
        one.send(2, 0)
        assert not one.transport.drain(0.05)


def test_nothing_is_lost_when_connections_break_in_the_middle_of_traffic(ends: Ends) -> None:
    one, two = ends(1), ends(2)
    join(one, two)
    count, stop = 3000, threading.Event()

    def cut() -> None:
        while not stop.wait(0.01):
            one.transport.sever(2)
            two.transport.sever(1)

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        for number in range(count):
            one.send(2, number)
            two.send(1, number)
            if number % 20 == 0:
                time.sleep(0.001)
    finally:
        stop.set()
        cutter.join(WAIT_S)
    wait_for(lambda: len(two.messages[1]) >= count, "one to two")
    wait_for(lambda: len(one.messages[2]) >= count, "two to one")
    assert two.numbers(1) == list(range(count))
    assert one.numbers(2) == list(range(count))
    assert one.broken
    assert two.broken
    assert one.transport.drain(WAIT_S)
    assert two.transport.drain(WAIT_S)


def test_order_is_kept_when_a_connection_breaks_while_a_message_is_handed_over(
    ends: Ends,
) -> None:
    one, two = ends(1), ends(2)
    overtaken = threading.Event()

    def slowly(message: Message) -> None:
        if message.sequence == 0:
            one.transport.sever(2)
            overtaken.wait(0.5)
        else:
            overtaken.set()

    two.before_message = slowly
    join(one, two)
    one.send(2, 0)
    wait_for(lambda: two.transport.incoming(1).receiver.received == 1, "the first")
    for number in range(1, 5):
        one.send(2, number)
    wait_for(lambda: len(two.messages[1]) == 5, "all messages")
    assert two.numbers(1) == list(range(5))


def test_a_host_connects_however_late_its_peer_comes_up(ends: Ends) -> None:
    one = ends(1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    one.transport.connect(2, f"tcp://127.0.0.1:{port}")
    one.send(2, 0)
    wait_for(lambda: bool(one.broken), "a first attempt that fails")
    time.sleep(0.2)
    got: list[bytes] = []

    def take(connection: socket.socket) -> None:
        answers_well(connection)
        got.append(connection.recv(4096))

    late = Callee(take, port)
    try:
        wait_for(lambda: bool(got), "the connection")
    finally:
        one.transport.close()
        late.close()


def test_a_host_with_another_secret_is_refused(ends: Ends) -> None:
    one, two = ends(1, secret="wrong"), ends(2)
    one.transport.connect(2, two.transport.address)
    one.send(2, 0)
    wait_for(lambda: bool(one.broken), "the refusal")
    assert "secret" in one.broken[0][1]
    assert two.messages == {}
    assert not one.transport.drain(0.05)


def call(end: End) -> socket.socket:
    """A connection to a transport, made by hand."""
    port = int(end.transport.address.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)


STRANGERS = {
    "a browser": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "garbage": b"\x09\0\0\0\xc1\xff\x00garbage",
    "an endless greeting": b"\xff\xff\xff\x7f" + b"x" * 1000,
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_is_refused_and_does_no_harm(ends: Ends, name: str) -> None:
    one, two = ends(1), ends(2)
    with call(two) as stranger:
        stranger.sendall(STRANGERS[name])
        hears(stranger)
    join(one, two)
    one.send(2, 0)
    wait_for(lambda: two.numbers(1) == [0], "the message of a peer")
    assert list(two.messages) == [1]


def test_a_caller_that_does_not_show_the_secret_brings_no_message(ends: Ends) -> None:
    two = ends(2)
    with call(two) as stranger:
        side = CallingSide("wrong", b"n" * NONCE_BYTES)
        stranger.sendall(side.greeting(stranger.recv(CHALLENGE_BYTES), 1, "session", 0))
        packed = message_in(hears(stranger), GREETING_MAX)
    assert packed is not None
    answer = side.answered(packed)
    assert answer.admission is Admission.REFUSED
    assert "secret" in answer.why
    assert two.messages == {}


def test_callers_that_say_nothing_are_cut_off(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming_module, "HANDSHAKE_S", 0.05)
    with call(ends(2)) as silent:
        assert len(hears(silent)) == CHALLENGE_BYTES


def test_many_callers_that_say_nothing_keep_nobody_out(ends: Ends) -> None:
    one, two = ends(1), ends(2)
    silent = [call(two) for _ in range(incoming_module.STRANGERS_MAX + 5)]
    join(one, two)
    one.send(2, 0)
    wait_for(lambda: two.numbers(1) == [0], "the message of a peer")
    for connection in silent:
        connection.close()


def test_a_peer_that_sends_what_is_no_frame_is_cut_off(ends: Ends) -> None:
    two = ends(2)
    with call(two) as peer:
        side = CallingSide(SECRET, b"n" * NONCE_BYTES)
        peer.sendall(side.greeting(peer.recv(CHALLENGE_BYTES), 1, "session", 0))
        peer.recv(4096)
        peer.sendall(b"x" * 100)
        hears(peer)
    wait_for(lambda: bool(two.broken), "word of it")
    assert two.broken[0] == (1, "what a peer sent is no frame: the connection is of no more use")


def test_a_process_that_was_replaced_is_told_so(ends: Ends) -> None:
    old, new, two = ends(1), ends(1), ends(2)
    told: list[int] = []
    old.transport.refusals.on_given_up = told.append
    old.transport.connect(2, two.transport.address)
    old.send(2, 0)
    wait_for(lambda: two.numbers(1) == [0], "the old one's message")
    new.transport.connect(2, two.transport.address)
    new.send(2, 7)
    wait_for(lambda: two.numbers(1) == [0, 7], "the new one's message")
    wait_for(lambda: 2 in told, "word to the old one")
    assert not new.broken


def test_a_peer_that_is_forgotten_is_told_so_and_counted(ends: Ends) -> None:
    one, two = ends(1), ends(2)
    told: list[int] = []
    refused: list[RefusalCounts] = []
    one.transport.refusals.on_given_up = told.append
    one.transport.refusals.writes = 3
    two.transport.refusals.on_refused = lambda peer, counts: refused.append(counts)
    one.transport.connect(2, two.transport.address)
    one.send(2, 0)
    wait_for(lambda: two.numbers(1) == [0], "the message")
    two.transport.forget(1)
    one.send(2, 1)
    one.send(2, 2)
    wait_for(lambda: bool(told), "word that it was given up")
    assert two.numbers(1) == [0]
    assert sum(counts.messages for counts in refused) >= 1
    assert any(counts.connections and counts.writes == 3 for counts in refused)


def test_credit_stops_a_sender_until_the_receiver_has_consumed(ends: Ends) -> None:
    one, two = ends(1, window_bytes=1000), ends(2, window_bytes=1000)
    two.consume = False
    join(one, two)
    sent = 0
    while one.transport.open(2, 7):
        one.send(2, sent, size=336)
        sent += 1
    assert sent == 3  # 400 bytes each, with what a header counts for
    assert one.transport.open(2, 8)
    wait_for(lambda: len(two.messages[1]) == 3, "what there was credit for")
    assert not one.transport.open(2, 7)
    before = one.credits
    for _ in range(3):
        two.transport.consumed(1, 7, 336)
    wait_for(lambda: one.transport.open(2, 7), "credit")
    wait_for(lambda: one.credits > before, "word of it")


def test_a_control_message_passes_when_the_credit_is_used_up(ends: Ends) -> None:
    one, two = ends(1, window_bytes=100), ends(2, window_bytes=100)
    two.consume = False
    join(one, two)
    one.send(2, 0, size=5000)
    assert not one.transport.open(2, 7)
    ping = RingPing(7, {})
    one.transport.control(2, ping)
    wait_for(lambda: two.controls[1] == [encode(ping)], "the ping")
    assert not one.transport.open(2, 7)


def test_a_frame_holds_only_so_much(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_module, "FRAME_MESSAGES", 2)
    monkeypatch.setattr(outgoing_module, "FRAME_BYTES", 300)
    one, two = ends(1), ends(2)
    for number in range(20):
        one.transport.connect(2, two.transport.address)
        one.send(2, number, size=290)
    wait_for(lambda: len(two.messages[1]) == 20, "all messages")
    assert two.numbers(1) == list(range(20))


@pytest.mark.parametrize("mute", ["never answers", "never reads", "not there"])
def test_close_does_not_wait_for_a_peer(ends: Ends, mute: str) -> None:
    one = ends(1)
    released = threading.Event()

    def freeze(connection: socket.socket) -> None:
        answers_well(connection)
        released.wait(WAIT_S)

    frozen = Callee(freeze) if mute == "never reads" else None
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        if mute == "never answers":
            silent.listen()
        one.transport.connect(2, frozen.address if frozen else f"tcp://127.0.0.1:{port}")
        large = pa.record_batch({"n": list(range(500_000))}, schema=SCHEMA)
        for number in range(10):
            message = Message(DATA, 0, 1, 7, 0, number, Time.root(0), payload=large, size=1 << 22)
            one.transport.send(2, message)
        time.sleep(0.3)
        closing = threading.Thread(target=one.transport.close)
        closing.start()
        closing.join(WAIT_S / 2)
        assert not closing.is_alive()
    released.set()
    if frozen is not None:
        frozen.close()


def test_a_message_that_cannot_be_packed_is_a_failure_not_a_broken_connection() -> None:
    one, two = End(1), End(2)
    try:
        join(one, two)
        one.transport.send(2, Message(DATA, 0, 1, 2, 0, 1, Time.root(0), payload=print))
        wait_for(lambda: bool(one.failures), "the failure")
        assert "cannot be packed" in str(one.failures[0])
        with pytest.raises(InvariantError, match="no control message"):
            one.transport.control(2, cast(Any, {"kind": "ping"}))
    finally:
        one.transport.close()
        two.transport.close()


def test_a_control_message_for_somebody_else_is_a_failure_that_names_kind_and_peer() -> None:
    one, two = End(1), End(2)
    try:
        join(one, two)
        one.transport.control(2, HostReady())
        one.transport.control(2, RingPing(7, {}))
        wait_for(lambda: bool(two.controls[1]), "the ping")
        (failure,) = two.failures
        assert isinstance(failure, PeerError)
        assert "host 1 sent 'HostReady', a kind that a host does not take" in str(failure)
    finally:
        one.transport.close()
        two.transport.close()


def test_threads_and_files_end_with_their_transport(ends: Ends) -> None:
    def channels() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name.startswith("penstock-channels")]

    before, files = set(channels()), len(os.listdir("/proc/self/fd"))
    one, two = ends(1), ends(2)
    join(one, two)
    one.send(2, 0)
    wait_for(lambda: len(two.messages[1]) == 1, "the message")
    one.transport.close()
    two.transport.close()
    wait_for(lambda: not set(channels()) - before, "the end of the threads")
    assert len(os.listdir("/proc/self/fd")) <= files
