"""Controllers that break what a guarantee promises; see :mod:`.mutants`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.core.causal.plan import plan
from penstock.core.causal.reports import Plan, Report, Stored
from penstock.core.machine.recovery import RecoveryMachine


class StartsInThePast(RecoveryMachine):
    """Whoever may lose rows starts where one that may double them would."""

    def plan(
        self, failed: frozenset[int], reports: Mapping[int, Report], stored: Mapping[int, Stored]
    ) -> Plan:
        graph = replace(self.graph, lossy=frozenset(), doubling=self.graph.untraced)
        return plan(graph, failed, reports, stored)


class StartsInThePresent(RecoveryMachine):
    """Whoever may double rows starts where one that may lose them would."""

    def plan(
        self, failed: frozenset[int], reports: Mapping[int, Report], stored: Mapping[int, Stored]
    ) -> Plan:
        graph = replace(self.graph, lossy=self.graph.untraced, doubling=frozenset())
        return plan(graph, failed, reports, stored)
