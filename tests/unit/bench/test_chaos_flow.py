"""The flow for chaos, left in peace: its tables are right, and its check notices if not."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.bench.chaos_flow import ChaosFlow, Outcome
from penstock.demos.ysb import Ysb
from penstock.testing.local import start_local
from penstock.testing.processes import wait_until

RATE, SECONDS = 2_000, 1.5


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> ChaosFlow:
    """The flow after a run, with a few probes."""
    flow = ChaosFlow(RATE, SECONDS, Ysb.soon(0.2), tmp_path_factory.mktemp("chaos"))
    query = start_local(flow.flow, hosts=2, parallelism=2, linger="50 ms")
    flow.probe.start()
    wait_until(lambda: flow.probe.sent - flow.probe.missing >= 20, 20, "probes")
    flow.close()
    assert query.awaitTermination(30)
    flow.probe.join(5)
    query.stop()
    return flow


@pytest.fixture
def copied(ran: ChaosFlow, tmp_path: Path) -> ChaosFlow:
    """The same tables, to be broken."""
    shutil.copytree(ran.folder, tmp_path / "copy")
    broken = ChaosFlow(RATE, SECONDS, Ysb.soon(0), tmp_path / "copy")
    broken.events = ran.events
    return broken


def a_file(flow: ChaosFlow, table: str) -> Path:
    return next(iter(sorted((flow.folder / table).glob("epoch=*/*.parquet"))))


def test_every_probe_comes_back_and_every_table_is_right(ran: ChaosFlow) -> None:
    assert ran.probe.missing == 0
    outcome = ran.check()
    assert outcome.equal
    assert outcome.rows > ran.rows


@pytest.mark.parametrize("table", ["counts", "numbers", "steps"])
def test_a_missing_file_is_noticed(copied: ChaosFlow, table: str) -> None:
    path = a_file(copied, table)
    rows = pq.read_metadata(path).num_rows
    path.unlink()
    outcome = copied.check()
    assert outcome.lost >= rows
    assert not outcome.equal


@pytest.mark.parametrize("table", ["counts", "numbers", "steps"])
def test_a_doubled_file_is_noticed(copied: ChaosFlow, table: str) -> None:
    path = a_file(copied, table)
    rows = pq.read_metadata(path).num_rows
    shutil.copy(path, path.with_name("again.parquet"))
    outcome = copied.check()
    assert outcome.duplicated >= rows
    assert not outcome.equal


def test_rows_numbered_in_another_order_are_noticed(copied: ChaosFlow) -> None:
    path = a_file(copied, "numbers")
    table = pq.read_table(path)
    owner = table["owner"][0]
    mine = table.filter(pq.read_table(path)["owner"].to_numpy() == owner.as_py())
    rest = table.filter(pq.read_table(path)["owner"].to_numpy() != owner.as_py())
    ids = mine["id"].to_pylist()[::-1]
    turned = mine.set_column(mine.schema.get_field_index("id"), "id", [ids])
    pq.write_table(rest, path)
    pq.write_table(turned, path.with_name("turned.parquet"))
    outcome = copied.check()
    assert (outcome.lost, outcome.duplicated) == (0, 0)
    assert outcome.disordered > 0


def test_an_outcome_is_equal_only_if_nothing_is_wrong() -> None:
    assert Outcome(5, 0, 0, 0).equal
    assert not Outcome(5, 1, 0, 0).equal
    assert not Outcome(5, 0, 1, 0).equal
    assert not Outcome(5, 0, 0, 1).equal
