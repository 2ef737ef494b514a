"""A simulated process: one incarnation of one node, its machine and its vertex."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

from penstock.core.causal.graph import NodeKind
from penstock.core.causal.logs import Spilled
from penstock.core.causal.reports import Start
from penstock.core.control.global_hold import multiple_at
from penstock.core.control.retention import Low, serves_from
from penstock.core.node.blocks import RegionEpoch
from penstock.core.node.causal import CausalMachine
from penstock.core.node.causal_effects import (
    CausalEffect,
    Checkpoint,
    Contradicted,
    Flushed,
    ReadAgain,
    Recall,
    Restated,
    ResumeReading,
    Retire,
    Spill,
    StoreCut,
    StoreDeterminants,
    TakeCheckpoint,
    TellOpened,
    TellRecovered,
    TellReport,
)
from penstock.core.node.messages import (
    Complete,
    Deliver,
    EndStep,
    Finish,
    Message,
    Send,
    TellClosed,
)
from penstock.core.node.options import NodeOptions, Outlet, Wiring
from penstock.core.node.source import CausalSource
from penstock.core.progress.marks import EPOCH_END, WATERMARK_END, WATERMARK_IDLE
from penstock.core.time import Time
from penstock.testing.simulator.loop_part import LoopPart
from penstock.testing.simulator.loops import INSIDE
from penstock.testing.simulator.stages import Row, distribute, of_epoch

if TYPE_CHECKING:
    from penstock.testing.simulator.world import World

__all__ = ["Process", "outlets"]


def outlets(world: World, node: int) -> tuple[Outlet, ...]:
    """One link per node, to all its children, and one inside of its loop."""
    graph = world.shape.graph
    children = graph.children[node]
    found: tuple[Outlet, ...] = (Outlet(node, children),) if children else ()
    if node in graph.units:
        found += (Outlet(INSIDE + node, graph.members[node], marked=False),)
    return found


class Process:
    """Performs its machine's effects on the simulated world."""

    def __init__(
        self,
        world: World,
        node: int,
        incarnation: int,
        incarnations: dict[int, int],
        start: Start | None = None,
    ) -> None:
        self.world = world
        self.node = node
        self.incarnation = incarnation
        self.kind = world.shape.graph.kinds[node]
        self.alive = True
        self.paused = 0
        self.zombie = False
        self.host = world.host_of(node)
        self.reading = start is None
        self.epoch = 0
        self.writes: deque[tuple[str, Any]] = deque()
        self.vertex = world.shape.vertex(node)
        self._low = -1
        """No recovery takes it behind this epoch: older checkpoints may go."""
        self._queue: deque[CausalEffect] = deque()
        self._busy = False
        self._disk: list[Any] = []
        self._recalled = b""
        self.machine = self._machine(incarnations, start)
        self.loop = LoopPart(self) if node in world.shape.graph.units else None
        """What a node in a loop has besides."""

    def _machine(self, incarnations: dict[int, int], start: Start | None) -> CausalMachine:
        world, node = self.world, self.node
        graph = world.shape.graph
        inputs = {parent: [parent] for parent in graph.parents[node]}
        wiring = Wiring(node, inputs, outlets(world, node), self.incarnation, incarnations)
        options = NodeOptions(
            logged=world.driver.logs.told[node],
            traced=node not in graph.untraced,
            budget_bytes=world.shape.budget_bytes,
            resumable=True,
        )
        if self.kind is NodeKind.SOURCE:
            return CausalSource(wiring, options, start)
        every = world.every.get(node)
        options = replace(
            options, hold_after=None if world.driver.hold is None else world.driver.hold.epoch
        )
        checkpoint = None
        if start is not None and node in world.store.checkpoints:
            kept = world.store.find(node, start.checkpoint or 0)
            checkpoint = kept.checkpoint
            self.vertex = kept.vertex.copy()
        if node in graph.units:
            inside = {INSIDE + member: [member] for member in graph.members[node]}
            wiring = replace(wiring, inputs={**inputs, **inside})
            tracking = world.loops.tracking(node)
            options = replace(options, inside=frozenset(inside), tracking=tracking, traced=True)
            return CausalMachine(wiring, options, start, checkpoint)
        options = replace(
            options,
            determined=node in graph.determined,
            stateful=self.kind in (NodeKind.STATEFUL, NodeKind.ORDERED),
            clean=self.kind is not NodeKind.SINK and graph.is_clean(node),
            checkpoint_every=every if self.kind is NodeKind.STATEFUL else None,
            eager=world.shape.regimes.get(node) == "eager",
        )
        return CausalMachine(wiring, options, start, checkpoint)

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """Node and incarnation."""
        return f"{self.kind.value} {self.node}#{self.incarnation}"

    # -- performing ------------------------------------------------------------------------------

    def perform(self, effects: Iterable[CausalEffect]) -> None:
        """Perform effects and what they lead to, in order."""
        self._queue.extendleft(reversed(list(effects)))
        if self._busy:
            return
        self._busy = True
        try:
            while self._queue and self.alive:
                self._perform(self._queue.popleft())
        finally:
            self._busy = False
        if self.loop is not None and self.alive:
            self.loop.count()

    def perform_now(self, effects: Iterable[CausalEffect]) -> None:
        """Perform effects that lead to no others."""
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: CausalEffect) -> None:
        world = self.world
        machine = self.machine
        match effect:
            case Send():
                self._send(effect.message)
            case Deliver():
                world.monitor.delivered(self, effect)
                self._deliver(effect)
            case EndStep():
                self.perform(machine.end_step())
            case Complete():
                self._complete(effect)
            case TellClosed():
                self._in_loop.closed(effect)
            case Recall():
                self._recalled = effect.values
            case ReadAgain():
                self._read_again(effect)
            case ResumeReading():
                self.reading = True
                self.epoch = effect.epoch if effect.begun else self._later(effect.epoch)
            case Restated():
                world.monitor.restated(self, effect)
                watermarks = dict.fromkeys(machine.outlets, effect.watermark_us)
                self.perform(machine.restated(watermarks))
            case StoreCut():
                self.reading = False
                self.writes.append(("cut", effect))
            case StoreDeterminants():
                self.writes.append(("determinants", effect))
            case TakeCheckpoint():
                self._take_checkpoint(effect)
            case Flushed():
                self._flushed(effect)
            case Spill():
                self._spill(effect)
            case TellReport():
                world.driver.tell("report", self, (effect.round, effect.report))
            case TellOpened():
                world.driver.tell("opened", self, (effect.child, effect.incarnation))
            case TellRecovered():
                world.driver.tell("recovered", self, None)
            case Contradicted():
                world.count("contradiction")
                world.driver.tell("contradicted", self, effect.reason)
            case Retire():
                self.alive = False
            case Finish():
                pass  # a run ends when every sink has published the end of the stream
            case _:
                assert_never(effect)

    def _send(self, message: Message) -> None:
        self.world.monitor.sent(self, message)
        if message.link >= INSIDE:
            self._in_loop.end.truth.added(message.time.epoch)
        if isinstance(message.payload, Spilled):
            message = message._replace(payload=self._fetch(message.payload))
        self.world.network.send(self, message)

    def _read_again(self, effect: ReadAgain) -> None:
        self.world.monitor.read(self, effect.epoch)
        rows = self.world.store.rows(self.node, effect.start, effect.end)
        self._produce(rows, Time.root(effect.epoch))
        self.perform(self.machine.end_step())

    def _take_checkpoint(self, effect: TakeCheckpoint) -> None:
        vertex = self.vertex.copy()
        if self.loop is not None:
            self.world.monitor.saved(self, effect.checkpoint.report.completed)
        elif self.machine.clean:
            vertex.epochs.clear()
        self.writes.append(("checkpoint", (self._whole(effect), vertex)))

    def _spill(self, effect: Spill) -> None:
        payloads = [part.payload for part in effect.bundle.parts]
        self._disk += payloads
        places = range(len(self._disk) - len(payloads), len(self._disk))
        self.machine.spilled(effect.child, effect.bundle.stamp, tuple(places))

    def advance(self) -> None:
        """An epoch or a block is over in the node's loop."""
        self._in_loop.advance()

    def gates_closed(self, epochs: Iterable[RegionEpoch]) -> None:
        """The frontier of the loop has moved."""
        if self.alive:
            self._in_loop.gates_closed(epochs)

    def contradict(self) -> None:
        """Let the machine find that it cannot repeat what others know."""
        self.perform(self.machine.contradict("a fault of the simulator's"))

    def _deliver(self, effect: Deliver) -> None:
        if self.loop is not None:
            self.loop.deliver(effect)
            return
        rows: Any = effect.payload
        noise = self._noise([row[0] for row in rows])
        rows = tuple((i, value + noise) for i, value in rows)
        self._produce(self.vertex.receive(rows, effect.time.epoch), effect.time)

    def _flushed(self, effect: Flushed) -> None:
        """All before a hold was handled; in a loop that is told when its checkpoint is durable."""
        if self.loop is None or self.loop.may_tell(effect):
            self.writes.append(("flushed", effect))

    @property
    def _in_loop(self) -> LoopPart:
        assert self.loop is not None
        return self.loop

    def _noise(self, what: list[int]) -> int:
        """A number that a noisy node adds in this step.

        It is drawn, noted, and recalled in a replay.
        """
        graph = self.world.shape.graph
        if self.node not in graph.noted:
            return 0
        values = bytes([self.world.random.randint(1, 200)])
        if self._recalled:
            values, self._recalled = self._recalled, b""
        else:
            self.machine.noted(values)
        self.world.monitor.drawn(self, what, values[0])
        return values[0]

    def _fetch(self, payload: object) -> object:
        """A payload, read again if it was moved out of memory."""
        return self._disk[payload.reference] if isinstance(payload, Spilled) else payload  # type: ignore[call-overload]

    def _whole(self, effect: TakeCheckpoint) -> Checkpoint:
        """A checkpoint has the payloads themselves: what was moved out of memory dies with us."""
        log = {
            child: tuple(
                bundle._replace(
                    parts=tuple(p._replace(payload=self._fetch(p.payload)) for p in bundle.parts)
                )
                for bundle in bundles
            )
            for child, bundles in effect.checkpoint.log.items()
        }
        return effect.checkpoint._replace(log=log)

    def _produce(self, rows: tuple[Row, ...], time: Time) -> None:
        parts = distribute(self.world.shape, self.node, rows)
        if parts:
            self.machine.produced(
                self.node, [(child, part, 8 * len(part)) for child, part in parts.items()], time
            )

    def _complete(self, effect: Complete) -> None:
        time = Time.root(effect.epoch)
        out, rows = self.vertex.complete(effect.epoch)
        noise = self._noise([of_epoch(effect.epoch)])
        out = tuple((i, value + noise) for i, value in out)
        self.world.monitor.completed(self, effect, rows)
        if self.kind is NodeKind.SINK:
            self.world.monitor.publishes(self, effect.epoch)
            if not self.world.store.publish(self.node, self.incarnation, effect, rows):
                self.alive = False
                return
            self.world.driver.tell("published", self, effect.epoch)
        self._produce(out, time)
        machine = self.machine
        if not machine.checkpoints.due:
            machine.checkpoints.due = self.world.wants_checkpoint(self)
        watermarks = dict.fromkeys(machine.outlets, effect.watermark_us)
        cut_us = effect.cut_us
        if self.kind is NodeKind.SOURCE and self.world.cluster is not None:
            cut_us = self.world.cluster.clock_us(self.host)
        self.perform(machine.completed(effect.epoch, watermarks, cut_us))

    def forget(self, low: Low) -> None:
        """No recovery goes back behind these epochs."""
        self.machine.truncate_to(low.region)
        self._low = low.own
        acknowledged = self.world.store.acknowledged
        if self.node in acknowledged:
            acknowledged[self.node] = max(acknowledged[self.node], low.region)

    # -- sources ---------------------------------------------------------------------------------

    def read(self) -> None:
        """A source's turn: a batch, or the end of an epoch."""
        machine = self.machine
        assert isinstance(machine, CausalSource)
        random = self.world.random
        shape = self.world.shape
        if self.node in shape.pairs:
            self._read_persisted(machine)
            return
        if self.epoch == EPOCH_END or random.random() < shape.cut_share:
            watermark_us: int | None = machine.offset or None
            if self.epoch == EPOCH_END and machine.offset % 2:
                watermark_us = WATERMARK_END
            if random.random() < 0.15:
                watermark_us = WATERMARK_IDLE
            self.perform(machine.cut(self.epoch, watermark_us, machine.offset))
            return
        start = machine.offset
        end = start + random.randint(1, shape.batch_max)
        self._read(machine, end, self.epoch)

    def _read(self, machine: CausalSource, end: int, epoch: int) -> None:
        start = machine.offset
        self.world.monitor.read(self, epoch)
        if not self._noted_first(end, epoch):
            return
        machine.read(start, end, epoch)
        self._produce(self.world.store.rows(self.node, start, end), Time.root(epoch))
        self.perform(machine.end_step())

    def _noted_first(self, end: int, epoch: int) -> bool:
        """Where rows may be lost: note how far it has read before they leave; False: refused."""
        world = self.world
        if self.node not in world.shape.graph.position_first:
            return True
        self.alive = world.store.allowed(self.node, self.incarnation)
        if self.alive:
            world.store.ahead[self.node] = (end, epoch)
        return self.alive

    def _read_persisted(self, machine: CausalSource) -> None:
        """A batch of the next epoch that was published, or its end."""
        found = self.world.store.persisted(self.node, machine.completed_epoch)
        assert found is not None
        epoch, last, watermark_us = found
        if machine.offset == last:
            self.perform(machine.cut(epoch, watermark_us, last))
            return
        end = machine.offset + self.world.random.randint(1, self.world.shape.batch_max)
        self._read(machine, min(end, last), epoch)

    @property
    def readable(self) -> bool:
        """Whether a source has something to read, or an epoch to end."""
        if self.node not in self.world.shape.pairs:
            return self.reading
        completed = self.machine.completed_epoch
        return self.reading and self.world.store.persisted(self.node, completed) is not None

    def _later(self, epoch: int) -> int:
        """An epoch from this one on; past the last one, the end of the stream."""
        random = self.world.random
        shape = self.world.shape
        if random.random() < shape.skip_share:
            later = epoch + random.randint(1, 2)
            every = shape.global_every if shape.cuts_multiples else None
            epoch = later if every is None else min(later, multiple_at(epoch, every))
        return epoch if epoch < shape.epochs else EPOCH_END

    def written(self) -> None:
        """The store has performed the oldest write."""
        what, value = self.writes.popleft()
        store = self.world.store
        if not store.allowed(self.node, self.incarnation):
            self.alive = False
            return
        if what == "checkpoint":
            store.keep(self.node, *value)
            store.prune(self.node, self._low)
            report = value[0].report
            if self.alive:
                self.world.driver.tell("saved", self, (report.completed, serves_from(report)))
                if self.loop is not None:
                    self.loop.saved(report.completed)
                self.perform(self.machine.checkpoint_stored(report.completed))
        elif what == "flushed":
            self.world.driver.tell("flushed", self, value)
        elif what == "determinants":
            store.determinants[self.node].extend(value.diffs)
            if self.alive:
                self.perform(self.machine.determinants_stored(value.diffs[-1][0].stamp))
        else:
            store.cut(self.node, value)
            if self.alive and isinstance(self.machine, CausalSource):
                self.reading = value.epoch < EPOCH_END
                self.epoch = self._later(value.epoch + 1)
                self.perform(self.machine.cut_stored(value.epoch))
