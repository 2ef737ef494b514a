"""The simulated world: what can happen next is chosen by one random generator."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any, assert_never

from penstock.core.causal.graph import NodeKind
from penstock.core.control.recovery import (
    OpenEdge,
    StartNode,
)
from penstock.core.control.retention import Low
from penstock.core.node.messages import Message
from penstock.errors import PenstockError
from penstock.testing.simulator.cases import Case
from penstock.testing.simulator.driver import Choices, Driver
from penstock.testing.simulator.faults import plan_faults, strike
from penstock.testing.simulator.flows import flow_of
from penstock.testing.simulator.hosts import TICK, Cluster, Every
from penstock.testing.simulator.loops import Loops
from penstock.testing.simulator.monitor import Monitor
from penstock.testing.simulator.network import Channel, Network, note_message
from penstock.testing.simulator.orders import Fence, KeepLog, NodeOrder, Resume
from penstock.testing.simulator.process import Process
from penstock.testing.simulator.roles.part import ReplicatedPart
from penstock.testing.simulator.stages import Shape
from penstock.testing.simulator.store import Store
from penstock.testing.simulator.violations import Violation

__all__ = ["World"]

STEPS_MAX = 60_000
IDLE_MAX = 2_000
"""Ticks in which nothing happens before a rough run is taken for stuck."""
SWITCH_SHARE_LONG = 0.2


class World:
    """One simulated run."""

    def __init__(
        self,
        case: Case,
        trace: list[str] | None = None,
        shape: Shape | None = None,
        faults: tuple[str, ...] | None = None,
    ) -> None:
        self.random = Random(case.seed)
        self.trace = trace
        self.shape = shape or flow_of(case, self.random)
        self.mixed = case.mixed
        self.long = case.long
        self.store = Store(self.shape)
        self.network = Network(self)
        self.monitor = Monitor(self)
        self.faults: Counter[str] = Counter()
        self.steps = 0
        self.every = dict(self.shape.every)
        """The present plan: how many epochs from checkpoint to checkpoint."""
        self.store_until = 0
        """Before this step the store refuses writes, or is slow."""
        self.store_slow = False
        self._idle_ticks = 0
        self.rough = case.rough
        self.cluster: Cluster | None = None
        """(Rough runs, replicas) the hosts, and the driver's knowledge of them."""
        self.replicas: ReplicatedPart | None = None
        """What is played by replicas, where the flow has any."""
        if self.shape.replicated is not None:
            self.replicas = ReplicatedPart(self, self.shape.replicated, case.often)
        self.driver = Driver(self)
        if case.rough or self.replicas is not None:
            self.cluster = Cluster(self)
            self.cluster.begin()
        graph = self.shape.graph
        zero = dict.fromkeys(graph.order, 0)
        self.processes: dict[int, Process] = {}
        self.zombies: list[Process] = []
        self.loops = Loops(self, case.seed)
        for node in graph.order:
            self.loops.order(node, 0)
            self.processes[node] = Process(self, node, 0, zero)
        self.to_nodes: dict[int, deque[tuple[int, NodeOrder]]] = {
            node: deque() for node in graph.order
        }
        self.detections: list[tuple[int, int]] = []
        self.starting: list[StartNode] = []
        self.pending: list[tuple[int, str]] = []
        """Faults to come: when, and of which class."""
        self.waiting: list[str] = []
        """Classes of faults that happen during the next recovery."""
        self.laggards: frozenset[tuple[int, int]] = frozenset()
        """Edges that are slow."""
        self.hard_of_hearing: frozenset[int] = frozenset()
        """Nodes that what the driver says reaches late."""
        self.switch_share = 0.03 if self.shape.switched else 0.0
        self.settle_share = 0.1
        """How often the driver looks whether logs may go, or are whole."""
        self.checkpoint_share = self.random.choice((0.0, 0.4, 0.9))
        self.truncate_share = self.random.choice((0.0, 0.1, 0.3))
        if case.long:
            self.switch_share, self.settle_share = SWITCH_SHARE_LONG, 1.0
            self.checkpoint_share = self.random.choice((0.4, 0.9))
            self.truncate_share = self.random.choice((0.1, 0.3))
        plan_faults(self, faults)

    # -- running ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Run to the end; raise Violation if an invariant breaks."""
        try:
            while self.step():
                pass
        except PenstockError as error:
            raise Violation("refused", f"{type(error).__name__}: {error}") from error
        except (LookupError, TypeError, ValueError) as error:
            raise Violation("broken", f"{type(error).__name__}: {error}") from error
        self.monitor.ended()
        if self.replicas is not None:
            self.replicas.ended()

    def step(self) -> bool:
        """One thing happens; False when nothing can."""
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Violation("Eventuality", f"no end after {STEPS_MAX} steps")
        if self.pending and self.steps >= self.pending[0][0]:
            strike(self, self.pending.pop(0)[1])
        if self.cluster is not None and self.steps % TICK == 0:
            self._tick(self.cluster)
        if self.replicas is not None:
            self.replicas.look()
        choices = self.choices()
        if not choices and self.cluster is not None:
            return self._idle(self.cluster)
        self._idle_ticks = 0
        if not choices:
            if self.pending and not self.pending[0][1].endswith("during_recovery"):
                self.steps = max(self.steps, self.pending[0][0])
                return True
            return False
        action, argument = self.random.choice(choices)
        action(argument)
        return True

    def _tick(self, cluster: Cluster) -> None:
        """Time passes for hosts and connections."""
        mended = self.network.links.mended(self.steps)
        if mended:
            self.network.reconnect(mended)
        cluster.tick()
        if self.replicas is not None:
            self.replicas.tick()

    def _idle(self, cluster: Cluster) -> bool:
        """Nothing can happen but that time passes; False when that changes nothing, either."""
        waits = self.steps < self.store_until or self.network.links.dead or self.pending
        self._idle_ticks += 1
        quiet = self.driver.quiet and (self.replicas is None or self.replicas.at_rest())
        if (quiet and not waits and not cluster.busy) or self._idle_ticks > IDLE_MAX:
            return False
        self.steps += TICK - self.steps % TICK - 1
        return True

    @property
    def store_works(self) -> bool:
        """Whether the store takes writes just now."""
        if self.steps >= self.store_until:
            return True
        return self.store_slow and self.random.random() < 0.1

    def choices(self) -> Choices:
        """Everything that can happen now."""
        late: list[Channel[Any, Any]] = []
        cluster = self.cluster
        stores = self.store_works
        busy = self.network.busy() if cluster is None else self.network.reachable(cluster, stores)
        if self.laggards:
            slow = self.laggards
            late = [c for c in busy if c.edge in slow]
            busy = [c for c in busy if c.edge not in slow]
        found: Choices = [(self._deliver, channel) for channel in busy]
        if late and (not found or self.random.random() < 0.15):
            found += [(self._deliver, channel) for channel in late]
        source = NodeKind.SOURCE
        frozen = cluster.frozen() if cluster is not None else ()
        for process in (*self.processes.values(), *self.zombies):
            if process.writes and stores:
                found.append((self._write, process))
            if not process.alive or process.host in frozen:
                continue
            if process.paused:
                found.append((self._wake, process))
                continue
            if process.loop is not None and process.loop.is_due:
                found.append((self._advance, process))
            reads = process.kind is source and process.reading and process.readable
            if reads and (stores or process.node not in self.shape.graph.position_first):
                found.append((self._read, process))
        told = [node for node, queue in self.to_nodes.items() if queue and self._hears(node)]
        if self.hard_of_hearing and found and self.random.random() < 0.85:
            told = [node for node in told if node not in self.hard_of_hearing]
        found += [(self._told, node) for node in told]
        self.loops.add_choices(found)
        self.driver.add_choices(found, stores)
        if self.replicas is not None:
            self.replicas.add_choices(found, stores)
        if not stores:
            return found
        for number, effect in enumerate(self.starting):
            if cluster is None or cluster.can_run(effect.node):
                found.append((self._spawn, number))
        return found

    def _deliver(self, channel: Channel[Any, Any]) -> None:
        channel.deliver()

    def _hears(self, node: int) -> bool:
        """Whether what is told to a node reaches it now, or never."""
        if self.cluster is None:
            return True
        process = self.find(node, self.to_nodes[node][0][0])
        if process is None or not process.alive:
            return True
        return not self.cluster.is_frozen(process.host)

    def find(self, node: int, incarnation: int) -> Process | None:
        """The process of an incarnation, if it is there."""
        process = self.processes.get(node)
        if process is not None and process.incarnation == incarnation:
            return process
        for process in self.zombies:
            if process.node == node and process.incarnation == incarnation:
                return process
        return None

    # -- nodes -----------------------------------------------------------------------------------

    def receive(self, process: Process, message: Message) -> None:
        """A message arrives at a process."""
        if self.trace is not None:
            note_message(self, "gets", process, message)
        self._guarded(process, lambda: self._receive(process, message))

    def _receive(self, process: Process, message: Message) -> None:
        machine = process.machine
        if (
            message.target_incarnation == process.incarnation
            and machine.incarnation_of(message.sender) == message.incarnation
        ):
            self.monitor.received(process, message)
        before = dict(machine.clock)
        process.perform(machine.received(message))
        self.monitor.handled(process, before, message)

    def _guarded(self, process: Process, action: Callable[[], None]) -> None:
        """What goes wrong in a process that was replaced is its own affair."""
        try:
            action()
        except (PenstockError, Violation):
            if not process.zombie:
                raise
            process.alive = False

    def _read(self, process: Process) -> None:
        self._guarded(process, process.read)

    def _advance(self, process: Process) -> None:
        self._guarded(process, process.advance)

    def _write(self, process: Process) -> None:
        self._guarded(process, process.written)

    def _wake(self, process: Process) -> None:
        process.paused -= 1

    def wants_checkpoint(self, process: Process) -> bool:
        """Whether to take a checkpoint now; loops do so at the ends of blocks."""
        if (
            process.kind not in (NodeKind.STATEFUL, NodeKind.ORDERED)
            or process.node in self.shape.every
        ):
            return False
        if process.node in self.shape.graph.units:
            return False
        return self.random.random() < self.checkpoint_share

    # -- control ---------------------------------------------------------------------------------

    def tell_node(self, node: int, order: NodeOrder) -> None:
        """Tell the present incarnation of a node something."""
        self.to_nodes[node].append((self.store.record.incarnations[node], order))

    def _told(self, node: int) -> None:
        incarnation, effect = self.to_nodes[node].popleft()
        process = self.find(node, incarnation)
        if process is None or not process.alive:
            cluster = self.cluster
            if isinstance(effect, Fence) and cluster is not None and cluster.lives(effect.host):
                self.driver.heard_of_fence(node, effect)  # the node has ended, but not its host
            return
        if process.paused:
            self.to_nodes[node].appendleft((incarnation, effect))
            return
        self._guarded(process, lambda: self._tell_node(process, effect))

    def _tell_node(self, process: Process, order: NodeOrder) -> None:
        machine = process.machine
        match order:
            case Fence():
                self.note(process, "is told of", dict(order.incarnations))
                process.perform(machine.fence(order.incarnations, order.round))
                self.driver.heard_of_fence(process.node, order)
            case OpenEdge():
                self.note(process, "opens to", order.target, "after", tuple(order.position))
                process.perform(machine.open(order.target, order.incarnation, order.position))
            case Resume():
                process.perform(machine.resume(order.epoch))
            case Every():
                machine.checkpoints.every = order.epochs
            case KeepLog():
                machine.logged = order.logged
            case Low():
                process.forget(order)
            case _:
                assert_never(order)

    def _spawn(self, number: int) -> None:
        effect = self.starting.pop(number)
        if self.store.record.incarnations[effect.node] != effect.incarnation:
            return
        if (effect.node, effect.start.checkpoint) in self.store.damaged:
            self._find_damage(effect)
            return
        old = self.processes[effect.node]
        if old.alive:
            old.zombie = True
            self.zombies.append(old)
        elif old.writes:
            self.zombies.append(old)
            old.zombie = True
        start = effect.start
        self.store.roll_back(effect.node, start.checkpoint, start.trim, start.observed)
        process = Process(
            self,
            effect.node,
            effect.incarnation,
            dict(effect.incarnations),
            effect.start,
        )
        self.processes[effect.node] = process
        self.note(process, "starts:", effect.start)
        self.driver.tell("started", process, None)
        self._guarded(process, lambda: process.perform(process.machine.begin()))

    def _find_damage(self, effect: StartNode) -> None:
        """The checkpoint to start from cannot be read: the node is to be started anew."""
        self.count("unreadable")
        self.note(f"{effect.node}#{effect.incarnation} cannot read {effect.start.checkpoint}")
        self.store.set_aside(effect.node, effect.start.checkpoint or 0)
        self.driver.to_controller.append(("unreadable", effect.node, effect.incarnation, None))

    # -- faults ----------------------------------------------------------------------------------

    def kill(self, node: int) -> None:
        """A process ends; the last of what it was writing or sending is lost."""
        self.end(self.processes[node])
        self.suspect(node)

    def end(self, process: Process, machine: bool = False) -> None:
        """A process is gone; with its ``machine`` all that was written and not synced."""
        process.alive = False
        if machine and process.writes:
            self.count("unsynced")
            what, value = process.writes[0]
            process.writes.clear()
            if what in ("cut", "determinants") and self.random.random() < 0.7:
                self.count("torn")
                self.store.tear(process.node, what, value, self.random)
        while process.writes and self.random.random() < 0.5:
            process.writes.pop()
        self.network.lose(process)
        if process.loop is not None:
            self.loops.lose(process.loop.end)

    def host_of(self, node: int) -> int:
        """Where a node runs."""
        if self.cluster is not None:
            return self.cluster.host_of(node)
        return self.shape.hosts.get(node, node)

    def suspect(self, node: int) -> None:
        """The controller will find this incarnation lost."""
        self.detections.append((node, self.processes[node].incarnation))

    # -- traces ----------------------------------------------------------------------------------

    def count(self, what: str) -> None:
        """Count something that happened by itself."""
        self.faults[what] += 1

    def note(self, *words: object) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.steps:5d}  {' '.join(map(str, words))}")
