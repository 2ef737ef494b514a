"""Which stages are replicated, and what their hosts send each other."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Causal, Flow, Replicated
from penstock.api import functions as F
from penstock.api.stream import Stream
from penstock.core.delivery.ids import ParcelId, Role, derive
from penstock.core.delivery.messages import (
    Acknowledge,
    Ask,
    Body,
    Collected,
    Envelope,
    Floors,
    HandedOver,
    Introduced,
    Parcel,
    ParcelRecord,
    Refused,
    Share,
    Shared,
)
from penstock.core.delivery.player import RoleState
from penstock.core.delivery.routing import NO_HOST, Seat
from penstock.core.delivery.tables import Entry, HeldParcel, RecordTable
from penstock.engine.host.replicas.cargo import Cargo, pack, unpack
from penstock.engine.host.replicas.source import numbered, position_at
from penstock.errors import SettingsError
from penstock.planning.explain import explain_plan
from penstock.planning.physical import PhysicalPlan, physical_plan
from penstock.planning.replica_plan import longest_run, paths_of, replicated_nodes, rings_of
from penstock.wire.frames import read_batch

RATE = 10_000
ROWS = 15_000


def make(offset: int, n: int) -> pa.RecordBatch:
    ids = range(offset, offset + n)
    return pa.record_batch(
        {
            "n": pa.array(ids, pa.int64()),
            "k": pa.array([i % 7 for i in ids], pa.int64()),
            "at": pa.array([i * 1000 for i in ids], pa.timestamp("us")),
        }
    )


def made(flow: Flow, rows: int | None = ROWS) -> Stream:
    return flow.generate(make, rate=RATE, rows=rows, shards=2, name="made")


def two_stages(stream: Stream) -> Stream:
    first = stream.filter("n % 3 != 0").keyBy("k").name("first").filter("n > 10")
    return first.keyBy("n").name("second").select("n", "k")


def plan_of(flow: Flow, **options: Any) -> PhysicalPlan:
    return physical_plan(flow, 3, None, **options)


# -- which stages are replicated -------------------------------------------------------------------


def test_a_part_is_replicated_as_a_whole_and_persisted_beside_others() -> None:
    flow = Flow("mixed")
    source = made(flow)
    with flow.part("copies", Replicated()):
        rows = two_stages(source)
    rows.memory(name="rows")
    rows.groupBy("k").agg(F.count("*").alias("c")).name("counted").memory(name="counts")
    source.memory(name="all")
    plan = plan_of(flow)
    regimes = {chain.name: chain.regime for chain in plan.chains}
    assert regimes["rows"] == regimes["second"] == Replicated()
    assert regimes["counts"] == regimes["made"] == Causal()
    for link in plan.links:
        ends = (plan.chains[i].regime for i in (link.source_chain, link.target_chain))
        assert len(set(ends)) == 1


def test_a_source_goes_with_who_reads_it() -> None:
    flow = Flow("source")
    made(flow).keyBy("k").name("only").withRegime(Replicated()).memory(name="rows")
    plan = plan_of(flow)
    assert replicated_nodes(plan) == frozenset(plan.chain_of)


def test_only_exactly_once_parts_are_replicated() -> None:
    flow = Flow("promises")
    two_stages(made(flow)).memory(name="rows")
    plan = plan_of(flow, regime=Replicated(), guarantee="at-most-once")
    assert not replicated_nodes(plan)
    assert replicated_nodes(plan_of(flow, regime=Replicated()))


def test_sinks_that_are_not_replicated_say_why(tmp_path: Path) -> None:
    flow = Flow("sinks")
    copied = made(flow).keyBy("k").name("copied")
    counted = copied.groupBy("k").agg(F.count("*").alias("c")).name("counted").withRegime(Causal())
    counted.memory(name="counts")
    copied.parquet(str(tmp_path), name="files")
    plan = plan_of(flow, regime=Replicated())
    assert "goes with who feeds it" in plan.not_replicated["counts"]
    assert "rows of open epochs" in plan.not_replicated["files"]
    assert "copied" not in plan.not_replicated
    assert "== Not replicated ==" in explain_plan(plan, {})
    replicated = {s.name for c in plan.chains if c.regime == Replicated() for s in c.stages}
    assert not replicated & plan.not_replicated.keys()


def test_state_is_refused_with_the_reason() -> None:
    flow = Flow("state")
    made(flow).groupBy("k").agg(F.count("*").alias("c")).memory(name="counts")
    with pytest.raises(SettingsError, match="keeps state.*Causal"):
        plan_of(flow, regime=Replicated())
    with pytest.raises(SettingsError, match="depth"):
        Replicated(depth=0)
    with pytest.raises(SettingsError, match="choose one"):
        Replicated(mirrored=True, acknowledged=True)


def test_two_streams_of_one_stage_that_meet_are_refused() -> None:
    flow = Flow("meet")
    first = made(flow).keyBy("k").name("first")
    first.union(first).memory(name="rows")
    with pytest.raises(SettingsError, match="two streams"):
        plan_of(flow, regime=Replicated())


def test_a_host_holds_copies_of_as_many_stages_as_it_plays_in_a_row() -> None:
    flow = Flow("run")
    two_stages(made(flow)).memory(name="rows")
    plan = plan_of(flow, regime=Replicated())
    few, many = plan.place([1, 2, 3], 0), plan.place(list(range(1, 9)), 0)
    assert longest_run(plan, rings_of(plan, few, 0), 0) == 3
    assert longest_run(plan, rings_of(plan, many, 0), 0) < 3
    sink = plan.chains[-1].first_node
    assert paths_of(plan, sink) == {0: 9, 1: 9}


# -- on the wire -----------------------------------------------------------------------------------

SOURCE, HERE, THERE = Role(0, 0), Role(1, 0), Role(1, 1)
ID = derive(ParcelId(SOURCE, 7), HERE)
ROWS_OF = pa.record_batch({"n": [1, 2]})
PARCEL = Parcel(ID, Cargo(3, 5, 6, True, 4, 80, None, 99, ROWS_OF), 16)


@pytest.mark.parametrize(
    "body",
    [
        Acknowledge(((ID, 2),)),
        Floors({SOURCE: 4}),
        Share(3, (ParcelRecord(ID, SOURCE, 0),), {SOURCE: 2}, True),
        Shared(3, 70_000),
        Collected(9, (ParcelRecord(ID, SOURCE, 255),), {}),
        Introduced(9, ((HERE, 4, (ParcelRecord(ID, SOURCE, 0),), {SOURCE: 1}),)),
        Ask(None),
        Ask((ID,)),
        Refused(HERE, 8),
    ],
)
def test_what_is_packed_comes_back(body: Body) -> None:
    envelope = Envelope(5, HERE, 2, THERE, 3, body)
    assert unpack(pack(envelope, 11)) == (envelope, 11)


def test_a_role_that_is_handed_over_comes_with_its_rows() -> None:
    entry = Entry(PARCEL, THERE, ParcelId(SOURCE, 7), 0, 4, 2, (6,))
    state = RoleState(
        RecordTable({ID: ParcelRecord(ID, SOURCE, 0)}, {SOURCE: 3}),
        {ID: HeldParcel(SOURCE, PARCEL, {ID: 0}, told=0)},
        {ID: entry},
        {SOURCE: None},
        {SOURCE: {SOURCE: 2}},
        8,
        {SOURCE: Seat(4, 2), THERE: Seat(NO_HOST, 1)},
    )
    envelope = Envelope(5, None, 0, HERE, 3, HandedOver(state, 77))
    found, completed = unpack(pack(envelope))
    assert completed is None
    back = found.body.state  # type: ignore[union-attr]
    assert (back.table, back.asks, back.heard) == (state.table, state.asks, state.heard)
    assert (back.next, back.seats) == (8, state.seats)
    for parcel in (back.works[ID].parcel, back.entries[ID].parcel):
        assert parcel.payload[:-1] == PARCEL.payload[:-1]
        assert read_batch(parcel.payload.rows, ROWS_OF.schema).equals(ROWS_OF)
    assert back.entries[ID]._replace(parcel=PARCEL) == entry


def test_notes_of_reads_continue_those_of_other_regimes() -> None:
    notes = numbered(
        [
            {"epoch": 1, "position": 10, "offset": 10, "state": []},
            {"epoch": 1, "journal": "x"},
            {"epoch": 2, "position": 20, "offset": 20, "state": []},
            {"epoch": 3, "position": 25, "number": 3, "first": 3, "last": False, "previous": 2,
             "rows": 25, "cut_us": 0},
        ]
    )  # fmt: skip
    assert [note["number"] for note in notes] == [1, 2, 3]
    assert [note["rows"] for note in notes] == [10, 20, 25]
    assert position_at(notes, 2) == 2
    assert position_at([], 2) == 0
