"""Two ends of a channel joined by a link that breaks: nothing is lost, doubled or out of order."""

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.channel import ChannelReceiver, ChannelSender

WINDOW = 20
NODES = (1, 2)
STEPS = ("push", "write", "deliver", "consume", "report", "hear", "break", "repeat")


class World:
    """A sender, a receiver, what is under way between them, and what must come out."""

    def __init__(self) -> None:
        self.sender = ChannelSender[tuple[int, int, int]](WINDOW)
        self.receiver = ChannelReceiver()
        self.unwritten: deque[tuple[int, tuple[int, int, int]]] = deque()
        self.forth: deque[tuple[int, tuple[int, int, int]]] = deque()
        self.back: deque[tuple[int, dict[int, int]]] = deque()
        self.heard: list[tuple[int, dict[int, int]]] = []
        self.pushed: list[tuple[int, int, int]] = []
        self.arrived: list[tuple[int, int, int]] = []
        self.queues: dict[int, deque[tuple[int, int, int]]] = {node: deque() for node in NODES}

    # -- what can happen -------------------------------------------------------------------------

    def push(self, node: int, size: int) -> None:
        """A node sends only when its target has credit, as the engine does."""
        if self.sender.open(node):
            message = (len(self.pushed), node, size)
            self.pushed.append(message)
            self.unwritten.append((self.sender.push(message, node, size), message))

    def write(self) -> None:
        if self.unwritten:
            self.forth.append(self.unwritten.popleft())

    def deliver(self) -> None:
        if self.forth:
            number, message = self.forth.popleft()
            if self.receiver.accept(number):
                self.arrived.append(message)
                self.queues[message[1]].append(message)

    def consume(self, node: int) -> None:
        if self.queues[node]:
            _, _, size = self.queues[node].popleft()
            self.receiver.consume(node, size)

    def report(self) -> None:
        self.back.append((self.receiver.received, dict(self.receiver.consumed)))

    def hear(self) -> None:
        if self.back:
            report = self.back.popleft()
            self.heard.append(report)
            self.sender.acknowledged(*report)

    def repeat(self, which: int) -> None:
        """An old report comes again, late."""
        if self.heard:
            self.sender.acknowledged(*self.heard[which % len(self.heard)])

    def break_off(self, kept: int) -> None:
        """The connection breaks: some of what is under way arrives, the rest does not."""
        for _ in range(min(kept, len(self.forth))):
            self.deliver()
        self.forth.clear()
        self.back.clear()
        self.unwritten = deque(self.sender.resume(self.receiver.received))

    # -- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        assert self.arrived == self.pushed[: len(self.arrived)]
        for node in NODES:
            sizes = [size for _, to, size in self.pushed if to == node]
            under_way = sum(sizes) - self.receiver.consumed.get(node, 0)
            assert under_way < WINDOW + max(sizes, default=0)
            assert self.sender.outstanding(node) >= under_way
        assert self.sender.kept <= len(self.pushed)

    def settle(self) -> None:
        """No more breaks: everything must arrive, and all credit must come back."""
        self.break_off(0)
        while self.unwritten or self.forth:
            self.write()
            self.deliver()
        for node in NODES:
            while self.queues[node]:
                self.consume(node)
        self.report()
        while self.back:
            self.hear()


events = st.tuples(st.sampled_from(STEPS), st.sampled_from(NODES), st.integers(0, 50))


@given(st.lists(events, max_size=150))
@settings(deadline=None, max_examples=80)
def test_a_channel_survives_any_breaks_and_never_overdraws_by_more_than_a_message(
    steps: list[tuple[str, int, int]],
) -> None:
    world = World()
    for what, node, number in steps:
        if what == "push":
            world.push(node, number)
        elif what == "consume":
            world.consume(node)
        elif what == "break":
            world.break_off(number)
        elif what == "repeat":
            world.repeat(number)
        else:
            getattr(world, what)()
        world.check()
    world.settle()
    assert world.arrived == world.pushed
    assert world.sender.kept == 0
    assert all(world.sender.outstanding(node) == 0 for node in NODES)
    assert all(world.sender.open(node) for node in NODES)


def test_the_model_would_notice_a_receiver_that_takes_repetitions() -> None:
    world = World()
    world.receiver.accept = lambda number: True  # type: ignore[method-assign,assignment]
    world.push(1, 1)
    world.write()
    world.deliver()
    world.receiver.received = 0
    world.settle()
    assert world.arrived != world.pushed
