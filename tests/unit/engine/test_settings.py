"""Settings of a run: taken as they are, or refused with the reason."""

from datetime import timedelta
from typing import Any

import pytest

from penstock.durations import duration_us
from penstock.engine.host.clock import EpochClock
from penstock.engine.settings import RunSettings
from penstock.errors import SettingsError


def test_without_options_there_are_defaults() -> None:
    settings = RunSettings.checked({})
    assert settings.us("epochInterval") == 100_000
    assert settings.s("lease") > 1


def test_durations_are_read_in_every_form() -> None:
    for value in ("50 ms", 0.05, timedelta(milliseconds=50)):
        assert RunSettings.checked({"epochInterval": value}).us("epochInterval") == 50_000


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("hosts", 0),
        ("hosts", "two"),
        ("hosts", True),
        ("hosts", 1.5),
        ("parallelism", -1),
        ("windowBytes", 0),
        ("windowBytes", "large"),
        ("rowsMax", None),
        ("rowsMax", 0),
        ("availableNow", "yes"),
        ("epochInterval", 0),
        ("epochInterval", "soon"),
        ("epochInterval", None),
        ("drainTimeout", timedelta(seconds=-1)),
        ("drainTimeout", -1),
        ("hostTimeout", float("nan")),
        ("startTimeout", float("inf")),
        ("lease", "1 parsec"),
        ("progressInterval", [1]),
        ("progress", "guessed"),
    ],
)
def test_a_senseless_value_is_refused_and_the_option_named(option: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=option):
        RunSettings.checked({option: value})


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="no option 'host'; the options are hosts, "):
        RunSettings.checked({"host": 2})


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("5 seconds", 5_000_000),
        ("1 minute 30 seconds", 90_000_000),
        ("100ms", 100_000),
        ("1.5 h", 5_400_000_000),
        ("INTERVAL 2 days", 172_800_000_000),
        (" 3 us ", 3),
    ],
)
def test_durations_are_read_as_pyspark_writes_them(text: str, us: int) -> None:
    assert duration_us(text) == us


@pytest.mark.parametrize("text", ["", "5", "seconds", "5 fortnights", "5 seconds and more", "-1 s"])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(SettingsError, match="within"):
        duration_us(text, "within")


# -- the epoch clock -------------------------------------------------------------------------------


def test_epochs_tick_half_an_interval_beside_round_times() -> None:
    clock = EpochClock.starting(base=3, now=1_000_000_123, interval_us=1000)
    assert clock.epoch(1_000_000_123) == 3
    assert clock.epoch(1_000_000_499) == 3
    assert clock.epoch(1_000_000_500) == 4
    assert clock.epoch(1_000_001_500) == 5


def test_a_clock_that_was_set_back_does_not_go_before_the_first_epoch() -> None:
    clock = EpochClock.starting(base=3, now=1_000_000_123, interval_us=1000)
    assert clock.epoch(0) == 3


def test_the_wait_ends_with_the_epoch() -> None:
    clock = EpochClock.starting(base=3, now=1_000_000_500, interval_us=1000)
    assert clock.wait_s(1_000_000_700, 3) == pytest.approx(0.0008)
    assert clock.wait_s(1_000_000_700, 4) == pytest.approx(0.0018)
    assert clock.wait_s(1_000_009_000, 3) == 0
