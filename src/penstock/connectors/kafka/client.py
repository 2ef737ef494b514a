"""Clients of a Kafka cluster: their settings, their errors in words, what they know of topics."""

from __future__ import annotations

import importlib
import json
import logging
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core.kafka.reading import Partition
from penstock.errors import PenstockError, SettingsError

__all__ = [
    "Brokers",
    "Moment",
    "Outage",
    "PASSING",
    "client_settings",
    "kafka",
    "said",
    "shared",
]

_log = logging.getLogger(__name__)

ANSWER_S = 10.0
"""How long the driver waits for an answer."""
OUTAGE_S = 10.0
"""How often an outage is said again."""

PASSING = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_TIMED_OUT_QUEUE")
"""Errors after which a client goes on by itself."""

_OURS = {
    "auto.offset.reset": "startingOffsets",
    "enable.auto.commit": "nothing: offsets are committed when their rows are published",
    "enable.auto.offset.store": "nothing",
    "enable.idempotence": "nothing: it is on",
    "enable.partition.eof": "nothing",
    "transactional.id": "writer",
}
"""Settings of the client that the connectors set, and what to use instead."""


def kafka() -> Any:
    """The module ``confluent_kafka``; imported only where a flow asks for it."""
    try:
        importlib.import_module("confluent_kafka.admin")
        return importlib.import_module("confluent_kafka")
    except ImportError as error:
        raise SettingsError(
            "kafka: the package confluent-kafka is missing; pip install 'penstock[kafka]'"
        ) from error


def said(error: BaseException) -> str:
    """A client's error in words."""
    first = error.args[0] if error.args else error
    text = first.str() if hasattr(first, "str") and callable(first.str) else str(first)
    return " ".join(str(text).split())


def shared(settings: Mapping[str, Any], outage: Outage | None = None) -> dict[str, Any]:
    """The user's settings, after those that all clients have.

    Clients would say each attempt to connect; here an outage is said now and then.
    """
    return {
        "error_cb": outage or Outage(settings["bootstrap.servers"]),
        "log_level": 2,
        "logger": _log,
        "reconnect.backoff.max.ms": 1_000,
        **settings,
    }


def client_settings(
    what: str, servers: str | None, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The client's settings (options that begin with ``kafka.``) and the other options.

    >>> client_settings("source", None, {"kafka.bootstrap.servers": "a:1", "x": 2})
    ({'bootstrap.servers': 'a:1'}, {'x': 2})
    """
    settings: dict[str, Any] = {} if servers is None else {"bootstrap.servers": servers}
    rest: dict[str, Any] = {}
    for name, value in options.items():
        if not name.startswith("kafka."):
            rest[name] = value
            continue
        plain = name.removeprefix("kafka.")
        if plain in _OURS:
            raise SettingsError(f"kafka {what}: {name} is not yours to set; use {_OURS[plain]}")
        settings[plain] = value
    if not settings.get("bootstrap.servers"):
        raise SettingsError(
            f"kafka {what}: say which cluster: kafka(servers='host:9092', ...), or the option "
            "'kafka.bootstrap.servers'"
        )
    return settings, rest


@dataclass(frozen=True)
class Moment:
    """Where to begin or to end: "earliest", "latest", offsets, or a time."""

    name: str | None = None
    offsets: Mapping[Partition, int] = field(default_factory=dict)
    at_ms: int | None = None

    @classmethod
    def of(cls, what: str, offsets: Any, timestamp: Any, names: Iterable[str]) -> Moment:
        """As the options say: offsets as in Spark, a time as milliseconds or ``datetime``."""
        if timestamp is not None:
            seconds = getattr(timestamp, "timestamp", None)
            try:
                at_ms = int(timestamp) if seconds is None else round(seconds() * 1000)
            except (TypeError, ValueError) as error:
                raise SettingsError(
                    f"kafka: {what}Timestamp is a datetime or milliseconds since 1970, got "
                    f"{timestamp!r}"
                ) from error
            return cls(at_ms=at_ms)
        if isinstance(offsets, str) and offsets in names:
            return cls(offsets)
        try:
            plain = json.loads(offsets) if isinstance(offsets, str) else dict(offsets)
            found = {
                Partition(str(topic), int(number)): int(offset)
                for topic, numbers in plain.items()
                for number, offset in numbers.items()
            }
        except (TypeError, ValueError, AttributeError) as error:
            known = " or ".join(map(repr, names))
            raise SettingsError(
                f"kafka: {what}Offsets is {known}, or offsets such as "
                f'{{"orders": {{"0": 23, "1": -2}}}} (-2 is the earliest, -1 the latest), got '
                f"{offsets!r}"
            ) from error
        return cls(offsets=found)


class Brokers:
    """What a cluster says of its topics; asks until it is closed, and waits for each answer."""

    def __init__(
        self, settings: Mapping[str, Any], error: type[PenstockError], wait_s: float = ANSWER_S
    ) -> None:
        self._error = error
        self._shown = settings["bootstrap.servers"]
        admin = kafka().admin
        self._spec = admin.OffsetSpec
        with self._mapped("the settings of the client are refused"):
            self._admin = admin.AdminClient(shared(settings))
        with self._mapped(f"no broker answers at {self._shown}"):
            self._topics = self._admin.list_topics(timeout=wait_s)

    def _mapped(self, what: str) -> _Mapped:
        return _Mapped(self._error, f"kafka: {what}")

    @property
    def id(self) -> str:
        """The cluster's id, whichever of its brokers answers."""
        return str(self._topics.cluster_id)

    def partitions(self, topic: str) -> list[Partition]:
        """A topic's partitions; none, if there is no such topic."""
        found = self._topics.topics.get(topic)
        if found is None or found.error is not None:
            return []
        return [Partition(topic, number) for number in sorted(found.partitions)]

    def matching(self, pattern: str) -> list[str]:
        """The topics that a pattern matches as a whole, but for Kafka's own."""
        return sorted(
            name
            for name in self._topics.topics
            if re.fullmatch(pattern, name) and not name.startswith("__")
        )

    def offsets(self, moment: Moment, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset of each partition at a moment."""
        wanted: dict[Partition, Any] = {}
        found: dict[Partition, int] = {}
        for partition in partitions:
            offset = moment.offsets.get(partition)
            if moment.at_ms is not None:
                wanted[partition] = self._spec.for_timestamp(moment.at_ms)
            elif moment.name == "earliest" or offset == -2:
                wanted[partition] = self._spec.earliest()
            elif moment.name == "latest" or offset == -1:
                wanted[partition] = self._spec.latest()
            elif offset is not None and offset >= 0:
                found[partition] = offset
            else:
                raise self._error(
                    f"kafka: no offset is given for {partition}; give one for each partition, -2 "
                    "for the earliest, -1 for the latest"
                )
        found |= self._ask(wanted)
        beyond = [partition for partition, offset in found.items() if offset < 0]
        if beyond:  # nothing is as new as the time that was asked for
            found |= self._ask(dict.fromkeys(beyond, self._spec.latest()))
        return found

    def _ask(self, wanted: Mapping[Partition, Any]) -> dict[Partition, int]:
        if not wanted:
            return {}
        one = kafka().TopicPartition
        with self._mapped("offsets could not be found out"):
            futures = self._admin.list_offsets(
                {one(*partition): spec for partition, spec in wanted.items()},
                request_timeout=ANSWER_S,
            )
            return {
                Partition(asked.topic, asked.partition): future.result(timeout=ANSWER_S).offset
                for asked, future in futures.items()
            }


class Outage:
    """What a client calls with its errors: says now and then that no broker answers."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._next_s = 0.0
        self.errors = 0
        """How often a broker could not be reached."""

    def __call__(self, error: Any) -> None:
        if error.name() in PASSING:
            self.errors += 1
        now_s = time.monotonic()
        if error.name() == "_ALL_BROKERS_DOWN" and now_s >= self._next_s:
            self._next_s = now_s + OUTAGE_S
            _log.warning("kafka: no broker answers at %s; waiting", self._servers)


class _Mapped:
    """Turns a client's errors into one of ours."""

    def __init__(self, error: type[PenstockError], what: str) -> None:
        self._error, self._what = error, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        module = kafka()
        if isinstance(error, module.KafkaException | module.KafkaError | TimeoutError):
            raise self._error(f"{self._what}: {said(error)}") from error
