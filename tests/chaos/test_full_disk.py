"""No process of a flow on Spark can write for a while: it waits, says so, and loses nothing."""

import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from penstock.bench.chaos_flow import ChaosTables
from penstock.engine.host.clock import now_us
from penstock.testing.processes import hosts_of, wait_until

RATE = 3_000


@contextmanager
def full(process: psutil.Process) -> Iterator[None]:
    """The kernel refuses what would make a file of this process's longer, as on a full disk."""
    before = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_for_a_while_holds_the_flow_up_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path, at_length: bool
) -> None:
    outage_s = 20.0 if at_length else 1.5
    tables = ChaosTables(RATE, RATE * 6, tmp_path, now_us())
    query = tables.flow.start(
        spark,
        hosts=3,
        parallelism=2,
        epochInterval="100 ms",
        checkpointInterval="400 ms",
        checkpointLocation=str(tmp_path / "checkpoint"),
    )

    def published() -> int:
        return len(list((tmp_path / "numbers").glob("epoch=*")))

    try:
        wait_until(lambda: published() > 3, 60, "the first epochs")
        processes = {**hosts_of(query), 0: psutil.Process()}
        with ExitStack() as limits:
            for process in processes.values():
                limits.enter_context(full(process))
            wait_until(lambda: "stalled" in query.status, 60, "the news")
            time.sleep(0.5)
            there = published()
            assert "cannot write" in query.status["message"]
            time.sleep(outage_s)
            assert published() == there
            assert query.isActive
        wait_until(lambda: published() > there, 60, "epochs after the outage")
        assert query.awaitTermination(120)
        assert {info["host"]: info["pid"] for info in query.hosts} == {
            number: process.pid for number, process in processes.items() if number
        }
        assert query.recoveries == []
    finally:
        query.stop()
    assert tables.check().equal
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 0
