"""The machine of a replica's host: its roles, its siblings' records, who plays what.

Theory of operation
-------------------
- A host plays roles of one stage; the hosts of a stage are each other's *siblings*.
- Incarnations of roles come from the controller.  A *fence* is the least incarnation of a role that
  is still listened to: a crash raises it, a move does not, since the old player was a good one.
  A host that speaks for a role from behind its fence is refused, and drops the role.
- A role of a dead host is *taken*: fence it at all siblings and collect what they know of it, ask
  the origins for what is unsettled, say so to the controller.  Only then others are told.
- A role is *handed over* when nothing of it is being worked on: tables and all go to the next
  player, and what still comes for the role follows.  With it goes who plays the roles above and
  below: what the next player has to say of parcels concerns those who sent them, even if it has not
  been told of these yet.  Who handed the role over keeps a copy until it hears that it has arrived;
  if the next player dies first, the controller gives the role back.
- A new host first gets to know all that its siblings know; until then it can take nothing over.

Channels between hosts are taken to be ordered, and reliable while both live.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.core.delivery.ids import Lane, ParcelId, Role
from penstock.core.delivery.messages import (
    Acknowledge,
    Answered,
    Ask,
    Body,
    Collect,
    Collected,
    Copy,
    DeliverParcels,
    Effect,
    Envelope,
    Floors,
    HandedOver,
    Introduced,
    Parcel,
    ParcelRecord,
    Ready,
    Refused,
    SendEnvelope,
    Share,
    Shared,
    Taken,
)
from penstock.core.delivery.player import RolePlayer, RoleState
from penstock.core.delivery.replicated import ReplicaSettings, Sharing
from penstock.core.delivery.role import RoleTables
from penstock.core.delivery.routing import Seat, Stages
from penstock.core.delivery.tables import RecordTable

__all__ = ["ReplicaMachine"]


@dataclass
class _Taking:
    incarnation: int
    fresh: bool
    position: int
    waiting: set[int]
    kept: RoleState | None


class ReplicaMachine:
    """What a host does with parcels, records and roles.

    ``seats`` says who plays every role of the flow; ``members`` are the hosts of this stage.
    ``joining``: this host is new among them, and tells when it is ready.
    """

    def __init__(
        self,
        host: int,
        settings: ReplicaSettings,
        stages: Stages,
        seats: Mapping[Role, Seat],
        fences: Mapping[Role, int],
        members: Iterable[int],
        joining: bool = False,
        dead: Iterable[int] = (),
    ) -> None:
        self.host = host
        self.settings = settings
        self.stages = stages
        self.seats = dict(seats)
        self.fences = dict(fences)
        self.siblings = set(members) - {host}
        self.dead = set(dead)
        self.players: dict[Role, RolePlayer] = {}
        self.copies: dict[Role, RecordTable] = {}
        self._learnt: dict[Role, int] = {}
        """Per role: the last player that has shared with this host."""
        self._told: dict[Role, int] = {}
        """Per role: the last player of which siblings have told what it shared with them."""
        self._forwards: dict[Role, Seat] = {}
        self.kept: dict[Role, tuple[Seat, RoleState]] = {}
        """What was handed over, and to whom, until it is known to have arrived."""
        self._taking: dict[Role, _Taking] = {}
        self._draining: dict[Role, tuple[Seat, list[Envelope]]] = {}
        self._rewired: dict[Role, int] = {role: seat.incarnation for role, seat in seats.items()}
        self._strangers = set(self.siblings) if joining else set()
        self.ready = not self._strangers
        for role, seat in seats.items():
            if seat.host == host and not joining:
                self._play(role, seat.incarnation)

    @property
    def load(self) -> int:
        """How much there is to do here."""
        return len(self.players) + sum(len(player.tables.works) for player in self.players.values())

    def join(self) -> list[Effect]:
        """A new host has no sibling to wait for, or starts waiting."""
        return self._maybe_ready()

    # -- data ------------------------------------------------------------------------------------

    def read(self, role: Role, outputs: Mapping[Role, Parcel]) -> list[Effect]:
        """A source has read what comes next and divided it."""
        player = self.players[role]
        player.tables.read(outputs)
        return self._perform(player)

    def processed(
        self, role: Role, incarnation: int, id_: ParcelId, outputs: Mapping[Role, Parcel]
    ) -> list[Effect]:
        """A parcel was turned into others, or published."""
        player = self.players.get(role)
        if player is None or player.incarnation != incarnation:
            return []
        player.tables.processed(id_, outputs)
        effects = self._perform(player)
        if role in self._draining and not player.tables.busy:
            effects += self._hand(role)
        return effects

    @property
    def unsaid(self) -> tuple[int, int]:
        """How many parcels have come, and how many are settled, that no other host was told of."""
        counts = [player.tables.unsaid for player in self.players.values()]
        return sum(came for came, _ in counts), sum(settled for _, settled in counts)

    def speak(self) -> list[Effect]:
        """Often: what has come since goes to siblings and origins, in one message each."""
        effects: list[Effect] = []
        for player in self.players.values():
            player.tables.speak()
            effects += self._perform(player)
        return effects

    def tick(self) -> list[Effect]:
        """Now and then: what can be told in one message is told, and floors rise."""
        effects: list[Effect] = []
        for player in self.players.values():
            player.flush()
            effects += self._perform(player)
        return effects

    def received(self, envelope: Envelope) -> list[Effect]:
        """A message from another host."""
        sender, body = envelope.sender, envelope.body
        if sender is not None:
            if self._refuses(sender, envelope.incarnation):
                if isinstance(body, Share) and envelope.host in self._strangers:
                    # This role is being taken from it; what it knows, perhaps no other host does.
                    self._hear_of(sender, envelope.incarnation, body.records, body.floor)
                return [self._to_host(envelope.host, Refused(sender, self.fences[sender]))]
            if envelope.incarnation > self.seats[sender].incarnation:
                self.seats[sender] = Seat(envelope.host, envelope.incarnation)
        if envelope.target is None:
            return self._sibling(envelope, body)
        if isinstance(body, HandedOver):
            return self._handed(envelope.host, envelope.target, envelope.target_incarnation, body)
        if isinstance(body, Collected):
            return self._collected(envelope.target, envelope.target_incarnation, body)
        return self._for_role(envelope, envelope.target)

    def _refuses(self, role: Role, incarnation: int) -> bool:
        """Whether the host that speaks for a role was replaced."""
        return incarnation < self.fences.get(role, 0)

    def _for_role(self, envelope: Envelope, role: Role) -> list[Effect]:
        if role in self._draining:
            self._draining[role][1].append(envelope)
            return []
        player = self.players.get(role)
        if player is None or player.incarnation != envelope.target_incarnation:
            forward = self._forwards.get(role)
            if forward is None or envelope.target_incarnation >= forward.incarnation:
                return []
            if isinstance(envelope.body, Shared):
                return []  # the next player shares anew, under numbers of its own
            moved = envelope._replace(target_incarnation=forward.incarnation)
            return [SendEnvelope(forward.host, moved)]
        sender, body = envelope.sender, envelope.body
        if isinstance(body, Shared):
            player.tables.shared(body.number, body.host)
        elif sender is not None:
            if isinstance(body, DeliverParcels):
                player.tables.received(sender, body.parcels)
            elif isinstance(body, Acknowledge):
                player.tables.acknowledged(body.levels)
            elif isinstance(body, Floors):
                player.heard_floors(sender, body.floors)
            elif isinstance(body, Ask):
                player.asked(sender, body.ids)
            elif isinstance(body, Answered):
                player.answered(sender)
        return self._perform(player)

    # -- siblings --------------------------------------------------------------------------------

    def _sibling(self, envelope: Envelope, body: Body) -> list[Effect]:
        role, host = envelope.sender, envelope.host
        if isinstance(body, Refused):
            self._fence(body.role, body.fence)
            return []
        if isinstance(body, Introduced):
            if host in self.dead:
                return []
            for about, incarnation, records, floor in body.copies:
                self._hear_of(about, incarnation, records, floor)
            self._strangers.discard(body.host)
            return self._maybe_ready()
        if role is None:
            return []
        if isinstance(body, Share):
            self._learn(role, envelope.incarnation, body.records, body.floor, body.whole)
            answer: Body = Shared(body.number, self.host)
        elif isinstance(body, Collect):
            self._fence(role, envelope.incarnation)
            table = self.copies.get(role, RecordTable())
            answer = Collected(self.host, tuple(table.records.values()), dict(table.floor))
        else:
            return []
        return [
            SendEnvelope(host, Envelope(self.host, None, 0, role, envelope.incarnation, answer))
        ]

    def _learn(
        self,
        role: Role,
        incarnation: int,
        records: Iterable[ParcelRecord],
        floor: Mapping[Lane, int],
        whole: bool,
    ) -> None:
        """Know what a player shares of its role, unless a later player has shared since."""
        if incarnation < self._learnt.get(role, 0) or role in self.players:
            return
        self._learnt[role] = incarnation
        if whole:
            self.copies.pop(role, None)
        self._add(role, records, floor)

    def _hear_of(
        self,
        role: Role,
        incarnation: int,
        records: Iterable[ParcelRecord],
        floor: Mapping[Lane, int],
    ) -> None:
        """Know what a sibling knows of a role, unless its player has told itself."""
        if incarnation > self._learnt.get(role, 0) and role not in self.players:
            self._add(role, records, floor)
            self._told[role] = max(incarnation, self._told.get(role, 0))

    def _add(self, role: Role, records: Iterable[ParcelRecord], floor: Mapping[Lane, int]) -> None:
        table = self.copies.setdefault(role, RecordTable())
        table.put(records)
        table.raise_floor(floor)

    def members_changed(self, members: Iterable[int]) -> list[Effect]:
        """The hosts of this stage are these now."""
        now = set(members) - {self.host}
        came, went = sorted(now - self.siblings), sorted(self.siblings - now)
        self.siblings = now
        effects: list[Effect] = []
        for host in went:
            self._strangers.discard(host)
            for player in list(self.players.values()):
                player.tables.left(host)
                effects += self._perform(player)
            for role, taking in list(self._taking.items()):
                taking.waiting.discard(host)
                effects += self._maybe_begin(role)
        for host in came:
            for player in self.players.values():
                player.tables.joined(host)
                effects += self._perform(player)
            effects.append(self._to_host(host, Introduced(self.host, self._all_copies())))
        return effects + self._maybe_ready()

    def _all_copies(self) -> tuple[Copy, ...]:
        """What this host knows of its siblings' roles, from them or from others."""
        return tuple(
            (
                role,
                max(self._learnt.get(role, 0), self._told.get(role, 0)),
                tuple(table.records.values()),
                dict(table.floor),
            )
            for role, table in self.copies.items()
            if role not in self.players
        )

    def _maybe_ready(self) -> list[Effect]:
        self.ready = not self._strangers
        return [Ready()] if self.ready else []

    # -- roles -----------------------------------------------------------------------------------

    def take(
        self, role: Role, incarnation: int, fresh: bool = False, position: int = 0
    ) -> list[Effect]:
        """Play the role of a host that was lost.

        ``fresh``: no sibling knows all of its records.  ``position``: a source's durable one.
        """
        player = self.players.get(role)
        if player is not None and player.incarnation == incarnation:
            return [Taken(role, incarnation)]
        taking = self._taking.get(role)
        if self._refuses(role, incarnation) or (taking and taking.incarnation >= incarnation):
            return []
        self._fence(role, incarnation)
        ask = self.siblings if self.settings.sharing is not Sharing.NOTHING else set()
        self._taking[role] = _Taking(
            incarnation, fresh, position, set(ask), self.kept.pop(role, (None, None))[1]
        )
        effects: list[Effect] = [
            SendEnvelope(host, Envelope(self.host, role, incarnation, None, 0, Collect()))
            for host in sorted(ask)
        ]
        return effects + self._maybe_begin(role)

    def _collected(self, role: Role, incarnation: int, body: Collected) -> list[Effect]:
        taking = self._taking.get(role)
        if taking is None or taking.incarnation != incarnation:
            return []
        self._add(role, body.records, body.floor)
        taking.waiting.discard(body.host)
        return self._maybe_begin(role)

    def _maybe_begin(self, role: Role) -> list[Effect]:
        taking = self._taking[role]
        if taking.waiting:
            return []
        del self._taking[role]
        player = self._play(role, taking.incarnation)
        player.begin(taking.fresh, taking.position, taking.kept)
        return [Taken(role, taking.incarnation), *self._perform(player)]

    def _play(self, role: Role, incarnation: int) -> RolePlayer:
        tables = RoleTables(
            role, incarnation, self.settings, self.stages, self.seats, set(self.siblings)
        )
        tables.table = self.copies.pop(role, RecordTable())
        player = self.players[role] = RolePlayer(tables)
        self.seats[role] = Seat(self.host, incarnation)
        self._forwards.pop(role, None)
        return player

    def hand_over(self, role: Role, to: Seat) -> list[Effect]:
        """Give a role to another host, as soon as nothing of it is being worked on.

        A sink may be waiting for the rest of what it publishes: that goes along.
        """
        player = self.players.get(role)
        if player is None or player.incarnation >= to.incarnation or role in self._draining:
            return []
        self._draining[role] = (to, [])
        return [] if player.tables.busy and not player.tables.is_sink else self._hand(role)

    def _hand(self, role: Role) -> list[Effect]:
        to, held = self._draining.pop(role)
        player = self.players.pop(role)
        player.tables.speak()  # what the next player believes to be told
        effects = self._perform(player)
        state = player.hand_over()
        self._copy(player)
        self._keep(role, to, state)
        self._forwards[role] = self.seats[role] = to
        body = HandedOver(state, state.size)
        effects.append(
            SendEnvelope(to.host, Envelope(self.host, None, 0, role, to.incarnation, body))
        )
        for envelope in held:
            effects += self._for_role(envelope, role)
        return effects

    def _keep(self, role: Role, to: Seat, state: RoleState) -> None:
        """Have what was handed over at hand, should the next player never get it."""
        if self.settings.logs:
            self.kept[role] = (to, state)

    def _handed(self, via: int, role: Role, incarnation: int, body: HandedOver) -> list[Effect]:
        known = self.players.get(role)
        if self._refuses(role, incarnation) or (known and known.incarnation >= incarnation):
            return []
        for other, seat in body.state.seats.items():  # the driver's word may still be on its way
            if seat.incarnation > self.seats[other].incarnation:
                self.seats[other] = seat
        player = self._play(role, incarnation)
        player.take_over(body.state, via)
        for target in self.stages.downstream(role.stage):  # what the last player was not told
            player.seated(target, self.fences.get(target, 0), self.dead)
        return [Taken(role, incarnation), *self._perform(player)]

    def rewired(self, role: Role, seat: Seat, fence: int) -> list[Effect]:
        """The controller says who plays a role, and who is no longer listened to."""
        self._fence(role, fence)
        if role in self.kept and seat.incarnation >= self.kept[role][0].incarnation:
            del self.kept[role]
        if seat.incarnation <= self._rewired.get(role, 0):
            return []
        self._rewired[role] = seat.incarnation
        if seat.incarnation > self.seats[role].incarnation:
            self.seats[role] = seat
        effects: list[Effect] = []
        for player in self.players.values():
            player.seated(role, fence, self.dead)
            effects += self._perform(player)
        return effects

    def host_lost(self, host: int) -> list[Effect]:
        """A host is dead, or as good as."""
        self.dead.add(host)
        effects: list[Effect] = []
        for player in self.players.values():
            player.host_lost(host, self.dead)
            effects += self._perform(player)
        return effects

    # -- inside ----------------------------------------------------------------------------------

    def _fence(self, role: Role, fence: int) -> None:
        """Listen to no older incarnation of a role, and play none."""
        if fence <= self.fences.get(role, 0):
            return
        self.fences[role] = fence
        player = self.players.get(role)
        if player is not None and player.incarnation < fence:
            del self.players[role]
            self._draining.pop(role, None)
            self._copy(player)
        taking = self._taking.get(role)
        if taking is not None and taking.incarnation < fence:
            del self._taking[role]

    def _copy(self, player: RolePlayer) -> None:
        """Know of a role that was played here what a sibling knows."""
        if self.settings.sharing is not Sharing.NOTHING:
            self.copies[player.role] = player.tables.table
            self._learnt[player.role] = player.incarnation

    def _to_host(self, host: int, body: Body) -> SendEnvelope:
        return SendEnvelope(host, Envelope(self.host, None, 0, None, 0, body))

    def _perform(self, player: RolePlayer) -> list[Effect]:
        if self.settings.acknowledged or self.settings.mirrored:
            player.tables.speak()  # the source waits for it, or rows are too large to be gathered
        tables = player.tables
        effects, tables.effects = tables.effects, []
        outgoing, tables.outgoing = tables.outgoing, []
        for to, body in outgoing:
            if isinstance(to, Role):
                host, role, number = self.seats[to].host, to, self.seats[to].incarnation
            else:
                host, role, number = to, None, 0
            envelope = Envelope(self.host, player.role, player.incarnation, role, number, body)
            effects.append(SendEnvelope(host, envelope))
        return effects
