"""Loops of the simulation: rows go round a few times, then settle; progress is tracked for real.

How a row goes round depends on its id alone.  Nodes count pointstamps, hosts send the counts to the
driver and get frontiers back, each over an ordered channel that delays and that dies with the host.
The machines at both ends are those of a running flow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock.core.control.host_orders import MoveFrontier
from penstock.core.control.host_progress import HostProgress
from penstock.core.control.host_reports import GateClosing, ProgressMade
from penstock.core.control.loop_progress import LoopProgress, gate_counts
from penstock.core.control.recovery import StartNode
from penstock.core.graph import GraphBuilder, LogicalGraph
from penstock.core.node.messages import TellClosed
from penstock.core.node.tracking import NodeTracking
from penstock.core.progress.deltas import Delta
from penstock.core.progress.marks import EPOCH_END
from penstock.testing.simulator.stages import Row, Rows, enter, hop, hops_of, mix
from penstock.testing.simulator.under_way import UnderWay
from penstock.testing.simulator.violations import Violation

if TYPE_CHECKING:
    from penstock.testing.simulator.process import Process
    from penstock.testing.simulator.world import World

__all__ = ["INSIDE", "HostEnd", "Loops", "Travelling", "entering", "go_round"]

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


@cache
def _body() -> LogicalGraph:
    """A stage in a loop, fed from outside through a gate and from itself."""
    builder = GraphBuilder()
    loop, body = builder.loop("loop"), builder.stage("body", "loop")
    gate, way_in = builder.input("gate"), builder.ingress("enter", loop)
    again = builder.feedback("again", loop)
    builder.connect(gate, way_in)
    builder.connect(way_in, body)
    builder.connect(body, again)
    builder.connect(again, body, "round")
    return builder.build()


@dataclass(eq=False)
class HostEnd:
    """A host's end of a loop's progress in one generation, and the channels to it and from it."""

    host: int
    driver: int
    """How many drivers there were before the one that it belongs to."""
    progress: HostProgress
    truth: UnderWay
    tracking: NodeTracking
    processes: list[Process] = field(default_factory=list)
    made: deque[ProgressMade] = field(default_factory=deque)
    """Counts on their way to the driver."""
    moved: deque[MoveFrontier] = field(default_factory=deque)
    """Frontiers on their way here."""

    @property
    def least_open(self) -> int:
        """The least epoch that is open, as far as this host knows."""
        return self.progress.least_open(self.tracking)

    def check(self) -> None:
        """What this host takes for complete must be so."""
        self.truth.check(self.least_open, self)

    def __str__(self) -> str:
        return f"host {self.host} in generation {self.progress.generation}"


class Loops:
    """The driver's progress machines, and what is under way between it and the hosts."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._seed = seed
        graph = world.shape.graph
        self._members = {unit: graph.members[node] for node, unit in graph.units.items()}
        self._driver = -1
        self._end_of: dict[tuple[int, int], HostEnd] = {}
        """Of each incarnation of a node."""
        self.begin()

    def begin(self) -> None:
        """A driver begins without any counts."""
        self._driver += 1
        self._ends: list[HostEnd] = []
        self._progress = {
            unit: LoopProgress(unit, _body(), self._gates(unit), -1) for unit in self._members
        }
        self._truth = {unit: UnderWay(self._gates(unit), -1) for unit in self._members}

    def _gates(self, unit: int) -> dict[int, int]:
        parents, gate = self._world.shape.graph.parents, _body().place("gate")
        return {member: gate for member in self._members[unit] if parents[member]}

    def tracking(self, node: int) -> NodeTracking:
        """Where a node is counted."""
        graph, body = self._world.shape.graph, _body()
        unit = graph.units[node]
        links = {INSIDE + member: body.place("round") for member in self._members[unit]}
        return NodeTracking(body.place("body"), links, self._gates(unit).get(node), 1, unit)

    def block(self, node: int) -> int:
        """Epochs from one checkpoint of a node in a loop to the next, the same for all in it."""
        world = self._world
        graph = world.shape.graph
        planned = world.shape.every.get(node)
        if planned is not None:
            return planned
        return (1, 2, 3, EPOCH_END)[mix(self._seed, graph.units[node]) % 4]

    # -- starts ----------------------------------------------------------------------------------

    def planned(self, starts: Iterable[StartNode]) -> None:
        """The controller starts nodes: loops begin anew, each as a whole and from one epoch."""
        units = self._world.shape.graph.units
        epochs: dict[int, dict[int, int]] = {}
        for start in starts:
            if start.node in units:
                epochs.setdefault(units[start.node], {})[start.node] = start.start.completed
        for unit, found in epochs.items():
            if len(set(found.values())) > 1 or set(found) != set(self._members[unit]):
                raise Violation("unit", f"the nodes of a loop start at {found}")
            epoch = found[self._members[unit][0]]
            self._progress[unit].restart(epoch)
            self._truth[unit] = UnderWay(self._gates(unit), epoch)
        self._ends = [end for end in self._ends if any(p.alive for p in end.processes)]

    def order(self, node: int, incarnation: int) -> None:
        """The start of a node leaves for its host, with what the host begins to count with."""
        unit = self._world.shape.graph.units.get(node)
        if unit is None:
            return
        host, generation = self._world.host_of(node), self._progress[unit].generation
        for end in self._ends:
            known = end.progress
            if (end.host, known.unit, known.generation) == (host, unit, generation):
                break
        else:
            end = self._welcomed(unit, host)
            self._ends.append(end)
        self._end_of[node, incarnation] = end

    def _welcomed(self, unit: int, host: int) -> HostEnd:
        welcome = self._progress[unit].welcome()
        here = {n: at for n, at in self._gates(unit).items() if self._world.host_of(n) == host}
        held = gate_counts(here, welcome.epoch + 1)
        progress = HostProgress(unit, _body(), welcome, held)
        tracking = self.tracking(self._members[unit][0])
        return HostEnd(host, self._driver, progress, self._truth[unit], tracking)

    def join(self, process: Process) -> HostEnd:
        """A process counts at the end that its start came with."""
        end = self._end_of[process.node, process.incarnation]
        end.processes.append(process)
        return end

    # -- counts and frontiers --------------------------------------------------------------------

    def closed(self, process: Process, end: HostEnd, report: TellClosed) -> None:
        """A gate is closed, or says at which watermark it starts."""
        end.truth.closed(process.node, report.epoch)
        end.progress.gate_closed(GateClosing(process.node, *report))

    def count(self, end: HostEnd, deltas: list[Delta]) -> None:
        """What one step of a node on this host changed."""
        if deltas:
            self._send(end, end.progress.record(deltas))

    def _send(self, end: HostEnd, made: ProgressMade | None) -> None:
        if made is not None and end.driver == self._driver:
            end.made.append(made)

    def add_choices(self, found: list[tuple[Callable[[Any], None], Any]]) -> None:
        """Add what can arrive at the driver and at hosts."""
        world = self._world
        sleeps = world.cluster is not None and world.cluster.driver_sleeps
        for end in self._ends:
            if end.made and world.driver.controller is not None and not sleeps:
                found.append((self._hear, end))
            if end.moved and self._is_awake(end):
                found.append((self._tell, end))

    def _is_awake(self, end: HostEnd) -> bool:
        cluster = self._world.cluster
        if cluster is not None and cluster.is_frozen(end.host):
            return False
        return any(process.alive and not process.paused for process in end.processes)

    def _hear(self, end: HostEnd) -> None:
        """Counts arrive at the driver, which refuses those of hosts that it has declared lost."""
        made = end.made.popleft()
        cluster = self._world.cluster
        if cluster is not None and cluster.refuses(end.host):
            return
        if self._world.trace is not None:
            self._world.note(f"driver hears of {end}: {made}")
        for moved in self._progress[made.unit].receive(end.host, made):
            for other in self._ends:
                if other.progress.unit == made.unit:
                    other.moved.append(moved)

    def _tell(self, end: HostEnd) -> None:
        """Frontiers arrive at a host."""
        moved = end.moved.popleft()
        heard = end.progress.receive(moved)
        if not heard.counted:
            return
        if self._world.trace is not None:
            self._world.note(f"{end} hears {moved}")
        end.check()
        self._send(end, heard.made)
        for process in end.processes:
            process.gates_closed(moved.closed)

    # -- faults ----------------------------------------------------------------------------------

    def lose(self, end: HostEnd) -> None:
        """A process died: the last counts that its host sent may be lost."""
        keep = self._world.random.randint(0, len(end.made)) if end.made else 0
        while len(end.made) > keep:
            end.made.pop()

    def lose_driver(self) -> None:
        """The driver died: what was on its way to it is lost."""
        for end in self._ends:
            end.made.clear()
