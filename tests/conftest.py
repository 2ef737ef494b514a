"""What all the tests share: the one Spark session that a process can have, handed round."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from xdist.scheduler import LoadFileScheduling

from penstock.engine.spark.session import local_session

ON_SPARK = ("tests/cluster/", "tests/docs/", "tests/chaos/", "tests/spark/")
"""Folders of tests that need Spark, in the order in which they run."""


class OneForSpark(LoadFileScheduling):
    """Gives all that needs Spark to one process, and files that do not to the others.

    Sessions are kept from test to test that way, and never start side by side: that takes longer
    than one after the other.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith(ON_SPARK) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneForSpark:
    return OneForSpark(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs Spark takes longest, so it begins first; what is timed comes last."""
    turns = {folder: turn for turn, folder in enumerate((*ON_SPARK, "tests/", "src/"))}
    turns = {"tests/unit/engine/": len(turns), **turns}
    items.sort(
        key=lambda item: next((t for name, t in turns.items() if item.nodeid.startswith(name)), 0)
    )


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


@pytest.fixture
def roomy(session_slot: SessionSlot) -> SparkSession:
    """A session with slots for a host per node."""
    return session_slot.use("roomy", lambda: local_session("penstock-tests", hosts=8))
