"""Sinks of Kafka that die, freeze and wake up, against a broker that fences: each epoch once."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.kafka.writing import (
    Abort,
    Begin,
    Claim,
    CommitEpoch,
    EpochTransactions,
    Mark,
    Produce,
    standing,
)

EPOCHS = 6
ROWS = {epoch: epoch % 3 + 1 for epoch in range(EPOCHS)}
"""Batches of each epoch."""


class FencedError(Exception):
    """Another producer has registered."""


class Broker:
    """One transactional id, its mark, and what a read-committed reader sees."""

    def __init__(self) -> None:
        self.registered = 0
        self.mark: Mark | None = None
        self.visible: list[tuple[int, int]] = []
        self.open: list[tuple[int, int]] | None = None

    def register(self) -> int:
        self.registered, self.open = self.registered + 1, None
        return self.registered

    def begin(self, producer: int) -> None:
        self._check(producer)
        assert self.open is None
        self.open = []

    def produce(self, producer: int, row: tuple[int, int]) -> None:
        self._check(producer)
        assert self.open is not None
        self.open.append(row)

    def abort(self, producer: int) -> None:
        self._check(producer)
        self.open = None

    def commit(self, producer: int, mark: Mark) -> None:
        self._check(producer)
        assert self.open is not None
        self.visible += self.open
        self.mark, self.open = mark, None

    def _check(self, producer: int) -> None:
        if producer != self.registered:
            raise FencedError


class Writer:
    """A process: it opens the sink, is given rows and ends of epochs, and may fail anywhere."""

    def __init__(self, broker: Broker, run: str, incarnation: int) -> None:
        self.broker, self.run, self.incarnation = broker, run, incarnation
        self.producer: int | None = None
        self.machine = EpochTransactions(-1)
        self.waiting: dict[int, int] = {}
        self.epoch = 0
        self.over = False

    def open(self, looks: bool) -> None:
        if looks and self._may_not():
            return
        self.producer = self.broker.register()
        if self._may_not():
            return
        mark = self.broker.mark
        committed = -1 if mark is None else mark.epoch
        self.machine = EpochTransactions(committed)
        self.broker.begin(self.producer)
        self.broker.commit(self.producer, Mark(committed, self.run, self.incarnation))

    def _may_not(self) -> bool:
        self.over = standing(self.broker.mark, self.run, self.incarnation) != Claim.MAY_CLAIM
        if self.over:
            self.producer = None
        return self.over

    def receive(self, epoch: int) -> None:
        epoch = self.epoch + epoch
        if epoch < EPOCHS and self.waiting.get(epoch, 0) < ROWS[epoch]:
            self.waiting[epoch] = self.waiting.get(epoch, 0) + 1
            if self.producer is not None:
                self._perform(self.machine.received(self.waiting), None)

    def complete(self, lost: int | None) -> None:
        """The next epoch is complete; the answer to one effect may get lost."""
        if self.epoch >= EPOCHS:
            return
        self.waiting[self.epoch] = ROWS[self.epoch]
        if self.producer is None:
            self.open(looks=True)
        if self.producer is None:
            return
        if self._perform(self.machine.completed(self.epoch, ROWS[self.epoch]), lost):
            del self.waiting[self.epoch]
            self.epoch += 1

    def _perform(self, effects: list[Any], lost: int | None) -> bool:
        assert self.producer is not None
        for number, effect in enumerate(effects):
            try:
                self._do(effect, self.producer)
            except FencedError:
                self.producer = None
                return False
            if number == lost:  # done, but nobody knows
                self.producer = None
                return False
            if isinstance(effect, CommitEpoch):
                self.machine.was_committed(effect.epoch)
        return True

    def _do(self, effect: Any, producer: int) -> None:
        match effect:
            case Begin():
                self.broker.begin(producer)
            case Produce(epoch, first, end):
                for number in range(first, end):
                    self.broker.produce(producer, (epoch, number))
            case Abort():
                self.broker.abort(producer)
            case CommitEpoch(epoch):
                self.broker.commit(producer, Mark(epoch, self.run, self.incarnation))


WHICH = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("open"), WHICH, st.booleans()),
    st.tuples(st.just("receive"), WHICH, st.integers(0, 1)),
    st.tuples(st.just("complete"), WHICH, st.one_of(st.none(), st.integers(0, 3))),
    st.tuples(st.just("replace"), WHICH, st.booleans()),
)


@settings(max_examples=200)
@given(st.lists(STEPS, max_size=40))
def test_every_epoch_is_seen_once_whoever_dies_or_wakes_up(steps: list[tuple[Any, ...]]) -> None:
    broker = Broker()
    writers = [Writer(broker, "first", 0)]
    run, incarnation = "first", 0
    for kind, which, argument in steps:
        writer = writers[-1 - which % len(writers)]
        if kind == "replace":
            incarnation += 1
            if argument:  # the driver of a new run claims the sink before any host has it
                run, incarnation = f"run {len(writers)}", 0
                producer = broker.register()
                broker.begin(producer)
                committed = -1 if broker.mark is None else broker.mark.epoch
                broker.commit(producer, Mark(committed, run, -1))
            writers.append(Writer(broker, run, incarnation))
        elif not writer.over:
            getattr(writer, kind)(argument)
    last = writers[-1]
    for _ in range(3 * EPOCHS):
        last.complete(None)
    assert not last.over
    assert broker.visible == [(epoch, n) for epoch in range(EPOCHS) for n in range(ROWS[epoch])]


def test_a_woken_writer_of_an_earlier_incarnation_does_not_even_register() -> None:
    broker = Broker()
    early, late = Writer(broker, "run", 3), Writer(broker, "run", 4)
    early.open(looks=True)
    early.receive(0)
    late.open(looks=True)
    early.complete(None)
    registered = broker.registered
    early.complete(None)
    assert early.over
    assert broker.registered == registered
    assert broker.visible == []


def test_a_transaction_of_a_later_epoch_is_given_up_for_the_one_that_is_complete() -> None:
    machine = EpochTransactions(committed=-1)
    assert machine.received({7: 2}) == [Begin(), Produce(7, 0, 2)]
    assert machine.completed(6, 1) == [Abort(), Begin(), Produce(6, 0, 1), CommitEpoch(6)]
    machine.was_committed(6)
    assert machine.completed(7, 2) == [Begin(), Produce(7, 0, 2), CommitEpoch(7)]
