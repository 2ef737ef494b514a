"""What must hold in a simulated run: per guarantee, and of the tables."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.core.delivery.guarantees import Guarantee
from penstock.core.delivery.ids import ParcelId, member_host
from penstock.core.delivery.records import ReplicaMachine
from penstock.testing.simulator.roles.shape import Row
from penstock.testing.simulator.roles.source_log import rows_of_read
from penstock.testing.simulator.violations import Violation

if TYPE_CHECKING:
    from penstock.testing.simulator.roles.agent import Agent
    from penstock.testing.simulator.roles.part import ReplicatedPart

__all__ = ["ReplicaMonitor"]

Lineage = tuple[int, int]


class ReplicaMonitor:
    """Watches what replicas publish, and who held what when it died."""

    def __init__(self, part: ReplicatedPart) -> None:
        shape = part.shape
        self._part = part
        self._expected: tuple[list[int], frozenset[Row]] = ([], frozenset())
        self.seen: Counter[Row] = Counter()
        self.hits: dict[Lineage, set[int]] = {}
        self.faults = 0
        """Crashes, freezes, cuts: anything but the moving of roles."""
        self._guarantee = shape.settings.guarantee
        self._depth = shape.depth
        self.whole = shape.settings.acknowledged or shape.settings.depth >= shape.stages.length
        """Whether some host can always send again, however many die."""

    @property
    def expected(self) -> frozenset[Row]:
        """All that has to come out of what can be read by now."""
        part = self._part
        counts = [part.rows_of(lane) for lane in part.logs]
        if self._expected[0] != counts:
            read = {lane: part.source_rows(lane, range(part.rows_of(lane))) for lane in part.logs}
            self._expected = counts, part.shape.expected(read)
        return self._expected[1]

    def published(self, rows: tuple[Row, ...]) -> None:
        """Rows became visible outside."""
        guarantee = self._guarantee
        for row in rows:
            self.seen[row] += 1
            if row not in self.expected:
                raise Violation("invented", f"row {row} should not exist")
            if self.seen[row] > 1 and (guarantee.doubles_nothing or not self.faults):
                raise Violation("doubled", f"row {row} came {self.seen[row]} times")

    def hit(self, agent: Agent) -> None:
        """A host is lost with whatever it holds; sources can read theirs again."""
        if not agent.machines:
            return
        ends = {lane: log.ends for lane, log in self._part.logs.items()}
        for id_ in self._held(agent):
            if id_.number <= len(ends[id_.lane]):
                for place in rows_of_read(ends[id_.lane], id_.number):
                    self.hits.setdefault((id_.lane.place, place), set()).add(agent.host)

    def missed(self, id_: ParcelId) -> None:
        """A sink says that a parcel will never come: then enough of those that had it have died."""
        for place in rows_of_read(self._part.logs[id_.lane].ends, id_.number):
            hits = self.hits.get((id_.lane.place, place), set())
            if self.whole or len(hits) <= self._depth:
                raise Violation("missed", f"{id_}, held by {sorted(hits)} when they died")

    def _held(self, agent: Agent) -> list[ParcelId]:
        held: list[ParcelId] = []
        part = self._part
        for stage, machine in agent.machines.items():
            if stage in part.shape.stages.sources:
                continue
            for player in machine.players.values():
                held += [*player.tables.entries, *player.tables.works]
            for table in machine.copies.values():
                held += [
                    record.id for record in table.records.values() if record.parcel is not None
                ]
            for to, state in machine.kept.values():  # the only copy, if it cannot have arrived
                at = part.of(agent, member_host(to.host))
                if not at.alive or part.cluster.refuses(at.host):
                    held += [*state.entries, *state.works]
        return held + part.handed_to(agent.host)

    def check_end(self) -> None:
        """Everything has come to rest."""
        part, rings = self._part, self._part.world.driver.rings
        settings = part.shape.settings
        for row in sorted(self.expected - set(self.seen)):
            if settings.guarantee is Guarantee.AT_MOST_ONCE and self.faults:
                continue
            hits = self.hits.get((row[0], row[1]), set())
            if self.whole or settings.dedup or len(hits) <= self._depth:
                raise Violation("lost", f"row {row}, held by {sorted(hits)} when they died")
        if self.expected <= self.seen.keys() and (rings is None or not rings.ended):
            raise Violation("ended", "all rows are published, and no sink has ended")
        for agent in part.living():
            for machine in agent.machines.values():
                self._purged(agent.number, machine)

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

    def check_homes(self) -> None:
        """Every role is back where it belongs."""
        part, rings = self._part, self._part.world.driver.rings
        record = None if rings is None else rings.machine.record
        if record is None:
            raise Violation("eventuality", "the rings have not begun")
        for role, seat in record.seats.items():
            home = record.rings[role.stage].get(record.homes[role])
            agent = part.agents[part.cluster.key(member_host(seat.host))]
            machine = agent.machines.get(role.stage)
            player = None if machine is None else machine.players.get(role)
            if seat.host != home or player is None or player.incarnation != seat.incarnation:
                raise Violation("reinstatement", f"{role} is at {seat}, its home is {home}")
