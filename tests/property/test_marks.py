"""Any interleaving of senders gives the same completions, as a slow model says them."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.node.messages import MARK, Complete, Message
from penstock.core.node.node import NodeMachine
from penstock.core.node.options import Wiring
from penstock.core.progress.marks import WATERMARK_END, WATERMARK_IDLE, Completion, MarkAligner
from penstock.core.time import Time

Marks = list[tuple[int, int | None]]

ends = st.sampled_from([WATERMARK_IDLE, WATERMARK_END])
marks: st.SearchStrategy[Marks] = st.lists(
    st.tuples(st.integers(0, 12), st.none() | ends | st.integers(0, 99)),
    max_size=6,
    unique_by=lambda mark: mark[0],
).map(lambda found: sorted(found, key=lambda mark: mark[0]))


def reference(senders: Sequence[Marks]) -> list[Completion]:
    """Straight from the definition: per epoch, per sender, the last mark at or before it."""
    reached = min((max((e for e, _ in own), default=-1) for own in senders), default=-1)
    marked = sorted({epoch for own in senders for epoch, _ in own if epoch <= reached})
    completions = []
    reached_us: int | None = None
    for epoch in marked:
        watermarks: list[int | None] = []
        for own in senders:
            before = [watermark for e, watermark in own if e <= epoch]
            watermarks.append(before[-1] if before else None)
        busy = [w for w in watermarks if w is not None and w != WATERMARK_IDLE]
        if WATERMARK_IDLE in watermarks:  # who has ended is not one to go on with
            busy = [w for w in busy if w != WATERMARK_END]
        if busy and None not in watermarks:
            reached_us = max(min(busy), min(busy) if reached_us is None else reached_us)
        completions.append(Completion(epoch, reached_us))
    return completions


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[list[Marks], list[int]]:
    """What each sender marks, and whose turn it is."""
    senders = draw(st.lists(marks, min_size=1, max_size=4))
    turns = [index for index, own in enumerate(senders) for _ in own]
    return senders, draw(st.permutations(turns))


@given(interleaved())
@settings(deadline=None, max_examples=100)
def test_completions_do_not_depend_on_the_order_of_arrival(
    case: tuple[list[Marks], list[int]],
) -> None:
    senders, turns = case
    aligner = MarkAligner(range(len(senders)))
    left = [list(own) for own in senders]
    found = []
    for turn in turns:
        found += aligner.mark(turn, *left[turn].pop(0))
    assert found == reference(senders)


@given(interleaved())
@settings(deadline=None, max_examples=60)
def test_a_node_reports_the_same_with_repeated_messages_between(
    case: tuple[list[Marks], list[int]],
) -> None:
    senders, turns = case
    machine = NodeMachine(Wiring(9, {0: list(range(len(senders)))}))
    left = [list(own) for own in senders]
    numbers = [0] * len(senders)
    found = []
    for turn in turns:
        epoch, watermark = left[turn].pop(0)
        numbers[turn] += 1
        message = Message(MARK, 0, turn, 9, 0, numbers[turn], Time.root(epoch), watermark)
        for effect in machine.received(message):
            assert isinstance(effect, Complete)
            found.append(Completion(effect.epoch, effect.watermark_us))
        assert machine.received(message) == []
    assert found == reference(senders)
