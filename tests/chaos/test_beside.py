"""A DataFrame job and a flow in one session: a host is killed while the job runs."""

from typing import Any

from penstock.bench.beside import HOSTS, SPARE_SLOTS, beside
from penstock.engine.spark.session import local_session


def test_a_host_that_dies_while_a_job_runs_is_replaced(session_slot: Any, at_length: bool) -> None:
    master = f"local[{HOSTS + 1 + SPARE_SLOTS}]"
    spark = session_slot.use("beside", lambda: local_session("penstock-tests", master=master))
    rounds, rows = (5, 200_000_000) if at_length else (1, 5_000_000)
    result = beside(spark, rounds, rows)
    assert result["job_alone_s"] > 0
    assert result["ratio"] > 0
    assert 0 < result["recovery_s"]["p50"] <= result["recovery_s"]["max"] < 60
    if at_length:
        assert result["recovery_s"]["p50"] < 1
        assert result["ratio"] < 1.2
