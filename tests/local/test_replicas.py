"""Replicated stages under hosts that die: another replica takes over, and every row comes once."""

import random
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Causal, Flow, Replicated
from penstock.api import functions as F
from penstock.api.memory_stream import MemoryStream
from penstock.api.stream import Stream
from penstock.connectors.memory import MemorySink
from penstock.connectors.persist import _LogReader
from penstock.core.delivery.ids import Role
from penstock.engine.host.replicas.agent import ReplicaAgent
from penstock.engine.store.flow_store import BoundaryLog
from penstock.errors import PeerError, SettingsError, TransientError
from penstock.storage import storage_of
from penstock.storage.claims import claim
from penstock.testing.held_input import release_input
from penstock.testing.kills import await_recovery, run_killing
from penstock.testing.local import LocalQuery, run_local, start_local
from penstock.testing.processes import wait_until

RATE = 10_000
ROWS = 15_000
WAIT_S = 90.0


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
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert query.exception() is None


def test_a_stage_that_is_not_replicated_though_it_was_to_be_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow = Flow("less")
    source = flow.memory(pa.schema({"n": pa.int64(), "k": pa.int64()}), name="pushed")
    two_stages(source).memory(name="rows")
    with caplog.at_level("WARNING"):
        query = run_local(
            flow,
            regime=Replicated(),
            guarantee="at-least-once",
            checkpointLocation=str(tmp_path / "store"),
        )
    plain = query.status["notReplicated"]
    assert plain.keys() >= {"pushed", "first", "second", "rows"}
    assert "exactly once" in plain["first"]
    said = "first.*Replicated was asked for and is Causal: no sink behind it is exactly once"
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert re.search(said, warning)
    assert "source 'pushed': rows that were pushed" in warning
    assert re.search(said, query.explain())


@pytest.mark.parametrize("option", [{"recovery": "none"}, {"progress": "tracked"}])
def test_a_run_that_cannot_recover_refuses_to_be_replicated(
    tmp_path: Path, option: dict[str, Any]
) -> None:
    flow = Flow("none")
    made(flow).keyBy("k").name("first").withRegime(Replicated()).memory(name="rows")
    with pytest.raises(SettingsError, match="first.*Replicated was asked for, and cannot be had"):
        start_local(flow, checkpointLocation=str(tmp_path), **option)
    claim(storage_of(tmp_path))()  # nobody has it any more


# -- hosts die -------------------------------------------------------------------------------------

WAYS = [Replicated(), Replicated(depth=2), Replicated(mirrored=True), Replicated(acknowledged=True)]


@pytest.mark.parametrize("regime", WAYS, ids=["records", "deep", "mirrored", "acknowledged"])
def test_any_host_may_die_and_every_row_comes_once(regime: Replicated) -> None:
    flow = Flow("killed")
    sink = two_stages(made(flow)).memory(name="rows")
    victims = ("first[0]", "made[1]", "second[2]")
    query = run_killing(flow, victims, hosts=3, epochs=1, timeout=WAIT_S, regime=regime)
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
                query._controller.links.kill(host)
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


def test_a_role_that_goes_home_after_its_end_ends_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log counts without the end of the former player's; readers may not have come to it."""
    opened, follow = threading.Event(), _LogReader.follow
    monkeypatch.setattr(
        _LogReader, "follow", lambda reader: follow(reader) if opened.is_set() else None
    )
    flow = Flow("late_readers")
    with flow.part("copies", Replicated()):
        rows = two_stages(made(flow))
    counts = rows.groupBy("k").agg(F.count("*").alias("c")).memory(name="counts")
    query = start_local(flow, hosts=3, checkpointLocation=str(tmp_path))
    release_input(flow)
    logs = {node["node"]: node for node in query.nodes() if "kept_log" in node["name"]}
    life = query._controller.machine
    wait_until(lambda: logs.keys().isdisjoint(life._unfinished), WAIT_S, "the part's end")
    victim = logs[min(logs)]
    query.kill(victim["name"])
    await_recovery(query, 1, WAIT_S)

    def is_home() -> bool:
        host = query.nodes()[victim["node"]]["host"]
        return host not in {node["host"] for node in logs.values()}

    wait_until(is_home, WAIT_S, "the role at home")
    opened.set()
    ended(query)
    last = {row["k"]: row["c"] for row in counts.toPylist()}
    assert last == Counter(n % 7 for n in expected())


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
                query._controller.links.kill(host)
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
        query._controller.events.ask(replicas.begin, WAIT_S)
    ended(query)
    assert replicas.machine.generation == 4
    assert came(sink) == expected()


def test_a_source_that_was_replaced_cannot_note_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: set[tuple[str, int]] = set()
    claim_log = BoundaryLog.claim

    def noting(log: BoundaryLog, incarnation: int) -> None:
        claim_log(log, incarnation)
        claims.add((log.path.name, incarnation))

    monkeypatch.setattr(BoundaryLog, "claim", noting)
    flow = Flow("replaced")
    sink = two_stages(made(flow)).memory(name="rows")
    run_killing(flow, ["made[1]"], hosts=3, regime=Replicated(), checkpointLocation=str(tmp_path))
    assert came(sink) == expected()
    assert {("shard-00000.log", 1), ("shard-00001.log", 1), ("shard-00001.log", 2)} <= claims
    with pytest.raises(PeerError, match="belongs to incarnation 2"):
        claim_log(BoundaryLog(tmp_path, "made", 1), 1)


def test_a_host_that_was_replaced_in_a_source_does_not_play_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had been told to play the role, and got round to it when somebody else did already."""
    refused = threading.Event()
    monkeypatch.setattr(ReplicaAgent, "write_refused", lambda agent: refused.set())
    flow = Flow("late")
    sink = two_stages(made(flow)).memory(name="rows")
    query = start_local(flow, hosts=3, regime=Replicated(), checkpointLocation=str(tmp_path))
    wait_until(lambda: len(came(sink)) > 0, WAIT_S, "rows")
    replicas = query._controller.replicas
    assert replicas is not None
    fence_source = replicas._fence

    def fence_later_one(role: Role, fence: int, low: int) -> None:
        fence_source(role, fence, low)
        if replicas.machine.generation == 2 and role.place == 0:
            BoundaryLog(tmp_path, "made", 0).take_over(-1, ended=True, fence=3)

    monkeypatch.setattr(replicas, "_fence", fence_later_one)
    query._controller.events.ask(replicas.begin, WAIT_S)
    assert refused.wait(WAIT_S)
    query._controller.events.ask(replicas.begin, WAIT_S)
    ended(query)
    assert came(sink) == expected()


def test_the_notes_of_a_source_are_cut_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.host.source.LOG_BYTES_MAX", 2000)
    flow = Flow("notes")
    sink = two_stages(made(flow, None)).memory(name="rows")
    query = start_local(flow, hosts=2, regime=Replicated(), checkpointLocation=str(tmp_path))
    notes = BoundaryLog(tmp_path, "made", 0)
    wait_until(lambda: "journals" in [*notes.read(), {}][0], WAIT_S, "a shorter log")
    query.kill("made[0]")
    await_recovery(query, 1, WAIT_S)
    query.stop()
    found = came(sink)
    assert max(found.values()) == 1
    assert set(expected(max(found) // 2)) <= set(found)


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


def test_a_sink_that_is_taken_over_knows_the_watermarks_of_those_that_have_ended(
    tmp_path: Path,
) -> None:
    """Without them the last windows would never be passed, and be gone with the flow's end."""
    schema = pa.schema({"k": pa.int64(), "at": pa.timestamp("us")})
    flow = Flow("ended_first")
    short, long = (flow.memory(schema, name=name, manualEpochs=True) for name in ("a", "b"))
    timed = [one.withWatermark("at", "0 seconds") for one in (short, long)]
    with flow.part("copies", Replicated()):
        rows = timed[0].union(timed[1]).keyBy("k").name("first")
    windows = rows.groupBy(F.window("at", "1 second")).count().memory(name="windows")

    def push(source: MemoryStream, epoch: int) -> None:
        source.push({"k": list(range(9)), "at": [epoch * 1_000_000] * 9})
        source.closeEpoch()

    push(short, 0)
    short.close()  # its next epoch is the last one
    for epoch in range(2):
        push(long, epoch)
    query = start_local(flow, hosts=3, checkpointLocation=str(tmp_path))
    committed = query._controller.machine.committed
    log = next(name for name in committed if name.startswith("window_combine_kept_log"))
    wait_until(lambda: committed[log] >= 1, WAIT_S, "both epochs in the log")
    query.kill(f"{log}[0]")
    await_recovery(query, 1, WAIT_S)
    push(long, 2)
    long.close()
    ended(query)
    assert [row["count"] for row in windows.toPylist()] == [18, 9, 9]


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
