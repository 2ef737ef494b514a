"""Hosts that watch each other: who takes over from whom, with nothing lost or doubled."""

import os
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow
from penstock import functions as F
from penstock.engine.spark.membership import is_running
from penstock.testing.kills import await_recovery
from penstock.testing.local import LocalQuery, start_local
from penstock.testing.processes import wait_until

ROWS = 20_000
RATE = 10_000
KEYS = 20
WAIT_S = 30.0
QUICK = {"pingInterval": "50 ms", "pingTimeout": "400 ms"}


def numbers(offset: int, n: int) -> pa.RecordBatch:
    ids = range(offset, offset + n)
    return pa.record_batch({"n": pa.array(ids), "key": pa.array([i % KEYS for i in ids])})


def summed() -> tuple[Flow, Any]:
    flow = Flow()
    made = flow.generate(numbers, rate=RATE, rows=ROWS, shards=2, name="numbers")
    sums = made.groupBy("key").agg(F.count("*").alias("rows"), F.sum("n").alias("total"))
    return flow, sums.name("sums").memory()


def check(out: Any) -> None:
    """The last row of every key has everything, once."""
    last = {row["key"]: (row["rows"], row["total"]) for row in out.toPylist()}
    wanted = {key: range(key, ROWS, KEYS) for key in range(KEYS)}
    assert last == {key: (len(ids), sum(ids)) for key, ids in wanted.items()}


def started(flow: Flow, hosts: int, **options: Any) -> LocalQuery:
    return start_local(flow, hosts, **{"checkpointInterval": "200 ms", **options})


def places(query: LocalQuery) -> dict[str, int]:
    return {node["name"]: node["host"] for node in query.nodes()}


def to_the_end(query: LocalQuery) -> None:
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()


@pytest.mark.parametrize("takeover", ["next", "least-loaded", "split"])
def test_those_who_live_take_over_at_once(takeover: str) -> None:
    flow, out = summed()
    query = started(flow, 3, takeover=takeover, reinstate=False)
    before = places(query)
    victim = before["sums[0]"]
    lost = [name for name, host in before.items() if host == victim]
    query.kill("sums[0]")
    entry = await_recovery(query)
    after = places(query)
    assert entry["host"] == victim
    assert sorted(entry["lost"]) == sorted(lost)
    takers = {after[name] for name in lost}
    others = {host for host in before.values() if host not in (0, victim)}
    assert takers <= others  # nobody waited for a new process
    if takeover == "next":
        assert takers == {victim % 3 + 1}
    if takeover == "split":
        assert len(takers) == min(len(lost), 2)
    assert {after[name] for name in before if name not in lost} == {
        before[name] for name in before if name not in lost
    }
    to_the_end(query)
    check(out)


def test_a_spare_is_preferred() -> None:
    flow, out = summed()
    query = started(flow, 2, standby=1)
    query.kill("sums[0]")
    await_recovery(query)
    assert places(query)["sums[0]"] == 3
    to_the_end(query)
    check(out)


def test_several_deaths_in_a_row_down_to_one_host_and_none() -> None:
    flow, out = summed()
    query = started(flow, 3)
    for number, victim in enumerate(("sums[0]", "sums[1]", "numbers[0]", "sums[2]"), 1):
        query.kill(victim)
        wait_until(lambda n=number: len(query.recoveries) >= n, WAIT_S, "the loss")
    await_recovery(query, 4)
    to_the_end(query)
    check(out)


def test_one_host_alone_waits_for_a_new_process() -> None:
    flow, out = summed()
    query = started(flow, 1)
    query.kill("sums[0]")
    await_recovery(query)
    assert set(places(query).values()) <= {0, 2}
    to_the_end(query)
    check(out)


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_a_host_that_stands_still_is_noticed_by_the_one_before_it(hosts: int) -> None:
    flow, out = summed()
    query = started(flow, hosts, **QUICK)
    wait_until(out.toPylist, WAIT_S, "rows")
    [frozen] = query.freeze("sums[0]", 1.5)
    entry = await_recovery(query)
    assert entry["host"] == frozen["host"]
    watcher = "the driver" if hosts == 1 else "host"
    assert "silent for" in entry["reason"]
    assert f"as {watcher}" in entry["reason"]
    to_the_end(query)
    check(out)


def test_nobody_is_taken_for_dead_who_works() -> None:
    flow, out = summed()
    query = started(flow, 3, pingTimeout="1 second")
    to_the_end(query)
    assert query.recoveries == []
    check(out)


def test_a_sleeping_process_is_told_from_one_that_works() -> None:
    assert is_running(os.getpid())  # this thread
    assert not is_running(2**22 + 1)


def test_rows_are_neither_lost_nor_doubled_without_state() -> None:
    flow = Flow()
    made = flow.generate(numbers, rate=RATE, rows=ROWS, shards=2, name="numbers")
    out = made.keyBy("n").select("n").name("kept").memory()
    query = started(flow, 2, takeover="split")
    for number, victim in enumerate(("kept[0]", "kept[1]"), 1):
        query.kill(victim)
        await_recovery(query, number)
    to_the_end(query)
    assert Counter(row["n"] for row in out.toPylist()) == Counter(range(ROWS))
