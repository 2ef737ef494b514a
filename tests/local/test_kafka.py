"""Flows from Kafka and into Kafka, with a real broker: what is read, refused, written."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.connectors.kafka.client import kafka
from penstock.errors import (
    DataError,
    PenstockError,
    SchemaError,
    SettingsError,
    SinkError,
    SourceError,
)
from penstock.testing.kafka_broker import KafkaBroker, MockBroker
from penstock.testing.local import LocalQuery, run_local, start_local

WAIT_S = 60.0
SCHEMA = "id BIGINT, name STRING"


def new_topic(broker: KafkaBroker, partitions: int = 1, **config: str) -> str:
    name = f"t{uuid.uuid4().hex[:8]}"
    broker.create_topic(name, partitions, **config)
    return name


def put(broker: KafkaBroker | MockBroker, topic: str, values: list[Any], **more: Any) -> None:
    producer = kafka().Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
    for value in values:
        plain = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, plain, **more)
    assert producer.flush(WAIT_S) == 0


def ids(broker: KafkaBroker | MockBroker, topic: str) -> list[int]:
    return sorted(json.loads(message.value())["id"] for message in broker.read(topic))


def rows(first: int, end: int) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"n{n}"} for n in range(first, end)]


def await_(condition: Callable[[], bool], query: LocalQuery) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def copying(broker: KafkaBroker | MockBroker, source: str, target: str, **options: Any) -> Flow:
    flow = Flow("copy")
    read = flow.kafka(
        broker.address,
        subscribe=source,
        value="json",
        schema=SCHEMA,
        name="read",
        **{"startingOffsets": "earliest", **options},
    )
    read.select("id", "name").kafka(
        broker.address, topic=target, key="id", value="json", name="written"
    )
    return flow


def test_each_message_arrives_once_over_several_runs(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    source, target = new_topic(kafka_broker, 3), new_topic(kafka_broker, 2)
    store = str(tmp_path / "store")
    for first in (0, 500, 1000):
        put(kafka_broker, source, rows(first, first + 500))
        query = run_local(copying(kafka_broker, source, target), checkpointLocation=store)
        metrics = query.lastProgress["sources"][0]["metrics"]
        assert metrics == {"lag": 0, "partitions": 3}
        assert ids(kafka_broker, target) == list(range(first + 500))
    message = kafka_broker.read(target)[0]
    assert message.key() == str(json.loads(message.value())["id"]).encode()
    with pytest.raises(SinkError, match=r"already holds epochs up to .* or another writer=\.\.\."):
        run_local(copying(kafka_broker, source, target))


def test_all_that_is_known_of_a_message(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, 2)
    put(
        kafka_broker,
        topic,
        [b"raw", None],
        key=b"k",
        partition=1,
        timestamp=1_767_323_045_006,
        headers=[("h", b"1")],
    )
    put(kafka_broker, topic, [b"plain"], partition=0)
    flow = Flow("raw")
    options = {"kafka.bootstrap.servers": kafka_broker.address, "includeHeaders": True}
    sink = flow.kafka(subscribe=topic, startingOffsets="earliest", **options).memory()
    run_local(flow)
    plain, first, second = sorted(
        sink.toPylist(), key=lambda row: (row["partition"], row["offset"])
    )
    assert first.pop("timestamp").isoformat() == "2026-01-02T03:04:05.006000+00:00"
    assert first == {
        "key": b"k",
        "value": b"raw",
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "headers": [{"key": "h", "value": b"1"}],
    }
    assert (second["value"], second["offset"]) == (None, 1)
    assert (plain["key"], plain["headers"]) == (None, None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": {"T": {"0": 3, "1": -1}}}, [0, 1, 2, 10]),
        ({"startingOffsets": '{"T": {"0": 3, "1": -1}}'}, [3, 4]),
        ({"startingTimestamp": 2_000}, [2, 3, 4]),
        ({"startingTimestamp": "1000", "endingTimestamp": 3_000}, [1, 2]),
        ({}, []),
    ],
    ids=["ending", "offsets", "since", "between", "latest"],
)
def test_where_reading_begins_and_ends(
    kafka_broker: KafkaBroker, options: dict[str, Any], expected: list[int]
) -> None:
    topic = new_topic(kafka_broker, 2)
    for n in range(5):
        put(kafka_broker, topic, [{"id": n}], partition=0, timestamp=1_000 * n or 1)
    put(kafka_broker, topic, [{"id": 10}], partition=1, timestamp=10)
    named = json.loads(
        json.dumps(options).replace("T", topic).replace(f"{topic}imestamp", "Timestamp")
    )
    flow = Flow("some")
    sink = flow.kafka(
        kafka_broker.address, subscribe=topic, value="json", schema="id BIGINT", **named
    ).memory()
    run_local(flow)
    assert sorted(row["id"] for row in sink.toPylist()) == expected


def test_partitions_and_topics_that_are_new_are_found_while_it_runs(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    prefix = f"p{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(f"{prefix}_a", 1)
    put(kafka_broker, f"{prefix}_a", rows(0, 10))
    flow = Flow("found")
    messages = flow.kafka(
        kafka_broker.address,
        subscribePattern=f"{prefix}_.*",
        value="json",
        schema=SCHEMA,
        partitionPollInterval="100 ms",
        startingOffsets="earliest",
        **{"kafka.group.id": prefix},
    )
    sink = messages.memory()
    query = start_local(flow, checkpointLocation=str(tmp_path / "store"))
    await_(lambda: len(sink.toPylist()) == 10, query)
    kafka_broker.create_topic(f"{prefix}_a", 2)
    put(kafka_broker, f"{prefix}_a", rows(10, 20), partition=1)
    kafka_broker.create_topic(f"{prefix}_b", 1)
    put(kafka_broker, f"{prefix}_b", rows(20, 30))
    await_(lambda: len(sink.toPylist()) == 30, query)
    group = kafka().Consumer({"bootstrap.servers": kafka_broker.address, "group.id": prefix})
    places = [(f"{prefix}_a", 0), (f"{prefix}_a", 1), (f"{prefix}_b", 0)]
    asked = [kafka().TopicPartition(*place) for place in places]
    await_(lambda: [one.offset for one in group.committed(asked, WAIT_S)] == [10] * 3, query)
    group.close()
    query.stop()
    assert sorted(row["id"] for row in sink.toPylist()) == list(range(30))


BAD = [{"id": 1, "name": "a"}, b'{"id": "x"}', {"id": 2, "name": "b"}]


def test_values_that_do_not_decode(kafka_broker: KafkaBroker) -> None:
    topic, letters = new_topic(kafka_broker), new_topic(kafka_broker)
    put(kafka_broker, topic, BAD)

    def decoded(**options: Any) -> tuple[Flow, Any]:
        flow = Flow("decoded")
        return flow, flow.kafka(
            kafka_broker.address,
            subscribe=topic,
            startingOffsets="earliest",
            value="json",
            **{"schema": SCHEMA, **options},
        )

    flow, read = decoded()
    read.memory()
    with pytest.raises(DataError, match=rf"malformed \(topic {topic}, partition 0, offset 1\)"):
        run_local(flow)
    flow, read = decoded(mode="DROPMALFORMED")
    sink = read.memory()
    query = run_local(flow)
    assert [row["id"] for row in sink.toPylist()] == [1, 2]
    assert query.lastProgress["stages"][0]["counters"]["kafka.rows_malformed"] == 1
    flow, read = decoded(mode="PERMISSIVE", schema=f"{SCHEMA}, _corrupt_record STRING")
    sink = read.memory()
    run_local(flow)
    assert [row["_corrupt_record"] for row in sink.toPylist()] == [None, '{"id": "x"}', None]
    flow, read = decoded()
    sink = read.onError("skip").memory()
    read.errors().kafka(kafka_broker.address, topic=letters, key="stage", value="json")
    run_local(flow)
    assert [row["id"] for row in sink.toPylist()] == [1, 2]
    (letter,) = [json.loads(message.value()) for message in kafka_broker.read(letters)]
    assert "DataError: kafka: a value is malformed" in letter["error"]
    assert json.loads(letter["row"])["offset"] == 1


def test_a_topic_that_lost_rows_which_are_needed_ends_the_flow(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    source, target = new_topic(kafka_broker), new_topic(kafka_broker)
    store = str(tmp_path / "store")
    put(kafka_broker, source, rows(0, 10))
    run_local(copying(kafka_broker, source, target), checkpointLocation=store)
    put(kafka_broker, source, rows(10, 20))
    admin = kafka().admin.AdminClient({"bootstrap.servers": kafka_broker.address})
    cut = kafka().TopicPartition(source, 0, 15)
    for future in admin.delete_records([cut]).values():
        future.result(WAIT_S)
    with pytest.raises(SourceError, match=rf"{source}\[0\] from offset 10 on are still needed"):
        run_local(copying(kafka_broker, source, target), checkpointLocation=store)
    assert ids(kafka_broker, target) == list(range(10))


def test_at_least_once_goes_without_transactions(kafka_broker: KafkaBroker) -> None:
    source, target = new_topic(kafka_broker, 2), new_topic(kafka_broker)
    put(kafka_broker, source, rows(0, 50), headers=[("h", b"1")])
    flow = Flow("plain")
    read = flow.kafka(
        kafka_broker.address, subscribe=source, startingOffsets="earliest", includeHeaders=True
    )
    messages = read.select("key", "value", "headers")
    messages.kafka(kafka_broker.address, topic=target, guarantee="at-least-once", name="sent")
    assert flow.guarantees()["sent"] == "at-least-once"
    for _ in range(2):  # it does not know what it has sent
        run_local(flow)
    assert ids(kafka_broker, target) == sorted([*range(50)] * 2)
    assert kafka_broker.read(target, "read_uncommitted")[0].headers() == [("h", b"1")]


def test_messages_may_say_their_partition(kafka_broker: KafkaBroker) -> None:
    target = new_topic(kafka_broker, 2)
    flow = Flow("placed")
    made = flow.memory(pa.schema([("value", pa.string()), ("partition", pa.int32())]))
    made.kafka(kafka_broker.address, topic=target)
    made.push([{"value": "a", "partition": 1}, {"value": "b", "partition": 0}])
    made.push([{"value": None, "partition": 1}])
    run_local(flow)
    found = [(m.partition(), m.value()) for m in kafka_broker.read(target)]
    assert found == [(0, b"b"), (1, b"a"), (1, None)]


def test_a_flow_can_be_tried_without_a_broker_of_its_own() -> None:
    mock = MockBroker()
    mock.create_topic("views")
    put(mock, "views", rows(0, 20))
    flow = copying(mock, "views", "copies", shards=2)
    mock.create_topic("copies")
    run_local(flow)
    assert ids(mock, "copies") == list(range(20))


def test_a_topic_has_one_writer_of_a_name(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    source, target = new_topic(kafka_broker), new_topic(kafka_broker)
    put(kafka_broker, source, rows(0, 10))
    flow = copying(kafka_broker, source, target)
    run_local(flow, checkpointLocation=str(tmp_path / "one"))
    other = Flow("other")
    read = other.kafka(kafka_broker.address, subscribe=source, startingOffsets="earliest")
    read.select("value").kafka(kafka_broker.address, topic=target, writer="other")
    run_local(other, checkpointLocation=str(tmp_path / "two"))
    assert ids(kafka_broker, target) == sorted([*range(10)] * 2)
    read.select("value").kafka(kafka_broker.address, topic=target, writer="other", name="again")
    with pytest.raises(SinkError, match="both write to Kafka cluster .*, writer other"):
        run_local(other)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "say what to read by one of"),
        ({"subscribe": "a", "assign": {"a": [0]}}, "say what to read by one of"),
        (
            {"subscribe": "a", "startingOffsets": "soon"},
            "startingOffsets is 'earliest' or 'latest'",
        ),
        ({"subscribe": "a", "minPartitions": 3}, "no option 'minPartitions'"),
        ({"subscribe": "a", "kafka.enable.auto.commit": True}, "is not yours to set"),
        ({"subscribe": "a", "value": "json"}, "schema=... go together"),
        ({"subscribe": "a", "value": "avro"}, "'binary' or 'string' or 'json'"),
        ({"subscribe": "a", "columns": ["valeu"]}, "there is no column 'valeu'"),
        ({"subscribe": "a", "mode": "PERMISSIVE"}, "mode is for value='json'"),
        ({"subscribe": "a", "servers": None}, "say which cluster"),
    ],
)
def test_wrong_options_are_refused_where_they_are_written(
    arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        Flow("wrong").kafka(**{"servers": "127.0.0.1:1", **arguments})


def test_columns_that_clash_or_are_no_messages_are_refused() -> None:
    read = Flow("wrong").kafka("127.0.0.1:1", subscribe="a")
    with pytest.raises(SchemaError, match="leave Kafka's out"):
        Flow("wrong").kafka(
            "127.0.0.1:1", subscribe="a", value="json", schema="timestamp TIMESTAMP"
        )
    with pytest.raises(SchemaError, match="messages have no 'topic'"):
        read.kafka("127.0.0.1:1", topic="b")
    with pytest.raises(SchemaError, match="column 'value' of type binary has no form in JSON"):
        read.select("value").kafka("127.0.0.1:1", topic="b", value="json")
    with pytest.raises(SettingsError, match="value='json' makes messages"):
        read.select("value").kafka("127.0.0.1:1", topic="b", key="value")


def test_what_is_not_there_is_said_at_the_start(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker)
    flow = Flow("missing")
    flow.kafka(kafka_broker.address, subscribe="nowhere").memory()
    with pytest.raises(PenstockError, match="there is no topic 'nowhere'"):
        run_local(flow)
    flow = Flow("missing")
    flow.kafka(kafka_broker.address, subscribe=topic).select("value").kafka(
        kafka_broker.address, topic="nowhere"
    )
    with pytest.raises(SinkError, match="there is no topic 'nowhere'"):
        run_local(flow)
