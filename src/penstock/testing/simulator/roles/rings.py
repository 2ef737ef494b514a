"""What a simulated driver does for replicas: performs what the machine of the rings asks for.

It does what :class:`penstock.engine.driver.replicas.Replicas` does.  Which hosts are lost, and
which come in their places, the membership decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, assert_never

from penstock.core.control.host_orders import PlayRoles
from penstock.core.control.host_reports import ParcelsMissed
from penstock.core.control.ring_record import (
    FenceSourceRoles,
    PersistRings,
    RingsEffect,
    TellHost,
    WarnMissed,
)
from penstock.core.control.rings import RingsMachine
from penstock.core.delivery.ids import Role, member_host
from penstock.testing.simulator.roles.agent import Agent, short
from penstock.testing.simulator.violations import Violation

if TYPE_CHECKING:
    from penstock.testing.simulator.driver import Choices
    from penstock.testing.simulator.roles.part import ReplicatedPart

__all__ = ["Rings"]


class Rings:
    """One driver's hands in matters of replicas."""

    def __init__(self, part: ReplicatedPart) -> None:
        self._part = part
        self._world = part.world
        self.pending: PersistRings | FenceSourceRoles | None = None
        """What the store did not take."""
        self.ended: frozenset[Role] = frozenset()
        shape = part.shape
        incarnation, generation = part.durable
        newest = max([incarnation, *(log.fence for log in part.logs.values())])
        self.machine = RingsMachine(shape.stages, shape.rings, shape.homes, newest, generation)

    @property
    def _lives(self) -> bool:
        return self._world.driver.rings is self

    # -- what happens ----------------------------------------------------------------------------

    def add_choices(self, found: Choices, stores: bool) -> None:
        """Add what can happen at the driver; ``stores``: the store takes writes just now."""
        if stores and self.pending is not None:
            found.append((self._try_again, None))
        for agent in self._part.agents.values():
            if agent.said:
                found.append((self._hear, agent))

    def begin(self) -> None:
        """All hosts have their assignments: start all rings."""
        self._control(self.machine.begin(self._part.cluster.reachable()))

    def host_lost(self, number: int, heir: int | None) -> None:
        """A host is gone; ``heir`` will come in its place."""
        self._control(self.machine.host_lost(number, heir))

    def host_ready(self, number: int) -> None:
        """A host can play roles now."""
        self._control(self.machine.host_ready(number))

    def begin_anew(self, agent: Agent) -> None:
        """A host says that it misses something."""
        report = ParcelsMissed(self.machine.generation, str(agent), "what it says")
        self._control(self.machine.told(agent.number, report))

    def _hear(self, agent: Agent) -> None:
        report = agent.said.popleft()
        if not self._part.cluster.refuses(agent.host):
            self._world.note("driver hears from", agent, report)
            self._control(self.machine.told(agent.number, report))

    def _try_again(self, _: None) -> None:
        if self.pending is not None:
            self._control([self.pending])

    # -- effects ---------------------------------------------------------------------------------

    def _control(self, effects: Iterable[RingsEffect]) -> None:
        """Do what the machine asks for; the driver may die between any two effects."""
        part, work = self._part, deque(effects)
        while work and self._lives and self._world.driver.survives():
            effect = work.popleft()
            match effect:
                case PersistRings() | FenceSourceRoles():
                    work.extend(self._write(effect))
                case TellHost(number, orders):
                    agent = part.agents.get(part.cluster.key(number))
                    if agent is not None and agent.alive and number in part.cluster.reachable():
                        agent.told.append(PlayRoles(orders, {}))
                case WarnMissed(node, missing):
                    self._world.note(node, "misses", missing)
                    self._world.count("missed")
                case _:
                    assert_never(effect)
        record = self.machine.record
        if record is not None and self._lives:
            for role, seat in record.seats.items():
                if seat.host >= 0:
                    part.cluster.placement[part.shape.nodes[role]] = member_host(seat.host)

    def _write(self, effect: PersistRings | FenceSourceRoles) -> list[RingsEffect]:
        self.pending = None
        part = self._part
        if not self._world.store_works:
            self.pending = effect
            return []
        if isinstance(effect, PersistRings):
            part.durable = effect.incarnation, effect.generation
            return self.machine.stored(effect.number)
        for role, fence in effect.fences.items():
            self._world.note("the log of", role, "is fenced:", fence)
            part.logs[role].take_over(fence)
        lows = {role: part.published_to(role) for role in part.logs}
        return self.machine.fenced(effect.number, lows)

    # -- what is known ---------------------------------------------------------------------------

    def at_rest(self) -> bool:
        """Whether all roles are played by hosts that have come up."""
        roster = self._part.cluster.membership.roster
        return (
            self.machine.quiet and self.pending is None and roster.hosts.keys() <= roster.assigned
        )

    def progress(self) -> Mapping[int, int]:
        """How far the roles have come, as far as their hosts say."""
        return dict.fromkeys(self._part.shape.nodes.values(), len(self._part.stored_ids))

    def look_for_ends(self) -> None:
        """Sinks that have published all that there is have come to their ends."""
        part, stages = self._part, self._part.shape.stages
        if self.ended or not part.all_read():
            return
        open_ = {
            role
            for lane, log in part.logs.items()
            for number in range(1, len(log.ends) + 1)
            for id_, role in part.arrivals(lane, number).items()
            if id_ not in part.stored_ids
        }
        for sink in stages.sinks:
            for role in stages.of(sink):
                if role not in open_:
                    self.ended |= frozenset(self.machine.node_ended(role))
        if self.ended and open_:
            raise Violation(
                "ended", f"{sorted(map(short, self.ended))} are to end; {sorted(open_)} have rows"
            )
