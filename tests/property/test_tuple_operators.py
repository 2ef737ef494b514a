"""Filter, count, duplicate, unique and routing in a running flow give what plain Python gives."""

from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Flow
from penstock.operators.duplicate import Duplicate
from penstock.testing.harness import Harness
from penstock.testing.local import run_local

SCHEMA = pa.schema({"word": pa.string(), "n": pa.int64()})
Rows = list[dict[str, Any]]

rows = st.builds(
    lambda word, n: {"word": word, "n": n},
    st.sampled_from(["a", "b", "", None]),
    st.none() | st.integers(-2, 2),
)
histories = st.lists(st.lists(rows, max_size=8), min_size=1, max_size=4)


def in_order(made: Rows) -> list[str]:
    return sorted(map(repr, made))


def smallest(made: Rows) -> dict[str, Any]:
    """Nulls last, as everywhere."""
    return min(made, key=lambda row: [(value is None, value) for value in row.values()])


class Reference:
    """The operators as loops over rows, one epoch after the other."""

    def __init__(self, copies: int) -> None:
        self.copies = copies
        self.filtered: Rows = []
        self.duplicated: Rows = []
        self.uniques: Rows = []
        self.counts: Rows = []
        self.per_word: Rows = []
        self._seen: set[Any] = set()
        self._count = 0
        self._per_word: Counter[Any] = Counter()

    def epoch(self, epoch: Rows) -> None:
        self.filtered += [row for row in epoch if row["n"] is not None and row["n"] > 0]
        self.duplicated += [row for row in epoch for _ in range(self.copies)]
        words = {row["word"]: None for row in epoch}
        for word in words:
            of_word = [row for row in epoch if row["word"] == word]
            if word not in self._seen:
                self._seen.add(word)
                self.uniques.append(smallest(of_word))
            self._per_word[word] += len(of_word)
            self.per_word.append({"word": word, "count": self._per_word[word]})
        if epoch:
            self._count += len(epoch)
            self.counts.append({"count": self._count})


@settings(max_examples=15, deadline=None)
@given(histories, st.integers(1, 3), st.sampled_from(["random", "hash(word)", "primary"]))
def test_operators_give_what_plain_python_gives(
    history: list[Rows], copies: int, routing: str
) -> None:
    flow = Flow()
    pushed = flow.memory(SCHEMA, manualEpochs=True)
    routed = pushed.route(routing, replicas=1 if routing == "primary" else 2)
    sinks = {
        "filtered": routed.filter("n > 0").memory(name="filtered"),
        "duplicated": routed.duplicate(copies).memory(name="duplicated"),
        "uniques": routed.unique("word").memory(name="uniques"),
        "counts": routed.count().memory(name="counts"),
        "per_word": routed.count("word").memory(name="per_word"),
        "passed": routed.memory(name="passed"),
    }
    reference = Reference(copies)
    for epoch in history:
        pushed.push(pa.Table.from_pylist(epoch, SCHEMA))
        pushed.closeEpoch()
        reference.epoch(epoch)
    run_local(flow)
    assert in_order(sinks["passed"].toPylist()) == in_order([r for e in history for r in e])
    for name in ("filtered", "duplicated", "uniques", "counts", "per_word"):
        assert in_order(sinks[name].toPylist()) == in_order(getattr(reference, name)), name


@settings(max_examples=50, deadline=None)
@given(st.lists(rows, max_size=20), st.integers(1, 4))
def test_copies_are_next_to_each_other(batch: Rows, copies: int) -> None:
    operator = Duplicate(copies)
    assert operator.output_schemas([SCHEMA]) == (SCHEMA,)
    harness = Harness(operator)
    harness.recv(pa.RecordBatch.from_pylist(batch, SCHEMA))
    made = harness.table().to_pylist() if batch else []
    assert made == [row for row in batch for _ in range(copies)]
