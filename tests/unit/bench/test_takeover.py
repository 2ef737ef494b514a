"""The flow of ``penstock chaos --takeover``, in threads: what its sink holds after kills."""

import numpy as np
import pyarrow as pa
import pytest

from penstock.bench.takeover_flow import TakeoverFlow


@pytest.mark.parametrize("fresh", [False, True])
def test_a_row_that_is_missing_or_too_many_is_counted(fresh: bool) -> None:
    flow = TakeoverFlow(state_bytes=0, rate=1_000, seed=3, fresh=fresh)
    keys = np.arange(5)
    flow._sent = [pa.record_batch({"key": keys, "value": keys})]
    whole = pa.table({"key": keys, "rows": np.ones(5, np.int64), "total": keys})
    flow._found = [whole]
    assert flow.check().equal
    flow._found = [whole.slice(1)]
    assert (flow.check().lost, flow.check().duplicated) == (1, 0)
    flow._found = [whole, whole.slice(2, 1)]
    assert (flow.check().lost, flow.check().duplicated) == (0, 1)
    flow._found = [whole, pa.table({"key": [3], "rows": [2], "total": [6]})]
    assert (flow.check().lost, flow.check().duplicated) == (0, 1)
