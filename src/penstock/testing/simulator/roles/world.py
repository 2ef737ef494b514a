"""The world of a simulated run: hosts, a controller, stores, and one random step after another.

The machines are the real ones.  The seed chooses the flow, the schedule and the faults; then the
faults stop, and everything has to come to rest.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

from penstock.core.delivery.ids import ParcelId, Role
from penstock.core.delivery.messages import (
    Doubt,
    Effect,
    HandedOver,
    Process,
    Publish,
    Ready,
    Recovered,
    Send,
    StorePosition,
    Taken,
)
from penstock.core.delivery.player import RoleState
from penstock.core.delivery.records import ReplicaMachine
from penstock.core.delivery.ring import Report, RingEffect, RingMember, SendPing, SendPong
from penstock.core.delivery.ring_controller import RingController
from penstock.core.delivery.ring_record import (
    FenceRoles,
    PersistRing,
    RingControllerEffect,
    RingRecord,
    Start,
    StopHost,
    TellConfirm,
    TellHandOver,
    TellLost,
    TellMembers,
    TellNext,
    TellRewired,
    TellTake,
)
from penstock.core.delivery.routing import Seat
from penstock.testing.simulator.cases import Case
from penstock.testing.simulator.roles.faults import plan_faults, strike
from penstock.testing.simulator.roles.monitor import Monitor
from penstock.testing.simulator.roles.network import Channel, Network
from penstock.testing.simulator.roles.shape import Shape, shape_of
from penstock.testing.simulator.violations import Violation

__all__ = ["Host", "World"]

STEPS_MAX = 20_000
INTERVAL_MS, DEADLINE_MS = 30, 90
Told = (
    StopHost
    | TellLost
    | TellMembers
    | TellNext
    | TellTake
    | TellHandOver
    | TellConfirm
    | TellRewired
)


@dataclass(eq=False)
class Host:
    """A process: its machines, what it is working on, what the controller told it."""

    number: int
    stage: int
    slot: int
    machine: ReplicaMachine
    ring: RingMember
    alive: bool = True
    frozen: int = 0
    """Steps until it wakes up."""
    work: list[Process | Publish] = field(default_factory=list)
    told: deque[Told] = field(default_factory=deque)
    ticked_ms: int = 0
    offset_ms: int = 0
    """How far its clock is ahead of the driver's."""

    def __str__(self) -> str:
        return f"host {self.number} ({self.stage}/{self.slot})"


class World:
    """One run; everything follows from the seed."""

    def __init__(
        self,
        case: Case,
        trace: list[str] | None = None,
        shape: Shape | None = None,
        faults: tuple[str, ...] | None = None,
    ) -> None:
        self.random = Random(case.seed)
        self.trace = trace
        self.shape = shape or shape_of(self.random)
        self.network = Network(self.random, self.shape.settings.logs)
        self.monitor = Monitor(self.shape)
        self.now_ms = 0
        self.steps = 0
        self.faults: Counter[str] = Counter()
        self.doubts = 0
        self.hosts: dict[int, Host] = {}
        self.alive: list[Host] = []
        self.positions: dict[Role, int] = {}
        self.stored_ids: set[ParcelId] = set()
        self.fences: dict[Role, int] = {}
        self.restarts: list[tuple[int, int, int]] = []
        """When which stage's slot gets a new process."""
        self.zombies: set[int] = set()
        self.pending: list[tuple[int, str]] = []
        """Faults to come: when, and what."""
        self.cut_short: int | None = None
        """A host that dies in the middle of what it does next."""
        self.rough = case.rough
        self.store_until = 0
        """Before this step the store refuses writes."""
        self.controller_steps: int | None = None
        """After how many more effects the controller dies."""
        self._stalled: list[RingControllerEffect] = []
        """What the controller could not do because the store refused."""
        self.durable = self._first_record()
        self.controller = RingController(self.durable, self.shape.takeover)
        for stage, slots in self.shape.hosts.items():
            for slot in range(slots):
                self._start(self.durable.rings[stage][slot], stage, slot, self.durable, False)
        for host in self.hosts.values():
            members = self.durable.members(host.stage)
            after = members[(members.index(host.number) + 1) % len(members)]
            host.ring.rewired(after if len(members) > 1 else None, host.offset_ms)
        plan_faults(self, faults)

    def _first_record(self) -> RingRecord:
        rings: dict[int, dict[int, int]] = {}
        number = 0
        for stage, slots in self.shape.hosts.items():
            rings[stage] = {}
            for slot in range(slots):
                number += 1
                rings[stage][slot] = number
        homes = {
            role: role.place % self.shape.hosts[stage]
            for stage in self.shape.hosts
            for role in self.shape.stages.of(stage)
        }
        seats = {role: Seat(rings[role.stage][slot], 1) for role, slot in homes.items()}
        self._newest = number
        return RingRecord(seats, homes, rings, ready=frozenset(range(1, number + 1)))

    def _start(self, number: int, stage: int, slot: int, record: RingRecord, new: bool) -> Host:
        machine = ReplicaMachine(
            number,
            self.shape.settings,
            self.shape.stages,
            record.settled_seats(),
            record.fences,
            record.members(stage),
            joining=new,
            dead=record.lost,
        )
        host = Host(number, stage, slot, machine, RingMember(number, INTERVAL_MS, DEADLINE_MS))
        if self.rough:
            host.offset_ms = self.random.choice((0, 700, 40_000))
        self.hosts[number] = host
        self.alive.append(host)
        if new:
            self.perform(host, machine.join())
        return host

    # -- running ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Until everything is at rest; raises a violation."""
        while self.steps < STEPS_MAX:
            if not self._step():
                if self._rest():
                    break
                self.now_ms += INTERVAL_MS
        else:
            raise Violation("eventuality", f"no rest after {STEPS_MAX} steps")
        self.monitor.check_homes(self)
        self.monitor.check_end(self)

    def _step(self) -> bool:
        """One thing happens; False if nothing can, but for time to pass."""
        self.steps += 1
        self.now_ms += 1
        while self.pending and self.pending[0][0] <= self.steps:
            strike(self, self.pending.pop(0)[1])
        self._processes()
        if self.rough:
            self._mend()
        hosts = self.hosts
        refuses = self.steps < self.store_until
        choices: list[tuple[str, object]] = [
            ("message", channel)
            for channel in self.network.open
            if channel.wire
            and not hosts[channel.target].frozen
            and self.network.links.passes(channel.source, channel.target)
        ]
        for host in self.alive:
            if host.frozen:
                continue
            if host.told and (host.number not in self.zombies or self.steps % 16 == 0):
                choices.append(("told", host))  # whoever was given up hears little
            if host.work and not (refuses and isinstance(host.work[0], Publish)):
                choices.append(("work", host))
            if host.stage == 0 and self.steps % 3 == 0 and not refuses:
                choices += [("read", (host, role)) for role in self._readable(host)]
        if not choices:
            deaf = any(host.told for host in self.alive)
            return deaf or refuses or bool(self.pending or self.network.links.dead)
        what, subject = self.random.choice(choices)
        if isinstance(subject, Channel):
            self._arrive(subject)
        elif isinstance(subject, tuple):
            self._read(*subject)
        elif isinstance(subject, Host) and what == "told":
            self._obey(subject, subject.told.popleft())
        elif isinstance(subject, Host):
            self._work(subject)
        return True

    def _mend(self) -> None:
        """Connections that were dead are opened anew; the store takes writes again."""
        for pair in self.network.links.mended(self.steps):
            self.network.reconnect(*pair)
        if self._stalled and self.steps >= self.store_until:
            effects, self._stalled = self._stalled, []
            self.control(effects)

    def _processes(self) -> None:
        """Processes wake up and are started; time passes for those that run."""
        for host in list(self.alive):
            if host.frozen and host.alive:
                host.frozen -= 1
                if not host.frozen:
                    self.note(host, "wakes up")
            elif host.alive and self.now_ms - host.ticked_ms >= INTERVAL_MS:
                host.ticked_ms = self.now_ms
                self.perform(host, host.machine.tick())
                self._ring(
                    host, host.ring.time_passed(self.now_ms + host.offset_ms, host.machine.load)
                )
            if host.alive and host.number in self.zombies:
                self.monitor.hit(host, self)
        for due, stage, slot in list(self.restarts):
            if self.now_ms >= due:
                self.restarts.remove((due, stage, slot))
                self._newest += 1
                self.note(f"host {self._newest} starts for slot {slot} of stage {stage}")
                self.control(self.controller.joined(self._newest, stage, slot))
                if self.controller.record.place_of(self._newest) is None:
                    self.restarts.append((self.now_ms + 20, stage, slot))
        for stage in self.shape.hosts if self.steps % 10 == 0 else ():
            # where no sibling is left to report, leases run out
            members = self.controller.record.members(stage)
            if not any(map(self._lives, members)):
                for number in members:
                    self.control(self.controller.host_lost(number))

    def _rest(self) -> bool:
        """Whether nothing is left to do, even after everybody had time to tell."""
        if self.restarts or not self.controller.quiet or self.pending or self._stalled:
            return False
        if any(host.frozen for host in self.alive):
            return False
        if any(self._readable(host) for host in self.living()):
            return False
        for _ in range(2):
            for host in self.living():
                self.perform(host, host.machine.tick())
            if any(channel.wire for channel in self.network.channels.values()):
                return False
        return all(map(self._lives, self.controller.record.hosts()))

    def _lives(self, number: int) -> bool:
        """Whether a host lives, or comes up as soon as the store has the record that names it."""
        return number not in self.hosts or self.hosts[number].alive

    def living(self) -> list[Host]:
        """The hosts that count."""
        members = set(self.controller.record.hosts())
        return [host for host in self.alive if host.number in members]

    # -- what hosts do ---------------------------------------------------------------------------

    def _readable(self, host: Host) -> list[Role]:
        return [
            role
            for role, player in host.machine.players.items()
            if player.may_read and player.next <= self.shape.numbers
        ]

    def _read(self, host: Host, role: Role) -> None:
        number = host.machine.players[role].next
        rows = self.shape.source_rows(role, number)
        outputs = self.shape.divide(0, ParcelId(role, number), rows)
        self.note(host, "reads", number, "as", _short(role))
        self.perform(host, host.machine.read(role, outputs))

    def _arrive(self, channel: Channel) -> None:
        envelope = self.network.take(channel)
        host = self.hosts[channel.target]
        if envelope is not None:
            self.note(host, "gets", envelope)
            self.perform(host, host.machine.received(envelope))

    def _work(self, host: Host) -> None:
        refuses = self.steps < self.store_until
        job = host.work.pop(0 if refuses else self.random.randrange(len(host.work)))
        role, parcel = job.role, job.parcel
        outputs = {}
        if isinstance(job, Publish):
            if job.incarnation < self.fences.get(role, 0):
                self.note(f"store refuses {_short(role)}#{job.incarnation}")
                return
            once = self.shape.settings.dedup
            if not (once and parcel.id in self.stored_ids):
                self.note(host, "publishes", parcel)
                self.stored_ids.add(parcel.id)
                self.monitor.published(parcel.payload)
        else:
            rows = self.shape.apply(role.stage, list(parcel.payload))
            outputs = self.shape.divide(role.stage, parcel.id, rows)
            self.note(host, "has processed", parcel.id)
        self.perform(host, host.machine.processed(role, job.incarnation, parcel.id, outputs))

    def perform(self, host: Host, effects: list[Effect]) -> None:
        """Do what a host's machine asks for; the host may die in the middle of it."""
        stop_at = len(effects)
        if self.cut_short == host.number and stop_at > 1:
            stop_at = self.random.randrange(stop_at)
        for effect in effects[:stop_at]:
            if isinstance(effect, Send):
                if effect.host in self.hosts and self.hosts[effect.host].alive:
                    self.network.send(host.number, effect.host, effect.envelope)
            elif isinstance(effect, Process | Publish):
                host.work.append(effect)
            elif isinstance(effect, StorePosition):
                if effect.incarnation < self.fences.get(effect.role, 0):
                    return
                self.positions[effect.role] = effect.number
            elif isinstance(effect, Taken):
                self.note(host, "plays", f"{_short(effect.role)}#{effect.incarnation}")
                self.control(self.controller.taken(host.number, effect.role, effect.incarnation))
            elif isinstance(effect, Recovered):
                found = self.controller.recovered(host.number, effect.role, effect.incarnation)
                self.control(found)
            elif isinstance(effect, Ready):
                self.control(self.controller.ready(host.number))
            elif isinstance(effect, Doubt):
                self.doubts += len(effect.ids)
                self.note(host, "doubts", effect.ids)
        if stop_at < len(effects):
            self.cut_short = None
            self.kill(host)

    def _ring(self, host: Host, effects: list[RingEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Report):
                self.note(host, "reports", effect.host, "silent")
                self.control(self.controller.reported(host.number, effect.host, effect.loads))
                continue
            other = self.hosts[effect.to]
            passes = self.network.links.passes(host.number, other.number)
            if not other.alive or other.frozen or not passes:
                continue
            if isinstance(effect, SendPing):
                load = other.machine.load
                self._ring(other, other.ring.pinged(host.number, effect.beat, effect.loads, load))
            elif isinstance(effect, SendPong):
                other.ring.ponged(host.number, effect.loads, self.now_ms + other.offset_ms)

    def _obey(self, host: Host, told: Told) -> None:
        self.note(host, "is told", told)
        machine = host.machine
        effects: list[Effect] = []
        if isinstance(told, StopHost):
            self.kill(host)
        elif isinstance(told, TellLost):
            effects = machine.host_lost(told.host)
        elif isinstance(told, TellMembers):
            effects = machine.members_changed(told.members)
        elif isinstance(told, TellNext):
            host.ring.rewired(told.next, self.now_ms + host.offset_ms)
        elif isinstance(told, TellTake):
            position = self.positions.get(told.role, 0)
            effects = machine.take(told.role, told.incarnation, told.fresh, position)
        elif isinstance(told, TellHandOver):
            effects = machine.hand_over(told.role, told.seat)
        elif isinstance(told, TellConfirm):
            effects = machine.confirm(told.role, told.incarnation)
        else:
            effects = machine.rewired(told.role, told.seat, told.fence)
        self.perform(host, effects)

    # -- the controller --------------------------------------------------------------------------

    def control(self, effects: list[RingControllerEffect]) -> None:
        """Do what the controller's machine asks for; it may die between any two effects."""
        if self._stalled or (effects and self.steps < self.store_until):
            self._stalled += effects
            return
        # A process that joins exists before the controller records it: these are one step.
        joins = any(isinstance(effect, Start) for effect in effects)
        for effect in effects:
            if self.controller_steps is not None and not joins:
                self.controller_steps -= 1
                if self.controller_steps <= 0:
                    self.lose_controller()
                    return
            if isinstance(effect, PersistRing):
                self.durable = effect.record
            elif isinstance(effect, FenceRoles):
                self.fences |= effect.fences
            elif isinstance(effect, Start):
                place = effect.record.place_of(effect.host)
                slot = 0 if place is None else place[1]
                self._start(effect.host, effect.stage, slot, effect.record, True)
            elif isinstance(effect, StopHost):
                self._give_up(effect)
            elif self.hosts[effect.to].alive:
                self.hosts[effect.to].told.append(effect)

    def _give_up(self, effect: StopHost) -> None:
        host = self.hosts.get(effect.host)
        if host is None or host.number in self.zombies:
            return
        self.note("controller gives up", host)
        self.zombies.add(host.number)
        self.monitor.hit(host, self)
        delay = self.random.choice((5, 40, 200))
        self.restarts.append((self.now_ms + delay, host.stage, host.slot))
        if host.alive:
            self.faults["zombie"] += 1
            host.told.append(effect)

    def lose_controller(self) -> None:
        """The controller dies; another one reads its record."""
        self.controller_steps = None
        self._stalled.clear()
        self.controller = RingController(self.durable, self.shape.takeover)
        self.note("controller restarts")
        self.control(self.controller.resumed())

    # -- faults and words ------------------------------------------------------------------------

    def kill(self, host: Host) -> None:
        """A process is gone."""
        if host.alive:
            self.note(host, "dies")
            self.monitor.hit(host, self)
            host.alive = False
            self.alive.remove(host)
            host.work.clear()
            host.told.clear()
            self.network.died(host.number)

    def handed_to(self, number: int) -> list[ParcelId]:
        """What is on its way to a host because a role was handed over to it."""
        found: list[ParcelId] = []
        for channel in self.network.channels.values():
            for _, envelope in channel.wire:
                if isinstance(envelope.body, HandedOver) and number in (
                    channel.source,
                    channel.target,
                ):
                    state: RoleState = envelope.body.state
                    found += [*state.entries, *state.works]
        return found

    def note(self, *words: object) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.steps:5d}  {' '.join(map(str, words))}")


def _short(role: Role) -> str:
    return f"{role.stage}.{role.place}"
