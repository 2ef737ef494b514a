"""Controllers that leave out one thing each; see :mod:`.mutants`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from penstock.core.causal.graph import CausalGraph
from penstock.core.causal.plan import plan
from penstock.core.causal.reports import Plan, Report, Stored
from penstock.core.causal.times import Stamp
from penstock.core.machine.recovery import Record, RecoveryEffect, RecoveryMachine


class TruncatesTooFar(RecoveryMachine):
    def truncate_due(self, lows: Mapping[int, int]) -> list[RecoveryEffect]:
        return super().truncate_due({node: low + 1 for node, low in lows.items()})


class NoClosure(RecoveryMachine):
    def plan(
        self, failed: frozenset[int], reports: Mapping[int, Report], stored: Mapping[int, Stored]
    ) -> Plan:
        return replace(super().plan(failed, reports, stored), joining=())


class NoDeadlines(RecoveryMachine):
    def plan(
        self, failed: frozenset[int], reports: Mapping[int, Report], stored: Mapping[int, Stored]
    ) -> Plan:
        found = super().plan(failed, reports, stored)
        starts = {
            node: replace(start, targets=tuple(t for t in start.targets if not t.loose))
            for node, start in found.starts.items()
        }
        return replace(found, starts=starts)


class OnlyDirectChildren(RecoveryMachine):
    def plan(
        self, failed: frozenset[int], reports: Mapping[int, Report], stored: Mapping[int, Stored]
    ) -> Plan:
        near = {
            node: replace(report, diffs=tuple(diff[:2] for diff in report.diffs))
            for node, report in reports.items()
        }
        return super().plan(failed, near, stored)


class ForgetsUnfinished(RecoveryMachine):
    def lost(self, nodes: Mapping[int, int]) -> list[RecoveryEffect]:
        self.record = Record(self.record.incarnations, frozenset(), self.record.recoveries)
        return super().lost(nodes)


class RecoveredTooSoon(RecoveryMachine):
    def recovered(self, node: int, incarnation: int) -> list[RecoveryEffect]:
        waiting, self._unopened = self._unopened, set()
        current, self._round = self._round, None
        effects = super().recovered(node, incarnation)
        self._unopened, self._round = waiting, current
        return effects


class StartsTooLate(RecoveryMachine):
    """Takes the greatest position of the children for the least."""

    def plan(
        self, failed: frozenset[int], reports: Mapping[int, Report], stored: Mapping[int, Stored]
    ) -> Plan:
        found = super().plan(failed, reports, stored)
        starts = {}
        for node, start in found.starts.items():
            if start.checkpoint is None and start.positions and start.clock:
                top: Stamp = max(position.stamp for position in start.positions.values())
                handled = {
                    sender: position._replace(
                        stamp=max(
                            [position.stamp]
                            + [
                                t.made_from.stamp
                                for t in start.targets
                                if t.made_from.node == sender and t.stamp <= top
                            ]
                        )
                    )
                    for sender, position in start.clock.items()
                }
                start = replace(
                    start,
                    stamp=top,
                    clock=handled,
                    targets=tuple(
                        t for t in start.targets if t.stamp > top or t.made_from.node < 0
                    ),
                )
            starts[node] = start
        return replace(found, starts=starts)


class Loose(CausalGraph):
    def closure(self, nodes: Iterable[int]) -> frozenset[int]:
        return frozenset(nodes)


class LoopNodesAlone(RecoveryMachine):
    def __init__(self, graph: CausalGraph, record: Record, **parts: bool) -> None:
        super().__init__(Loose(graph.kinds, graph.parents, graph.units), record, **parts)


class LoopNodesAtOwnEpochs(RecoveryMachine):
    def plan(
        self, failed: frozenset[int], reports: Mapping[int, Report], stored: Mapping[int, Stored]
    ) -> Plan:
        return plan(CausalGraph(self.graph.kinds, self.graph.parents), failed, reports, stored)


class TrustsTheUnrepeatable(RecoveryMachine):
    def __init__(self, graph: CausalGraph, record: Record, **parts: bool) -> None:
        trusted = CausalGraph(graph.kinds, graph.parents, graph.units, graph.noted)
        super().__init__(trusted, record, **parts)
