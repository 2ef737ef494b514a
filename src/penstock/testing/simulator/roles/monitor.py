"""What must hold in a simulated run: per guarantee, and of the tables."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.core.delivery.guarantees import Guarantee
from penstock.core.delivery.ids import ParcelId, member_host
from penstock.core.delivery.records import ReplicaMachine
from penstock.testing.simulator.roles.shape import Row, Shape
from penstock.testing.simulator.roles.source_log import rows_of_read
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
        settings = shape.settings
        self.whole = settings.acknowledged or settings.depth >= shape.stages.length
        """Whether some host can always send again, however many die."""

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
        if host.machine is None or host.stage in self.shape.stages.sources:
            return
        ends = {lane: log.ends for lane, log in world.logs.items()}
        for id_ in self._held(host.machine, host.number, world):
            if id_.number <= len(ends[id_.lane]):
                for place in rows_of_read(ends[id_.lane], id_.number):
                    self.hits.setdefault((id_.lane.place, place), set()).add(host.number)

    def missed(self, id_: ParcelId, world: World) -> None:
        """A sink says that a parcel will never come: then enough of those that had it have died."""
        for place in rows_of_read(world.logs[id_.lane].ends, id_.number):
            hits = self.hits.get((id_.lane.place, place), set())
            if self.whole or len(hits) <= self.shape.settings.depth:
                raise Violation("missed", f"{id_}, held by {sorted(hits)} when they died")

    def _held(self, machine: ReplicaMachine, host: int, world: World) -> list[ParcelId]:
        held: list[ParcelId] = []
        for player in machine.players.values():
            held += [*player.tables.entries, *player.tables.works]
        for table in machine.copies.values():
            held += [record.id for record in table.records.values() if record.parcel is not None]
        for to, state in machine.kept.values():  # the only copy, if it cannot have arrived
            at = member_host(to.host)
            if not world.hosts[at].alive or at not in world.driver.up:
                held += [*state.entries, *state.works]
        return held + world.handed_to(host)

    def check_end(self, world: World) -> None:
        """Everything has come to rest."""
        settings = self.shape.settings
        for row in sorted(self.expected - set(self.seen)):
            if settings.guarantee is Guarantee.AT_MOST_ONCE and self.faults:
                continue
            hits = self.hits.get((row[0], row[1]), set())
            if self.whole or settings.dedup or len(hits) <= settings.depth:
                raise Violation("lost", f"row {row}, held by {sorted(hits)} when they died")
        if self.expected <= self.seen.keys() and not world.driver.ended:
            raise Violation("ended", "all rows are published, and no sink has ended")
        for host in world.living():
            if host.machine is not None:
                self._purged(host.number, host.machine)

    def _purged(self, host: int, machine: ReplicaMachine) -> None:
        for role, player in machine.players.items():
            for what, left in (
                ("entries", player.tables.entries),
                ("works", player.tables.works),
                ("records", player.tables.table.records),
            ):
                if left:
                    raise Violation("purge", f"{what} left at {role} on {host}: {left}")
        for role, table in machine.copies.items():
            unsettled = table.unsettled()
            if unsettled and role not in machine.players:
                raise Violation("purge", f"copies left of {role} at {host}: {unsettled}")

    def check_homes(self, world: World) -> None:
        """Every role is back where it belongs."""
        record = world.driver.machine.record
        if record is None:
            raise Violation("eventuality", "the rings have not begun")
        for role, seat in record.seats.items():
            home = record.rings[role.stage].get(record.homes[role])
            machine = world.hosts[member_host(seat.host)].machine
            player = None if machine is None else machine.players.get(role)
            if seat.host != home or player is None or player.incarnation != seat.incarnation:
                raise Violation("reinstatement", f"{role} is at {seat}, its home is {home}")
