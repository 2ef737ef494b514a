"""What people, and the membership, ask of a recovery: checkpoints now, rollbacks, previews.

Everything here runs in the controller's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.core.control.host_orders import SaveCheckpoints
from penstock.core.control.retention import WITH_STATE
from penstock.engine.driver.rollback_request import RollbackMark, plan_back, preview_rows
from penstock.errors import SettingsError

if TYPE_CHECKING:
    from penstock.engine.driver.recovery import Recovery

__all__ = ["RecoveryRequests"]

log = logging.getLogger(__name__)


class RecoveryRequests:
    """Checkpoints, rollbacks and previews that were asked for."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._mark = RollbackMark(recovery.store.place.directory)
        self._met: dict[int, int] = {}
        """Per node: the newest request for a checkpoint that it has answered."""
        graph = recovery.graph
        self._with_state = [node for node in graph.order if graph.kinds[node] in WITH_STATE]

    # -- checkpoints -----------------------------------------------------------------------------

    def ask_checkpoints(self, epoch: int, now: bool) -> None:
        """Let every node with state save it when an epoch is complete, or now."""
        self._recovery.orders.tell_all(SaveCheckpoints(epoch, now, nodes=None))

    def met(self, node: int, asked: int) -> None:
        """A node has saved its state, as it was asked to."""
        self._met[node] = asked

    def unanswered(self, epoch: int) -> list[str]:
        """The nodes that have not answered such a request."""
        waiting = [node for node in self._with_state if self._met.get(node, -1) < epoch]
        return [self._recovery.plan.node_name(node) for node in waiting]

    def save_now(self, nodes: Iterable[int]) -> None:
        """Let some nodes save their state; see :meth:`have_saved`."""
        wanted = self._savable(nodes)
        for node in wanted:
            self._met.pop(node, None)
        self._recovery.orders.save(wanted)

    def have_saved(self, nodes: Iterable[int]) -> bool:
        """Whether those of them that have state have saved it since they were asked."""
        return all(node in self._met for node in self._savable(nodes))

    def _savable(self, nodes: Iterable[int]) -> list[int]:
        """Those that can save their state at any time; a loop does so between blocks of epochs."""
        can = set(self._with_state) - self._recovery.graph.units.keys()
        return [node for node in nodes if node in can]

    def checkpoints(self) -> dict[str, int]:
        """Per stage with state: the epoch that all its shards have a durable checkpoint of."""
        found: dict[str, int] = {}
        for node in self._with_state:
            name = self._recovery.plan.chain_of_node(node).name
            newest = self._recovery.retention.newest_checkpoint(node)
            found[name] = min(found.get(name, newest), newest)
        return found

    # -- rollbacks -------------------------------------------------------------------------------

    def preview(self, to: int, reached: Mapping[int, int]) -> list[dict[str, Any]]:
        """What a rollback to the end of an epoch would do, per stage."""
        recovery = self._recovery
        incarnations = recovery.incarnations()
        stored = recovery.store.stored_of_all(incarnations)
        recovery.lows()
        gone = recovery.retention.gone_before()
        found = plan_back(recovery.description, stored, to, gone, reached.values())
        return preview_rows(
            recovery.description,
            stored,
            found,
            reached,
            lambda node, key: recovery.store.checkpoint_bytes(node, incarnations[node], key),
        )

    def roll_back(self, to: int, reached: Mapping[int, int]) -> tuple[list[dict[str, Any]], int]:
        """All nodes go back to the end of an epoch; what that does, and its recovery's number."""
        recovery = self._recovery
        rows = self.preview(to, reached)
        log.warning("rollback: the whole flow goes back to epoch %d", to)
        names = [recovery.plan.node_name(node) for node in recovery.graph.order]
        entry = recovery.history.add(names, f"rolled back to epoch {to}")
        recovery.perform(recovery.machine.rollback(to, recovery.retention.gone_before()))
        return rows, entry.number

    def roll_back_first(self) -> bool:
        """Start all nodes where a rollback wants them, if one was asked for before the start."""
        recovery = self._recovery
        to = self._mark.read()
        if to is None:
            return False
        if recovery.machine.graph is not recovery.graph:
            self._mark.clear()
            raise SettingsError(
                "rollback: it was asked for while the flow did not run, but stages of it are "
                "Replicated, which keep no earlier state to go back to; it is not asked for any "
                "more: started again, the flow goes on where it was"
            )
        stored = recovery.store.stored_of_all(recovery.incarnations())
        recovery.retention.stored_read(stored, stored)
        recovery.lows()
        gone = recovery.retention.gone_before()
        try:
            plan_back(recovery.description, stored, to, gone)
        except SettingsError as error:
            error.message += (
                "; it was asked for while the flow did not run, and is not asked for any more: "
                "started again, the flow goes on where it was"
            )
            self._mark.clear()
            raise
        log.warning("rollback: the whole flow starts at epoch %d, as it was asked for", to)
        recovery.perform(recovery.machine.rollback(to, gone))
        self._mark.clear()  # the machine's record has it now
        return True
