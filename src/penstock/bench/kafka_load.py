"""Both ends of ``penstock bench kafka``, each in a process of its own: who writes and who reads.

    python -m penstock.bench.kafka_load feed ADDRESS TOPIC PARTITIONS RATE SECONDS BYTES WINDOW_MS
    python -m penstock.bench.kafka_load read ADDRESS TOPIC SECONDS

The writer sends views of ads at a steady rate, each with the moment as its timestamp, and at the
end one message a partition that is much later, so that every window ends.  It prints the number of
views of each window.  The reader, read-committed, prints when each window's last count came.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import Any

from penstock.connectors.kafka.client import kafka

__all__ = ["ADS", "TAIL_MS"]

ADS = 10
SLICE_S = 0.005
"""How often the writer sends."""
TAIL_MS = 3_600_000
"""How much later the last message is."""
FLUSH_S = 120.0
IDLE_S = 0.001


def feed(
    address: str, topic: str, partitions: int, rate: int, seconds: float, size: int, window_ms: int
) -> dict[str, Any]:
    """Write at a rate; 0: all of ``seconds`` times 100,000 messages as fast as it goes."""
    producer = kafka().Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 1,
            "enable.idempotence": True,  # the broker may restart
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": 2_000_000,
            "delivery.report.only.error": True,
        }
    )
    per_slice = max(partitions, round((rate or 1_000_000) * SLICE_S))
    values = [_value(n % ADS, size) for n in range(per_slice)]
    slices = round(seconds / SLICE_S) if rate else round(seconds * 100_000 / per_slice)
    views: Counter[int] = Counter()
    start = time.time()
    for number in range(slices):
        due = start + number * SLICE_S
        if rate:
            time.sleep(max(0.0, due - time.time()))
        now_ms = int((time.time() if rate else due) * 1000)
        for partition in range(partitions):
            for value in values[: per_slice // partitions]:
                producer.produce(topic, value, partition=partition, timestamp=now_ms)
        views[(now_ms // window_ms + 1) * window_ms] += per_slice // partitions * partitions
        producer.poll(0)
    late_s = time.time() - start - slices * SLICE_S
    for partition in range(partitions):
        producer.produce(topic, values[0], partition=partition, timestamp=now_ms + TAIL_MS)
    producer.flush(FLUSH_S)
    return {"views": dict(views), "late_s": round(late_s, 3)}


def read(address: str, topic: str, seconds: float) -> dict[str, Any]:
    """Read until a window of the end comes; its counts and times, as milliseconds since 1970."""
    module = kafka()
    consumer = module.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench-reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    numbers = consumer.list_topics(topic, timeout=FLUSH_S).topics[topic].partitions
    consumer.assign([module.TopicPartition(topic, n, 0) for n in numbers])
    print("ready", flush=True)
    counts: Counter[int] = Counter()
    rows: Counter[str] = Counter()
    seen_ms: dict[int, float] = {}
    deadline = time.time() + seconds
    while time.time() < deadline:
        messages = consumer.consume(1_000, IDLE_S)
        now_ms = time.time() * 1000
        for message in messages:
            if message.error() is None:
                row = json.loads(message.value())
                end = row["end_ms"]
                counts[end] += row["views"]
                rows[f"{end} {row['ad']}"] += 1
                seen_ms[end] = now_ms
        if _over(seen_ms):
            break
    consumer.close()
    doubled = sum(times - 1 for times in rows.values())
    return {"counts": dict(counts), "seen_ms": seen_ms, "doubled": doubled}


def _over(seen_ms: dict[int, float]) -> bool:
    """Nothing comes behind the last window of the steady stream: its counts came in one go."""
    ends = sorted(seen_ms)
    return bool(ends) and time.time() * 1000 - seen_ms[ends[-1]] > 5_000


def _value(ad: int, size: int) -> bytes:
    plain = {"ad": f"ad-{ad}", "kind": "view", "pad": ""}
    missing = size - len(json.dumps(plain, separators=(",", ":")))
    plain["pad"] = "x" * max(0, missing)
    return json.dumps(plain, separators=(",", ":")).encode()


def _main(what: str, address: str, topic: str, *numbers: str) -> None:
    if what == "feed":
        partitions, rate, seconds, size, window_ms = map(float, numbers)
        made = feed(address, topic, int(partitions), int(rate), seconds, int(size), int(window_ms))
    else:
        made = read(address, topic, float(numbers[0]))
    print(json.dumps(made), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
