"""What must hold in a simulated life, by what the simulator knows of it.

- The flow fails only where it has to: with an error that a stage raised, without recovery, or after
  a node was lost too often without getting any further.  Then its error names that node.
- Only rows that end processes are passed over.
- It runs once all nodes are open, commits what all nodes of a sink have completed, drains and ends
  in time, and leaves no process behind that it does not name.
- Hosts that follow are told of every checkpoint that counts, and no others are; those that are
  taken for current are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.core.control.controller import END_MS, LEAVE_MS, Failure, FlowPhase
from penstock.core.control.deadly_rows import SkippedRow
from penstock.core.control.followers import Following, TellFollow
from penstock.core.control.giving_up import LOSSES_MAX, QUIET_MS
from penstock.core.progress.marks import EPOCH_END
from penstock.testing.simulator.lives.shape import STAGE
from penstock.testing.simulator.violations import Violation

if TYPE_CHECKING:
    from penstock.testing.simulator.lives.driver import LifeDriver
    from penstock.testing.simulator.lives.world import LifeWorld

__all__ = ["DRAIN_MS", "START_MS", "LifeMonitor"]

DRAIN_MS, START_MS = 2_000, 8_000
SLACK_MS = 200
FEW = 3
_ENDING = ("host", "several_hosts", "freeze", "suspicion", "raised", "driver", "cut_short")
"""Faults by which hosts are lost, whatever they work on."""
NARROWING = 6
"""Losses in a row that may narrow down which of a node's deadly rows it is."""


class LifeMonitor:
    """Watches one driver's decisions about its flow."""

    def __init__(self, world: LifeWorld, driver: LifeDriver) -> None:
        self._world = world
        self._driver = driver
        self._losses: dict[int, int] = {}
        """Per node: how often it was lost since it got any further."""
        self._lost_ms: dict[int, int] = {}
        self._best: dict[int, int] = {}
        self.raised: str | None = None
        """What a stage raised that does not want to be started again."""
        self._phase: FlowPhase | None = None
        self._since_ms = 0
        self._gone = False
        self._following: dict[int, frozenset[int] | None] = {}
        """Who is to follow which nodes; None: all."""

    # -- losses ----------------------------------------------------------------------------------

    def progressed(self, node: int, epoch: int) -> None:
        """The driver hears that a node has completed an epoch."""
        if epoch > self._best.get(node, -1):
            self._best[node] = epoch
            self._losses.pop(node, None)

    def _published(self) -> None:
        """What all sinks have published all nodes have completed."""
        for node in self._world.shape.nodes:
            self.progressed(node, self._driver.life.committed["out"])

    def lost(self, host: int, nodes: Iterable[int]) -> None:
        """The driver gives up a host, and the flow goes on."""
        self._published()
        self._following.pop(host, None)
        shape = self._world.shape
        rows = sum(len(shape.deadly[node]) for node in shape.skipping)
        allowed = LOSSES_MAX + NARROWING * rows
        for node in nodes:
            if self._world.now_ms - self._lost_ms.get(node, self._world.now_ms) > QUIET_MS:
                self._losses.pop(node, None)
            self._lost_ms[node] = self._world.now_ms
            self._losses[node] = losses = self._losses.get(node, 0) + 1
            if losses > allowed:
                raise Violation("gives up", f"node {node} was lost {losses} times, and goes on")

    def failed(self, failure: Failure, nodes: Iterable[int]) -> None:
        """The flow fails, perhaps because a host with these nodes is lost."""
        shape, message = self._world.shape, failure["message"]
        if message == self.raised or self._driver.expects_failure:
            return
        self._published()
        losses = {node: self._losses.get(node, 0) + 1 for node in nodes}
        if not shape.recovers:
            return
        faults = sum(self._world.faults[what] for what in _ENDING)
        rows = self._world.faults["deadly"]
        can_go_on = shape.deadly and not shape.is_hopeless and not shape.trouble
        if can_go_on and rows > LOSSES_MAX - faults and faults <= FEW and losses:
            raise Violation("gives up", f"the rows could be passed over: {message}")
        raised = failure["type"] != "HostLostError"
        if max(losses.values(), default=LOSSES_MAX + 1) <= LOSSES_MAX:
            raise Violation("gives up", f"after {losses} losses: {message}")
        if raised or not losses:
            return
        self._check_names(failure, losses)

    def _check_names(self, failure: Failure, losses: dict[int, int]) -> None:
        """Who gives up says what was lost, and what it was lost by if that was said."""
        shape, known = self._world.shape, failure["parameters"]
        named = [node for node in losses if shape.names[node] == known.get("node")]
        if not named:
            raise Violation("gives up", f"{known} names none of {list(losses)}")
        doomed = [node for node in losses if node in shape.deadly and node not in shape.skipping]
        faults = self._world.faults
        died_of_rows = faults["deadly"] > LOSSES_MAX and not any(faults[what] for what in _ENDING)
        if doomed and died_of_rows and known.get("stage") != STAGE:
            raise Violation("gives up", f"{known} does not say what ends node {doomed}")

    # -- rows ------------------------------------------------------------------------------------

    def called(self, node: int, rows: list[int]) -> None:
        """A stage is called with rows: not with those that are durably passed over."""
        if not rows:
            raise Violation("deadly rows", f"node {node} is called with nothing")

    def innocent(self, node: int, digest: int) -> None:
        """A row was left out that ends no process."""
        raise Violation("deadly rows", f"node {node} passes over row {digest}")

    def skipped(self, row: SkippedRow) -> None:
        """A row is to be passed over."""
        if not any(row.digest in rows for rows in self._world.shape.deadly.values()):
            raise Violation("deadly rows", f"{row} ends no process")

    # -- life ------------------------------------------------------------------------------------

    def goes(self) -> None:
        """Sources may read: then every node has started."""
        missing = self._driver.unstarted()
        if missing:
            raise Violation("life", f"sources read before nodes {missing} have started")

    def committed(self, epoch: int) -> None:
        """An epoch is recorded as complete at all nodes of the sink."""
        if epoch <= self._world.store.committed:
            raise Violation("life", f"epoch {epoch} is recorded again")
        behind = [n for n in self._world.shape.stages[-1] if self._world.reached[n] < epoch]
        if behind:
            raise Violation("life", f"epoch {epoch} is recorded, but not complete at {behind}")

    def looked(self) -> None:
        """Time has passed: no phase but that of running takes longer than it may."""
        phase, now_ms = self._driver.life.phase, self._world.now_ms
        starts = (FlowPhase.LAUNCHING, FlowPhase.PREPARING)
        if phase is not self._phase and not (phase in starts and self._phase in starts):
            self._phase, self._since_ms = phase, now_ms
        most_ms = {
            FlowPhase.LAUNCHING: START_MS,
            FlowPhase.PREPARING: START_MS,
            FlowPhase.DRAINING: DRAIN_MS,
            FlowPhase.ENDING: END_MS + LEAVE_MS,
        }.get(phase)
        if most_ms is not None and now_ms - self._since_ms > most_ms + SLACK_MS:
            raise Violation("life", f"{phase.value} takes more than {most_ms} ms")

    def ended(self, failure: Failure | None, left: Iterable[int]) -> None:
        """The flow is over."""
        world, driver = self._world, self._driver
        if self._gone:
            raise Violation("life", "it ends twice")
        self._gone = True
        alive = [
            host.number
            for host in world.hosts
            if host.alive and host.run == driver.run and host.number not in driver.fenced
            if host.number and host.slot not in left
        ]
        if alive:
            raise Violation("life", f"hosts {alive} are left behind")
        unfinished = [n for n in world.shape.nodes if world.reached[n] < EPOCH_END]
        if failure is None and unfinished and not driver.stopping and not driver.stopped_early:
            raise Violation("life", f"it ends before nodes {unfinished}")
        committed = driver.life.committed["out"]
        done = min(driver.told[node] for node in world.shape.stages[-1])
        if failure is None and committed < done:
            raise Violation("life", f"epoch {committed} is recorded; complete is {done}")
        if failure is None and world.shape.is_hopeless and not (unfinished or driver.stopping):
            raise Violation("life", "a node got past a row that it cannot get past")

    # -- followers -------------------------------------------------------------------------------

    def follows(self, host: int, nodes: tuple[int, ...] | None, told: list[TellFollow]) -> None:
        """A host begins to follow: it hears of what there is."""
        self._following[host] = None if nodes is None else frozenset(nodes)
        present = self._driver.present_states()
        wanted = {n: news for n, news in present.items() if nodes is None or n in nodes}
        heard = {n: news for tell in told if tell.host == host for n, news in tell.nodes.items()}
        if heard != wanted:
            raise Violation("followers", f"host {host} hears of {heard}, there are {wanted}")

    def stated(self, status: Iterable[Following]) -> None:
        """What people are told of those that follow."""
        states = self._driver.present_states()
        for one in status:
            if one.host not in self._following:
                raise Violation("followers", f"host {one.host} is told of what it does not follow")
            nodes = self._following[one.host]
            wanted = [node for node in states if nodes is None or node in nodes]
            if one.nodes != len(wanted) or one.bytes != sum(states[n].size for n in wanted):
                raise Violation("followers", f"{one} follows {wanted}")

    def stops(self, hosts: Iterable[int]) -> None:
        """Hosts follow nothing any more."""
        for host in hosts:
            self._following.pop(host, None)

    def takes(self, hosts: Iterable[int]) -> None:
        """Hosts get nodes: then they follow none any more."""
        busy = sorted(self._following.keys() & set(hosts))
        if busy:
            raise Violation("followers", f"hosts {busy} get nodes, and follow others")

    def saved(self, node: int, counts: bool, told: list[TellFollow]) -> None:
        """Hosts hear of a checkpoint: all that follow its node, if it counts."""
        heard = sorted(tell.host for tell in told)
        followers = sorted(
            host for host, nodes in self._following.items() if nodes is None or node in nodes
        )
        if heard != (followers if counts else []):
            raise Violation("followers", f"{heard} hear of node {node}, {followers} follow it")

    def current(self, host: int) -> None:
        """A host is taken for current: it has each newest state in memory, or the one before."""
        found = self._world.present(host)
        nodes = self._following.get(host)
        for node, news in self._driver.present_states().items():
            if found is None or not (nodes is None or node in nodes):
                continue
            have = found.followed.get(node)
            if news.key > 1 and (have is None or have.key < news.key - 1):
                raise Violation("followers", f"host {host} is current with {have}, not {news}")
