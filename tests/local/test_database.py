"""Flows that write to a database: each epoch arrives whole and once."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.errors import PenstockError, SinkError
from penstock.testing.kills import run_killing
from penstock.testing.local import run_local, start_local

SPENT = pa.schema({"user": pa.int64(), "spent": pa.int64(), "ads": pa.int64()})
WAIT_S = 60.0


def spent(*rows: tuple[int, int]) -> pa.RecordBatch:
    users, cents = zip(*rows, strict=True)
    return pa.record_batch([users, cents, [1] * len(rows)], schema=SPENT)


def select(path: Path, what: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(what).fetchall()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "billing.db"


USERS, ROWS = 7, 30_000


def spending(offset: int, n: int) -> pa.RecordBatch:
    ids = range(offset, offset + n)
    return pa.record_batch([[i % USERS for i in ids], list(ids), [1] * n], schema=SPENT)


def totals() -> list[tuple[int, int, int]]:
    return [
        (user, sum(range(user, ROWS, USERS)), len(range(user, ROWS, USERS)))
        for user in range(USERS)
    ]


def billing(path: Path, rows: int = ROWS) -> Flow:
    flow = Flow("billing")
    source = flow.generate(spending, rate=15_000, rows=rows, shards=2, name="spending")
    source.keyBy("user", shards=2).filter("ads > 0").name("served").database(
        f"sqlite:///{path}", "balances", key="user", add=["spent", "ads"], name="billed"
    )
    return flow


def test_balances_are_exact_when_the_nodes_around_them_are_killed(path: Path) -> None:
    victims = ["billed[0]", "served[1]", "billed[0]", "spending[0]"]
    run_killing(billing(path), victims, hosts=4, epochs=10, epochInterval="20 ms", standby=1)
    assert select(path, "SELECT * FROM balances ORDER BY user") == totals()


def test_a_flow_goes_on_where_the_database_says(path: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "checkpoint")
    query = start_local(billing(path), epochInterval="20 ms", checkpointLocation=store)
    time.sleep(0.6)
    query.stop()
    assert query.join()
    assert 0 < select(path, "SELECT sum(ads) FROM balances")[0][0] < ROWS
    with pytest.raises(SinkError, match="already holds epochs up to"):
        run_local(billing(path), checkpointLocation=str(tmp_path / "another"))
    run_local(billing(path), epochInterval="20 ms", checkpointLocation=store)
    assert select(path, "SELECT * FROM balances ORDER BY user") == totals()


def test_the_flow_ends_with_the_reason_when_the_database_refuses_rows(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TABLE balances (user INTEGER PRIMARY KEY, spent INTEGER, "
            "ads INTEGER CHECK (ads < 10))"
        )
    with pytest.raises(PenstockError, match="refused rows of epoch .* for table 'balances'"):
        run_local(billing(path, 500))
