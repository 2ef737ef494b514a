"""The flow for chaos, left in peace: its tables are right, and its check notices if not."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.bench.chaos_flow import ChaosFlow, ChaosOutcome
from penstock.testing.local import start_local
from penstock.testing.processes import wait_until

RATE, SECONDS = 2_000, 1.5


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> ChaosFlow:
    """The flow after a run, with a few probes."""
    flow = ChaosFlow(RATE, SECONDS, tmp_path_factory.mktemp("chaos"))
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
    broken = ChaosFlow(RATE, SECONDS, tmp_path / "copy")
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
    files = sorted((copied.folder / "numbers").glob("epoch=*/*.parquet"))
    table = pa.concat_tables(pq.read_table(file, partitioning=None) for file in files)
    mine = pc.equal(table["owner"], 7)
    owned = table.filter(mine)
    turned = owned.set_column(owned.schema.names.index("id"), "id", owned["id"][::-1])
    for file in files[1:]:
        file.unlink()
    pq.write_table(pa.concat_tables([table.filter(pc.invert(mine)), turned]), files[0])
    outcome = copied.check()
    assert (outcome.lost, outcome.duplicated) == (0, 0)
    assert outcome.disordered > 0


def test_an_outcome_is_equal_only_if_nothing_is_wrong() -> None:
    assert ChaosOutcome(5, 0, 0, 0).equal
    assert not ChaosOutcome(5, 1, 0, 0).equal
    assert not ChaosOutcome(5, 0, 1, 0).equal
    assert not ChaosOutcome(5, 0, 0, 1).equal
