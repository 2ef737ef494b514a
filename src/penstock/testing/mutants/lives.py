"""Mutants of a flow's life: its phases, giving up, rows that are passed over, following."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.core.control.deadly_rows import Narrowed, SkippedRow
from penstock.core.control.host_reports import LastWords
from penstock.core.control.membership_events import StopFollowing
from penstock.testing.mutants.mutant import Flows, Mutant, Replacement, mutant

__all__ = ["LIVES"]

_LIFE = "penstock.core.control.controller:ControllerMachine"
_LOSSES = "penstock.core.control.giving_up:Losses"
_ROWS = "penstock.core.control.deadly_rows:DeadlyRows"
_FOLLOWERS = "penstock.core.control.followers:Followers"

# -- phases ----------------------------------------------------------------------------------------


@mutant("sources read when every host is ready", f"{_LIFE}.ready", flows=Flows.LIVES, seed=16)
def goes_with_the_first_host(real: Replacement, self: Any, host: int) -> list[Any]:
    self._ready = set(self._hosts)
    effects: list[Any] = real(self, host)
    return effects


@mutant(
    "an epoch is recorded when all have it", f"{_LIFE}.sink_completed", flows=Flows.LIVES, seed=3
)
def records_what_one_has_completed(
    real: Replacement, self: Any, sink: str, node: int, epoch: int
) -> list[Any]:
    self._sinks[sink] = dict.fromkeys(self._sinks[sink], epoch)
    effects: list[Any] = real(self, sink, node, epoch)
    return effects


@mutant(
    "a node has completed the epoch that it starts after",
    f"{_LIFE}.node_started",
    flows=Flows.LIVES,
    seed=507294367,
)
def counts_no_starts(real: Replacement, *_: Any) -> list[Any]:
    return []


@mutant("a flow ends when all nodes have", f"{_LIFE}.node_finished", flows=Flows.LIVES, seed=2)
def ends_with_the_first_node(real: Replacement, self: Any, node: int) -> list[Any]:
    self._unfinished.clear()
    effects: list[Any] = real(self, node)
    return effects


@mutant(
    "starting, draining and ending have limits", f"{_LIFE}.time_passed", flows=Flows.LIVES, seed=11
)
def has_time_for_ever(real: Replacement, *_: Any) -> list[Any]:
    return []


# -- giving up -------------------------------------------------------------------------------------


@mutant("who is lost again and again is given up", f"{_LOSSES}.lost", flows=Flows.LIVES, seed=3)
def never_gives_up(real: Replacement, *_: Any) -> list[int]:
    return []


@mutant(
    "who is lost with those that are lost too often says what it does",
    f"{_LOSSES}.careful",
    flows=Flows.LIVES,
    seed=911043929,
)
def is_careful_alone(real: Replacement, self: Any, node: int, soon: bool) -> bool:
    self._most = dict(self._counts)
    careful: bool = real(self, node, soon)
    return careful


@mutant("a node may be lost some times", f"{_LOSSES}.lost", flows=Flows.LIVES, seed=3)
def gives_up_at_once(real: Replacement, self: Any, nodes: Iterable[int], now_ms: int) -> list[int]:
    return list(nodes)


@mutant("who gets any further is not given up", f"{_LOSSES}.completed", flows=Flows.LIVES, seed=56)
def counts_no_progress(real: Replacement, *_: Any) -> None:
    return


@mutant("who was lost often says what it does", f"{_LOSSES}.careful", flows=Flows.LIVES, seed=11)
def is_never_careful(real: Replacement, *_: Any, **__: Any) -> bool:
    return False


@mutant(
    "last words say what a process did not survive",
    "penstock.core.control.giving_up:GivingUp.working",
    flows=Flows.LIVES,
    seed=11,
)
def hears_no_last_words(real: Replacement, *_: Any) -> None:
    return


# -- rows that are passed over ---------------------------------------------------------------------


@mutant("a row was alone at two losses", f"{_ROWS}.lost", flows=Flows.LIVES, seed=187)
def believes_one_loss(real: Replacement, self: Any, words: LastWords, how: str) -> Any:
    found = real(self, words, how)
    if len(words.digests) == 1 and words.stage is not None:
        return Narrowed(SkippedRow(words.stage, words.digests[0], words.epoch, how))
    return found


@mutant("suspects are called in pieces", f"{_ROWS}.suspects", flows=Flows.LIVES, seed=15)
def suspects_nobody(real: Replacement, *_: Any) -> tuple[Any, ...]:
    return ()


@mutant("what is to be passed over is remembered", f"{_ROWS}.recorded", flows=Flows.LIVES, seed=3)
def forgets_what_it_found(real: Replacement, *_: Any) -> None:
    return


# -- following -------------------------------------------------------------------------------------


@mutant("hosts that get nodes follow none any more", f"{_FOLLOWERS}.end", flows=Flows.LIVES, seed=3)
def tells_those_that_stopped(real: Replacement, *_: Any) -> None:
    return


@mutant("who begins hears of what there is", f"{_FOLLOWERS}.begin", flows=Flows.LIVES, seed=3)
def tells_beginners_nothing(real: Replacement, *args: Any) -> list[Any]:
    real(*args)
    return []


@mutant("a current host has the states", f"{_FOLLOWERS}.is_current", flows=Flows.LIVES, seed=50)
def takes_all_for_current(real: Replacement, *_: Any) -> bool:
    return True


@mutant(
    "who takes nodes over keeps up with nothing else",
    "penstock.core.control.membership:MembershipMachine._lose",
    flows=Flows.LIVES,
    seed=3,
)
def takers_go_on_following(real: Replacement, *args: Any, **more: Any) -> list[Any]:
    return [effect for effect in real(*args, **more) if not isinstance(effect, StopFollowing)]


# -- flows without recovery ------------------------------------------------------------------------


@mutant(
    "what was not acknowledged is sent again",
    "penstock.core.channel:ChannelSender.resume",
    flows=Flows.PLAIN,
    seed=5,
)
def resumes_with_nothing(real: Replacement, *args: Any) -> list[Any]:
    real(*args)
    return []


@mutant(
    "who is sent more than it can take is waited for",
    "penstock.core.channel:ChannelSender.open",
    flows=Flows.PLAIN,
    seed=20,
)
def gives_unlimited_credit(real: Replacement, *_: Any) -> bool:
    return True


@mutant(
    "the ends of epochs are passed on",
    "penstock.core.node.node:NodeMachine.completed",
    flows=Flows.PLAIN,
)
def passes_no_marks_on(real: Replacement, self: Any, *args: Any) -> list[Any]:
    outlets, self.outlets = self.outlets, {}
    try:
        effects: list[Any] = real(self, *args)
    finally:
        self.outlets = outlets
    return effects


@mutant(
    "messages of one sender are numbered one after the other",
    "penstock.core.node.node:NodeMachine._message",
    flows=Flows.PLAIN,
)
def repeats_numbers(real: Replacement, self: Any, *args: Any, **more: Any) -> Any:
    message = real(self, *args, **more)
    self._sent[message.link, message.target] = min(message.sequence, 2)
    return message


LIVES: tuple[Mutant, ...] = tuple(one for one in globals().values() if isinstance(one, Mutant))
