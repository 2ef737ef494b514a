"""The hosts of a run: processes of nodes and replicas, their ring and clocks, and the membership.

The membership machine is the driver's own: it is told what hosts report and what the driver hears,
and decides which host is lost, where its nodes go, when another one is launched and when nodes go
home.  A step of the simulation takes ``STEP_MS``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.causal.graph import NodeKind
from penstock.core.control.controller import ControllerMachine, EndHosts, FlowPhase
from penstock.core.control.host_reports import RefusalCounts
from penstock.core.control.membership import Effect, MembershipMachine, MembershipPolicy
from penstock.core.control.membership_events import (
    AssignHost,
    CrashHost,
    FenceHost,
    HostAssigned,
    HostCameUp,
    HostRefused,
    HostSilent,
    JobEnded,
    JoinReplicas,
    LaunchHost,
    MembershipEvent,
    MoveNodes,
    NodesOpened,
    NodesProgressed,
    ProcessEnded,
    RecoverNodes,
    ReplaceReplicas,
    SaveNodes,
    Situation,
    StartAllNodes,
    TellRing,
    TimePassed,
)
from penstock.core.control.roster import DRIVER, Roster
from penstock.core.control.suspicion import ProcessState
from penstock.core.delivery.ring import (
    RingEffect,
    RingMember,
    SendPing,
    SendPong,
    TellSilence,
)
from penstock.core.progress.marks import EPOCH_END
from penstock.errors import HostLostError
from penstock.testing.simulator.host_monitor import HostMonitor
from penstock.testing.simulator.violations import Violation

if TYPE_CHECKING:
    from penstock.testing.simulator.world import World

__all__ = ["STEP_MS", "TICK", "Cluster", "Every", "Host"]

STEP_MS = 40
TICK = 5
"""Steps from one look at rings and membership to the next."""
GENERATION = 1000
"""Hosts of another driver have numbers from the next multiple on."""
INTERVAL_MS, TIMEOUT_MS = 200, 600
NEVER_COMES = 0.1
"""(Replicas) share of the hosts that are launched in a lost one's place and do not come up."""
BEAT_MS = 4 * INTERVAL_MS
"""How often hosts speak to the driver: more seldom than to each other, as in a running flow."""


class Every(NamedTuple):
    """Tell a node how many epochs there are from checkpoint to checkpoint from now on."""

    epochs: int


@dataclass(eq=False)
class Host:
    """A process that runs nodes and plays roles."""

    number: int
    """What the driver calls it."""
    key: int
    """A number that no host of any driver shares."""
    ring: RingMember
    alive: bool = True
    frozen_until: int = 0
    """It does nothing before this step."""
    muted_until: int = 0
    """Its pings, pongs and heartbeats are lost before this step; rows are not."""
    offset_ms: int = 0
    """How far its steady clock is ahead of the driver's."""
    wall_ms: int = 0
    """How far its calendar is ahead; may go back."""
    refused: bool = False
    beats_ms: int = 0
    """When it speaks to the driver next."""

    def __str__(self) -> str:
        return f"host {self.key}"


class Cluster:
    """All hosts, and what the driver knows of them.

    What a host plays, nodes or roles, is the affair of the world and of its replicated part.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.homes = self._planned()
        self.hosts: dict[int, Host] = {}
        self._generation = -1
        self._sees = world.long and world.random.random() < 0.5
        """Whether the driver can look at the processes of its hosts."""
        self._slept = False
        self._beats: set[int] = set()
        """Hosts that have spoken to the driver while it slept."""
        self._freezes = 0
        """For how many steps the driver is about to freeze."""

    def _planned(self) -> dict[int, int]:
        """Which host each node is planned for; 0 is the driver's."""
        world = self._world
        random, graph = world.random, world.shape.graph
        planned = dict(world.shape.hosts)
        if world.shape.replicated is not None:
            at = range(world.shape.replicated.workers + 1)
            return {node: random.choice(at) for node in graph.order}
        if not planned:
            workers = random.choice((1, 2, 2, 3, 4))
            at_driver = random.random() < 0.5
            for node in graph.order:
                sink = graph.kinds[node] is NodeKind.SINK
                planned[node] = DRIVER if sink and at_driver else random.randint(1, workers)
        used = sorted({at for at in planned.values() if at != DRIVER}) or [1]
        return {n: 0 if at == DRIVER else 1 + used.index(at) for n, at in planned.items()}

    # -- the driver ------------------------------------------------------------------------------

    def begin(self) -> None:
        """A driver starts a flow on hosts of its own; those of the driver before are orphans."""
        world = self._world
        random, graph = world.random, world.shape.graph
        self._generation += 1
        self._events: list[tuple[int, MembershipEvent]] = []
        """What will happen, and when."""
        self._fenced: set[int] = set()
        self._beats = set()
        roles = world.shape.replicated
        self.placement = dict(self.homes)
        if roles is not None:
            self.placement |= {node: roles.home_of(role) for role, node in roles.nodes.items()}
        standby = random.choice((0, 0, 1))
        workers = max(self.placement.values()) if roles is None else roles.workers
        roster = Roster(workers or 1, standby, self.now_ms)
        roster.homes = {n: at for n, at in self.homes.items() if at != DRIVER}
        life = ControllerMachine([DRIVER, *roster.hosts], self.placement, {}, drain_ms=1000)
        policy = MembershipPolicy(
            interval_ms=INTERVAL_MS,
            timeout_ms=TIMEOUT_MS,
            beat_ms=BEAT_MS,
            movable=graph.movable,
            names={node: f"node {node}" for node in self.placement},
        )
        self.membership = MembershipMachine(life, roster, self.placement, policy)
        self._monitor = HostMonitor(self, INTERVAL_MS, BEAT_MS)
        life.registered(DRIVER, "driver")
        self._add(DRIVER)
        for number in sorted(roster.hosts):
            self._add(number)
            self.take(HostCameUp(number, f"host {number}", None))
        for number in (DRIVER, *sorted(roster.hosts)):
            self.take(HostAssigned(number))
        if roles is None:
            self.take(NodesOpened())

    def _add(self, number: int) -> Host:
        key = self._generation * GENERATION + number
        ring = RingMember(number, INTERVAL_MS, TIMEOUT_MS)
        host = Host(number, key, ring, offset_ms=self._world.random.choice((0, 700, 40_000)))
        self.hosts[key] = host
        if self._world.replicas is not None:
            self._world.replicas.add(host)
        return host

    def of(self, number: int) -> Host | None:
        """The host that the present driver calls so."""
        return self.hosts.get(self.key(number))

    def lives(self, number: int) -> bool:
        """Whether the process of a host is there."""
        host = self.of(number)
        return host is not None and host.alive

    def refuses(self, key: int) -> bool:
        """Whether the driver refuses what comes from a host."""
        host = self.hosts[key]
        return key // GENERATION != self._generation or host.number in self._fenced

    def is_orphan(self, key: int) -> bool:
        """Whether a host belongs to an earlier driver."""
        return key // GENERATION != self._generation

    @property
    def now_ms(self) -> int:
        """The driver's clock."""
        return self._world.steps * STEP_MS

    def clock_us(self, key: int) -> int:
        """What the calendar of a host says."""
        return 1000 * (self.now_ms + self.hosts[key].wall_ms)

    @property
    def members(self) -> list[Host]:
        """The workers of the present driver that live."""
        first = self._generation * GENERATION
        return [host for key, host in self.hosts.items() if key > first and host.alive]

    def host_of(self, node: int) -> int:
        """The key of the host where a node runs, or is to run."""
        return self.key(self.placement[node])

    @property
    def host_of_driver(self) -> int:
        """The key of the driver's own host."""
        return self._generation * GENERATION

    def key(self, number: int) -> int:
        """The key of a host of the present driver."""
        return self._generation * GENERATION + number

    def reachable(self) -> list[int]:
        """The hosts of the present driver that it can tell something."""
        roster = self.membership.roster
        return [DRIVER, *(n for n in sorted(roster.hosts) if n in roster.assigned)]

    def answers(self, number: int) -> bool:
        """Whether a host hears what it is told now."""
        return self.lives(number) and not self.is_frozen(self.key(number))

    def can_run(self, node: int) -> bool:
        """Whether the host of a node can start it now."""
        number = self.placement[node]
        host = self.of(number)
        ready = number == DRIVER or number in self.membership.roster.assigned
        return host is not None and host.alive and ready and not self.is_frozen(host.key)

    def is_frozen(self, key: int) -> bool:
        """Whether a host does nothing now."""
        return self._world.steps < self.hosts[key].frozen_until

    def frozen(self) -> set[int]:
        """The hosts that do nothing now."""
        steps = self._world.steps
        return {key for key, host in self.hosts.items() if steps < host.frozen_until}

    @property
    def driver_sleeps(self) -> bool:
        """Whether the driver does nothing now."""
        return self.is_frozen(self.host_of_driver)

    @property
    def busy(self) -> bool:
        """Whether something will happen by itself."""
        steps = self._world.steps
        unnoticed = any(
            (host := self.of(number)) is not None and not host.alive
            for number in self.membership.roster.hosts
        )
        late = any(h.alive and h.frozen_until > steps for h in self.hosts.values())
        return unnoticed or late or bool(self._events)

    # -- time ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Hosts ping each other and the driver; the membership machine looks around."""
        world = self._world
        if self._slept and not self.driver_sleeps:  # it looks around before it listens
            self._monitor.woke()
            self._hear_what_waits()
            for number in sorted(self._beats):
                self.membership.heard(number, self.now_ms)
            self._beats.clear()
            self._slept = False
        for host in list(self.hosts.values()):
            if host.alive and not self.is_frozen(host.key):
                self._beat(host)
        if self.driver_sleeps:
            self._slept = True
            return
        if world.driver.controller is None:
            return
        self._hear_what_waits()
        epochs = {n: p.machine.completed_epoch for n, p in world.processes.items() if p.alive}
        if world.driver.rings is not None:
            epochs.update(world.driver.rings.progress())
        self.take(NodesProgressed(epochs))
        self._look_whether_all_started()
        situation = self._situation()
        self.take(TimePassed(world.driver.quiet, situation))
        if situation is not None and self._has_driver():
            self._monitor.stays(situation)
        if world.long and self._has_driver() and self._runs:
            silent = {n: self._is_silent(n) for n in self.membership.roster.hosts}
            muted = {host.number for host in self.members if world.steps < host.muted_until}
            self._monitor.looked(silent, muted, self.membership.suspicion.timeout_ms)
        if self._freezes:
            self.hosts[self.host_of_driver].frozen_until = world.steps + self._freezes
            self._freezes = 0

    @property
    def _runs(self) -> bool:
        """Whether all nodes and rings have started: hosts watch each other from then on."""
        return self.membership.life.phase is FlowPhase.RUNNING

    def _look_whether_all_started(self) -> None:
        """(Replicas) the flow runs when all nodes and all rings are open for the first time."""
        driver = self._world.driver
        if driver.rings is None or self.membership.life.phase is not FlowPhase.PREPARING:
            return
        if (
            driver.rings.machine.is_open
            and driver.controller is not None
            and driver.controller.open
        ):
            self.take(NodesOpened())

    def _is_silent(self, number: int) -> bool:
        host = self.of(number)
        return bool(host is None or not host.alive or self.is_frozen(host.key))

    def _hear_what_waits(self) -> None:
        """What was to happen by now does."""
        world = self._world
        due = [event for when, event in self._events if when <= world.steps]
        self._events = [(when, event) for when, event in self._events if when > world.steps]
        for event in due:
            if isinstance(event, HostCameUp):
                self._add(event.host)
            if not isinstance(event, HostAssigned) or self.lives(event.host):
                self.take(event)

    def _situation(self) -> Situation | None:
        world = self._world
        if world.driver.controller is None or not self.membership.looks_home(self.now_ms):
            return None
        return replace(self._situation_now(), saved=world.random.random() < 0.5)

    def _situation_now(self) -> Situation:
        world = self._world
        controller = world.driver.controller
        together = world.shape.global_every is not None
        settled = (
            controller is not None
            and controller.quiet
            and controller.open
            and not controller.record.limits
        )
        cuts = world.store.cuts.values()
        ending = any(ends and ends[-1].epoch == EPOCH_END for ends in cuts)
        return Situation(settled and not together, ending, saved=False)

    def _beat(self, host: Host) -> None:
        """One host's pings, and its word to the driver."""
        world = self._world
        if host.key // GENERATION != self._generation:
            return
        if host.number == DRIVER:
            if world.long:
                self._ring(host, host.ring.time_passed(self.now_ms + host.offset_ms, 0))
            return
        if world.steps >= host.muted_until and self.now_ms >= host.beats_ms:
            host.beats_ms = self.now_ms + BEAT_MS
            self._monitor.spoke(host.number)
            if host.number in self._fenced:
                if not self.driver_sleeps:
                    self._refuse(host)
                return
            if self.driver_sleeps:
                self._beats.add(host.number)
            else:
                self.membership.heard(host.number, self.now_ms)
        now_ms = self.now_ms + host.offset_ms
        self._ring(host, host.ring.time_passed(now_ms, self._load(host)))

    def _load(self, host: Host) -> int:
        """How much a host has to do."""
        replicas = self._world.replicas
        return 0 if replicas is None else replicas.agents[host.key].load

    def _refuse(self, host: Host) -> None:
        """A host that was declared lost speaks: it is refused, and ends itself soon."""
        world = self._world
        if not host.refused:
            host.refused = True
            world.count("zombie")
            self.take(HostRefused(host.number, RefusalCounts(messages=1)))
        elif world.random.random() < 0.05:
            self.kill(host)

    def _ring(self, host: Host, effects: list[RingEffect]) -> None:
        world = self._world
        for effect in effects:
            if isinstance(effect, TellSilence):
                if world.steps >= host.muted_until and world.driver.controller is not None:
                    self._report(host.number, effect)
                continue
            other = self.of(effect.to)
            if other is None or not other.alive or self.is_frozen(other.key):
                continue
            muted = world.steps < max(host.muted_until, other.muted_until)
            if muted or not world.network.links.passes(host.key, other.key):
                continue
            if isinstance(effect, SendPing):
                load = self._load(other)
                answers = other.ring.pinged(host.number, effect.beat, effect.loads, load)
                self._ring(other, answers)
            elif isinstance(effect, SendPong):
                other.ring.ponged(host.number, effect.loads, self.now_ms + other.offset_ms)

    def _report(self, by: int, said: TellSilence) -> None:
        """A host says that another one is silent."""
        seen = HostSilent(by, said.host, said.silent_ms, self._seen(said.host), said.loads)
        if self.driver_sleeps:
            self._events.append((self._world.steps, seen))
        else:
            self.take(seen)

    def _seen(self, number: int) -> ProcessState:
        """What the driver sees of the process of a host, if it can see any."""
        if not self._sees:
            return ProcessState.UNSEEN
        host = self.of(number)
        if host is None or not host.alive:
            return ProcessState.STOPPED
        if self.is_frozen(host.key):
            return ProcessState.SLEEPING if host.frozen_until % 2 else ProcessState.STOPPED
        return ProcessState.SLEEPING if self._world.random.random() < 0.5 else ProcessState.RUNNING

    # -- the membership machine ------------------------------------------------------------------

    def take(self, event: MembershipEvent) -> None:
        """Tell the membership machine, and do what it asks for, unless the driver is gone."""
        if self._has_driver():
            for effect in self.membership.take(event, self.now_ms):
                if self._has_driver():
                    self._check(event, effect)
                    self._perform(effect)
            if isinstance(event, HostAssigned) and event.host in self.membership.roster.assigned:
                self._monitor.up(event.host)

    def _check(self, event: MembershipEvent, effect: Effect) -> None:
        """What the machine decides is right."""
        match effect:
            case FenceHost(_, number):
                self._monitor.lost(number, event)
            case RecoverNodes(_, lost, takers):
                roster = self.membership.roster
                self._monitor.placed(lost, takers.values(), roster.assigned - {DRIVER})
            case MoveNodes(_, places):
                now = self._situation_now()
                self._monitor.moves(places, now.settled, now.ending)
            case _:
                pass

    def _has_driver(self) -> bool:
        return self._world.driver.controller is not None

    def _perform(self, effect: Effect) -> None:
        world = self._world
        later = world.steps + world.random.choice((1, 10, 60))
        match effect:
            case FenceHost(_, number):
                world.note(f"driver declares host {number} lost")
                self._fenced.add(number)
                if world.replicas is not None:
                    world.replicas.fenced(self.key(number))
            case StartAllNodes():
                if world.driver.rings is not None:
                    world.driver.rings.begin()
            case RecoverNodes(_, lost, takers):
                nodes = {node: at for node, at in takers.items() if node in self.homes}
                self.placement.update(nodes)
                world.driver.lose_host(lost, nodes)
            case ReplaceReplicas(_, lost, heir):
                if world.driver.rings is not None:
                    world.driver.rings.host_lost(lost, heir)
            case JoinReplicas(_, number):
                if world.driver.rings is not None:
                    world.driver.rings.host_ready(number)
            case MoveNodes(_, places):
                self.placement.update(places)
                world.count("moved")
                world.driver.lose(places)
            case SaveNodes(_, nodes):
                self._save(nodes)
            case LaunchHost(_, number):
                self._events.append((later, self._comes_up(number)))
            case AssignHost(_, number):
                self._events.append((later, HostAssigned(number)))
            case TellRing(_, number, next_, _, interval_ms, timeout_ms):
                host = self.of(number)
                if host is not None:
                    if host.ring.timing != (interval_ms, timeout_ms):
                        host.ring = RingMember(number, interval_ms, timeout_ms)
                    host.ring.rewired(next_, self.now_ms + host.offset_ms)
            case CrashHost(_, number):
                host = self.of(number)
                if host is not None:
                    self.kill(host)
            case EndHosts():
                raise Violation("Eventuality", f"the flow failed: {self.membership.life.failure}")
            case _:
                pass  # what is about connections and people has no part in this world

    def _comes_up(self, number: int) -> MembershipEvent:
        """What becomes of a host that is launched."""
        if self._world.replicas is not None and self._world.random.random() < NEVER_COMES:
            return JobEnded(number, HostLostError(f"host {number} was lost: no process").to_dict())
        return HostCameUp(number, f"host {number}", None)

    def _save(self, nodes: Iterable[int]) -> None:
        """Nodes are asked to save their states before they move."""
        for node in nodes:
            process = self._world.processes[node]
            if process.alive and process.machine.stateful and node not in self._world.every:
                process.machine.checkpoints.due = True

    # -- faults ----------------------------------------------------------------------------------

    def kill(self, host: Host, machine: bool = False) -> None:
        """A host's process ends, or its whole ``machine``."""
        world = self._world
        if not host.alive:
            return
        host.alive = False
        world.note(host, "dies")
        for process in (*world.processes.values(), *world.zombies):
            if process.host == host.key and process.alive:
                world.end(process, machine)
        if world.replicas is not None:
            world.replicas.died(host)
        if host.key // GENERATION == self._generation and host.number not in self._fenced:
            when = world.steps + world.random.choice((1, 5, 40, 400))
            self._events.append((when, ProcessEnded(host.number)))

    def freeze_driver(self, steps: int) -> None:
        """When the driver has next looked around it does nothing for a while; hosts go on."""
        self._freezes = steps

    def orphan(self) -> None:
        """The driver is gone: its hosts end, but for some that do not notice in time."""
        for host in [h for h in self.hosts.values() if h.alive]:
            if host.number == DRIVER or self._world.random.random() < 0.8:
                self.kill(host)
