"""What all the tests share: the one Spark session that a process can have, handed round."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession
from xdist.scheduler import LoadFileScheduling

from penstock.bench import chaos, overhead, recovery, ysb
from penstock.engine.spark.session import local_session
from penstock.errors import SettingsError
from penstock.testing.kafka_broker import KafkaBroker

settings.register_profile("busy", deadline=None)  # machines are shared: no example is timed
settings.load_profile("busy")

os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).with_name("spark-conf")))

GROUPS = {
    "tests/cluster/": "cluster",
    "tests/docs/test_examples.py": "cluster",
    "tests/chaos/test_kill_nodes.py": "cluster",
    "tests/chaos/test_damage.py": "damage",
    "tests/chaos/test_random.py": "random",
    "tests/spark/": "spark",
    "tests/chaos/": "chaos",
    "tests/local/test_kafka": "kafka",
}
"""Tests that share a Spark session, or a Kafka broker, run in one process, one group in each.

One group needs a cluster or a roomy session, two an ordinary one; the rest needs none.  Sessions
wait most of the time, so there is a process for each of them, and one more, on two cores.
"""

FIRST = (*GROUPS, "tests/local/", "tests/docs/", "tests/simulation/", "tests/property/")
"""What takes longest begins first, so that the processes end together."""


class Grouped(LoadFileScheduling):
    """Gives a process all the tests that share a session, and otherwise whole files."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/docs/test_pages.py"):
            return nodeid  # each page is a program of its own
        group = next((group for name, group in GROUPS.items() if nodeid.startswith(name)), None)
        return group or super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Grouped:
    return Grouped(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        places = (place for place, name in enumerate(FIRST) if item.nodeid.startswith(name))
        return next(places, len(FIRST))

    items.sort(key=turn)


class SessionSlot:
    """Keeps the process's one session; makes another when a test wants another.

    Sessions take seconds to start, so the last one is kept for the next test that wants the same.
    """

    def __init__(self) -> None:
        self._key = ""
        self._session: SparkSession | None = None

    def use(self, key: str, make: Callable[[], SparkSession]) -> SparkSession:
        """The running session called ``key``, or a new one after any other was stopped."""
        if self._session is None or self._key != key or not _is_alive(self._session):
            self.clear()
            self._session, self._key = make(), key
        return self._session

    def clear(self) -> None:
        """Stop the session, if there is one: for tests that make their own."""
        if self._session is not None:
            self._session.stop()
            self._session = None


def _is_alive(session: SparkSession) -> bool:
    return session.sparkContext._jsc is not None


@pytest.fixture(scope="session")
def session_slot() -> Iterator[SessionSlot]:
    slot = SessionSlot()
    yield slot
    slot.clear()


BRIEF: dict[ModuleType, dict[str, float]] = {
    chaos: {"LEAD_S": 0.5, "NORMAL_S": 1.0, "PAUSE_S": 0.2},
    overhead: {"LEAD_S": 1.0, "WARM_S": 0.3},
    recovery: {"NORMAL_S": 1.0},
    ysb: {"LEAD_S": 1.0},
}
"""Seconds in which benchmarks let a flow warm up, and look at how it normally is.

Their figures need that.  What the tests ask of a benchmark, that its counts are right, does not.
"""


@pytest.fixture
def measure_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks come to the point at once."""
    for module, seconds in BRIEF.items():
        for name, value in seconds.items():
            monkeypatch.setattr(module, name, value)


@pytest.fixture
def roomy(session_slot: SessionSlot) -> SparkSession:
    """A session with slots for a host per node."""
    return session_slot.use("roomy", lambda: local_session("penstock-tests", hosts=8))


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """The process's one Kafka broker; without its jars, the tests that need it are left out."""
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    try:
        broker.start()
    except SettingsError as error:
        pytest.skip(str(error))
    yield broker
    broker.kill()
