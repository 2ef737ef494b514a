"""The simulated world: what can happen next is chosen by one random generator."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, NamedTuple

from penstock.core.causal.graph import Kind
from penstock.core.causal.retention import durable_epochs, low_epochs, rollback_from
from penstock.core.control.global_hold import GlobalHold
from penstock.core.control.recovery import (
    Collect,
    Fence,
    FenceStore,
    GiveUp,
    OpenEdge,
    Persist,
    RecoveryEffect,
    RecoveryMachine,
    Refuse,
    StartNode,
    Truncate,
)
from penstock.core.node.causal_effects import Flushed
from penstock.core.node.messages import Message
from penstock.core.progress.marks import EPOCH_END
from penstock.errors import PenstockError
from penstock.testing.simulator.cases import Case
from penstock.testing.simulator.faults import plan_faults, strike
from penstock.testing.simulator.flows import flow_of
from penstock.testing.simulator.guarantees import position_first
from penstock.testing.simulator.hosts import TICK, Cluster, Every
from penstock.testing.simulator.loops import Loops
from penstock.testing.simulator.monitor import Monitor
from penstock.testing.simulator.network import Channel, Network, note_message
from penstock.testing.simulator.process import Process
from penstock.testing.simulator.stages import Shape, mix
from penstock.testing.simulator.store import Store
from penstock.testing.simulator.violations import Violation

__all__ = ["World"]

STEPS_MAX = 20_000
IDLE_MAX = 2_000
"""Ticks in which nothing happens before a rough run is taken for stuck."""


class Resume(NamedTuple):
    """Tell a node that everybody has a checkpoint."""

    epoch: int


def _on_store(effect: RecoveryEffect) -> bool:
    return isinstance(effect, Persist | FenceStore | Collect)


class World:
    """One simulated run."""

    def __init__(
        self,
        case: Case,
        trace: list[str] | None = None,
        shape: Shape | None = None,
    ) -> None:
        self.random = Random(case.seed)
        self.trace = trace
        self.shape = shape or flow_of(case, self.random)
        self.mixed = case.mixed
        self.hold: GlobalHold | None = None
        self._hold_everybody({})
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
        self._stalled: list[RecoveryEffect] = []
        """What the controller could not do because the store refused."""
        self._idle_ticks = 0
        self.controller: RecoveryMachine | None = self._new_controller()
        self.cluster = Cluster(self) if case.rough else None
        """(Rough runs) the hosts, and the driver's knowledge of them."""
        graph = self.shape.graph
        zero = dict.fromkeys(graph.order, 0)
        self.processes: dict[int, Process] = {}
        self.zombies: list[Process] = []
        self.loops = Loops(self, case.seed)
        for node in graph.order:
            self.loops.order(node, 0)
            self.processes[node] = Process(self, node, 0, zero)
        self.controller_steps: int | None = None
        """After how many more effects the controller dies."""
        self.to_controller: deque[tuple[str, int, int, Any]] = deque()
        self.to_nodes: dict[int, deque[tuple[int, RecoveryEffect | Resume | Every]]] = {
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
        self.salt = self.random.getrandbits(16)
        self.switch_share = 0.03 if self.shape.switched else 0.0
        self.checkpoint_share = self.random.choice((0.0, 0.4, 0.9))
        self.truncate_share = self.random.choice((0.0, 0.1, 0.3))
        plan_faults(self)

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

    def step(self) -> bool:
        """One thing happens; False when nothing can."""
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Violation("Eventuality", f"no end after {STEPS_MAX} steps")
        if self.pending and self.steps >= self.pending[0][0]:
            strike(self, self.pending.pop(0)[1])
        if self.cluster is not None and self.steps % TICK == 0:
            self._tick(self.cluster)
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

    def _idle(self, cluster: Cluster) -> bool:
        """Nothing can happen but that time passes; False when that changes nothing, either."""
        waits = self.steps < self.store_until or self.network.links.dead or self.pending
        self._idle_ticks += 1
        if (self.quiet and not waits and not cluster.busy) or self._idle_ticks > IDLE_MAX:
            return False
        self.steps += TICK - self.steps % TICK - 1
        return True

    @property
    def quiet(self) -> bool:
        """Whether no node is still recovering."""
        return self.controller is not None and self.controller.quiet

    @property
    def _store_refuses(self) -> bool:
        return self.steps < self.store_until and not self.store_slow

    @property
    def store_works(self) -> bool:
        """Whether the store takes writes just now."""
        if self.steps >= self.store_until:
            return True
        return self.store_slow and self.random.random() < 0.1

    def choices(self) -> list[tuple[Callable[[Any], None], Any]]:
        """Everything that can happen now."""
        deliver = self.network.deliver
        late: list[Channel] = []
        cluster = self.cluster
        stores = self.store_works
        busy = self.network.busy() if cluster is None else self.network.reachable(cluster, stores)
        if self.laggards:
            slow = self.laggards
            late = [c for c in busy if (c.sender.node, c.target) in slow]
            busy = [c for c in busy if (c.sender.node, c.target) not in slow]
        found: list[tuple[Callable[[Any], None], Any]] = [(deliver, channel) for channel in busy]
        if late and (not found or self.random.random() < 0.15):
            found += [(deliver, channel) for channel in late]
        source = Kind.SOURCE
        for process in (*self.processes.values(), *self.zombies):
            if process.writes and stores:
                found.append((self._write, process))
            if not process.alive or (cluster is not None and cluster.is_frozen(process.host)):
                continue
            if process.paused:
                found.append((self._wake, process))
                continue
            if process.loop is not None and process.loop.is_due:
                found.append((self._advance, process))
            reads = process.kind is source and process.reading and process.readable
            if reads and (stores or not position_first(self.shape, process.node)):
                found.append((self._read, process))
        found += [
            (self._told, node)
            for node, queue in self.to_nodes.items()
            if queue and self._hears(node)
        ]
        self.loops.add_choices(found)
        if not stores:
            if self.to_controller and self.controller is not None:
                found.append((self._hear, None))
            return found
        if self.controller is None:
            found.append((self._restart_controller, None))
        else:
            if self._stalled:
                found.append((self._try_again, None))
            if self.to_controller:
                found.append((self._hear, None))
                found.append((self._hear, None))
            for number in range(len(self.detections)):
                found.append((self._detect, number))
            for sink, staged in self.store.staged.items():
                if staged and self.controller.quiet and self.store.may_publish(sink):
                    found.append((self.store.publish_staged, sink))
            if found and self.random.random() < self.truncate_share:
                found.append((self._truncate, None))
        if self.switch_share and found and self.random.random() < self.switch_share:
            found.append((self._switch, self.random.choice(sorted(self.shape.switched))))
        for number, effect in enumerate(self.starting):
            if cluster is None or cluster.can_run(effect.node):
                found.append((self._spawn, number))
        return found

    def _hears(self, node: int) -> bool:
        """Whether what is told to a node reaches it now."""
        if self.cluster is None:
            return True
        process = self.find(node, self.to_nodes[node][0][0])
        return process is None or not self.cluster.is_frozen(process.host)

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

    def _switch(self, node: int) -> None:
        """A node's log is turned on or off."""
        process = self.processes[node]
        if process.alive and not process.paused:
            process.machine.logged = not process.machine.logged
            self.note(f"{process.name} {'keeps' if process.machine.logged else 'keeps no'} log")

    def wants_checkpoint(self, process: Process, epoch: int) -> bool:
        """Whether to take a checkpoint after this epoch; who may go back together does so too."""
        graph = self.shape.graph
        if process.kind not in (Kind.STATEFUL, Kind.ORDERED) or process.node in self.shape.every:
            return False
        if process.node in graph.tainted and epoch == EPOCH_END:
            return True
        if process.node in graph.units:
            return False  # at the ends of blocks
        if process.node in graph.tainted:
            return mix(self.salt, epoch % 1009) % 100 < 100 * self.checkpoint_share
        return self.random.random() < self.checkpoint_share

    # -- control ---------------------------------------------------------------------------------

    def tell(self, what: str, process: Process, value: Any) -> None:
        """A node's word to the controller, who refuses those that it has declared lost."""
        if self.cluster is not None and self.cluster.refuses(process.host):
            return
        self.to_controller.append((what, process.node, process.incarnation, value))

    def _hear(self, _: None) -> None:
        what, node, incarnation, value = self.to_controller.popleft()
        controller = self.controller
        if controller is None:
            return
        self.note(f"controller hears {what} of {node}#{incarnation}")
        if what == "report":
            if controller.record.incarnations[node] == incarnation:
                self.control(controller.reported(node, *value))
        elif what == "opened":
            self.control(controller.opened(node, incarnation, *value))
        elif what == "flushed":
            if controller.record.incarnations[node] == incarnation:
                self._flushed(node, value)
        elif what == "started":
            self.control(controller.started(node, incarnation))
        elif what == "contradicted":
            self.control(controller.contradicted(node, incarnation, value))
        else:
            self.control(controller.recovered(node, incarnation))

    def _detect(self, number: int) -> None:
        node, incarnation = self.detections.pop(number)
        if self.controller is not None:
            self.note(f"controller finds {node}#{incarnation} lost")
            self.control(self.controller.lost({node: incarnation}))
            self._recovery_begun()

    def _recovery_begun(self) -> None:
        """A fault that waited for a recovery happens soon."""
        if self.waiting:
            what = self.waiting.pop(0)
            when = self.steps + self.random.randint(1, 60)
            self.pending = sorted([*self.pending, (when, what)])

    def lose(self, nodes: Iterable[int]) -> None:
        """The present incarnations of some nodes are lost, or have to move."""
        if self.controller is not None:
            now = self.controller.record.incarnations
            self.control(self.controller.lost({node: now[node] for node in nodes}))
            self._recovery_begun()

    def _truncate(self, _: None) -> None:
        if self.controller is None or self.controller.record.limits:
            return
        graph = self.shape.graph
        stored = self.store.stored(graph.order)
        lows = low_epochs(graph, *durable_epochs(graph, stored), *self.shape.kept)
        self.monitor.truncated(lows, stored)
        self.store.forget(lows)
        self.control(self.controller.truncate_due(lows))

    # -- global checkpoints ----------------------------------------------------------------------

    def _new_controller(self) -> RecoveryMachine:
        together = self.shape.global_every is not None
        return RecoveryMachine(self.shape.graph, self.store.record, all_together=together)

    def _hold_everybody(self, starts: Mapping[int, int]) -> None:
        """Everybody holds its input after the next multiple."""
        every = self.shape.global_every
        if every is not None:
            kinds = self.shape.graph.kinds
            fed = [node for node, kind in kinds.items() if kind is not Kind.SOURCE]
            ahead = {node: starts.get(node, -1) for node in fed}
            self.hold = GlobalHold(fed, every, min(ahead.values()), ahead)

    def _flushed(self, node: int, said: Flushed) -> None:
        following = None if self.hold is None else self.hold.flushed(node, said)
        if following is not None:
            self.note(f"controller lets everybody go on to {following}")
            for other in self.shape.graph.order:
                self.tell_node(other, Resume(following))

    def rollback(self) -> bool:
        """A person wants a region to go back."""
        graph = self.shape.graph
        if self.controller is None:
            return False
        saved, published = durable_epochs(graph, self.store.stored(graph.order))
        oldest = rollback_from(graph, saved, published, *self.shape.kept)
        node = self.random.choice(graph.order)
        region = [other for other in graph.order if graph.regions[other] == graph.regions[node]]
        if graph.unrepeatable.intersection(region):
            return False
        newest = max((e for n in region for e in saved.get(n, ()) if e < EPOCH_END), default=-1)
        to = self.random.randint(oldest[node], max(newest, oldest[node]) + 1)
        self.note(f"a person rolls the region of {node} back to {to}")
        self.control(self.controller.rollback(to, [node]))
        return True

    def control(self, effects: list[RecoveryEffect]) -> None:
        """Perform the controller's effects; it may die between any two of them."""
        if self._stalled or (self._store_refuses and any(map(_on_store, effects))):
            self._stalled += effects
            return
        starts = [effect for effect in effects if isinstance(effect, StartNode)]
        if starts:
            self._hold_everybody({e.node: e.start.completed for e in starts})
            self.monitor.planned(starts, self.store.record.limits)
            self.loops.planned(starts)
        for effect in effects:
            if self.controller_steps is not None:
                self.controller_steps -= 1
                if self.controller_steps <= 0:
                    self.lose_controller()
            if self.controller is None:
                return
            if isinstance(effect, Persist):
                self.store.record = effect.record
            elif isinstance(effect, FenceStore):
                self.note("store refuses all but", dict(effect.incarnations))
                self.store.fence(effect.incarnations)
            elif isinstance(effect, Collect):
                if self.controller is not None:
                    stored = self.store.stored(effect.nodes)
                    self.control(self.controller.stored(effect.round, stored))
            elif isinstance(effect, Refuse):
                raise Violation("Eventuality", f"a rollback was refused: {effect.reason}")
            elif isinstance(effect, GiveUp):
                raise Violation("Eventuality", f"the controller gave up: {effect.reason}")
            elif isinstance(effect, StartNode):
                self.starting.append(effect)
                self.loops.order(effect.node, effect.incarnation)
            elif isinstance(effect, Truncate | Fence):
                self.tell_node(effect.node, effect)
            elif isinstance(effect, OpenEdge):
                self.tell_node(effect.sender, effect)

    def _try_again(self, _: None) -> None:
        effects, self._stalled = self._stalled, []
        self.control(effects)

    def tell_node(self, node: int, effect: RecoveryEffect | Resume | Every) -> None:
        self.to_nodes[node].append((self.store.record.incarnations[node], effect))

    def _told(self, node: int) -> None:
        incarnation, effect = self.to_nodes[node].popleft()
        process = self.find(node, incarnation)
        if process is None or not process.alive:
            return
        if process.paused:
            self.to_nodes[node].appendleft((incarnation, effect))
            return
        self._guarded(process, lambda: self._tell_node(process, effect))

    def _tell_node(self, process: Process, effect: RecoveryEffect | Resume | Every) -> None:
        machine = process.machine
        if isinstance(effect, Fence):
            self.note(process, "is told of", dict(effect.incarnations))
            process.perform(machine.fence(effect.incarnations, effect.round))
        elif isinstance(effect, OpenEdge):
            self.note(process, "opens to", effect.target, "after", tuple(effect.position))
            process.perform(machine.open(effect.target, effect.incarnation, effect.position))
        elif isinstance(effect, Resume):
            process.perform(machine.resume(effect.epoch))
        elif isinstance(effect, Every):
            machine.checkpoints.every = effect.epochs
        elif isinstance(effect, Truncate):
            machine.truncate(effect.positions, effect.epoch)

    def _spawn(self, number: int) -> None:
        effect = self.starting.pop(number)
        if self.store.fences[effect.node] != effect.incarnation:
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
        self.tell("started", process, None)
        self._guarded(process, lambda: process.perform(process.machine.begin()))

    def _restart_controller(self, _: None) -> None:
        self.note("controller restarts")
        self.controller = self._new_controller()
        self._hold_everybody({})
        self.loops.begin()
        if self.cluster is not None:
            self.cluster.begin()
            self.control(self.controller.lost(self.controller.record.incarnations))
            return
        for node, process in self.processes.items():
            if not process.alive:
                self.suspect(node)
            elif process.said is not None and self.hold is not None:
                self.tell("flushed", process, process.said)
        # Without the counts of its progress a loop cannot go on.
        now = self.controller.record.incarnations
        loops = {node: now[node] for node in self.shape.graph.units}
        self.control(self.controller.lost(loops) if loops else self.controller.resumed())

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

    def lose_controller(self) -> None:
        """The controller ends; what it had not sent is never sent."""
        self.note("controller dies")
        self.controller = None
        self.controller_steps = None
        self.to_controller.clear()
        self.loops.lose_driver()
        self._stalled.clear()
        if self.cluster is not None:
            self.cluster.orphan()
        self.starting = [start for start in self.starting if self.random.random() < 0.5]

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
