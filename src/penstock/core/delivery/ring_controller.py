"""The controller's part: who plays which role, after deaths and after returns.

Theory of operation
-------------------
    PLAYED --host lost--> TAKING --taken--> PLAYED --home is ready--> MOVING --taken--> PLAYED
                 TAKING, MOVING --a host of it lost--> TAKING (a new incarnation)
                 TAKING --no host left--> ORPHANED --a host joins--> TAKING

- Everything that matters is in the :class:`RingRecord`, made durable before anybody hears of it.
  A controller that restarts tells all hosts again.
- A lost host's roles get new incarnations and fences.  The store hears of the fences first.  Then
  the new player takes the role, and when it has, all hosts are told where it is.
- A host that comes back joins the ring, learns what its siblings know, and is ready; then the roles
  that have their home there are handed back to it, by their players.  If it dies on the way,
  they go back to who handed them over.
- A host is *ready* when everything that its siblings share is shared with it as well.  While one
  that is ready lives, no record is lost; when none does, a role is taken *fresh*.

Frozen hosts are lost hosts: their numbers are gone from the rings, and when they wake up they are
told to stop.  Follows Sections 4.2 and 4.3 of the DADSTORM paper, by way of a controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from penstock.core.delivery.ids import Role
from penstock.core.delivery.ring import Load
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
from penstock.core.delivery.routing import NO_HOST, Seat
from penstock.core.delivery.takeover import Takeover, taker

__all__ = ["RingController", "Takeover"]


class RingController:
    """Decides who plays what.

    >>> a, b = Role(0, 0), Role(0, 1)
    >>> record = RingRecord({a: Seat(1, 1), b: Seat(2, 1)}, {a: 0, b: 1}, {0: {0: 1, 1: 2}},
    ...                     ready=frozenset({1, 2}))
    >>> controller = RingController(record)
    >>> effects = controller.host_lost(1)
    >>> [type(effect).__name__ for effect in effects]
    ['PersistRing', 'FenceRoles', 'StopHost', 'TellLost', 'TellMembers', 'TellNext', 'TellTake']
    >>> effects[-1].to, effects[-1].role, effects[-1].incarnation
    (2, Role(stage=0, place=0), 2)
    """

    def __init__(self, record: RingRecord, takeover: Takeover = Takeover.NEXT) -> None:
        self.record = record
        self.takeover = takeover
        self.loads: dict[int, Load] = {}

    @property
    def quiet(self) -> bool:
        """Whether every role is played and none is on the move."""
        record = self.record
        return not (record.taking or record.moving or record.orphans or record.fresh)

    @property
    def alone(self) -> tuple[int, ...]:
        """Hosts that no other watches: the only ones of their stages."""
        rings = self.record.rings
        return tuple(
            host
            for stage in sorted(rings)
            for host in rings[stage].values()
            if len(rings[stage]) == 1
        )

    # -- events ----------------------------------------------------------------------------------

    def resumed(self) -> list[RingControllerEffect]:
        """A new controller has read the record: tell all hosts everything again."""
        record = self.record
        effects: list[RingControllerEffect] = [FenceRoles(dict(record.fences))]
        effects += [StopHost(host) for host in sorted(record.lost)]
        effects += [TellLost(to, host) for to in record.hosts() for host in sorted(record.lost)]
        for stage in sorted(record.rings):
            effects += self._ring(stage)
        for role in sorted(record.seats):
            if role in record.taking:
                effects.append(self._take(role))
            elif role in record.moving:
                to = record.moving[role]
                effects.append(TellHandOver(record.seats[role].host, role, to))
                effects.append(TellConfirm(to.host, role, to.incarnation))
            elif role in record.fresh - record.orphans:
                seat = record.seats[role]
                effects.append(TellConfirm(seat.host, role, seat.incarnation))
            if role not in record.taking and role not in record.orphans:
                effects += self._rewired(role)
        return effects

    def reported(self, by: int, host: int, loads: Mapping[int, Load]) -> list[RingControllerEffect]:
        """A member of a ring takes the next one for dead."""
        self.loads |= loads
        place, other = self.record.place_of(by), self.record.place_of(host)
        if place is None or other is None or place[0] != other[0]:
            return []
        return self.host_lost(host)

    def host_lost(self, host: int) -> list[RingControllerEffect]:
        """A host is dead, or taken for dead; old news changes nothing."""
        place = self.record.place_of(host)
        if place is None:
            return []
        stage, slot = place
        record = self.record
        ring = {s: h for s, h in record.rings[stage].items() if h != host}
        rings = {**record.rings, stage: ring}
        ready = record.ready - {host}
        known = frozenset(ring.values()) & ready
        gone = [
            role
            for role, seat in sorted(record.seats.items())
            if role not in record.orphans
            and (seat.host == host or (role in record.moving and record.moving[role].host == host))
        ]
        self.record = replace(record, rings=rings, ready=ready, lost=record.lost | {host})
        self._assign(gone, slot, known)
        told = [TellLost(to, host) for to in self.record.hosts()]
        return [
            PersistRing(self.record),
            FenceRoles({role: self.record.fences[role] for role in gone}),
            StopHost(host),
            *told,
            *self._ring(stage),
            *(self._take(role) for role in gone if role in self.record.taking),
        ]

    def joined(self, host: int, stage: int, slot: int) -> list[RingControllerEffect]:
        """A host was started for a slot of a stage."""
        record = self.record
        if host in record.lost or record.rings[stage].get(slot) is not None:
            return [StopHost(host)]
        ring = {**record.rings[stage], slot: host}
        self.record = replace(record, rings={**record.rings, stage: ring})
        waiting = [role for role in sorted(record.orphans) if role.stage == stage]
        self._assign(waiting, slot, frozenset(ring.values()) & record.ready)
        return [
            PersistRing(self.record),
            FenceRoles({role: self.record.fences[role] for role in waiting}),
            Start(host, stage, self.record),
            *self._ring(stage),
            *(self._take(role) for role in waiting),
        ]

    def ready(self, host: int) -> list[RingControllerEffect]:
        """A host knows what its siblings know."""
        if self.record.place_of(host) is None or host in self.record.ready:
            return []
        self.record = replace(self.record, ready=self.record.ready | {host})
        return [PersistRing(self.record), *self._reinstate()]

    def taken(self, host: int, role: Role, incarnation: int) -> list[RingControllerEffect]:
        """A host plays a role that was given to it."""
        record, seat = self.record, Seat(host, incarnation)
        if role in record.taking and record.seats[role] == seat:
            self.record = replace(record, taking=record.taking - {role})
        elif record.moving.get(role) == seat:
            moving = {r: s for r, s in record.moving.items() if r != role}
            self.record = replace(record, moving=moving, seats={**record.seats, role: seat})
        else:
            return []
        return [PersistRing(self.record), *self._rewired(role), *self._reinstate()]

    def recovered(self, host: int, role: Role, incarnation: int) -> list[RingControllerEffect]:
        """All that was asked for after a take-over has come: records are complete again."""
        record = self.record
        if role not in record.fresh or record.seats[role] != Seat(host, incarnation):
            return []
        self.record = replace(record, fresh=record.fresh - {role})
        return [PersistRing(self.record)]

    # -- inside ----------------------------------------------------------------------------------

    def _assign(self, roles: Iterable[Role], slot: int, known: frozenset[int]) -> None:
        """Give roles to hosts of their stage, behind new fences; or to none."""
        record = self.record
        seats, fences, moving = dict(record.seats), dict(record.fences), dict(record.moving)
        taking, fresh, orphans = set(record.taking), set(record.fresh), set(record.orphans)
        extra: dict[int, int] = {}
        for role in roles:
            coming = moving.pop(role, None)
            newest = max(seats[role].incarnation, coming.incarnation if coming else 0)
            player = self._keeper(role) if coming else None
            if player is None:
                player = self._choose(role.stage, slot, known, extra)
            fences[role] = newest + 1
            seats[role] = Seat(NO_HOST if player is None else player, newest + 1)
            orphans.discard(role)
            if player is None:
                orphans.add(role)
                taking.discard(role)
                continue
            extra[player] = extra.get(player, 0) + 1
            taking.add(role)
            if known and role not in record.orphans and role not in record.fresh:
                fresh.discard(role)
            else:
                fresh.add(role)
        self.record = replace(
            record,
            seats=seats,
            fences=fences,
            moving=moving,
            taking=frozenset(taking),
            fresh=frozenset(fresh),
            orphans=frozenset(orphans),
        )

    def _keeper(self, role: Role) -> int | None:
        """Who hands a role over, if it lives: it still has what may not have arrived."""
        host = self.record.seats[role].host
        return host if host in self.record.members(role.stage) else None

    def _choose(
        self, stage: int, slot: int, known: frozenset[int], extra: Mapping[int, int]
    ) -> int | None:
        ring = self.record.rings[stage]
        after = sorted(ring, key=lambda other: (other <= slot, other))
        hosts = [ring[other] for other in after if ring[other] in known or not known]
        return taker(hosts, self.takeover, self._load, extra)

    def _load(self, host: int) -> int:
        return self.loads.get(host, Load(0, 0)).amount

    def _reinstate(self) -> list[RingControllerEffect]:
        """Hand roles back to hosts that are ready in their homes."""
        record = self.record
        moving = dict(record.moving)
        effects: list[RingControllerEffect] = []
        for role, seat in sorted(record.seats.items()):
            home = record.rings[role.stage].get(record.homes[role])
            pending = role in moving or role in record.taking or role in record.orphans
            if home is None or home == seat.host or home not in record.ready or pending:
                continue
            moving[role] = Seat(home, seat.incarnation + 1)
            effects.append(TellHandOver(seat.host, role, moving[role]))
        if not effects:
            return []
        self.record = replace(record, moving=moving)
        return [PersistRing(self.record), *effects]

    def _ring(self, stage: int) -> list[RingControllerEffect]:
        members = self.record.members(stage)
        nexts = (*members[1:], *members[:1]) if len(members) > 1 else (None,) * len(members)
        told: list[RingControllerEffect] = [TellMembers(host, members) for host in members]
        return told + [TellNext(host, other) for host, other in zip(members, nexts, strict=True)]

    def _take(self, role: Role) -> TellTake:
        seat = self.record.seats[role]
        return TellTake(seat.host, role, seat.incarnation, role in self.record.fresh)

    def _rewired(self, role: Role) -> list[RingControllerEffect]:
        record = self.record
        seat, fence = record.seats[role], record.fences.get(role, 0)
        return [TellRewired(host, role, seat, fence) for host in record.hosts()]
