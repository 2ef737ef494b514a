"""Replicas are killed, and a host that has followed their states takes over."""

from pyspark.sql import SparkSession

from penstock.bench.takeover import TakeoverSettings, take_over
from penstock.core.delivery.guarantees import Guarantee


def test_a_host_that_stands_by_takes_over_and_every_key_is_right(
    spark: SparkSession, at_length: bool
) -> None:
    guarantees = tuple(Guarantee) if at_length else ()
    kills = 20 if at_length else 2
    result = take_over(spark, TakeoverSettings(kills, state_mb=3, guarantees=guarantees))
    assert result["kills"] == kills
    assert result["followed"] >= kills / 2
    assert result["equal"], result
    assert result["takeover_ms"]["max"] > 0
