"""Run an operator over epochs in as many ways as an engine could: nothing may change.

Rows of an epoch are shuffled, cut into batches, spread over shards by key, and fed in any order,
batches of the next epoch ahead of time included; with or without the operator's combiner.  A right
operator gives the same rows every time.  See ``tests/property`` for its use.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.operators.base import Operator
from penstock.operators.combine import CombineOperator
from penstock.testing.harness import Harness

__all__ = ["ScatterOutcome", "scattered", "wire_bytes"]

END = (1 << 62) - 1
"""A watermark past everything."""


@dataclass(frozen=True)
class ScatterOutcome:
    """What an operator sent, by port and epoch, and what it counted, over all shards."""

    tables: dict[tuple[int, int], list[pa.RecordBatch]]
    counters: dict[str, int]

    def rows(self, port: int = 0) -> list[tuple[int, list[dict[str, object]]]]:
        """Per epoch the rows of a port, shards one after the other."""
        return [
            (epoch, [row for batch in batches for row in batch.to_pylist()])
            for (where, epoch), batches in sorted(self.tables.items())
            if where == port
        ]


def scattered(
    operator: Operator,
    epochs: Sequence[Sequence[pa.Table | None]],
    watermarks: Sequence[int | None],
    *,
    seed: int = 0,
    shards: int = 1,
    key: Callable[[dict[str, object]], int] = lambda row: 0,
    combined: bool = False,
    restart_after: int | None = None,
) -> ScatterOutcome:
    """Run ``epochs`` (a table per input port each) through an operator; then end the input.

    ``key`` says which rows belong together; ``restart_after`` an epoch after which every vertex is
    replaced by a new one that is restored from a snapshot.
    """
    chance = random.Random(seed)
    before = None
    if combined:
        split = operator.combiner(frozenset({0}))
        if split is not None and isinstance(split[0], CombineOperator):
            before, operator = split[0].kernel(), split[1]
    nodes = [Harness(operator, shard=shard, shards=shards) for shard in range(shards)]
    messages = [_messages(epoch, inputs, chance) for epoch, inputs in enumerate(epochs)]
    for epoch in range(len(epochs)):
        if epoch + 1 < len(epochs) and restart_after is None:
            # A restart loses what came ahead of time: its sender would send it again.
            early = chance.randint(0, len(messages[epoch + 1]))
            messages[epoch] += messages[epoch + 1][:early]
            del messages[epoch + 1][:early]
        chance.shuffle(messages[epoch])
        for at, port, batch in messages[epoch]:
            for shard, node in enumerate(nodes):
                part = _part(batch, shard, shards, key)
                if part.num_rows:
                    node.recv(before(part) if before else part, at, port)
        for node in nodes:
            node.complete(epoch, watermarks[epoch])
        if epoch == restart_after:
            nodes = [node.restarted(operator) for node in nodes]
    for node in nodes:
        node.complete(len(epochs), END)
        node.complete(len(epochs) + 1)
        if node.asked:
            raise AssertionError(f"still waiting for {node.asked} after the end of the input")
    outcome = ScatterOutcome({}, {})
    for node in nodes:
        for port, time, batch in node.sent:
            outcome.tables.setdefault((port, time.epoch), []).append(batch)
        for name, value in node.counters.items():
            outcome.counters[name] = outcome.counters.get(name, 0) + value
    return outcome


def wire_bytes(outcome: ScatterOutcome) -> dict[tuple[int, int], list[bytes]]:
    """The outputs as they would go over the wire: equal means equal to the byte."""
    return {
        place: [batch.serialize().to_pybytes() for batch in batches]
        for place, batches in sorted(outcome.tables.items())
    }


def _messages(
    epoch: int, inputs: Sequence[pa.Table | None], chance: random.Random
) -> list[tuple[int, int, pa.RecordBatch]]:
    out = []
    for port, table in enumerate(inputs):
        if table is None or not table.num_rows:
            continue
        order = list(range(table.num_rows))
        chance.shuffle(order)
        while order:
            size = chance.randint(1, len(order))
            taken, order = order[:size], order[size:]
            (batch,) = table.take(taken).combine_chunks().to_batches()
            out.append((epoch, port, batch))
    return out


def _part(
    batch: pa.RecordBatch, shard: int, shards: int, key: Callable[[dict[str, object]], int]
) -> pa.RecordBatch:
    if shards == 1:
        return batch
    mine = [i for i, row in enumerate(batch.to_pylist()) if key(row) % shards == shard]
    return batch.take(pa.array(mine, pa.int64()))
