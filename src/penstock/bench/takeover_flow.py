"""The flow of ``penstock chaos --takeover``, its load, and what its sink must hold.

    events (driver) --> states (a row for each key, 3 replicas) --> served (driver)

Each key has a count, a sum and a text.  First every key gets one row; then some keys at a time get
more.  Every few milliseconds each replica also gets a *probe*: a row of a key that is its alone,
with 0, 1, 2 … as values.  What the sink has of a probe key must be the count and the sum of
0 … n - 1 for some n: then the replica's keys are served, with the right values, up to probe n.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api import functions as F
from penstock.api.flow import Flow
from penstock.errors import PenstockError, SourceError, TransientError
from penstock.wire.hashing import split_by_shard

__all__ = ["REPLICAS", "Served", "TakeoverFlow"]

REPLICAS = 3
TEXT_BYTES = 72
ROW_BYTES = 24 + 4 + TEXT_BYTES
"""Of the state, for each key: key, count, sum, text."""
FILL_ROWS = 20_000
TICK_S = 0.02
POLL_S = 0.001

EVENT = pa.schema({"key": pa.int64(), "value": pa.int64(), "text": pa.string()})
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Served:
    """What was found in the sink, in rows of the input."""

    rows: int
    lost: int
    duplicated: int
    wrong: int
    """Results that no number of rows gives."""

    @property
    def equal(self) -> bool:
        """Whether every row was counted exactly once, in every result."""
        return not (self.lost or self.duplicated or self.wrong)


class TakeoverFlow:
    """The flow, and who pushes its load.

    With ``fresh`` every row of the load has a key of its own, so that the sink alone tells which
    rows were lost and which were doubled, whatever became of the states.
    """

    def __init__(self, state_bytes: int, rate: float, seed: int, fresh: bool = False) -> None:
        self.keys = max(1000, state_bytes // ROW_BYTES)
        self.fresh = fresh
        self._rows = max(1, round(rate * TICK_S))
        self._chance = np.random.default_rng(seed)
        self.flow = Flow("takeover")
        self._events = self.flow.memory(EVENT, name="events")
        states = self._events.groupBy("key").agg(
            F.count("*").alias("rows"), F.sum("value").alias("total"), F.max("text").alias("text")
        )
        self._out = states.name("states").select("key", "rows", "total").subscribe(name="served")
        self._probe_keys = _probe_keys()
        self._sent: list[pa.RecordBatch] = []
        self.probes_ns: list[int] = []
        """When the probes of each number were sent."""
        self._reached = [[0, 0] for _ in range(REPLICAS)]
        """Per replica: how many of its probes have come, and when the last of these did."""
        self._found: list[pa.Table] = []
        self._failure: PenstockError | None = None
        self._over = threading.Event()
        self._taker = threading.Thread(target=self._take, name="penstock-taker", daemon=True)
        self._pusher = threading.Thread(target=self._push, name="penstock-load", daemon=True)

    # -- load ------------------------------------------------------------------------------------

    def fill(self, timeout_s: float) -> None:
        """Give every key a row, and wait until all are served."""
        self._taker.start()
        for first in range(0, self.keys, FILL_ROWS):
            keys = np.arange(first, min(first + FILL_ROWS, self.keys))
            self._send(keys, keys % 7)
        deadline = time.monotonic() + timeout_s
        while sum(table.num_rows for table in list(self._found)) < self.keys:
            self._check(deadline, "its keys")
            time.sleep(POLL_S)

    def load(self) -> None:
        """Push rows and probes from now on."""
        self._pusher.start()

    def close(self) -> None:
        """Push no more; the flow ends when everything was served."""
        self._over.set()
        if self._pusher.is_alive():
            self._pusher.join(10)
        self._events.close()

    def _push(self) -> None:
        due = time.monotonic()
        number = 0
        try:
            while not self._over.wait(max(0.0, due - time.monotonic())):
                due = max(due + TICK_S, time.monotonic())
                if self.fresh:
                    first = self.keys + number * self._rows
                    keys = np.arange(first, first + self._rows)
                else:
                    keys = self._chance.integers(0, self.keys, self._rows)
                values = np.append(keys % 7, np.full(REPLICAS, number))
                self.probes_ns.append(time.perf_counter_ns())
                self._send(np.append(keys, self._probe_keys), values)
                number += 1
        except SourceError:  # the flow has ended
            return

    def _send(self, keys: Integers, values: Integers) -> None:
        texts = pc.utf8_lpad(pa.array(keys).cast(pa.string()), TEXT_BYTES, "0")
        batch = pa.record_batch([pa.array(keys), pa.array(values), texts], schema=EVENT)
        self._events.push(batch)
        self._sent.append(batch.select(["key", "value"]))

    # -- what comes ------------------------------------------------------------------------------

    def served_s(self, replica: int, since_ns: int, timeout_s: float) -> float:
        """Seconds until a replica's probe that was sent after a moment is served, rightly."""
        deadline = time.monotonic() + timeout_s
        first: int | None = None
        while True:
            if first is None and self.probes_ns and self.probes_ns[-1] > since_ns:
                first = int(np.searchsorted(self.probes_ns, since_ns, side="right"))
            reached, at_ns = self._reached[replica]
            if first is not None and reached > first:
                return (at_ns - since_ns) / 1e9
            self._check(deadline, f"the keys of replica {replica}")
            time.sleep(POLL_S)

    def _check(self, deadline: float, what: str) -> None:
        if self._failure is not None:
            raise self._failure
        if time.monotonic() > deadline:
            raise TransientError(f"chaos: waited in vain until {what} were served")

    def _take(self) -> None:
        try:
            for _, rows in self._out:
                now_ns = time.perf_counter_ns()
                keys = rows["key"].to_numpy()
                for place in np.flatnonzero(keys < 0).tolist():
                    self._probed(int(keys[place]), rows.slice(place, 1), now_ns)
                self._found.append(rows)
        except PenstockError as error:
            self._failure = error

    def _probed(self, key: int, row: pa.Table, now_ns: int) -> None:
        count, total = row["rows"][0].as_py(), row["total"][0].as_py()
        replica = int(np.flatnonzero(self._probe_keys == key)[0])
        if total == count * (count - 1) // 2 and count > self._reached[replica][0]:
            self._reached[replica] = [count, now_ns]

    def join(self, timeout_s: float) -> None:
        """Wait until the flow's last rows were taken."""
        self._taker.join(timeout_s)

    # -- what must have come ---------------------------------------------------------------------

    def check(self) -> Served:
        """Compare what was served with what was sent."""
        sent, found = pa.Table.from_batches(self._sent), pa.concat_tables(self._found)
        keys, values = sent["key"].to_numpy() + REPLICAS_ROOM, sent["value"].to_numpy()
        size = int(keys.max()) + 1
        wanted = np.bincount(keys, minlength=size)
        totals = np.bincount(keys, values, minlength=size).astype(np.int64)
        came, rows = found["key"].to_numpy() + REPLICAS_ROOM, found["rows"].to_numpy()
        if self.fresh:
            # Whatever a state has forgotten: a key of one row is served once, with one row.
            single = wanted == 1
            counted = np.bincount(came, minlength=size)
            np.maximum.at(counted, came, rows)
            lost = int((counted[single] == 0).sum())
            doubled = int((counted[single] - 1).clip(0).sum())
            return Served(len(came), lost, doubled, 0)
        last = np.zeros(size, np.int64)
        last[came] = rows  # the last of equal ones counts
        last_total = np.zeros(size, np.int64)
        last_total[came] = found["total"].to_numpy()
        again = len(came) - len(np.unique(np.stack([came, rows]), axis=1)[0])
        return Served(
            len(came),
            int((wanted - last).clip(0).sum()),
            int((last - wanted).clip(0).sum()) + again,
            int((last_total != totals)[last == wanted].sum()) + self._wrong_probes(found),
        )

    def _wrong_probes(self, found: pa.Table) -> int:
        probes = found.filter(pc.less(found["key"], 0))
        rows, totals = probes["rows"].to_numpy(), probes["total"].to_numpy()
        return int((totals != rows * (rows - 1) // 2).sum())


REPLICAS_ROOM = 64
"""Keys of probes are negative, but not less than minus this."""


def _probe_keys() -> Integers:
    """A key for each replica."""
    keys = pa.record_batch({"key": np.arange(-REPLICAS_ROOM, 0)})
    parts: list[Any] = split_by_shard(keys, ("key",), REPLICAS)
    return np.array([part["key"][0].as_py() for part in parts], np.int64)
