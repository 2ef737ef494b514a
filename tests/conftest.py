"""What all the tests share: the one Spark session that a process can have, handed round."""

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession


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
