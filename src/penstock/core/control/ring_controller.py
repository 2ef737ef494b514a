"""Who plays which role while the rings run, after deaths and after returns.

Theory of operation
-------------------
    PLAYED --host lost--> TAKING --taken--> PLAYED --home is ready--> MOVING --taken--> PLAYED
                 TAKING, MOVING --a host of it lost--> TAKING (a new incarnation)
                 TAKING --no host left--> ORPHANED --a host joins--> TAKING

- Everything that matters is in the :class:`RingRecord`, made durable before any host hears of it.
- A lost host's roles get new incarnations and fences, and go to the next host of the ring that is
  ready.  When it has taken a role, all hosts are told where it is.
- A host that comes back joins the ring, learns what its siblings know, and is ready; then the roles
  that have their home there are handed back to it, by their players.  If it dies on the way,
  they go back to the host that handed them over.
- A host is *ready* when everything that its siblings share is shared with it as well.  While one
  that is ready lives, no record is lost; when none does, a role is taken *fresh*.

One generation of the rings has one of these; :mod:`.rings` decides when a generation begins, and
when roles may be taken.  Follows Sections 4.2 and 4.3 of the DADSTORM paper, with a controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from penstock.core.control.host_orders import ChangeMembers, HandOverRole, RewireRole, TakeRole
from penstock.core.control.ring_record import PersistRing, RingControllerEffect, RingRecord, Tell
from penstock.core.delivery.ids import Role
from penstock.core.delivery.routing import NO_HOST, Seat

__all__ = ["RingController"]


class RingController:
    """Decides who plays what.

    >>> a, b = Role(0, 0), Role(0, 1)
    >>> record = RingRecord({a: Seat(1, 1), b: Seat(2, 1)}, {a: 0, b: 1}, {0: {0: 1, 1: 2}},
    ...                     ready=frozenset({1, 2}))
    >>> controller = RingController(record)
    >>> persist, members, take = controller.host_lost(1)
    >>> take.to, take.order.role, take.order.incarnation
    (2, Role(stage=0, place=0), 2)
    """

    def __init__(self, record: RingRecord) -> None:
        self.record = record

    @property
    def quiet(self) -> bool:
        """Whether every role is played and none is on the move."""
        record = self.record
        return not (record.taking or record.moving or record.orphans or record.fresh)

    # -- events ----------------------------------------------------------------------------------

    def host_lost(self, host: int) -> list[RingControllerEffect]:
        """A member is dead, or taken for dead; old news changes nothing."""
        place = self.record.place_of(host)
        if place is None:
            return []
        stage, slot = place
        record = self.record
        ring = {s: h for s, h in record.rings[stage].items() if h != host}
        ready = record.ready - {host}
        gone = [
            role
            for role, seat in sorted(record.seats.items())
            if role not in record.orphans
            and (seat.host == host or (role in record.moving and record.moving[role].host == host))
        ]
        self.record = replace(
            record, rings={**record.rings, stage: ring}, ready=ready, lost=record.lost | {host}
        )
        self._assign(gone, slot, frozenset(ring.values()) & ready)
        takes = [self._take(role) for role in gone if role in self.record.taking]
        return [PersistRing(self.record), *self._ring(stage), *takes]

    def joined(self, host: int, stage: int, slot: int) -> list[RingControllerEffect]:
        """A host was started for a slot of a stage."""
        record = self.record
        if host in record.lost or record.rings[stage].get(slot) is not None:
            return []
        ring = {**record.rings[stage], slot: host}
        self.record = replace(record, rings={**record.rings, stage: ring})
        waiting = [role for role in sorted(record.orphans) if role.stage == stage]
        self._assign(waiting, slot, frozenset(ring.values()) & record.ready)
        return [
            PersistRing(self.record),
            Tell(host, self.record.join(stage, joining=True, lows={})),
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
        for role in roles:
            coming = moving.pop(role, None)
            newest = max(seats[role].incarnation, coming.incarnation if coming else 0)
            player = self._keeper(role) if coming else None
            if player is None:
                player = self._next(record.rings[role.stage], slot, known)
            fences[role] = newest + 1
            seats[role] = Seat(NO_HOST if player is None else player, newest + 1)
            orphans.discard(role)
            if player is None:
                orphans.add(role)
                taking.discard(role)
                continue
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

    def _next(self, ring: Mapping[int, int], slot: int, known: frozenset[int]) -> int | None:
        """The next member behind a slot that is ready; if none is, just the next."""
        after = sorted(ring, key=lambda other: (other <= slot, other))
        return next((ring[other] for other in after if ring[other] in known or not known), None)

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
            effects.append(Tell(seat.host, HandOverRole(role, moving[role])))
        if not effects:
            return []
        self.record = replace(record, moving=moving)
        return [PersistRing(self.record), *effects]

    def _ring(self, stage: int) -> list[RingControllerEffect]:
        members = self.record.members(stage)
        return [Tell(host, ChangeMembers(stage, members)) for host in members]

    def _take(self, role: Role) -> Tell:
        """The last epoch that need not be made again is filled in when the role may be taken."""
        seat = self.record.seats[role]
        fresh = role in self.record.fresh
        return Tell(seat.host, TakeRole(role, seat.incarnation, fresh, low=-1))

    def _rewired(self, role: Role) -> list[RingControllerEffect]:
        record = self.record
        order = RewireRole(role, record.seats[role], record.fences.get(role, 0))
        return [Tell(host, order) for host in record.hosts()]
