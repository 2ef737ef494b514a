"""How two processes of one flow come to know each other before anything else is said.

Theory of operation
-------------------
Both know the flow's secret, and neither ever sends it.  Who is called speaks first:

    called -> caller    Challenge: magic, version, a fresh nonce
    caller -> called    Greeting: who calls, a nonce of its own, and an HMAC over both nonces
    called -> caller    Answer: whether it is welcome, and an HMAC of its own

An HMAC covers both nonces, so what was heard once is of no use later; each direction has a key of
its own, so what one side sent cannot be sent back to it.  A caller that is not known to have the
secret can make the other side keep no more than :data:`GREETING_MAX` bytes.

Bytes in, bytes out; nonces and time are the caller's business.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from enum import Enum

import msgpack

from penstock.errors import PeerError
from penstock.wire.control import VERSION, Greeting, decode_greeting, encode_greeting

__all__ = [
    "ANSWER_MAX",
    "CHALLENGE_BYTES",
    "GREETING_MAX",
    "NONCE_BYTES",
    "Answer",
    "CalledSide",
    "CallingSide",
    "Admission",
    "message_in",
]

NONCE_BYTES = 32
GREETING_MAX = 4096
ANSWER_MAX = 4096
_CHALLENGE = struct.Struct(f"<4sI{NONCE_BYTES}s")
CHALLENGE_BYTES = _CHALLENGE.size
_MAGIC = b"PSH1"
_LENGTH = struct.Struct("<I")


class Admission(Enum):
    """What becomes of a call."""

    ADMITTED = 0
    REFUSED = 1
    """The caller did not show that it has the secret, or speaks another version."""
    GIVEN_UP = 2
    """Another process has the caller's place."""


@dataclass(frozen=True)
class Answer:
    """What the called side answers."""

    admission: Admission
    received: int
    """The number of the last message that it has of the caller."""
    why: str


def _proof(secret: str, side: bytes, *said: bytes) -> bytes:
    return hmac.digest(secret.encode(), b"\0".join((side, *said)), "sha256")


def _about(host: int, session: str, writes: int) -> bytes:
    packed: bytes = msgpack.packb((host, session, writes))
    return packed


def _with_length(packed: bytes) -> bytes:
    return _LENGTH.pack(len(packed)) + packed


def message_in(received: bytes | bytearray, size_max: int) -> bytes | None:
    """The message at the beginning of what was received, once all of it is there.

    >>> message_in(b"\\2\\0\\0\\0ab", 10), message_in(b"\\2\\0\\0\\0a", 10)
    (b'ab', None)
    """
    if len(received) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack_from(received)
    if size > size_max:
        raise PeerError(f"{size} bytes where at most {size_max} belong: this is no peer of ours")
    if len(received) < _LENGTH.size + size:
        return None
    return bytes(received[_LENGTH.size : _LENGTH.size + size])


class CallingSide:
    """The side that opens a connection.

    >>> called, calling = CalledSide("s", b"c" * 32), CallingSide("s", b"n" * 32)
    >>> said = calling.greeting(called.challenge(), host=1, session="x", writes=0)
    >>> called.greeted(message_in(said, GREETING_MAX)).host
    1
    >>> answer = called.answer(Answer(Admission.ADMITTED, 7, ""))
    >>> calling.answered(message_in(answer, ANSWER_MAX)).received
    7
    """

    def __init__(self, secret: str, nonce: bytes) -> None:
        self._secret = secret
        self._nonce = nonce
        self._other = b""

    def greeting(self, challenge: bytes, host: int, session: str, writes: int) -> bytes:
        """What to say to a challenge."""
        magic, version, self._other = _CHALLENGE.unpack(challenge)
        if magic != _MAGIC:
            raise PeerError("what answers at this address is no process of Penstock")
        if version != VERSION:
            raise PeerError(f"it speaks version {version} of the protocol, this is {VERSION}")
        about = _about(host, session, writes)
        proof = _proof(self._secret, b"caller", self._other, self._nonce, about)
        said = Greeting(host, session, writes, self._nonce, proof)
        return _with_length(encode_greeting(said))

    def answered(self, packed: bytes) -> Answer:
        """The other side's answer; a welcome counts only from one that has the secret."""
        try:
            admission, received, why, proof = msgpack.unpackb(packed, use_list=False)
            answer = Answer(Admission(admission), received, why)
            good = hmac.compare_digest(
                proof, _proof(self._secret, b"called", self._nonce, self._other)
            )
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise PeerError(f"the answer to a greeting cannot be read: {error}") from error
        if answer.admission is not Admission.REFUSED and not good:
            raise PeerError("what answers at this address does not know the flow's secret")
        return answer


class CalledSide:
    """The side that is called."""

    def __init__(self, secret: str, nonce: bytes) -> None:
        self._secret = secret
        self._nonce = nonce
        self._other = b""

    def challenge(self) -> bytes:
        """What to say first."""
        return _CHALLENGE.pack(_MAGIC, VERSION, self._nonce)

    def greeted(self, packed: bytes) -> Greeting:
        """Who calls; raises where that is not shown."""
        greeting = decode_greeting(packed)
        about = _about(greeting.host, greeting.session, greeting.writes)
        wanted = _proof(self._secret, b"caller", self._nonce, greeting.nonce, about)
        if not hmac.compare_digest(greeting.proof, wanted):
            raise PeerError("this call does not show that it has the flow's secret: it is refused")
        self._other = greeting.nonce
        return greeting

    def answer(self, answer: Answer) -> bytes:
        """What to say to a greeting."""
        proof = _proof(self._secret, b"called", self._other, self._nonce)
        if answer.admission is Admission.REFUSED:
            proof = b""
        said = (answer.admission.value, answer.received, answer.why, proof)
        return _with_length(msgpack.packb(said))
