"""Laws of guarantees, ids, routing and record tables."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.delivery.guarantees import Guarantee, GuaranteedStage, resolve
from penstock.core.delivery.ids import ParcelId, Role, derive
from penstock.core.delivery.lane_epochs import LaneEpochs, LaneRead, SinkEpochs
from penstock.core.delivery.messages import ParcelRecord
from penstock.core.delivery.routing import routing_named
from penstock.core.delivery.tables import SETTLED, RecordTable
from penstock.core.progress.marks import EPOCH_END, least_watermark
from penstock.errors import SettingsError

guarantees = st.sampled_from(list(Guarantee))
roles = st.builds(Role, st.integers(0, 9), st.integers(0, 9))
ids = st.builds(ParcelId, st.just(Role(0, 0)), st.integers(1, 30), st.integers(0, 3))


@given(guarantees, guarantees, guarantees)
def test_join_is_the_least_that_covers_both(a: Guarantee, b: Guarantee, c: Guarantee) -> None:
    joined = a.join(b)
    assert joined.covers(a)
    assert joined.covers(b)
    assert not (c.covers(a) and c.covers(b)) or c.covers(joined)


@given(guarantees, st.lists(st.none() | guarantees, min_size=6, max_size=6), st.data())
def test_resolved_guarantees_never_grow_on_the_way(
    flow: Guarantee, chosen: list[Guarantee | None], data: st.DataObject
) -> None:
    members = {}
    for place, guarantee in enumerate(chosen):
        later = [str(other) for other in range(place + 1, len(chosen))]
        children = data.draw(st.lists(st.sampled_from(later), unique=True)) if later else []
        members[str(place)] = GuaranteedStage(str(place), tuple(children), guarantee)
    try:
        found = resolve(flow, members)
    except SettingsError:
        return
    for name, member in members.items():
        assert member.guarantee in (None, found[name])
        assert all(found[name].covers(found[child]) for child in member.children)


@given(st.lists(roles, min_size=1, max_size=5), st.integers(1, 1 << 40))
def test_ids_follow_the_way_and_keep_their_lane(way: list[Role], number: int) -> None:
    first = again = ParcelId(Role(0, 0), number)
    for role in way:
        other = derive(first, Role(role.stage, role.place + 1))
        first, again = derive(first, role), derive(again, role)
        assert first == again != other
    assert (first.lane, first.number) == (Role(0, 0), number)


@given(st.integers(0, (1 << 64) - 1), st.integers(1, 64))
def test_a_place_is_always_one_of_the_roles(hashed: int, count: int) -> None:
    for name in ("hash(x)", "random", "primary"):
        assert 0 <= routing_named(name).place(hashed, count) < count


@given(st.lists(st.tuples(ids, st.sampled_from([0, SETTLED])), max_size=40), st.integers(0, 30))
def test_a_floor_forgets_records_and_no_answers(
    puts: list[tuple[ParcelId, int]], floor: int
) -> None:
    table, known = RecordTable(), {}
    for id_, level in puts:
        table.put([ParcelRecord(id_, Role(0, 0), level)])
        known[id_] = max(level, known.get(id_, 0))
    table.raise_floor({Role(0, 0): floor})
    assert all(table.level(id_) == level for id_, level in known.items())
    assert not any(r.level == SETTLED and r.id.number <= floor for r in table.records.values())


@given(st.data(), st.integers(1, 3), st.integers(-1, 4))
def test_epochs_of_a_lane_are_complete_whatever_the_order(
    data: st.DataObject, ways: int, published: int
) -> None:
    """Each once, in order, and not before all of its numbers have come on all ways."""
    reads = data.draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2)), max_size=6))
    parcels, number, epoch = [], 0, -1
    ends: dict[int, int] = {}
    for count, step in reads:
        previous, epoch = epoch, epoch + step
        first, ends[epoch] = number + 1, number + count
        for number in range(first, first + count):
            last = number == ends[epoch]
            parcels += [(number, LaneRead(epoch, first, last, previous, None, number * 10))] * ways
    lane = LaneEpochs(ways, published)
    done: list[tuple[int, int | None]] = []
    came: list[int] = []
    for parcel in data.draw(st.permutations(parcels)):
        came.append(parcel[0])
        for found in lane.came(*parcel):
            first = max((end for e, end in ends.items() if e < found[0]), default=0) + 1
            assert all(came.count(n) == ways for n in range(first, ends[found[0]] + 1))
            done.append(found)
        assert lane.missing(0) is None
    assert done == [(e, ends[e] * 10) for e in ends if e > published]
    assert lane.missing(1 << 40) is None


@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6))
def test_a_number_that_cannot_come_any_more_is_missed(ways: int, reads: int, lost: int) -> None:
    lost = min(lost, reads)
    lane = LaneEpochs(ways, -1)
    for number in range(1, reads + 1):
        for way in range(ways):
            if (number, way) != (lost, 0):
                before = number - 1 if number > 1 else -1
                lane.came(number, LaneRead(number, number, True, before, None, None))
    alone = ways == 1 and lost == reads
    assert lane.missing(lost - 1) is None
    assert lane.missing(reads) == (None if alone else lost)


@given(st.data(), st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=3))
def test_whoever_plays_a_sink_publishes_the_same_and_ends(
    data: st.DataObject, cuts: list[set[int]]
) -> None:
    """Players go on from what the one before was not done with, even after its end."""
    parcels: list[tuple[ParcelId, LaneRead]] = []
    marked: list[dict[int, int]] = []
    for place, epochs in enumerate(cuts):
        marked.append({epoch: 100 * epoch + place for epoch in epochs} | {EPOCH_END: 1000})
        ways = itertools.pairwise([-1, *sorted(marked[-1])])
        for number, (before, epoch) in enumerate(ways, 1):
            known = (marked[-1].get(before), marked[-1][epoch])
            read = LaneRead(epoch, number, True, before, *known)
            parcels.append((ParcelId(Role(0, place), number), read))
    wanted = {
        epoch: least_watermark(
            max((us for e, us in lane.items() if e <= epoch), default=None) for lane in marked
        )
        for epoch in {EPOCH_END}.union(*cuts)
    }
    lanes = {Role(0, place): 1 for place in range(len(cuts))}
    left, found, sink = dict(parcels), dict[int, int | None](), SinkEpochs(lanes, -1)
    for _ in range(data.draw(st.integers(0, 3))):
        order = data.draw(st.permutations(list(left.items())))
        _publish(sink, order[: data.draw(st.integers(0, len(order)))], left, found)
        sink = SinkEpochs(lanes, sink.completed)
    _publish(sink, list(left.items()), left, found)
    assert sink.ended
    assert found == wanted


def _publish(
    sink: SinkEpochs,
    came: list[tuple[ParcelId, LaneRead]],
    left: dict[ParcelId, LaneRead],
    found: dict[int, int | None],
) -> None:
    """Give a sink some parcels; no epoch comes twice, but for the end of the stream."""
    for parcel, read in came:
        for done in sink.came(parcel, read):
            assert done.epoch not in found or done.epoch == EPOCH_END
            found[done.epoch] = done.watermark_us
            for gone in sink.published(done.epoch):
                del left[gone]
