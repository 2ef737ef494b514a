"""A shard of a Kafka source that dies again and again: what is read again is what was read."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.kafka.reading import Partition, ShardReading, Stretch

PARTITIONS = [Partition("a", 0), Partition("a", 1), Partition("b", 0)]


class World:
    """What is durable, and the rows that somebody has seen, in their order."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        self.seen: list[tuple[Partition, int]] = []
        self.reading = ShardReading(None, [])

    def find(self, partition: Partition, start: int) -> None:
        self.reading.found({partition: start})

    def read(self, runs: list[tuple[int, int]], leaves: bool) -> None:
        """Read from some partitions; the process may die between the note and the rows."""
        known = sorted(self.reading.offsets)
        rows: list[tuple[Partition, int]] = []
        taken: list[Stretch] = []
        offsets: dict[Partition, int] = {}
        for which, count in runs:
            if not known:
                return
            partition = known[which % len(known)]
            first = offsets.get(partition, self.reading.offsets[partition])
            rows += [(partition, first + n) for n in range(count)]
            offsets[partition] = first + count
            taken.append(Stretch(partition, count))
        self.reading.took(taken, offsets)
        self._note()
        if leaves:
            self.seen += rows

    def cut(self) -> None:
        """The end of an epoch is durable; nothing that left before can be void any more."""
        if len(self.seen) == self.reading.rows:
            self._note()
            self.log.append(("cut", self.reading.position()))

    def restart(self, back: int, prune: bool) -> None:
        """Start again at one of the newest cuts and read what was seen after it once more."""
        cuts = [n for n, (kind, _) in enumerate(self.log) if kind == "cut"]
        if prune and cuts:
            # As a compacted log has it: behind its oldest cut only what does not pass is left.
            before = [e for e in self.log[: cuts[-1]] if not e[1].get("passing", e[0] == "cut")]
            self.log = before + self.log[cuts[-1] :]
            cuts = [len(before)]
        newest = cuts[-1 - back % len(cuts)] if cuts else None
        position = None if newest is None else self.log[newest][1]
        self.reading = ShardReading(position, [e for kind, e in self.log if kind == "note"])
        again = self.seen[self.reading.rows :]
        while again:
            run = self.reading.next_run()
            assert run is not None, "it is not known where a row came from"
            first = self.reading.offsets[run.partition]
            count = min(run.rows, len(again))
            assert again[:count] == [(run.partition, first + n) for n in range(count)]
            self.reading.took(
                [Stretch(run.partition, count)], {run.partition: first + count}, new=False
            )
            again = again[count:]
            recorded = self.log[cuts[-1]][1] if cuts else None
            assert self.reading.check(recorded) == {}

    def _note(self) -> None:
        entry = self.reading.take_note()
        if entry is not None:
            self.log.append(("note", entry))


RUNS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=2)
READ = st.tuples(st.just("read"), RUNS, st.booleans())
STEPS = st.one_of(
    READ,
    READ,
    st.tuples(st.just("find"), st.sampled_from(PARTITIONS[1:]), st.integers(0, 9)),
    st.tuples(st.just("cut")),
    st.tuples(st.just("restart"), st.integers(0, 2), st.booleans()),
)


@settings(max_examples=300)
@given(st.lists(STEPS, min_size=4, max_size=20))
def test_a_replay_reads_the_rows_that_were_seen_in_their_order(
    steps: list[tuple[Any, ...]],
) -> None:
    world = World()
    world.find(PARTITIONS[0], 0)
    for kind, *arguments in steps:
        if kind == "read" and not arguments[1]:
            world.read(*arguments)
            world.restart(0, False)  # it died before the rows left
        else:
            getattr(world, kind)(*arguments)
    world.restart(2, False)
    world.restart(0, True)


def test_rows_that_are_gone_are_noticed_at_the_newest_recorded_position() -> None:
    a = Partition("a", 0)
    live = ShardReading(None, [])
    live.found({a: 0})
    live.took([Stretch(a, 5)], {a: 5})
    entry, recorded = live.take_note(), live.position()
    again = ShardReading(None, [entry])
    again.took([Stretch(a, 5)], {a: 7}, new=False)  # two were compacted away
    assert again.check(recorded) == {a: (5, 7)}


def test_one_partition_needs_no_notes() -> None:
    reading = ShardReading(None, [])
    reading.found({Partition("a", 0): 3})
    assert reading.take_note() == {"found": [["a", 0, 3, 0]], "passing": False}
    reading.took([Stretch(Partition("a", 0), 5)], {Partition("a", 0): 8})
    assert reading.take_note() is None
