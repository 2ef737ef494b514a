"""The control channel of a running flow, asked from outside."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.engine.driver import command_channel as control
from penstock.engine.driver.command_channel import call, find_driver
from penstock.errors import SettingsError
from penstock.testing.local import LocalQuery, start_local
from penstock.testing.processes import wait_until

SCHEMA = pa.schema({"n": pa.int64()})


@pytest.fixture
def query(tmp_path: Path) -> Iterator[LocalQuery]:
    flow = Flow("numbers")
    flow.memory(SCHEMA).keyBy("n", shards=2).name("keyed").memory(name="kept")
    running = start_local(flow, epochInterval="10 ms", checkpointLocation=str(tmp_path / "store"))
    yield running
    running.stop()
    assert running.awaitTermination(20)


def test_a_running_flow_is_found_by_its_store_and_asked(query: LocalQuery, tmp_path: Path) -> None:
    driver = find_driver(tmp_path / "store")
    assert (driver.pid, driver.flow) == (os.getpid(), "numbers")
    status = call(driver, "status")
    assert (status["name"], status["message"]) == ("numbers", "running")
    assert len(call(driver, "nodes")) == len(query.nodes())
    assert call(driver, "kill", node="keyed[1]")["name"] == "keyed[1]"
    wait_until(lambda: call(driver, "recoveries"), 20, "the recovery")
    with pytest.raises(SettingsError, match="argument 'node' is missing"):
        call(driver, "kill")
    with pytest.raises(SettingsError, match="no argument 'stage'"):
        call(driver, "kill", node="keyed[1]", stage="keyed")


def test_the_channel_closes_with_the_flow(query: LocalQuery, tmp_path: Path) -> None:
    store = tmp_path / "store"
    driver = find_driver(store)
    mode = stat.S_IMODE((store / control.DRIVER_FILE).stat().st_mode)
    assert mode == 0o600
    call(driver, "stop")
    assert query.awaitTermination(20)
    assert not Path(driver.socket).exists()
    with pytest.raises(SettingsError, match="is not running"):
        call(driver, "status")
    with pytest.raises(SettingsError, match="no flow runs with the store"):
        find_driver(store)


def test_a_flow_without_a_store_is_found_by_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # Others of this process's flows may not have ended yet.
    folder = tempfile.TemporaryDirectory(prefix="penstock-test-")
    monkeypatch.setattr(control, "runtime_folder", lambda: Path(folder.name))
    flow = Flow("unstored")
    flow.memory(SCHEMA).memory(name="kept")
    query = start_local(flow, epochInterval="10 ms")
    try:
        assert query._control is not None
        found = find_driver(os.getpid())
        assert call(found, "status")["name"] == "unstored"
    finally:
        query.stop()
    assert query.awaitTermination(20)
    with pytest.raises(SettingsError, match="drives no flow"):
        find_driver(str(os.getpid()))
    folder.cleanup()
