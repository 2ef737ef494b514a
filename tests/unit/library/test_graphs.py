"""Connected components and shortest paths of growing graphs against computations from scratch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock import Flow
from penstock.errors import SchemaError
from penstock.library.adjacency import Adjacency, Slots
from penstock.library.graphs import connected_components, shortest_paths


def test_wrong_columns_are_refused() -> None:
    stream = Flow("wrong").memory(pa.schema({"a": pa.int64(), "b": pa.string()}))
    with pytest.raises(SchemaError, match="edges need 2 columns"):
        connected_components(stream)
    with pytest.raises(SchemaError, match="edges need 3 columns"):
        shortest_paths(stream, 0)


@pytest.mark.parametrize("seed", range(5))
def test_adjacency_finds_what_was_added_in_any_parts(seed: int) -> None:
    generator = np.random.default_rng(seed)
    edges, wanted = Adjacency(), []
    for _ in range(20):
        size = int(generator.integers(0, 50))
        slots, targets = generator.integers(0, 500, size), generator.integers(0, 9, size)
        edges.add(slots, targets, targets * 0.5)
        wanted += list(zip(slots.tolist(), targets.tolist(), strict=True))
    asked = np.unique(generator.integers(0, 600, 200))
    which, found, weights = edges.of(asked)
    assert weights is not None
    assert (weights == found * 0.5).all()
    got = sorted(zip(asked[which].tolist(), found.tolist(), strict=True))
    assert got == sorted(edge for edge in wanted if edge[0] in set(asked.tolist()))
    assert len(edges) == len(wanted)


def test_slots_number_ids_once() -> None:
    generator = np.random.default_rng(1)
    slots, known = Slots(), {}
    for _ in range(30):
        ids = generator.integers(-(2**62), 2**62, 7) if _ % 2 else generator.integers(0, 50, 20)
        numbers, new = slots.add(ids)
        before = len(known)
        for one, number in zip(ids.tolist(), numbers.tolist(), strict=True):
            assert known.setdefault(one, number) == number
        assert len(known) - before == new
        assert slots.ids[numbers].tolist() == ids.tolist()
    assert slots.find(np.array([-1])).tolist() == [-1]
