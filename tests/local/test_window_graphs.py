"""Components of sliding windows, in threads and under kills."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa

from penstock import Flow
from penstock.demos.adserving_check import components_of
from penstock.library.adjacency import scattered
from penstock.library.window_graphs import window_components
from penstock.testing.kills import run_killing

EDGE = pa.schema({"src": pa.int64(), "dst": pa.int64(), "at": pa.timestamp("us")})
VERTICES, ROWS, STEP_US = 120, 4_000, 5_000
WAIT_S = 60.0


def edges(offset: int, n: int) -> pa.RecordBatch:
    ends = scattered(2 * offset, 2 * n) % VERTICES
    at = np.arange(offset, offset + n) * STEP_US
    columns = [pa.array(ends[0::2]), pa.array(ends[1::2]), pa.array(at, EDGE.field("at").type)]
    return pa.record_batch(columns, schema=EDGE)


def test_the_components_of_every_window_are_right_when_the_loop_is_killed() -> None:
    flow = Flow("windows")
    made = flow.generate(edges, rate=2_000, rows=ROWS, shards=2, name="edges")
    found = window_components(made.withWatermark("at", 0), "3 seconds", "1 second", shards=2)
    results = found.memory(name="results")
    victims = ["components[1]", "components_windows[0]"]
    run_killing(flow, victims, epochs=10, standby=1, epochInterval="20 ms", timeout=WAIT_S)
    windows: dict[int, dict[int, int]] = defaultdict(dict)
    for row in results.toPylist():
        assert row["vertex"] not in windows[row["window"]], "a vertex given twice"
        windows[row["window"]][row["vertex"]] = row["component"]
    rows = edges(0, ROWS)
    src, dst = rows["src"].to_numpy(), rows["dst"].to_numpy()
    slides = np.arange(ROWS) * STEP_US // 1_000_000
    assert sorted(windows) == list(range(int(slides[-1]) + 3))
    for window, components in windows.items():
        inside = (slides > window - 3) & (slides <= window)
        assert components == components_of(src[inside], dst[inside]), window
