"""What the driver asks of the place where hosts run: Spark, or threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from penstock.connectors.spark_stage import SparkWork
from penstock.engine.driver.frame_runner import FrameJob
from penstock.engine.host.task import HostTask
from penstock.errors import PenstockError

__all__ = ["Job", "Launcher", "OnEnd"]

OnEnd = Callable[[int, PenstockError | None], None]
"""Called with a host's slot when its job has ended, and with the reason if it was lost."""


class Job(Protocol):
    """Runs one host and reports its end."""

    ended: threading.Event

    def start(self) -> None:
        """Let the host run; returns at once."""


class Launcher(Protocol):
    """Runs the hosts of one flow and the jobs of its DataFrame stages."""

    @property
    def one_machine(self) -> bool:
        """Whether all hosts share this machine's files."""

    @property
    def retries(self) -> bool:
        """Whether a host's task that dies is started again without being asked."""

    def host_job(self, task: HostTask, on_end: OnEnd, keep_memory: bool) -> Job:
        """A job for a host, not yet started; see ``KEEP_MEMORY`` in engine/spark/launch.py."""

    def frame_job(self, flow: str, stage: str, work: SparkWork) -> FrameJob:
        """The jobs of a stage that works on DataFrames."""

    def cancel(self) -> None:
        """End the jobs of all hosts that still run."""
