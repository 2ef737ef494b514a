"""Everything that survives a failure, indexed by the node that it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.core.causal.diffs import COMPLETION, Diff, DiffLink, completion, pairs
from penstock.core.causal.graph import CausalGraph
from penstock.core.causal.reports import NodeReport, Target
from penstock.core.causal.times import END, ZERO, Stamp

__all__ = ["Knowledge"]


@dataclass
class Knowledge:
    """Everything that survives, indexed by the node that it is about."""

    steps: dict[int, dict[Stamp, DiffLink | None]] = field(default_factory=dict)
    values: dict[tuple[int, Stamp], bytes] = field(default_factory=dict)
    """What steps have noted."""
    last: dict[int, Stamp] = field(default_factory=dict)
    """The greatest stamp of each node that any of these names."""
    completed: dict[int, int] = field(default_factory=dict)
    settled: dict[int, int] = field(default_factory=dict)
    """Per node: the last epoch that all have completed who know steps of it."""
    newest: int = -1

    def learn(self, report: NodeReport, completes: bool = True) -> None:
        """A survivor's report, or that of a checkpoint that will be used.

        Nodes that skip epochs have nothing to say about what others have completed.
        """
        self.newest = max(self.newest, report.newest)
        if completes:
            self.completes(report.node, report.completed)
            for sender, position in report.clock.items():
                self.completes(sender, position.epoch)
        for diff in report.diffs:
            self.learn_diff(diff, report.completed)
        for fact in report.facts:
            self._names(fact.node, fact.stamp)
            self._names(fact.parent, fact.handled)

    def learn_diff(self, diff: Diff, completed: int) -> None:
        """A node has received this, or made it durable; it has completed this epoch."""
        for link, made_from in pairs(diff):
            self.settled[link.node] = min(completed, self.settled.get(link.node, completed))
            self._names(link.node, link.stamp)
            steps = self.steps.setdefault(link.node, {})
            if made_from is not None or link.stamp not in steps:
                steps[link.stamp] = made_from
            if link.values:
                self.values[link.node, link.stamp] = link.values
            if made_from is not None and made_from.node == COMPLETION:
                self.completes(link.node, made_from.epoch)

    def _names(self, node: int, stamp: Stamp) -> None:
        self.last[node] = max(stamp, self.last.get(node, stamp))

    def completes(self, node: int, epoch: int) -> None:
        """A node completed an epoch."""
        self.completed[node] = max(self.completed.get(node, -1), epoch)

    def observed(self, graph: CausalGraph, node: int) -> int:
        """The largest epoch that any node at or below this one is known to have completed."""
        return max(self.completed.get(below, -1) for below in graph.descendants[node])

    def handled(self, node: int, parent: int, up_to: Stamp, completed: int = -1) -> Stamp:
        """The last stamp of a parent that a node is known to have handled by ``up_to``.

        Steps of epochs that are ``completed`` do not count, nor do facts, which are of such epochs.
        They may be from before a restart at the end of an epoch: then rows of later epochs, which
        came before them, came again.
        """
        best = ZERO
        for stamp, made_from in self.steps.get(node, {}).items():
            if made_from is None or made_from.node != parent or made_from.epoch <= completed:
                continue
            if stamp <= up_to:
                best = max(best, made_from.stamp)
        return best

    def targets(
        self, node: int, stamp: Stamp, completed: int, deadlines: Mapping[int, Stamp]
    ) -> tuple[Target, ...]:
        """Known steps after a stamp, and known completions after an epoch, in order."""
        found = [
            Target(at, made_from, values=self.values.get((node, at), b""))
            for at, made_from in self.steps.get(node, {}).items()
            if made_from is not None
            and made_from.epoch > completed
            and (at > stamp or made_from.node == COMPLETION)
        ]
        exact = {t.made_from.epoch: t.stamp for t in found if t.made_from.node == COMPLETION}
        before = END
        latest = completed
        for epoch in sorted({*exact, *deadlines}, reverse=True):
            # Epochs are completed in order: one that comes later bounds the ones before it.
            limit = min(exact.get(epoch, END), deadlines.get(epoch, END))
            if epoch > completed and epoch not in exact and (limit < before or epoch > latest):
                found.append(Target(limit, completion(epoch), loose=True))
            before = min(before, limit)
            latest = max(latest, epoch)
        return tuple(sorted(found, key=lambda target: target.order))

    def taken(self, node: int, targets: tuple[Target, ...]) -> dict[Stamp, DiffLink | None]:
        """Known steps that are no targets."""
        exact = {target.stamp for target in targets if not target.loose}
        steps = self.steps.get(node, {})
        return {stamp: steps[stamp] for stamp in sorted(steps) if stamp not in exact}
