"""Where a flow can be taken back to by hand, and where each node would start.

The plan is the recovery machine's own (:meth:`.recovery.RecoveryMachine.rollback`), so what is said
beforehand is what happens.  Behind their low epochs nodes do not go: senders and sources have
forgotten what came before (:meth:`.retention.RetentionMachine.gone_before`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.core.causal.graph import CausalGraph
from penstock.core.causal.reports import RecoveryPlan, Stored
from penstock.core.control.recovery import RecoveryMachine, RecoveryRecord, Refuse
from penstock.core.control.retention import WITH_STATE
from penstock.core.progress.marks import EPOCH_END

__all__ = ["GoingBack", "newest_epoch"]


def newest_epoch(stored: Mapping[int, Stored], reached: Iterable[int] = ()) -> int:
    """The newest epoch that is durable, or that some node has ``reached``.

    The end of a stream is none, unless nothing else is left.
    """
    epochs = [cut.epoch for found in stored.values() for cut in found.cuts]
    epochs += [saved.report.completed for found in stored.values() for saved in found.checkpoints]
    known = [epoch for epoch in (*epochs, *reached) if epoch >= 0]
    return max((e for e in known if e < EPOCH_END), default=EPOCH_END if known else -1)


@dataclass(frozen=True)
class GoingBack:
    """What can be done with what is durable of a flow."""

    graph: CausalGraph
    stored: Mapping[int, Stored]
    lows: Mapping[int, int]
    """Per node: what came before the end of this epoch is forgotten."""
    all_together: bool = False
    """Whether all nodes start from one epoch."""

    def plan(self, to: int) -> RecoveryPlan | None:
        """The plan of going back to the end of an epoch; None: that is not possible."""
        graph = self.graph
        nothing = RecoveryRecord(dict.fromkeys(graph.kinds, 0))
        machine = RecoveryMachine(graph, nothing, tuple, self.all_together)
        machine.rollback(to, self.lows)
        effects = machine.stored(machine.round, self.stored, self.lows)
        if not machine.history or any(isinstance(effect, Refuse) for effect in effects):
            return None
        with_state = any(kind in WITH_STATE for kind in graph.kinds.values())
        if not with_state and to < min(self.lows.values(), default=-1):
            return None
        return machine.history[-1]

    def oldest_epoch(self) -> int | None:
        """The oldest epoch that the flow can go back to; None: it can go nowhere."""
        epochs = sorted(
            {
                saved.report.completed
                for node, found in self.stored.items()
                if self.graph.kinds[node] in WITH_STATE
                for saved in found.checkpoints
            }
        ) or [min(self.lows.values(), default=-1)]
        # A later epoch only ever adds checkpoints to choose from.
        found = bisect_left(epochs, True, key=lambda epoch: self.plan(epoch) is not None)
        return epochs[found] if found < len(epochs) else None
