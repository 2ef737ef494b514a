"""Who belongs to a running flow: hosts come up, are lost, are replaced, and get their nodes back.

Theory of operation
-------------------
The life of a flow (:mod:`.controller`) says which of three things a loss means:

    nothing started yet    launch another host in its place (``starts_again``)
    the flow runs          fence it, place its nodes, recover them, launch another (``recovers``)
    otherwise              the flow fails

A host is lost when one of these is believed (:mod:`.suspicion`): the ring's word that it is silent,
a connection that broke and a process that no longer listens, the end of its job, a newer attempt of
its task that registers, an error of a stage that wants to be restarted, or a long silence towards
the driver.  Whatever comes first decides; later news of a host that is gone changes nothing.

A loss has one order of effects:

    FenceHost         the driver refuses the host, so that nothing below can race with its word
    RecordSkipped     if it is known by now which row of a stage that may skip has ended it
    StopFollowing     hosts that take nodes keep up with nothing else any more
    RecoverNodes      the nodes start where :mod:`.placement` puts them
    ReplaceReplicas   siblings take the roles over; JoinReplicas if the heir is ready already
    TellRing          those who are left watch each other
    LaunchHost        a fresh host; not before the recovery is over, unless nodes wait for it: a
                      process that comes up takes processor time from the nodes that recover

Before any of it the loss is counted (:mod:`.giving_up`): one too many ends the flow instead.

The flow starts when every host can take nodes, all nodes together; it runs when every edge is open.
Nodes go home later (:mod:`.homecoming`).

How it is driven
----------------
``take(event, now_ms)`` returns the effects of an event, in the order in which they are to be
performed.  Effects of the flow's life are among them.  Milliseconds may count from anywhere, but
never go back.  ``heard`` is the one thing that is no event, because it is frequent: it may be
called from any thread.

The machine reads the placement of nodes and never writes it: those who perform ``PlaceNodes``,
``RecoverNodes`` and ``MoveNodes`` do, before the next event.  After every batch of events give it
``TimePassed``, at least ten times a second, with a :class:`~.membership_events.Situation` whenever
``looks_home(now_ms)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from penstock.core.control.controller import ControllerEffect, ControllerMachine, Failure, FlowPhase
from penstock.core.control.giving_up import GivingUp, Judgement
from penstock.core.control.homecoming import Homecoming
from penstock.core.control.launches import Launches
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
    MembershipEffect,
    MembershipEvent,
    NodesOpened,
    NodesProgressed,
    NoteRefused,
    PlaceNodes,
    ProbeHost,
    ProcessEnded,
    RecordSkipped,
    RecoverNodes,
    ReplaceReplicas,
    ServeHost,
    StartAllNodes,
    StartHost,
    StopFollowing,
    TellRing,
    TimePassed,
    Warn,
)
from penstock.core.control.placement import Placement
from penstock.core.control.roster import DRIVER, SLOTS, Roster, RosterEntry, is_retry
from penstock.core.control.suspicion import BEAT_MS, Suspicion, Verdict
from penstock.core.delivery.takeover import Takeover
from penstock.errors import HostLostError

__all__ = ["Effect", "MembershipMachine", "MembershipPolicy"]

CHECK_MS = 500
"""How often the driver looks for hosts that it has not heard."""
LOSSES_KEPT = 1_000
"""How many lost hosts are remembered, in case they speak again."""

Effect = MembershipEffect | ControllerEffect


@dataclass(frozen=True)
class MembershipPolicy:
    """What the flow's settings and its plan say about hosts."""

    recovers: bool = True
    """Whether the flow survives the loss of a host at all."""
    interval_ms: int = 50
    """How often hosts ping each other; 0: they do not."""
    timeout_ms: int = 150
    host_timeout_ms: int = 60_000
    beat_ms: int = BEAT_MS
    """How often hosts speak to the driver."""
    takeover: Takeover = Takeover.LEAST_LOADED
    reinstate: bool = True
    """Whether nodes go home."""
    retried: bool = False
    """Whether the cluster manager starts a task that died again by itself."""
    followed: bool = False
    """Whether spares keep up with the states of all nodes."""
    movable: frozenset[int] = frozenset()
    """Nodes that may go home."""
    names: Mapping[int, str] = field(default_factory=dict)
    """The names of the nodes."""
    skipping: frozenset[int] = frozenset()
    """Nodes with a stage that may skip rows."""


@dataclass
class _Loss:
    lost_ms: int
    silent: bool
    """Whether it was lost only because it was silent."""
    spoke: bool = False


class MembershipMachine:
    """Decides which hosts belong to a flow, and where its nodes are.

    >>> life = ControllerMachine([DRIVER, 1, 2], [7], {"out": [7]}, drain_ms=1000)
    >>> machine = MembershipMachine(life, Roster(2, standby=0), {7: 1}, MembershipPolicy())
    >>> life.registered(DRIVER, "d")
    []
    >>> machine.take(HostCameUp(1, "a", 11), 0)
    [ConnectHost(cause=1, host=1, address='a')]
    >>> machine.take(HostCameUp(2, "b", 12), 0)[-1]
    Assign(addresses={0: 'd', 1: 'a', 2: 'b'})
    >>> [machine.take(HostAssigned(host), 0) for host in (DRIVER, 1, 2)][-1]
    [StartAllNodes(cause=5)]
    >>> [type(effect).__name__ for effect in machine.take(NodesOpened(), 0)]
    ['Go', 'TellRing', 'TellRing', 'TellRing']
    >>> effects = machine.take(ProcessEnded(1), 10)
    >>> effects[0], effects[1].takers
    (FenceHost(cause=7, host=1), {7: 2})
    """

    def __init__(
        self,
        life: ControllerMachine,
        roster: Roster,
        placement: Mapping[int, int],
        policy: MembershipPolicy,
    ) -> None:
        self.life = life
        self.roster = roster
        self.policy = policy
        self.placement = placement
        """Where nodes run; kept current by those who perform the effects."""
        self.suspicion = Suspicion(
            policy.interval_ms, policy.timeout_ms, policy.host_timeout_ms, policy.beat_ms
        )
        self.giving_up = GivingUp(policy.names, policy.skipping)
        self.homecoming = Homecoming(roster, placement, policy.movable)
        self.cause = 0
        """The number of the newest event."""
        self._places = Placement(roster, policy.takeover)
        self._launches = Launches()
        self._begun = False
        """Whether nodes were told to start."""
        self._over: set[int] = set()
        """Slots whose jobs have ended."""
        self._lost: dict[int, _Loss] = {}
        self._check_ms = 0

    # -- what is known ---------------------------------------------------------------------------

    @property
    def recovers(self) -> bool:
        """Whether the flow survives the loss of a host now."""
        phase = self.life.phase
        runs = phase in (FlowPhase.RUNNING, FlowPhase.DRAINING)
        return self.policy.recovers and (runs or (phase is FlowPhase.PREPARING and self._begun))

    @property
    def starts_again(self) -> bool:
        """Whether a host that is lost now is just launched again: no node was started yet."""
        starts = self.life.phase in (FlowPhase.LAUNCHING, FlowPhase.PREPARING)
        return self.policy.recovers and starts and not self._begun

    @property
    def begun(self) -> bool:
        """Whether nodes were told to start."""
        return self._begun

    def looks_home(self, now_ms: int) -> bool:
        """Whether ``TimePassed`` needs a situation now."""
        return (
            self.policy.recovers
            and self.policy.reinstate
            and self.life.phase is FlowPhase.RUNNING
            and self.homecoming.is_due(now_ms)
        )

    def nodes_of(self, host: int) -> list[int]:
        """The nodes that run on a host."""
        return [node for node, at in self.placement.items() if at == host]

    # -- events ----------------------------------------------------------------------------------

    def heard(self, host: int, now_ms: int) -> None:
        """Something came from a host."""
        member = self.roster.hosts.get(host)
        if member is not None:
            member.heard_ms = now_ms

    def take(self, event: MembershipEvent, now_ms: int) -> list[Effect]:
        """The effects of an event."""
        self.cause += 1
        self.suspicion.looked(self.roster.hosts.values(), now_ms)
        if self._is_stale(event):
            return []
        match event:
            case HostCameUp():
                return self._registered(event, now_ms)
            case HostAssigned(host):
                return self._ready(host)
            case NodesOpened():
                return self._opened()
            case HostSilent():
                return self._silent(event, now_ms)
            case HostRefused():
                return self._refused(event, now_ms)
            case HostRaised(host, failure, restarts):
                if restarts and self.recovers:
                    return self._lose(host, failure["message"], now_ms, failure=failure)
                return [*self.life.failed(failure)]
            case HostWorking(host, words):
                self.giving_up.working(host, words)
            case LoadsMeasured(loads):
                self._places.measured(loads)
            case NodesProgressed(epochs):
                self.giving_up.progressed(epochs)
            case ConnectionBroken(host):
                member = self.roster.hosts.get(host)
                if member is not None and member.address and self.recovers:
                    return [ProbeHost(self.cause, host, member.address)]
            case ProcessEnded(host):
                if self.recovers:
                    return self._lose(host, "its process ended", now_ms)
            case JobEnded(slot, failure):
                return self._job_ended(slot, failure, now_ms)
            case TimePassed():
                return self._time_passed(event, now_ms)
            case _:
                assert_never(event)
        return []

    def _is_stale(self, event: MembershipEvent) -> bool:
        """Whether this is the word of a host that was declared lost."""
        match event:
            case HostAssigned(by) | HostRaised(by) | HostWorking(by) | HostSilent(by):
                return by != DRIVER and by not in self.roster.hosts
            case _:
                return False

    # -- hosts come up ---------------------------------------------------------------------------

    def _registered(self, event: HostCameUp, now_ms: int) -> list[Effect]:
        """A host's process is up: one that was launched, or the next attempt at one."""
        host, life = event.host, self.life
        effects: list[Effect] = []
        if host not in self.roster.hosts:
            effects += self._unexpected(host, now_ms)
        member = self.roster.hosts.get(host)
        if member is None:  # the flow has failed instead
            return effects
        member.address, member.pid, member.heard_ms = event.address, event.pid, now_ms
        effects.append(ConnectHost(self.cause, host, event.address))
        if life.phase is FlowPhase.LAUNCHING:
            return [*effects, *life.registered(member.slot, event.address)]
        ends = life.phase in (FlowPhase.ENDING, FlowPhase.ENDED)
        return [*effects, (DismissHost if ends else AssignHost)(self.cause, host)]

    def _unexpected(self, host: int, now_ms: int) -> list[Effect]:
        """A process has come up that was not waited for: its slot's last host must be gone."""
        before = self.roster.of_slot(host % SLOTS)
        if not self.recovers and not self.starts_again:
            lost = HostLostError(f"host {host} was lost: Spark has started its task again")
            failure = lost.to_dict()
            named = failure if before is None else self._with_nodes(before, failure)
            return [*self.life.failed(named)]
        if before is None:
            self.roster.add(host, now_ms)
            self.roster.spares.append(host)
            return []
        if self.starts_again:
            again = f"host {before.number} was lost: its task is run again"
            return self._lose_early(before, again, now_ms, host)
        return self._lose(before.number, "Spark has started its task again", now_ms, host)

    def _ready(self, host: int) -> list[Effect]:
        """A host has its assignment; nodes follow if there is recovery."""
        if not self.policy.recovers:
            return [*self.life.ready(host)]
        if self.life.phase in (FlowPhase.ENDING, FlowPhase.ENDED):
            return []  # it was stopped, or has failed, while it started
        roster, cause = self.roster, self.cause
        running = self.life.phase is not FlowPhase.PREPARING
        roster.assigned.add(host)
        effects: list[Effect] = []
        if self.policy.followed and host in roster.spares:
            effects.append(FollowNodes(cause, host, None))
        if running or self._begun:
            if running:
                effects.append(StartHost(cause, host))
            others = tuple(sorted(roster.assigned & roster.hosts.keys() - {host}))
            effects.append(IntroduceHost(cause, host, roster.hosts[host].address, others))
            effects.append(ServeHost(cause, host))
            effects += self._ring()
            effects.append(JoinReplicas(cause, host))
        elif roster.assigned >= {DRIVER, *roster.hosts}:
            self._begun = True
            effects.append(StartAllNodes(cause))
        return effects

    def _opened(self) -> list[Effect]:
        """All nodes have started: the flow runs if it did not before."""
        if self.life.phase is not FlowPhase.PREPARING or not self._begun:
            return []
        effects: list[Effect] = []
        for slot in (DRIVER, *(member.slot for member in self.roster.hosts.values())):
            effects += self.life.ready(slot)
        return [*effects, *self._ring()]

    def _ring(self) -> list[Effect]:
        """Tell each host which one is next; the driver itself watches a host that is alone."""
        interval_ms, timeout_ms = self.suspicion.interval_ms, self.suspicion.timeout_ms
        if not interval_ms or not self.recovers:
            return []
        members = self.roster.ring()
        count = len(members)

        def tell(host: int, next_: int | None, near: Mapping[int, str]) -> TellRing:
            return TellRing(self.cause, host, next_, near, interval_ms, timeout_ms)

        told: list[Effect] = []
        for place, host in enumerate(members):
            around = [members[(place + step) % count] for step in (-1, 1)] if count > 1 else []
            near = {other: self.roster.hosts[other].address for other in around}
            told.append(tell(host, around[-1] if around else None, near))
        return [*told, tell(DRIVER, members[0] if count == 1 else None, {})]

    # -- hosts are lost --------------------------------------------------------------------------

    def _silent(self, event: HostSilent, now_ms: int) -> list[Effect]:
        """A host, or the driver, takes the next one of the ring for dead."""
        self._places.measured(event.loads)
        host, silent_ms = event.host, event.silent_ms
        member = self.roster.hosts.get(host)
        if member is None or not member.address or not self.recovers:
            return []
        verdict = self.suspicion.judge(member, silent_ms, event.process, now_ms)
        by = "the driver" if event.by == DRIVER else f"host {event.by}"
        if verdict is Verdict.DEAD:
            reason = f"silent for {silent_ms} ms, as {by} says"
            return self._lose(host, reason, now_ms, silent=True)
        text = f"{by}: host {host} was silent for {silent_ms} ms, but {verdict.value}"
        return [Warn(self.cause, text, expected=True)]

    def _refused(self, event: HostRefused, now_ms: int) -> list[Effect]:
        """A host that was declared lost lives."""
        loss = self._lost.get(event.host)
        if loss is None:
            return []
        effects: list[Effect] = [NoteRefused(self.cause, event.host, event.counts)]
        if loss.spoke:
            return effects
        loss.spoke = True
        text = f"host {event.host} was declared lost, and speaks: it is refused"
        if loss.silent and self.suspicion.spoke(loss.lost_ms, now_ms):
            text += f"; it was only slow, so pingTimeout is {self.suspicion.timeout_ms} ms from now"
            effects += self._ring()
        return [*effects, Warn(self.cause, text)]

    def _job_ended(self, slot: int, failure: Failure | None, now_ms: int) -> list[Effect]:
        """The cluster manager's word: a host's job is over."""
        self._over.add(slot)
        member = self.roster.of_slot(slot)
        if member is None:  # it was declared lost before
            if failure is not None:
                self.giving_up.job_ended(slot, failure["message"])
            return []
        if failure is not None and failure["type"] == HostLostError.__name__:
            if self.recovers:
                return self._lose(member.number, failure["message"], now_ms)
            if self.starts_again and not failure["parameters"].get("repeats"):
                return self._lose_early(member, failure["message"], now_ms)
        named = None if failure is None else self._with_nodes(member, failure)
        return [*self.life.host_ended(slot, named)]

    def _time_passed(self, event: TimePassed, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if now_ms >= self._check_ms and self.life.phase in (FlowPhase.RUNNING, FlowPhase.DRAINING):
            self._check_ms = now_ms + CHECK_MS
            effects += self._lose_unheard(now_ms)
        if self.life.phase not in (FlowPhase.ENDING, FlowPhase.ENDED):
            due = self._launches.due(event.quiet, now_ms)
            effects += [LaunchHost(self.cause, host) for host in due]
        if event.situation is not None and self.looks_home(now_ms):
            effects += self.homecoming.look(event.situation, now_ms, self.cause)
        return effects

    def _lose_unheard(self, now_ms: int) -> list[Effect]:
        """The last resort: hosts that the driver has not heard for very long."""
        effects: list[Effect] = []
        for member in self.suspicion.unheard(list(self.roster.hosts.values()), now_ms):
            host = member.number
            reason = f"not heard for {(now_ms - member.heard_ms) / 1000:.0f} s"
            if member.address and self.recovers:
                effects.append(CrashHost(self.cause, host))
                effects += self._lose(host, reason, now_ms)
            elif member.address or self.nodes_of(host):
                lost = HostLostError(f"host {host} was lost: {reason}", host=host)
                effects += self.life.failed(self._with_nodes(member, lost.to_dict()))
            # else one that should come in another's place, and nothing waits for it
        return effects

    def _lose(
        self,
        number: int,
        reason: str,
        now_ms: int,
        replacement: int | None = None,
        failure: Failure | None = None,
        silent: bool = False,
    ) -> list[Effect]:
        """A host is gone, or taken for gone: fence it, and let others have its nodes.

        ``failure`` is what a stage raised, if that is what ended the host; its task then came to an
        end, and is not tried again.
        """
        member, cause = self.roster.hosts.get(number), self.cause
        if member is None or not self.policy.recovers:
            return []
        judged = self._judge(member, reason, now_ms, failure)
        if judged.failure is not None:
            return [*self.life.failed(judged.failure)]
        self._lost[number] = _Loss(now_ms, silent)
        if len(self._lost) > LOSSES_KEPT:
            del self._lost[next(iter(self._lost))]
        fresh = replacement
        if fresh is None:
            fresh = self._fresh(member, retried=failure is None)
        placed = self._places.lost(number, fresh, self.nodes_of(number), now_ms)
        effects: list[Effect] = [FenceHost(cause, number)]
        if judged.skip is not None:
            effects.append(RecordSkipped(cause, judged.skip))
        if self.policy.followed:
            busy = tuple(sorted({number, *placed.takers.values()}))
            effects.append(StopFollowing(cause, busy))
        effects.append(RecoverNodes(cause, number, placed.takers, reason))
        effects.append(ReplaceReplicas(cause, number, placed.heir, reason))
        if placed.heir is not None and placed.heir in self.roster.assigned:
            effects.append(JoinReplicas(cause, placed.heir))
        effects += self._ring()
        if replacement is None and not is_retry(fresh):
            self._launches.add(fresh, fresh in placed.takers.values(), now_ms)
        return effects

    def _lose_early(
        self, member: RosterEntry, message: str, now_ms: int, replacement: int | None = None
    ) -> list[Effect]:
        """A host is gone before any node was started: another one comes in its place."""
        judged = self._judge(member, message, now_ms)
        if judged.failure is not None:
            return [*self.life.failed(judged.failure)]
        cause, number = self.cause, member.number
        text = f"{message}, while the flow starts: another one is launched"
        effects: list[Effect] = [Warn(cause, text)]
        if member.address:
            effects.append(FenceHost(cause, number))
        fresh = self._fresh(member) if replacement is None else replacement
        spare = self.roster.replace(number, fresh, now_ms)
        heir = fresh if spare is None else spare
        if self.policy.followed:
            effects.append(StopFollowing(cause, tuple(sorted({number, heir}))))
        effects.append(PlaceNodes(cause, number, heir))
        if replacement is None and not is_retry(fresh):
            effects.append(LaunchHost(cause, fresh))
        return effects

    def _judge(
        self, member: RosterEntry, reason: str, now_ms: int, failure: Failure | None = None
    ) -> Judgement:
        """Count a loss: it may be one too many, or show which row it is due to."""
        nodes = self.nodes_of(member.number)
        # What all sinks have published all nodes have completed.
        published = min(self.life.committed.values(), default=-1)
        self.giving_up.progressed(dict.fromkeys(nodes, published))
        return self.giving_up.lost(member.number, member.slot, nodes, reason, now_ms, failure)

    def _fresh(self, lost: RosterEntry, retried: bool = True) -> int:
        """The number of the host that comes in the place of a lost one.

        A task that died may be ``retried`` by the cluster manager, but not one that came to an end.
        """
        if retried and self.policy.retried and lost.slot not in self._over:
            self.life.replaced(lost.slot, lost.slot)
            return lost.number + SLOTS
        number = self.roster.new_number()
        self.life.replaced(lost.slot, number)
        return number

    def _with_nodes(self, member: RosterEntry, failure: Failure) -> Failure:
        """A failure that says what was lost with a host."""
        names = ", ".join(self.policy.names[node] for node in self.nodes_of(member.number))
        message = failure["message"]
        if failure["type"] == HostLostError.__name__:
            message += f" (process {member.pid}; it ran {names or 'no node'})"
        parameters = {**failure["parameters"], "nodes": names, "pid": member.pid}
        return {**failure, "message": message, "parameters": parameters}
