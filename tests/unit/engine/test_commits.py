"""How far each sink has got, as a driver that starts again finds it."""

from pathlib import Path

import pytest

from penstock.core.progress.marks import EPOCH_END
from penstock.engine.driver.commits import Commits
from penstock.engine.store.flow_store import FlowStore


@pytest.fixture
def store(tmp_path: Path) -> FlowStore:
    return FlowStore(tmp_path)


def test_a_sink_goes_on_where_it_was_though_another_was_slower(store: FlowStore) -> None:
    before = Commits(store, ["slow", "fast"], -1, None)
    before.add("slow", 3)
    before.add("fast", 12)
    after = Commits(store, ["slow", "fast"], 3, None)
    assert after.last("slow", 3) == 3
    assert after.last("fast", 3) == 12
    assert after.last("fast", 15) == 15


def test_the_end_of_an_earlier_run_is_no_epoch_to_go_on_from(store: FlowStore) -> None:
    Commits(store, ["sink"], -1, None).add("sink", EPOCH_END)
    assert Commits(store, ["sink"], 7, None).last("sink", 7) == 7


def test_without_a_store_what_is_complete_counts() -> None:
    assert Commits(None, ["sink"], -1, None).last("sink", 4) == 4
