"""The flow that is planned and killed: its totals are exact, and would show if they were not."""

import numpy as np
import pytest

from penstock.bench.plan_live_flow import (
    BUCKETS,
    KEYS,
    StageSettings,
    computed,
    documents,
    keys_of,
    ranks,
    wrong_totals,
)


def test_a_row_too_many_or_too_few_is_found() -> None:
    stages = (StageSettings("one", 2, 80, widens=False),)
    ids = np.arange(1000)
    keys = keys_of(ids)
    assert 0 <= keys.min() <= keys.max() < KEYS
    values = ids + computed(keys, 0, 2) + ranks(keys)
    found = {
        bucket: (int((keys % BUCKETS == bucket).sum()), int(values[keys % BUCKETS == bucket].sum()))
        for bucket in range(BUCKETS)
    }
    assert wrong_totals(found, stages) == []
    count, total = found[3]
    assert len(wrong_totals({**found, 3: (count, total + 1)}, stages)) == 1
    assert wrong_totals({**found, 3: (count - 1, total)}, stages)


@pytest.mark.parametrize("width", [8, 9, 64])
def test_documents_are_made_again_alike(width: int) -> None:
    whole = documents(np.arange(10), width)
    assert whole.type.byte_width == -(-width // 8) * 8
    assert documents(np.arange(5, 10), width).equals(whole[5:])
