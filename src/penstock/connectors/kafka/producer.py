"""A producer that commits each epoch in one transaction, with the mark of how far it has got.

What is done when, :mod:`penstock.core.kafka.writing` decides; here it is done.  The mark is the
offset of the consumer group ``penstock-<writer>`` for the first partition of the sink's topic: one
more than the last epoch, with the run that wrote it as metadata.

Whatever a client says that time may heal gives the producer up: the caller tries again later, and
:meth:`TransactionalProducer.open` finds out what has become of the last transaction.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from penstock.connectors.kafka.client import kafka, said, shared
from penstock.connectors.ownership import Owner, taken
from penstock.core.kafka.writing import (
    Abort,
    Begin,
    Claim,
    CommitEpoch,
    EpochTransactions,
    Mark,
    Produce,
    WriterEffect,
    standing,
)
from penstock.errors import NotWrittenError, PeerError, SinkError, require

__all__ = ["KafkaTarget", "TransactionalProducer", "give", "mapped", "producer_settings"]

ANSWER_S = 5.0
"""How long a broker may take to answer before the producer is given up."""
LOOK_S = 1.0
"""How long to look whether another one writes before registering."""
DRIVER = -1
"""The incarnation of the driver, which claims a sink for a run."""

AGAIN_S = 0.05

_NOT_READY = (
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "UNSTABLE_OFFSET_COMMIT",
    "_WAIT_COORD",
)
_FOR_GOOD = (
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "INVALID_MSG",
    "INVALID_MSG_SIZE",
    "INVALID_RECORD",
    "MSG_SIZE_TOO_LARGE",
    "POLICY_VIOLATION",
    "TOPIC_AUTHORIZATION_FAILED",
    "TOPIC_EXCEPTION",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "UNSUPPORTED_VERSION",
    "_AUTHENTICATION",
    "_INVALID_ARG",
    "_UNKNOWN_PARTITION",
)
"""Errors that no other try will mend."""


@dataclass(frozen=True)
class KafkaTarget:
    """Where a sink writes: it travels to the hosts."""

    settings: Mapping[str, Any]
    topic: str
    writer: str

    @property
    def name(self) -> str:
        """The transactional id, and the group of the mark."""
        return f"penstock-{self.writer}"

    def __str__(self) -> str:
        return f"kafka: topic {self.topic!r} (writer {self.writer!r})"


def producer_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What any producer of ours sets, unless the user does."""
    return {
        "partitioner": "murmur2_random",  # that of Java's clients: a key goes where theirs goes
        "queue.buffering.max.messages": 0,  # an epoch is in memory anyway
        "queue.buffering.max.kbytes": 2_147_483_647,
        "retry.backoff.ms": 5,  # a transaction may begin before the broker is done with the last
        **shared(settings),
        "delivery.report.only.error": True,
        "enable.idempotence": True,
    }


@contextlib.contextmanager
def mapped(what: str) -> Iterator[None]:
    """Turn a client's errors into those of sinks: worth another try, or not."""
    module = kafka()
    try:
        yield
    except (module.KafkaException, module.KafkaError) as error:
        # A KafkaError alone is raised by flush(), and is no Exception of Python's.
        first = error.args[0] if isinstance(error, module.KafkaException) else error
        if first.name() in _FOR_GOOD:
            raise SinkError(f"{what}: {said(error)}", code=first.name()) from error
        raise NotWrittenError(f"{what}: {said(error)}") from error


def give(producer: Any, topic: str, batch: pa.RecordBatch) -> None:
    """Give a producer a batch of messages; it sends them in its own thread."""
    names = batch.schema.names
    columns = [batch.column(name).to_pylist() for name in names]
    if {*names} <= {"key", "value"}:
        if names == ["value"]:
            rows = [{"value": value} for value in columns[0]]
        else:
            first, second = names
            rows = [{first: one, second: other} for one, other in zip(*columns, strict=True)]
        if producer.produce_batch(topic, rows) < len(rows):
            raise kafka().KafkaException(next(row["_error"] for row in rows if "_error" in row))
        return
    for values in zip(*columns, strict=True):  # a batch can have neither headers nor partitions
        message = {n: v for n, v in zip(names, values, strict=True) if v is not None}
        if "headers" in message:
            message["headers"] = [(pair["key"], pair["value"]) for pair in message["headers"]]
        producer.produce(topic, **message)


class TransactionalProducer:
    """The one producer of a sink that may commit; gives itself up when anything goes wrong."""

    def __init__(self, target: KafkaTarget, owner: Owner, incarnation: int) -> None:
        self._target = target
        self._owner = owner
        self._incarnation = incarnation
        self._producer: Any = None
        self._marks: Marks | None = None
        self._machine = EpochTransactions(-1)

    @property
    def is_open(self) -> bool:
        """Whether there is a producer."""
        return self._producer is not None

    def open(self, force: bool = False) -> None:
        """Register, read the mark and claim it; refused if a later one has it.

        The driver of a new run takes it by ``force``, whoever has it, and waits until all see that.
        """
        self._give_up()
        with mapped(str(self._target)):
            try:
                self._register(force)
            except BaseException:
                self._give_up()
                raise

    def _register(self, force: bool) -> None:
        target = self._target
        self._marks = Marks(target)  # all clients connect at the same time
        self._producer = kafka().Producer(
            {**producer_settings(target.settings), "transactional.id": target.name}
        )
        if not force:
            with closing(Marks(target, settled=False)) as marks:
                self._check(marks.soon())
        self._producer.init_transactions(ANSWER_S)
        found = self._marks.read()
        if not force:
            self._check(found)
        committed = found[0].epoch if found else -1
        self._machine = EpochTransactions(committed)
        self._producer.begin_transaction()
        self._commit(committed)
        if force:
            self._marks.read()

    def _check(self, found: tuple[Mark, Owner] | None) -> None:
        """Stop if the mark is somebody else's."""
        state = standing(found[0] if found else None, self._owner.run, self._incarnation)
        if state is Claim.MAY_CLAIM:
            return
        if state is Claim.OTHER_RUN:
            raise taken(str(self._target), found[1] if found else None)
        raise PeerError(
            f"{self._target}: incarnation {self._incarnation} of the sink was replaced by a later "
            "one and must stop"
        )

    def received(self, waiting: Mapping[int, Sequence[pa.RecordBatch]]) -> None:
        """Batches have come; if they cannot be given to the broker now, they are later."""
        if not self.is_open:
            return
        counts = {epoch: len(batches) for epoch, batches in waiting.items()}
        with contextlib.suppress(NotWrittenError):
            self._perform(self._machine.received(counts), waiting)

    def complete(self, epoch: int, batches: Sequence[pa.RecordBatch]) -> bool:
        """Publish an epoch; False if it was published before."""
        if not self.is_open:
            self.open()
        effects = self._machine.completed(epoch, len(batches))
        self._perform(effects, {epoch: batches})
        return bool(effects)

    def close(self) -> None:
        """End in order: the broker need not wait for the transaction that is open."""
        module = kafka()
        if self.is_open and self._machine.epoch is not None:
            with contextlib.suppress(module.KafkaException, module.KafkaError):
                self._producer.abort_transaction(LOOK_S)
        self._give_up()

    def _give_up(self) -> None:
        """Drop the clients; the producer's own close() would wait for a broker that is away."""
        producer, self._producer = self._producer, None
        marks, self._marks = self._marks, None
        if producer is not None:
            producer.purge()
        if marks is not None:
            marks.close()

    def _perform(
        self, effects: Sequence[WriterEffect], waiting: Mapping[int, Sequence[pa.RecordBatch]]
    ) -> None:
        try:
            with mapped(str(self._target)):
                for effect in effects:
                    self._do(effect, waiting)
        except BaseException:
            self._give_up()
            raise

    def _do(self, effect: WriterEffect, waiting: Mapping[int, Sequence[pa.RecordBatch]]) -> None:
        match effect:
            case Begin():
                self._producer.begin_transaction()
            case Produce(epoch, first, end):
                for batch in waiting[epoch][first:end]:
                    give(self._producer, self._target.topic, batch)
            case Abort():
                self._producer.abort_transaction(ANSWER_S)
            case CommitEpoch(epoch):
                self._commit(epoch)
                self._machine.was_committed(epoch)

    def _commit(self, epoch: int) -> None:
        """Commit what is in the transaction, with the mark."""
        marks = self._marks
        require(marks is not None, "a transaction is committed without a mark")
        if marks is not None:
            mark = marks.place(Mark(epoch, self._owner.run, self._incarnation), self._owner)
            self._producer.send_offsets_to_transaction([mark], marks.group, ANSWER_S)
        self._producer.commit_transaction(ANSWER_S)


class Marks:
    """Reads the mark of a sink.

    One that is being committed is waited for, unless the mark need not be ``settled``: a producer
    that died in the middle of that would hold up who asks.
    """

    def __init__(self, target: KafkaTarget, settled: bool = True) -> None:
        self._target = target
        self._consumer = kafka().Consumer(
            {
                **shared(target.settings),
                "group.id": target.name,
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if settled else "read_uncommitted",
            }
        )

    @property
    def group(self) -> Any:
        """What a transaction commits the mark with."""
        return self._consumer.consumer_group_metadata()

    def soon(self) -> tuple[Mark, Owner] | None:
        """The mark, if it can be had at once."""
        with contextlib.suppress(kafka().KafkaException, NotWrittenError):
            return self.read(LOOK_S)
        return None

    def read(self, timeout_s: float = ANSWER_S) -> tuple[Mark, Owner] | None:
        """The mark and who wrote it; None: nobody has yet."""
        deadline = time.monotonic() + timeout_s
        while (found := self._asked(timeout_s)) is None:
            if time.monotonic() > deadline:
                raise NotWrittenError(f"{self._target}: the coordinator of its group is not ready")
            time.sleep(AGAIN_S)
        if found.offset < 0 or not found.metadata:
            return None
        plain = json.loads(found.metadata)
        owner = Owner.from_plain(plain)
        return Mark(found.offset - 1, owner.run, int(plain["incarnation"])), owner

    def _asked(self, timeout_s: float) -> Any:
        """The offset that is the mark; None: the broker wants to be asked again."""
        module = kafka()
        try:
            asked = [module.TopicPartition(self._target.topic, 0)]
            (found,) = self._consumer.committed(asked, timeout_s)
            if found.error is not None:
                raise module.KafkaException(found.error)
        except module.KafkaException as error:
            if error.args[0].name() not in _NOT_READY:
                raise
            return None
        return found

    def place(self, mark: Mark, owner: Owner) -> Any:
        """A mark as an offset with metadata."""
        plain = {**asdict(owner), "incarnation": mark.incarnation}
        text = json.dumps(plain, separators=(",", ":"))
        return kafka().TopicPartition(self._target.topic, 0, mark.epoch + 1, text)

    def close(self) -> None:
        """End the client."""
        self._consumer.close()
