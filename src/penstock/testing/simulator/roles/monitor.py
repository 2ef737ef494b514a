"""What must hold in a simulated run: per guarantee, and of the tables."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.core.delivery.guarantees import Guarantee
from penstock.core.delivery.ids import ParcelId
from penstock.testing.simulator.roles.shape import Row, Shape
from penstock.testing.simulator.violations import Violation

if TYPE_CHECKING:
    from penstock.testing.simulator.roles.world import Host, World

__all__ = ["Monitor"]

Lineage = tuple[int, int]


class Monitor:
    """Watches what is published and who held what when it died."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.expected = shape.expected()
        self.seen: Counter[Row] = Counter()
        self.hits: dict[Lineage, set[int]] = {}
        self.faults = 0
        """Crashes, freezes, cuts: anything but the moving of roles."""
        self.records_max = 0

    def published(self, rows: tuple[Row, ...]) -> None:
        """Rows became visible outside."""
        guarantee = self.shape.settings.guarantee
        for row in rows:
            self.seen[row] += 1
            if row not in self.expected:
                raise Violation("invented", f"row {row} should not exist")
            if self.seen[row] > 1 and (guarantee.doubles_nothing or not self.faults):
                raise Violation("doubled", f"row {row} came {self.seen[row]} times")

    def hit(self, host: Host, world: World) -> None:
        """A host is lost with whatever it holds; sources can read theirs again."""
        if host.stage in self.shape.stages.sources:
            return
        for id_ in self._held(host, world):
            self.hits.setdefault((id_.lane.place, id_.number), set()).add(host.number)

    def _held(self, host: Host, world: World) -> list[ParcelId]:
        machine = host.machine
        held: list[ParcelId] = []
        for player in machine.players.values():
            held += [*player.entries, *player.works]
        for table in machine.copies.values():
            held += [record.id for record in table.records.values() if record.parcel is not None]
        for to, state in machine.kept.values():  # the only copy, if it cannot have arrived
            if not world.hosts[to.host].alive or to.host in world.zombies:
                held += [*state.entries, *state.works]
        return held + world.handed_to(host.number)

    def check_end(self, world: World) -> None:
        """Everything has come to rest."""
        settings = self.shape.settings
        for row in sorted(self.expected - set(self.seen)):
            if settings.guarantee is Guarantee.AT_MOST_ONCE and self.faults:
                continue
            hits = self.hits.get((row[0], row[1]), set())
            endless = settings.acknowledged or settings.depth >= self.shape.stages.length
            if endless or len(hits) <= settings.depth:
                raise Violation("lost", f"row {row}, held by {sorted(hits)} when they died")
        for host in world.living():
            self._purged(host)

    def _purged(self, host: Host) -> None:
        for role, player in host.machine.players.items():
            for what, left in (
                ("entries", player.entries),
                ("works", player.works),
                ("records", player.table.records),
            ):
                if left:
                    raise Violation("purge", f"{what} left at {role} on {host.number}: {left}")
        for role, table in host.machine.copies.items():
            unsettled = table.unsettled()
            if unsettled and role not in host.machine.players:
                raise Violation("purge", f"copies left of {role} at {host.number}: {unsettled}")

    def check_homes(self, world: World) -> None:
        """Every role is back where it belongs."""
        record = world.controller.record
        for role, seat in record.seats.items():
            home = record.rings[role.stage].get(record.homes[role])
            player = world.hosts[seat.host].machine.players.get(role)
            if seat.host != home or player is None or player.incarnation != seat.incarnation:
                raise Violation("reinstatement", f"{role} is at {seat}, its home is {home}")
