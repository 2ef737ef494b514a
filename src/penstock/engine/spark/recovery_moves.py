"""Nodes that change hosts: those of a lost one, and those that go home again.

Either is a recovery of these nodes at another place.  The old place of a node that goes home lives:
it hears of the fence like everybody else, and lets go of the node before anything is collected.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.core.machine.recovery import RecoveryEffect
from penstock.engine.causal_agent import checkpoints_of
from penstock.engine.spark.recovery_asked import AskedOfRecovery
from penstock.engine.spark.recovery_history import RecoveryEntry
from penstock.engine.spark.stalls import Stalls
from penstock.errors import HostLostError

__all__ = ["MovesOfRecovery"]

log = logging.getLogger(__name__)

RESTARTS_MAX = 10
"""So often in a row a node may be lost before it has recovered."""


class MovesOfRecovery(AskedOfRecovery):
    """Losses and returns."""

    placement: dict[int, int]
    stalls: Stalls
    _gone: list[int]
    _purges: bool
    _restarts: dict[int, int]
    _visited: set[int]
    _work: deque[RecoveryEffect]

    @abstractmethod
    def _incarnation(self, node: int) -> int:
        """The present incarnation of a node."""

    @abstractmethod
    def told(self, body: dict[str, Any]) -> bool:
        """A host's word on a recovery; False if it is about something else."""

    def host_lost(self, host: int, takers: Mapping[int, int], reason: str) -> None:
        """A host is gone; its nodes will run on others."""
        nodes = [n for n, at in self.placement.items() if at == host and n in self._restarts]
        self._place({node: takers[node] for node in nodes})
        self._visited.discard(host)
        self._gone.append(host)
        self.stalls.forget([checkpoints_of(host)])
        if not nodes:  # nobody plans anew because of it, and nobody may wait for it
            self.told({"kind": "fenced", "round": self.machine.round, "host": host})
            return
        reason = reason.removeprefix(f"host {host} was lost: ")
        names = [self.plan.node_name(node) for node in nodes]
        for node in nodes:
            self._restarts[node] += 1
            if self._restarts[node] > RESTARTS_MAX:
                raise HostLostError(
                    f"node {self.plan.node_name(node)} was lost {RESTARTS_MAX} times before it had "
                    f"recovered; the last reason: {reason}",
                    node=self.plan.node_name(node),
                )
        log.warning("host %d was lost (%s): %s start again", host, reason, ", ".join(names))
        self._remember(names, reason).host = host
        lost = self.graph.kinds if self._purges else nodes
        self._perform(self.machine.lost({n: self._incarnation(n) for n in lost}))

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
            here = [node for node in wanted if self.placement[node] == host]
            self._tell(host, {"kind": "checkpoint", "epoch": -1, "now": True, "nodes": here})

    def have_answered(self, nodes: Iterable[int]) -> bool:
        """Whether those of them that have state have saved it since they were asked."""
        return all(node in self._asked for node in self._savable(nodes))

    def _savable(self, nodes: Iterable[int]) -> list[int]:
        """Those that can save their state at any time; a loop does so between blocks of epochs."""
        can = {node for node in self.with_state if node not in self.graph.units}
        return [node for node in nodes if node in can]

    def loss_of(self, host: int) -> RecoveryEntry | None:
        """What followed from the loss of a host, if it had nodes."""
        return next((one for one in reversed(self.history) if one.host == host), None)

    def _place(self, places: Mapping[int, int]) -> None:
        self._visited.update(self.placement.values())
        self.placement.update(places)
