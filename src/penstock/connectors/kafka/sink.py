"""Rows into a Kafka topic: each epoch in one transaction, or without transactions at once.

Exactly once: all rows of an epoch go through one node, whose producer commits them together with
the epoch's number (see :mod:`.producer`).  Who reads with ``isolation.level=read_committed`` sees
whole epochs, each once.

At least once: every node gives the broker its rows as they come, and an epoch counts when the
broker has confirmed them all; after a failure some come again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from penstock.api.vertex import Time, Vertex, VertexContext
from penstock.connectors.base import Sink
from penstock.connectors.kafka.client import Brokers, client_settings, kafka
from penstock.connectors.kafka.producer import (
    ANSWER_S,
    DRIVER,
    KafkaTarget,
    Marks,
    TransactionalProducer,
    give,
    mapped,
    producer_settings,
)
from penstock.connectors.kafka.values import EncodeMessages
from penstock.connectors.ownership import Owner, taken
from penstock.core.delivery.guarantees import Guarantee, guarantee_named
from penstock.core.kafka.reading import Partition
from penstock.core.kafka.writing import Mark
from penstock.errors import NotWrittenError, SchemaError, SettingsError, SinkError
from penstock.operators.base import Exchange, Forward, Single

__all__ = ["KafkaWrite", "written"]


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_(kind) for is_ in (t.is_string, t.is_binary, t.is_large_string, t.is_large_binary)
    )


def _is_headers(kind: pa.DataType) -> bool:
    if not t.is_list(kind) or not t.is_struct(kind.value_type):
        return False
    return {field.name for field in kind.value_type} == {"key", "value"}


_FITS = {
    "key": (_is_text, "a string or binary"),
    "value": (_is_text, "a string or binary"),
    "partition": (lambda kind: t.is_int32(kind), "an int"),
    "headers": (_is_headers, "an array of structs of key and value"),
}
"""The columns of messages, and what they must be."""


def written(
    servers: str | None,
    topic: str,
    key: str | None,
    value: str | None,
    guarantee: str,
    writer: str | None,
    options: Mapping[str, Any],
) -> tuple[EncodeMessages | None, KafkaWrite]:
    """The stages that write a stream: what makes messages of rows, if they are none, and the sink.

    :meth:`penstock.Stream.kafka` explains the arguments.
    """
    if value not in (None, "json") or (value is None and key is not None):
        raise SettingsError(
            "kafka: value='json' makes messages of rows, with the column key as their key; leave "
            f"both out if the rows are messages; got value={value!r}, key={key!r}"
        )
    encode = None if value is None else EncodeMessages(key)
    return encode, KafkaWrite(servers, topic, guarantee_named(guarantee), writer, options)


class KafkaWrite(Sink):
    """Writes messages to a topic."""

    kind = "kafka"
    afresh = "another writer=..."

    def __init__(
        self,
        servers: str | None,
        topic: str,
        guarantee: Guarantee,
        writer: str | None,
        options: Mapping[str, Any],
    ) -> None:
        settings, rest = client_settings("sink", servers, options)
        if rest:
            raise SettingsError(
                f"kafka: no option {min(rest)!r}; the client's own begin with 'kafka.'"
            )
        if not topic or not isinstance(topic, str):
            raise SettingsError(f"kafka: topic must name a topic, got {topic!r}")
        self.to = KafkaTarget(settings, topic, writer or topic)
        self.durable = self.idempotent = guarantee is Guarantee.EXACTLY_ONCE
        self.guarantee = None if self.durable else guarantee
        """What the user asked for, if it is less than the flow's."""
        self.cluster = ""
        self._owner: Owner | None = None
        kafka()

    @property
    def transactions(self) -> bool:
        """Whether each epoch is one transaction."""
        return self.durable

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        if "value" not in schema.names:
            raise SchemaError(
                "kafka: messages need a column 'value' (and may have 'key', 'partition' and "
                "'headers'); or say value='json' to make it of all columns"
            )
        for field in schema:
            fits, wanted = _FITS.get(field.name, (None, ""))
            if fits is None:
                raise SchemaError(
                    f"kafka: messages have no {field.name!r}; leave it out with select(...), or "
                    "say value='json' to put it in the value",
                    column=field.name,
                )
            if not fits(field.type):
                raise SchemaError(
                    f"kafka: column {field.name!r} must be {wanted}, not {field.type}",
                    column=field.name,
                )
        return ()

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return (Single() if self.transactions else Forward(),)

    # -- on the driver ---------------------------------------------------------------------------

    def check(self) -> None:
        cluster = Brokers(self.to.settings, SinkError)
        self.cluster = cluster.id
        if Partition(self.to.topic, 0) not in cluster.partitions(self.to.topic):
            raise SinkError(
                f"kafka: there is no topic {self.to.topic!r}; create it first",
                topic=self.to.topic,
            )

    def target(self) -> str | None:
        if not self.transactions:
            return None
        own = "" if self.to.writer == self.to.topic else f", writer {self.to.writer}"
        return f"Kafka cluster {self.cluster}, topic {self.to.topic}{own}"

    def writes_as(self) -> str | None:
        return f"Kafka cluster {self.cluster}, writer {self.to.writer}" if self.durable else None

    def owner(self) -> Owner | None:
        found = self._mark()
        return None if found is None else found[1]

    def take(self, owner: Owner) -> None:
        before = self.owner()
        if before is not None and not before.is_of(owner) and before.is_alive():
            raise taken(str(self.to), before)
        self._owner = owner

    def prepare(self) -> None:
        """Fence what earlier runs have left, and claim the sink for this one."""
        if self._owner is None:
            return
        try:
            with closing(TransactionalProducer(self.to, self._owner, DRIVER)) as producer:
                producer.open(force=True)
        except NotWrittenError as error:
            raise SinkError(str(error)) from error

    def committed(self) -> int | None:
        found = self._mark()
        return None if found is None or found[0].epoch < 0 else found[0].epoch

    def _mark(self) -> tuple[Mark, Owner] | None:
        if not self.transactions:
            return None
        try:
            with mapped(str(self.to)), closing(Marks(self.to, settled=False)) as marks:
                return marks.read()
        except NotWrittenError as error:
            raise SinkError(str(error)) from error

    # -- in the hosts ----------------------------------------------------------------------------

    def vertex(self) -> Vertex:
        if not self.transactions:
            return _SendVertex(self.to)
        return _TransactionVertex(self.to, self._owner or Owner(""))

    def describe(self) -> str:
        how = "" if self.transactions else ", without transactions"
        return f"{self.to.topic} at {self.to.settings['bootstrap.servers']}{how}"


class _TransactionVertex(Vertex):
    """Gathers the rows of open epochs; publishes each when it is complete."""

    def __init__(self, to: KafkaTarget, owner: Owner) -> None:
        self._to, self._owner = to, owner
        self._open: dict[int, list[pa.RecordBatch]] = {}
        self._producer: TransactionalProducer | None = None

    def open(self, context: VertexContext) -> None:
        super().open(context)
        self._producer = TransactionalProducer(self._to, self._owner, context.place.incarnation)
        self._producer.open()

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        if time.epoch not in self._open:
            self._open[time.epoch] = []
            self.notifyAt(time)
        self._open[time.epoch].append(batch)
        if self._producer is not None:
            self._producer.received(self._open)

    def onNotify(self, time: Time) -> None:
        batches = self._open[time.epoch]
        if self._producer is not None and self._producer.complete(time.epoch, batches):
            self.count("epochs_published", 1)
            self.count("rows_published", sum(batch.num_rows for batch in batches))
        del self._open[time.epoch]

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()


class _SendVertex(Vertex):
    """Sends rows as they come; an epoch is done when the broker has them."""

    def __init__(self, to: KafkaTarget) -> None:
        self._to = to
        self._producer: Any = None
        self._failed: list[str] = []
        self._epochs: set[int] = set()

    def open(self, context: VertexContext) -> None:
        super().open(context)
        with mapped(str(self._to)):
            settings: Mapping[str, Any] = producer_settings(self._to.settings)
            reports = {**settings, "on_delivery": self._delivered}
            self._producer = kafka().Producer(reports)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(error.str())

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        if time.epoch not in self._epochs:
            self._epochs.add(time.epoch)
            self.notifyAt(time)
        with mapped(str(self._to)):
            give(self._producer, self._to.topic, batch)
        self._producer.poll(0)
        self.count("rows_sent", batch.num_rows)

    def onNotify(self, time: Time) -> None:
        with mapped(str(self._to)):
            missing = self._producer.flush(ANSWER_S)
        if self._failed:
            raise SinkError(
                f"{self._to}: the broker did not take a message: {self._failed[0]}. Start the flow "
                "again when it can be"
            )
        if missing:
            raise NotWrittenError(f"{self._to}: {missing} messages are not confirmed yet")
        self._epochs.discard(time.epoch)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.purge()
            self._producer = None
