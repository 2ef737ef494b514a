"""What all the tests share: the one Spark session that a process can have, handed round."""

from collections.abc import Callable, Iterator
from itertools import chain, zip_longest
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

TESTS = Path(__file__).parent
ON_SPARK = ("cluster", "docs", "chaos", "spark")
LONG = ("unit/engine", "simulation", "property")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each process whole files, and all that needs the cluster to one of them.

    What waits for Spark takes turns with what computes, and what is short comes last: so the
    processes neither all wait nor all compute, and end together.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        group = "cluster" if _is_in(item, ("cluster",)) else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
        groups.setdefault(group, []).append(item)
    on_spark = [found for found in groups.values() if _is_in(found[0], ON_SPARK)]
    on_spark.sort(key=lambda found: [_is_in(found[0], (name,)) for name in ON_SPARK], reverse=True)
    long = [found for found in groups.values() if _is_in(found[0], LONG)]
    short = [found for found in groups.values() if not _is_in(found[0], (*ON_SPARK, *LONG))]
    turns = zip_longest(on_spark, long[::2], long[1::2], fillvalue=[])
    items[:] = chain.from_iterable([*chain.from_iterable(turns), *short])


def _is_in(item: pytest.Item, folders: tuple[str, ...]) -> bool:
    return any(item.path.is_relative_to(TESTS / folder) for folder in folders)


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
