"""A real Kafka broker on loopback, for tests and for trying things out.

Its jars come from Maven Central by their coordinate, once a machine: ``mvn`` (Debian: apt-get
install maven) puts them into ``~/.cache/penstock``; ``PENSTOCK_KAFKA_JARS`` names a folder that has
them already.  One process is broker and controller (KRaft mode); it is ended by its process id.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from penstock.connectors.kafka.client import Brokers, Moment, kafka
from penstock.core.kafka.reading import Partition
from penstock.engine.spark.java import find_java
from penstock.errors import SettingsError, SourceError

__all__ = [
    "COORDINATE",
    "KafkaBroker",
    "MockBroker",
    "cache_folder",
    "kafka_jars",
    "messages_of",
]

COORDINATE = ("org.apache.kafka", "kafka_2.13", "4.3.1")
LOOPBACK = "127.0.0.1"
FETCH_S = 100.0
START_S = 60.0
READ_S = 120.0
"""Longer than the minute after which a broker aborts a transaction that nobody has ended."""
STOP_S = 15.0
POLL_S = 0.05

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId><artifactId>kafka-jars</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
  </dependency></dependencies>
</project>
"""
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
controlled.shutdown.enable=false
log.retention.ms=-1
"""


def cache_folder() -> Path:
    """Where things are kept that are fetched or started once a machine."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "penstock"


def kafka_jars() -> Path:
    """The folder with the broker's jars; fetches them if need be."""
    given = os.environ.get("PENSTOCK_KAFKA_JARS")
    folder = Path(given) if given else cache_folder() / f"kafka-{COORDINATE[2]}"
    if list(folder.glob(f"{COORDINATE[1]}-*.jar")):
        return folder
    if given:
        raise SettingsError(f"PENSTOCK_KAFKA_JARS: {folder} has no {COORDINATE[1]}-*.jar")
    maven = shutil.which("mvn")
    if maven is None:
        raise SettingsError(
            "a Kafka broker needs Maven to fetch its jars (Debian: apt-get install maven), or "
            "PENSTOCK_KAFKA_JARS with a folder that has them"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        (Path(scratch) / "pom.xml").write_text(_POM.format(*COORDINATE))
        _fetch(maven, Path(scratch))
        with contextlib.suppress(FileExistsError, OSError):  # another process was faster
            os.rename(Path(scratch) / "jars", folder)
    return folder


def _fetch(maven: str, scratch: Path) -> None:
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
    try:
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, timeout=FETCH_S, check=False
        )
        problem = (done.stdout + done.stderr).strip() if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"not within {FETCH_S:.0f} s"
    if problem:
        raise SettingsError(
            f"Maven could not fetch {':'.join(COORDINATE)}: {problem.splitlines()[0]}"
        )


class KafkaBroker:
    """One broker; what it has survives :meth:`kill` and :meth:`start`."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or _free_port()
        self._controller = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """What clients call ``bootstrap.servers``."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id; 0: it does not run."""
        return 0 if self._process is None else self._process.pid

    def start(self, outlives: bool = False) -> None:
        """Start it and wait until it answers; it ends with this process, unless it ``outlives``."""
        jars = kafka_jars()
        java = str(find_java().home / "bin" / "java")
        settings = self.folder / "server.properties"
        self.folder.mkdir(parents=True, exist_ok=True)
        settings.write_text(
            _SETTINGS.format(
                host=LOOPBACK, port=self.port, controller=self._controller, folder=self.folder
            )
        )
        command = [java, *_JVM, "-cp", f"{jars}/*"]
        if not (self.folder / "data" / "meta.properties").exists():
            self._format([*command, "kafka.tools.StorageTool"], settings)
        with open(self.folder / "broker.log", "ab") as log:
            self._process = subprocess.Popen(
                [*command, "kafka.Kafka", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=outlives,
                preexec_fn=None if outlives else _end_with_parent,
            )
        self._await()

    def kill(self) -> None:
        """End it at once, as a power cut does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Make a topic, or give one that is there more partitions."""
        admin = kafka().admin.AdminClient({"bootstrap.servers": self.address})
        if name in admin.list_topics(timeout=START_S).topics:
            more = admin.create_partitions([kafka().admin.NewPartitions(name, partitions)])
            more[name].result(START_S)
            return
        plain = {key.replace("_", "."): value for key, value in config.items()}
        made = admin.create_topics([kafka().admin.NewTopic(name, partitions, 1, config=plain)])
        made[name].result(START_S)
        while len(admin.list_topics(name, timeout=START_S).topics[name].partitions) < partitions:
            time.sleep(POLL_S)

    def read(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        """Every message that is in a topic now, partition by partition."""
        return messages_of(self.address, topic, isolation)

    def _format(self, command: list[str], settings: Path) -> None:
        number = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        subprocess.run(
            [*command, "format", "-t", number, "-c", str(settings)],
            check=True,
            capture_output=True,
            timeout=START_S,
        )

    def _await(self) -> None:
        deadline = time.monotonic() + START_S
        while self._process is not None and time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self.port), 1):
                return
            time.sleep(POLL_S)
        said = (self.folder / "broker.log").read_text(errors="replace").strip().splitlines()
        self.kill()
        raise SettingsError(f"the Kafka broker did not start: {said[-1:] or 'it said nothing'}")

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)


class MockBroker:
    """The client's own imitation of a broker, in this process: no Java, but no transactions either.

    It does not hide rows of open transactions, nor fence producers, nor keep the marks of sinks:
    for trying flows out, and for tests of what reads.
    """

    def __init__(self) -> None:
        self._client = kafka().Producer(
            {"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0}
        )
        (broker,) = self._client.list_topics(timeout=START_S).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def create_topic(self, name: str) -> None:
        """Make a topic; it has four partitions."""
        while name not in self._client.list_topics(name, timeout=START_S).topics:
            time.sleep(POLL_S)

    def read(self, topic: str) -> list[Any]:
        """Every message that is in a topic now, partition by partition."""
        return messages_of(self.address, topic, "read_committed")


def messages_of(address: str, topic: str, isolation: str) -> list[Any]:
    """Every message that is in a topic now, partition by partition.

    Transactions that are under way are waited for: a commit returns a little before its rows can be
    read.
    """
    module = kafka()
    consumer = module.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: list[Any] = []
    cluster = Brokers({"bootstrap.servers": address}, SourceError)
    missing = cluster.offsets(Moment("latest"), cluster.partitions(topic))
    deadline = time.monotonic() + READ_S
    try:
        consumer.assign([module.TopicPartition(*partition, 0) for partition in missing])
        while missing:
            if time.monotonic() > deadline:
                raise TimeoutError(f"topic {topic} was not read within {READ_S:.0f} s")
            for message in consumer.consume(10_000, 0.05):
                partition = Partition(message.topic(), message.partition())
                if message.error() is None:
                    found.append(message)
                elif message.error().code() == module.KafkaError._PARTITION_EOF:
                    missing = {
                        p: end
                        for p, end in missing.items()
                        if p != partition or message.offset() < end
                    }
    finally:
        consumer.close()
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return int(found.getsockname()[1])


def _end_with_parent() -> None:
    """Linux ends the process when the one that started it does."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
