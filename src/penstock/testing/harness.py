"""Run one vertex by hand: feed batches, complete epochs, look at what came out.

    >>> import pyarrow as pa
    >>> from penstock.operators import terms as F
    >>> from penstock.operators.aggregate import RunningAggregate
    >>> harness = Harness(RunningAggregate(["page"], [F.count("*")]))
    >>> harness.recv(pa.record_batch({"page": ["a", "b", "a"]}), epoch=0)
    >>> harness.complete(0)
    >>> harness.table().to_pylist()
    [{'page': 'a', 'count': 2}, {'page': 'b', 'count': 1}]

The harness keeps the engine's promises (see :mod:`penstock.api.vertex`) and checks the vertex's: it
refuses batches sent or notifications asked for in the past.  Watermarks are given per epoch and
hold until the next one is given:

    >>> harness.complete(1, watermark=5_000_000)
    >>> harness.watermark(Time.root(0)), harness.watermark(Time.root(7))
    (None, 5000000)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from random import Random
from types import EllipsisType
from typing import Any

import pyarrow as pa

from penstock.api.vertex import Place, Time, Vertex
from penstock.core.progress.notifications import Notification
from penstock.engine.store.state_codec import freeze, thaw
from penstock.operators.base import Operator

__all__ = ["Harness"]


class Harness:
    """A vertex (or the vertex of an operator) with everything it sends, asks and counts."""

    def __init__(
        self,
        vertex: Vertex | Operator,
        *,
        stage: str = "stage",
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        self.vertex = vertex.vertex() if isinstance(vertex, Operator) else vertex
        self.place = Place(stage, shard, shards)
        self.sent: list[tuple[int, Time, pa.RecordBatch]] = []
        """Everything sent: port, time, batch, in the order of sending."""
        self.counters: dict[str, int] = {}
        """What the vertex counted."""
        self.clock_us = 0
        """What ``now()`` gives."""
        self.numbers = Random(0)
        """Where ``random()`` comes from."""
        self._asked: dict[Notification, None] = {}
        self._watermarks: list[tuple[int, int]] = []
        self._complete = -1
        self._now: Time | None = None
        self.vertex.open(self)

    # -- what a test does ------------------------------------------------------------------------

    def recv(self, batch: pa.RecordBatch, epoch: int | Time = 0, port: int = 0) -> None:
        """Give the vertex a batch at a time that is not complete yet."""
        time = epoch if isinstance(epoch, Time) else Time.root(epoch)
        if time.epoch <= self._complete:
            raise ValueError(f"{time!r} is complete already: nothing can arrive at it any more")
        self._run(time, lambda: self.vertex.onRecv(port, batch, time))

    def complete(self, epoch: int, watermark: int | None = None) -> None:
        """Say that all epochs up to ``epoch`` are complete, and what the watermark is after it."""
        if watermark is not None:
            if self._watermarks and self._watermarks[-1][1] > watermark:
                raise ValueError(f"a watermark cannot go back to {watermark}")
            self._watermarks.append((epoch, watermark))
        self._complete = max(self._complete, epoch)
        while due := [one for one in self._asked if one.guarantee.epoch <= epoch]:
            wanted = min(due, key=lambda one: one.guarantee.sort_key())
            del self._asked[wanted]
            time = wanted.guarantee
            self._run(wanted.capability or time, partial(self.vertex.onNotify, time))

    def restarted(self, vertex: Vertex | Operator) -> Harness:
        """A harness with a new vertex in the state of this one after its completed epochs.

        The vertex needs ``snapshot`` and ``restore``, as the library's stateful ones have.
        """
        other = Harness(
            vertex, stage=self.place.stage, shard=self.place.shard, shards=self.place.shards
        )
        other.sent, other.counters = list(self.sent), dict(self.counters)
        other._watermarks, other._complete = list(self._watermarks), self._complete
        tables: list[Any] = []
        kept = freeze(self.vertex.snapshot(), tables, type(self.vertex))
        time = Time.root(max(self._complete, 0))
        state = thaw(kept, tables, type(other.vertex))
        other._run(time, lambda: other.vertex.restore(state, time))
        return other

    def batches(self, port: int = 0, epoch: int | None = None) -> list[pa.RecordBatch]:
        """What was sent on a port, in all epochs or in one."""
        return [
            batch
            for sent_port, time, batch in self.sent
            if sent_port == port and (epoch is None or time.epoch == epoch)
        ]

    def table(self, port: int = 0, epoch: int | None = None) -> pa.Table | None:
        """The same as one table; None if nothing was sent."""
        batches = self.batches(port, epoch)
        return pa.Table.from_batches(batches) if batches else None

    @property
    def asked(self) -> list[Time]:
        """The notifications asked for that did not come yet."""
        return sorted((one.guarantee for one in self._asked), key=Time.sort_key)

    # -- what a vertex does ----------------------------------------------------------------------

    def send(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        """Record a batch."""
        self._check(time, "sent a batch")
        self.sent.append((port, time, batch))

    def notify(self, time: Time, capability: Time | EllipsisType | None = ...) -> None:
        """Record a wish for a notification."""
        capability = time if isinstance(capability, EllipsisType) else capability
        if capability is not None:
            self._check(capability, "asked for a notification")
        self._asked[Notification(time, capability)] = None

    def watermark(self, time: Time) -> int | None:
        """The watermark given for the last epoch at or before ``time``'s."""
        at = bisect_right(self._watermarks, time.epoch, key=lambda one: one[0])
        return self._watermarks[at - 1][1] if at else None

    def count(self, name: str, value: int) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + value

    def now(self) -> int:
        """The wall clock, as the test sets it."""
        return self.clock_us

    def random(self) -> float:
        """The same numbers in every run."""
        return self.numbers.random()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's answer."""
        return function(*arguments)

    def _check(self, time: Time, what: str) -> None:
        if self._now is not None and not self._now.less_equal(time):
            raise ValueError(f"while handling {self._now!r} the vertex {what} at {time!r}")

    def _run(self, time: Time, call: Callable[[], None]) -> None:
        self._now = time
        try:
            call()
        finally:
            self._now = None
