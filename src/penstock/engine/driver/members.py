"""Hosts on the driver: performs what the membership machine decides.

What hosts say, connections that break and jobs that end become events of the machine
(:mod:`penstock.core.control.membership`); its effects become orders and calls.  Everything here
runs in the controller's thread, but for the probes of hosts whose connection broke.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

from penstock.core.control.assignment import Assignment
from penstock.core.control.controller import ControllerEffect, FlowPhase
from penstock.core.control.deadly_rows import SkippedRow
from penstock.core.control.figures import NodeFigures
from penstock.core.control.followers import Followers, TellFollow
from penstock.core.control.host_orders import (
    CheckpointNews,
    EndHost,
    FollowCheckpoints,
    KillHost,
    MeetHosts,
    StartReading,
    TakeAssignment,
    WatchNext,
)
from penstock.core.control.host_reports import (
    CheckpointFollowed,
    CheckpointSaved,
    HostBeat,
    HostFailed,
    HostReady,
    HostRegistered,
    HostReport,
    NextFellSilent,
    NodeFinished,
    PeerRefused,
    ProgressMade,
    RecoveryReport,
    RefusalCounts,
    RoleReport,
    SinkCompleted,
    StageCalled,
)
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
    RecordSkipped,
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
from penstock.core.control.roster import DRIVER
from penstock.core.delivery.ring import Load
from penstock.core.delivery.takeover import Takeover
from penstock.engine.driver.event_queue import EventQueue
from penstock.engine.driver.launcher import Launcher
from penstock.engine.driver.links import HostLinks
from penstock.engine.driver.live_plan import LivePlan
from penstock.engine.driver.process_probe import is_gone, process_seen
from penstock.engine.driver.recovery import Recovery
from penstock.engine.driver.replicas import Replicas
from penstock.engine.host.ring import Ring
from penstock.engine.settings import RunSettings
from penstock.errors import PenstockError, unreachable
from penstock.operators.skipping import Skipping
from penstock.planning.physical import PhysicalPlan
from penstock.planning.replica_plan import replicated_nodes

__all__ = ["Calls", "Members", "Parts", "membership_policy", "now_ms"]

log = logging.getLogger(__name__)

PROBES_S = (0.0, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
"""The pauses before each look at whether a process is gone: one that ends closes its connections
one after another, the one that it listens on perhaps last."""


@dataclass(frozen=True)
class Parts:
    """What else the driver does for a flow; None where the flow has none of it."""

    recovery: Recovery | None
    replicas: Replicas | None
    followers: Followers | None
    live_plan: LivePlan | None


@dataclass(frozen=True)
class Calls:
    """What the controller does for its members."""

    launch: Callable[[int], None]
    """Have Spark run a host."""
    assignment: Callable[[], Assignment]
    """What a host must know of the run."""
    perform: Callable[[ControllerEffect], None]
    """Perform an effect of the flow's life."""
    sink: Callable[[str, int, int, int], list[ControllerEffect]]
    """An epoch is complete at a node of a sink."""
    finished: Callable[[int], list[ControllerEffect]]
    """A node has come to its end."""
    restarts: Callable[[str | None], bool]
    """Whether a stage that raised wants to be started again."""


class Members:
    """The driver's hands in matters of hosts."""

    def __init__(
        self,
        machine: MembershipMachine,
        placement: dict[int, int],
        parts: Parts,
        links: HostLinks,
        calls: Calls,
        events: EventQueue,
    ) -> None:
        self.machine = machine
        self.figures: dict[int, Mapping[int, NodeFigures]] = {}
        """Per host: the latest figures of its nodes."""
        self.ring = Ring(links.host, lambda said: events.later(lambda: self.silent(DRIVER, said)))
        """The driver's own part in the ring."""
        self._placement = placement
        self._parts = parts
        self._links = links
        self._calls = calls
        self._events = events
        links.host.transport.refusals.on_refused = self._refused

    # -- events ----------------------------------------------------------------------------------

    def take(self, event: MembershipEvent) -> None:
        """Give the machine an event, and perform what follows from it."""
        effects = self.machine.take(event, now_ms())
        if effects:
            log.debug("%d: %s leads to %s", self.machine.cause, event, effects)
            if self._parts.recovery is not None:
                self._parts.recovery.story.decided(self.machine.cause, event, effects)
        for effect in effects:
            self._perform(effect)

    def reported(self, host: int, report: HostReport) -> list[ControllerEffect]:
        """A host's report; one that does not belong to the flow can only come up."""
        if isinstance(report, HostRegistered):
            self.take(HostCameUp(host, report.address, report.pid))
            return []
        if host not in self.machine.roster.hosts:
            return []
        match report:
            case HostBeat(figures, loads):
                self._beat(host, figures, loads)
            case SinkCompleted(sink, node, epoch, cut_us):
                return self._calls.sink(sink, node, epoch, cut_us)
            case NodeFinished(node, figures):
                self._beat(host, figures, {})
                return self._calls.finished(node)
            case HostReady():
                self.take(HostAssigned(host))
            case HostFailed(failure):
                plain = failure._asdict()
                restarts = self._calls.restarts(plain["parameters"].get("stage"))
                self.take(HostRaised(host, plain, restarts))
            case StageCalled(words):
                self.take(HostWorking(host, words))
            case PeerRefused(other, counts):
                self.take(HostRefused(other, counts))
            case NextFellSilent():
                self.silent(host, report)
            case CheckpointFollowed(follower, node, key):
                if self._parts.followers is not None:
                    self._parts.followers.followed(follower, node, key)
            case ProgressMade():
                unreachable("counts are taken where they arrive", host=host)
            case _:
                self.told(host, report)
        return []

    def told_here(self, report: HostReport) -> None:
        """The driver's own agent speaks; called in its loop."""
        if isinstance(report, RecoveryReport | RoleReport):
            self._events.later(lambda: self.told(DRIVER, report))

    def job_ended(self, slot: int, error: PenstockError | None) -> None:
        """The job of a slot is over; called by its thread."""
        failure = None if error is None else error.to_dict()
        self._events.later(lambda: self.take(JobEnded(slot, failure)))

    def _refused(self, host: int, counts: RefusalCounts) -> None:
        """The driver itself has refused something; called by threads of channels."""
        self._events.later(lambda: self.take(HostRefused(host, counts)))

    def _beat(
        self, host: int, figures: Mapping[int, NodeFigures], loads: Mapping[int, Load]
    ) -> None:
        """What a host says of its nodes and of all loads that it knows of."""
        self.figures[host] = figures
        self.take(NodesProgressed({node: one.epoch for node, one in figures.items()}))
        if loads:
            self.take(LoadsMeasured(loads))

    def silent(self, by: int, said: NextFellSilent) -> None:
        """A host, or the driver, got no answer from the next one."""
        member = self.machine.roster.hosts.get(said.host)
        if member is not None:
            seen = process_seen(member.pid, member.address, self._links.address)
            self.take(HostSilent(by, said.host, said.silent_ms, seen, said.loads))

    def broken(self, host: int, why: str) -> None:
        """A connection broke; called by its thread."""
        log.info("channel with host %d broke: %s", host, why)
        self._events.later(lambda: self.take(ConnectionBroken(host)))

    def time_passed(self, ending: Callable[[], bool]) -> None:
        """Called at every turn of the controller's loop; ``ending``: has some node ended."""
        recovery = self._parts.recovery
        situation = None
        if recovery is not None and self.machine.looks_home(now_ms()):
            saving = self.machine.homecoming.saving
            situation = Situation(recovery.settled, ending(), self._is_saved(recovery, saving))
        quiet = recovery is None or recovery.quiet
        self.take(TimePassed(quiet, situation))

    def told(self, host: int, report: RecoveryReport | RoleReport) -> None:
        """A host's word on a recovery or on roles; the last edge that opens starts the flow."""
        recovery, replicas = self._parts.recovery, self._parts.replicas
        if recovery is None:
            return
        if isinstance(report, RoleReport):
            if replicas is not None:
                replicas.told(host, report)
        else:
            recovery.told(report)
        if isinstance(report, CheckpointSaved):
            self._saved(report)
        starting = self.machine.life.phase is FlowPhase.PREPARING and self.machine.begun
        if starting and recovery.open and (replicas is None or replicas.open):
            self.take(NodesOpened())

    def _saved(self, saved: CheckpointSaved) -> None:
        """A checkpoint is durable."""
        if self._parts.live_plan is not None:
            self._parts.live_plan.saved(saved)
        if self._parts.followers is not None:
            news = CheckpointNews(saved.incarnation, saved.key, saved.state_bytes)
            self._follow(self._parts.followers.saved(saved.node, news))

    def _is_saved(self, recovery: Recovery, saving: Mapping[int, int]) -> bool:
        followers = self._parts.followers
        current = followers is None or all(map(followers.is_current, set(saving.values())))
        return current and recovery.requests.have_saved(saving)

    # -- effects ---------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, ControllerEffect):
            self._calls.perform(effect)
            return
        match effect:
            case LaunchHost(_, host):
                self._calls.launch(host)
            case ConnectHost(_, host, address):
                self._links.host.transport.connect(host, address)
            case ProbeHost(_, host, address):
                threading.Thread(target=self._probe, args=(host, address), daemon=True).start()
            case FenceHost(_, host):
                self._links.host.transport.forget(host)
                self.figures.pop(host, None)
            case PlaceNodes(_, lost, heir):
                self._placement.update(dict.fromkeys(self.machine.nodes_of(lost), heir))
                if self._parts.replicas is not None:
                    self._parts.replicas.not_begun(lost, heir)
            case Warn(_, text, expected):
                log.log(logging.INFO if expected else logging.WARNING, "%s", text)
            case ReplaceReplicas() | JoinReplicas():
                self._perform_on_replicas(effect)
            case FollowNodes() | StopFollowing():
                self._perform_on_followers(effect)
            case AssignHost() | DismissHost() | CrashHost() | StartHost() | IntroduceHost():
                self._order(effect)
            case TellRing():
                self._tell_ring(effect)
            case _:
                self._perform_on_nodes(effect)

    def _order(
        self, effect: AssignHost | DismissHost | CrashHost | StartHost | IntroduceHost
    ) -> None:
        """Tell hosts something."""
        match effect:
            case AssignHost(_, host):
                self._links.to(host, TakeAssignment(self._calls.assignment()))
            case DismissHost(_, host):
                self._links.to(host, EndHost())
            case CrashHost(_, host):
                self._links.to(host, KillHost())
            case StartHost(_, host):
                self._links.to(host, StartReading())
            case IntroduceHost(_, host, address, to):
                for other in to:
                    self._links.to(other, MeetHosts({host: address}))
            case _:
                assert_never(effect)

    def _tell_ring(self, effect: TellRing) -> None:
        order = WatchNext(effect.next, effect.near, effect.interval_ms, effect.timeout_ms)
        if effect.host == DRIVER:
            self.ring.take(DRIVER, order)
        else:
            self._links.to(effect.host, order)

    def _perform_on_nodes(
        self,
        effect: StartAllNodes
        | ServeHost
        | RecordSkipped
        | RecoverNodes
        | SaveNodes
        | MoveNodes
        | NoteRefused,
    ) -> None:
        recovery = self._parts.recovery
        if recovery is None:
            unreachable("nodes of a flow without recovery were to be recovered", effect=effect)
        match effect:
            case StartAllNodes():
                recovery.begin()
                if self._parts.replicas is not None:
                    self._parts.replicas.begin()
            case ServeHost():
                recovery.orders.host_ready()
            case RecordSkipped(_, row):
                self._record_skipped(recovery, row)
            case RecoverNodes(_, lost, takers, reason):
                recovery.host_lost(lost, takers, reason)
            case SaveNodes(_, nodes):
                recovery.requests.save_now(nodes)
            case MoveNodes(_, places, reason):
                recovery.move(places, reason)
            case NoteRefused(_, host, counts):
                recovery.history.refused(host, counts)
            case _:
                assert_never(effect)

    def _record_skipped(self, recovery: Recovery, row: SkippedRow) -> None:
        """A row is passed over if that is durable; if not, its node is lost by it once more."""
        try:
            recovery.skipped.add(row)
        except OSError as error:
            log.warning("stage %r cannot pass over a row yet: %s", row.stage, error)
            return
        log.warning(
            "stage %r passes over row %016x from epoch %d on, because its hosts do not: %s",
            *row,
        )
        self.machine.giving_up.recorded([row])

    def _perform_on_replicas(self, effect: ReplaceReplicas | JoinReplicas) -> None:
        replicas = self._parts.replicas
        if replicas is None:
            return
        match effect:
            case ReplaceReplicas(_, lost, heir, reason):
                replicas.host_lost(lost, heir, reason)
            case JoinReplicas(_, host):
                replicas.host_ready(host)
            case _:
                assert_never(effect)

    def _perform_on_followers(self, effect: FollowNodes | StopFollowing) -> None:
        followers = self._parts.followers
        if followers is None:
            return
        match effect:
            case FollowNodes(_, host, nodes):
                self._follow(followers.begin(host, nodes))
            case StopFollowing(_, hosts):
                for host in hosts:
                    followers.end(host)
            case _:
                assert_never(effect)

    def _follow(self, told: list[TellFollow]) -> None:
        """Tell hosts of checkpoints of nodes that they follow."""
        for host, nodes in told:
            self._links.to(host, FollowCheckpoints(nodes))

    def _probe(self, host: int, address: str) -> None:
        """A connection broke: perhaps the process is gone, or about to be."""
        for wait_s in PROBES_S:
            time.sleep(wait_s)
            if host not in self.machine.roster.hosts:
                return
            if is_gone(address):
                self._events.later(lambda: self.take(ProcessEnded(host)))
                return


def membership_policy(
    plan: PhysicalPlan, settings: RunSettings, recovery: Recovery | None, launcher: Launcher
) -> MembershipPolicy:
    """What a run's settings and its plan say about hosts."""
    return MembershipPolicy(
        recovers=recovery is not None,
        interval_ms=settings.us("pingInterval") // 1000,
        timeout_ms=settings.us("pingTimeout") // 1000,
        host_timeout_ms=settings.us("hostTimeout") // 1000,
        takeover=Takeover(settings.takeover),
        reinstate=settings.reinstate,
        retried=launcher.retries,
        followed=recovery is not None and settings.followed_s is not None,
        movable=frozenset() if recovery is None else recovery.graph.movable,
        names={node: plan.node_name(node) for chain in plan.chains for node in chain.nodes},
        skipping=frozenset(
            node
            for chain in plan.chains
            if any(isinstance(stage.operator, Skipping) for stage in chain.stages)
            for node in chain.nodes
        )
        - replicated_nodes(plan),  # their roles are played by hosts that are told of no rows
    )


def now_ms() -> int:
    """The time that machines are given."""
    return time.monotonic_ns() // 1_000_000
