"""A DataFrame job and a flow in one session: a host is killed while the job runs."""

from typing import Any

import pytest

from penstock.bench.beside import HOSTS, SPARE_SLOTS, beside
from penstock.engine.spark.session import local_session


def test_a_host_that_dies_while_a_job_runs_is_replaced(session_slot: Any, at_length: bool) -> None:
    if not at_length:
        pytest.skip("takes minutes: PENSTOCK_LONG=1")
    master = f"local[{HOSTS + 1 + SPARE_SLOTS}]"
    spark = session_slot.use("beside", lambda: local_session("penstock-tests", master=master))
    result = beside(spark, rounds=5)
    assert result["recovery_s"]["p50"] < 1
    assert result["ratio"] < 1.2
