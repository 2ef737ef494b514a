"""Flows described in a TOML file: operators, sources, sinks, replicas, routing, guarantees.

topology = load_topology("words.toml")
query = topology.flow.start(spark, **topology.options)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.api.flow import Flow
from penstock.topology.build import FlowBuilder
from penstock.topology.check import check
from penstock.topology.document import read_document
from penstock.topology.regime import regime_of

__all__ = ["Topology", "load_topology"]


@dataclass(frozen=True)
class Topology:
    """What a file describes."""

    flow: Flow
    options: dict[str, Any]
    """For ``flow.start``: those of ``[run]``, and the guarantee."""
    conf: dict[str, str]
    """Spark's configuration, from ``[spark]``."""


def load_topology(path: str | Path) -> Topology:
    """Read, check and build; a :class:`TopologyError` says what is wrong, with line and column."""
    document = read_document(path)
    check(document)
    builder = FlowBuilder(document)
    flow = builder.build()
    flow.modules += builder.modules
    data = document.data
    options = dict(data.get("run", {}))
    if "checkpointLocation" in options:
        options["checkpointLocation"] = builder.path(options["checkpointLocation"])
    if "regime" in options:
        options["regime"] = regime_of(options["regime"])
    if "guarantee" in data:
        options["guarantee"] = data["guarantee"]
    return Topology(flow, options, dict(_flat("spark", data.get("spark", {}))))


def _flat(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        key = f"{prefix}.{name}"
        if isinstance(value, dict):
            yield from _flat(key, value)
        else:
            yield key, str(value).lower() if isinstance(value, bool) else str(value)
