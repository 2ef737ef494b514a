"""Machines that leave out one thing of the regimes each; see :mod:`.mutants`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from penstock.core.causal.graph import CausalGraph
from penstock.core.causal.plan import plan
from penstock.core.causal.reports import Plan, Report, Stored
from penstock.core.causal.retention import keep_from, low_epochs
from penstock.core.machine.causal import CausalMachine
from penstock.core.machine.causal_effects import CausalEffect, Flushed
from penstock.core.machine.causal_source import CausalSource
from penstock.core.machine.global_hold import GlobalHold
from penstock.core.machine.recovery import RecoveryEffect, RecoveryMachine

Epochs = Mapping[int, Iterable[int]]


class ForgetsTheUnsent(CausalMachine):
    """Forgets what it could not send yet."""

    def _forget_sent(self, child: int) -> None:
        if not self._logged:
            while self.log.take(child) is not None:
                self.log.taken(child)
        super()._forget_sent(child)


class FloorStays(CausalMachine):
    def _forget_sent(self, child: int) -> None:
        floor = self.log.floors()[child]
        super()._forget_sent(child)
        self.log.set_floor(child, floor)


class SourceFloorStays(CausalSource):
    def _forget_sent(self, child: int) -> None:
        floor = self.log.floors()[child]
        super()._forget_sent(child)
        self.log.set_floor(child, floor)


class ForgetsBehindAFence(CausalMachine):
    """Goes on to forget after it has said how far back its log reaches."""

    def _forget_sent(self, child: int) -> None:
        is_open, self._open[child] = self._open[child], True
        super()._forget_sent(child)
        self._open[child] = is_open


class ForgetsUntoldMarks(CausalMachine):
    """Forgets marks before it has told the child of the watermark where it stands."""

    def _forget_sent(self, child: int) -> None:
        unstated, self._unstated = self._unstated, set()
        super()._forget_sent(child)
        self._unstated = unstated


class ForgetsWithinEpochs(CausalMachine):
    """Forgets what is of epochs that its checkpoints cut in two."""

    def _forget_sent(self, child: int) -> None:
        self._forgets_epochs = False
        super()._forget_sent(child)


class EagerAtOnce(CausalMachine):
    def _flush(self, child: int) -> list[CausalEffect]:
        self._released = None
        return super()._flush(child)


class ResumesTooSoon(GlobalHold):
    """Does not wait for the last one."""

    def flushed(self, node: int, said: Flushed) -> int | None:
        self._said = dict.fromkeys(self._nodes, said)
        return super().flushed(node, said)


class StartsWithinEpochs(RecoveryMachine):
    """Starts clean nodes without state where their children are, amid an epoch."""

    def plan(
        self, failed: frozenset[int], reports: Mapping[int, Report], stored: Mapping[int, Stored]
    ) -> Plan:
        return plan(replace(self.graph, clean=frozenset()), failed, reports, stored)


class ForgetsLimits(RecoveryMachine):
    def rollback(self, to: int, nodes: Iterable[int] | None = None) -> list[RecoveryEffect]:
        effects = super().rollback(to, nodes)
        self.record = replace(self.record, limits={})
        return effects


def one_region(
    graph: CausalGraph, saved: Epochs, published: Mapping[int, int], *kept: Any
) -> dict[int, int]:
    """Takes the low epoch of whoever is furthest for everybody's."""
    lows = low_epochs(graph, saved, published, *kept)
    return dict.fromkeys(lows, max(lows.values()))


def as_if_logged(
    graph: CausalGraph, saved: Epochs, published: Mapping[int, int], *kept: Any
) -> dict[int, int]:
    """Takes every checkpoint for one that will do."""
    return low_epochs(replace(graph, logless=frozenset()), saved, published, *kept)


def newest_only(
    graph: CausalGraph, saved: Epochs, published: Mapping[int, int], *kept: Any
) -> dict[int, int]:
    """Keeps one checkpoint less than may be asked for."""
    found = keep_from(graph, saved, published, *kept)
    return {
        node: min((one for one in saved[node] if one > epoch), default=epoch)
        for node, epoch in found.items()
    }
