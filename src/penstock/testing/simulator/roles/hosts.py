"""A simulated host: obeys the driver's orders and performs what its machine asks for.

It does what :class:`penstock.engine.host.replicas.agent.ReplicaAgent` does, as a member of one ring
at most.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from penstock.core.control.host_orders import (
    BeginRings,
    ChangeMembers,
    DropMembers,
    HandOverRole,
    JoinRing,
    KillHost,
    OpenRings,
    PlayRoles,
    RewireRole,
    RoleOrder,
    SayJoined,
    TakeRole,
    WatchNext,
)
from penstock.core.control.host_reports import (
    LossHeard,
    MemberReady,
    ParcelsMissed,
    RingsBegun,
    RingsJoined,
    RoleRecovered,
    RoleReport,
    RoleTaken,
)
from penstock.core.delivery.ids import ParcelId, Role, member, member_host
from penstock.core.delivery.messages import (
    DeliverParcels,
    Doubt,
    Effect,
    HandedOver,
    ProcessParcel,
    Publish,
    Ready,
    Recovered,
    SendEnvelope,
    Taken,
)
from penstock.core.delivery.records import ReplicaMachine
from penstock.core.delivery.ring import RingEffect, RingMember, SendPing, SendPong, TellSilence
from penstock.testing.simulator.roles.network import Packet
from penstock.testing.simulator.roles.source_log import SourceFile, rows_of_read

if TYPE_CHECKING:
    from penstock.testing.simulator.roles.world import World

__all__ = ["DEADLINE_MS", "INTERVAL_MS", "Host", "Told", "short"]

INTERVAL_MS, DEADLINE_MS = 30, 90
UNSAID = 3
"""Parcels that have come and that no other host was told of."""
Told = PlayRoles | WatchNext | KillHost


@dataclass(eq=False)
class Host:
    """A process: its machine, what it is working on, what it was told and has to say."""

    world: World
    number: int
    run: int
    """Which of the drivers it belongs to: others do not hear it."""
    ring: RingMember = field(init=False)
    stage: int | None = None
    machine: ReplicaMachine | None = None
    generation: int = -1
    going: bool = False
    """Whether sources may read."""
    alive: bool = True
    died_ms: int = 0
    lease: int | None = None
    """When it ends because it does not hear its driver any more."""
    frozen: int = 0
    """Steps until it wakes up."""
    work: list[ProcessParcel | Publish] = field(default_factory=list)
    told: deque[Told] = field(default_factory=deque)
    said: deque[RoleReport] = field(default_factory=deque)
    early: list[Packet] = field(default_factory=list)
    """What came before the driver's word that this host is a member."""
    forgot: set[int] = field(default_factory=set)
    """Lost hosts, of which nothing more is heard."""
    files: dict[Role, tuple[int, SourceFile | None]] = field(default_factory=dict)
    """Per source role that is played here: its incarnation, and its log unless it was refused."""
    ticked_ms: int = 0
    offset_ms: int = 0
    """How far its clock is ahead of the driver's."""

    def __post_init__(self) -> None:
        self.ring = RingMember(self.number, INTERVAL_MS, DEADLINE_MS)

    def __str__(self) -> str:
        return f"host {self.number} ({'spare' if self.stage is None else self.stage})"

    @property
    def load(self) -> int:
        """How much there is to do here."""
        return 0 if self.machine is None else self.machine.load

    # -- the driver's orders ---------------------------------------------------------------------

    def obey(self, told: Told) -> None:
        """Do what the driver says."""
        self.world.note(self, "is told", told)
        match told:
            case PlayRoles():
                for order in told.orders:
                    if self.alive:
                        self._play(order)
            case WatchNext():
                self.ring.rewired(told.next, self.world.now_ms + self.offset_ms)
            case KillHost():
                self.world.kill(self)
            case _:
                assert_never(told)

    def _play(self, order: RoleOrder) -> None:
        machine = self.machine
        match order:
            case BeginRings():
                self._begin(order.generation)
            case JoinRing():
                self._join(order)
            case SayJoined():
                self.said.append(RingsJoined(order.generation))
            case OpenRings():
                self.going = True
            case DropMembers():
                self._drop(order)
            case ChangeMembers() if machine is not None:
                self.perform(machine.members_changed(order.members))
            case TakeRole(role, incarnation, fresh, low) if machine is not None:
                position = 0 if self.world.shape.stages.parents[role.stage] else low
                self.perform(machine.take(role, incarnation, fresh, position))
            case HandOverRole(role, seat) if machine is not None:
                self.perform(machine.hand_over(role, seat))
            case RewireRole(role, seat, fence) if machine is not None:
                self.perform(machine.rewired(role, seat, fence))
            case ChangeMembers() | RewireRole():
                pass  # a host without roles is told, too
            case TakeRole() | HandOverRole():
                raise RuntimeError(f"{self} is no member of a ring, and is told {order}")
            case _:
                assert_never(order)

    def _begin(self, generation: int) -> None:
        """Everything begins anew, with what follows."""
        self.machine = None
        self.work.clear()
        self.files.clear()
        self.generation, self.going = generation, False
        self.said.append(RingsBegun(generation))

    def _join(self, order: JoinRing) -> None:
        shape = self.world.shape
        self.stage = order.stage
        machine = self.machine = ReplicaMachine(
            member(self.number, order.stage),
            shape.settings,
            shape.stages,
            order.seats,
            order.fences,
            order.members,
            joining=order.joining,
            dead=order.lost,
        )
        for role, player in machine.players.items():
            if player.tables.is_source:
                player.tables.next = order.lows[role] + 1
        self.perform(machine.join() if order.joining else [])
        early, self.early = self.early, []
        for packet in early:
            self.arrived(packet)

    def _drop(self, order: DropMembers) -> None:
        self.forgot.update(map(member_host, order.members))
        for number in order.members:
            if self.machine is not None:
                self.perform(self.machine.host_lost(number))
        if self.alive:
            self.said.append(LossHeard(self.generation, order.round))

    # -- messages and work -----------------------------------------------------------------------

    def arrived(self, packet: Packet) -> None:
        """A message from another host: taken now, or once this host is a member of the ring."""
        generation, envelope = packet
        if generation is not None and generation != self.generation:
            if generation > self.generation:
                self.early.append(packet)
        elif self.machine is not None:
            self.world.note(self, "gets", envelope)
            self.perform(self.machine.received(envelope))
            self._speak()
        elif generation is not None:
            self.early.append(packet)

    def readable(self) -> list[Role]:
        """The source roles that can read on."""
        if self.machine is None or not self.going:
            return []
        found = []
        for role, player in self.machine.players.items():
            file = self.files.get(role, (0, None))[1]
            if file is not None and player.tables.may_read:
                done = file.ends[-1] if file.ends else 0
                if player.tables.next <= len(file.ends) or done < self.world.shape.rows:
                    found.append(role)
        return found

    def read(self, role: Role) -> None:
        """Read again what was noted; else what comes next, and note it first."""
        shape, machine = self.world.shape, self.machine
        file = self.files[role][1]
        if machine is None or file is None:
            return
        number = machine.players[role].tables.next
        if number > len(file.ends):
            begin = file.ends[-1] if file.ends else 0
            size = self.world.random.randint(1, shape.rows_max)
            file.append(min(begin + size, shape.rows))
        rows = shape.source_rows(role, rows_of_read(file.ends, number))
        self.world.note(self, "reads", number, "as", short(role))
        self.perform(machine.read(role, shape.divide(0, ParcelId(role, number), rows)))

    def do_work(self) -> None:
        """Process or publish a parcel."""
        world, machine = self.world, self.machine
        job = self.work.pop(0 if world.store_refuses else world.random.randrange(len(self.work)))
        role, parcel = job.role, job.parcel
        if machine is None:
            return
        outputs = {}
        if isinstance(job, Publish):
            if not world.publish(self, parcel):
                return
        else:
            rows = world.shape.apply(role.stage, list(parcel.payload))
            outputs = world.shape.divide(role.stage, parcel.id, rows)
            world.note(self, "has processed", parcel.id)
        self.perform(machine.processed(role, job.incarnation, parcel.id, outputs))
        self._speak()

    def _speak(self) -> None:
        """(Runs that tell often) say what has come since, once there is enough of it."""
        machine = self.machine
        if self.world.often and machine is not None and self.alive:
            came, settled = machine.unsaid
            if settled or came >= UNSAID:
                self.perform(machine.speak())

    def perform(self, effects: list[Effect]) -> None:
        """Do what the machine asks for; the host may die in the middle of it."""
        world, stage = self.world, self.stage
        stop_at = len(effects)
        if world.cut_short == self.number and stop_at > 1:
            stop_at = world.random.randrange(stop_at)
        if stage is None:
            return
        for effect in effects[:stop_at]:
            if not self.alive:
                return
            match effect:
                case SendEnvelope():
                    self._send(effect)
                case ProcessParcel() | Publish():
                    self.work.append(effect)
                case Taken(role, incarnation):
                    world.note(self, "plays", f"{short(role)}#{incarnation}")
                    self.said.append(RoleTaken(self.generation, stage, role, incarnation))
                case Recovered(role, incarnation):
                    self.said.append(RoleRecovered(self.generation, stage, role, incarnation))
                case Ready():
                    self.said.append(MemberReady(self.generation, stage))
                case Doubt():
                    world.note(self, "doubts", effect.ids)
                case _:
                    assert_never(effect)
        self._follow()
        if stop_at < len(effects):
            world.cut_short = None
            world.kill(self)

    def _send(self, effect: SendEnvelope) -> None:
        to = member_host(effect.host)
        generation = None if isinstance(effect.envelope.body, DeliverParcels) else self.generation
        packet = Packet(generation, effect.envelope)
        if to == self.number:
            self.world.network.send(to, to, packet)
        elif to not in self.forgot and self.world.reaches(self, to):
            self.world.network.send(self.number, to, packet)
        if isinstance(effect.envelope.body, HandedOver) and self.world.cut_move is not None:
            victim = self if self.world.cut_move == "sender" else self.world.hosts[to]
            self.world.cut_move = None
            self.world.kill(victim)

    def _follow(self) -> None:
        """Have the logs open of just those sources that are played here."""
        players = {} if self.machine is None else self.machine.players
        for role in [r for r in self.files if r not in players]:
            del self.files[role]
        for role, player in players.items():
            if player.tables.is_source and self.files.get(role, (0, None))[0] != player.incarnation:
                log = self.world.logs[role]
                self.files[role] = player.incarnation, log.claim(player.incarnation)

    # -- time passes -----------------------------------------------------------------------------

    def tick(self) -> None:
        """Now and then: what can be told together is told; sinks look for what cannot come."""
        if self.machine is None:
            return
        self.perform(self.machine.tick())
        for role, player in self.machine.players.items() if self.alive else ():
            if player.tables.is_sink:
                missing = self._missing(role)
                if missing is not None:
                    self.world.monitor.missed(missing, self.world)
                    report = ParcelsMissed(self.generation, short(role), str(missing))
                    if report not in self.said:
                        self.said.append(report)

    def _missing(self, role: Role) -> ParcelId | None:
        """A parcel that is needed and will never come."""
        if self.machine is None or any(job.role == role for job in self.work):
            return None
        player, world = self.machine.players[role], self.world
        for lane, floor in player.inputs_floor().items():
            for number in range(1, min(floor, len(world.logs[lane].ends)) + 1):
                for id_, at in world.arrivals(lane, number).items():
                    published = id_ in world.stored_ids
                    if at == role and not published and id_ not in player.tables.works:
                        return id_
        return None

    def watch(self) -> None:
        """Ping the next host."""
        self._perform_ring(self.ring.time_passed(self.world.now_ms + self.offset_ms, self.load))

    def _perform_ring(self, effects: list[RingEffect]) -> None:
        world = self.world
        for effect in effects:
            if isinstance(effect, TellSilence):
                world.note(self, "reports", effect.host, "silent")
                world.driver.reported(self, effect.host)
                continue
            other = world.hosts[effect.to]
            passes = world.network.links.passes(self.number, other.number)
            if not other.alive or other.frozen or not passes:
                continue
            match effect:
                case SendPing():
                    pong = other.ring.pinged(self.number, effect.beat, effect.loads, other.load)
                    other._perform_ring(pong)
                case SendPong():
                    other.ring.ponged(self.number, effect.loads, world.now_ms + other.offset_ms)
                case _:
                    assert_never(effect)


def short(role: Role) -> str:
    """A role, for people."""
    return f"{role.stage}.{role.place}"
