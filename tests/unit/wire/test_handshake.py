"""Handshakes: who has the secret is welcome, whoever else calls or answers is not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from penstock.errors import PeerError
from penstock.wire.control import VERSION, encode_greeting
from penstock.wire.handshake import (
    ANSWER_MAX,
    GREETING_MAX,
    NONCE_BYTES,
    Admission,
    Answer,
    CalledSide,
    CallingSide,
    message_in,
)

WELCOME = Answer(Admission.ADMITTED, 7, "")


def calling(secret: str = "s", nonce: bytes = b"n") -> CallingSide:
    return CallingSide(secret, nonce * NONCE_BYTES)


def called(secret: str = "s", nonce: bytes = b"c") -> CalledSide:
    return CalledSide(secret, nonce * NONCE_BYTES)


def packed(said: bytes, size_max: int = GREETING_MAX) -> bytes:
    found = message_in(said, size_max)
    assert found is not None
    return found


def greet(caller: CallingSide, side: CalledSide) -> bytes:
    return packed(caller.greeting(side.challenge(), host=3, session="x", writes=2))


def test_both_learn_what_the_other_said() -> None:
    caller, side = calling(), called()
    greeting = side.greeted(greet(caller, side))
    assert (greeting.host, greeting.session, greeting.writes) == (3, "x", 2)
    assert caller.answered(packed(side.answer(WELCOME))) == WELCOME


def test_the_secret_is_never_said() -> None:
    secret = "a secret that is long enough to be found"
    caller, side = calling(secret), called(secret)
    greeting = greet(caller, side)
    side.greeted(greeting)
    said = side.challenge() + greeting + side.answer(WELCOME)
    assert secret.encode() not in said


@pytest.mark.parametrize("secret", ["", "S", "s ", "sécret"])
def test_a_caller_with_another_secret_is_refused(secret: str) -> None:
    side = called()
    with pytest.raises(PeerError, match="secret"):
        side.greeted(greet(calling(secret), side))


def test_an_answer_of_one_that_has_another_secret_is_not_believed() -> None:
    caller, side, false = calling(), called(), called("other")
    greeting = greet(caller, side)
    side.greeted(greeting)
    with pytest.raises(PeerError, match="secret"):
        caller.answered(packed(false.answer(WELCOME), ANSWER_MAX))


def test_a_refusal_needs_no_proof() -> None:
    caller, side = calling(), called("other")
    with pytest.raises(PeerError):
        side.greeted(greet(caller, side))
    refusal = Answer(Admission.REFUSED, 0, "who are you?")
    assert caller.answered(packed(side.answer(refusal))) == refusal


def test_a_greeting_that_was_overheard_is_of_no_use() -> None:
    overheard = greet(calling(), called())
    with pytest.raises(PeerError, match="secret"):
        called(nonce=b"d").greeted(overheard)


def test_an_answer_that_was_overheard_is_of_no_use() -> None:
    side = called()
    side.greeted(greet(calling(), side))
    overheard = packed(side.answer(WELCOME))
    caller = calling(nonce=b"m")
    greet(caller, called())
    with pytest.raises(PeerError, match="secret"):
        caller.answered(overheard)


def test_a_changed_greeting_is_refused() -> None:
    side = called()
    greeting = side.greeted(greet(calling(), side))
    changes: list[dict[str, Any]] = [{"host": 4}, {"session": "y"}, {"writes": 0}]
    for changed in changes:
        other = replace(greeting, **changed)
        with pytest.raises(PeerError, match="secret"):
            called().greeted(encode_greeting(other))


GARBAGE: dict[str, Callable[[CallingSide], object]] = {
    "a page": lambda side: side.greeting(b"HTTP/1.1 200 OK\r\n\r\n".ljust(40, b"x"), 1, "s", 0),
    "nothing": lambda side: side.answered(b""),
    "a number": lambda side: side.answered(msgpack.packb(7)),
    "an unknown admission": lambda side: side.answered(msgpack.packb((9, 0, "", b""))),
    "a text for a proof": lambda side: side.answered(msgpack.packb((0, 0, "", "x"))),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_refused(name: str) -> None:
    with pytest.raises(PeerError):
        GARBAGE[name](calling())


def test_another_version_is_said_so() -> None:
    challenge = bytearray(called().challenge())
    challenge[4] = VERSION + 1
    with pytest.raises(PeerError, match=f"version {VERSION + 1}"):
        calling().greeting(bytes(challenge), 1, "s", 0)


def test_no_message_is_larger_than_it_may_be() -> None:
    with pytest.raises(PeerError, match="no peer of ours"):
        message_in(b"\xff\xff\xff\x7f", GREETING_MAX)
