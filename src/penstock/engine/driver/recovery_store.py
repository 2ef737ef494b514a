"""The driver's hands on a flow's store: the record of recoveries, fences, what is durable of nodes.

Nothing here decides anything: the recovery machine says what to fence and what to read.  Every call
may be repeated.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.connectors.base import Sink
from penstock.connectors.persist import PersistWrite
from penstock.core.causal.clocks import Position
from penstock.core.causal.codec import record_from, to_plain
from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.reports import NodeReport, Saved, Stored
from penstock.core.causal.times import ZERO
from penstock.core.control.recovery import RecoveryRecord
from penstock.core.progress.marks import EPOCH_END
from penstock.engine.driver.recovery_place import RecoveryPlace
from penstock.engine.host.causal_source import cuts_of
from penstock.engine.store.changed_flow import adapted
from penstock.engine.store.description import FlowDescription
from penstock.engine.store.durable import (
    Beginnings,
    NodeStore,
    fence,
    read_stored,
    stored_incarnation,
)
from penstock.engine.store.flow_store import BoundaryLog
from penstock.engine.store.logs import seen_epoch
from penstock.planning.physical import PhysicalPlan, PlannedStage
from penstock.storage import storage_of

__all__ = ["RecoveryStore"]

log = logging.getLogger(__name__)

RECORD = "recovery.json"


class RecoveryStore:
    """What the driver reads and writes for recoveries.

    ``published`` gives the last epoch of a sink that is recorded as published; with
    ``initial_only`` nodes always start from their initial states.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        graph: CausalGraph,
        place: RecoveryPlace,
        description: FlowDescription,
        published: Callable[[str], int],
        initial_only: bool = False,
    ) -> None:
        self.plan = plan
        self.graph = graph
        self.place = place
        self.description = description
        self.published = published
        self.initial_only = initial_only
        self.storage = storage_of(place.directory)
        self._beginnings = Beginnings(place.directory, place.sync)

    # -- the record ------------------------------------------------------------------------------

    def read_record(self, nodes: Iterable[int]) -> RecoveryRecord:
        """Which incarnations come next; where the record is damaged, the nodes' folders know."""
        fresh = {node: self._stored_incarnation(node) for node in nodes}
        try:
            record: RecoveryRecord = record_from(json.loads(self.storage.reread(RECORD)))
            known = {node: max(fresh[node], record.incarnations.get(node, 0)) for node in fresh}
            return RecoveryRecord(
                known,
                recoveries=int(record.recoveries),
                limits={node: to for node, to in record.limits.items() if node in known},
                forgotten={node: low for node, low in record.forgotten.items() if node in known},
            )
        except FileNotFoundError:
            return RecoveryRecord(fresh)
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("%s/%s is damaged and is made anew: %s", self.storage, RECORD, error)
            return RecoveryRecord(fresh)

    def write_record(self, record: RecoveryRecord) -> None:
        """Make the record durable."""
        self.storage.rewrite(RECORD, json.dumps(to_plain(record)).encode(), self.place.sync)

    def _stored_incarnation(self, node: int) -> int:
        name, shard = self._shard(node)
        if self.plan.chain_of_node(node).is_source:  # replicas, or another node, may have had it
            return self.boundaries(node).fence()
        return stored_incarnation(self.place.directory, name, shard)

    def _shard(self, node: int) -> tuple[str, int]:
        chain = self.plan.chain_of_node(node)
        return chain.name, node - chain.first_node

    # -- fences ----------------------------------------------------------------------------------

    def fence_states(self, incarnations: Mapping[int, int]) -> None:
        """Refuse what older incarnations of nodes with state write."""
        for node, incarnation in incarnations.items():
            fence(self.place.directory, *self._shard(node), incarnation, self.place.sync)

    def fence_source(self, node: int, incarnation: int, low: int) -> None:
        """Keep what a source has cut so far; drop what older incarnations cut from now on."""
        self.boundaries(node).take_over(low, ended=True, fence=incarnation)

    def boundaries(self, node: int) -> BoundaryLog:
        """The log of a source's cuts."""
        chain = self.plan.chain_of_node(node)
        name, shard = chain.stages[0].name, node - chain.first_node
        return BoundaryLog(self.place.directory, name, shard, self.place.sync)

    def forget_beginnings(self, nodes: Iterable[int]) -> None:
        """Make it durable that nodes can no longer start from their initial states."""
        self._beginnings.forget(self.plan.node_name(node) for node in nodes)

    # -- what is durable -------------------------------------------------------------------------

    def stored(self, node: int, incarnation: int, newest: int | None = None) -> Stored:
        """What is durable of a node; of its checkpoints all, or only the ``newest``."""
        kind = self.graph.kinds[node]
        if kind is NodeKind.SOURCE:
            return self._stored_cuts(node)
        if kind is NodeKind.STATELESS:
            return Stored()
        if kind is NodeKind.SINK:
            return Stored(checkpoints=(Saved(0, self.sink_report(node)),))
        found = read_stored(
            self.place.directory,
            *self._shard(node),
            incarnation,
            node,
            self.graph.children[node],
            self.graph.parents[node],
            self._beginnings,
            newest,
        )
        if self.initial_only:
            return Stored(checkpoints=found.checkpoints[:1], through=EPOCH_END)
        return adapted(self.description, node, found)

    def _stored_cuts(self, node: int) -> Stored:
        records = self.boundaries(node).read()
        ahead = max(((r["ahead"], r["epoch"]) for r in records if "ahead" in r), default=(0, -1))
        return Stored(cuts=cuts_of(records), through=seen_epoch(records), ahead=ahead)

    def stored_of_all(self, incarnations: Mapping[int, int]) -> dict[int, Stored]:
        """What is durable of all nodes; of a running flow, sinks first: sources are ahead of them.

        Were a source read first, a sink could have published what the source seems not to know.
        """
        return {node: self.stored(node, incarnations[node]) for node in reversed(self.graph.order)}

    def checkpoint_bytes(self, node: int, incarnation: int, key: int) -> int:
        """The size of a checkpoint."""
        return NodeStore(self.place.directory, *self._shard(node), incarnation).size(key)

    def sink_report(self, node: int) -> NodeReport:
        """A sink's state is what it has published."""
        chain = self.plan.chain_of_node(node)
        shard = node - chain.first_node
        sinks = [stage for stage in chain.stages if isinstance(stage.operator, Sink)]
        published = [self._has_published(stage, shard) for stage in sinks]
        everywhere = min((self.published(name) for name, _ in self.plan.sinks), default=-1)
        epoch = min(published, default=everywhere)
        clock = {sender: Position(ZERO, epoch) for sender in self.graph.parents[node]}
        return NodeReport(node, completed=epoch, clock=clock)

    def _has_published(self, stage: PlannedStage, shard: int) -> int:
        operator: Any = stage.operator
        if isinstance(operator, PersistWrite):
            seen = operator.committed_by(shard)
            return -1 if seen is None else seen
        seen = operator.committed()
        return max(self.published(stage.name), -1 if seen is None else seen)
