"""Rows from Kafka: the partitions of some topics, dealt out to shards, replayable by offset.

A shard assigns its partitions to a consumer itself; it is in no consumer group.  What it has read,
and what it reads again, :mod:`penstock.core.kafka.reading` decides.  If a ``kafka.group.id`` is
given, the offsets of published epochs are committed to that group, for other tools to see; the flow
itself goes on where its store says.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors.base import Position, Reader, Source, SourceContext
from penstock.connectors.kafka.client import (
    PASSING,
    Brokers,
    Moment,
    Outage,
    client_settings,
    kafka,
    said,
    shared,
)
from penstock.connectors.kafka.messages import MAKERS, message_schema
from penstock.core.kafka.reading import Partition, ShardReading, Stretch, shard_of
from penstock.durations import duration_us
from penstock.errors import SettingsError, SourceError

__all__ = ["KafkaReader", "KafkaSource", "Topics"]

_log = logging.getLogger(__name__)

_OPTIONS = (
    "endingOffsets",
    "endingTimestamp",
    "idleTimeout",
    "includeHeaders",
    "partitionPollInterval",
    "startingOffsets",
    "startingTimestamp",
)
MESSAGES_MAX = 10_000
"""Most messages that are taken from the consumer at once."""
WAITING_MAX = 100_000
"""A partition that has more messages waiting for another one's replay is paused."""
POLL_S = 0.002
"""How soon to look again when there is nothing."""
PLAN_S = 3.0
"""How long to wait for an answer where the flow is only planned."""
QUEUE_KB = 16_384
"""How much of a partition is fetched ahead."""
REPLAY_S = 60.0
"""How long a replay waits for messages that the broker has had."""
LOOK_AGAIN_S = 5.0
"""How soon to ask once more after an outage; a broker of other partitions may be away for long."""
GROUP_S = 1.0
"""How often offsets are committed to the group."""


@dataclass(frozen=True)
class Topics:
    """Which partitions are read: exactly one of the three says so."""

    subscribe: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[Partition, ...] = ()

    @classmethod
    def of(
        cls,
        subscribe: str | Sequence[str] | None,
        pattern: str | None,
        assign: Mapping[str, Sequence[int]] | None,
    ) -> Topics:
        """As the user says."""
        if sum(one is not None for one in (subscribe, pattern, assign)) != 1:
            raise SettingsError(
                "kafka: say what to read by one of subscribe='topic, topic', "
                "subscribePattern='regular expression', assign={'topic': [0, 1]}"
            )
        names = subscribe.split(",") if isinstance(subscribe, str) else subscribe or ()
        given = (assign or {}).items()
        return cls(
            tuple(sorted({name.strip() for name in names})),
            pattern,
            tuple(sorted(Partition(topic, n) for topic, numbers in given for n in numbers)),
        )

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"/{self.pattern}/"
        return ", ".join(self.subscribe or map(str, self.assigned))

    def partitions(self, cluster: Brokers) -> list[Partition]:
        """What is there of it now; a topic that is named and missing is an error."""
        names = self.subscribe
        if self.pattern is not None:
            names = tuple(cluster.matching(self.pattern))
        elif self.assigned:
            names = tuple(sorted({partition.topic for partition in self.assigned}))
        found: list[Partition] = []
        for name in names:
            partitions = cluster.partitions(name)
            if not partitions:
                raise SourceError(f"kafka: there is no topic {name!r}; create it first", topic=name)
            found += partitions
        missing = sorted(set(self.assigned) - set(found))
        if missing:
            raise SourceError(f"kafka: there is no partition {missing[0]}", topic=missing[0].topic)
        return list(self.assigned) or found


class KafkaSource(Source):
    """The messages of some topics; :meth:`penstock.Flow.kafka` explains the options."""

    def __init__(
        self,
        servers: str | None,
        topics: Topics,
        columns: Sequence[str] | None = None,
        shards: int | None = None,
        **options: Any,
    ) -> None:
        self.settings, options = client_settings("source", servers, options)
        for name in options:
            if name not in _OPTIONS:
                raise SettingsError(
                    f"kafka: no option {name!r}; there are: {', '.join(_OPTIONS)}, and the "
                    "client's own as 'kafka.…'"
                )
        if shards is not None and shards < 1:
            raise SettingsError(f"kafka: shards must be 1 or more, got {shards!r}")
        self.topics = topics
        self.shards_wanted = shards
        self.schema = message_schema(columns, bool(options.get("includeHeaders", False)))
        self.start = Moment.of(
            "starting",
            options.get("startingOffsets", "latest"),
            options.get("startingTimestamp"),
            ("earliest", "latest"),
        )
        self.end: Moment | None = None
        if options.keys() & {"endingOffsets", "endingTimestamp"}:
            self.end = Moment.of(
                "ending", options.get("endingOffsets"), options.get("endingTimestamp"), ("latest",)
            )
        poll = options.get("partitionPollInterval", "5 seconds")
        self.poll_s = duration_us(poll, "partitionPollInterval") / 1e6
        self.idle_s = duration_us(options.get("idleTimeout", "1 second"), "idleTimeout") / 1e6
        self.group = self.settings.get("group.id")
        self.cluster = ""
        self.starts: dict[Partition, int] = {}
        """Of each partition, as of the flow's start: where a new flow begins."""
        self.lows: dict[Partition, int] = {}
        self.latest: dict[Partition, int] = {}
        self.ends: dict[Partition, int] | None = None
        kafka()

    def shards(self, wanted: int) -> int:
        """One for each partition: then event time is that of each partition by itself."""
        if self.shards_wanted is not None:
            return self.shards_wanted
        try:
            cluster = Brokers(self.settings, SourceError, PLAN_S)
            return len(self.topics.partitions(cluster)) or wanted
        except SourceError as error:  # of which the start of a flow says more
            _log.info("planned without knowing the partitions: %s", error)
            return wanted

    def check(self) -> None:
        """Find the partitions, and the offsets that the options mean: the same for all shards."""
        cluster = Brokers(self.settings, SourceError)
        partitions = self.topics.partitions(cluster)
        self.cluster = cluster.id
        self.starts = cluster.offsets(self.start, partitions)
        self.lows = cluster.offsets(Moment("earliest"), partitions)
        self.latest = cluster.offsets(Moment("latest"), partitions)
        self.ends = None if self.end is None else cluster.offsets(self.end, partitions)
        for partition in partitions:
            if not self.lows[partition] <= self.starts[partition] <= self.latest[partition]:
                raise SourceError(
                    f"kafka: startingOffsets says {self.starts[partition]} for {partition}, which "
                    f"has the offsets {self.lows[partition]} to {self.latest[partition]}",
                    topic=partition.topic,
                )

    def open(self, context: SourceContext) -> KafkaReader:
        return KafkaReader(self, context)

    def target(self) -> str:
        return f"Kafka cluster {self.cluster}, {self.topics}"

    def describe(self) -> str:
        return f"{self.topics} at {self.settings['bootstrap.servers']}"


class KafkaReader(Reader):
    """The partitions of one shard."""

    def __init__(self, source: KafkaSource, context: SourceContext) -> None:
        self._source = source
        self._shard, self._shards = context.shard, context.shards
        self._resumable = context.resumable and source.end is None
        self._recorded = context.recorded
        self._reading = ShardReading(context.position, context.journal)
        starts = source.starts if self._reading.is_new else source.lows
        self._reading.found(self._mine(starts))
        self._ends: dict[Partition, int] | None = None
        if source.ends is not None or context.available_now:
            self._ends = self._mine(source.latest if source.ends is None else source.ends)
        self._waiting: dict[Partition, deque[Any]] = {}
        """Messages that came while others were read again."""
        self._paused: set[Partition] = set()
        self._end_seen: dict[Partition, int] = {}
        """The end of each partition, where it was reached and nothing has come since."""
        self._quiet_since_s: dict[Partition, float] = {}
        self._asked: set[Partition] = set()
        """Partitions of which it is asked anew whether they are at their ends."""
        self._outage = Outage(source.settings["bootstrap.servers"])
        self._errors = 0
        self._look_again_s = 0.0
        self._released: Position = context.position
        self._commit_us = 0
        self._columns = [MAKERS[name] for name in source.schema.names]
        module = kafka()
        self._eof = module.KafkaError._PARTITION_EOF
        self._consumer = module.Consumer(
            {
                "group.id": f"penstock-{context.stage}",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": QUEUE_KB,
                **shared(source.settings, self._outage),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
            }
        )
        self._assign(self._reading.offsets)
        self._watch: PartitionWatch | None = None

    # -- Reader ----------------------------------------------------------------------------------

    @property
    def counters(self) -> Mapping[str, int]:
        """How far it is behind the ends of its partitions."""
        behind = 0
        with contextlib.suppress(RuntimeError):  # it is closed
            for partition, offset in list(self._reading.offsets.items()):
                known = self._consumer.get_watermark_offsets(_place(partition), cached=True)
                behind += max(0, known[1] - offset) if known else 0
        return {"lag": behind, "partitions": len(self._reading.offsets)}

    def read(self, rows_max: int, now_us: int, until: Position = None) -> pa.RecordBatch | None:
        if until is not None:
            return self._read_until(rows_max, until)
        self._watch_partitions()
        self._look_again()
        if now_us >= self._commit_us:
            self._commit_us = now_us + int(GROUP_S * 1e6)
            self._commit()
        messages = self._not_beyond(self._next(min(rows_max, MESSAGES_MAX)))
        return self._given(messages, new=True) if messages else None

    def read_again(self, rows: int) -> pa.RecordBatch | None:
        run = self._reading.next_run()
        if run is None:
            raise SourceError(
                f"kafka: {self._source.topics}: it is not noted from which partition row "
                f"{self._reading.rows} came; the store was damaged or copied back in part"
            )
        rows = min(rows, run.rows)
        recorded = self._recorded["rows"] if self._recorded else 0
        if self._reading.rows < recorded:  # to look at the offsets there
            rows = min(rows, recorded - self._reading.rows)
        return self._given(self._fetched(run.partition, rows), new=False)

    def position(self) -> Position:
        return self._reading.position()

    def journal(self) -> Any | None:
        return self._reading.take_note()

    def exhausted(self) -> bool:
        ends = self._ends
        return ends is not None and all(self._is_at(p, end) for p, end in ends.items())

    def grows(self) -> bool:
        return self._resumable

    def pending(self) -> bool:
        """Whether event time must wait: for a partition that was not at its end for long enough."""
        idle_s = time.monotonic() - self._source.idle_s
        since = self._quiet_since_s
        waits = any(since.get(one, idle_s + 1) > idle_s for one in self._reading.offsets)
        return waits or any(self._waiting.values())

    def wait_s(self, now_us: int) -> float:
        return POLL_S

    def release(self, position: Position) -> None:
        self._released = position

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._commit()
        self._consumer.close()

    # -- what is new -----------------------------------------------------------------------------

    def _watch_partitions(self) -> None:
        """Look now and then, in another thread, for partitions that are new."""
        if self._watch is None:
            self._watch = PartitionWatch(self._source, self._source.lows)
        known = self._reading.offsets
        found = {p: at for p, at in self._mine(self._watch.take()).items() if p not in known}
        if not found:
            return
        _log.info("kafka: found %s", ", ".join(map(str, found)))
        self._reading.found(found)
        self._assign({p: self._reading.offsets[p] for p in found}, more=True)

    def _look_again(self) -> None:
        """After an outage it is not known whether the partitions are still at their ends."""
        news = self._errors != self._outage.errors
        if not (news or self._asked) or time.monotonic() < self._look_again_s:
            return
        if any(self._waiting.values()):  # they would come twice
            return
        self._errors = self._outage.errors
        self._look_again_s = time.monotonic() + LOOK_AGAIN_S
        if news:
            self._asked |= self._end_seen.keys()
            self._end_seen.clear()
            self._quiet_since_s.clear()
        for partition in sorted(self._asked):  # the end is told anew
            with contextlib.suppress(kafka().KafkaException):  # then the next time
                self._consumer.seek(_place(partition, self._reading.offsets[partition]))

    def _next(self, most: int) -> list[Any]:
        """Messages that wait, or else those that have come."""
        for partition, waiting in self._waiting.items():
            if waiting:
                taken = [waiting.popleft() for _ in range(min(most, len(waiting)))]
                self._resume(partition)
                return taken
        return self._consumed(most, 0.0)

    def _not_beyond(self, messages: list[Any]) -> list[Any]:
        """Without those that are behind the end, where there is one."""
        ends = self._ends
        if ends is None:
            return messages
        return [m for m in messages if m.offset() < ends.get(_partition(m), 0)]

    def _is_at(self, partition: Partition, end: int) -> bool:
        at = self._reading.offsets.get(partition, 0)
        return max(at, self._end_seen.get(partition, 0)) >= end

    # -- what was read before --------------------------------------------------------------------

    def _read_until(self, rows_max: int, until: Position) -> pa.RecordBatch | None:
        """The next rows before a recorded position, in the order that was noted, if one was."""
        offsets = self._reading.offsets
        bounds = {Partition(topic, number): end for topic, number, end in until["offsets"]}
        open_ = sorted(p for p, end in bounds.items() if offsets.get(p, 0) < end)
        if not open_:
            return None
        run = self._reading.next_run()
        if run is None or run.partition not in open_:
            run = Stretch(open_[0], rows_max)
        end = bounds[run.partition]
        messages = self._fetched(run.partition, min(rows_max, run.rows), end)
        return self._given(messages, new=False)

    def _fetched(self, partition: Partition, most: int, end: int | None = None) -> list[Any]:
        """Messages of one partition that were read before, at least one."""
        waiting = self._waiting.setdefault(partition, deque())
        deadline = time.monotonic() + REPLAY_S
        while not waiting:
            self._resume(partition)
            for message in self._consumed(MESSAGES_MAX, 0.1):
                self._waiting.setdefault(_partition(message), deque()).append(message)
            self._pause_others(partition)
            if partition in self._end_seen and not waiting:
                self._lost(partition, "they are not there any more")
            if not waiting and time.monotonic() > deadline:
                raise SourceError(
                    f"kafka: {partition} from offset {self._reading.offsets[partition]} on must be "
                    f"read again, and no broker has given it within {REPLAY_S:.0f} s. Nothing is "
                    "lost: start the flow again with the same checkpointLocation when it can be",
                    topic=partition.topic,
                )
        taken: list[Any] = []
        while waiting and len(taken) < most and (end is None or waiting[0].offset() < end):
            taken.append(waiting.popleft())
        if not taken:
            self._lost(partition, "others have come in their place")
        return taken

    def _pause_others(self, partition: Partition) -> None:
        full = [
            other
            for other, waiting in self._waiting.items()
            if len(waiting) > WAITING_MAX and other != partition and other not in self._paused
        ]
        if full:
            self._consumer.pause([_place(other) for other in full])
            self._paused.update(full)

    def _resume(self, partition: Partition) -> None:
        if partition in self._paused and not self._waiting[partition]:
            self._paused.remove(partition)
            self._consumer.resume([_place(partition)])

    def _lost(self, partition: Partition, why: str) -> None:
        raise SourceError(
            f"kafka: rows of {partition} from offset {self._reading.offsets.get(partition)} on are "
            f"still needed, and {why}: the topic was truncated, compacted or made anew, or its "
            "retention is shorter than the flow was away. Start with a new checkpointLocation, and "
            "keep what the topic has for longer",
            topic=partition.topic,
            partition=partition.number,
        )

    # -- the consumer ----------------------------------------------------------------------------

    def _mine(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Those of the partitions that this shard reads."""
        return {p: at for p, at in offsets.items() if shard_of(p, self._shards) == self._shard}

    def _assign(self, offsets: Mapping[Partition, int], more: bool = False) -> None:
        places = [_place(partition, offset) for partition, offset in offsets.items()]
        if more:
            self._consumer.incremental_assign(places)
        elif places:
            self._consumer.assign(places)

    def _consumed(self, most: int, timeout_s: float) -> list[Any]:
        """Messages as they come; what else the consumer says is dealt with here."""
        if not self._reading.offsets:
            return []
        messages: list[Any] = self._consumer.consume(most, timeout_s)
        if any([m.error() is not None for m in messages]):  # noqa: C419 (a list is faster)
            for message in messages:
                if message.error() is not None:
                    self._told(message)
            messages = [m for m in messages if m.error() is None]
        return messages

    def _told(self, message: Any) -> None:
        error = message.error()
        if error.code() == self._eof:
            self._end_seen[_partition(message)] = message.offset()
            self._quiet_since_s[_partition(message)] = time.monotonic()
            self._asked.discard(_partition(message))
        elif error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            self._lost(_partition(message), "the broker does not have them any more")
        elif error.name() not in PASSING:
            raise SourceError(f"kafka: {self._source.topics}: {error.str()}", code=error.name())

    def _given(self, messages: list[Any], new: bool) -> pa.RecordBatch:
        """A batch of messages, which leaves now."""
        runs, offsets = self._runs(messages)
        self._reading.took(runs, offsets, new)
        for partition, offset in offsets.items():
            self._asked.discard(partition)
            if self._end_seen.get(partition, -1) < offset:  # else it is behind these messages
                self._end_seen.pop(partition, None)
                self._quiet_since_s.pop(partition, None)
        if not new:
            for partition in self._reading.check(self._recorded):
                self._lost(partition, "there are fewer than were read before")
        arrays = [make(messages, runs) for make in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._source.schema)

    def _runs(self, messages: list[Any]) -> tuple[list[Stretch], dict[Partition, int]]:
        """Where messages come from, and the offsets after them."""
        known = list(self._reading.offsets)
        if len(known) == 1:
            return [Stretch(known[0], len(messages))], {known[0]: messages[-1].offset() + 1}
        numbers = np.array([m.partition() for m in messages])
        if len({partition.topic for partition in known}) > 1:
            index = {topic: n for n, topic in enumerate({p.topic for p in known})}
            numbers = numbers * len(index) + np.array([index[m.topic()] for m in messages])
        bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(messages)]
        runs: list[Stretch] = []
        offsets: dict[Partition, int] = {}
        for start, end in itertools.pairwise(bounds):
            last = messages[end - 1]
            runs.append(Stretch(_partition(last), end - start))
            offsets[runs[-1].partition] = last.offset() + 1
        return runs, offsets

    def _commit(self) -> None:
        """Tell the group, if there is one, how far what is published goes."""
        position, self._released = self._released, None
        if position is None or self._source.group is None:
            return
        places = [_place(Partition(t, n), offset) for t, n, offset in position["offsets"]]
        if not places:
            return
        try:
            self._consumer.commit(offsets=places, asynchronous=True)
        except kafka().KafkaException as error:
            _log.warning("kafka: group %s was not told: %s", self._source.group, said(error))


class PartitionWatch:
    """Asks the cluster now and then for partitions that are not known yet."""

    def __init__(self, source: KafkaSource, known: Iterable[Partition]) -> None:
        self._source = source
        self._known = set(known)
        self._found: dict[Partition, int] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-kafka-topics", daemon=True)
        if source.poll_s and not source.topics.assigned:
            self._thread.start()

    def take(self) -> dict[Partition, int]:
        """The partitions found since the last call, each with its earliest offset."""
        if not self._found:
            return {}
        found, self._found = self._found, {}
        return found

    def close(self) -> None:
        """Ask no more; an answer that is awaited is not waited for."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._source.poll_s):
            try:
                cluster = Brokers(self._source.settings, SourceError)
                new = set(self._source.topics.partitions(cluster)) - self._known
                found = cluster.offsets(Moment("earliest"), sorted(new)) if new else {}
            except SourceError as error:
                _log.warning("kafka: no news of partitions: %s", error)
                continue
            self._known |= found.keys()
            self._found = self._found | found


def _partition(message: Any) -> Partition:
    return Partition(message.topic(), message.partition())


def _place(partition: Partition, offset: int | None = None) -> Any:
    module = kafka()
    if offset is None:
        return module.TopicPartition(*partition)
    return module.TopicPartition(*partition, offset)
