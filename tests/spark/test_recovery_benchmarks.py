"""Small forms of the benchmarks that run with recovery on."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.bench.overhead import PROBES_MIN, events_per_s, propagation_ms, soak
from penstock.bench.ysb import run_once

pytestmark = pytest.mark.usefixtures("measure_briefly")


def test_epochs_are_published_exactly_once_and_seen_to_be(spark: SparkSession) -> None:
    check = run_once(spark, 200_000, 2, exactly_once=True)
    assert (check.lost, check.duplicated) == (0, 0)
    assert check.events == 400_000
    assert len(check.response_ms) >= 100
    assert min(check.response_ms) > 0


@pytest.mark.parametrize("kind", ["none", "references", "copies"])
def test_throughput_is_measured_with_every_count_right(spark: SparkSession, kind: str) -> None:
    assert events_per_s(spark, 1_000_000, kind) > 0


@pytest.mark.parametrize("kind", ["none", "references"])
def test_propagation_is_that_of_probes(spark: SparkSession, kind: str) -> None:
    took = propagation_ms(spark, kind, 0.5)
    assert len(took) >= PROBES_MIN
    assert all(each > 0 for each in took)


def test_logs_stay_within_their_budget(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.bench.overhead.SOAK_RATE", 100_000)
    figures: dict[str, Any] = soak(spark, 2.5)
    assert 0 < figures["log_memory_bytes_max"] <= figures["log_bytes_max"]
    assert figures["log_memory_bytes_max"] <= figures["log_budget_bytes"]
