"""What goes wrong in the driver itself ends the flow, with that error."""

from pathlib import Path

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.engine.store.flow_store import FlowStore
from penstock.errors import InvariantError, PenstockError
from penstock.testing.local import start_local

WAIT_S = 60.0


def numbers(offset: int, n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(range(offset, offset + n))})


def test_a_controller_that_breaks_ends_the_flow_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error where none is expected must not leave a flow that seems to run."""
    flow = Flow("broken")
    flow.generate(numbers, rate=100).memory()
    query = start_local(flow, hosts=2)

    def broken(timeout_s: float) -> None:
        raise RuntimeError("nobody expected this")

    monkeypatch.setattr(query._controller.events, "get", broken)
    with pytest.raises(InvariantError, match="nobody expected this"):
        query.awaitTermination(WAIT_S)
    assert not query.isActive
    query.stop()
    assert query.join()


def test_a_store_that_cannot_be_closed_is_the_error_of_the_flow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = FlowStore.close

    def broken(store: FlowStore) -> None:
        close(store)
        raise OSError("the disk is gone")

    monkeypatch.setattr(FlowStore, "close", broken)
    flow = Flow("unclosed")
    flow.generate(numbers, rate=100).memory()
    query = start_local(flow, checkpointLocation=str(tmp_path / "checkpoint"))
    query.stop()
    with pytest.raises(PenstockError, match="the disk is gone"):
        query.awaitTermination(WAIT_S)
    assert not query.isActive
