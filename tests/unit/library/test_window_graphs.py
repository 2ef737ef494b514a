"""Components of sliding windows, in threads and under kills."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.errors import SchemaError, SettingsError
from penstock.library.window_graphs import window_components

EDGE = pa.schema({"src": pa.int64(), "dst": pa.int64(), "at": pa.timestamp("us")})


def test_senseless_windows_and_edges_are_refused() -> None:
    flow = Flow("refused")
    made = flow.memory(EDGE)
    with pytest.raises(SettingsError, match="multiple of its slide"):
        window_components(made, "3 seconds", "2 seconds")
    with pytest.raises(SchemaError, match="two int64 columns"):
        window_components(made.select("src", "at"), "3 seconds", "1 second")
