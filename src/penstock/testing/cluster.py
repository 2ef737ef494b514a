"""A real standalone Spark cluster on loopback, for tests of flows across executors.

The pip package of PySpark has no start scripts, but its ``spark-class`` starts a master and workers
all the same. Everything that is started here is ended here, by process id: the workers with the
executors and Python workers under them first, then the master. Every wait has an end.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import pyspark

from penstock.engine.spark.java import find_java
from penstock.errors import SessionError

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 10.0
POLL_S = 0.05


class StandaloneCluster:
    """A master and workers as child processes, while the ``with`` block lasts.

    ::

        with StandaloneCluster(workers=2, cores=4) as cluster:
            spark = local_session(master=cluster.url)

    ``cores`` and ``memory`` are each worker's; more cores than the machine has are allowed. Logs
    and scratch files live in ``folder``, a temporary folder that is removed at the end.
    """

    def __init__(self, workers: int = 2, cores: int = 4, memory: str = "1g") -> None:
        self.workers = workers
        self.cores = cores
        self.memory = memory
        self.url = ""
        self.master_pid = 0
        self.worker_pids: tuple[int, ...] = ()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def __repr__(self) -> str:
        where = self.url or "not started"
        return f"StandaloneCluster({where}, {self.workers} workers of {self.cores} cores)"

    @property
    def folder(self) -> Path:
        """Where the logs (``master.log``, ``worker-0.log`` …) and the executors' folders are."""
        if self._scratch is None:
            raise SessionError("the cluster is not running: use it as a context manager")
        return Path(self._scratch.name)

    def __enter__(self) -> StandaloneCluster:
        self._scratch = tempfile.TemporaryDirectory(
            prefix="penstock-cluster-", ignore_cleanup_errors=True
        )
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self) -> None:
        # Port 0 everywhere: the kernel picks free ports, and the log says which.
        master = self._spawn("master", "master.Master", "--host", LOOPBACK, "--port", "0")
        self.master_pid = master.pid
        self.url = self._wait("master", r"Starting Spark master at (spark://\S+)").group(1)
        self._wait("master", "New state: ALIVE")
        for index in range(self.workers):
            scratch = self.folder / f"worker-{index}"
            scratch.mkdir()
            options = ("--cores", str(self.cores), "--memory", self.memory, "--host", LOOPBACK)
            self._spawn(
                f"worker-{index}",
                "worker.Worker",
                *options,
                "--work-dir",
                str(scratch),
                self.url,
            )
        self.worker_pids = tuple(process.pid for process in self._processes[1:])
        for index in range(self.workers):
            self._wait(f"worker-{index}", "Successfully registered with master")

    def _spawn(self, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        settings = self.folder / "log4j2.properties"
        if not settings.exists():
            settings.write_text(_LOG_SETTINGS, encoding="utf-8")
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_LOCAL_DIRS": str(self.folder),
            "SPARK_DAEMON_MEMORY": "256m",
            # Master and worker do little: to compile their code well costs more than it saves.
            "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile={settings.as_uri()}"
            " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{main}",
                    "--webui-port",
                    "0",
                    *arguments,
                ],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the test, which then ends them
            )
        self._processes.append(process)
        return process

    def _wait(self, name: str, pattern: str) -> re.Match[str]:
        log = self.folder / f"{name}.log"
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            found = re.search(pattern, _text(log))
            if found:
                return found
            ended = any(process.poll() is not None for process in self._processes)
            if ended or time.monotonic() > deadline:
                why = "ended" if ended else f"was not ready after {START_TIMEOUT_S:.0f} s"
                raise SessionError(f"the cluster's {name} {why}; its log:\n{_text(log)[-2000:]}")
            time.sleep(POLL_S)

    def executor_pids(self) -> dict[int, list[int]]:
        """The executors' JVMs that run now, per worker's process id."""
        children = _children()
        return {
            pid: [child for child in children.get(pid, []) if "Executor" in _command(child)]
            for pid in self.worker_pids
        }

    def stop(self) -> None:
        """End every process of the cluster, and remove its folder."""
        workers_first = [*self._processes[1:], *self._processes[:1]]
        family = descendants([process.pid for process in workers_first])
        for process in workers_first:
            process.terminate()
        deadline = time.monotonic() + END_TIMEOUT_S
        for process in workers_first:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid, born in family.items():
            # An id could have been given to another process since: compare the time of birth.
            if birth(pid) == born:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._processes.clear()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None


_LOG_SETTINGS = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    # The second field is the command in brackets and may hold blanks and brackets itself.
    try:
        return _text(Path(f"/proc/{pid}/stat")).rsplit(")", 1)[1].split()
    except IndexError:
        return []


def birth(pid: int) -> str | None:
    """When a process was born: an id can be given to another one."""
    fields = _stat(pid)
    return fields[19] if fields else None


def _command(pid: int) -> str:
    return _text(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    return children


def descendants(pids: list[int]) -> dict[int, str | None]:
    """The processes under ``pids`` with their times of birth."""
    children = _children()
    found: dict[int, str | None] = {}
    waiting = list(pids)
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in found:
                found[child] = birth(child)
                waiting.append(child)
    return found
