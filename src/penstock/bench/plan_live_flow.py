"""The flow that ``penstock bench plan-live`` plans and kills, and what its result must be.

    rows -> widen1 -> narrow2 -> widen3 -> narrow4 -> … -> narrow8 -> totals -> (driver)

Every second stage adds a document of ``payload`` bytes to each row, and the next one takes it away
again: so inputs that are dear to log and inputs that are cheap take turns.  Stages differ in what a
row costs them and in how much state they keep, and each has an exchange before it.

A stage adds to the value of a row what it computes from the row's key, and how many rows of that
key it has seen before.  So a row that is lost, doubled or handled in another order, or a state that
is not what it was, shows in the totals; these are compared with the same sums made from the ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api import functions as F
from penstock.api.flow import Flow, Stream
from penstock.api.vertex import Time, Vertex
from penstock.connectors.memory import MemorySink

__all__ = ["STAGES", "PlanFlow", "StageSettings", "wrong_totals"]

KEYS = 4096
BUCKETS = 16
LANES = 256
"""Numbers that are mixed at once for each row: the unit of a stage's work."""
NARROW = pa.schema({"id": pa.int64(), "key": pa.int64(), "value": pa.int64()})
_MIX = np.uint64(11_400_714_819_323_198_485)

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StageSettings:
    """What one stage does."""

    name: str
    rounds: int
    """Its work for each row."""
    state_bytes: int
    widens: bool


def _stages() -> tuple[StageSettings, ...]:
    rounds = (48, 144, 24, 96, 72, 24, 192, 48)
    kilobytes = (4096, 1024, 8192, 1024, 2048, 4096, 1024, 2048)
    return tuple(
        StageSettings(
            f"{'narrow' if number % 2 else 'widen'}{number + 1}", r, kb << 10, number % 2 == 0
        )
        for number, (r, kb) in enumerate(zip(rounds, kilobytes, strict=True))
    )


STAGES = _stages()


def computed(keys: Integers, salt: int, rounds: int) -> Integers:
    """A number below 1000 for each key, after much mixing."""
    lanes = np.arange(LANES, dtype=np.uint64) + np.uint64(salt)
    mixed = (keys.astype(np.uint64)[:, None] + np.uint64(1)) * (lanes[None, :] | np.uint64(1))
    for _ in range(rounds):
        mixed *= _MIX
        mixed ^= mixed >> np.uint64(29)
    return (np.bitwise_xor.reduce(mixed, axis=1) % np.uint64(1000)).astype(np.int64)


def ranks(keys: Integers) -> Integers:
    """For each entry how many equal ones come before it.

    >>> ranks(np.array([3, 5, 3, 3, 5])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    within = np.arange(len(keys)) - np.repeat(starts, np.diff(np.r_[starts, len(keys)]))
    found = np.empty(len(keys), np.int64)
    found[order] = within
    return found


def keys_of(ids: Integers) -> Integers:
    """The key of each row."""
    return ((ids.astype(np.uint64) * _MIX) >> np.uint64(52)).astype(np.int64)


def rows(offset: int, n: int) -> pa.RecordBatch:
    """Rows by their ids."""
    ids = np.arange(offset, offset + n, dtype=np.int64)
    return pa.record_batch({"id": ids, "key": keys_of(ids), "value": ids}, schema=NARROW)


class HeavyStage(Vertex):
    """One stage: much work, a table of state, and rows that it makes wider or narrower."""

    orderSensitive = True

    def __init__(self, settings: StageSettings, number: int, width: int) -> None:
        self.settings = settings
        self.number = number
        self.width = width
        self.seen = np.zeros(KEYS, np.int64)
        self.table = np.zeros(max(1, settings.state_bytes // 8), np.int64)

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        """Count, compute, pass on."""
        ids, keys, values = (batch.column(name).to_numpy() for name in NARROW.names)
        made = values + computed(keys, self.number, self.settings.rounds)
        made += self.seen[keys] + ranks(keys)
        self.seen += np.bincount(keys, minlength=KEYS)
        np.add.at(self.table, ids % len(self.table), made)
        columns: dict[str, Any] = {"id": batch.column("id"), "key": batch.column("key")}
        columns["value"] = pa.array(made)
        if self.settings.widens:
            columns["document"] = documents(ids, self.width)
        self.sendBy(0, pa.record_batch(columns), time)

    def snapshot(self) -> Mapping[str, Any]:
        """Its tables, as Arrow data."""
        return {
            "seen": pa.table({"n": self.seen.copy()}),
            "table": pa.table({"n": self.table.copy()}),
        }

    def restore(self, state: Mapping[str, Any], time: Time) -> None:
        """Take them back."""
        self.seen = state["seen"].column("n").to_numpy().copy()
        self.table = state["table"].column("n").to_numpy().copy()


def documents(ids: Integers, width: int) -> pa.Array:
    """Bytes for each row, the same whenever they are made."""
    words = -(-width // 8)
    data = (ids.astype(np.uint64)[:, None] + np.arange(words, dtype=np.uint64)) * _MIX
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(words * 8), len(ids), [None, pa.py_buffer(np.ascontiguousarray(data))]
    )


class PlanFlow:
    """The flow, with documents of a given width."""

    def __init__(self, rate: float | None, width: int, rows_max: int | None = None) -> None:
        self.flow = Flow("plan_live")
        wide = NARROW.append(pa.field("document", pa.binary(-(-width // 8) * 8)))
        stream: Stream = self.flow.generate(
            rows, rate=rate, rows=rows_max, shards=1, schema=NARROW, name="rows"
        )
        for number, settings in enumerate(STAGES):
            (stream,) = self.flow.vertex(
                partial(HeavyStage, settings, number, width),
                [stream],
                [wide if settings.widens else NARROW],
                partitionBy=[["key"]],
                name=settings.name,
            )
        buckets = stream.withColumn("bucket", f"key % {BUCKETS}").groupBy("bucket")
        totals = buckets.agg(F.sum("value").alias("total"), F.count("*").alias("rows"))
        self.totals: MemorySink = totals.name("totals").memory()

    @property
    def hosts(self) -> int:
        """One for each stage, the source and the totals: so a kill hits one of them."""
        return len(STAGES) + 2

    def wrong(self) -> list[str]:
        """What is not as it must be in the totals that came last."""
        last: dict[int, tuple[int, int]] = {}
        for row in self.totals.toPylist():
            if row["rows"] >= last.get(row["bucket"], (0, 0))[0]:
                last[row["bucket"]] = (row["rows"], row["total"])
        return wrong_totals(last, STAGES)


def wrong_totals(
    found: Mapping[int, tuple[int, int]], stages: Sequence[StageSettings]
) -> list[str]:
    """Buckets whose count or sum is not that of the first rows, as many as there are in all."""
    ids = np.arange(sum(count for count, _ in found.values()), dtype=np.int64)
    keys = keys_of(ids)
    values = ids + len(stages) * ranks(keys)
    every = np.arange(KEYS, dtype=np.int64)
    for number, settings in enumerate(stages):
        parts = [computed(part, number, settings.rounds) for part in np.split(every, 16)]
        values = values + np.concatenate(parts)[keys]
    problems = []
    for bucket in range(BUCKETS):
        mine = keys % BUCKETS == bucket
        expected = (int(mine.sum()), int(values[mine].sum()))
        if found.get(bucket, (0, 0)) != expected:
            problems.append(f"bucket {bucket}: {found.get(bucket)} instead of {expected}")
    return problems
