"""A person's tools on a running flow: checkpoints on demand, rollbacks, and what would happen.

The waiting side, on the caller's thread; what the controller does is in :mod:`.recovery_requests`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from penstock.core.control.controller import FlowPhase
from penstock.engine.driver.controller import Controller
from penstock.engine.driver.prepare import PreparedRun
from penstock.engine.driver.recovery import Recovery
from penstock.engine.host.clock import now_us
from penstock.errors import PenstockError, SettingsError, TransientError

__all__ = ["Rollbacks"]

T = TypeVar("T")

AGAIN_S = 1.0
"""A request for checkpoints is repeated after this long: a node may have restarted meanwhile."""
EPOCHS_S = 2.0
"""An epoch that is not complete everywhere by then is not waited for."""


class Rollbacks:
    """Checkpoints, rollbacks and previews of a flow that runs; see :class:`.query.FlowQuery`.

    ``ended`` is set at the end of the flow; ``error`` gives what made it fail.
    """

    def __init__(
        self,
        controller: Controller,
        run: PreparedRun,
        ended: threading.Event,
        error: Callable[[], PenstockError | None],
    ) -> None:
        self.name = run.flow.name
        self._controller = controller
        self._settings = run.settings
        self._ended = ended
        self._error = error

    def checkpoint(self, timeout: float) -> dict[str, int]:
        """Let every stage with state save it now; wait until all is durable."""
        controller, recovery = self._recovering("checkpoint")
        clock = controller.clock
        if clock is None:
            raise TransientError("checkpoint: the flow has not begun yet", flow=self.name)
        epoch = clock.epoch(now_us()) + 1  # a shard may be one epoch ahead
        began = time.monotonic()
        ask_at = 0.0
        while missing := recovery.requests.unanswered(epoch):
            now = time.monotonic()
            if now - began > timeout:
                raise TransientError(
                    f"checkpoint: {', '.join(missing)} saved nothing within {timeout:g} s: is it "
                    "busy, or its input very slow? Ask again, or give a longer timeout",
                    nodes=", ".join(missing),
                )
            if now >= ask_at:
                ask_at = now + AGAIN_S
                late = now - began > max(EPOCHS_S, 20 * self._settings.s("epochInterval"))
                self._ask(lambda late=late: recovery.requests.ask_checkpoints(epoch, late), timeout)  # type: ignore[misc]
            self._still_running("checkpoint", self._ended.wait(0.005))
        return recovery.requests.checkpoints()

    def rollback(self, to: int, dry_run: bool, timeout: float) -> list[dict[str, Any]]:
        """Let the whole flow go back to the end of an epoch, and on from there."""
        controller, recovery = self._recovering("rollback")
        if controller.replicas is not None:
            raise SettingsError(
                "rollback: stages of this flow are Replicated, which keep no earlier state to go "
                "back to; leave them Causal() to roll back by hand",
                flow=self.name,
            )
        if not isinstance(to, int) or isinstance(to, bool):
            raise SettingsError(f"rollback: to is the number of an epoch, got {to!r}")
        reached = self._reached()
        if dry_run:
            return self._ask(lambda: recovery.requests.preview(to, reached), timeout)
        rows, number = self._ask(lambda: recovery.requests.roll_back(to, reached), timeout)
        deadline = time.monotonic() + timeout
        while not self._is_over(recovery, number):
            if time.monotonic() > deadline:
                raise TransientError(
                    f"rollback: begun, but not over within {timeout:g} s; it goes on: see "
                    "query.recoveries",
                    epoch=to,
                )
            self._still_running("rollback", self._ended.wait(0.005))
        return rows

    def preview(self, lost: Iterable[int | str]) -> list[dict[str, Any]]:
        """Who would restart if these nodes were lost now: one row per node, with the reason."""
        controller, recovery = self._recovering("preview")
        plan = controller.plan
        numbers = {plan.node_name(node): node for node in recovery.graph.order}
        unknown = [one for one in lost if one not in numbers and one not in numbers.values()]
        if unknown:
            raise SettingsError(
                f"preview: there is no node {unknown[0]!r}; the nodes are {', '.join(numbers)}"
            )
        failed = [numbers[one] if isinstance(one, str) else one for one in lost]
        reached = self._reached()
        found = self._ask(lambda: recovery.retention.watch.if_failed(failed, reached))
        return [
            {
                "node": plan.node_name(one.node),
                "from": reached.get(one.node),
                "to": one.to,
                "because": None if one.because is None else plan.node_name(one.because),
                "why": one.why,
            }
            for one in found
        ]

    def spans(self) -> list[dict[str, Any]]:
        """Per node: the epochs that it can go back to, and its low-watermark."""
        controller, recovery = self._recovering("spans")
        plan, watch = controller.plan, recovery.retention.watch
        reached = self._reached()

        def rows() -> list[dict[str, Any]]:
            recovery.lows()
            return [
                {
                    "node": plan.node_name(node),
                    "stage": plan.chain_of_node(node).name,
                    "regime": str(plan.chain_of_node(node).regime),
                    "kept": list(watch.kept(node)),
                    "low": watch.low(node),
                    "reached": reached.get(node, -1),
                    "heldBy": plan.node_name(watch.held_by(node)),
                }
                for node in recovery.graph.order
            ]

        return self._ask(rows)

    # -- inside ----------------------------------------------------------------------------------

    def _recovering(self, what: str) -> tuple[Controller, Recovery]:
        controller = self._controller
        recovery = controller.recovery
        if recovery is None or self._settings.recovery == "purge":
            raise SettingsError(
                f"{what}: this flow keeps no checkpoints; start it with recovery='causal', and on "
                "a cluster with a checkpointLocation",
                flow=self.name,
            )
        if controller.machine.phase is not FlowPhase.RUNNING:
            raise SettingsError(
                f"{what}: the flow is {controller.machine.phase.value}; that can be asked of a "
                "running one only",
                flow=self.name,
            )
        return controller, recovery

    def _ask(self, function: Callable[[], T], timeout: float = 30.0) -> T:
        return self._controller.events.ask(function, timeout)

    def _still_running(self, what: str, ended: bool) -> None:
        if ended:
            raise self._error() or TransientError(f"{what}: the flow ended before it was done")

    def _reached(self) -> dict[int, int]:
        return {node: figures.epoch for node, figures in self._controller.figures().items()}

    @staticmethod
    def _is_over(recovery: Recovery, number: int) -> bool:
        found = [entry for entry in recovery.history if entry.number == number]
        return not found or found[0].opened_us is not None
