"""Epochs reach a database whole and once; whatever happens in between."""

from __future__ import annotations

import os
import pickle
import shutil
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors import database
from penstock.connectors.database import COMMITS, Database
from penstock.connectors.database_dialects import dialect_of, without_password
from penstock.errors import SchemaError, SettingsError, SinkError
from penstock.testing.harness import Harness

SPENT = pa.schema({"user": pa.int64(), "spent": pa.int64(), "ads": pa.int64()})


def spent(*rows: tuple[int, int]) -> pa.RecordBatch:
    users, cents = zip(*rows, strict=True)
    return pa.record_batch([users, cents, [1] * len(rows)], schema=SPENT)


def made(sink: Database, schema: pa.Schema = SPENT) -> Database:
    """A sink as a flow would have it at its start."""
    sink.output_schemas([schema])
    sink.check()
    return sink


def select(path: Path, what: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(what).fetchall()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "billing.db"


@pytest.fixture
def balances(path: Path) -> Database:
    return made(Database(f"sqlite:///{path}", "balances", key="user", add=["spent", "ads"]))


def test_an_epoch_is_added_up_by_key(balances: Database, path: Path) -> None:
    node = Harness(balances)
    node.recv(spent((1, 10), (2, 5), (1, 7)), 0)
    assert select(path, "SELECT * FROM balances") == []
    node.complete(0)
    node.recv(spent((2, 1)), 3)
    node.complete(3)
    assert select(path, "SELECT * FROM balances ORDER BY user") == [(1, 17, 2), (2, 6, 2)]
    assert select(path, f"SELECT * FROM {COMMITS}") == [("balances", 3)]
    assert balances.committed() == 3
    assert node.counters == {"epochs_published": 2, "rows_published": 3}


def test_an_epoch_that_comes_again_changes_nothing(balances: Database, path: Path) -> None:
    for _ in range(2):  # a node, and the one that takes its place
        node = Harness(balances)
        node.recv(spent((1, 10)), 4)
        node.complete(4)
    assert select(path, "SELECT * FROM balances") == [(1, 10, 1)]
    assert node.counters == {}


def test_an_old_process_that_wakes_up_commits_nothing(balances: Database, path: Path) -> None:
    old, new = Harness(balances), Harness(pickle.loads(pickle.dumps(balances)))
    for node in (old, new):
        node.recv(spent((1, 10)), 0)
    new.complete(0)
    new.recv(spent((1, 1)), 1)
    new.complete(1)
    old.complete(0)
    assert select(path, "SELECT * FROM balances") == [(1, 11, 2)]
    assert balances.committed() == 1


def test_a_transaction_that_fails_leaves_nothing_behind(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TABLE balances (user INTEGER PRIMARY KEY, spent INTEGER CHECK (spent < 100), "
            "ads INTEGER)"
        )
    sink = made(Database(f"sqlite:///{path}", "balances", key="user", add=["spent", "ads"]))
    node = Harness(sink)
    node.recv(spent((1, 10), (2, 500)), 0)
    with pytest.raises(SinkError, match="epoch 0 for table 'balances'.*CHECK.*not written"):
        node.complete(0)
    assert select(path, "SELECT * FROM balances") == []
    assert sink.committed() is None


def test_rows_are_inserted_without_a_key_and_replaced_with_one(path: Path) -> None:
    schema = pa.schema(
        {"user": pa.string(), "at": pa.timestamp("us", tz="UTC"), "paid": pa.decimal128(9, 2)}
    )
    url = f"sqlite:///{path}"
    events, latest = (
        Harness(made(Database(url, name, key), schema))
        for name, key in (("events", ()), ("latest", "user"))
    )
    for epoch, paid in enumerate(("1.50", "2.25")):
        rows = pa.record_batch(
            [["a"], pa.array([epoch], schema.field("at").type), [Decimal(paid)]], schema=schema
        )
        for node in (events, latest):
            node.recv(rows, epoch)
            node.complete(epoch)
    first, second = select(path, "SELECT * FROM events")
    assert (first[0], first[2], second[2]) == ("a", "1.50", "2.25")
    assert first[1].startswith("1970-01-01")
    assert select(path, "SELECT user, paid FROM latest") == [("a", "2.25")]


def test_rows_of_which_nobody_knows_the_newest_are_refused(path: Path) -> None:
    node = Harness(made(Database(f"sqlite:///{path}", "latest", key="user")))
    node.recv(spent((1, 10), (1, 7)), 0)
    with pytest.raises(SinkError, match="2 rows of one epoch for the key {'user': 1}"):
        node.complete(0)


def test_a_null_key_is_refused(balances: Database) -> None:
    node = Harness(balances)
    node.recv(pa.record_batch([[None], [1], [1]], schema=SPENT), 0)
    with pytest.raises(SinkError, match="have no 'user', which is a key"):
        node.complete(0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"add": "spent"}, "add= needs key="),
        ({"key": "user", "add": "spent"}, "'ads' is neither in key= nor in add="),
        ({"key": "nobody"}, "no column 'nobody'"),
        ({"key": ["user", "spent"], "add": ["spent", "ads"]}, "'spent' cannot be added up"),
    ],
)
def test_senseless_columns_are_refused(path: Path, options: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        Database(f"sqlite:///{path}", "t", **options).output_schemas([SPENT])


def test_types_without_a_counterpart_are_refused(path: Path) -> None:
    lists = pa.schema({"tags": pa.list_(pa.string())})
    with pytest.raises(SchemaError, match="'tags' of type list"):
        Database(f"sqlite:///{path}", "t").output_schemas([lists])
    cents = pa.schema({"user": pa.int64(), "paid": pa.decimal128(9, 2)})
    with pytest.raises(SchemaError, match="count in cents"):
        Database(f"sqlite:///{path}", "t", "user", "paid").output_schemas([cents])


@pytest.mark.parametrize(
    "url", ["billing.db", "mysql://host/db", "sqlite://", "sqlite:///:memory:"]
)
def test_addresses_that_lead_nowhere_are_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="database:"):
        Database(url, "t")


def test_a_table_that_does_not_fit_is_refused_at_the_start(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE few (user INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE loose (user INTEGER, spent INTEGER, ads INTEGER)")
    with pytest.raises(SinkError, match="'few' in .* cannot be used.*spent"):
        made(Database(f"sqlite:///{path}", "few", key="user", add=["spent", "ads"]))
    with pytest.raises(SinkError, match=r"'loose' in .* cannot be used.*unique index on \(user\)"):
        made(Database(f"sqlite:///{path}", "loose", key="user", add=["spent", "ads"]))


def test_a_folder_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="cannot use sqlite:.*check the address"):
        made(Database(f"sqlite:///{tmp_path}/no/such.db", "t"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
        ("postgresql://me:sec@ret/?@host/db", "postgresql://me:***@host/db"),
        ("postgresql://host/db?password=secret&x=1", "postgresql://host/db?password=***&x=1"),
        ("postgresql://host/db?x=1&sslPassword=secret", "postgresql://host/db?x=1&sslPassword=***"),
        ("postgresql://me@host:5432/db", "postgresql://me@host:5432/db"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_lock_of_somebody_else_is_waited_for(
    balances: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.connectors.database_dialects.BUSY_S", 0.05)
    monkeypatch.setattr(database, "PAUSE_S", 0.05)
    node = Harness(balances)
    node.recv(spent((1, 10)), 0)
    with closing(sqlite3.connect(path, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.3, other.rollback)
        timer.start()
        node.complete(0)
        timer.join()
        assert select(path, "SELECT * FROM balances") == [(1, 10, 1)]
        # And given up at last, with the epoch not written.
        other.execute("BEGIN IMMEDIATE")
        node.recv(spent((1, 10)), 1)
        with pytest.raises(SinkError, match="locked"):
            node.complete(1)
        other.rollback()
    assert balances.committed() == 0


# -- PostgreSQL ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A PostgreSQL server of its own behind a socket in a folder, where there is one to start."""
    pytest.importorskip("psycopg")
    programs = shutil.which("initdb") or _newest("/usr/lib/postgresql/*/bin/initdb")
    if programs is None:
        pytest.skip("no PostgreSQL server to start")
    binaries = Path(programs).resolve().parent
    # Not in pytest's folder, which is root's alone, and the server refuses to run as root.
    folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    account: dict[str, Any] = {}
    if os.geteuid() == 0:
        account = {"user": "nobody"}
        shutil.chown(folder, "nobody")
    data = folder / "data"

    def run(*words: str) -> None:
        subprocess.run(
            [str(binaries / words[0]), *words[1:]],
            check=True,
            timeout=60,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            **account,
        )

    listen = f"-c listen_addresses='' -c unix_socket_directories='{folder}'"
    try:
        run("initdb", "-D", str(data), "-A", "trust", "-U", "penstock", "--no-sync")
        run("pg_ctl", "-D", str(data), "-w", "-l", str(folder / "log"), "-o", listen, "start")
        yield f"postgresql://penstock@/postgres?host={folder}"
        run("pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _newest(pattern: str) -> str | None:
    found = sorted(Path("/").glob(pattern.lstrip("/")))
    return str(found[-1]) if found else None


def test_postgres_has_the_same_promises(server: str) -> None:
    import psycopg

    sink = made(Database(server, "balances", key="user", add=["spent", "ads"]))
    assert sink.committed() is None
    sink = pickle.loads(pickle.dumps(sink))
    node, late = Harness(sink), Harness(sink)
    for one in (node, late):
        one.recv(spent((1, 10), (2, 5), (1, 7)), 0)
    node.complete(0)
    node.recv(spent((2, 1)), 1)
    node.complete(1)
    late.complete(0)
    with psycopg.connect(server, autocommit=True) as connection:

        def rows() -> list[Any]:
            return connection.execute("SELECT * FROM balances ORDER BY 1").fetchall()

        assert rows() == [(1, 17, 2), (2, 6, 2)]
        # A connection that is cut is made again, and the epoch is written once.
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        )
        node.recv(spent((2, 1)), 2)
        node.complete(2)
        assert rows() == [(1, 17, 2), (2, 7, 3)]
        assert sink.committed() == 2
        connection.execute('CREATE TABLE loose ("user" BIGINT, spent BIGINT, ads BIGINT)')
        with pytest.raises(SinkError, match="'loose' in .* cannot be used.*unique index"):
            made(Database(server, "loose", key="user", add=["spent", "ads"]))


def test_a_server_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(SinkError, match="cannot use postgresql:.*check the address"):
        made(Database(f"postgresql://me:secret@/db?host={tmp_path}", "t"))


@pytest.mark.parametrize("before", ["none", "wal"])
def test_a_file_has_no_write_ahead_log_unless_it_is_asked_for(path: Path, before: str) -> None:
    if before == "wal":
        select(path, "PRAGMA journal_mode = WAL")
    made(Database(f"sqlite:///{path}", "balances"))
    assert select(path, "PRAGMA journal_mode") == [("delete",)]
    made(Database(f"sqlite:///{path}?journal_mode=wal", "balances"))
    assert select(path, "PRAGMA journal_mode") == [("wal",)]


def test_a_write_ahead_log_that_others_have_open_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.connectors.database_dialects.BUSY_S", 0.1)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE held (n)")
        with pytest.raises(SinkError, match="cannot use sqlite"):
            Database(f"sqlite:///{path}", "balances").check()


def test_an_unknown_option_of_a_file_is_refused() -> None:
    with pytest.raises(SettingsError, match="known are journal_mode=delete"):
        dialect_of("sqlite:////tmp/a.db?journal_mode=off")
