"""The stages with Spark jobs of one run: their folders, and their place in its life."""

from __future__ import annotations

import logging
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

from penstock.connectors.spark_stage import SparkCommit, SparkResults, SparkWork, SparkWrite
from penstock.engine.driver.frame_runner import FrameRunner
from penstock.engine.driver.launcher import Launcher
from penstock.engine.store.flow_store import FlowStore
from penstock.errors import PenstockError
from penstock.operators.base import SourceOperator
from penstock.planning.physical import PhysicalPlan

__all__ = ["Frames", "settle_frames", "spark_works"]

log = logging.getLogger(__name__)

JOIN_S = 0.5


def spark_works(plan: PhysicalPlan) -> dict[str, SparkWork]:
    """The stages with Spark jobs, by the name of the stage that gives their results."""
    return {
        stage.name: stage.operator.source.work
        for chain in plan.chains
        for stage in chain.stages
        if isinstance(stage.operator, SourceOperator)
        and isinstance(stage.operator.source, SparkResults)
    }


def settle_frames(plan: PhysicalPlan, store: FlowStore | None) -> None:
    """Give each stage with Spark jobs its folder: in the flow's store, or one that goes."""
    for name, work in spark_works(plan).items():
        if store is not None:
            work.path, work.temporary = str(store.path / "spark" / name), None
        else:
            work.temporary = TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True)
            work.path = work.temporary.name
    for chain in plan.chains:
        for stage in chain.stages:
            if isinstance(stage.operator, SparkWrite | SparkCommit):
                stage.operator.settle()


class Frames:
    """The stages with Spark jobs of one run."""

    def __init__(
        self,
        launcher: Launcher,
        plan: PhysicalPlan,
        on_broken: Callable[[PenstockError], None],
    ) -> None:
        works = spark_works(plan)
        self._works = list(works.values())
        self._runners: dict[str, FrameRunner] = {}
        """By the name of the sink in front."""
        sinks = {
            stage.operator.work: stage.name
            for chain in plan.chains
            for stage in chain.stages
            if isinstance(stage.operator, SparkCommit)
        }
        for name, work in works.items():
            job = launcher.frame_job(plan.flow, name, work)
            self._runners[sinks[work]] = FrameRunner(name, work, job, on_broken)
        self._stopped = False
        self._last: list[dict[str, Any]] | None = None
        """What was to be said at the end; the folders may be gone."""

    def start(self) -> None:
        """The flow runs."""
        for runner in self._runners.values():
            runner.start()

    def advance(self, sink: str, epoch: int) -> None:
        """A sink has published every epoch up to this one."""
        if sink in self._runners:
            self._runners[sink].advance(epoch)

    def input_ended(self, sink: str) -> None:
        """A sink has come to the end of its input."""
        if sink in self._runners and not self._stopped:
            self._runners[sink].input_ended()

    def stop(self) -> None:
        """The flow is to end: what has no result yet is for the next run."""
        self._stopped = True
        for runner in self._runners.values():
            runner.stop()

    def close(self) -> PenstockError | None:
        """The flow is over; give the reason if a stage could not do its last work."""
        ended = not self._stopped
        self.stop()
        for runner in self._runners.values():
            if not runner.join(JOIN_S):
                log.warning("stage %r: its function still runs, and is left behind", runner.name)
        self._last = self.figures()
        for work in self._works:
            if work.temporary is not None:
                work.temporary.cleanup()
        failures = [runner.failure for runner in self._runners.values() if runner.failure]
        return failures[0] if ended and failures else None

    def figures(self) -> list[dict[str, Any]]:
        """What the progress says of each."""
        if self._last is not None:
            return self._last
        return [runner.figures() for runner in self._runners.values()]

    def failures(self) -> dict[str, str]:
        """The stages whose last call failed, and why."""
        runners = self._runners.values()
        return {runner.name: runner.failure.message for runner in runners if runner.failure}
