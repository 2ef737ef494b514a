"""Simulated flows without recovery: their nodes, and the channels between their hosts.

The machines are those of a running flow.  Connections break; what was not acknowledged is sent
again.  Windows are small, so that nodes wait for credit.  Every row has to come to every sink once,
in its epoch, before the epoch is complete there; nothing may wait for ever.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from penstock.core.channel import ChannelReceiver, ChannelSender
from penstock.core.node.messages import Complete, Deliver, Effect, Finish, Message, Send
from penstock.core.node.node import NodeMachine
from penstock.core.node.options import Outlet, Wiring
from penstock.core.progress.marks import EPOCH_END
from penstock.core.time import Time
from penstock.errors import PenstockError
from penstock.testing.simulator.cases import Case
from penstock.testing.simulator.violations import Violation

__all__ = ["PlainWorld"]

STEPS_MAX = 20_000
WINDOW = 4
WAITING_MAX = 3 * (WINDOW + 3 * 4)
"""What may wait at a node: of each of at most three hosts a window, and what its nodes overdrew."""
EPOCHS = 6

Rows = tuple[tuple[int, int, int], ...]
"""Source, number and epoch of each row."""


@dataclass
class _Node:
    """A node, what has arrived for it, and what it has done."""

    machine: NodeMachine
    host: int
    queue: deque[tuple[tuple[int, int] | None, Message]] = field(default_factory=deque)
    """Messages with the channel that they came through, if they came through one."""
    rows: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    completed: list[int] = field(default_factory=list)
    read: int = 0
    epoch: int = 0
    """(Sources) the epoch of what it reads next."""
    finished: bool = False


@dataclass
class _Channel:
    """From one host to another."""

    sender: ChannelSender[Message] = field(default_factory=lambda: ChannelSender[Message](WINDOW))
    receiver: ChannelReceiver = field(default_factory=ChannelReceiver)
    wire: deque[tuple[int, Message]] = field(default_factory=deque)
    back: deque[tuple[int, dict[int, int]]] = field(default_factory=deque)
    """Acknowledgements under way."""


class PlainWorld:
    """One simulated run."""

    def __init__(self, case: Case, trace: list[str] | None = None) -> None:
        self.random = random = Random(case.seed)
        self.trace = trace
        self.steps = 0
        self.faults: Counter[str] = Counter()
        layers: list[list[int]] = []
        for _ in range(random.choice((2, 3, 4))):
            first = sum(map(len, layers))
            layers.append(list(range(first, first + random.choice((1, 2, 3)))))
        self._layers = layers
        hosts = random.choice((1, 2, 3))
        self._nodes = {
            node: _Node(NodeMachine(self._wiring(place, node)), random.randrange(hosts))
            for place, layer in enumerate(layers)
            for node in layer
        }
        self._channels: dict[tuple[int, int], _Channel] = {}
        self._breaks = random.choice((0.0, 0.01, 0.05))
        self._sent: Counter[tuple[int, int, int]] = Counter()

    def _wiring(self, place: int, node: int) -> Wiring:
        """One link into each layer; its number is that of the layer."""
        layers = self._layers
        inputs = {place: layers[place - 1]} if place else {}
        last = place + 1 == len(layers)
        outlets = () if last else (Outlet(place + 1, tuple(layers[place + 1])),)
        return Wiring(node, inputs, outlets)

    def describe(self) -> list[str]:
        """The flow, one line a layer."""
        return [
            f"layer {place}: " + ", ".join(f"{n} at host {self._nodes[n].host}" for n in layer)
            for place, layer in enumerate(self._layers)
        ]

    # -- running ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Run to the end; raise Violation if an invariant breaks."""
        try:
            while self._step():
                pass
        except PenstockError as error:
            raise Violation("refused", f"{type(error).__name__}: {error}") from error
        self._ended()

    def _step(self) -> bool:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Violation("Eventuality", f"no end after {STEPS_MAX} steps")
        random = self.random
        if self._channels and random.random() < self._breaks:
            self._break(random.choice(sorted(self._channels)))
        nodes = [n for n in sorted(self._nodes) if self._can_work(n)]
        wires = [key for key, channel in sorted(self._channels.items()) if channel.wire]
        backs = [key for key, channel in sorted(self._channels.items()) if channel.back]
        choices: list[Callable[[], None]] = [partial(self._work, node) for node in nodes]
        choices += [partial(self._arrive, key) for key in wires]
        choices += [partial(self._acknowledge, key) for key in backs]
        if choices:
            random.choice(choices)()
        return bool(choices)

    def _can_work(self, node: int) -> bool:
        """Whether a node has something to do, and all that it may send to have room."""
        one = self._nodes[node]
        reads = one.machine.is_source and not one.finished
        if not one.queue and not reads:
            return False
        for outlet in one.machine.outlets.values():
            for target in outlet.targets:
                channel = self._channels.get((one.host, self._nodes[target].host))
                if channel is not None and not channel.sender.open(target):
                    return False
        return True

    # -- nodes -----------------------------------------------------------------------------------

    def _work(self, node: int) -> None:
        one = self._nodes[node]
        if one.machine.is_source:
            self._read(node, one)
            return
        key, message = one.queue.popleft()
        if key is not None:
            self._channels[key].receiver.consume(node, message.size)
            self._tell(key)
        self._perform(node, one.machine.received(message))

    def _read(self, node: int, one: _Node) -> None:
        """Some rows, or the end of an epoch."""
        random = self.random
        if one.epoch < EPOCHS and random.random() < 0.6:
            rows = tuple((node, one.read + n, one.epoch) for n in range(random.randint(1, 3)))
            one.read += len(rows)
            self._sent.update(rows)
            self._produce(node, rows, one.epoch)
            return
        epoch = one.epoch if one.epoch < EPOCHS else EPOCH_END
        self._perform(node, one.machine.cut(epoch, 10 * one.read, self.steps))
        one.epoch += random.choice((1, 1, 2))

    def _produce(self, node: int, rows: Rows, epoch: int) -> None:
        """Each row goes to one node of the next layer, by its number."""
        one = self._nodes[node]
        for outlet in one.machine.outlets.values():
            count = len(outlet.targets)
            parts = [
                (target, part, 1 + len(part))
                for place, target in enumerate(outlet.targets)
                if (part := tuple(row for row in rows if row[1] % count == place))
            ]
            self._perform(node, one.machine.produced(outlet.link, parts, Time.root(epoch)))

    def _perform(self, node: int, effects: Iterable[Effect]) -> None:
        one = self._nodes[node]
        for effect in effects:
            match effect:
                case Send():
                    self._send(one.host, effect.message)
                case Deliver():
                    rows: Rows = effect.payload  # type: ignore[assignment]
                    self._delivered(one, rows)
                    self._produce(node, rows, effect.time.epoch)
                case Complete(epoch, watermark_us, cut_us):
                    self._note(f"node {node} completes {epoch} at {watermark_us}")
                    one.completed.append(epoch)
                    watermarks = dict.fromkeys(one.machine.outlets, watermark_us)
                    self._perform(node, one.machine.completed(epoch, watermarks, cut_us))
                case Finish():
                    one.finished = True
                case _:
                    raise Violation("effect", f"{effect} has no place in a flow without loops")

    def _delivered(self, one: _Node, rows: Rows) -> None:
        for row in rows:
            one.rows[row] += 1
            if one.rows[row] > 1:
                raise Violation("exactly-once", f"row {row} comes to {one.machine.node} again")
            if one.completed and row[2] <= one.completed[-1]:
                raise Violation("completeness", f"row {row} comes after {one.completed[-1]}")

    # -- channels --------------------------------------------------------------------------------

    def _send(self, host: int, message: Message) -> None:
        target = self._nodes[message.target]
        if target.host == host:
            target.queue.append((None, message))
            return
        channel = self._channels.setdefault((host, target.host), _Channel())
        number = channel.sender.push(message, message.target, message.size)
        channel.wire.append((number, message))
        waiting = sum(m.size for key, m in target.queue if key is not None)
        if waiting > WAITING_MAX:
            raise Violation("credit", f"{waiting} bytes wait at node {message.target}")

    def _arrive(self, key: tuple[int, int]) -> None:
        channel = self._channels[key]
        number, message = channel.wire.popleft()
        if channel.receiver.accept(number):
            self._nodes[message.target].queue.append((key, message))
        self._tell(key)

    def _tell(self, key: tuple[int, int]) -> None:
        """How far the receiving end is travels back."""
        channel = self._channels[key]
        channel.back.append((channel.receiver.received, dict(channel.receiver.consumed)))

    def _acknowledge(self, key: tuple[int, int]) -> None:
        """An acknowledgement arrives; what came before it may be late, or come twice."""
        channel = self._channels[key]
        place = self.random.randrange(len(channel.back))
        told = channel.back[place]
        if self.random.random() < 0.8:
            del channel.back[place]
        channel.sender.acknowledged(*told)

    def _break(self, key: tuple[int, int]) -> None:
        """A connection breaks, and is opened anew: what is under way is lost, and sent again."""
        self.faults["connection"] += 1
        self._note(f"the connection {key} breaks")
        channel = self._channels[key]
        channel.back.clear()
        channel.wire = deque(channel.sender.resume(channel.receiver.received))
        self._tell(key)

    # -- the end ---------------------------------------------------------------------------------

    def _ended(self) -> None:
        """Everything is at rest: nothing is missing."""
        cut = sorted({epoch for source in self._layers[0] for epoch in self._cuts(source)})
        for place, layer in enumerate(self._layers):
            for node in layer:
                one = self._nodes[node]
                if not one.finished or one.completed[-1] != EPOCH_END:
                    raise Violation("Eventuality", f"node {node} stops after {one.completed}")
                if place and one.completed != cut:
                    raise Violation("completeness", f"{one.completed} at {node}, not {cut}")
            if place:
                came = sum((self._nodes[node].rows for node in layer), Counter())
                if came != self._sent:
                    raise Violation("exactly-once", f"layer {place} got {came - self._sent} wrong")
        for key, channel in self._channels.items():
            if channel.sender.kept or channel.sender.kept_bytes:
                raise Violation("channel", f"{key} keeps {channel.sender.kept} messages")

    def _cuts(self, source: int) -> list[int]:
        return self._nodes[source].completed

    def _note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.steps:5d}  {text}")
