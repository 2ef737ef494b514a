"""The life of a flow, event by event."""

import pytest

from penstock.core.control.controller import (
    END_MS,
    LEAVE_MS,
    Assign,
    CancelJobs,
    Commit,
    ControllerMachine,
    Ended,
    EndHosts,
    FlowPhase,
    Go,
    LeaveHosts,
    StopSources,
)
from penstock.core.progress.marks import EPOCH_END
from penstock.errors import HostLostError, PenstockError

FAILURE = PenstockError("it broke", stage="s").to_dict()


def machine(completed: int = -1) -> ControllerMachine:
    return ControllerMachine(
        hosts=[0, 1, 2], nodes=[10, 11], sinks={"out": [10, 11]}, drain_ms=100, completed=completed
    )


def running() -> ControllerMachine:
    made = machine()
    for host in (0, 1, 2):
        made.registered(host, f"h{host}")
    for host in (0, 1, 2):
        made.ready(host)
    assert made.phase is FlowPhase.RUNNING
    return made


def test_hosts_are_assigned_when_the_last_one_has_registered() -> None:
    made = machine()
    assert made.registered(1, "a") == []
    assert made.registered(0, "b") == []
    assert made.missing == [2]
    assert made.registered(2, "c") == [Assign({1: "a", 0: "b", 2: "c"})]
    assert made.phase is FlowPhase.PREPARING
    assert made.missing == [0, 1, 2]


def test_a_host_that_registers_again_or_is_unknown_changes_nothing() -> None:
    made = machine()
    made.registered(1, "a")
    assert made.registered(1, "a") == []
    assert made.registered(9, "x") == []
    assert made.missing == [0, 2]
    assert running().registered(1, "other") == []


def test_sources_go_when_the_last_host_is_ready() -> None:
    made = machine()
    for host in (0, 1, 2):
        made.registered(host, "x")
    assert made.ready(2) == []
    assert made.ready(2) == []
    assert made.ready(0) == []
    assert made.ready(1) == [Go()]
    assert made.ready(1) == []


def test_an_epoch_is_committed_when_all_nodes_of_the_sink_have_it() -> None:
    made = running()
    assert made.sink_completed("out", 10, 4) == []
    assert made.sink_completed("out", 11, 2) == [Commit("out", 2)]
    assert made.sink_completed("out", 11, 2) == []
    assert made.sink_completed("out", 11, 1) == []
    assert made.sink_completed("out", 11, 9) == [Commit("out", 4)]
    assert made.committed == {"out": 4}


def test_a_node_has_completed_the_epoch_that_it_starts_after() -> None:
    made = running()
    assert made.sink_completed("out", 10, 4) == []
    assert made.node_started(11, 3) == [Commit("out", 3)]
    assert made.node_started(11, EPOCH_END) == [], "the end of a stream is not recorded"
    assert made.node_started(1, 9) == [], "it is no node of a sink"


def test_commits_go_on_after_those_of_an_earlier_run() -> None:
    made = machine(completed=7)
    made.sink_completed("out", 10, 7)
    assert made.sink_completed("out", 11, 7) == []
    made.sink_completed("out", 10, 8)
    assert made.sink_completed("out", 11, 8) == [Commit("out", 8)]


def test_the_flow_ends_when_all_nodes_are_finished_and_all_hosts_gone() -> None:
    made = running()
    assert made.node_finished(10) == []
    assert made.node_finished(10) == []
    assert made.node_finished(11) == [EndHosts()]
    assert made.phase is FlowPhase.ENDING
    assert made.host_ended(0, None) == []
    assert made.host_ended(1, None) == []
    assert made.host_ended(2, None) == [Ended(None)]
    assert made.phase is FlowPhase.ENDED
    assert made.host_ended(2, None) == []


def test_stop_drains_before_it_ends() -> None:
    made = running()
    assert made.stop_asked(1000) == [StopSources()]
    assert made.phase is FlowPhase.DRAINING
    assert made.stop_asked(1001) == []
    assert made.time_passed(1099) == []
    assert made.node_finished(10) == []
    assert made.node_finished(11) == [EndHosts()]
    assert made.time_passed(2000) == []


def test_draining_has_a_limit() -> None:
    made = running()
    made.stop_asked(1000)
    assert made.time_passed(1100) == [EndHosts()]
    assert made.failure is None


def test_starting_has_a_limit() -> None:
    made = machine()
    made.registered(0, "x")
    assert made.time_passed(1_000) == []
    assert made.time_passed(60_999) == []
    assert made.time_passed(61_000) == [EndHosts()]
    assert made.failure is not None
    assert "did not start within 60 s: host 1, 2 still launching" in made.failure["message"]


def test_hosts_that_do_not_end_are_cancelled_and_then_left_behind() -> None:
    made = running()
    made.failed(FAILURE)
    assert made.time_passed(5_000) == []
    assert made.time_passed(5_000 + END_MS - 1) == []
    assert made.time_passed(5_000 + END_MS) == [CancelJobs()]
    assert made.host_ended(0, None) == []
    last_ms = 5_000 + END_MS + LEAVE_MS
    assert made.time_passed(last_ms - 1) == []
    assert made.time_passed(last_ms) == [LeaveHosts((1, 2)), Ended(FAILURE)]
    assert made.time_passed(last_ms + 1) == []
    assert made.host_ended(1, None) == []


def test_a_flow_that_did_not_start_yet_stops_at_once() -> None:
    made = machine()
    assert made.stop_asked(0) == [EndHosts()]
    made.registered(0, "late")
    assert made.phase is FlowPhase.ENDING


def test_the_first_failure_ends_the_flow_and_is_kept() -> None:
    made = running()
    assert made.failed(FAILURE) == [EndHosts()]
    assert made.failed(PenstockError("another").to_dict()) == []
    made.host_ended(0, None)
    made.host_ended(1, HostLostError("killed by the failure").to_dict())
    assert made.host_ended(2, None) == [Ended(FAILURE)]


@pytest.mark.parametrize("phase", ["launching", "preparing", "running", "draining"])
def test_a_failure_ends_the_flow_in_every_phase(phase: str) -> None:
    made = machine()
    if phase != "launching":
        for host in (0, 1, 2):
            made.registered(host, "x")
    if phase in ("running", "draining"):
        for host in (0, 1, 2):
            made.ready(host)
    if phase == "draining":
        made.stop_asked(0)
    assert made.failed(FAILURE) == [EndHosts()]
    assert made.failure == FAILURE


def test_a_lost_host_fails_the_flow() -> None:
    made = running()
    lost = HostLostError("host 1 was lost").to_dict()
    assert made.host_ended(1, lost) == [EndHosts()]
    assert made.failure == lost


def test_a_host_that_ends_by_itself_fails_the_flow() -> None:
    made = running()
    assert made.host_ended(1, None) == [EndHosts()]
    assert made.failure is not None
    assert made.failure["type"] == "HostLostError"
    assert "host 1" in made.failure["message"]
