"""A host that stands by has the states of others ready, and they are what the store has."""

import time
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.errors import SettingsError
from penstock.testing.held_input import hold_input
from penstock.testing.kills import await_recovery, run_killing
from penstock.testing.local import LocalQuery, start_local

WAIT_S = 60.0


# -- flows ---------------------------------------------------------------------------------------

ROWS = 60_000
RATE = 15_000


def numbers(offset: int, n: int) -> pa.RecordBatch:
    values = np.arange(offset, offset + n, dtype=np.int64)
    return pa.record_batch({"n": values, "key": values % 97})


def counting(flow: Flow) -> Any:
    """Running sums per key: the last row of a key counts."""
    source = flow.generate(numbers, rate=RATE, rows=ROWS, shards=2, name="numbers")
    sums = source.groupBy("key").agg(F.count("*").alias("rows"), F.sum("n").alias("total"))
    return sums.name("sums").memory(name="out")


def check_sums(rows: list[dict[str, Any]]) -> None:
    last = {row["key"]: (row["rows"], row["total"]) for row in rows}
    expected: dict[int, tuple[int, int]] = {}
    for n in range(ROWS):
        count, total = expected.get(n % 97, (0, 0))
        expected[n % 97] = (count + 1, total + n)
    assert last == expected
    assert max(Counter((row["key"], row["rows"]) for row in rows).values()) == 1


def await_standby(query: LocalQuery) -> int:
    """Wait until some host follows all that has been saved; its number."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for one in query.status["standby"]:
            if one["nodes"] and one["behind"] <= 1:
                return int(one["host"])
        assert query.isActive, query.exception()
        time.sleep(0.005)
    raise AssertionError(f"nobody follows: {query.status}")


OPTIONS: dict[str, Any] = {"hosts": 3, "standby": "active", "epochInterval": "20 ms"}


def test_a_lost_state_is_at_hand_on_the_host_that_stood_by() -> None:
    flow = Flow()
    out = counting(flow)
    hold_input(flow)
    query = start_local(flow, **OPTIONS)
    followed = []
    try:
        for number, victim in enumerate(["sums[0]", "sums[2]", "sums[0]"], 1):
            spare = await_standby(query)
            time.sleep(0.05 * number)
            query.kill(victim)
            entry = await_recovery(query, number)
            where = next(one["host"] for one in query.nodes() if one["name"] == victim)
            followed += [one["followed"] for one in entry["work"].values() if "followed" in one]
            assert where == spare
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert sum(followed) >= 2
    check_sums(out.toPylist())


def test_two_in_a_row_the_one_that_follows_and_one_that_has_just_taken_over() -> None:
    flow = Flow()
    out = counting(flow)
    hold_input(flow)
    query = start_local(flow, **OPTIONS)
    try:
        query._controller.links.kill(await_standby(query))
        time.sleep(0.05)
        await_standby(query)
        query.kill("sums[1]")
        time.sleep(0.03)
        query.kill("sums[0]")
        await_recovery(query, 2)
        query.kill("sums[1]")
        await_recovery(query, 3)
        query.finish(WAIT_S)
    finally:
        query.stop()
    check_sums(out.toPylist())


def test_what_does_not_follow_row_by_row_is_restored_from_what_was_read() -> None:
    flow = Flow()
    source = flow.generate(numbers, rate=RATE, rows=ROWS, shards=2, name="numbers")
    out = source.dropDuplicates(["key"]).name("first").memory(name="out")
    run_killing(flow, ["first[0]", "first[1]"], **OPTIONS)
    assert sorted(row["key"] for row in out.toPylist()) == list(range(97))


def test_a_standby_is_a_number_or_active() -> None:
    flow = Flow()
    counting(flow)
    with pytest.raises(SettingsError, match="standby is a number from 0 up or 'active'"):
        start_local(flow, standby="lazy")
