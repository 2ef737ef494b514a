"""Which reports of silence are believed."""

import pytest

from penstock.core.control.roster import RosterEntry
from penstock.core.control.suspicion import (
    BEAT_MS,
    FROZEN_MS,
    PATIENCE,
    SLOW_MS,
    TIMEOUT_MS_MAX,
    ProcessState,
    Suspicion,
    Verdict,
)

INTERVAL_MS, TIMEOUT_MS = 50, 150


def suspicion(host_timeout_ms: int = 60_000) -> Suspicion:
    return Suspicion(INTERVAL_MS, TIMEOUT_MS, host_timeout_ms)


def host(heard_ms: int = 10_000) -> RosterEntry:
    return RosterEntry(2, 2, heard_ms)


@pytest.mark.parametrize("process", list(ProcessState))
def test_a_host_that_the_driver_hears_is_alive_whatever_else_is_seen(process: ProcessState) -> None:
    judged = suspicion().judge(host(10_000), silent_ms=400, process=process, now_ms=10_100)
    assert judged is Verdict.HEARD


def test_the_drivers_ear_must_have_heard_it_well_within_the_silence() -> None:
    judge = suspicion().judge
    slack_ms = 2 * INTERVAL_MS
    assert judge(host(), 400, ProcessState.UNSEEN, 10_400 - slack_ms - 1) is Verdict.HEARD
    assert judge(host(), 400, ProcessState.UNSEEN, 10_400 - slack_ms) is Verdict.DEAD


def test_a_process_that_runs_is_alive_and_one_that_is_stopped_is_not() -> None:
    judge = suspicion().judge
    assert judge(host(), 9_000, ProcessState.RUNNING, 19_000) is Verdict.ALIVE
    assert judge(host(), 200, ProcessState.STOPPED, 10_200) is Verdict.DEAD


@pytest.mark.parametrize("age_ms", range(0, BEAT_MS + INTERVAL_MS, INTERVAL_MS))
def test_hosts_that_cannot_reach_each_other_are_alive_between_two_beats(age_ms: int) -> None:
    judge = suspicion().judge
    assert judge(host(), TIMEOUT_MS, ProcessState.UNSEEN, 10_000 + age_ms) is Verdict.HEARD
    late_ms = 10_000 + BEAT_MS + INTERVAL_MS
    assert judge(host(), TIMEOUT_MS, ProcessState.UNSEEN, late_ms) is Verdict.DEAD
    assert judge(host(), TIMEOUT_MS, ProcessState.STOPPED, 10_000 + TIMEOUT_MS) is Verdict.DEAD


def test_a_sleeping_process_gets_more_time_from_the_beginning_of_its_silence() -> None:
    judge, member = suspicion().judge, host(10_000)
    patience_ms = PATIENCE * TIMEOUT_MS
    assert judge(member, TIMEOUT_MS, ProcessState.SLEEPING, 10_300) is Verdict.ALIVE
    began_ms = 10_300 - TIMEOUT_MS
    # Later reports are about the time since the report before: the silence began earlier.
    late_ms = began_ms + patience_ms
    assert judge(member, TIMEOUT_MS, ProcessState.SLEEPING, late_ms - 1) is Verdict.ALIVE
    assert judge(member, TIMEOUT_MS, ProcessState.SLEEPING, late_ms) is Verdict.DEAD


def test_a_word_in_between_begins_a_new_silence() -> None:
    judge, member = suspicion().judge, host(10_000)
    assert judge(member, TIMEOUT_MS, ProcessState.SLEEPING, 10_300) is Verdict.ALIVE
    member.heard_ms = 10_600
    assert judge(member, TIMEOUT_MS, ProcessState.SLEEPING, 10_900) is Verdict.ALIVE
    assert member.silent_since_ms == 10_900 - TIMEOUT_MS


def test_only_hosts_beyond_the_host_timeout_are_unheard() -> None:
    judge = suspicion(host_timeout_ms=1_000)
    hosts = [RosterEntry(1, 1, 0), RosterEntry(2, 2, 1)]
    assert judge.unheard(hosts, 1_000) == []
    assert [one.number for one in judge.unheard(hosts, 1_001)] == [1]


def test_a_host_that_speaks_soon_after_its_loss_makes_the_timeout_longer_up_to_a_limit() -> None:
    judge = suspicion()
    assert not judge.spoke(lost_ms=0, now_ms=SLOW_MS)
    assert judge.timeout_ms == TIMEOUT_MS
    assert judge.spoke(lost_ms=0, now_ms=SLOW_MS - 1)
    assert judge.timeout_ms == 2 * TIMEOUT_MS
    for _ in range(20):
        judge.spoke(lost_ms=0, now_ms=1)
    assert judge.timeout_ms == TIMEOUT_MS_MAX
    assert not judge.spoke(lost_ms=0, now_ms=1)


def test_time_in_which_the_driver_did_not_run_is_no_silence_of_others() -> None:
    judge, member = suspicion(host_timeout_ms=5_000), host(10_000)
    judge.looked([member], 10_000)
    judge.looked([member], 10_000 + FROZEN_MS)
    assert member.heard_ms == 10_000  # a turn may take that long
    judge.looked([member], 30_000)
    assert judge.unheard([member], 30_000) == []


def test_a_driver_that_slept_believes_no_report_before_a_beat_could_arrive() -> None:
    judge, member = suspicion(), host(10_000)
    judge.looked([member], 10_100)
    judge.looked([member], 30_000)
    member.heard_ms = 12_000  # silent before the driver slept, and it speaks again unheard
    first_ms = 30_000 + BEAT_MS + INTERVAL_MS
    for process, then in (
        (ProcessState.UNSEEN, Verdict.ASLEEP),
        (ProcessState.STOPPED, Verdict.DEAD),
    ):
        assert judge.judge(member, 1_000, process, first_ms - 1) is then
        assert judge.judge(member, 1_000, process, first_ms) is Verdict.DEAD


def test_a_host_is_never_heard_in_the_future() -> None:
    judge, member = suspicion(), host(10_000)
    judge.looked([member], 10_000)
    member.heard_ms = 29_990  # a channel's thread woke up first
    judge.looked([member], 30_000)
    assert member.heard_ms == 30_000
