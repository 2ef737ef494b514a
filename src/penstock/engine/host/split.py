"""How what leaves a chain over a link is divided among the nodes at its far end."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from penstock.errors import InvariantError
from penstock.operators.base import Broadcast, Forward, Hash
from penstock.planning.physical import Link, PhysicalPlan
from penstock.wire.hashing import split_by_shard

__all__ = ["Part", "Splitter", "splitter_of"]

Part = tuple[int, pa.RecordBatch, int]
"""Target node, rows, size in bytes."""
Splitter = Callable[[pa.RecordBatch], list[Part]]


def splitter_of(plan: PhysicalPlan, link: Link, node: int) -> Splitter:
    """How a link divides a batch among its targets."""
    targets = plan.targets(link, node)
    exchange = link.exchange
    if isinstance(exchange, Hash) and len(targets) > 1:
        columns, shards, first = exchange.columns, len(targets), targets[0]

        def by_hash(batch: pa.RecordBatch) -> list[Part]:
            parts = split_by_shard(batch, columns, shards)
            return [
                (first + shard, part, part.nbytes)
                for shard, part in enumerate(parts)
                if part is not None and part.num_rows
            ]

        return by_hash
    if isinstance(exchange, Broadcast):
        return lambda batch: [(target, batch, batch.nbytes) for target in targets]
    if isinstance(exchange, Forward) or len(targets) == 1:
        only = targets[0]
        return lambda batch: [(only, batch, batch.nbytes)]
    raise InvariantError(f"link {link.index}: {len(targets)} targets behind {exchange}")
