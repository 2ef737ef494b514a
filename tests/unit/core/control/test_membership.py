"""Hosts come up, are lost and are replaced: the effects, event by event."""

from collections.abc import Iterable
from typing import Any

import pytest

from penstock.core.control.controller import Assign, ControllerMachine, EndHosts, FlowPhase, Go
from penstock.core.control.giving_up import LOSSES_MAX
from penstock.core.control.homecoming import LOOK_MS, SETTLE_MS
from penstock.core.control.host_reports import LastWords, RefusalCounts
from penstock.core.control.launches import LAUNCH_MS, LAUNCH_MS_MAX
from penstock.core.control.membership import Effect, MembershipMachine, MembershipPolicy
from penstock.core.control.membership_events import (
    AssignHost,
    ConnectHost,
    ConnectionBroken,
    CrashHost,
    DismissHost,
    FenceHost,
    FollowNodes,
    HostAssigned,
    HostCameUp,
    HostRaised,
    HostRefused,
    HostSilent,
    HostWorking,
    IntroduceHost,
    JobEnded,
    JoinReplicas,
    LaunchHost,
    LoadsMeasured,
    MembershipEvent,
    MoveNodes,
    NodesOpened,
    NodesProgressed,
    NoteRefused,
    PlaceNodes,
    ProbeHost,
    ProcessEnded,
    RecoverNodes,
    ReplaceReplicas,
    SaveNodes,
    ServeHost,
    Situation,
    StartAllNodes,
    StartHost,
    StopFollowing,
    TellRing,
    TimePassed,
    Warn,
)
from penstock.core.control.roster import DRIVER, SLOTS, Roster
from penstock.core.control.suspicion import SLOW_MS, ProcessState
from penstock.core.delivery.ring import Load
from penstock.core.delivery.takeover import Takeover
from penstock.errors import FunctionError, HostLostError

CALM = Situation(settled=True, ending=False, saved=True)
RAISED = FunctionError("stage 's': bad row", stage="s").to_dict()


class Flow:
    """A flow of hosts 1 to n with node 10 + host on each; performs what changes the placement."""

    def __init__(self, hosts: int = 3, standby: int = 0, **policy: Any) -> None:
        roster = Roster(hosts, standby)
        self.placement = {10 + host: host for host in roster.workers}
        roster.homes = dict(self.placement)
        nodes = list(self.placement)
        self.life = ControllerMachine(
            [DRIVER, *roster.hosts], nodes, {"out": nodes}, drain_ms=1_000
        )
        names = {node: f"n[{node}]" for node in nodes}
        self.machine = MembershipMachine(
            self.life,
            roster,
            self.placement,
            MembershipPolicy(movable=frozenset(nodes), names=names, **policy),
        )
        self.now_ms = 1_000

    @property
    def roster(self) -> Roster:
        return self.machine.roster

    def take(self, event: MembershipEvent, after_ms: int = 1) -> list[Effect]:
        self.now_ms += after_ms
        effects = self.machine.take(event, self.now_ms)
        for effect in effects:
            match effect:
                case PlaceNodes(_, lost, heir):
                    self.placement.update(dict.fromkeys(self.machine.nodes_of(lost), heir))
                case RecoverNodes(takers=places) | MoveNodes(places=places):
                    self.placement.update(places)
        return effects

    def time(self, after_ms: int, quiet: bool = True, home: Situation | None = None) -> Any:
        return self.take(TimePassed(quiet, home), after_ms)

    def register(self, host: int) -> list[Effect]:
        return self.take(HostCameUp(host, f"at {host}", 100 + host))

    def launched(self) -> "Flow":
        self.life.registered(DRIVER, "at 0")
        for host in list(self.roster.hosts):
            self.register(host)
        assert self.life.phase is FlowPhase.PREPARING
        return self

    def begun(self) -> "Flow":
        self.launched()
        for host in (DRIVER, *self.roster.hosts):
            self.take(HostAssigned(host))
        return self

    def running(self) -> "Flow":
        self.begun().take(NodesOpened())
        assert self.life.phase is FlowPhase.RUNNING
        return self


def of(kind: type[Any], effects: Iterable[Effect]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def kinds(effects: Iterable[Effect]) -> list[str]:
    """The effects' names, each run of one kind once."""
    names = [type(effect).__name__ for effect in effects]
    return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]


def lost(number: int) -> dict[str, Any]:
    return HostLostError(f"host {number} was lost: killed", host=number).to_dict()


# -- starting --------------------------------------------------------------------------------------


def test_nodes_start_together_when_every_host_is_ready_and_sources_when_edges_are_open() -> None:
    flow = Flow(2, standby=1)
    flow.life.registered(DRIVER, "at 0")
    assert flow.register(1) == [ConnectHost(1, 1, "at 1")]
    flow.register(2)
    assert of(Assign, flow.register(3))
    started = [flow.take(HostAssigned(host)) for host in (DRIVER, 3, 1, 2)]
    assert started[:3] == [[], [], []]
    assert started[3] == [StartAllNodes(7)]
    opened = flow.take(NodesOpened())
    assert opened[0] == Go()
    assert flow.life.phase is FlowPhase.RUNNING
    assert flow.take(NodesOpened()) == []


def test_a_flow_without_recovery_runs_when_all_hosts_have_built_their_nodes() -> None:
    flow = Flow(1, recovers=False).launched()
    assert flow.take(HostAssigned(DRIVER)) == []
    assert flow.take(HostAssigned(1)) == [Go()]


def test_a_host_that_dies_before_any_node_started_is_launched_again() -> None:
    flow = Flow(2).launched()
    effects = flow.take(JobEnded(1, lost(1)))
    assert kinds(effects) == ["Warn", "FenceHost", "PlaceNodes", "LaunchHost"]
    assert effects[-1] == LaunchHost(flow.machine.cause, 3)
    assert flow.placement == {11: 3, 12: 2}
    assert flow.register(3) == [
        ConnectHost(flow.machine.cause, 3, "at 3"),
        AssignHost(flow.machine.cause, 3),
    ]
    for host in (DRIVER, 2):
        assert flow.take(HostAssigned(host)) == []
    assert of(StartAllNodes, flow.take(HostAssigned(3)))


def test_a_spare_that_steps_in_before_the_start_follows_no_more_and_neither_does_the_lost() -> None:
    flow = Flow(2, standby=1, followed=True).launched()
    assert of(FollowNodes, flow.take(HostAssigned(3)))
    effects = flow.take(JobEnded(1, lost(1)))
    assert of(StopFollowing, effects) == [StopFollowing(flow.machine.cause, (1, 3))]
    assert of(PlaceNodes, effects) == [PlaceNodes(flow.machine.cause, 1, 3)]
    assert kinds(effects).index("StopFollowing") < kinds(effects).index("PlaceNodes")


def test_a_host_that_is_ready_after_the_flow_was_stopped_changes_nothing() -> None:
    flow = Flow(2).launched()
    flow.life.stop_asked(flow.now_ms)
    assert flow.life.phase is FlowPhase.ENDING
    assert flow.take(HostAssigned(DRIVER)) == []
    assert flow.take(HostAssigned(1)) == []


def test_a_job_that_would_fail_again_fails_the_flow() -> None:
    flow = Flow(2).launched()
    failure = HostLostError("host 1 was lost: no module", repeats=True).to_dict()
    assert of(EndHosts, flow.take(JobEnded(1, failure)))


def test_an_attempt_that_registers_while_the_flow_starts_takes_the_place_of_the_one_before() -> (
    None
):
    flow = Flow(2, retried=True).launched()
    effects = flow.register(1 + SLOTS)
    assert of(PlaceNodes, effects) == [PlaceNodes(flow.machine.cause, 1, 1 + SLOTS)]
    assert not of(LaunchHost, effects)
    assert flow.roster.workers == [1 + SLOTS, 2]


def test_before_nodes_have_started_the_ring_is_not_wired() -> None:
    flow = Flow(2).launched()
    assert of(TellRing, flow.take(HostAssigned(1))) == []
    assert flow.take(HostSilent(2, 1, 500)) == []


# -- the ring --------------------------------------------------------------------------------------


def ring(effects: Iterable[Effect]) -> dict[int, int | None]:
    return {told.host: told.next for told in of(TellRing, effects)}


def test_each_host_watches_the_next_and_knows_its_neighbours() -> None:
    flow = Flow(3, standby=1).begun()
    effects = flow.take(NodesOpened())
    assert ring(effects) == {1: 2, 2: 3, 3: 4, 4: 1, DRIVER: None}
    assert of(TellRing, effects)[0].near == {4: "at 4", 2: "at 2"}


def test_the_driver_watches_a_host_that_is_alone() -> None:
    flow = Flow(2).running()
    assert ring(flow.take(ProcessEnded(1))) == {2: None, DRIVER: 2}


def test_without_pings_nothing_is_wired() -> None:
    assert ring(Flow(2, interval_ms=0).begun().take(NodesOpened())) == {}


# -- losses ----------------------------------------------------------------------------------------


def test_a_loss_fences_recovers_rewires_in_this_order() -> None:
    flow = Flow(3, takeover=Takeover.NEXT, followed=True).running()
    effects = flow.take(ProcessEnded(1))
    assert kinds(effects) == [
        "FenceHost",
        "StopFollowing",
        "RecoverNodes",
        "ReplaceReplicas",
        "TellRing",
    ]
    cause = flow.machine.cause
    assert effects[:4] == [
        FenceHost(cause, 1),
        StopFollowing(cause, (1, 2)),
        RecoverNodes(cause, 1, {11: 2}, "its process ended"),
        ReplaceReplicas(cause, 1, 4, "its process ended"),
    ]
    assert ring(effects) == {2: 3, 3: 2, DRIVER: None}


def test_a_row_to_skip_is_recorded_before_its_nodes_recover() -> None:
    flow = Flow(3, skipping=frozenset({11, 12, 13})).running()
    for host in (1, 2):
        flow.take(HostWorking(host, LastWords("s", "n[11]", 4, digests=(7,))))
        effects = flow.take(ProcessEnded(host))
    assert kinds(effects)[:3] == ["FenceHost", "RecordSkipped", "RecoverNodes"]
    assert effects[1].row == ("s", 7, 4, "its process ended")


def test_a_spare_takes_over_at_once_and_plays_roles_at_once() -> None:
    flow = Flow(2, standby=1).running()
    effects = flow.take(ProcessEnded(1))
    assert of(RecoverNodes, effects)[0].takers == {11: 3}
    assert of(JoinReplicas, effects) == [JoinReplicas(flow.machine.cause, 3)]
    assert flow.roster.spares == [4]


def test_the_least_loaded_host_takes_over() -> None:
    flow = Flow(3).running()
    flow.take(LoadsMeasured({2: Load(1, 500), 3: Load(1, 100)}))
    assert of(RecoverNodes, flow.take(ProcessEnded(1)))[0].takers == {11: 3}


@pytest.mark.parametrize(
    "again",
    [
        ProcessEnded(1),
        JobEnded(1, lost(1)),
        ConnectionBroken(1),
        HostSilent(2, 1, 9_000),
        HostSilent(1, 2, 9_000),
        HostAssigned(1),
        HostRaised(1, RAISED, restarts=True),
        HostRaised(1, RAISED, restarts=False),
        HostWorking(1, LastWords()),
    ],
)
def test_later_news_of_a_lost_host_and_its_own_word_change_nothing(again: MembershipEvent) -> None:
    flow = Flow(3).running()
    flow.take(ProcessEnded(1))
    assert flow.take(again) == []
    assert flow.life.phase is FlowPhase.RUNNING


def test_a_host_that_is_lost_while_nodes_start_is_a_loss_like_any_other() -> None:
    flow = Flow(2).begun()
    assert of(RecoverNodes, flow.take(ProcessEnded(1)))
    assert of(Go, flow.take(NodesOpened()))


def test_a_broken_connection_has_the_process_looked_at() -> None:
    flow = Flow(2).running()
    assert flow.take(ConnectionBroken(1)) == [ProbeHost(flow.machine.cause, 1, "at 1")]


def test_without_recovery_a_lost_host_fails_the_flow_and_the_error_names_its_nodes() -> None:
    flow = Flow(2, recovers=False).launched()
    for host in (DRIVER, 1, 2):
        flow.take(HostAssigned(host))
    assert flow.take(ConnectionBroken(1)) == []
    assert flow.take(ProcessEnded(1)) == []
    assert flow.take(JobEnded(1, lost(1))) == [EndHosts()]
    assert flow.life.failure is not None
    assert "process 101; it ran n[11]" in flow.life.failure["message"]
    assert flow.life.failure["parameters"]["nodes"] == "n[11]"


def test_an_error_of_a_stage_ends_the_flow_unless_it_wants_to_be_restarted() -> None:
    flow = Flow(2).running()
    effects = flow.take(HostRaised(1, RAISED, restarts=True))
    assert of(RecoverNodes, effects)[0].reason == RAISED["message"]
    assert flow.take(HostRaised(2, RAISED, restarts=False)) == [EndHosts()]
    assert flow.life.failure == RAISED


def test_one_loss_too_many_ends_the_flow_and_progress_begins_the_count_anew() -> None:
    flow = Flow(1).running()

    def lose(times: int) -> list[Effect]:
        effects: list[Effect] = []
        for _ in range(times):
            host = flow.roster.workers[0]
            effects = flow.take(ProcessEnded(host))
            if flow.life.phase is FlowPhase.RUNNING:
                fresh = flow.roster.workers[0]
                flow.register(fresh)
                flow.take(HostAssigned(fresh))
        return effects

    assert of(RecoverNodes, lose(LOSSES_MAX))
    flow.take(NodesProgressed({11: 5}))
    assert of(RecoverNodes, lose(LOSSES_MAX))
    assert lose(1) == [EndHosts()]
    assert "without getting any further" in (flow.life.failure or {})["message"]


def test_what_the_sinks_published_is_progress_of_all_nodes() -> None:
    flow = Flow(1).running()
    for epoch in range(3 * LOSSES_MAX):
        flow.life.sink_completed("out", 11, epoch)
        effects = flow.take(ProcessEnded(flow.roster.workers[0]))
        assert of(RecoverNodes, effects)
        flow.register(flow.roster.workers[0])


# -- suspicion -------------------------------------------------------------------------------------


def test_a_silent_host_is_lost_and_the_reason_says_who_noticed() -> None:
    flow = Flow(3).running()
    flow.now_ms += 500
    effects = flow.take(HostSilent(1, 2, 400, loads={3: Load(1, 900)}))
    [recover] = of(RecoverNodes, effects)
    assert recover.reason == "silent for 400 ms, as host 1 says"
    assert recover.takers == {12: 1}  # the report brought the loads


def test_a_host_that_the_driver_hears_is_not_lost() -> None:
    flow = Flow(3).running()
    flow.now_ms += 500
    flow.machine.heard(2, flow.now_ms - 100)
    [warning] = flow.take(HostSilent(1, 2, 400))
    assert isinstance(warning, Warn)
    assert warning.expected
    assert "the driver hears it" in warning.text


def test_a_process_that_runs_is_not_lost() -> None:
    flow = Flow(3).running()
    flow.now_ms += 500
    [warning] = flow.take(HostSilent(DRIVER, 2, 400, ProcessState.RUNNING))
    assert warning == Warn(
        flow.machine.cause,
        "the driver: host 2 was silent for 400 ms, but its process lives",
        expected=True,
    )


def test_a_slow_host_is_refused_and_the_ring_gets_more_time() -> None:
    flow = Flow(3, timeout_ms=150).running()
    flow.now_ms += 500
    flow.take(HostSilent(1, 2, 400))
    effects = flow.take(HostRefused(2, RefusalCounts(messages=3)), SLOW_MS // 2)
    assert effects[0] == NoteRefused(flow.machine.cause, 2, RefusalCounts(messages=3))
    assert {told.timeout_ms for told in of(TellRing, effects)} == {300}
    assert of(Warn, effects)
    again = flow.take(HostRefused(2, RefusalCounts(writes=1)))
    assert again == [NoteRefused(flow.machine.cause, 2, RefusalCounts(writes=1))]


def test_a_host_that_wakes_up_much_later_was_not_only_slow() -> None:
    flow = Flow(3).running()
    flow.now_ms += 500
    flow.take(HostSilent(1, 2, 400))
    assert not of(TellRing, flow.take(HostRefused(2, RefusalCounts(messages=1)), SLOW_MS))


def test_a_host_whose_process_ended_and_that_is_refused_was_not_slow() -> None:
    flow = Flow(3).running()
    flow.take(ProcessEnded(2))
    assert not of(TellRing, flow.take(HostRefused(2, RefusalCounts(connections=1))))


def test_a_refusal_of_a_host_that_was_never_lost_is_ignored() -> None:
    assert Flow(2).running().take(HostRefused(1, RefusalCounts(messages=1))) == []


def unheard(flow: Flow, host: int, ms: int) -> list[Effect]:
    """Let time pass in which only one host says nothing."""
    effects: list[Effect] = []
    for _ in range(ms // 500):
        for other in flow.roster.hosts:
            if other != host:
                flow.machine.heard(other, flow.now_ms)
        effects += flow.time(500)
    return effects


def test_a_host_that_the_driver_has_not_heard_for_very_long_is_killed_and_lost() -> None:
    flow = Flow(2, host_timeout_ms=5_000).running()
    assert unheard(flow, 1, 4_500) == []
    effects = unheard(flow, 1, 1_500)
    assert kinds(effects)[:3] == ["CrashHost", "FenceHost", "RecoverNodes"]
    assert of(CrashHost, effects)[0].host == 1
    assert of(RecoverNodes, effects)[0].reason == "not heard for 5 s"


def test_without_recovery_such_a_host_fails_the_flow() -> None:
    flow = Flow(2, host_timeout_ms=5_000, recovers=False).launched()
    for host in (DRIVER, 1, 2):
        flow.take(HostAssigned(host))
    assert unheard(flow, 1, 6_000) == [EndHosts()]


def test_a_host_that_has_not_come_up_yet_and_that_no_node_waits_for_is_not_missed() -> None:
    flow = Flow(2, host_timeout_ms=5_000).running()
    flow.take(ProcessEnded(1))
    assert of(RecoverNodes, unheard(flow, 3, 10_000)) == []
    assert flow.life.phase is FlowPhase.RUNNING


def test_a_driver_that_did_not_run_suspects_itself() -> None:
    flow = Flow(2, host_timeout_ms=5_000).running()
    assert flow.time(20_000) == []
    flow.machine.heard(1, flow.now_ms)
    assert of(CrashHost, flow.time(20_000)) == []


# -- replacements ----------------------------------------------------------------------------------


def test_a_fresh_host_is_launched_when_the_recovery_is_over() -> None:
    flow = Flow(3).running()
    flow.take(ProcessEnded(1))
    assert flow.time(100, quiet=False) == []
    assert flow.time(100, quiet=True) == []
    assert flow.time(LAUNCH_MS, quiet=True) == [LaunchHost(flow.machine.cause, 4)]
    assert flow.time(LAUNCH_MS_MAX) == []


def test_a_long_recovery_does_not_put_the_launch_off_for_ever() -> None:
    flow = Flow(3).running()
    flow.take(ProcessEnded(1))
    assert flow.time(LAUNCH_MS_MAX - 1, quiet=False) == []
    assert of(LaunchHost, flow.time(1, quiet=False))


def test_a_host_that_nodes_wait_for_is_launched_at_once() -> None:
    flow = Flow(1).running()
    assert of(RecoverNodes, flow.take(ProcessEnded(1)))[0].takers == {11: 2}
    assert of(LaunchHost, flow.time(0, quiet=False))


def test_a_second_loss_brings_all_fresh_hosts_at_once() -> None:
    flow = Flow(3).running()
    flow.take(ProcessEnded(1))
    flow.take(ProcessEnded(2))
    assert [one.host for one in of(LaunchHost, flow.time(0, quiet=False))] == [4, 5]


def test_nothing_is_launched_for_a_flow_that_ends() -> None:
    flow = Flow(3).running()
    flow.take(ProcessEnded(1))
    flow.life.failed(RAISED)
    assert flow.time(LAUNCH_MS_MAX) == []


def test_where_tasks_are_retried_the_next_attempt_is_waited_for() -> None:
    flow = Flow(2, retried=True).running()
    flow.take(ProcessEnded(1))
    assert flow.roster.workers == [1 + SLOTS, 2]
    assert flow.time(LAUNCH_MS_MAX) == []
    assert of(AssignHost, flow.register(1 + SLOTS))


def test_a_task_that_came_to_its_end_is_not_retried() -> None:
    flow = Flow(2, retried=True).running()
    flow.take(HostRaised(1, RAISED, restarts=True))
    assert flow.roster.workers == [3, 2]
    flow.take(JobEnded(2, lost(2)))
    assert flow.roster.workers == [3, 4]


def test_an_attempt_that_nobody_announced_means_that_the_one_before_is_gone() -> None:
    flow = Flow(2, retried=True).running()
    effects = flow.register(1 + SLOTS)
    assert of(RecoverNodes, effects)[0].lost == 1
    assert effects[-2:] == [
        ConnectHost(flow.machine.cause, 1 + SLOTS, f"at {1 + SLOTS}"),
        AssignHost(flow.machine.cause, 1 + SLOTS),
    ]


def test_a_process_of_a_slot_that_was_given_up_becomes_a_spare() -> None:
    flow = Flow(2).running()
    flow.take(ProcessEnded(1))
    assert of(AssignHost, flow.register(1 + SLOTS))
    assert flow.roster.spares == [1 + SLOTS]


def test_without_recovery_a_second_attempt_fails_the_flow() -> None:
    flow = Flow(1, recovers=False).launched()
    assert flow.register(1 + SLOTS) == [EndHosts()]
    assert 1 + SLOTS not in flow.roster.hosts


def test_a_host_that_comes_up_while_the_flow_ends_is_told_to_end() -> None:
    flow = Flow(2).running()
    flow.take(ProcessEnded(1))
    flow.life.failed(RAISED)
    assert flow.register(3)[-1] == DismissHost(flow.machine.cause, 3)


def test_a_late_host_is_introduced_and_gets_what_waited_for_it() -> None:
    flow = Flow(3, standby=1, followed=True).running()
    flow.take(ProcessEnded(1))  # the spare, 4, steps in
    flow.register(5)
    effects = flow.take(HostAssigned(5))
    cause = flow.machine.cause
    assert effects[:4] == [
        FollowNodes(cause, 5, None),
        StartHost(cause, 5),
        IntroduceHost(cause, 5, "at 5", (2, 3, 4)),
        ServeHost(cause, 5),
    ]
    assert effects[-1] == JoinReplicas(cause, 5)
    assert ring(effects) == {4: 2, 2: 3, 3: 5, 5: 4, DRIVER: None}


def test_nodes_go_home_to_the_host_in_the_lost_ones_place() -> None:
    flow = Flow(2).running()
    flow.take(ProcessEnded(1))
    flow.register(3)
    flow.take(HostAssigned(3))
    effects: list[Effect] = []
    for _ in range(SETTLE_MS // LOOK_MS + 5):
        assert flow.machine.looks_home(flow.now_ms + LOOK_MS)
        effects += flow.time(LOOK_MS, home=CALM)
    assert of(SaveNodes, effects)
    assert [move.places for move in of(MoveNodes, effects)] == [{11: 3}]
    assert flow.placement == flow.roster.homes == {11: 3, 12: 2}


@pytest.mark.parametrize("policy", [{"reinstate": False}, {"recovers": False}])
def test_where_it_is_switched_off_nodes_stay(policy: dict[str, Any]) -> None:
    assert not Flow(2, **policy).machine.looks_home(10_000)


def test_only_a_flow_that_runs_moves_nodes() -> None:
    flow = Flow(2).running()
    assert flow.machine.looks_home(10_000)
    flow.life.stop_asked(flow.now_ms)
    assert not flow.machine.looks_home(10_000)


def test_effects_of_one_event_share_its_number() -> None:
    flow = Flow(3).running()
    first, second = flow.take(ProcessEnded(1)), flow.take(ProcessEnded(2))
    assert len({effect.cause for effect in first}) == 1  # type: ignore[union-attr]
    assert first[0].cause < second[0].cause  # type: ignore[union-attr]
