"""Tuple records: the order of steps, what is kept, who is refused."""

from penstock.core.delivery.guarantees import Guarantee
from penstock.core.delivery.ids import ParcelId, Role, derive
from penstock.core.delivery.messages import (
    Acknowledge,
    Ask,
    Body,
    Collect,
    DeliverParcels,
    Effect,
    Envelope,
    HandedOver,
    Parcel,
    ProcessParcel,
    Refused,
    SendEnvelope,
    Share,
    Shared,
    Taken,
)
from penstock.core.delivery.records import ReplicaMachine
from penstock.core.delivery.replicated import ReplicaSettings
from penstock.core.delivery.routing import Seat, Stages
from penstock.core.delivery.tables import SETTLED

SOURCE, FIRST, SECOND, SINK = Role(0, 0), Role(1, 0), Role(1, 1), Role(2, 0)
SEATS = {SOURCE: Seat(1, 1), FIRST: Seat(2, 1), SECOND: Seat(3, 1), SINK: Seat(4, 1)}
STAGES = Stages({0: 1, 1: 2, 2: 1}, {0: (1,), 1: (2,)})
ID = derive(ParcelId(SOURCE, 1), FIRST)


def machine(host: int, settings: ReplicaSettings | None = None) -> ReplicaMachine:
    members = {1: (1,), 2: (2, 3), 3: (2, 3), 4: (4,)}[host]
    return ReplicaMachine(host, settings or ReplicaSettings(), STAGES, SEATS, {}, members)


def bodies(effects: list[Effect], kind: type[Body]) -> list[Envelope]:
    return [
        e.envelope
        for e in effects
        if isinstance(e, SendEnvelope) and isinstance(e.envelope.body, kind)
    ]


def deliver(target: Role = FIRST, incarnation: int = 1) -> Envelope:
    body = DeliverParcels((Parcel(ID, ("row",), 100),))
    return Envelope(1, SOURCE, incarnation, target, 1, body)


def test_the_origin_is_told_after_the_siblings() -> None:
    replica = machine(2)
    effects = replica.received(deliver())
    assert [type(effect) for effect in effects] == [ProcessParcel]
    effects = replica.speak()
    [share] = bodies(effects, Share)
    assert bodies(effects, Acknowledge) == []
    effects = replica.received(Envelope(3, None, 0, FIRST, 1, Shared(share.body.number, 3)))
    [told] = bodies(effects, Acknowledge)
    assert told.body == Acknowledge(((ID, 0),))
    assert told.target == SOURCE


def shared(replica: ReplicaMachine) -> Envelope:
    """What it shares of a parcel that comes."""
    [share] = bodies([*replica.received(deliver()), *replica.speak()], Share)
    return share


def test_records_carry_no_rows_unless_mirrored() -> None:
    plain, mirror = shared(machine(2)), shared(machine(2, ReplicaSettings(mirrored=True)))
    sizes = [
        sum(record.parcel.size for record in share.body.records if record.parcel)
        for share in (plain, mirror)
    ]
    assert sizes == [0, 100]


def test_a_duplicate_is_not_worked_on_again() -> None:
    replica = machine(2)
    replica.received(deliver())
    assert not any(isinstance(effect, ProcessParcel) for effect in replica.received(deliver()))
    careless = machine(2, ReplicaSettings(Guarantee.AT_LEAST_ONCE))
    careless.received(deliver())
    assert any(isinstance(effect, ProcessParcel) for effect in careless.received(deliver()))


def test_at_most_once_keeps_nothing() -> None:
    source = machine(1, ReplicaSettings(Guarantee.AT_MOST_ONCE))
    effects = source.read(SOURCE, {FIRST: Parcel(ID, (), 10)})
    assert [type(effect) for effect in effects] == [SendEnvelope]
    assert source.players[SOURCE].tables.entries == {}
    assert source.rewired(FIRST, Seat(3, 2), 2) == []


def test_an_origin_keeps_what_it_sent_until_it_is_settled() -> None:
    source = machine(1)
    source.read(SOURCE, {FIRST: Parcel(ID, (), 10)})
    source.received(Envelope(2, FIRST, 1, SOURCE, 1, Acknowledge(((ID, 0),))))
    assert list(source.players[SOURCE].tables.entries) == [ID]
    again = source.received(Envelope(3, FIRST, 2, SOURCE, 1, Ask((ID,))))
    assert bodies(again, DeliverParcels)[0].target_incarnation == 2
    source.received(Envelope(3, FIRST, 2, SOURCE, 1, Acknowledge(((ID, SETTLED),))))
    assert source.players[SOURCE].tables.entries == {}


def test_what_was_never_acknowledged_is_sent_again_to_the_next_player() -> None:
    source = machine(1)
    source.read(SOURCE, {FIRST: Parcel(ID, (), 10)})
    [again] = bodies(source.rewired(FIRST, Seat(3, 2), 2), DeliverParcels)
    assert (again.target, again.target_incarnation) == (FIRST, 2)


def test_taking_a_role_fences_collects_and_asks() -> None:
    first, second = machine(2), machine(3)
    second.received(shared(first))
    effects = second.take(FIRST, 2)
    assert len(bodies(effects, Collect)) == 1
    effects = second.members_changed((3,))
    assert Taken(FIRST, 2) in effects
    [ask] = bodies(effects, Ask)
    assert ask.body == Ask((ID,))


def test_a_zombie_is_refused_and_drops_its_role() -> None:
    zombie, second = machine(2), machine(3)
    second.take(FIRST, 2)
    second.members_changed((3,))
    [refusal] = bodies(second.received(shared(zombie)), Refused)
    zombie.received(refusal)
    assert zombie.players == {}
    assert not zombie.received(deliver())


def test_a_role_is_handed_over_with_everything_and_what_comes_later_follows() -> None:
    first, second = machine(2), machine(3)
    first.received(deliver())
    assert first.hand_over(FIRST, Seat(3, 2)) == []
    effects = first.processed(FIRST, 1, ID, {SINK: Parcel(ID, (), 10)})
    [state] = bodies(effects, HandedOver)
    assert Taken(FIRST, 2) in second.received(state)
    assert list(second.players[FIRST].tables.works) == [ID]
    assert len(second.players[FIRST].tables.entries) == 1
    [late] = first.received(deliver())
    assert isinstance(late, SendEnvelope)
    assert (late.host, late.envelope.target_incarnation) == (3, 2)


def test_many_parcels_are_shared_and_told_of_in_one_message() -> None:
    replica = machine(2)
    for number in range(1, 6):
        parcel = Parcel(derive(ParcelId(SOURCE, number), FIRST), ("row",), 100)
        replica.received(Envelope(1, SOURCE, 1, FIRST, 1, DeliverParcels((parcel,))))
    [share] = bodies(replica.speak(), Share)
    assert len(share.body.records) == 5
    assert replica.speak() == []
    effects = replica.received(Envelope(3, None, 0, FIRST, 1, Shared(share.body.number, 3)))
    [told] = bodies(effects, Acknowledge)
    assert len(told.body.levels) == 5


def test_a_sink_hands_its_role_over_with_what_it_has_not_published() -> None:
    """What it waits for would come to the next player only."""
    sink = machine(4)
    here = derive(ID, SINK)
    sink.received(Envelope(2, FIRST, 1, SINK, 1, DeliverParcels((Parcel(here, ("row",), 100),))))
    effects = sink.hand_over(SINK, Seat(5, 2))
    [state] = bodies(effects, HandedOver)
    work = state.body.state.works[here]
    assert work.parcel.payload == ("row",)
