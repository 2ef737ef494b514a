"""Hosts, drivers and the broker die or freeze: a read-committed reader sees each row once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.connectors.base import SourceContext
from penstock.connectors.kafka.client import kafka
from penstock.connectors.kafka.producer import KafkaTarget, TransactionalProducer
from penstock.connectors.kafka.source import KafkaSource, Topics
from penstock.connectors.ownership import Owner
from penstock.errors import NotWrittenError, PeerError, SinkError
from penstock.testing.kafka_broker import KafkaBroker
from penstock.testing.kills import await_epochs, await_recovery
from penstock.testing.local import run_local, start_local

WAIT_S = 90.0
STEP = 400


class Copying:
    """A flow that copies a topic into another, and what has come of it."""

    def __init__(self, broker: KafkaBroker, store: Path) -> None:
        self.broker, self.store = broker, str(store)
        self.source, self.target = (f"t{uuid.uuid4().hex[:8]}" for _ in range(2))
        broker.create_topic(self.source, 3)
        broker.create_topic(self.target, 2)
        self.count = 0

    def flow(self) -> Flow:
        return copying(self.broker.address, self.source, self.target)

    def feed(self) -> None:
        """Some more messages, over all partitions."""
        producer = kafka().Producer({"bootstrap.servers": self.broker.address, "linger.ms": 0})
        for n in range(self.count, self.count + STEP):
            producer.produce(self.source, json.dumps({"id": n}).encode(), partition=n % 3)
        assert producer.flush(WAIT_S) == 0
        self.count += STEP

    def reader(self) -> Watching:
        """A reader of the source by itself."""
        return Watching(self.broker.address, self.source)

    def seen(self) -> list[int]:
        found = self.broker.read(self.target)
        return sorted(json.loads(message.value())["id"] for message in found)

    def await_all(self, problem: Callable[[], Any]) -> None:
        """Wait until all that was fed is there, once."""
        deadline = time.monotonic() + WAIT_S
        while len(found := self.seen()) < self.count and time.monotonic() < deadline:
            assert problem() is None
            time.sleep(0.1)
        assert found == list(range(self.count))


class Watching:
    """A reader of all partitions that shall say when it is not known whether it is at the end."""

    def __init__(self, address: str, topic: str) -> None:
        topics = Topics.of(topic, None, None)
        source = KafkaSource(address, topics, startingOffsets="earliest", idleTimeout="200 ms")
        source.check()
        self.reader = source.open(SourceContext(0, 1, stage="watching"))

    def await_pending(self, pending: bool) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.reader.pending() != pending:
            assert time.monotonic() < deadline
            if self.reader.read(10_000, time.time_ns() // 1000) is None:
                time.sleep(0.01)


def copying(address: str, source: str, target: str) -> Flow:
    flow = Flow("copy")
    read = flow.kafka(
        address,
        subscribe=source,
        value="json",
        schema="id BIGINT",
        startingOffsets="earliest",
        shards=2,
        name="read",
    )
    read.select("id").kafka(address, topic=target, value="json", name="written")
    return flow


@pytest.fixture
def run(kafka_broker: KafkaBroker, tmp_path: Path) -> Copying:
    return Copying(kafka_broker, tmp_path / "store")


def test_hosts_and_the_broker_are_killed(run: Copying) -> None:
    query = start_local(
        run.flow(), hosts=3, standby=1, epochInterval="20 ms", checkpointLocation=run.store
    )
    for number, victim in enumerate(["written[0]", "read[1]", "written[0]", "read[0]"], 1):
        run.feed()
        query.kill(victim)
        run.feed()
        await_recovery(query, number, WAIT_S)
    run.await_all(query.exception)
    watching = run.reader()
    watching.await_pending(False)
    run.feed()
    run.broker.kill()
    watching.await_pending(True)  # or rows that come then would be late
    run.broker.start()
    run.feed()
    run.await_all(query.exception)
    watching.await_pending(False)
    watching.reader.close()
    query.kill("read[0]")
    run.feed()
    run.await_all(query.exception)
    query.stop()
    assert query.join()


def test_a_frozen_sink_wakes_up_and_writes_nothing(run: Copying) -> None:
    query = start_local(
        run.flow(),
        hosts=3,
        standby=1,
        epochInterval="20 ms",
        checkpointLocation=run.store,
        pingInterval="50 ms",
        pingTimeout="300 ms",
    )
    run.feed()
    await_epochs(query, 1, WAIT_S)
    query.freeze("written[0]", WAIT_S)
    run.feed()
    await_recovery(query, 1, WAIT_S)
    run.feed()
    run.await_all(query.exception)
    query.unfreeze()
    run.feed()
    run.await_all(query.exception)
    query.stop()
    assert query.join()


DRIVER = """
import sys, time
sys.path.insert(0, {folder!r})
from {module} import copying
from penstock.testing.local import start_local
query = start_local(
    copying(*{arguments!r}), epochInterval="20 ms", checkpointLocation={store!r}
)
query.awaitTermination({wait_s})
"""


def test_drivers_are_killed_and_others_go_on(run: Copying) -> None:
    here = Path(__file__)
    script = DRIVER.format(
        folder=str(here.parent),
        module=here.stem,
        arguments=(run.broker.address, run.source, run.target),
        store=run.store,
        wait_s=WAIT_S,
    )
    for times in (1, 2):
        run.feed()
        driver = subprocess.Popen([sys.executable, "-c", script])
        try:
            deadline = time.monotonic() + WAIT_S
            while len(run.seen()) < STEP * times and time.monotonic() < deadline:
                assert driver.poll() is None
                time.sleep(0.05)
            run.feed()  # what of this is published nobody knows
        finally:
            driver.send_signal(signal.SIGKILL)
            driver.wait(WAIT_S)
    run_local(run.flow(), checkpointLocation=run.store)
    assert run.seen() == list(range(run.count))


def batch(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values)})


def texts(broker: KafkaBroker, topic: str, isolation: str = "read_committed") -> list[str]:
    return sorted(message.value().decode() for message in broker.read(topic, isolation))


def test_a_producer_that_was_replaced_writes_nothing_and_disturbs_nobody(run: Copying) -> None:
    target = KafkaTarget({"bootstrap.servers": run.broker.address}, run.target, run.target)
    owner, other = Owner("run"), Owner("another")
    early, late = (TransactionalProducer(target, owner, n) for n in (3, 4))
    early.open()
    assert early.complete(0, [batch("a")])
    early.received({1: [batch("of the early one")]})
    late.open()
    assert not late.complete(0, [batch("a")])
    late.received({1: [batch("b")]})
    with pytest.raises(NotWrittenError, match="kafka: topic"):
        early.complete(1, [batch("of the early one")])
    with pytest.raises(PeerError, match="incarnation 3 of the sink was replaced by a later one"):
        early.complete(1, [batch("of the early one")])
    assert late.complete(1, [batch("b")])
    assert texts(run.broker, run.target) == ["a", "b"]
    newer = TransactionalProducer(target, other, -1)
    newer.open(force=True)
    with pytest.raises(NotWrittenError):
        late.complete(2, [batch("c")])
    with pytest.raises(SinkError, match="is being written to by another run"):
        late.complete(2, [batch("c")])
    assert newer.complete(2, [batch("c")])
    assert texts(run.broker, run.target) == ["a", "b", "c"]
    for producer in (early, late, newer):
        producer.close()


def test_what_became_of_a_commit_without_an_answer_is_found_out(run: Copying) -> None:
    target = KafkaTarget({"bootstrap.servers": run.broker.address}, run.target, run.target)
    producer = TransactionalProducer(target, Owner("run"), 0)
    producer.open()
    assert producer.complete(5, [batch("a")])
    producer.close()  # as if it had not heard of it
    assert not producer.complete(5, [batch("a")])
    assert producer.complete(6, [batch("b")])
    producer.close()
    assert texts(run.broker, run.target) == ["a", "b"]
