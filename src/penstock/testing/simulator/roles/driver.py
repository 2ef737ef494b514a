"""The simulated driver: performs what the machine of the rings asks for.

It does what :class:`penstock.engine.driver.replicas.Replicas` does, and decides in the place of the
machine of membership which hosts are lost, and which come in their places.  A driver that dies
takes its hosts along, as on Spark; they may go on for a while without being heard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, assert_never

from penstock.core.control.host_orders import KillHost, PlayRoles, WatchNext
from penstock.core.control.host_reports import ParcelsMissed
from penstock.core.control.ring_record import (
    FenceSourceRoles,
    PersistRings,
    RingsEffect,
    TellHost,
    WarnMissed,
)
from penstock.core.control.rings import RingsMachine
from penstock.core.delivery.ids import Role
from penstock.testing.simulator.roles.hosts import DEADLINE_MS, INTERVAL_MS, Host
from penstock.testing.simulator.violations import Violation

if TYPE_CHECKING:
    from penstock.testing.simulator.roles.world import World

__all__ = ["Driver"]

UNHEARD_MS = 400
NEVER_COMES = 0.1
"""Share of the hosts that are launched in a lost one's place and do not come up."""


class Driver:
    """Decides which hosts there are; the machine decides the rest."""

    machine: RingsMachine

    def __init__(self, world: World) -> None:
        self.world = world
        self.run = 0
        self.up: set[int] = set()
        """Hosts that are ready and were not given up."""
        self.starting: list[tuple[int, int]] = []
        """When which host comes up."""
        self.spares: list[int] = []
        self.steps_left: int | None = None
        """After how many more effects the driver dies."""
        self.pending: PersistRings | FenceSourceRoles | None = None
        """What the store did not take."""
        self.ended: frozenset[Role] = frozenset()
        self._durable = (0, 0)
        """Incarnation and generation."""
        self._newest = 0
        self._begin_run()

    def _begin_run(self) -> None:
        """Start the hosts of all slots and the spares, and all rings."""
        shape, world = self.world.shape, self.world
        rings = {
            stage: tuple(self._new_number() for _ in range(slots))
            for stage, slots in shape.hosts.items()
        }
        homes = {
            role: role.place % shape.hosts[stage]
            for stage in shape.hosts
            for role in shape.stages.of(stage)
        }
        self.spares = [self._new_number() for _ in range(shape.spares)]
        self.up = {*(number for ring in rings.values() for number in ring), *self.spares}
        for number in sorted(self.up):
            world.start(number, self.run)
        incarnation, generation = self._durable
        fences = [log.fence for log in world.logs.values()]
        newest = max(incarnation, *fences)
        self.machine = RingsMachine(shape.stages, rings, homes, newest, generation)
        self._watch()
        self.control(self.machine.begin(self.up))

    def _new_number(self) -> int:
        self._newest += 1
        return self._newest

    # -- effects ---------------------------------------------------------------------------------

    def control(self, effects: Iterable[RingsEffect]) -> None:
        """Do what the machine asks for; the driver may die between any two effects."""
        work = deque(effects)
        while work:
            if self.steps_left is not None:
                self.steps_left -= 1
                if self.steps_left <= 0:
                    self.restart()
                    return
            effect = work.popleft()
            match effect:
                case PersistRings() | FenceSourceRoles():
                    work.extend(self._write(effect))
                case TellHost(number, orders):
                    host = self.world.hosts.get(number)
                    if host is not None and host.alive and number in self.up:
                        host.told.append(PlayRoles(orders, {}))
                case WarnMissed(node, missing):
                    self.world.note(node, "misses", missing)
                    self.world.faults["missed"] += 1
                case _:
                    assert_never(effect)

    def _write(self, effect: PersistRings | FenceSourceRoles) -> list[RingsEffect]:
        self.pending = None
        if self.world.store_refuses:
            self.pending = effect
            return []
        if isinstance(effect, PersistRings):
            self._durable = effect.incarnation, effect.generation
            return self.machine.stored(effect.number)
        for role, fence in effect.fences.items():
            self.world.note("the log of", role, "is fenced:", fence)
            self.world.logs[role].take_over(fence)
        lows = {role: self.world.published_to(role) for role in self.world.logs}
        return self.machine.fenced(effect.number, lows)

    def try_again(self) -> None:
        """Go on with what the store did not take."""
        if self.pending is not None and not self.world.store_refuses:
            self.control([self.pending])

    def restart(self) -> None:
        """The driver dies, and another one runs the flow with new hosts."""
        world = self.world
        world.note("driver restarts")
        self.steps_left = self.pending = None
        for host in world.alive:
            if host.run == self.run:
                world.monitor.hit(host, world)
                host.told.clear()
                host.lease = world.steps + world.random.randint(5, 150)
        self.run += 1
        self.starting.clear()
        self._begin_run()

    # -- which hosts there are -------------------------------------------------------------------

    def heard(self, host: Host) -> None:
        """A host's next report arrives; those that were given up are not heard."""
        report = host.said.popleft()
        if host.number in self.up:
            self.world.note("driver hears from", host, report)
            self.control(self.machine.told(host.number, report))

    def begin_anew(self, host: Host) -> None:
        """A host says that it misses something."""
        report = ParcelsMissed(self.machine.generation, str(host), "what it says")
        self.control(self.machine.told(host.number, report))

    def reported(self, by: Host, number: int) -> None:
        """A host takes the next one for dead."""
        if by.number in self.up:
            self.lose(number)

    def lose(self, number: int) -> None:
        """A host is given up, and another one comes in its place."""
        world, run = self.world, self.run
        if number not in self.up and all(number != coming for _, coming in self.starting):
            return
        world.note("driver gives up host", number)
        self.up.discard(number)
        self.starting = [one for one in self.starting if one[1] != number]
        fresh = self._new_number()
        heir = self._heir(number, fresh)
        self.starting.append((world.now_ms + world.random.choice((5, 40, 200)), fresh))
        host = world.hosts.get(number)
        if host is not None:
            world.monitor.hit(host, world)
            if host.alive:
                world.faults["zombie"] += 1
                host.told.clear()  # what was on its way is lost with the connection
                host.told.append(KillHost())
        self._watch()
        self.control(self.machine.host_lost(number, heir))
        if heir in self.up and run == self.run:
            self.control(self.machine.host_ready(heir))

    def _heir(self, number: int, fresh: int) -> int:
        """A spare that is ready, or the fresh host, which else becomes the spare."""
        if number in self.spares:
            self.spares[self.spares.index(number)] = fresh
            return fresh
        spare = next((one for one in self.spares if one in self.up), None)
        if spare is None:
            return fresh
        self.spares[self.spares.index(spare)] = fresh
        return spare

    def _watch(self) -> None:
        """Each host watches the next."""
        ring = sorted(self.up)
        for place, number in enumerate(ring):
            after = ring[(place + 1) % len(ring)] if len(ring) > 1 else None
            host = self.world.hosts[number]
            if host.alive:
                host.told.append(WatchNext(after, {}, INTERVAL_MS, DEADLINE_MS))

    def time_passed(self) -> None:
        """Hosts come up; those that were not heard for long are given up."""
        world = self.world
        for due, number in list(self.starting):
            if world.now_ms >= due and (due, number) in self.starting:
                if world.random.random() < NEVER_COMES:
                    self.lose(number)
                    continue
                self.starting.remove((due, number))
                world.note(f"host {number} comes up")
                world.start(number, self.run)
                self.up.add(number)
                self._watch()
                self.control(self.machine.host_ready(number))
        for number in sorted(self.up):
            host = world.hosts[number]
            if not host.alive and world.now_ms - host.died_ms >= UNHEARD_MS:
                self.lose(number)

    def look_for_ends(self) -> None:
        """Sinks that have published all that there is have come to their ends."""
        world, stages = self.world, self.world.shape.stages
        if self.ended or not world.all_read():
            return
        open_ = {
            role
            for lane, log in world.logs.items()
            for number in range(1, len(log.ends) + 1)
            for id_, role in world.arrivals(lane, number).items()
            if id_ not in world.stored_ids
        }
        for sink in stages.sinks:
            for role in stages.of(sink):
                if role not in open_:
                    self.ended |= frozenset(self.machine.node_ended(role))
        if self.ended and open_:
            raise Violation("ended", f"{sorted(self.ended)} are to end; {sorted(open_)} have rows")
