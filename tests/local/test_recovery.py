"""Hosts that die under a running flow: only their nodes restart, and no row is lost or doubled."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.flow import Stream
from penstock.api.vertex import Time, Vertex, VertexContext
from penstock.errors import HostLostError, PenstockError, SettingsError, TransientError
from penstock.library.graphs import connected_components
from penstock.testing import kills
from penstock.testing.held_input import hold_input
from penstock.testing.kills import await_epochs, await_recovery
from penstock.testing.local import LocalQuery, start_local

ROWS = 30_000
RATE = 15_000
WAIT_S = 60.0


def numbers(offset: int, n: int) -> pa.RecordBatch:
    """Row numbers, a key, and an event time of one millisecond a row."""
    offsets = range(offset, offset + n)
    return pa.record_batch(
        {
            "n": pa.array(offsets, pa.int64()),
            "key": pa.array([o % 7 for o in offsets], pa.int64()),
            "at": pa.array([o * 1000 for o in offsets], pa.timestamp("us")),
        }
    )


def source(flow: Flow, rows: int = ROWS) -> Stream:
    return flow.generate(numbers, rate=RATE, rows=rows, shards=2, name="numbers")


def started(flow: Flow, **options: Any) -> LocalQuery:
    hold_input(flow)
    return start_local(flow, **{"hosts": 3, "checkpointInterval": "200 ms", **options})


def run_killing(flow: Flow, victims: list[str], **options: Any) -> LocalQuery:
    """Run a flow to its end; kill the hosts of some nodes on the way, one after another."""
    query = started(flow, **{"reinstate": False, **options})
    try:
        for number, victim in enumerate(victims, 1):
            await_epochs(query, 2)
            before = {node["name"]: node for node in query.nodes()}
            killed = query.kill(victim)
            restarted = await_recovery(query, number)["restarted"]
            after = {node["name"]: node for node in query.nodes()}
            lost = [name for name, node in before.items() if node["host"] == killed["host"]]
            # Soon after another failure a neighbour whose log is still short may have to join.
            assert set(restarted) >= set(lost)
            assert number > 1 or len(restarted) == len(lost)
            for name, node in after.items():
                assert (node["incarnation"] > before[name]["incarnation"]) == (name in restarted)
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert len(query.recoveries) == len(victims)
    return query


def test_a_sharder_and_its_sources_restart_and_no_row_is_lost_or_doubled() -> None:
    flow = Flow()
    out = source(flow).filter("n % 3 = 0").keyBy("n").select("n", "n * 2 AS m").name("d").memory()
    run_killing(flow, ["d[0]", "numbers[0]", "d[1]", "numbers[1]"])
    assert Counter(row["n"] for row in out.toPylist()) == Counter(range(0, ROWS, 3))


def test_what_does_not_fit_into_memory_is_sent_again_from_disk() -> None:
    flow = Flow()
    out = source(flow).filter("n % 3 = 0").keyBy("n").select("n").name("d").memory()
    query = run_killing(flow, ["d[0]", "d[1]"], logBytes=2_000)
    assert Counter(row["n"] for row in out.toPylist()) == Counter(range(0, ROWS, 3))
    figures = query._controller.figures().values()
    logs = [one.causal.log_memory_bytes for one in figures if one.causal is not None]
    assert max(logs) < 100_000


def counted(flow: Flow) -> Any:
    return (
        source(flow)
        .withWatermark("at", "0 seconds")
        .groupBy(F.window("at", "1 second"), "key")
        .agg(F.count("*").alias("rows"), F.sum("n").alias("total"))
        .name("counts")
    )


def expected_counts() -> dict[tuple[int, int], tuple[int, int]]:
    groups: dict[tuple[int, int], list[int]] = {}
    for n in range(ROWS):
        groups.setdefault((n // 1000, n % 7), []).append(n)
    return {key: (len(rows), sum(rows)) for key, rows in groups.items()}


def found_counts(rows: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[int, int]]:
    found = {}
    for row in rows:
        start = row["window"]["start"]
        key = (start.minute * 60 + start.second, row["key"])
        assert key not in found, f"{key} was published twice"
        found[key] = (row["rows"], row["total"])
    return found


def test_windows_survive_the_loss_of_their_state() -> None:
    flow = Flow()
    out = counted(flow).memory()
    run_killing(flow, ["counts[0]", "counts[1]", "counts[0]"])
    assert found_counts(out.toPylist()) == expected_counts()


@pytest.mark.parametrize("standby", [0, 1])
def test_published_epochs_are_whole_and_final(tmp_path: Path, standby: int) -> None:
    flow = Flow()
    counted(flow).parquet(str(tmp_path / "out"), name="published")
    run_killing(flow, ["counts[0]", "published_commit[0]", "counts[1]"], standby=standby)
    rows = [
        row
        for file in sorted((tmp_path / "out").glob("epoch=*/*.parquet"))
        for row in pq.read_table(file).to_pylist()
    ]
    assert found_counts(rows) == expected_counts()


class Numbering(Vertex):
    """Numbers the rows of each key in the order in which they come: order matters."""

    def __init__(self) -> None:
        self.given: dict[int, int] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        numbers = []
        for key in batch.column("key").to_pylist():
            self.given[key] = self.given.get(key, 0) + 1
            numbers.append(self.given[key])
        self.sendBy(0, batch.append_column("number", pa.array(numbers, pa.int64())), time)


def test_an_order_that_somebody_saw_is_kept() -> None:
    flow = Flow()
    schema = pa.schema(
        {"n": pa.int64(), "key": pa.int64(), "at": pa.timestamp("us"), "number": pa.int64()}
    )
    (stream,) = flow.vertex(
        Numbering, [source(flow)], [schema], partitionBy=[["key"]], name="numbering"
    )
    out = stream.memory()
    run_killing(flow, ["numbering[0]", "numbers[0]", "numbering[1]"])
    rows = out.toPylist()
    assert Counter(row["n"] for row in rows) == Counter(range(ROWS))
    for key in range(7):
        given = sorted(row["number"] for row in rows if row["key"] == key)
        assert given == list(range(1, len(given) + 1))


def test_a_join_keeps_what_it_has_seen() -> None:
    flow = Flow()
    left = source(flow).withWatermark("at", "0 seconds").select("n", "at")
    right = (
        flow.generate(numbers, rate=RATE, rows=ROWS, shards=2, name="others")
        .withWatermark("at", "0 seconds")
        .select("n", "key", "at AS other")
    )
    joined = left.join(right, "n", within="1 second", time=("at", "other"))
    out = joined.name("joined").memory()
    run_killing(flow, ["joined[0]", "others[1]", "joined[1]"])
    assert Counter(row["n"] for row in out.toPylist()) == Counter(range(ROWS))


def test_several_hosts_at_once() -> None:
    flow = Flow()
    out = counted(flow).memory()
    query = started(flow)
    try:
        await_epochs(query, 4)
        for host in (1, 2, 3):
            query._controller.links.kill(host)
        await_recovery(query)
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert found_counts(out.toPylist()) == expected_counts()


def test_a_failure_during_a_recovery() -> None:
    flow = Flow()
    out = counted(flow).memory()
    query = started(flow)
    try:
        await_epochs(query, 4)
        for _ in range(4):
            for victim in ("counts[0]", "counts[1]"):
                with suppress(TransientError):  # its host is not up yet
                    query.kill(victim)
                time.sleep(0.05)
        await_recovery(query)
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert found_counts(out.toPylist()) == expected_counts()


def test_a_driver_started_again_goes_on_with_the_state(tmp_path: Path) -> None:
    store, target = str(tmp_path / "store"), tmp_path / "out"

    def start() -> LocalQuery:
        flow = Flow("again")
        counted(flow).parquet(str(target), name="published")
        return start_local(
            flow,
            hosts=2,
            recovery="causal",
            checkpointLocation=store,
            checkpointInterval="100 ms",
            parallelism=2,
        )

    query = start()
    await_epochs(query, 5)
    query.stop()
    query = start()
    query.finish(WAIT_S)
    rows = [
        row
        for file in sorted(target.glob("epoch=*/*.parquet"))
        for row in pq.read_table(file).to_pylist()
    ]
    assert found_counts(rows) == expected_counts()


def test_who_can_be_killed() -> None:
    flow = Flow()
    source(flow, rows=10).memory(name="kept")
    query = start_local(flow, hosts=1)
    try:
        with pytest.raises(SettingsError, match="runs in the driver's own process"):
            query.kill("kept[0]")
        with pytest.raises(SettingsError, match=r"there is no node 'nobody'; the nodes are"):
            query.kill("nobody")
    finally:
        query.stop()


def test_without_recovery_a_lost_host_ends_the_flow() -> None:
    flow = Flow()
    source(flow).memory()
    query = started(flow, hosts=2, recovery="none")
    query.kill("numbers[0]")
    with pytest.raises(HostLostError, match="was lost"):
        query.awaitTermination(WAIT_S)


def halved(flow: Flow) -> Stream:
    """What leaves a loop that halves numbers until they are 1."""

    def halve(stream: Stream) -> Stream:
        return stream.keyBy("n").filter("n > 1").withColumn("n", "cast(floor(n / 2) as bigint)")

    return source(flow).select("n").iterate(halve)


def test_a_loop_starts_again_as_a_whole() -> None:
    flow = Flow()
    out = halved(flow).memory()
    query = started(flow)
    try:
        inside = [node["name"] for node in query.nodes() if node["loop"]]
        for number, victim in enumerate((inside[0], "numbers[0]", inside[-1]), 1):
            await_epochs(query, 2)
            query.kill(victim)
            await_recovery(query, number)
        query.finish(WAIT_S)
    finally:
        query.stop()
    wanted: Counter[int] = Counter()
    current = Counter(range(ROWS))
    while current:
        following: Counter[int] = Counter()
        for n, times in current.items():
            if n > 1:
                following[n // 2] += times
        wanted += following
        current = following
    assert Counter(row["n"] for row in out.toPylist()) == wanted


def stamped(batches: Iterator[pa.RecordBatch], ctx: VertexContext) -> Iterator[pa.RecordBatch]:
    """Gives each batch the time, a random number, and an answer from outside."""
    for batch in batches:
        rows = batch.num_rows
        yield pa.record_batch(
            {
                "n": batch.column("n"),
                "at": pa.array([ctx.now()] * rows, pa.int64()),
                "chance": pa.array([ctx.random()] * rows, pa.float64()),
                "answer": pa.array([ctx.call(time.time_ns)] * rows, pa.int64()),
            }
        )


def test_time_and_chance_are_the_same_in_a_replay() -> None:
    """Two branches read what a node made with them; both have the same, whoever dies."""
    flow = Flow()
    schema = "n BIGINT, at BIGINT, chance DOUBLE, answer BIGINT"
    made = source(flow).keyBy("n").mapInArrow(stamped, schema).name("stamped")
    one = made.filter("n % 2 = 0").keyBy("n").name("one").memory()
    other = made.filter("n % 2 = 0").keyBy("n").name("other").memory()
    run_killing(flow, ["stamped[0]", "one[1]", "stamped[1]"])
    first, second = (
        {row["n"]: (row["at"], row["chance"], row["answer"]) for row in sink.toPylist()}
        for sink in (one, other)
    )
    assert sorted(first) == list(range(0, ROWS, 2))
    assert first == second


def test_a_growing_graph_survives_in_its_loop() -> None:
    flow = Flow()
    edges = source(flow, 20_000).select("n AS one", "cast(floor(n / 10) as bigint) AS other")
    out = connected_components(edges, name="components").memory()
    query = started(flow)
    try:
        for number, victim in enumerate(("components[0]", "components[1]"), 1):
            await_epochs(query, 2)
            query.kill(victim)
            await_recovery(query, number)
        query.finish(WAIT_S)
    finally:
        query.stop()
    latest: dict[int, int] = {}
    for epoch in sorted(out.epochs()):
        for row in out.epochs()[epoch].to_pylist():
            latest[row["vertex"]] = row["component"]
    assert latest == dict.fromkeys(range(20_000), 0)


def diced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Nobody knows what it makes."""
    for batch in batches:
        chances = [random.random() for _ in range(batch.num_rows)]
        yield pa.record_batch({"n": batch.column("n"), "chance": chances})


def test_what_cannot_be_repeated_is_kept() -> None:
    flow = Flow()
    made = (
        source(flow)
        .keyBy("n")
        .mapInArrow(diced, "n BIGINT, chance DOUBLE", repeatable=False)
        .name("diced")
    )
    sinks = [made.filter("n % 2 = 0").keyBy("n").name(name).memory() for name in ("one", "other")]
    run_killing(flow, ["diced[0]", "one[1]", "diced[1]"])
    first, second = ({row["n"]: row["chance"] for row in sink.toPylist()} for sink in sinks)
    assert sorted(first) == list(range(0, ROWS, 2))
    assert first == second


def damage(query: LocalQuery, node: str, newest: int) -> None:
    """Spoil the newest checkpoints of a node, once nobody can begin from the beginning."""
    stage, shard = node[:-1].split("[")
    recovery = query._controller.recovery
    assert recovery is not None
    folder = recovery.store.place.directory / "state" / stage / f"{int(shard):05d}"
    deadline = time.monotonic() + WAIT_S
    while min(low.region for low in recovery.lows().values()) < 0 and time.monotonic() < deadline:
        time.sleep(0.02)  # until then the beginning is a way back, too
    files = sorted(folder.glob("*/*.arrow"))
    for file in files[-newest:]:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)


def test_a_damaged_checkpoint_is_passed_over() -> None:
    flow = Flow()
    out = counted(flow).memory()
    query = started(flow, checkpointInterval="300 ms")
    try:
        damage(query, "counts[0]", newest=1)
        query.kill("counts[0]")
        await_recovery(query)
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert found_counts(out.toPylist()) == expected_counts()


def test_when_nothing_is_left_the_flow_says_so() -> None:
    flow = Flow()
    counted(flow).memory()
    query = started(flow, checkpointInterval="1 second")

    def kill_until_it_ends() -> None:
        for number in range(1, 20):  # a new checkpoint may come between damage and kill
            damage(query, "counts[0]", newest=1_000)
            query.kill("counts[0]")
            await_recovery(query, number)

    try:
        with pytest.raises(PenstockError, match="cannot be recovered"):
            kill_until_it_ends()
    finally:
        query.stop()


def test_a_stage_that_nobody_listens_to_holds_nobody_up() -> None:
    flow = Flow()
    rows = source(flow)
    rows.keyBy("n").select("n").name("unheard")
    out = rows.filter("n % 3 = 0").keyBy("n").select("n").name("d").memory()
    run_killing(flow, ["unheard[0]", "d[1]"])
    assert Counter(row["n"] for row in out.toPylist()) == Counter(range(0, ROWS, 3))


class Tally(Vertex):
    """Counts rows as they come into a loop: what is counted twice shows."""

    orderSensitive = False

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        for key in batch["key"].to_pylist():
            self.rows[key] = self.rows.get(key, 0) + 1
        self.notifyAt(time)

    def onNotify(self, time: Time) -> None:
        table = {"key": list(self.rows), "rows": list(self.rows.values())}
        self.sendBy(1, pa.record_batch(table, schema=TALLIES), time)


def lagging(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Others are some epochs ahead."""
    for batch in batches:
        time.sleep(0.03)
        yield batch.select(["key"])


TALLIES = pa.schema({"key": pa.int64(), "rows": pa.int64()})


def test_a_checkpoint_in_a_loop_has_nothing_of_later_epochs() -> None:
    flow = Flow()
    loop = flow.loop("loop")
    around = loop.variable(TALLIES)
    late = flow.generate(numbers, rate=RATE, rows=20_000, shards=1, name="late")
    rows = source(flow, 40_000).select("key").union(late.mapInArrow(lagging, "key long"))
    inside = loop.enter(rows)
    again, counts = flow.vertex(
        Tally, [around, inside], [TALLIES, TALLIES], partitionBy=[["key"], ["key"]], name="tally"
    )
    around.feed(again)
    out = loop.leave(counts).memory()
    kills.run_killing(flow, ["tally[0]", "tally[1]", "tally[2]"], checkpointInterval="100 ms")
    latest: dict[int, int] = {}
    for epoch in sorted(out.epochs()):
        latest |= {row["key"]: row["rows"] for row in out.epochs()[epoch].to_pylist()}
    assert latest == Counter(n % 7 for rows in (40_000, 20_000) for n in range(rows))
