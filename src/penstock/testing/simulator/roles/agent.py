"""The replicas of a simulated host: obeys the driver's orders, performs what its machines ask for.

It does what :class:`penstock.engine.host.replicas.agent.ReplicaAgent` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, assert_never

from penstock.core.control.host_orders import (
    BeginRings,
    ChangeMembers,
    DropMembers,
    HandOverRole,
    JoinRing,
    OpenRings,
    PlayRoles,
    RewireRole,
    RoleOrder,
    SayJoined,
    TakeRole,
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
from penstock.core.delivery.ids import ParcelId, Role, member, member_host, member_stage
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
from penstock.core.delivery.player import RolePlayer
from penstock.core.delivery.records import ReplicaMachine
from penstock.testing.simulator.roles.packets import Packet, send_packet
from penstock.testing.simulator.roles.source_log import SourceFile, rows_of_read

if TYPE_CHECKING:
    from penstock.testing.simulator.hosts import Host
    from penstock.testing.simulator.roles.part import ReplicatedPart

__all__ = ["Agent", "short"]

UNSAID = 3
"""Parcels that have come and that no other host was told of."""


class Agent:
    """Plays the roles of one host: a machine for each ring that it is a member of."""

    def __init__(self, replicas: ReplicatedPart, process: Host) -> None:
        self.replicas = replicas
        self.world = replicas.world
        self.process = process
        self.host = process.key
        self.number = process.number
        self.machines: dict[int, ReplicaMachine] = {}
        self.generation = -1
        self.going = False
        """Whether sources may read."""
        self.work: list[ProcessParcel | Publish] = []
        self.told: deque[PlayRoles] = deque()
        self.said: deque[RoleReport] = deque()
        self.hard_of_hearing = False
        """Whether what the driver says reaches it late."""
        self.early: list[Packet] = []
        """What came before the driver's word that this host is a member."""
        self.forgot: set[int] = set()
        """Lost hosts, of which nothing more is heard."""
        self.files: dict[Role, tuple[int, SourceFile | None]] = {}
        """Per source role that is played here: its incarnation, and its log unless refused."""
        self._effects: deque[tuple[int, Effect | Packet]] = deque()
        self._busy = False

    def __str__(self) -> str:
        stages = ", ".join(map(str, sorted(self.machines)))
        return f"{self.process} ({stages or 'no member'})"

    @property
    def alive(self) -> bool:
        """Whether its process is there."""
        return self.process.alive

    @property
    def load(self) -> int:
        """How much there is to do here."""
        return sum(machine.load for machine in self.machines.values())

    def member(self, stage: int) -> int:
        """Its number as a member of a ring."""
        return member(self.number, stage)

    def players(self) -> Iterator[tuple[Role, RolePlayer]]:
        """The roles that are played here."""
        for machine in self.machines.values():
            yield from machine.players.items()

    def stop(self) -> None:
        """The process is gone."""
        self.work.clear()
        self.told.clear()
        self.said.clear()
        self._effects.clear()

    # -- the driver's orders ---------------------------------------------------------------------

    def obey(self, told: PlayRoles) -> None:
        """Do what the driver says."""
        self.world.note(self, "is told", told.orders)
        for order in told.orders:
            if self.alive:
                self._play(order)

    def _play(self, order: RoleOrder) -> None:
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
            case ChangeMembers(stage, members):
                if stage in self.machines:  # a host without roles is told, too
                    self.perform(stage, self.machines[stage].members_changed(members))
            case TakeRole(role, incarnation, fresh, low):
                position = 0 if self.replicas.shape.stages.parents[role.stage] else low
                machine = self.machines[role.stage]
                self.perform(role.stage, machine.take(role, incarnation, fresh, position))
            case HandOverRole(role, seat):
                self.perform(role.stage, self.machines[role.stage].hand_over(role, seat))
            case RewireRole(role, seat, fence):
                for stage, machine in self.machines.items():
                    self.perform(stage, machine.rewired(role, seat, fence))
            case _:
                assert_never(order)

    def _begin(self, generation: int) -> None:
        """Everything begins anew, with what follows."""
        self.machines.clear()
        self.work.clear()
        self.files.clear()
        self.generation, self.going = generation, False
        self.said.append(RingsBegun(generation))

    def _join(self, order: JoinRing) -> None:
        shape, stage = self.replicas.shape, order.stage
        machine = self.machines[stage] = ReplicaMachine(
            self.member(stage),
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
        if order.joining:
            self.replicas.joins(self, stage, order.members)
        self.perform(stage, machine.join() if order.joining else [])
        early, self.early = self.early, []
        for packet in early:
            self.arrived(packet)

    def _drop(self, order: DropMembers) -> None:
        self.forgot.update(map(member_host, order.members))
        for number in order.members:
            for stage, machine in self.machines.items():
                self.perform(stage, machine.host_lost(number))
        if self.alive:
            self.said.append(LossHeard(self.generation, order.round))

    # -- messages and work -----------------------------------------------------------------------

    def arrived(self, packet: Packet) -> None:
        """A message: taken now, or once this host is a member of the ring."""
        if packet.generation is not None and packet.generation != self.generation:
            if packet.generation > self.generation:
                self.early.append(packet)
        elif packet.stage in self.machines:
            self.world.note(self, "gets", packet.envelope)
            self.perform(packet.stage, self.machines[packet.stage].received(packet.envelope))
            self._speak(packet.stage)
        elif packet.generation is not None:
            self.early.append(packet)

    def readable(self) -> list[Role]:
        """The source roles that can read on."""
        found = []
        for role, player in self.players() if self.going else ():
            file = self.files.get(role, (0, None))[1]
            if file is not None and player.tables.may_read:
                done = file.ends[-1] if file.ends else 0
                if player.tables.next <= len(file.ends) or done < self.replicas.rows_of(role):
                    found.append(role)
        return found

    def read(self, role: Role) -> None:
        """Read again what was noted; else what comes next, and note it first."""
        shape, machine = self.replicas.shape, self.machines[role.stage]
        file = self.files[role][1]
        if file is None:
            return
        number = machine.players[role].tables.next
        if number > len(file.ends):
            begin = file.ends[-1] if file.ends else 0
            size = self.world.random.randint(1, shape.rows_max)
            if not file.append(min(begin + size, self.replicas.rows_of(role))):
                self.world.note(self, "may note nothing more as", short(role))
                self.files[role] = self.files[role][0], None
                return
        rows = self.replicas.source_rows(role, rows_of_read(file.ends, number))
        self.world.note(self, "reads", number, "as", short(role))
        parts = shape.divide(role.stage, ParcelId(role, number), rows)
        self.perform(role.stage, machine.read(role, parts))

    def do_work(self, stores: bool) -> None:
        """Process or publish a parcel."""
        number: int | None = self.world.random.randrange(len(self.work))
        job = self.work.pop((number if stores else self._not_to_publish()) or 0)
        role, parcel = job.role, job.parcel
        outputs = {}
        if isinstance(job, Publish):
            if not self.replicas.publish(self, parcel):
                return
        else:
            rows = self.replicas.shape.apply(role.stage, list(parcel.payload))
            outputs = self.replicas.shape.divide(role.stage, parcel.id, rows)
            self.world.note(self, "has processed", parcel.id)
        machine = self.machines[role.stage]
        self.perform(role.stage, machine.processed(role, job.incarnation, parcel.id, outputs))
        self._speak(role.stage)

    def _speak(self, stage: int) -> None:
        """(Runs that tell often) say what has come since, once there is enough of it."""
        machine = self.machines.get(stage)
        if self.replicas.often and machine is not None and self.alive:
            came, settled = machine.unsaid
            if settled or came >= UNSAID:
                self.perform(stage, machine.speak())

    def can_work(self, stores: bool) -> bool:
        """Whether there is something to process, or that the store takes."""
        return bool(self.work) and (stores or self._not_to_publish() is not None)

    def _not_to_publish(self) -> int | None:
        places = (n for n, job in enumerate(self.work) if not isinstance(job, Publish))
        return next(places, None)

    def perform(self, stage: int, effects: list[Effect]) -> None:
        """Do what a machine asks for, after what was asked for before.

        The host may die in the middle of it.
        """
        stop_at = len(effects)
        if self.replicas.cut_short == self.host and stop_at > 1:
            stop_at = self.world.random.randrange(stop_at)
        self._effects.extend((stage, effect) for effect in effects[:stop_at])
        if stop_at < len(effects):
            self._drain()
            self.replicas.cut_short = None
            self.replicas.kill(self)
            return
        self._drain()

    def _drain(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while self._effects and self.alive:
                stage, effect = self._effects.popleft()
                if isinstance(effect, Packet):
                    self.arrived(effect)
                else:
                    self._perform(stage, effect)
        finally:
            self._busy = False
        self._follow()

    def _perform(self, stage: int, effect: Effect) -> None:
        match effect:
            case SendEnvelope():
                self._send(effect)
            case ProcessParcel() | Publish():
                self.work.append(effect)
            case Taken(role, incarnation):
                self.world.note(self, "plays", f"{short(role)}#{incarnation}")
                self.said.append(RoleTaken(self.generation, stage, role, incarnation))
            case Recovered(role, incarnation):
                self.said.append(RoleRecovered(self.generation, stage, role, incarnation))
            case Ready():
                self.said.append(MemberReady(self.generation, stage))
            case Doubt():
                self.world.note(self, "doubts", effect.ids)
            case _:
                assert_never(effect)

    def _send(self, effect: SendEnvelope) -> None:
        if effect.host < 0:
            return  # no host plays that role: it is sent again when one does
        to, envelope = member_host(effect.host), effect.envelope
        parcels = isinstance(envelope.body, DeliverParcels)
        packet = Packet(None if parcels else self.generation, member_stage(effect.host), envelope)
        receiver = self.replicas.heard_by(self, to)
        if receiver is self and not parcels:
            self._effects.append((packet.stage, packet))
        elif receiver is not None:
            reliable = self.replicas.shape.settings.logs or receiver is self
            send_packet(self.world.network, self, receiver, packet, reliable)
        if isinstance(envelope.body, HandedOver) and self.replicas.cut_move is not None:
            victim = self if self.replicas.cut_move == "sender" else self.replicas.of(self, to)
            self.replicas.cut_move = None
            self.replicas.kill(victim)

    def _follow(self) -> None:
        """Have the logs open of just those sources that are played here."""
        players = dict(self.players())
        for role in [r for r in self.files if r not in players]:
            del self.files[role]
        for role, player in players.items():
            if player.tables.is_source and self.files.get(role, (0, None))[0] != player.incarnation:
                log = self.replicas.logs[role]
                self.files[role] = player.incarnation, log.claim(player.incarnation)

    # -- time passes -----------------------------------------------------------------------------

    def tick(self) -> None:
        """Now and then: what can be told together is told; sinks look for what cannot come."""
        for stage, machine in list(self.machines.items()):
            if self.alive:
                self.perform(stage, machine.tick())
        for role, player in self.players() if self.alive else ():
            if player.tables.is_sink:
                missing = self._missing(role, player)
                if missing is not None:
                    self.replicas.monitor.missed(missing)
                    report = ParcelsMissed(self.generation, short(role), str(missing))
                    if report not in self.said:
                        self.said.append(report)

    def _missing(self, role: Role, player: RolePlayer) -> ParcelId | None:
        """A parcel that is needed and will never come."""
        if any(job.role == role for job in self.work):
            return None
        replicas = self.replicas
        for lane, floor in player.inputs_floor().items():
            for number in range(1, min(floor, len(replicas.logs[lane].ends)) + 1):
                for id_, at in replicas.arrivals(lane, number).items():
                    published = id_ in replicas.stored_ids
                    if at == role and not published and id_ not in player.tables.works:
                        return id_
        return None


def short(role: Role) -> str:
    """A role, for people."""
    return f"{role.stage}.{role.place}"
