"""What people ask of a recovery: checkpoints now, rollbacks, and what these would do.

Everything here runs in the controller's thread.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock.core.causal.graph import CausalGraph
from penstock.core.causal.reports import Stored
from penstock.core.causal.retention import serves_from
from penstock.core.control.host_orders import AgentOrder, SaveCheckpoints
from penstock.core.control.recovery import RecoveryEffect, RecoveryMachine
from penstock.core.rollback.watch import SpanWatch
from penstock.engine.driver.recovery_history import RecoveryEntry
from penstock.engine.driver.rollback_request import Mark, going_back, preview_rows
from penstock.engine.host.clock import now_us
from penstock.engine.store.description import FlowDescription
from penstock.engine.store.durable import NodeStore
from penstock.errors import SettingsError
from penstock.planning.physical import PhysicalPlan
from penstock.storage import Storage

__all__ = ["AskedOfRecovery"]

log = logging.getLogger(__name__)

NEEDED = 2


class AskedOfRecovery(ABC):
    """Checkpoints, rollbacks and previews that were asked for."""

    plan: PhysicalPlan
    graph: CausalGraph
    machine: RecoveryMachine
    watch: SpanWatch
    description: FlowDescription
    directory: Path | Storage
    history: deque[RecoveryEntry]
    _mark: Mark
    _asked: dict[int, int]
    _tell: Callable[[int, AgentOrder], None]

    @property
    @abstractmethod
    def with_state(self) -> list[int]:
        """The nodes that save checkpoints."""

    @abstractmethod
    def _hosts(self) -> list[int]:
        """The hosts that have nodes."""

    @abstractmethod
    def _perform(self, effects: Iterable[RecoveryEffect]) -> None:
        """Perform effects."""

    @abstractmethod
    def _stored(self, node: int, newest: int | None = None) -> Stored:
        """What is durable of a node, of its checkpoints all or the newest so many."""

    @abstractmethod
    def _forgotten(self) -> dict[int, int]:
        """Per node: what came before the end of this epoch may be forgotten already."""

    def ask_checkpoints(self, epoch: int, now: bool) -> None:
        """Let every node with state save it when an epoch is complete, or now."""
        for host in self._hosts():
            self._tell(host, SaveCheckpoints(epoch, now, nodes=None))

    def unanswered(self, epoch: int) -> list[str]:
        """The nodes that have not answered such a request."""
        waiting = [node for node in self.with_state if self._asked.get(node, -1) < epoch]
        return [self.plan.node_name(node) for node in waiting]

    def checkpoints(self) -> dict[str, int]:
        """Per stage with state: the epoch that all its shards have a durable checkpoint of."""
        found: dict[str, int] = {}
        for node in self.with_state:
            name = self.plan.chain_of_node(node).name
            newest = self.watch.kept(node)[-1]
            found[name] = min(found.get(name, newest), newest)
        return found

    def preview(self, to: int, reached: Mapping[int, int]) -> list[dict[str, Any]]:
        """What a rollback to the end of an epoch would do, per stage."""
        stored = self._stored_nodes()
        found = going_back(self.description, stored, to, self._forgotten(), reached.values())
        return preview_rows(self.description, stored, found, reached, self._checkpoint_bytes)

    def roll_back(self, to: int, reached: Mapping[int, int]) -> tuple[list[dict[str, Any]], int]:
        """Everybody goes back to the end of an epoch; what that does, and its recovery's number."""
        rows = self.preview(to, reached)
        log.warning("rollback: the whole flow goes back to epoch %d", to)
        names = [self.plan.node_name(node) for node in self.graph.order]
        entry = self._remember(names, f"rolled back to epoch {to}")
        self._perform(self.machine.rollback(to))
        return rows, entry.number

    def _roll_back_first(self) -> bool:
        """Start all nodes where a rollback wants them, if one was asked for before the start."""
        to = self._mark.read()
        if to is None:
            return False
        if self.machine.graph is not self.graph:
            self._mark.clear()
            raise SettingsError(
                "rollback: it was asked for while the flow did not run, but stages of it are "
                "Replicated, which keep no earlier state to go back to; it is not asked for any "
                "more: started again, the flow goes on where it was"
            )
        stored = self._stored_nodes()
        self._learn(stored)
        try:
            going_back(self.description, stored, to, self._forgotten())
        except SettingsError as error:
            error.message += (
                "; it was asked for while the flow did not run, and is not asked for any more: "
                "started again, the flow goes on where it was"
            )
            self._mark.clear()
            raise
        log.warning("rollback: the whole flow starts at epoch %d, as it was asked for", to)
        self._perform(self.machine.rollback(to))
        self._mark.clear()  # the machine's record has it now
        return True

    def _remember(self, names: list[str], reason: str) -> RecoveryEntry:
        number = self.history[-1].number + 1 if self.history else 1
        self.history.append(RecoveryEntry(number, names, reason, now_us()))
        return self.history[-1]

    def _needed(self, node: int) -> int | None:
        """How many of a node's newest checkpoints a plan may ask for; None: any.

        The log of a checkpoint reaches back to the low epoch, so that the newest will do, or the
        one before it where that is damaged, unless several have to agree on an epoch.
        """
        graph = self.graph
        alone = node not in graph.units and not graph.logless
        running = self.machine.failed < frozenset(graph.kinds)
        return NEEDED if alone and running and not self.machine.record.limits else None

    def _read(self, node: int) -> Stored:
        """What is durable of a node, as far as a plan may need it."""
        return self._stored(node, self._needed(node))

    def _learn(self, stored: Mapping[int, Stored]) -> None:
        """What is durable is what can be gone back to."""
        for node in self.with_state:
            if node in stored:
                reports = [one.report for one in stored[node].checkpoints]
                saved = {report.completed: serves_from(report) for report in reports}
                if self._needed(node) is None:
                    self.watch.stored(node, saved)
                for epoch, since in saved.items():
                    self.watch.saved(node, epoch, since)

    def _stored_nodes(self) -> dict[int, Stored]:
        """What is durable of all nodes; of a running flow, sinks first: sources are ahead of them.

        Were a source read first, a sink could have published what the source seems not to know.
        """
        return {node: self._stored(node) for node in reversed(self.graph.order)}

    def _checkpoint_bytes(self, node: int, key: int) -> int:
        chain = self.plan.chain_of_node(node)
        shard = node - chain.first_node
        return NodeStore(
            self.directory, chain.name, shard, self.machine.record.incarnations[node]
        ).size(key)
