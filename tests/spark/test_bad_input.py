"""Bad input: refused or failed within seconds, with a message that says where and what to do."""

import importlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from penstock import Flow, Vertex
from penstock.api import functions as F
from penstock.errors import (
    FunctionError,
    GraphError,
    PenstockError,
    SchemaError,
    SessionError,
    SettingsError,
    SinkError,
    SlotsError,
    SourceError,
)
from penstock.testing.processes import hosts_of, wait_gone, wait_until

LIMIT_S = 60.0
SCHEMA = pa.schema({"n": pa.int64(), "word": pa.string(), "t": pa.timestamp("us")})


@contextmanager
def refused(kind: type[PenstockError], *words: str) -> Iterator[None]:
    """Expect an error of a kind whose message has all of the words."""
    with pytest.raises(kind) as caught:
        yield
    assert type(caught.value) is kind
    for word in words:
        assert word in caught.value.message
    assert caught.value.getCondition() == kind.condition


def numbers(offset: int, n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": np.arange(offset, offset + n)})


def rows_flow() -> tuple[Flow, Any]:
    flow = Flow("bad")
    return flow, flow.memory(SCHEMA, name="rows")


def small_flow(name: str = "small") -> Flow:
    flow = Flow(name)
    flow.memory(SCHEMA).memory()
    return flow


# -- while the flow is built -----------------------------------------------------------------------


def test_an_unknown_column_is_refused_where_it_is_written() -> None:
    _, rows = rows_flow()
    with refused(SchemaError, "filter", "wrod", "word"):
        rows.filter("wrod = 'x'")
    with refused(SchemaError, "select", "'m'"):
        rows.select("m")
    with refused(SchemaError, "groupBy", "'m'"):
        rows.groupBy("m").agg(F.count("*"))
    with refused(SchemaError, "'m'"):
        rows.keyBy("m")
    with refused(SchemaError, "lookup", "'m'"):
        rows.lookup(pa.table({"m": [1], "x": [2]}), "m")
    with refused(SchemaError, "drop", "'m'"):
        rows.drop("m")


def test_a_wrong_type_is_refused_where_it_is_written() -> None:
    _, rows = rows_flow()
    with refused(SchemaError, "filter", "n"):
        rows.filter("n + 1")
    with refused(SchemaError, "word"):
        rows.withWatermark("word", "1 second")
    with refused(SchemaError, "word"):
        rows.groupBy("n").agg(F.sum("word"))
    with refused(SchemaError, "union"):
        rows.union(rows.select("n"))


def test_sql_that_does_not_parse_is_refused_and_shown() -> None:
    _, rows = rows_flow()
    for sql in ("n >", "n = = 2", "SELECT n FROM rows", "'open", ""):
        with pytest.raises(SchemaError) as caught:
            rows.filter(sql)
        assert "filter" in caught.value.message
        assert sql in caught.value.message


def test_graphs_that_could_never_work_are_refused(spark: SparkSession) -> None:
    with refused(GraphError, "'bad'", "empty"):
        Flow("bad").start(spark)
    flow, rows = rows_flow()
    with refused(GraphError, "no sink"):
        flow.start(spark)
    rows.groupBy(F.window("t", "1 second")).agg(F.count("*")).memory()
    with refused(GraphError, "'window'", "withWatermark"):
        flow.start(spark)
    with refused(GraphError, "belongs to flow"):
        rows.union(rows_flow()[1])


# -- at start() ------------------------------------------------------------------------------------


def test_fewer_task_slots_than_hosts_are_refused(spark: SparkSession) -> None:
    with refused(SlotsError, "hosts=7", "6 task slots", "local[8]"):
        small_flow().start(spark, hosts=7)
    query = small_flow().start(spark, hosts=5)
    try:
        for _ in range(3):
            with refused(SlotsError, "hosts=2", "only 1 of", "6 task slots"):
                small_flow("other").start(spark, hosts=2)
    finally:
        query.stop()


def test_an_unknown_or_senseless_option_is_refused(spark: SparkSession) -> None:
    with refused(SettingsError, "'hots'", "hosts"):
        small_flow().start(spark, hots=2)
    with refused(SettingsError, "hosts", "0"):
        small_flow().start(spark, hosts=0)
    with refused(SettingsError, "epochInterval"):
        small_flow().start(spark, epochInterval="often")


class Connect:
    """What a Spark Connect session does when it is asked for its context."""

    @property
    def sparkContext(self) -> Any:
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "x"}
        )


class Altered:
    """A session with one setting changed."""

    def __init__(self, spark: SparkSession, key: str, value: str) -> None:
        conf = spark.sparkContext.getConf().set(key, value)

        class Context:
            master = spark.sparkContext.master
            _jsc = spark.sparkContext._jsc
            getConf = staticmethod(lambda: conf)

        self.sparkContext = Context


def test_a_session_that_cannot_carry_hosts_is_refused(spark: SparkSession) -> None:
    with refused(SessionError, "Spark Connect", "classic SparkSession"):
        small_flow().start(Connect())
    with refused(SessionError, "expected a SparkSession", "str"):
        small_flow().start("local[4]")
    with refused(SessionError, "spark.speculation", "set it to false"):
        small_flow().start(Altered(spark, "spark.speculation", "true"))
    with refused(SessionError, "killOnIdleTimeout"):
        small_flow().start(
            Altered(spark, "spark.sql.execution.pyspark.udf.killOnIdleTimeout", "true")
        )


def test_a_function_that_cannot_travel_is_refused_with_its_stage(spark: SparkSession) -> None:
    lock = threading.Lock()

    def locked(batch: pa.RecordBatch) -> pa.Array:
        with lock:
            return batch["n"]

    flow, rows = rows_flow()
    rows.withColumn("m", locked, pa.int64()).name("locked").memory()
    with refused(SettingsError, "stage 'locked'", "lock", "open those inside it"):
        flow.start(spark, hosts=2)


def test_an_unwritable_output_or_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    flow, rows = rows_flow()
    rows.parquet(str(tmp_path / "file" / "out"))
    with refused(SinkError, str(tmp_path / "file" / "out"), "cannot write", "give a path"):
        flow.start(spark, hosts=2)
    with refused(SettingsError, "checkpointLocation", "cannot be written", "give a place"):
        small_flow().start(spark, checkpointLocation=str(tmp_path / "file" / "checkpoint"))


def test_an_output_folder_with_somebodys_epochs_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "out" / "epoch=41").mkdir(parents=True)
    flow, rows = rows_flow()
    rows.parquet(str(tmp_path / "out"), name="archive")
    for options in ({}, {"checkpointLocation": str(tmp_path / "fresh")}):
        with refused(SinkError, "archive_commit", "41", "checkpointLocation", "empty output"):
            flow.start(spark, hosts=2, **options)


def test_a_checkpoint_of_another_flow_is_refused_and_says_what_changed(
    spark: SparkSession, tmp_path: Path
) -> None:
    small_flow().start(spark, hosts=1, checkpointLocation=str(tmp_path)).stop()
    flow = Flow("small")
    flow.memory(SCHEMA, name="renamed").memory()
    with refused(SettingsError, "'memory' is gone", "'renamed' is new", "new checkpointLocation"):
        flow.start(spark, hosts=1, checkpointLocation=str(tmp_path))


NO_JAVA = """
import sys
from penstock.engine.spark.session import local_session
from penstock.errors import JavaNotFoundError
try:
    local_session()
except JavaNotFoundError as error:
    print(error.message)
"""


def test_without_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path), "PENSTOCK_JVM_ROOT": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", NO_JAVA],
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    assert "Java 17" in line
    assert "apt-get install openjdk-17-jre-headless" in line


# -- while it runs ---------------------------------------------------------------------------------


def failing(flow: Flow, spark: SparkSession, **options: Any) -> PenstockError:
    """Run a flow that must fail; give the error once hosts and Spark jobs are gone."""
    query, hosts = None, {}
    with pytest.raises(PenstockError) as caught:  # noqa: PT012  the start may raise already
        query = flow.start(spark, hosts=3, **options)
        hosts = hosts_of(query) if query.isActive else {}
        assert query.awaitTermination(LIMIT_S), "it did not fail"
    if query is not None:  # it has started
        assert query.exception() is caught.value
        assert not query.isActive
    wait_gone(hosts.values(), 2)
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: not tracker.getActiveJobsIds(), 2, "the end of the Spark jobs")
    return caught.value


def test_a_function_that_raises_at_row_one_million_ends_the_flow_and_says_where(
    spark: SparkSession,
) -> None:
    def fragile(batch: pa.RecordBatch) -> pa.Array:
        for number in batch["n"].to_numpy():
            if number == 1_000_000:
                raise ZeroDivisionError("row one million")
        return batch["n"]

    flow = Flow("million")
    rows = flow.generate(numbers, rows=1_200_000, shards=1)
    rows.withColumn("m", fragile, pa.int64()).name("fragile").keyBy("n").memory()
    error = failing(flow, spark)
    assert isinstance(error, FunctionError)
    assert error.parameters["stage"] == "fragile"
    assert error.parameters["node"] == "fragile[0]"
    assert error.parameters["epoch"] >= 0
    for word in (
        "'fragile'",
        "fragile[0]",
        f"epoch {error.parameters['epoch']}",
        "row one million",
    ):
        assert word in error.message
    traceback = error.parameters["traceback"]
    assert "in fragile" in traceback
    assert "ZeroDivisionError: row one million" in traceback


def test_other_functions_of_the_users_that_raise_end_the_flow_and_say_where(
    spark: SparkSession,
) -> None:
    def broken(offset: int, n: int) -> pa.RecordBatch:
        if offset + n > 1000:
            raise RuntimeError("the source broke")
        return numbers(offset, n)

    class Fragile(Vertex):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: Any) -> None:
            self.notifyAt(time)

        def onNotify(self, time: Any) -> None:
            raise KeyError("in onNotify")

    def sink(rows: pa.Table, epoch: int) -> None:
        raise OSError("the sink broke")

    flow = Flow("source")
    flow.generate(broken, rate=100_000, shards=1, name="made").memory()
    error = failing(flow, spark)
    assert isinstance(error, SourceError)
    assert "the source broke" in error.message
    assert error.parameters["stage"] == "made"
    assert "in broken" in error.parameters["traceback"]

    flow = Flow("vertex")
    rows = flow.generate(numbers, rate=10_000, shards=1)
    rows.process(Fragile, pa.schema({"n": pa.int64()}), partitionBy=["n"]).name("mine").memory()
    error = failing(flow, spark)
    assert isinstance(error, FunctionError)
    assert error.parameters["stage"] == "mine"
    assert "in onNotify" in error.message

    flow = Flow("sink")
    flow.generate(numbers, rate=10_000, shards=1).foreachBatch(sink, name="written")
    error = failing(flow, spark)
    assert isinstance(error, FunctionError)
    assert error.parameters["stage"] == "written"
    assert "the sink broke" in error.message


def test_a_function_with_rows_of_another_type_ends_the_flow_and_says_where(
    spark: SparkSession,
) -> None:
    def words(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"n": ["x"] * batch.num_rows})

    flow = Flow("typed")
    rows = flow.generate(numbers, rate=10_000, shards=1)
    rows.mapInArrow(words, "n BIGINT").name("words").memory()
    error = failing(flow, spark)
    assert isinstance(error, FunctionError)
    assert error.parameters["stage"] == "words"
    assert "'n'" in error.message
    assert "string" in error.message


def test_a_module_that_the_hosts_lack_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def same(batch):\n    return batch['n']\n")
    monkeypatch.syspath_prepend(tmp_path)
    only_here = importlib.import_module("only_here")
    flow = Flow("lacking")
    rows = flow.generate(numbers, rate=10_000, shards=1)
    rows.withColumn("m", only_here.same, pa.int64()).memory()
    error = failing(flow, spark)
    assert isinstance(error, SettingsError)
    for word in ("'only_here'", "addPyFile"):
        assert word in error.message


def test_a_corrupt_parquet_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    bad = tmp_path / "b.parquet"
    bad.write_bytes(whole[:-20])
    flow = Flow("corrupt")
    flow.files(str(tmp_path), name="input").memory()
    error = failing(flow, spark, availableNow=True)
    assert isinstance(error, SourceError)
    for word in (str(bad), "cannot be read as parquet", "onCorrupt='skip'"):
        assert word in error.message
    assert error.parameters["stage"] == "input"
    (tmp_path / "a.parquet").unlink()
    with refused(SourceError, str(bad), "cannot be read as parquet"):
        Flow("corrupt").files(str(tmp_path))


def test_a_missing_input_folder_is_refused(tmp_path: Path) -> None:
    with refused(SourceError, str(tmp_path / "nowhere")):
        Flow("missing").files(str(tmp_path / "nowhere"))
