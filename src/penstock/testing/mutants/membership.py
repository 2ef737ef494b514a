"""Mutants of the membership: which hosts belong to a flow, and where its nodes go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from penstock.core.control.membership_events import FenceHost, RecoverNodes, Situation
from penstock.core.control.suspicion import ProcessState, Verdict
from penstock.core.delivery.ring import RingEffect, TellSilence
from penstock.testing.mutants.mutant import Flows, Mutant, Replacement, mutant

__all__ = ["MEMBERSHIP"]

_MACHINE = "penstock.core.control.membership:MembershipMachine"
_HOME = "penstock.core.control.homecoming:Homecoming"
_ROSTER = "penstock.core.control.roster:Roster"
_SUSPICION = "penstock.core.control.suspicion:Suspicion"


@mutant(
    "the driver refuses a host that it has given up (14)",
    f"{_MACHINE}._lose",
    flows=Flows.MIXED_ROUGH,
    seed=163,
)
def hears_the_lost(real: Replacement, *args: Any, **more: Any) -> list[Any]:
    return [effect for effect in real(*args, **more) if not isinstance(effect, FenceHost)]


@mutant("the nodes of a lost host are recovered", f"{_MACHINE}._lose", flows=Flows.ROUGH)
def recovers_no_nodes(real: Replacement, *args: Any, **more: Any) -> list[Any]:
    return [effect for effect in real(*args, **more) if not isinstance(effect, RecoverNodes)]


@mutant(
    "the heir of a lost host takes its nodes",
    "penstock.core.control.placement:Placement.lost",
    flows=Flows.ROUGH,
)
def places_nodes_on_the_lost(
    real: Replacement, self: Any, host: int, fresh: int, nodes: Iterable[int], now_ms: int
) -> Any:
    placed = real(self, host, fresh, nodes, now_ms)
    return replace(placed, takers=dict.fromkeys(placed.takers, host))


@mutant(
    "a host is launched in the place of a lost one",
    "penstock.core.control.launches:Launches.due",
    flows=Flows.ROUGH,
    seed=1,
)
def launches_no_host(real: Replacement, *_: Any) -> list[int]:
    return []


@mutant(
    "a host that nodes wait for is launched while others recover",
    "penstock.core.control.launches:Launches.due",
    flows=Flows.MIXED_ROUGH,
)
def launches_only_when_quiet(real: Replacement, self: Any, quiet: bool, now_ms: int) -> list[int]:
    found: list[int] = real(self, quiet, now_ms) if quiet else []
    return found


# -- whom to believe dead --------------------------------------------------------------------------


@mutant("a host that the driver hears is alive", f"{_SUSPICION}.judge", flows=Flows.ROUGH, seed=83)
def believes_the_ring_alone(real: Replacement, *_: Any) -> Verdict:
    return Verdict.DEAD


@mutant(
    "a host is not unheard before it has missed a beat",
    f"{_SUSPICION}.judge",
    flows=Flows.ROUGH,
    seed=3,
)
def waits_for_no_beat(real: Replacement, self: Any, *args: Any) -> Verdict:
    beat_ms, self.beat_ms = self.beat_ms, -self.interval_ms
    try:
        verdict: Verdict = real(self, *args)
    finally:
        self.beat_ms = beat_ms
    return verdict


@mutant("the ring is believed", f"{_SUSPICION}.judge", flows=Flows.ROUGH_LONG, seed=1)
def never_believes_the_ring(real: Replacement, *_: Any) -> Verdict:
    return Verdict.HEARD


def _seen_as(
    wrong: Mapping[ProcessState, ProcessState], real: Replacement, args: tuple[Any, ...]
) -> Verdict:
    """The verdict where the driver mistakes one state of a process for another."""
    suspicion, host, silent_ms, process, now_ms = args
    verdict: Verdict = real(suspicion, host, silent_ms, wrong.get(process, process), now_ms)
    return verdict


@mutant("a process that runs is alive", f"{_SUSPICION}.judge", flows=Flows.ROUGH_LONG, seed=4)
def gives_up_running_processes(real: Replacement, *args: Any) -> Verdict:
    return _seen_as({ProcessState.RUNNING: ProcessState.UNSEEN}, real, args)


@mutant(
    "a process that sleeps is given time", f"{_SUSPICION}.judge", flows=Flows.ROUGH_LONG, seed=6
)
def has_no_patience(real: Replacement, *args: Any) -> Verdict:
    return _seen_as({ProcessState.SLEEPING: ProcessState.STOPPED}, real, args)


@mutant(
    "hosts are forgiven the time in which the driver slept",
    f"{_SUSPICION}.looked",
    flows=Flows.ROUGH_LONG,
    seed=1,
)
def blames_hosts_for_its_own_sleep(real: Replacement, *_: Any) -> None:
    return


@mutant(
    "a driver that slept believes no report before it has listened",
    f"{_SUSPICION}.looked",
    flows=Flows.LAYERED_LONG,
    seed=967844698490,
)
def believes_old_reports(real: Replacement, self: Any, *args: Any) -> None:
    real(self, *args)
    self._listens_ms = 0


@mutant(
    "hosts report who is silent",
    "penstock.core.delivery.ring:RingMember.time_passed",
    flows=Flows.ROUGH_LONG,
    seed=1,
)
def reports_nobody(real: Replacement, *args: Any, **more: Any) -> list[RingEffect]:
    return [effect for effect in real(*args, **more) if not isinstance(effect, TellSilence)]


# -- where nodes go --------------------------------------------------------------------------------


@mutant(
    "hosts that are not up take nothing over", f"{_ROSTER}.survivors", flows=Flows.ROUGH, seed=9
)
def places_nodes_on_any_worker(real: Replacement, self: Any, after: int) -> list[int]:
    place = self.workers.index(after)
    return [*self.workers[place + 1 :], *self.workers[:place]]


@mutant(
    "the heir of a lost host is the home of its nodes",
    f"{_ROSTER}.replace",
    flows=Flows.ROUGH_LONG,
    seed=257,
)
def nodes_belong_to_the_lost(
    real: Replacement, self: Any, number: int, fresh: int, now_ms: int
) -> int | None:
    homes = self.homes
    spare: int | None = real(self, number, fresh, now_ms)
    self.homes = homes
    return spare


@mutant("nodes go home", f"{_HOME}.look", flows=Flows.ROUGH_LONG, seed=257)
def stays_away(real: Replacement, *_: Any) -> list[Any]:
    return []


@mutant("a home has been up for a while", f"{_HOME}._wait_ms", flows=Flows.ROUGH, seed=480)
def goes_home_at_once(real: Replacement, *_: Any) -> int:
    return 0


@mutant(
    "nodes stay where they are while others recover", f"{_HOME}.look", flows=Flows.ROUGH, seed=27
)
def goes_home_during_recoveries(
    real: Replacement, self: Any, situation: Situation, now_ms: int, cause: int
) -> list[Any]:
    effects: list[Any] = real(self, replace(situation, settled=True), now_ms, cause)
    return effects


@mutant("nodes stay where they are while the flow ends", f"{_HOME}.look", flows=Flows.ROUGH)
def goes_home_at_the_end(
    real: Replacement, self: Any, situation: Situation, now_ms: int, cause: int
) -> list[Any]:
    effects: list[Any] = real(self, replace(situation, ending=False), now_ms, cause)
    return effects


@mutant(
    "what could lose or double rows by it stays where it is",
    f"{_HOME}._due",
    flows=Flows.PROMISED_ROUGH,
    seed=143,
)
def moves_what_may_not(real: Replacement, self: Any, situation: Situation, now_ms: int) -> Any:
    self._movable = frozenset(self._roster.homes)
    return real(self, situation, now_ms)


MEMBERSHIP: tuple[Mutant, ...] = tuple(one for one in globals().values() if isinstance(one, Mutant))
