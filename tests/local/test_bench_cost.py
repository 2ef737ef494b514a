"""The flows of ``penstock bench cost``: their sums are right, and what is wrong is found."""

import pyarrow as pa
import pytest

from penstock.bench import cost as bench
from penstock.bench.cost import FLOWS, cost
from penstock.errors import TransientError
from penstock.testing.local import start_local


@pytest.mark.parametrize("name", FLOWS)
def test_each_flow_runs_and_is_checked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "WARM_S", 0.5)
    found = cost(lambda flow: start_local(flow, hosts=2), name, rate=2000, hosts=2, seconds=3)
    assert found["windows_checked"] >= 1
    # Hosts are threads here.  What else runs below this process is another test's session.
    others = found["cores_jvm"] + found["cores_hosts"]
    assert 0 < found["cores_driver"] == pytest.approx(found["cores"] - others, abs=0.01)


def test_at_rest_nothing_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "WARM_S", 0.1)
    found = cost(lambda flow: start_local(flow, hosts=1), "sum", rate=0, hosts=1, seconds=0.5)
    assert found["us_per_row"] is None
    assert found["windows_checked"] == 0


def sums(totals: list[int]) -> pa.Table:
    start = pa.array([0] * len(totals), pa.timestamp("us", "UTC"))
    window = pa.StructArray.from_arrays([start, start], names=["start", "end"])
    return pa.table({"window": window, "k": list(range(len(totals))), "total": totals})


def test_a_wrong_sum_is_found() -> None:
    assert bench._check("sum", sums([0, 1, 2, 3]), rate=4) == 1
    assert bench._check("sum", sums([0, 1, 2]), rate=4) == 0  # not whole
    with pytest.raises(AssertionError, match="window 0"):
        bench._check("sum", sums([0, 1, 2, 4]), rate=4)


def test_a_rate_that_is_not_held_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "WARM_S", 0.0)
    monkeypatch.setattr(bench, "_check", lambda *args: 0)
    with pytest.raises(TransientError, match="rate was not held"):
        cost(lambda flow: start_local(flow, hosts=1), "sum", rate=10, hosts=1, seconds=2)
