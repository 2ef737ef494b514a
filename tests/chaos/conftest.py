"""Marks, and how long the tests here torture a flow: PENSTOCK_LONG=1 for the full time."""

import os
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.engine.spark.session import local_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = __file__.rpartition("/")[0] + "/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.chaos)


@pytest.fixture
def spark(session_slot: Any) -> SparkSession:
    """The same session that the tests in ``tests/spark`` use."""
    return session_slot.use("local", lambda: local_session("penstock-tests", master="local[6]"))


@pytest.fixture
def at_length() -> bool:
    """Whether to take the time that the promises speak of, rather than enough to see them kept."""
    return os.environ.get("PENSTOCK_LONG", "") == "1"
