"""Replicated stages under hosts that die: another replica takes over, and every row comes once."""

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Causal, Flow, Replicated
from penstock import functions as F
from penstock.connectors.memory import MemorySink
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
    Record,
    Refused,
    Share,
    Shared,
)
from penstock.core.delivery.player import RoleState
from penstock.core.delivery.tables import Entry, RecordTable, Work
from penstock.engine.replicas.cargo import Cargo, pack, unpack
from penstock.engine.replicas.source import numbered, position_at
from penstock.errors import SettingsError, TransientError
from penstock.physical import PhysicalPlan, physical_plan
from penstock.replica_plan import longest_run, paths_of, replicated_nodes, rings_of
from penstock.stream import Stream
from penstock.testing.kills import await_recovery, run_killing
from penstock.testing.local import LocalQuery, run_local, start_local
from penstock.testing.processes import wait_until
from penstock.wire.frames import read_batch

RATE = 10_000
ROWS = 15_000
WAIT_S = 30.0


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


def expected(rows: int = ROWS) -> Counter[int]:
    return Counter(n for n in range(rows) if n % 3 and n > 10)


def came(sink: MemorySink) -> Counter[int]:
    return Counter(sink.toTable().column("n").to_pylist())


def ended(query: LocalQuery) -> None:
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    assert query.exception() is None


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
PARCEL = Parcel(ID, Cargo(3, 5, 6, True, 4, None, 99, ROWS_OF), 16)


@pytest.mark.parametrize(
    "body",
    [
        Acknowledge(((ID, 2),)),
        Floors({SOURCE: 4}),
        Share(3, (Record(ID, SOURCE, 0),), {SOURCE: 2}, True),
        Shared(3, 70_000),
        Collected(9, (Record(ID, SOURCE, 255),), {}),
        Introduced(9, ((HERE, 4, (Record(ID, SOURCE, 0),), {SOURCE: 1}),)),
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
        RecordTable({ID: Record(ID, SOURCE, 0)}, {SOURCE: 3}),
        {ID: Work(SOURCE, PARCEL, {ID: 0}, told=0)},
        {ID: entry},
        {SOURCE: None},
        {SOURCE: {SOURCE: 2}},
        8,
        6,
    )
    envelope = Envelope(5, None, 0, HERE, 3, HandedOver(state, 77))
    found, completed = unpack(pack(envelope))
    assert completed is None
    back = found.body.state  # type: ignore[union-attr]
    assert (back.table, back.asks, back.heard) == (state.table, state.asks, state.heard)
    assert (back.next, back.stored) == (8, 6)
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


# -- hosts die -------------------------------------------------------------------------------------

WAYS = [Replicated(), Replicated(depth=2), Replicated(mirrored=True), Replicated(acknowledged=True)]


@pytest.mark.parametrize("regime", WAYS, ids=["records", "deep", "mirrored", "acknowledged"])
def test_any_host_may_die_and_every_row_comes_once(regime: Replicated) -> None:
    flow = Flow("killed")
    sink = two_stages(made(flow)).memory(name="rows")
    victims = ("first[0]", "made[1]", "second[2]")
    query = run_killing(flow, victims, hosts=3, pause=0.15, timeout=WAIT_S, regime=regime)
    assert came(sink) == expected()
    assert query.recoveries[0]["lost"]


@pytest.mark.parametrize("seed", [1, 2])
def test_several_at_once_and_all_of_them(seed: int) -> None:
    chosen = random.Random(seed)
    flow = Flow("crowd")
    sink = two_stages(made(flow)).memory(name="rows")
    query = start_local(flow, hosts=3, regime=Replicated())
    for number in range(4):
        time.sleep(chosen.uniform(0.05, 0.3))
        hosts = [host["host"] for host in query.hosts if host["address"]]
        many = len(hosts) if number == 2 else chosen.randint(1, 2)
        for host in chosen.sample(hosts, min(many, len(hosts))):
            with suppress(TransientError):  # it has been replaced
                query._controller.kill(host)
    ended(query)
    assert came(sink) == expected()


def test_roles_come_home_when_their_hosts_are_replaced() -> None:
    flow = Flow("home")
    sink = two_stages(made(flow, None)).memory(name="rows")
    query = start_local(flow, hosts=3, regime=Replicated())
    before = {node["name"]: node["host"] for node in query.nodes()}
    lost = query.kill("first[1]")["host"]
    await_recovery(query, 1, WAIT_S)
    ring = query._controller.replicas
    assert ring is not None

    def reinstated() -> bool:
        now = {node["name"]: node["host"] for node in query.nodes()}
        moved = {now[name] for name, host in before.items() if host == lost}
        return len(moved) == 1 and not moved & set(before.values())

    wait_until(reinstated, WAIT_S, "roles at home")
    newest = max(came(sink), default=0)
    wait_until(lambda: max(came(sink), default=0) > newest + 1000, WAIT_S, "newer rows")
    query.stop()
    found = came(sink)
    assert max(found.values()) == 1
    assert set(expected(max(found) // 2)) <= set(found)


def test_what_nobody_can_send_again_is_read_again() -> None:
    """More than the depth is lost: two stages at once, which have hosts of their own."""
    flow = Flow("beyond")
    sink = two_stages(made(flow)).memory(name="rows")
    query = start_local(flow, hosts=8, regime=Replicated(), parallelism=3)
    plan = query._controller.plan
    chains = [chain for chain in plan.chains if not chain.is_source and not chain.on_driver]
    for _ in range(2):
        time.sleep(0.3)
        hosts = {query._controller.placement[node] for chain in chains for node in chain.nodes}
        for host in hosts:
            with suppress(TransientError):  # it has not come up yet
                query._controller.kill(host)
    ended(query)
    assert came(sink) == expected()


def test_rings_that_begin_anew_lose_and_double_nothing() -> None:
    flow = Flow("anew")
    sink = two_stages(made(flow)).memory(name="rows")
    query = start_local(flow, hosts=3, regime=Replicated())
    replicas = query._controller.replicas
    assert replicas is not None
    for _ in range(3):
        time.sleep(0.2)
        query._controller.ask(replicas.begin, WAIT_S)
    ended(query)
    assert replicas.generation == 4
    assert came(sink) == expected()


def test_replicated_and_causal_parts_in_one_flow(tmp_path: Path) -> None:
    flow = Flow("both")
    with flow.part("copies", Replicated()):
        rows = two_stages(made(flow))
    sink = rows.memory(name="rows")
    counts = rows.groupBy("k").agg(F.count("*").alias("c")).name("counted").memory(name="counts")
    query = start_local(
        flow, hosts=3, checkpointLocation=str(tmp_path), checkpointInterval="200 ms"
    )
    names = [node["name"] for node in query.nodes() if node["host"]]
    log = next(name for name in names if "kept_log" in name)
    for victim in (log, "counted[0]", "second[1]"):
        time.sleep(0.2)
        if query.isActive:
            query.kill(victim)
    ended(query)
    assert came(sink) == expected()
    last = {row["k"]: row["c"] for row in counts.toPylist()}
    assert last == Counter(n % 7 for n in expected())


def test_a_driver_that_is_started_again_goes_on(tmp_path: Path) -> None:
    flow = Flow("again")
    source = flow.memory(pa.schema({"n": pa.int64(), "k": pa.int64()}), name="pushed")
    sink = two_stages(source).memory(name="rows")
    rows = [{"n": n, "k": n % 7} for n in range(900)]
    for part in (rows[:300], rows[300:600], rows[600:]):
        source.push(part)
        run_local(flow, hosts=2, regime=Replicated(), checkpointLocation=str(tmp_path))
    assert came(sink) == expected(900)


def test_a_regime_may_change_between_two_runs(tmp_path: Path) -> None:
    """The notes of replicated sources end epochs as others do, and the other way round."""
    flow = Flow("changed")
    source = flow.memory(pa.schema({"n": pa.int64(), "k": pa.int64()}), name="pushed")
    sink = two_stages(source).memory(name="rows")
    rows = [{"n": n, "k": n % 7} for n in range(900)]
    regimes = (Causal(), Replicated(), Causal())
    for part, regime in zip((rows[:300], rows[300:600], rows[600:]), regimes, strict=True):
        source.push(part)
        run_local(flow, hosts=2, regime=regime, checkpointLocation=str(tmp_path))
    assert came(sink) == expected(900)


def test_watermarks_pass_through_replicas(tmp_path: Path) -> None:
    flow = Flow("windows")
    rows = made(flow).withWatermark("at", "10 ms").keyBy("k").name("first").withRegime(Replicated())
    windows = rows.groupBy(F.window("at", "1 second")).count().memory(name="windows")
    run_killing(flow, ["first[1]"], hosts=3, checkpointLocation=str(tmp_path))
    assert [row["count"] for row in windows.toPylist()] == [1000] * (ROWS // 1000)


def test_a_severed_connection_loses_nothing() -> None:
    flow = Flow("severed")
    sink = two_stages(made(flow)).memory(name="rows")
    query = start_local(flow, hosts=3, regime=Replicated())
    stop = threading.Event()

    def sever() -> None:
        while not stop.wait(0.1):
            for host in query.hosts:
                query.severConnections(host["host"])

    thread = threading.Thread(target=sever)
    thread.start()
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        stop.set()
        thread.join()
        query.stop()
    assert came(sink) == expected()


# -- what people see -------------------------------------------------------------------------------


def test_figures_tell_of_records_and_rollbacks_are_refused() -> None:
    flow = Flow("seen")
    two_stages(made(flow, None)).memory(name="rows")
    query = start_local(flow, hosts=3, regime=Replicated(), progressInterval="100 ms")
    try:

        def shared() -> bool:
            stages = {one["name"]: one for one in (query.lastProgress or {"stages": []})["stages"]}
            return bool(stages) and stages["second"]["replicaBytes"] > 0

        wait_until(shared, WAIT_S, "records in the progress")
        assert {node["regime"] for node in query.nodes()} == {"Replicated"}
        spans = {row["node"]: row for row in query.spans()}
        assert all("Replicated(depth=1" in row["regime"] for row in spans.values())
        assert spans["second[0]"]["kept"] == []
        wait_until(lambda: query.spans()[0]["low"] > 0, WAIT_S, "published epochs")
        assert [row["to"] for row in query.preview("second[0]")] == [None]
        with pytest.raises(SettingsError, match="Replicated"):
            query.rollback(0)
        assert "3 replicas; what is sent is kept for 3 stages" in query.explain()
    finally:
        query.stop()
