"""What a heartbeat says of a node: one value per node, however it survives failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["CausalFigures", "NodeFigures", "ReplicaFigures"]


class CausalFigures(NamedTuple):
    """A node under causal recovery: its log, its checkpoints and what they cost."""

    replaying: bool = False
    logged: bool = False
    """Whether it keeps a log of what it sent."""
    log_bytes: int = 0
    log_memory_bytes: int = 0
    """The part of the log that is in memory."""
    checkpoint_epoch: int = -1
    """The epoch of its newest durable checkpoint."""
    diff_bytes: float = 0.0
    """Mean size of the diffs that were measured."""
    diffs_measured: int = 0
    bytes_in: int = 0
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    checkpoint_s: float = 0.0
    snapshot_ns: int = 0
    """Time that the node itself spent on checkpoints; it is part of ``cpu_ns``."""


class ReplicaFigures(NamedTuple):
    """A role: what its replicas keep and exchange for it."""

    kept_parcels: int = 0
    replica_bytes: int = 0


class NodeFigures(NamedTuple):
    """The counts of one incarnation of a node since it started."""

    rows_in: int = 0
    rows_out: int = 0
    batches_in: int = 0
    messages_out: int = 0
    """Counted for nodes under causal recovery and for roles."""
    busy_ns: int = 0
    cpu_ns: int = 0
    epoch: int = -1
    """The last epoch that is complete at the node."""
    queued: int = 0
    queued_bytes: int = 0
    latency_us: int | None = None
    """Of the last epoch: from the cut at its source to its completion here."""
    watermark_us: int | None = None
    loop_counters: tuple[int, ...] = ()
    """Where its newest time is in the loops around it, outermost first."""
    counters: Mapping[str, int] = {}
    """What its stages count for themselves."""
    incarnation: int = 0
    causal: CausalFigures | None = None
    replica: ReplicaFigures | None = None
