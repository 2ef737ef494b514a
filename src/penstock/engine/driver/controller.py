"""The controller on the driver: performs what the machines of :mod:`penstock.core.control` decide.

One thread takes events (from hosts' channels, from Spark jobs, from the user) out of a queue, gives
them to the machines and performs the effects.  What it is made of:

    machine    the life of the flow, from its hosts' registration to its end
    members    which hosts there are, and where nodes run
    recovery   restarts of nodes; ``replicas`` for those that replicas play
    links      orders to hosts
    launcher   what runs hosts

The driver is a host of its own, number 0, for the sinks and sources that must live there; its loop
runs in another thread.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, assert_never

from penstock.core.control.assignment import Assignment, EpochGrid, PlanOrders, SourceRules
from penstock.core.control.controller import (
    Assign,
    CancelJobs,
    Commit,
    ControllerEffect,
    ControllerMachine,
    Ended,
    EndHosts,
    FlowPhase,
    Go,
    LeaveHosts,
    StopSources,
)
from penstock.core.control.figures import NodeFigures
from penstock.core.control.followers import Followers
from penstock.core.control.host_orders import (
    EndHost,
    EndStreams,
    ForgetUpTo,
    GoOn,
    MoveFrontier,
    StartReading,
    TakeAssignment,
)
from penstock.core.control.host_reports import ProgressMade, StageCalled
from penstock.core.control.membership import MembershipMachine
from penstock.core.control.membership_events import HostAssigned
from penstock.core.control.messages import RingPing, RingPong, RoleEnvelopes
from penstock.core.control.roster import DRIVER, Roster, RosterEntry
from penstock.core.progress.marks import EPOCH_END
from penstock.engine.driver.closing import close_all
from penstock.engine.driver.commits import Commits
from penstock.engine.driver.event_queue import Event, EventQueue
from penstock.engine.driver.frames import Frames
from penstock.engine.driver.launcher import Job, Launcher
from penstock.engine.driver.links import HostLinks
from penstock.engine.driver.live_plan import LivePlan
from penstock.engine.driver.members import Calls, Members, Parts, membership_policy, now_ms
from penstock.engine.driver.prepare import PreparedRun
from penstock.engine.driver.progress_hub import ProgressHub
from penstock.engine.driver.pulse import Pulse
from penstock.engine.driver.recovery import EpochFacts, Recovery
from penstock.engine.driver.recovery_place import RecoveryPlace, recovery_place
from penstock.engine.driver.replicas import Replicas
from penstock.engine.driver.shipping import (
    driver_sinks,
    memory_sources,
    without_driver_operators,
)
from penstock.engine.driver.targets import release_targets
from penstock.engine.host.causal_agent import CausalAgent
from penstock.engine.host.clock import EpochClock, now_us
from penstock.engine.host.host import Host
from penstock.engine.host.task import (
    HostTask,
    build_nodes,
    forget,
    stop_sources,
)
from penstock.engine.host.transport import Transport, TransportCalls
from penstock.errors import (
    InvariantError,
    PenstockError,
)
from penstock.planning.causal_graph import causal_graph
from penstock.planning.replica_plan import replicated_nodes
from penstock.planning.tracking import tracking_plans
from penstock.storage.objects import given_store
from penstock.wire.control import Control, decode_to_driver

__all__ = ["Controller"]

log = logging.getLogger(__name__)

TURN_S = 0.1
"""How often the controller's thread looks at the time when nothing happens."""
PING_S = 0.5
END_S = 0.7
"""How long the driver's own host may take to end."""


class Controller:
    """Runs one flow on a session."""

    def __init__(
        self,
        launcher: Launcher,
        run: PreparedRun,
        driver_address: tuple[str, str],
        on_progress: Callable[[], None],
        on_ended: Callable[[PenstockError | None], None],
    ) -> None:
        plan, settings, store, resume = run.plan, run.settings, run.store, run.resume
        self.plan = plan
        self.settings = settings
        self.store = store
        roster = Roster(run.hosts, settings.spares, now_ms())
        self.hosts: Mapping[int, RosterEntry] = roster.hosts
        self.placement = plan.place(roster.workers, DRIVER)
        self.resume = resume
        self.base = run.base
        self.started_us = now_us()
        self.clock: EpochClock | None = None
        self.sink_latency_us: dict[str, int] = {}
        self.tracking = tracking_plans(plan, whole=settings.progress == "tracked")
        self.hubs = {
            unit.unit: ProgressHub(plan, unit, resume, self._broadcast) for unit in self.tracking
        }
        self._launcher = launcher
        self._jobs: dict[int, Job] = {}
        self._secret = secrets.token_hex(16)
        self._on_progress = on_progress
        self._on_ended = on_ended
        self.events = EventQueue()
        self._shipped = without_driver_operators(plan)
        self._stopping = False
        self._place: RecoveryPlace | None = None
        self.frames = Frames(launcher, plan, self._on_failure)
        self._over = threading.Event()
        self.machine = ControllerMachine(
            hosts=[DRIVER, *roster.hosts],
            nodes=self.placement,
            sinks={name: list(chain.nodes) for name, chain in plan.sinks},
            drain_ms=settings.us("drainTimeout") // 1000,
            completed=resume,
            start_ms=settings.us("startTimeout") // 1000,
        )
        self.host = self._make_host(driver_address[0])
        address = self.host.transport.address.replace(*driver_address, 1)
        self.links = HostLinks(self.host, address, roster)
        self._pulse = Pulse(self.links, PING_S, self._over)
        self.recovery = self._make_recovery()
        self.replicas = self._make_replicas()
        stalls = None if self.recovery is None else self.recovery.stalls
        self._commits = Commits(store, self.machine.committed, resume, stalls)
        self.live_plan: LivePlan | None = None
        self.followers: Followers | None = None
        if self.recovery is not None:
            if settings.followed_s is not None:
                self.followers = Followers(self.recovery.incarnations)
            to_agents = self.links.to_agents
            self.live_plan = LivePlan(self.recovery, settings, to_agents, self.events.later)
        self.members = self._make_members(roster)
        self._thread = threading.Thread(target=self._run, name="penstock-controller", daemon=True)
        self._host_thread = threading.Thread(
            target=self.host.run, name="penstock-driver-host", daemon=True
        )

    def _make_host(self, bind: str) -> Host:
        """The driver's own host."""
        return Host(
            DRIVER,
            lambda host: Transport(
                DRIVER,
                bind,
                self._secret,
                TransportCalls(
                    host.arrived,
                    self._control_arrived,
                    host.wake,
                    lambda peer, why: self.members.broken(peer, why),
                    self._on_failure,
                ),
                self.settings.windowBytes,
                self.settings.tuning,
            ),
            self._on_failure,
            self._driver_sink,
            lambda node: self.events.post(lambda: self._finished(node)),
        )

    def _make_members(self, roster: Roster) -> Members:
        """The machine that decides about hosts, and what performs it."""
        roles = replicated_nodes(self.plan)  # these go home by themselves
        roster.homes = {
            n: at for n, at in self.placement.items() if at != DRIVER and n not in roles
        }
        policy = membership_policy(self.plan, self.settings, self.recovery, self._launcher)
        machine = MembershipMachine(self.machine, roster, self.placement, policy)
        if self.recovery is not None:
            self.recovery.orders.care = machine.giving_up.care
            machine.giving_up.recorded(self.recovery.skipped.read())
        return Members(
            machine,
            self.placement,
            Parts(self.recovery, self.replicas, self.followers, self.live_plan),
            self.links,
            Calls(
                self._launch,
                self._assignment,
                self._effect,
                self._sink,
                self._finished,
                lambda stage: self.plan.on_error(stage) == "restart",
            ),
            self.events,
        )

    def _make_recovery(self) -> Recovery | None:
        """Recovery, where the flow has it."""
        place = recovery_place(self.plan, self.settings, self.store, self._launcher.one_machine)
        if place is None:
            return None
        self._place = place
        if isinstance(place.directory, Path):
            self.plan.keep_in(place.directory, place.sync)
        return Recovery(
            self.plan,
            causal_graph(self.plan),
            place,
            self.placement,
            self.links,
            EpochFacts(self._committed, self._node_started),
            self.hubs,
            self.settings,
        )

    def _make_replicas(self) -> Replicas | None:
        """The rings of replicas, where the flow has any."""
        if self.recovery is None or not replicated_nodes(self.plan):
            return None
        links = self.links
        return Replicas(self.plan, self.recovery, self.placement, links.to_agent, links.addresses)

    @property
    def homes(self) -> dict[int, int]:
        """Per node: the host that it belongs to."""
        return self.members.machine.roster.homes

    # -- called by the handle --------------------------------------------------------------------

    def start(self) -> None:
        """Launch the hosts and begin."""
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(self._switch_interval_s, self.settings.tuning.switch_interval_s))
        self._host_thread.start()
        self._pulse.start()
        self.events.post(lambda: self.machine.registered(DRIVER, self.links.address))
        for number in self.hosts:
            self._launch(number)
        self._thread.start()

    def _launch(self, slot: int) -> None:
        """Have a host run."""
        task = HostTask(
            slot,
            self._shipped,
            self.links.address,
            self.tracking,
            self._secret,
            self.settings.s("lease"),
            self.settings.windowBytes,
            self.settings.tuning,
            None if self.store is None else given_store(self.store.storage),
        )
        keep_memory = self.replicas is not None
        job = self._jobs[slot] = self._launcher.host_job(task, self.members.job_ended, keep_memory)
        job.start()

    def stop(self) -> None:
        """Ask for an orderly end."""
        for operator in driver_sinks(self.plan).values():
            operator.stopping()
        self.frames.stop()
        self.events.post(lambda: self.machine.stop_asked(now_ms()))

    def figures(self) -> dict[int, NodeFigures]:
        """The latest figures of every node."""
        merged = {node: runner.figures() for node, runner in list(self.host.nodes.items())}
        for figures in list(self.members.figures.values()):
            merged.update(figures)
        return merged

    def frontiers(self) -> dict[int, list[tuple[int, ...]]]:
        """The frontier of each chain whose progress is tracked, for people."""
        return {chain: at for hub in self.hubs.values() for chain, at in hub.frontiers().items()}

    def incarnation(self, node: int) -> int:
        """The present incarnation of a node."""
        if self.recovery is None:
            return 0
        taken = None if self.replicas is None else self.replicas.incarnation(node)
        return self.recovery.incarnations()[node] if taken is None else taken

    # -- events ----------------------------------------------------------------------------------

    def _control_arrived(self, peer: int, packed: Control) -> None:
        message = decode_to_driver(packed, peer)
        if isinstance(message, ProgressMade):  # frequent, and needs no turn of this thread
            self._progress_made(peer, message)
            return
        self.members.machine.heard(peer, now_ms())
        match message:
            case RingPing() | RingPong():
                self.members.ring.take(peer, message)
            case RoleEnvelopes():
                agent = self.links.agent
                if agent is not None:
                    self.host.call(lambda: agent.take(message))
            case _:
                if isinstance(message, StageCalled):  # it waits until this was heard
                    self.host.transport.control(peer, GoOn())
                self.events.post(lambda: self.members.reported(peer, message))

    def _finished(self, node: int) -> list[ControllerEffect]:
        """A node has come to its end; with a replicated part's last sink the part has."""
        ended = [node] if self.replicas is None else self.replicas.finished(node)
        return [effect for one in ended for effect in self.machine.node_finished(one)]

    def _progress_made(self, host: int, made: ProgressMade) -> None:
        try:
            self.hubs[made.unit].receive(host, made)
        except PenstockError as error:
            self._on_failure(error)

    def _broadcast(self, moved: MoveFrontier) -> None:
        """Frontiers for all hosts; under the hub's lock, so that all hear the same order."""
        self.links.to_all(moved)
        if self.host.tracks:
            self.host.call(lambda: self.host.frontier_moved(moved))

    def _driver_sink(self, sink: str, node: int, epoch: int, cut_us: int) -> None:
        """Called in the driver host's loop when an epoch is complete at a sink there."""
        operator = driver_sinks(self.plan).get(sink)
        if operator is not None and epoch < EPOCH_END:
            operator.advance(epoch)
        self.events.post(lambda: self._sink(sink, node, epoch, cut_us))

    def _sink(self, sink: str, node: int, epoch: int, cut_us: int) -> list[ControllerEffect]:
        if epoch >= EPOCH_END:
            self.frames.input_ended(sink)
            return []
        if cut_us:
            self.sink_latency_us[sink] = now_us() - cut_us
        return self.machine.sink_completed(sink, node, epoch)

    def _node_started(self, node: int, epoch: int) -> None:
        self.events.post(lambda: self.machine.node_started(node, epoch))

    def _on_failure(self, error: PenstockError) -> None:
        if self.machine.phase not in (FlowPhase.ENDING, FlowPhase.ENDED):
            # Before the driver's loop closes them, which would look like an orderly end.
            for operator in driver_sinks(self.plan).values():
                operator.fail(error)
        self.events.post(lambda: self.machine.failed(error.to_dict()))

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._take_turns()
        except Exception as error:
            log.exception("the controller's thread failed")
            self._break_off(InvariantError(f"controller: {type(error).__name__}: {error}"))

    def _take_turns(self) -> None:
        ping_at = progress_at = 0.0
        while not self._over.is_set():
            event = self.events.get(TURN_S)
            if event is not None:
                self._perform(event)
            self._perform(self._try_again)
            self._perform(self._time_passed)
            now = time.monotonic()
            if now >= ping_at:
                ping_at = now + PING_S
                self._perform(self._ping)
            if now >= progress_at:
                progress_at = now + self.settings.s("progressInterval")
                self._perform(self._observe)

    def _ping(self) -> list[ControllerEffect]:
        """Tell all hosts that the driver lives, and what may be forgotten."""
        committed = min(self.machine.committed.values(), default=self.resume)
        lows = {} if self.recovery is None else self.recovery.lows()
        order = ForgetUpTo(committed, lows)
        self.links.to_all(order)
        self._pulse.spoken()
        self.host.call(partial(forget, self.host, self.links.agent, order))
        return []

    def _observe(self) -> list[ControllerEffect]:
        if self.live_plan is not None:
            self.live_plan.observe(self.figures())
        self._on_progress()
        return []

    def stalls(self) -> list[dict[str, Any]]:
        """Who waits for the store, or for a sink's folder."""
        return [] if self.recovery is None else self.recovery.stalls.now()

    def _committed(self, sink: str) -> int:
        """The last epoch of a sink that is recorded, or need not be."""
        return self._commits.last(sink, self.machine.committed[sink])

    def _try_again(self) -> list[ControllerEffect]:
        """Write what could not be written."""
        if self.recovery is not None:
            self.recovery.try_again()
        if self.replicas is not None:
            self.replicas.try_again()
        self._commits.try_again()
        return []

    def _time_passed(self) -> list[ControllerEffect]:
        """Deadlines and what waits for its time."""
        self.members.time_passed(self._some_node_has_ended)
        draining = self.machine.phase is FlowPhase.DRAINING
        effects = self.machine.time_passed(now_ms())
        if draining and effects:
            log.warning(
                "not everything reached the sinks within %s; epochs that were not published will "
                "be made again by the next run",
                self.settings.drainTimeout,
            )
        return effects

    def _some_node_has_ended(self) -> bool:
        return any(one.epoch >= EPOCH_END for one in self.figures().values())

    def _perform(self, event: Event) -> None:
        try:
            for effect in event():
                self._effect(effect)
        except PenstockError as error:
            self._fail(error)
        except Exception as error:
            log.exception("the controller failed")
            self._fail(PenstockError(f"controller: {type(error).__name__}: {error}"))

    def _fail(self, error: PenstockError) -> None:
        for effect in self.machine.failed(error.to_dict()):
            self._effect(effect)

    def _effect(self, effect: ControllerEffect) -> None:
        match effect:
            case Assign():
                self._assign()
            case Go():
                self.links.to_all(StartReading())
                self.host.call(self.host.start_sources)
                self.frames.start()
            case StopSources():
                self._stopping = True
                self.links.to_all(EndStreams())
                self.host.call(lambda: stop_sources(self.host, self.links.agent))
            case Commit():
                self._commits.add(effect.sink, effect.epoch)
                self.frames.advance(effect.sink, effect.epoch)
            case EndHosts():
                self._end_hosts()
            case CancelJobs():
                self._launcher.cancel()
            case LeaveHosts(hosts):
                log.warning("hosts %s did not end: they are left behind", list(hosts))
            case Ended():
                self._finish(effect)
            case _:
                assert_never(effect)

    def _end_hosts(self) -> None:
        failure = self.machine.failure
        if failure is not None:
            error = PenstockError.from_dict(dict(failure))
            for operator in driver_sinks(self.plan).values():
                operator.fail(error)
        self.links.to_all(EndHost())
        self.host.end()
        threading.Thread(target=self._await_driver_host, daemon=True).start()
        for slot in self.machine.unended:
            job = self._jobs.get(slot)
            if slot != DRIVER and (job is None or job.ended.is_set()):
                # It was never launched, or its end was heard when it was lost.
                self.events.post(partial(self.machine.host_ended, slot, None))

    def _assign(self) -> None:
        self.started_us = now_us()
        self.clock = EpochClock.starting(
            self.base, self.started_us, self.settings.us("epochInterval")
        )
        assignment = self._assignment()
        self.links.to_all(TakeAssignment(assignment))
        self.host.call(lambda: self._build_here(assignment))

    def _assignment(self) -> Assignment:
        """What a host must know of the run."""
        clock, settings, rules = self.clock, self.settings, None
        if clock is None:
            raise InvariantError("nothing is assigned before the epochs have begun")
        if self.recovery is not None:
            plan = PlanOrders() if self.live_plan is None else self.live_plan.orders
            in_row = None if self.replicas is None else self.replicas.run
            rules = self.recovery.rules(settings, plan, self._launcher.one_machine, in_row)
        up = {one.number: one.address for one in self.hosts.values() if one.address}
        return Assignment(
            addresses={DRIVER: self.links.address, **up},
            placement=dict(self.placement),
            epochs=EpochGrid(clock.base, clock.origin_us, clock.interval_us),
            resume=self.resume,
            store=None if self.store is None else self.store.storage.address,
            sources=SourceRules(
                self.started_us,
                settings.availableNow,
                settings.rowsMax,
                settings.gathering,
                stopping=self._stopping,
            ),
            progress={unit: hub.first for unit, hub in self.hubs.items()},
            delays_us=dict(self.links.delays_us),
            recovery=rules,
        )

    def _build_here(self, assignment: Assignment) -> None:
        self.host.on_progress = lambda made: self.hubs[made.unit].receive(DRIVER, made)
        plan, tracking, rules = self.plan, self.tracking, assignment.recovery
        if rules is not None:
            told = self.members.told_here
            self.links.agent = CausalAgent(self.host, plan, tracking, assignment, rules, told)
            self.events.later(lambda: self.members.take(HostAssigned(DRIVER)))
        else:
            build_nodes(self.host, plan, tracking, assignment)
            for operator in driver_sinks(self.plan).values():
                operator.resume(self.resume + 1)
            self.events.post(lambda: self.machine.ready(DRIVER))
        for source in memory_sources(self.plan):
            source.on_push = self.host.wake

    def _await_driver_host(self) -> None:
        """The driver's loop may be stuck in a user's function: do not wait for it for ever."""
        self.host.ended.wait(END_S)
        self.events.post(lambda: self.machine.host_ended(DRIVER, None))

    def _finish(self, effect: Ended) -> None:
        failure = effect.failure
        self._close(None if failure is None else PenstockError.from_dict(dict(failure)))

    def _break_off(self, error: PenstockError) -> None:
        """The thread cannot go on: end what can be ended, so that nobody waits for it in vain."""
        sinks = driver_sinks(self.plan).values()
        close_all([partial(sink.fail, error) for sink in sinks])
        close_all([lambda: self.links.to_all(EndHost()), self.host.end, self._launcher.cancel])
        self._close(error)

    def _close(self, error: PenstockError | None) -> None:
        """Give everything back; what cannot be closed fails the flow."""
        failed = close_all([self.frames.close])
        error = error or failed
        for source in memory_sources(self.plan):
            source.on_push = None
            if error is not None:
                source.fail(error)
        failed = close_all(self._closers())
        self._over.set()
        self._on_ended(error or failed)

    def _closers(self) -> Iterator[Callable[[], object]]:
        yield lambda: sys.setswitchinterval(self._switch_interval_s)
        yield self.host.transport.close
        if self.links.agent is not None:
            yield self.links.agent.close
        if self.recovery is not None:
            yield self.recovery.story.close
        if self._place is not None:
            yield self._place.close
        for operator in driver_sinks(self.plan).values():
            yield operator.end
        yield lambda: release_targets(self.plan)
        if self.store is not None:
            yield self.store.close
        yield self._on_progress
