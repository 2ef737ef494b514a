"""What all the tests share: the one Spark session that a process can have, handed round."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from xdist.scheduler import LoadFileScheduling

WITH_SPARK = ("tests/chaos/", "tests/cluster/", "tests/docs/", "tests/spark/")


class OneForSpark(LoadFileScheduling):
    """Files go to processes as wholes, and all that use Spark to one of them.

    Two with sessions, hosts and clusters of their own would be in each other's way.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "Spark" if nodeid.startswith(WITH_SPARK) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneForSpark:
    return OneForSpark(config, log)


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
