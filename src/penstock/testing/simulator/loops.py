"""Loops of the simulation: rows go round a few times, then settle; a hub says when epochs are over.

How a row goes round depends on its id alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.core.node.messages import Report
from penstock.core.progress.marks import Completion, MarkAligner
from penstock.testing.simulator.stages import Row, Rows, enter, hop, hops_of

if TYPE_CHECKING:
    from penstock.testing.simulator.process import Process
    from penstock.testing.simulator.world import World

__all__ = ["INSIDE", "Hub", "Travelling", "entering", "go_round"]

INSIDE = 1000
"""Links inside of loops have numbers from here on: this, and the sender's."""

Travelling = tuple[tuple[Row, int], ...]
"""Rows, and how often they still go round."""


def go_round(members: tuple[int, ...], rows: Travelling) -> tuple[Rows, dict[int, Travelling]]:
    """Of rows at a node: those that settle there, and those that go on, to itself perhaps."""
    settled: list[Row] = []
    going: dict[int, list[tuple[Row, int]]] = {}
    for row, hops in rows:
        following, left = hop(members, row[0], hops)
        if following is None:
            settled.append(row)
        else:
            going.setdefault(following, []).append((row, left))
    return tuple(settled), {target: tuple(going[target]) for target in sorted(going)}


def entering(node: int, rows: Rows) -> Travelling:
    """Rows that come into a loop at a node."""
    return tuple((enter(node, row), hops_of(enter(node, row)[0])) for row in rows)


class Hub:
    """Decides when an epoch is complete in a loop; begins anew when the loop does."""

    def __init__(
        self, world: World, members: tuple[int, ...], incarnations: Mapping[int, int], epoch: int
    ) -> None:
        self._world = world
        self.members = members
        self.incarnations = incarnations
        self.epoch = epoch
        gates = [member for member in members if world.shape.graph.parents[member]]
        self._gates: MarkAligner[int] = MarkAligner(gates, epoch, keeps=False)
        self._under_way: Counter[int] = Counter()
        self._closed: deque[Completion] = deque()

    def is_of(self, process: Process) -> bool:
        """Whether a process counts."""
        return self.incarnations[process.node] == process.incarnation

    def closed(self, process: Process, report: Report) -> None:
        """A gate is closed, or says at which watermark it starts."""
        if not self.is_of(process):
            return
        if report.epoch == self.epoch:
            self._gates.restate({process.node: report.watermark_us})
        else:
            self._closed += self._gates.mark(process.node, report.epoch, report.watermark_us)
        self._advance()

    def sent(self, process: Process, epoch: int) -> None:
        """Rows are under way."""
        if self.is_of(process):
            self._under_way[epoch] += 1

    def arrived(self, process: Process, epoch: int) -> None:
        """Rows were handled, and what they led to is under way."""
        if self.is_of(process):
            self._under_way[epoch] -= 1
            self._advance()

    def _advance(self) -> None:
        while self._closed:
            epoch = self._closed[0].epoch
            if any(count for other, count in self._under_way.items() if other <= epoch):
                return
            done = self._closed.popleft()
            for member in self.members:
                process = self._world.find(member, self.incarnations[member])
                if process is not None:
                    process.region.append(done)
