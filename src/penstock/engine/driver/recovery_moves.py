"""Nodes that change hosts: those of a lost one, and those that go home again.

Either is a recovery of these nodes at another place.  The old place of a node that goes home lives:
it hears of the fence like everybody else, and lets go of the node before anything is collected.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from penstock.core.causal.graph import CausalGraph
from penstock.core.control.host_orders import SaveCheckpoints
from penstock.core.control.host_reports import (
    CheckpointRequestMet,
    CheckpointSaved,
    HostFenced,
    NodeCaughtUp,
    NodeContradicted,
    RecoveryReport,
    RefusalCounts,
)
from penstock.core.control.recovery import RecoveryEffect, Refuse, Widen
from penstock.engine.driver.recovery_requests import AskedOfRecovery
from penstock.engine.driver.stalls import Stalls
from penstock.engine.host.causal_agent import checkpoints_of

__all__ = ["MovesOfRecovery"]

log = logging.getLogger(__name__)


class MovesOfRecovery(AskedOfRecovery):
    """Losses and returns."""

    placement: dict[int, int]
    stalls: Stalls
    _gone: list[int]
    _purges: bool
    _causal: CausalGraph
    _visited: set[int]
    _work: deque[RecoveryEffect]

    @abstractmethod
    def _incarnation(self, node: int) -> int:
        """The present incarnation of a node."""

    @abstractmethod
    def told(self, report: RecoveryReport) -> None:
        """A host's word on a recovery."""

    @abstractmethod
    def _note_work(self, node: int, **figures: Any) -> None:
        """Add to the newest recovery what it cost at a node."""

    def _learned(self, report: CheckpointSaved | CheckpointRequestMet | NodeCaughtUp) -> None:
        """A node has done something that no other node waits for."""
        match report:
            case NodeCaughtUp():
                self._note_work(
                    report.node,
                    restore_s=report.restore_s,
                    replay_s=report.replay_s,
                    rows=report.rows,
                )
            case CheckpointRequestMet():
                self._asked[report.node] = report.asked
            case CheckpointSaved():
                self.watch.saved(report.node, report.epoch, report.serves_from)
            case _:
                assert_never(report)

    def host_lost(self, host: int, takers: Mapping[int, int], reason: str) -> None:
        """A host is gone; its nodes will run on others."""
        nodes = [n for n, at in self.placement.items() if at == host and n in self._causal.kinds]
        self._place({node: takers[node] for node in nodes})
        self._visited.discard(host)
        self._gone.append(host)
        self.stalls.forget([checkpoints_of(host)])
        if not nodes:  # nobody plans anew because of it, and nobody may wait for it
            self.told(HostFenced(self.machine.round, host))
            return
        reason = reason.removeprefix(f"host {host} was lost: ")
        names = [self.plan.node_name(node) for node in nodes]
        log.warning("host %d was lost (%s): %s start again", host, reason, ", ".join(names))
        self._remember(names, reason).host = host
        lost = self.graph.kinds if self._purges else nodes
        self._perform(self.machine.lost({n: self._incarnation(n) for n in lost}))

    def contradicted(self, report: NodeContradicted) -> list[RecoveryEffect]:
        """A node cannot repeat what others know of it."""
        node, reason = report.node, report.reason
        effects = self.machine.contradicted(node, report.incarnation, reason)
        if any(isinstance(effect, Widen) for effect in effects):
            name = self.plan.node_name(node)
            self._remember([name], f"{name} could not repeat what others know of it: {reason}")
        return effects

    def _said(self, effect: Refuse | Widen) -> None:
        """What a person must know of a recovery."""
        if isinstance(effect, Refuse):
            log.warning("rollback: not possible any more (%s)", effect.reason)
        else:
            log.warning(
                "recovery: steps that are known contradict each other (%s); all that is connected "
                "with that node goes back to the last published epochs and checkpoints, and works "
                "on what came after once more. Nothing is lost, nothing comes twice",
                effect.reason,
            )

    def move(self, places: Mapping[int, int], reason: str) -> None:
        """Nodes that live start again on other hosts that live."""
        names = [self.plan.node_name(node) for node in places]
        log.info("%s: %s", ", ".join(names), reason)
        self._place(places)
        self._remember(names, reason).moved = True
        self._perform(self.machine.lost({n: self._incarnation(n) for n in places}))

    @property
    def settled(self) -> bool:
        """Whether everybody is well, and nodes may be moved."""
        all_go_back = self._purges or self.machine.all_together
        return self.machine.quiet and self.machine.open and not self._work and not all_go_back

    def ask_checkpoints_now(self, nodes: Iterable[int]) -> None:
        """Let some nodes save their state; see :meth:`have_answered`."""
        wanted = self._savable(nodes)
        for node in wanted:
            self._asked.pop(node, None)
        for host in sorted({self.placement[node] for node in wanted}):
            here = frozenset(node for node in wanted if self.placement[node] == host)
            self._tell(host, SaveCheckpoints(-1, now=True, nodes=here))

    def have_answered(self, nodes: Iterable[int]) -> bool:
        """Whether those of them that have state have saved it since they were asked."""
        return all(node in self._asked for node in self._savable(nodes))

    def _savable(self, nodes: Iterable[int]) -> list[int]:
        """Those that can save their state at any time; a loop does so between blocks of epochs."""
        can = {node for node in self.with_state if node not in self.graph.units}
        return [node for node in nodes if node in can]

    @property
    def movable(self) -> frozenset[int]:
        """Nodes that may go home: no row is lost or doubled on their way."""
        graph = self.graph
        lax = {graph.regions[node] for node in graph.untraced}
        return frozenset(node for node in graph.kinds if graph.regions[node] not in lax)

    def note_refused(self, host: int, counts: RefusalCounts) -> None:
        """Something of a lost host was refused: it was not dead after all."""
        entry = next((one for one in reversed(self.history) if one.host == host), None)
        if entry is None:  # it had no nodes
            return
        for key, count in counts._asdict().items():
            before = entry.refused.get(key, 0)
            if count:
                entry.refused[key] = max(before, count) if key == "writes" else before + count

    def _place(self, places: Mapping[int, int]) -> None:
        self._visited.update(self.placement.values())
        self.placement.update(places)
