"""The simulated world: what can happen next is chosen by one random generator."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.causal.diffs import show_diff
from penstock.core.causal.graph import Kind
from penstock.core.causal.reports import Cut
from penstock.core.causal.retention import durable_epochs, publishable, rollback_from
from penstock.core.machine.causal_effects import Flushed, StoreCut
from penstock.core.machine.global_hold import GlobalHold
from penstock.core.machine.messages import MARK, Complete, Message
from penstock.core.machine.recovery import (
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
from penstock.core.progress.marks import EPOCH_END
from penstock.errors import PenstockError
from penstock.testing.simulator.faults import plan_faults, strike
from penstock.testing.simulator.guarantees import with_guarantees
from penstock.testing.simulator.loops import Hub
from penstock.testing.simulator.monitor import Monitor, Violation
from penstock.testing.simulator.network import Channel, Network
from penstock.testing.simulator.process import Process
from penstock.testing.simulator.regimes import with_regimes
from penstock.testing.simulator.stages import Row, Shape, mix, random_shape
from penstock.testing.simulator.store import Store

if TYPE_CHECKING:
    from penstock.testing.simulator.mutants import Mutant

__all__ = ["World"]

STEPS_MAX = 20_000


class Resume(NamedTuple):
    """Tell a node that everybody has a checkpoint."""

    epoch: int


class World:
    """One simulated run."""

    def __init__(
        self,
        seed: int,
        mutant: Mutant,
        trace: list[str] | None = None,
        shape: Shape | None = None,
        mixed: bool = False,
        promised: bool = False,
    ) -> None:
        self.random = Random(seed)
        self.mutant = mutant
        self.trace = trace
        self.shape = shape or random_shape(self.random)
        if mixed:
            self.shape = with_regimes(self.shape, self.random)
        if promised and not self.shape.graph.unrepeatable:
            self.shape = with_guarantees(self.shape, self.random)
        self.mixed = mixed
        self.hold: GlobalHold | None = None
        self._hold_everybody({})
        self.store = Store(self.shape)
        self.network = Network(self)
        self.monitor = Monitor(self)
        self.faults: Counter[str] = Counter()
        self.steps = 0
        graph = self.shape.graph
        zero = dict.fromkeys(graph.order, 0)
        self.processes: dict[int, Process] = {}
        self.zombies: list[Process] = []
        for node in graph.order:
            self.processes[node] = Process(self, node, 0, zero)
        self._hubs = {
            unit: Hub(self, graph.members[node], zero, -1) for node, unit in graph.units.items()
        }
        self.controller: RecoveryMachine | None = self._new_controller()
        self.controller_steps: int | None = None
        """After how many more effects the controller dies."""
        self.to_controller: deque[tuple[str, int, int, Any]] = deque()
        self.to_nodes: dict[int, deque[tuple[int, RecoveryEffect | Resume]]] = {
            node: deque() for node in graph.order
        }
        self.detections: list[tuple[int, int]] = []
        self.starting: list[StartNode] = []
        self.pending: list[tuple[int, str]] = []
        """Faults to come: when, and of which class."""
        self.waiting = 0
        """Faults that happen during the next recovery."""
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
        choices = self.choices()
        if not choices:
            if self.pending and self.pending[0][1] != "during_recovery":
                self.steps = max(self.steps, self.pending[0][0])
                return True
            return False
        action, argument = self.random.choice(choices)
        action(argument)
        return True

    def choices(self) -> list[tuple[Callable[[Any], None], Any]]:
        """Everything that can happen now."""
        found: list[tuple[Callable[[Any], None], Any]] = []
        late: list[Channel] = []
        for channel in self.network.busy():
            if (channel.sender.node, channel.target) in self.laggards:
                late.append(channel)
            else:
                found.append((self.network.deliver, channel))
        if late and (not found or self.random.random() < 0.15):
            found += [(self.network.deliver, channel) for channel in late]
        for process in (*self.processes.values(), *self.zombies):
            if process.writes:
                found.append((self._write, process))
            if not process.alive:
                continue
            if process.paused:
                found.append((self._wake, process))
                continue
            if process.region:
                found.append((self._completed_inside, process))
            if process.kind is Kind.SOURCE and process.readable:
                found.append((self._read, process))
        for node, queue in self.to_nodes.items():
            if queue:
                found.append((self._told, node))
        if self.controller is None:
            found.append((self._restart_controller, None))
        else:
            if self.to_controller:
                found.append((self._hear, None))
                found.append((self._hear, None))
            for number in range(len(self.detections)):
                found.append((self._detect, number))
            for sink, staged in self.store.staged.items():
                if staged and self.controller.quiet and self._may_publish(sink):
                    found.append((self._publish_staged, sink))
            if found and self.random.random() < self.truncate_share:
                found.append((self._truncate, None))
        if self.switch_share and found and self.random.random() < self.switch_share:
            found.append((self._switch, self.random.choice(sorted(self.shape.switched))))
        for number in range(len(self.starting)):
            found.append((self._spawn, number))
        return found

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
            self.note_message("gets", process, message)
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

    def _completed_inside(self, process: Process) -> None:
        self._guarded(process, process.completed_inside)

    def hub(self, node: int) -> Hub:
        """Where a node's loop says that its epochs are complete."""
        return self._hubs[self.shape.graph.units[node]]

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

    def cut(self, process: Process, effect: StoreCut) -> None:
        """A source's epoch ends, durably."""
        cuts = self.store.cuts[process.node]
        if cuts and effect.epoch <= cuts[-1].epoch:
            raise Violation("exactly-once", f"{process.name} cut {effect.epoch} after {cuts[-1]}")
        cuts.append(Cut(effect.epoch, effect.offset, effect.watermark_us))

    def publish(self, process: Process, effect: Complete, rows: list[Row]) -> bool:
        """A sink has an epoch: it publishes it, or stages it until it may.

        Both are atomic, idempotent, and refused to those who were replaced.
        """
        store = self.store
        epoch = effect.epoch
        if not (store.allowed(process.node, process.incarnation) or self.mutant.stale_writes):
            return False
        published = store.published[process.node]
        if epoch in published and published[epoch] != rows:
            raise Violation(
                "exactly-once",
                f"{process.name} published epoch {epoch} again as {rows}, not {published[epoch]}",
            )
        if epoch not in published and epoch < max(published, default=-1):
            raise Violation("exactly-once", f"{process.name} published {epoch} too late")
        store.watermarks[process.node][epoch] = effect.watermark_us
        if process.node in self.shape.graph.tainted and not self.mutant.publishes_at_once:
            store.staged[process.node][epoch] = rows
        else:
            published[epoch] = rows
        return True

    def _may_publish(self, sink: int) -> bool:
        graph = self.shape.graph
        last = publishable(graph, sink, self.store.stored(graph.order))
        return last is None or min(self.store.staged[sink]) <= last

    def _publish_staged(self, sink: int) -> None:
        """Publish what nobody goes back behind any more."""
        store = self.store
        graph = self.shape.graph
        last = publishable(graph, sink, store.stored(graph.order))
        due = [epoch for epoch in store.staged[sink] if last is None or epoch <= last]
        for epoch in sorted(due):
            store.published[sink][epoch] = store.staged[sink].pop(epoch)

    def wants_checkpoint(self, process: Process, epoch: int) -> bool:
        """Whether to take a checkpoint after this epoch; who may go back together does so too."""
        graph = self.shape.graph
        if process.kind not in (Kind.STATEFUL, Kind.ORDERED) or process.node in self.shape.every:
            return False
        if process.node in graph.tainted and epoch == EPOCH_END:
            return True
        if process.node in graph.units or process.node in graph.tainted:
            return mix(self.salt, epoch % 1009) % 100 < 100 * self.checkpoint_share
        return self.random.random() < self.checkpoint_share

    # -- control ---------------------------------------------------------------------------------

    def tell(self, what: str, process: Process, value: Any) -> None:
        """A node's word to the controller."""
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
        else:
            self.control(controller.recovered(node, incarnation))

    def _detect(self, number: int) -> None:
        node, incarnation = self.detections.pop(number)
        if self.controller is not None:
            self.note(f"controller finds {node}#{incarnation} lost")
            self.control(self.controller.lost({node: incarnation}))
            if self.waiting:
                self.waiting -= 1
                when = self.steps + self.random.randint(1, 60)
                self.pending = sorted([*self.pending, (when, "during_recovery")])

    def _truncate(self, _: None) -> None:
        if self.controller is None or self.controller.record.limits:
            return
        graph = self.shape.graph
        stored = self.store.stored(graph.order)
        lows = self.mutant.lows(graph, *durable_epochs(graph, stored), *self.shape.kept)
        self.monitor.truncated(lows, stored)
        self.store.forget(lows, self.mutant.keeps)
        self.control(self.controller.truncate_due(lows))

    # -- global checkpoints ----------------------------------------------------------------------

    def _new_controller(self) -> RecoveryMachine:
        together = self.shape.global_every is not None
        return self.mutant.recovery(self.shape.graph, self.store.record, all_together=together)

    def _hold_everybody(self, starts: Mapping[int, int]) -> None:
        """Everybody holds its input after the next multiple."""
        every = self.shape.global_every
        if every is not None:
            kinds = self.shape.graph.kinds
            fed = [node for node, kind in kinds.items() if kind is not Kind.SOURCE]
            ahead = {node: starts.get(node, -1) for node in fed}
            self.hold = self.mutant.hold(fed, every, min(ahead.values()), ahead)

    def _flushed(self, node: int, said: Flushed) -> None:
        following = None if self.hold is None else self.hold.flushed(node, said)
        if following is not None:
            self.note(f"controller lets everybody go on to {following}")
            for other in self.shape.graph.order:
                self._queue_for(other, Resume(following))

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
        starts = [effect for effect in effects if isinstance(effect, StartNode)]
        if starts:
            self._hold_everybody({e.node: e.start.completed for e in starts})
            self.monitor.planned(starts, self.store.record.limits)
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
                self.note(f"store refuses all but {dict(effect.incarnations)}")
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
            elif isinstance(effect, Truncate | Fence):
                self._queue_for(effect.node, effect)
            elif isinstance(effect, OpenEdge):
                self._queue_for(effect.sender, effect)

    def _queue_for(self, node: int, effect: RecoveryEffect | Resume) -> None:
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

    def _tell_node(self, process: Process, effect: RecoveryEffect | Resume) -> None:
        machine = process.machine
        if isinstance(effect, Fence):
            self.note(f"{process.name} is told of {dict(effect.incarnations)}")
            process.perform(machine.fence(effect.incarnations, effect.round))
        elif isinstance(effect, OpenEdge):
            self.note(f"{process.name} opens to {effect.target} after {tuple(effect.position)}")
            process.perform(machine.open(effect.target, effect.incarnation, effect.position))
        elif isinstance(effect, Resume):
            process.perform(machine.resume(effect.epoch))
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
        if effect.node in self.shape.graph.units:
            self._begin_unit(effect)
        process = Process(
            self, effect.node, effect.incarnation, dict(effect.incarnations), effect.start
        )
        self.processes[effect.node] = process
        self.note(f"{process.name} starts: {effect.start}")
        self.tell("started", process, None)
        self._guarded(process, lambda: process.perform(process.machine.begin()))

    def _begin_unit(self, effect: StartNode) -> None:
        """The first node of a loop to start begins it anew; the others must start with it."""
        hub = self.hub(effect.node)
        if hub.incarnations[effect.node] != effect.incarnation:
            numbers = {**effect.incarnations, effect.node: effect.incarnation}
            hub = Hub(self, hub.members, numbers, effect.start.completed)
            self._hubs[self.shape.graph.units[effect.node]] = hub
        if hub.epoch != effect.start.completed:
            raise Violation(
                "unit", f"{effect.node} starts at {effect.start.completed}, others at {hub.epoch}"
            )

    def _restart_controller(self, _: None) -> None:
        self.note("controller restarts")
        self.controller = self._new_controller()
        self._hold_everybody({})
        for node, process in self.processes.items():
            if not process.alive:
                self.suspect(node)
            elif process.said is not None and self.hold is not None:
                self.tell("flushed", process, process.said)
        self.control(self.controller.resumed())

    # -- faults ----------------------------------------------------------------------------------

    def kill(self, node: int) -> None:
        """A process ends; the last of what it was writing or sending is lost."""
        process = self.processes[node]
        process.alive = False
        while process.writes and self.random.random() < 0.5:
            process.writes.pop()
        self.network.lose(process)
        self.suspect(node)

    def lose_controller(self) -> None:
        """The controller ends; what it had not sent is never sent."""
        self.note("controller dies")
        self.controller = None
        self.controller_steps = None
        self.to_controller.clear()
        self.starting = [start for start in self.starting if self.random.random() < 0.5]

    def suspect(self, node: int) -> None:
        """The controller will find this incarnation lost."""
        self.detections.append((node, self.processes[node].incarnation))

    # -- traces ----------------------------------------------------------------------------------

    def count(self, what: str) -> None:
        """Count something that happened by itself."""
        self.faults[what] += 1

    def note(self, text: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.steps:5d}  {text}")

    def note_message(self, verb: str, process: Process, message: Message) -> None:
        """A line of the trace about a message."""
        what = "mark" if message.kind == MARK else f"rows {message.payload}"
        peer = message.target if verb == "sends" else message.sender
        self.note(
            f"{process.name} {verb} {peer} {what} of epoch {message.time.epoch} "
            f"{show_diff(message.diff)}"
        )
