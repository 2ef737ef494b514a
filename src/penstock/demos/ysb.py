"""The Yahoo! Streaming Benchmark: ad views per campaign and second.

Events are a function of their offset: a plain-string UUID ``ad_id`` (1,000 ads in 100 campaigns),
an ``event_type`` of which one in three is a view, and an ``event_time`` that follows the wall clock
at the wanted rate.  The flow keeps the views, looks up the ad's campaign, and counts per campaign
in 1-second windows.  Because events are a function of the offset, what every count must be can be
computed independently afterwards, and is.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api import functions as F
from penstock.api.flow import Flow, Stream
from penstock.connectors.subscribe import Subscription

__all__ = ["ADS", "CAMPAIGNS", "Check", "Ysb", "percentiles"]

CAMPAIGNS = 100
ADS_PER_CAMPAIGN = 10
ADS = CAMPAIGNS * ADS_PER_CAMPAIGN
WINDOW_US = 1_000_000
EVENT_TYPES = ("view", "click", "purchase")

_NAMESPACE = uuid.UUID("6d3f1a52-6f0b-4b0e-9d7c-0a6c1d6c2f11")
_MULTIPLIER = np.uint64(2_654_435_761)
_MASK = np.uint64(0xFFFFFFFF)


def ad_ids() -> list[str]:
    """The UUIDs of all ads."""
    return [str(uuid.uuid5(_NAMESPACE, f"ad {number}")) for number in range(ADS)]


def campaign_ids() -> list[str]:
    """The UUIDs of all campaigns."""
    return [str(uuid.uuid5(_NAMESPACE, f"campaign {number}")) for number in range(CAMPAIGNS)]


def campaign_table() -> pa.Table:
    """Which campaign each ad belongs to."""
    campaigns = campaign_ids()
    return pa.table(
        {
            "ad_id": ad_ids(),
            "campaign_id": [campaigns[ad // ADS_PER_CAMPAIGN] for ad in range(ADS)],
        }
    )


def ad_of(offsets: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The ad that each event is about: a multiplicative hash of the event's offset."""
    spread = (offsets.view(np.uint64) * _MULTIPLIER) & _MASK
    return ((spread * np.uint64(ADS)) >> np.uint64(32)).view(np.int64)


class AdEvents:
    """Makes events from offsets; travels to the hosts with the code."""

    def __init__(self, rate: float, origin_us: int) -> None:
        self.us_per_event = 1_000_000 / rate
        self.origin_us = origin_us
        self._ads: Any = None

    def __call__(self, offset: int, n: int, stride: int = 1) -> pa.RecordBatch:
        if self._ads is None:
            text = "".join(ad_ids()).encode()
            self._ads = np.frombuffer(text, dtype="V36")
            self._types = pa.array(EVENT_TYPES)
        offsets = np.arange(offset, offset + n * stride, stride, dtype=np.int64)
        ads = self._ads.take(ad_of(offsets))
        ends = np.arange(0, 36 * (n + 1), 36, dtype=np.int32)
        return pa.RecordBatch.from_arrays(
            [
                pa.Array.from_buffers(
                    pa.string(), n, [None, pa.py_buffer(ends), pa.py_buffer(ads)]
                ),
                self._types.take(pa.array((offsets % 3).astype(np.int8))),
                pa.array(self.event_time_us(offsets)).view(pa.timestamp("us", tz="UTC")),
            ],
            names=["ad_id", "event_type", "event_time"],
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"us_per_event": self.us_per_event, "origin_us": self.origin_us, "_ads": None}

    def event_time_us(self, offsets: Any) -> Any:
        """Event time of offsets (µs)."""
        return self.origin_us + (offsets * self.us_per_event).astype(np.int64)

    def first_offset_at(self, time_us: int) -> int:
        """The first offset whose event time is not before a moment."""
        guess = max(0, int((time_us - self.origin_us) / self.us_per_event) - 2)
        near = np.arange(guess, guess + 8, dtype=np.int64)
        return int(near[np.searchsorted(self.event_time_us(near), time_us)])


@dataclass(frozen=True)
class Check:
    """Sink contents against what the generator made."""

    events: int
    windows: int
    lost: int
    duplicated: int
    response_ms: tuple[float, ...]
    """For each result row: from the end of its window to its arrival outside the hosts."""


class Ysb:
    """One run of the benchmark: its flow, its results, its check.

    Results come to the driver (:meth:`collect`), or with ``publish`` into Parquet files there;
    the reader of those adds them to ``results``.
    """

    def __init__(
        self,
        rate: float,
        seconds: float,
        origin: datetime,
        sources: int = 2,
        counters: int = 2,
        publish: Path | None = None,
    ) -> None:
        self.rate = rate
        self.rows = int(rate * seconds)
        self.origin_us = round(origin.timestamp() * 1_000_000)
        self.events = AdEvents(rate, self.origin_us)
        self.flow = Flow("ysb")
        self.results: list[tuple[int, pa.Table]] = []
        """Arrival (ns) and rows of each completed epoch."""
        counts = self._counts(origin, sources, counters)
        self.out: Subscription | None = None
        """Results on the driver, unless they are published."""
        if publish is None:
            self.out = counts.subscribe(name="results")
        else:
            counts.parquet(str(publish), name="results")

    def _counts(self, origin: datetime, sources: int, counters: int) -> Stream:
        events = self.flow.generate(
            self.events,
            rate=self.rate,
            rows=self.rows,
            shards=sources,
            startTime=origin,
            name="events",
        ).withWatermark("event_time", "0 seconds")
        views = events.filter("event_type = 'view'").select("ad_id", "event_time").name("views")
        joined = views.lookup(campaign_table(), "ad_id").name("campaigns")
        counts = (
            joined.groupBy(F.window("event_time", "1 second"), "campaign_id")
            .agg(F.count("*").alias("views"))
            .name("counts")
        )
        counts._stage.shards = counters
        return counts

    def collect(self, on_rows: Callable[[int, pa.Table], None] | None = None) -> None:
        """Take results until the flow ends; run it in a thread of its own."""
        if self.out is None:
            return
        for epoch, rows in self.out:
            arrived_ns = self.out.received_ns[epoch]
            self.results.append((arrived_ns, rows))
            if on_rows is not None:
                on_rows(arrived_ns, rows)

    def check(self, on_window: Callable[[], None] | None = None) -> Check:
        """Compare every count with the generator's."""
        got: dict[tuple[int, str], int] = {}
        responses: list[float] = []
        for arrived_ns, rows in self.results:
            ends = pa.compute.struct_field(rows["window"], "end").cast(pa.int64()).to_numpy()
            last_us = self.origin_us + int(self.rows * self.events.us_per_event)
            whole = ends <= last_us
            responses += ((arrived_ns / 1000 - ends[whole]) / 1000).tolist()
            for end, campaign, views in zip(
                ends.tolist(),
                rows["campaign_id"].to_pylist(),
                rows["views"].to_pylist(),
                strict=True,
            ):
                key = (end, campaign)
                got[key] = got.get(key, 0) + views
        lost = duplicated = windows = 0
        names = campaign_ids()
        for end, expected in self.expected():
            windows += 1
            for campaign, views in zip(names, expected.tolist(), strict=True):
                seen = got.pop((end, campaign), 0)
                lost += max(0, views - seen)
                duplicated += max(0, seen - views)
            if on_window is not None:
                on_window()
        duplicated += sum(got.values())
        return Check(self.rows, windows, lost, duplicated, tuple(responses))

    def expected(self) -> Iterator[tuple[int, Any]]:
        """For each window its end (µs) and the views of every campaign, from offsets alone."""
        start = 0
        while start < self.rows:
            first_us = int(self.events.event_time_us(np.array([start]))[0])
            end_us = (first_us // WINDOW_US + 1) * WINDOW_US
            stop = min(self.rows, self.events.first_offset_at(end_us))
            counts = np.zeros(CAMPAIGNS, dtype=np.int64)
            first_view = start + (-start) % 3
            for chunk in range(first_view, stop, 3 << 20):
                offsets = np.arange(chunk, min(chunk + (3 << 20), stop), 3, dtype=np.int64)
                ads = np.bincount(ad_of(offsets), minlength=ADS)
                counts += ads.reshape(CAMPAIGNS, ADS_PER_CAMPAIGN).sum(axis=1)
            yield end_us, counts
            start = stop

    @staticmethod
    def soon(lead_s: float) -> datetime:
        """A moment a little ahead, so that the hosts are up when the first event is due."""
        now = datetime.now(UTC).timestamp()
        return datetime.fromtimestamp(now + lead_s, UTC)


def percentiles(values: tuple[float, ...]) -> dict[str, float]:
    """p50, p95 and p99."""
    if not values:
        return {}
    points = np.percentile(np.array(values), [50, 95, 99])
    return {f"p{p}": round(float(v), 3) for p, v in zip((50, 95, 99), points, strict=True)}
