"""The part of an aggregate before its exchange: rows wait for each other, and none is lost."""

import pyarrow as pa

from penstock.operators import combine
from penstock.operators import terms as F
from penstock.operators.aggregate import RunningAggregate
from penstock.testing.harness import Harness

SCHEMA = pa.schema({"k": pa.string(), "n": pa.int64()})


def combiner():
    operator = RunningAggregate(["k"], [F.sum("n")])
    operator.output_schemas([SCHEMA])
    split = operator.combiner(frozenset({0}))
    assert split is not None
    split[0].output_schemas([SCHEMA])
    return split[0]


def rows(*keys):
    return pa.record_batch({"k": list(keys), "n": [1] * len(keys)}, schema=SCHEMA)


def test_small_batches_wait_for_the_end_of_their_epoch():
    node = Harness(combiner())
    node.recv(rows("a", "b"), 0)
    node.recv(rows("a"), 0)
    node.recv(rows("c"), 1)
    assert node.sent == []
    node.complete(0)
    ((_, time, batch),) = node.sent
    assert time.epoch == 0
    assert sorted(batch.column("k").to_pylist()) == ["a", "b"]
    node.complete(1)
    assert [time.epoch for _, time, _ in node.sent] == [0, 1]


def test_enough_rows_do_not_wait(monkeypatch):
    monkeypatch.setattr(combine, "ROWS", 3)
    node = Harness(combiner())
    node.recv(rows("a", "b"), 0)
    assert node.sent == []
    node.recv(rows("c"), 0)
    assert len(node.sent) == 1
    node.complete(0)
    assert len(node.sent) == 1


def test_without_gathering_every_batch_is_sent_on_at_once():
    node = Harness(combiner())
    node.vertex.gathers = False
    node.recv(rows("a", "a"), 0)
    node.recv(rows("a"), 0)
    assert [batch.num_rows for _, _, batch in node.sent] == [1, 1]
    assert node.asked == []


def test_partial_rows_of_several_batches_that_come_as_one_are_merged():
    """A source that is read again after a restart gives the batches of an epoch as one."""
    operator = RunningAggregate(["k"], [F.sum("n")])
    split = operator.combiner(frozenset({0}))
    assert split is not None
    partials = split[0].output_schemas([SCHEMA])
    split[1].output_schemas(partials)
    combined = Harness(combiner())
    combined.vertex.gathers = False
    for batch in (rows("a", "b"), rows("a", "a")):
        combined.recv(batch, 0)
    merged = Harness(split[1])
    merged.recv(pa.concat_batches([batch for _, _, batch in combined.sent]), 0)
    merged.complete(0)
    merged.recv(combined.sent[0][2], 1)
    merged.complete(1)
    results = [sorted(map(tuple, (r.values() for r in b.to_pylist()))) for _, _, b in merged.sent]
    assert results == [[("a", 3), ("b", 1)], [("a", 4), ("b", 2)]]
