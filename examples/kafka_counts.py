"""Views of ads from a Kafka topic, counted per ad and second, into another topic, exactly once.

    penstock dev up kafka
    python examples/kafka_counts.py 127.0.0.1:9092

Without an address the client's own mock broker serves, which needs nothing but knows no
transactions.  The topics get names of their own, so that every run begins anew.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import uuid
from collections import Counter
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Flow, localSession
from penstock import functions as F
from penstock.testing.kafka_broker import MockBroker, messages_of

ADS, VIEWS = 7, 5_000


def flow(
    address: str = "127.0.0.1:9092", source: str = "views", target: str = "counts", **options: Any
) -> Flow:
    """The flow; the topics must exist when it starts."""
    flow = Flow("kafka_counts")
    views = flow.kafka(
        address,
        subscribe=source,
        startingOffsets="earliest",
        value="json",
        schema="ad STRING",
        columns=["value", "timestamp"],
        name="views",
        **options,
    )
    counts = (
        views.withWatermark("timestamp", "0 seconds")
        .groupBy(F.window("timestamp", "1 second"), "ad")
        .agg(F.count("*").alias("views"))
    )
    counts.kafka(address, topic=target, key="ad", value="json", name="counts")
    return flow


def main() -> None:
    """Write views, count them, read the counts."""
    mock = None if len(sys.argv) > 1 else MockBroker()
    address = sys.argv[1] if mock is None else mock.address
    source, target = (f"{what}-{uuid.uuid4().hex[:8]}" for what in ("views", "counts"))
    if mock is None:
        admin = AdminClient({"bootstrap.servers": address})
        for made in admin.create_topics([NewTopic(source, 4), NewTopic(target, 1)]).values():
            made.result()
    else:
        mock.create_topic(source)
        mock.create_topic(target)

    producer = Producer({"bootstrap.servers": address})
    wanted: Counter[str] = Counter()
    now_ms = int(time.time() * 1000)
    for number in range(VIEWS):
        ad = f"ad-{number % ADS}"
        value = json.dumps({"ad": ad})
        producer.produce(source, value, partition=number % 4, timestamp=now_ms + number)
        wanted[ad] += 1
    producer.flush()

    spark = localSession(hosts=2)
    with tempfile.TemporaryDirectory() as store:
        # With an end, so that the last window ends, too; without one the next run would end it.
        finite = flow(address, source, target, endingOffsets="latest")
        query = finite.start(spark, hosts=2, checkpointLocation=store)
        query.awaitTermination(120)
        query.stop()
    spark.stop()

    counted: Counter[str] = Counter()
    for message in messages_of(address, target, "read_committed"):
        row = json.loads(message.value())
        counted[row["ad"]] += row["views"]
    print(dict(counted))
    print("right" if counted == wanted else f"wrong: {wanted}")


if __name__ == "__main__":
    main()
