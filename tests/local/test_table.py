"""Tables in versions: published whole, looked up as of what was noted, safe from rollbacks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.connectors.as_of import AsOf, TableLookup
from penstock.connectors.table import PublishedTable, TableWrite
from penstock.connectors.table_pins import TablePin
from penstock.errors import SchemaError, SettingsError, SourceError
from penstock.testing.harness import Harness
from penstock.testing.held_input import hold_input
from penstock.testing.kills import await_recovery
from penstock.testing.local import start_local
from penstock.testing.processes import wait_until

PRICES = pa.schema({"item": pa.int64(), "price": pa.int64()})
QUERY = pa.schema({"id": pa.int64(), "item": pa.int64()})
WAIT_S = 60.0
ITEMS = 5


def prices(*rows: tuple[int, int]) -> pa.RecordBatch:
    items, each = zip(*rows, strict=True)
    return pa.record_batch([items, each], schema=PRICES)


@pytest.fixture
def table(tmp_path: Path) -> PublishedTable:
    return PublishedTable("prices", PRICES, str(tmp_path / "prices"))


def published(table: PublishedTable, *versions: int, keep: int = 16) -> Harness:
    node = Harness(TableWrite(table, keep))
    for version in versions:
        node.recv(prices((1, version), (2, 10 * version)), version)
        node.complete(version)
    return node


def test_an_epoch_with_rows_is_a_version(table: PublishedTable) -> None:
    assert table.newest() is None
    assert table.read().num_rows == 0
    node = published(table, 3, 7)
    node.complete(9)
    assert table.versions() == [3, 7]
    assert table.read()["price"].to_pylist() == [7, 70]
    assert table.read(3)["price"].to_pylist() == [3, 30]
    assert TableWrite(table).committed() == 7


def test_a_version_that_is_made_again_is_not_published_again(table: PublishedTable) -> None:
    published(table, 3)
    node = Harness(TableWrite(table))
    node.recv(prices((1, 999)), 3)
    node.complete(3)
    assert table.read(3)["price"].to_pylist() == [3, 30]
    assert node.counters == {}


def test_old_versions_go_and_a_reader_is_told(table: PublishedTable) -> None:
    published(table, *range(6), keep=3)
    assert table.versions() == [3, 4, 5]
    with pytest.raises(SourceError, match=r"version 1 is not there, only \[3, 4, 5\].*keep=N"):
        table.read(1)
    with pytest.raises(SettingsError, match="keep at least 2"):
        TableWrite(table, keep=1)


@pytest.mark.parametrize("content", [b"", b'{"version": ', b"[]", b'{"version": null}'], ids=str)
def test_a_pin_that_cannot_be_read_holds_all_versions(
    table: PublishedTable, content: bytes
) -> None:
    pin = table.folder / "readers" / "shop.noted.0.json"
    pin.parent.mkdir(parents=True)
    pin.write_bytes(content)
    published(table, *range(6), keep=3)
    assert table.versions() == [0, 1, 2, 3, 4, 5]
    TablePin(table.folder, "shop.noted.0").open(5)  # a new incarnation may need them as well
    published(table, 6, keep=3)
    assert table.versions()[0] == 0
    pin.write_bytes(b'{"version": 4}')
    published(table, 7, keep=3)
    assert table.versions() == [4, 5, 6, 7]


def test_only_the_newest_window_of_an_epoch_counts(table: PublishedTable) -> None:
    node = Harness(TableWrite(table, newest="price"))
    node.recv(prices((1, 5), (2, 6), (3, 6)), 0)
    node.complete(0)
    assert table.read()["item"].to_pylist() == [2, 3]
    with pytest.raises(SchemaError, match="no column 'window'"):
        TableWrite(table, newest="window")


def test_rows_see_the_version_that_was_noted(table: PublishedTable) -> None:
    published(table, 3, 7)
    noted = Harness(AsOf([table]))
    noted.recv(pa.record_batch([[0, 1], [1, 2]], schema=QUERY))
    batch = noted.batches()[0]
    assert batch["prices_version"].to_pylist() == [7, 7]
    lookup = TableLookup(table, "item", how="left")
    lookup.output_schemas([batch.schema])
    kernel = lookup.kernel()
    assert kernel(batch)["price"].to_pylist() == [7, 70]
    mixed = batch.set_column(2, "prices_version", pa.array([3, None], pa.int64()))
    assert kernel(mixed)["price"].to_pylist() == [3, None]
    assert kernel(mixed.slice(0, 0)).num_rows == 0
    inner = TableLookup(table, {"item": "item"})
    inner.output_schemas([batch.schema])
    assert inner.kernel()(mixed)["id"].to_pylist() == [0]


def test_a_lookup_without_a_version_is_refused(table: PublishedTable) -> None:
    with pytest.raises(SchemaError, match=r"no column 'prices_version'.*asOf\(table\)"):
        TableLookup(table, "item").output_schemas([QUERY])
    with pytest.raises(SchemaError, match="at least one table"):
        AsOf([])
    with pytest.raises(SchemaError, match="what stream.toTable"):
        AsOf([PRICES])  # type: ignore[list-item]


# -- in flows ------------------------------------------------------------------------------------


def queries(offset: int, n: int) -> pa.RecordBatch:
    ids = range(offset, offset + n)
    return pa.record_batch([list(ids), [i % ITEMS for i in ids]], schema=QUERY)


def versions(offset: int, n: int) -> pa.RecordBatch:
    """A version after the other, five rows each."""
    rows = range(offset, offset + n)
    return pa.record_batch([[i % ITEMS for i in rows], [i // ITEMS for i in rows]], schema=PRICES)


def test_lookups_are_exact_while_nodes_on_both_sides_are_killed(tmp_path: Path) -> None:
    flow = Flow("shop")
    made = flow.memory(PRICES, manualEpochs=True, name="made")
    table = (
        made.filter("price >= 0")
        .keyBy("item", shards=1)
        .name("priced")
        .toTable("prices", keep=1000)
    )
    asked = flow.generate(queries, rate=4_000, rows=10_000, shards=1, name="queries")
    noted = asked.asOf(table).name("noted")
    answers = (
        noted.keyBy("item", shards=2).lookup(table, "item", how="left").name("answers").memory()
    )
    hold_input(flow)
    query = start_local(
        flow,
        hosts=5,
        standby=1,
        epochInterval="20 ms",
        checkpointInterval="200 ms",
        checkpointLocation=str(tmp_path / "store"),
    )
    try:
        for number, victim in enumerate(("answers[1]", "noted[0]", "priced[0]", "queries[0]"), 1):
            made.push(versions(ITEMS * number, ITEMS))
            made.closeEpoch()
            wait_until(lambda n=number: len(table.versions()) >= n, WAIT_S, "the version")
            query.kill(victim)
            await_recovery(query, number)
        made.close()
        query.finish(WAIT_S)
    finally:
        query.stop()
    rows = answers.toPylist()
    assert sorted(row["id"] for row in rows) == list(range(10_000))
    held = {
        version: dict(zip(*table.read(version).to_pydict().values(), strict=True))
        for version in table.versions()
    }
    assert len(held) == 4
    for row in rows:
        seen = row["prices_version"]
        assert row["price"] == (None if seen is None else held[seen][row["item"]])
    assert len({row["prices_version"] for row in rows}) >= 3


def test_queries_are_answered_before_there_is_any_version() -> None:
    flow = Flow("early")
    made = flow.memory(PRICES, manualEpochs=True, name="made")  # never ends an epoch
    table = made.toTable("prices")
    asked = flow.generate(queries, rows=100, name="queries")
    answers = asked.asOf(table).lookup(table, "item", how="left").memory(name="answers")
    query = start_local(flow, epochInterval="20 ms")
    try:
        deadline = time.monotonic() + WAIT_S
        while len(answers.toPylist()) < 100:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        query.stop()
    assert {row["price"] for row in answers.toPylist()} == {None}


def test_versions_that_a_restart_needs_are_kept_and_others_go(tmp_path: Path) -> None:
    store = str(tmp_path / "store")

    def run(until: Callable[[list[int]], bool], interval: str) -> list[int]:
        """Run until the versions that are there are as wanted."""
        flow = Flow("shop")
        made = flow.generate(versions, rate=50 * ITEMS, name="made")
        folder = str(tmp_path / "prices")
        table = made.toTable("prices", keep=2, newest="price", path=folder)
        asked = flow.generate(queries, rate=500, name="queries").keyBy("item", shards=1)
        noted = asked.asOf(table).name("noted")
        noted.lookup(table, "item", how="left").parquet(str(tmp_path / "answers"))
        query = start_local(
            flow,
            hosts=1,
            checkpointLocation=store,
            checkpointInterval=interval,
            epochInterval="10 ms",
        )
        try:
            deadline = time.monotonic() + WAIT_S
            while query.isActive and not until(table.versions()):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            query.stop()
        assert query.exception() is None
        return table.versions()

    # Without a checkpoint a restart begins with the first epoch, and needs the first version.
    newest = run(lambda there: max(there, default=0) > 20, "1 hour")[-1]
    run(lambda there: there[0] > newest, "50 ms")
