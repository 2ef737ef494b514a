"""Mutants of the protocol: each leaves out one thing, and the simulator must notice.

A mutant that survives many seeds means that the simulator does not test that part of the protocol
(or that the part is not needed).  Each names what it leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.core.delivery.ids import Lane, ParcelId, Role
from penstock.core.delivery.messages import Effect, Envelope, Parcel, StorePosition
from penstock.core.delivery.player import RolePlayer, RoleState
from penstock.core.delivery.records import ReplicaMachine
from penstock.core.delivery.ring_controller import RingController
from penstock.core.delivery.ring_record import (
    TellTake,
)
from penstock.core.delivery.tables import RecordTable, Work

__all__ = ["MUTANTS", "REAL", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """The machines of a run: the real ones, or slightly wrong ones."""

    name: str
    leaves_out: str = ""
    machine: type[ReplicaMachine] = ReplicaMachine
    controller: type[RingController] = RingController
    stale_writes: bool = False
    forgetful_store: bool = False


REAL = Mutant("real")


def _playing(player: type[RolePlayer]) -> type[ReplicaMachine]:
    """A machine whose roles are played by such players."""
    return type(player.__name__, (ReplicaMachine,), {"player_type": player})


class _NoFence(ReplicaMachine):
    def _fence(self, role: Role, fence: int) -> None:
        return


class _AcknowledgesFirst(RolePlayer):
    """As the paper has it: the origin is told before the siblings."""

    def _may_tell(self, work: Work) -> bool:
        return True

    def received(self, origin: Role, parcels: Iterable[Parcel]) -> None:
        found = list(parcels)
        super().received(origin, found)
        if self.settings.logs:
            self._tell([parcel.id for parcel in found])


class _OwnIds(RolePlayer):
    """Numbers what it makes by itself."""

    made = 0

    def output_id(self, parent: ParcelId, target: Role) -> ParcelId:
        self.made += 1
        branch = (self.role.stage << 40) + (self.incarnation << 20) + self.made
        return ParcelId(parent.lane, parent.number, branch << 8 | self.role.place)


class _NoDedup(RolePlayer):
    def _had(self, id_: ParcelId) -> bool:
        return False


class _ReleasesTooEarly(RolePlayer):
    """Forgets what it sent one level too early."""

    def _released(self, level: int) -> bool:
        return level >= self.settings.release - 1


class _SettlesAlone(RolePlayer):
    """Tells the origin that a parcel is settled before the siblings know."""

    def _advance(self, id_: ParcelId) -> None:
        super()._advance(id_)
        if self.works[id_].settled if id_ in self.works else False:
            self._settled([id_])
            self._settling = [other for other in self._settling if other != id_]


class _HandsBackNothing(RolePlayer):
    """A role comes back without what its player had."""

    def hand_over(self) -> RoleState:
        state = super().hand_over()
        return state._replace(table=RecordTable(), works={}, entries={}, asks={})


class _HandsBackNoWork(RolePlayer):
    def hand_over(self) -> RoleState:
        return super().hand_over()._replace(works={})


class _FloorsTooHigh(RolePlayer):
    """Says that it will send no more of what it still keeps."""

    def own_floor(self) -> dict[Lane, int]:
        return self.inputs_floor()


class _NothingAgain(RolePlayer):
    """Waits to be asked even for what nobody can know of."""

    def seated(self, role: Role, fence: int, dead: set[int]) -> None:
        super().seated(role, 0, set())


class _AsksNobody(RolePlayer):
    def _ask(self, origin: Role) -> None:
        return


class _PositionLater(RolePlayer):
    """Sends first and makes its position durable afterwards, if at all."""

    def read(self, outputs: Mapping[Role, Parcel]) -> None:
        super().read(outputs)
        self.effects = [e for e in self.effects if not isinstance(e, StorePosition)]


class _ForwardsNothing(ReplicaMachine):
    def _for_role(self, envelope: Envelope, role: Role) -> list[Effect]:
        self._forwards.pop(role, None)
        return super()._for_role(envelope, role)


class _SplitsInTwo(ReplicaMachine):
    """Goes on with a role that it has handed over."""

    def _hand(self, role: Role) -> list[Effect]:
        player = self.players[role]
        effects = super()._hand(role)
        self.players[role] = player
        return effects


class _CollectsNothing(RingController):
    """Never takes a role fresh: believes that somebody always has the records."""

    def _take(self, role: Role) -> TellTake:
        return super()._take(role)._replace(fresh=False)


MUTANTS: tuple[Mutant, ...] = (
    Mutant("no-fence", "replicas refuse who was replaced (14)", _NoFence, stale_writes=True),
    Mutant("acknowledges-first", "acknowledge after sharing (26)", _playing(_AcknowledgesFirst)),
    Mutant("own-ids", "ids are derived from the input's (26)", _playing(_OwnIds)),
    Mutant("no-dedup", "receivers drop duplicates (26)", _playing(_NoDedup), forgetful_store=True),
    Mutant("forgetful-store", "sinks ignore what they have", forgetful_store=True),
    Mutant("releases-too-early", "tables for depth stages", _playing(_ReleasesTooEarly)),
    Mutant("settles-alone", "siblings know first what is settled", _playing(_SettlesAlone)),
    Mutant("hands-back-nothing", "reinstatement with tables", _playing(_HandsBackNothing)),
    Mutant("hands-back-no-work", "reinstatement with work", _playing(_HandsBackNoWork)),
    Mutant("floors-too-high", "floors stay behind what is kept", _playing(_FloorsTooHigh)),
    Mutant("nothing-again", "what was never acknowledged is sent again", _playing(_NothingAgain)),
    Mutant("asks-nobody", "recovery by asking the origin", _playing(_AsksNobody)),
    Mutant("position-later", "a position before what was read", _playing(_PositionLater)),
    Mutant("forwards-nothing", "what comes for a role follows it", _ForwardsNothing),
    Mutant("two-players", "one player for each role", _SplitsInTwo),
    Mutant("never-fresh", "a whole stage can die", controller=_CollectsNothing),
)
