"""The driver of a simulated life: the machines that a real driver runs, and what they ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.control.controller import (
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
from penstock.core.control.followers import Followers, TellFollow
from penstock.core.control.host_orders import CheckpointNews
from penstock.core.control.host_reports import RefusalCounts
from penstock.core.control.membership import Effect, MembershipMachine, MembershipPolicy
from penstock.core.control.membership_events import (
    AssignHost,
    ConnectHost,
    CrashHost,
    DismissHost,
    FenceHost,
    FollowNodes,
    HostAssigned,
    HostCameUp,
    HostRaised,
    HostRefused,
    LaunchHost,
    MembershipEvent,
    MoveNodes,
    NodesOpened,
    NodesProgressed,
    PlaceNodes,
    ProbeHost,
    ProcessEnded,
    RecordSkipped,
    RecoverNodes,
    SaveNodes,
    ServeHost,
    Situation,
    StartAllNodes,
    StartHost,
    StopFollowing,
    TellRing,
    TimePassed,
)
from penstock.core.control.roster import DRIVER, Roster
from penstock.core.progress.marks import EPOCH_END
from penstock.testing.simulator.host_monitor import HostMonitor
from penstock.testing.simulator.lives.hosts import BEAT_MS, INTERVAL_MS, TIMEOUT_MS, Host, NodeRun
from penstock.testing.simulator.lives.monitor import DRAIN_MS, START_MS, LifeMonitor

if TYPE_CHECKING:
    from penstock.testing.simulator.lives.world import LifeWorld

__all__ = ["Completed", "LifeDriver", "StateFollowed", "Report", "SavedState", "Started"]

HOST_TIMEOUT_MS = 6_000


class Started(NamedTuple):
    """An incarnation of a node has started."""

    node: int
    incarnation: int
    epoch: int
    """From the end of which it starts."""


class Completed(NamedTuple):
    """An incarnation of a node has completed an epoch."""

    node: int
    incarnation: int
    epoch: int


class SavedState(NamedTuple):
    """A checkpoint of a node is durable."""

    node: int
    news: CheckpointNews


class StateFollowed(NamedTuple):
    """A host has the state of a checkpoint in memory."""

    node: int
    key: int


Report = MembershipEvent | Started | Completed | SavedState | StateFollowed


class LifeDriver:
    """Decides about hosts; starts nodes where they are placed."""

    def __init__(self, world: LifeWorld, run: int) -> None:
        shape = world.shape
        self._world = world
        self.run = run
        self.placement = dict(shape.homes)
        self.homes = shape.homes
        roster = Roster(shape.hosts, shape.standby, world.now_ms)
        roster.homes = {node: at for node, at in shape.homes.items() if at != DRIVER}
        self.life = ControllerMachine(
            [DRIVER, *roster.hosts],
            shape.nodes,
            {"out": shape.stages[-1]},
            DRAIN_MS,
            completed=world.store.committed,
            start_ms=START_MS,
        )
        policy = MembershipPolicy(
            recovers=shape.recovers,
            interval_ms=0 if shape.trouble == "alone" else INTERVAL_MS,
            timeout_ms=TIMEOUT_MS,
            host_timeout_ms=HOST_TIMEOUT_MS,
            beat_ms=BEAT_MS,
            takeover=shape.takeover,
            retried=shape.retried,
            followed=shape.followed and shape.recovers,
            movable=shape.movable,
            names=shape.names,
            skipping=shape.skipping,
        )
        self.membership = MembershipMachine(self.life, roster, self.placement, policy)
        self.membership.giving_up.recorded(world.store.skipped)
        self.followers = Followers(lambda: self.incarnations)
        self.monitor = LifeMonitor(world, self)
        self.host_monitor = HostMonitor(self, INTERVAL_MS, BEAT_MS)
        self.incarnations = dict.fromkeys(shape.nodes, 0)
        self.fenced: set[int] = set()
        self.stopping = False
        """Whether sources were told to end."""
        self.stopped_early = False
        """Whether a person stopped it before it ran."""
        self.expects_failure = False
        """Whether something has happened that it need not survive."""
        self.over = False
        self.told = dict.fromkeys(shape.nodes, -1)
        """The last epoch of which it has heard that a node has completed it."""
        self._waiting: set[int] = set()
        """Nodes that wait for their hosts."""
        self._started: set[int] = set()
        self._back: dict[int, int] = {}
        """Nodes that have not come again as far as they were."""
        self._saving: dict[int, bool] = {}
        self._states: dict[int, CheckpointNews] = {}
        self._left: set[int] = set()

    @property
    def now_ms(self) -> int:
        """The driver's clock."""
        return self._world.now_ms

    def begin(self) -> None:
        """Launch the hosts."""
        self.perform([*self.life.registered(DRIVER, "driver")])
        for number in sorted(self.membership.roster.hosts):
            self._world.launch(number, self.run)

    # -- what it hears ---------------------------------------------------------------------------

    def heard(self, host: int, report: Report) -> None:
        """A host's word."""
        if isinstance(report, HostCameUp):
            if host not in self.fenced:
                self.take(report)
            return
        if host in self.fenced:
            self.take(HostRefused(host, RefusalCounts(messages=1)))
            self._world.refused(host)
            return
        if host != DRIVER and host not in self.membership.roster.hosts:
            return
        self.membership.heard(host, self.now_ms)
        self.host_monitor.spoke(host)
        match report:
            case Started(node, incarnation, epoch):
                if incarnation == self.incarnations[node]:
                    self._started.add(node)
                    if epoch >= self._back.get(node, EPOCH_END):
                        self._back.pop(node, None)
                    self._has_completed(node, epoch)
                    self.perform([*self.life.node_started(node, epoch)])
            case Completed(node, incarnation, epoch):
                self._completed(node, incarnation, epoch)
            case SavedState(node, news):
                self._saved(node, news)
            case StateFollowed(node, key):
                self.followers.followed(host, node, key)
            case HostRaised(_, failure, restarts):
                if not (restarts and self.membership.recovers):
                    self.monitor.raised = failure["message"]
                self.take(report)
            case NodesProgressed(epochs):
                for node, epoch in epochs.items():
                    self.monitor.progressed(node, epoch)
                self.take(report)
            case _:
                self.take(report)
        if self.life.phase is FlowPhase.PREPARING and self.membership.begun and self.is_open:
            self.take(NodesOpened())

    def _completed(self, node: int, incarnation: int, epoch: int) -> None:
        if incarnation != self.incarnations[node]:
            return
        world = self._world
        world.heard[node] = max(world.heard[node], -1 if epoch == EPOCH_END else epoch)
        self._has_completed(node, epoch)
        if epoch >= self._back.get(node, EPOCH_END):
            self._back.pop(node, None)
        if node in world.shape.stages[-1] and epoch < EPOCH_END:
            self.perform([*self.life.sink_completed("out", node, epoch)])
        if epoch == EPOCH_END:
            self.perform([*self.life.node_finished(node)])

    def _has_completed(self, node: int, epoch: int) -> None:
        self.told[node] = max(self.told[node], -1 if epoch == EPOCH_END else epoch)

    def _saved(self, node: int, news: CheckpointNews) -> None:
        if news.incarnation == self.incarnations[node]:
            self._saving[node] = True
            self._states[node] = news
        if self._world.shape.followed:
            told = self.followers.saved(node, news)
            self.monitor.saved(node, news.incarnation == self.incarnations[node], told)
            self._tell(told)

    def _tell(self, told: list[TellFollow]) -> None:
        for host, nodes in told:

            def learn(at: Host, news: Mapping[int, CheckpointNews] = nodes) -> None:
                at.news.update(news)

            self._world.order(host, learn)

    def present_states(self) -> dict[int, CheckpointNews]:
        """Per node: the newest checkpoint of its present incarnation, as far as it was heard of."""
        present = self.incarnations
        return {n: s for n, s in self._states.items() if s.incarnation == present[n]}

    # -- what is known ---------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether all nodes have started."""
        return not self._waiting and self._started >= self.incarnations.keys()

    @property
    def quiet(self) -> bool:
        """Whether no node is still recovering."""
        return self.is_open and not self._back

    def unstarted(self) -> list[int]:
        """Nodes that have run nowhere."""
        if self._world.shape.recovers:
            return sorted(self.incarnations.keys() - self._started)
        hosts = {node: self._world.present(at) for node, at in self.placement.items()}
        running = {node: at for node, at in hosts.items() if at is not None and not at.raised}
        return [node for node, at in running.items() if node not in at.nodes]

    # -- the machines ----------------------------------------------------------------------------

    def take(self, event: MembershipEvent) -> None:
        """Tell the membership machine, and do what it asks for."""
        if self.over:
            return
        effects = self.membership.take(event, self.now_ms)
        if isinstance(event, HostAssigned) and event.host in self.membership.roster.assigned:
            self.host_monitor.up(event.host)
        for effect in effects:
            if isinstance(effect, FenceHost) and self.life.has_run:
                self.host_monitor.lost(effect.host, event)
        self.perform(effects, event)

    def time_passed(self) -> None:
        """The driver looks around."""
        if self.over:
            return
        machine, situation = self.membership, None
        if machine.looks_home(self.now_ms):
            saving = machine.homecoming.saving
            settled = self.quiet and self.is_open
            ending = any(epoch == EPOCH_END for epoch in self._world.reached.values())
            situation = Situation(settled, ending, self._is_saved(saving))
            self.host_monitor.stays(situation)
        self.take(TimePassed(self.quiet, situation))
        self.perform([*self.life.time_passed(self.now_ms)])
        self.monitor.looked()

    def _is_saved(self, saving: Mapping[int, int]) -> bool:
        hosts = sorted(set(saving.values())) if self._world.shape.followed else []
        current = [host for host in hosts if self.followers.is_current(host)]
        for host in current:
            self.monitor.current(host)
        return current == hosts and all(self._saving.get(node, False) for node in saving)

    def stop(self) -> None:
        """A person stops the flow; once more changes nothing."""
        self.stopped_early |= self.life.phase in (FlowPhase.LAUNCHING, FlowPhase.PREPARING)
        self.perform([*self.life.stop_asked(self.now_ms)])

    def perform(self, effects: list[Effect], event: MembershipEvent | None = None) -> None:
        """Do what the machines ask for."""
        before = self.life.failure
        for effect in effects:
            if isinstance(effect, EndHosts) and self.life.failure is not None:
                self.monitor.failed(self.life.failure, self._nodes_lost(event))
            self._perform(effect)
        if before is None and self.life.failure is not None:
            self._world.note("the flow fails:", self.life.failure["message"])

    def _nodes_lost(self, event: MembershipEvent | None) -> list[int]:
        """The nodes that were lost with what has happened, if that was the last straw."""
        host = getattr(event, "host", None)
        if host is None and event is not None:
            slot = getattr(event, "slot", None)
            member = None if slot is None else self.membership.roster.of_slot(slot)
            host = None if member is None else member.number
        return [] if host is None else self.membership.nodes_of(host)

    def _perform(self, effect: Effect) -> None:
        world = self._world
        match effect:
            case Assign():
                for number in (DRIVER, *sorted(self.membership.roster.hosts)):
                    world.order(number, self._assign)
            case AssignHost(_, number):
                world.order(number, self._assign)
            case LaunchHost(_, number):
                world.launch(number, self.run)
            case ConnectHost(_, number):
                world.connected.add((self.run, number))
            case FenceHost(_, number):
                world.note("driver declares host", number, "lost")
                self.fenced.add(number)
            case ProbeHost(_, number):
                world.later(world.random.choice((5, 60)), lambda: self._probe(number))
            case CrashHost(_, number):
                host = world.present(number)
                if host is not None and not host.stuck:
                    world.kill(host)
            case DismissHost(_, number):
                world.order(number, world.told_to_end)
            case StartHost(_, number):
                world.order(number, self._goes)
            case TellRing(_, number, next_, _, interval_ms, timeout_ms):
                world.rewire(number, next_, (interval_ms, timeout_ms))
            case Go():
                self.monitor.goes()
                for number in (DRIVER, *self.membership.roster.hosts):
                    world.order(number, self._goes)
            case StopSources() | EndHosts() | CancelJobs() | LeaveHosts() | Ended() | Commit():
                self._perform_on_life(effect)
            case _:
                self._perform_on_nodes(effect)

    def _perform_on_life(
        self, effect: StopSources | EndHosts | CancelJobs | LeaveHosts | Ended | Commit
    ) -> None:
        world = self._world
        match effect:
            case StopSources():
                self.stopping = True
                for number in (DRIVER, *self.membership.roster.hosts):
                    world.order(number, self._stops)
            case Commit(_, epoch):
                self.monitor.committed(epoch)
                world.store.committed = epoch
            case EndHosts():
                self._end_hosts()
            case CancelJobs():
                world.cancel(self.run)
            case LeaveHosts(hosts):
                self._left.update(hosts)
            case Ended(failure):
                self.over = True
                self.monitor.ended(failure, self._left)

    def _end_hosts(self) -> None:
        world = self._world
        for number in (DRIVER, *self.membership.roster.hosts):
            world.order(number, world.told_to_end)
        for slot in self.life.unended:
            if slot != DRIVER and not world.has_job(slot, self.run):
                self.perform([*self.life.host_ended(slot, None)])

    def _perform_on_nodes(self, effect: Effect) -> None:
        world = self._world
        match effect:
            case PlaceNodes(_, lost, heir):
                self.monitor.lost(lost, self.membership.nodes_of(lost))
                self.monitor.takes([heir])
                self.placement.update(dict.fromkeys(self.membership.nodes_of(lost), heir))
            case StartAllNodes():
                self._recover(self.incarnations)
            case ServeHost():
                self._serve()
            case RecordSkipped(_, row):
                self.monitor.skipped(row)
                if world.random.random() < 0.8:
                    world.note("passes over", row)
                    world.store.skipped.append(row)
                    self.membership.giving_up.recorded([row])
            case RecoverNodes(_, lost, takers):
                ready = self.membership.roster.assigned - {DRIVER}
                self.host_monitor.placed(lost, takers.values(), ready)
                self.monitor.lost(lost, takers)
                self.monitor.takes(takers.values())
                self.placement.update(takers)
                self._recover(takers)
            case MoveNodes(_, places):
                ending = any(epoch == EPOCH_END for epoch in world.reached.values())
                self.host_monitor.moves(places, self.quiet, ending)
                self.monitor.takes(places.values())
                world.count("moved")
                self.placement.update(places)
                self._recover(places)
            case SaveNodes(_, nodes):
                self._save(nodes)
            case FollowNodes() | StopFollowing() if not world.shape.followed:
                pass
            case FollowNodes(_, host, nodes):
                told = self.followers.begin(host, nodes)
                self.monitor.follows(host, nodes, told)
                self.monitor.stated(self.followers.status())
                self._tell(told)
            case StopFollowing(_, hosts):
                self.monitor.stops(hosts)
                for host in hosts:
                    self.followers.end(host)
            case _:
                pass  # what is about replicas, introductions and people

    # -- hosts and nodes -------------------------------------------------------------------------

    def _probe(self, number: int) -> None:
        host = self._world.present(number)
        if host is None or not host.alive:
            self.take(ProcessEnded(number))

    def _assign(self, host: Host) -> None:
        host.stopping = self.stopping
        if not self._world.shape.recovers:
            for node, at in self.placement.items():
                if at == host.number:
                    care = self.membership.giving_up.care(node)
                    host.nodes[node] = NodeRun(node, 0, -1, care, -1)
        self._world.say(host, HostAssigned(host.number))

    def _goes(self, host: Host) -> None:
        host.going = True

    def _stops(self, host: Host) -> None:
        host.stopping = True

    def _save(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self._saving[node] = False

            def save(host: Host, node: int = node) -> None:
                if node in host.nodes:
                    host.nodes[node].saves = True

            self._world.order(self.placement[node], save)

    def _recover(self, nodes: Iterable[int]) -> None:
        """Start the next incarnations of nodes where they are placed now."""
        world = self._world
        for node in nodes:
            self.incarnations[node] = world.next_incarnation(node)
            self._started.discard(node)
            self._waiting.add(node)
            self._saving.pop(node, None)
            if world.heard[node] >= 0:
                self._back[node] = world.heard[node]
        self._serve()

    def _serve(self) -> None:
        """Send hosts that are ready the nodes that wait for them."""
        roster = self.membership.roster
        for node in sorted(self._waiting):
            at = self.placement[node]
            if at == DRIVER or at in roster.assigned:
                self._waiting.discard(node)
                self._start(node, at)

    def _start(self, node: int, at: int) -> None:
        world, incarnation = self._world, self.incarnations[node]
        care = self.membership.giving_up.care(node)

        def start(host: Host) -> None:
            if world.incarnations[node] != incarnation:
                return
            epoch = world.start_epoch(node, incarnation)
            host.nodes[node] = NodeRun(node, incarnation, epoch, care, world.heard[node])
            if world.shape.trouble == "brittle" and epoch >= 0 and host.number:
                world.kill(host)
                return
            world.say(host, Started(node, incarnation, epoch))

        world.order(at, start)
