"""The simulated world: what can happen next is chosen by one random generator."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random
from typing import Any, NamedTuple, assert_never

from penstock.core.causal.graph import Kind
from penstock.core.causal.reports import Stored
from penstock.core.control.global_hold import GlobalHold
from penstock.core.control.going_back import GoingBack, newest_epoch
from penstock.core.control.planned_logs import Logging, PlannedLogs
from penstock.core.control.recovery import (
    Collect,
    FenceHosts,
    FenceSources,
    FenceStore,
    GiveUp,
    OpenEdge,
    Persist,
    ReadStates,
    RecoveryEffect,
    RecoveryMachine,
    Refuse,
    StartNode,
    Widen,
)
from penstock.core.control.retention import Low, RetentionMachine
from penstock.core.node.causal_effects import Flushed
from penstock.core.node.messages import Message
from penstock.errors import PenstockError
from penstock.testing.simulator.cases import Case
from penstock.testing.simulator.faults import plan_faults, strike
from penstock.testing.simulator.flows import flow_of
from penstock.testing.simulator.hosts import TICK, Cluster, Every
from penstock.testing.simulator.loops import Loops
from penstock.testing.simulator.monitor import Monitor
from penstock.testing.simulator.network import Channel, Network, note_message
from penstock.testing.simulator.process import Process
from penstock.testing.simulator.stages import Shape
from penstock.testing.simulator.store import Store
from penstock.testing.simulator.violations import Violation

__all__ = ["World"]

STEPS_MAX = 20_000
IDLE_MAX = 2_000
"""Ticks in which nothing happens before a rough run is taken for stuck."""


SETTLE_SHARE = 0.1
SLACK = 2
"""How many epochs nodes may be ahead of what they said last."""


class Resume(NamedTuple):
    """Tell a node that all nodes have a checkpoint."""

    epoch: int


class Fence(NamedTuple):
    """Tell a node of a host which nodes have new incarnations."""

    round: int
    host: int
    incarnations: Mapping[int, int]


class KeepLog(NamedTuple):
    """Tell a node whether it keeps a log of what it sent."""

    logged: bool


NodeOrder = OpenEdge | Resume | Every | Fence | Low | KeepLog


def _on_store(effect: RecoveryEffect) -> bool:
    return isinstance(effect, Persist | FenceStore | ReadStates | FenceSources | Collect)


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
        self._wanted_logs: dict[int, bool] = {}
        """The present plan: which nodes are to keep logs, where that was changed."""
        self._early: dict[int, Stored] = {}
        """What the controller has read before all hosts had heard of its fence."""
        self._unfenced: dict[tuple[int, int], set[int]] = {}
        """Per round and host: the nodes there that have not heard of a fence."""
        self._answers: list[tuple[int, int]] = []
        """Rounds, and hosts that have no nodes and have not heard of them."""
        self.collected: dict[int, int] = {}
        """Per node: the newest incarnation for which what is durable was read."""
        self.controller: RecoveryMachine | None = self._new_controller()
        self.cluster: Cluster | None = None
        """(Rough runs) the hosts, and the driver's knowledge of them."""
        if case.rough:
            self.cluster = Cluster(self)
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
            if reads and (stores or process.node not in self.shape.graph.position_first):
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
            if found and self.random.random() < self.truncate_share:
                found.append((self._truncate, None))
            if self.switch_share and found and self.random.random() < self.switch_share:
                found.append((self._switch, self.random.choice(sorted(self.shape.switched))))
            if self.switch_share and found and self.random.random() < SETTLE_SHARE:
                found.append((self._settle_logs, None))
            if cluster is not None:
                answers = [one for one in self._answers if cluster.answers(one[1])]
                found += [(self._answer_fence, one) for one in answers]
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
        """Another plan: a node is to keep a log, or not."""
        self._wanted_logs[node] = not self._wanted_logs.get(node, True)
        self.note(f"plan: {node} keeps {'a' if self._wanted_logs[node] else 'no'} log")
        self.logs.want(self._wanted_logs)
        self._tell_logs()

    def _settle_logs(self, _: None) -> None:
        """The controller looks whether logs may go, or are whole."""
        said = {
            node: Logging(process.machine.completed_epoch, process.machine.logged)
            for node, process in self.processes.items()
            if process.alive
        }
        if self.logs.settle(said, SLACK, self.quiet):
            self._tell_logs()

    def _tell_logs(self) -> None:
        for node in sorted(self.shape.switched):
            self.tell_node(node, KeepLog(self.logs.told[node]))

    def wants_checkpoint(self, process: Process) -> bool:
        """Whether to take a checkpoint now; loops do so at the ends of blocks."""
        if process.kind not in (Kind.STATEFUL, Kind.ORDERED) or process.node in self.shape.every:
            return False
        if process.node in self.shape.graph.units:
            return False
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
        elif what == "fenced":
            self.control(controller.host_fenced(value, node))
        elif what == "unreadable":
            self.control(controller.lost({node: incarnation}))
        elif what == "saved":
            if controller.record.incarnations[node] == incarnation:
                self.retention.checkpoint_saved(node, *value)
        elif what == "published":
            self.retention.sink_published(node, value)
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

    def lose_host(self, host: int, nodes: Collection[int]) -> None:
        """A host is lost, with the present incarnations of some nodes."""
        if nodes:
            self.lose(nodes)
        elif self.controller is not None:
            self.control(self.controller.host_gone(host))

    def lose(self, nodes: Iterable[int]) -> None:
        """The present incarnations of some nodes are lost, or have to move."""
        if self.controller is not None:
            now = self.controller.record.incarnations
            self.control(self.controller.lost({node: now[node] for node in nodes}))
            self._recovery_begun()

    def _truncate(self, _: None) -> None:
        if self.controller is None:
            return
        due = self.retention.due(going_back=bool(self.controller.record.limits))
        if due is None:
            return
        self.monitor.truncated(due.lows, self.store.stored_of_all())
        self.store.begun = self.store.begun.union(due.begun)
        for node, low in due.lows.items():
            if low != self.retention.lows.get(node):
                self.tell_node(node, low)
        self.retention.forgotten(due)

    # -- global checkpoints ----------------------------------------------------------------------

    def _new_controller(self) -> RecoveryMachine:
        together = self.shape.global_every is not None
        record = self.store.record
        self.retention = RetentionMachine(self.shape.graph, forgotten=record.forgotten)
        self.logs = PlannedLogs(self.retention)
        self.logs.want(self._wanted_logs)
        return RecoveryMachine(self.shape.graph, record, self._reachable, together)

    def _reachable(self) -> list[int]:
        """The hosts that have to hear of a fence; without hosts, the nodes that were not lost."""
        if self.cluster is not None:
            return self.cluster.reachable()
        failed = self.controller.failed if self.controller is not None else frozenset()
        return [node for node in self.shape.graph.order if node not in failed]

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
        """A person wants the flow to go back."""
        if self.controller is None:
            return False
        stored = self.store.stored_of_all()
        self.retention.stored_read(stored, stored)
        for sink, epochs in self.store.published.items():
            self.retention.sink_published(sink, max(epochs, default=-1))
        lows = self.retention.gone_before()
        together = self.shape.global_every is not None
        back = GoingBack(self.shape.graph, stored, lows, together)
        oldest = back.oldest_epoch()
        if oldest is None:
            return False
        to = self.random.randint(oldest, max(newest_epoch(stored), oldest))
        self.note(f"a person rolls the flow back to {to}")
        self.control(self.controller.rollback(to, lows))
        return True

    def control(self, effects: list[RecoveryEffect]) -> None:
        """Perform the controller's effects; it may die between any two of them."""
        if self._stalled or (self._store_refuses and any(map(_on_store, effects))):
            self._stalled += effects
            return
        starts = [effect for effect in effects if isinstance(effect, StartNode)]
        if starts:
            self._hold_everybody({e.node: e.start.completed for e in starts})
            records = [effect.record for effect in effects if isinstance(effect, Persist)]
            self.monitor.planned(starts, (records or [self.store.record])[-1].limits)
            self.loops.planned(starts)
        for effect in effects:
            if self.controller_steps is not None:
                self.controller_steps -= 1
                if self.controller_steps <= 0:
                    self.lose_controller()
            if self.controller is None:
                return
            self._perform(effect, self.controller)

    def _perform(self, effect: RecoveryEffect, controller: RecoveryMachine) -> None:
        match effect:
            case Persist():
                self.store.record = effect.record
            case FenceStore() | FenceSources():
                self.note("store refuses all but", dict(effect.incarnations))
                self.store.fence(effect.incarnations)
            case FenceHosts():
                self._fence_hosts(effect)
            case ReadStates():
                self._early = self.store.stored(effect.nodes)
            case Collect():
                stored = {**self.store.stored(effect.nodes), **self._early}
                self._stop_the_rest(effect)
                whole = [node for node, newest in effect.nodes.items() if newest is None]
                self.retention.stored_read(stored, whole)
                gone = self.retention.gone_before()
                self.control(controller.stored(effect.round, stored, gone))
            case StartNode():
                self.retention.node_restarted(effect.node, effect.start.completed)
                self.starting.append(effect)
                self.loops.order(effect.node, effect.incarnation)
            case OpenEdge():
                self.tell_node(effect.sender, effect)
            case Refuse():
                if not self.faults["unreadable"]:  # the checkpoint may be what a person asked for
                    raise Violation("Eventuality", f"a rollback was refused: {effect.reason}")
            case GiveUp():
                raise Violation("Eventuality", f"the controller gave up: {effect.reason}")
            case Widen():
                if effect.node is None:
                    raise Violation("Eventuality", f"there was no plan: {effect.reason}")
            case _:
                assert_never(effect)

    def _stop_the_rest(self, effect: Collect) -> None:
        """Nodes without state and sinks of hosts that were given up come to nothing from now on."""
        now = {node: self.store.record.incarnations[node] for node in effect.nodes}
        kinds = self.shape.graph.kinds
        self.store.fence({n: i for n, i in now.items() if kinds[n] in (Kind.STATELESS, Kind.SINK)})
        self.collected.update(now)

    def _fence_hosts(self, effect: FenceHosts) -> None:
        """Every node of these hosts hears of the fence."""
        self._unfenced.clear()
        self._answers.clear()
        living = [p for p in (*self.processes.values(), *self.zombies) if p.alive]
        for host in effect.hosts:
            key = host if self.cluster is None else self.cluster.key(host)
            here = [process for process in living if process.host == key]
            if self.cluster is None:
                here = [self.processes[host]]
            waiting = self._unfenced[effect.round, host] = {process.node for process in here}
            for process in here:
                order = Fence(effect.round, host, effect.incarnations)
                self.to_nodes[process.node].append((process.incarnation, order))
            if not waiting:
                self._answers.append((effect.round, host))

    def _answer_fence(self, answer: tuple[int, int]) -> None:
        """A host without nodes hears of a fence."""
        self._answers.remove(answer)
        round_, host = answer
        self.to_controller.append(("fenced", host, 0, round_))

    def _heard_of_fence(self, node: int, order: Fence) -> None:
        waiting = self._unfenced.get((order.round, order.host), set())
        waiting.discard(node)
        if not waiting:
            self.to_controller.append(("fenced", order.host, 0, order.round))

    def _try_again(self, _: None) -> None:
        effects, self._stalled = self._stalled, []
        self.control(effects)

    def tell_node(self, node: int, order: NodeOrder) -> None:
        """Tell the present incarnation of a node something."""
        self.to_nodes[node].append((self.store.record.incarnations[node], order))

    def _told(self, node: int) -> None:
        incarnation, effect = self.to_nodes[node].popleft()
        process = self.find(node, incarnation)
        if process is None or not process.alive:
            cluster = self.cluster
            if isinstance(effect, Fence) and cluster is not None and cluster.lives(effect.host):
                self._heard_of_fence(node, effect)  # the node has ended, but not its host
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
                self._heard_of_fence(process.node, order)
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
        self.tell("started", process, None)
        self._guarded(process, lambda: process.perform(process.machine.begin()))

    def _find_damage(self, effect: StartNode) -> None:
        """The checkpoint to start from cannot be read: the node is to be started anew."""
        self.count("unreadable")
        self.note(f"{effect.node}#{effect.incarnation} cannot read {effect.start.checkpoint}")
        self.store.set_aside(effect.node, effect.start.checkpoint or 0)
        self.to_controller.append(("unreadable", effect.node, effect.incarnation, None))

    def _restart_controller(self, _: None) -> None:
        self.note("controller restarts")
        self.controller = self._new_controller()
        self._hold_everybody({})
        self.loops.begin()
        if self.cluster is not None:
            self.cluster.begin()
        self.control(self.controller.lost(self.controller.record.incarnations))

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
