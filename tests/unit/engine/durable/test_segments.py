"""What an earlier checkpoint made durable is referred to, not written again."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.causal.diffs import DiffLink
from penstock.core.causal.logs import Bundle, Part, Spilled
from penstock.core.causal.reports import NodeReport
from penstock.core.causal.times import ZERO
from penstock.core.node.causal_effects import Checkpoint
from penstock.core.node.messages import DATA, MARK
from penstock.core.time import Time
from penstock.engine.host.chain_state import ChainState, StageState
from penstock.engine.store.durable import NodeStore, fence, read_stored, segments
from penstock.errors import TransientError
from penstock.operators.grown import Grown, Lineage
from penstock.operators.keyed_store import KeyedStore

KEYS = 50_000
CHILD = 8


class Bench:
    """A node's store and what goes into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key = self.incarnation = 0
        self.next()

    def next(self) -> None:
        self.incarnation += 1
        fence(self.path, "counts", 0, self.incarnation)
        self.store = NodeStore(self.path, "counts", 0, self.incarnation, sync=False)

    def save(self, *tables: Any, log: tuple[Bundle, ...] = ()) -> int:
        self.key += 1
        state = ChainState((StageState(tuple(("grown", i) for i in range(len(tables))), tables),))
        checkpoint = Checkpoint(NodeReport(7, (self.key,), self.key, self.key), {CHILD: log})
        return self.store.write_checkpoint(self.key, checkpoint, state)

    def load(self, key: int) -> tuple[Checkpoint, list[Any]]:
        checkpoint, state = self.store.load_checkpoint(key)
        return checkpoint, list(state.stages[0].tables)

    def read(self, key: int) -> Any:
        """The first table of a checkpoint, as somebody else sees it."""
        other = NodeStore(self.path, "counts", 0, self.incarnation)
        return other.load_checkpoint(key)[1].stages[0].tables[0]

    def files(self) -> list[str]:
        return sorted(name for name in self.store.folder.names() if name.endswith(".arrow"))

    def segments(self) -> list[int]:
        """The checkpoints that segments were written with."""
        return [int(name[-18:-6]) for name in self.files() if not name.startswith("checkpoint")]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def changed(store: KeyedStore, keys: Any, value: int) -> None:
    store.put(pa.table({"k": keys, "n": np.full(len(keys), value), "name": map(str, keys)}))


def same(one: KeyedStore, grown: Grown) -> bool:
    other = KeyedStore(["k"])
    other.load(grown)
    return bool(one.table().sort_by("k").equals(other.table().sort_by("k")))


def test_a_checkpoint_costs_what_has_changed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES_MIN", 1 << 13)
    random = np.random.default_rng(3)
    keyed = KeyedStore(["k"])
    changed(keyed, np.arange(KEYS), 0)
    full = bench.save(keyed.history())
    sizes = []
    for number in range(1, 61):
        changed(keyed, random.permutation(KEYS)[: KEYS // 100], number)
        if number == 30:
            bench.next()
            keyed = KeyedStore(["k"])
            keyed.load(bench.load(bench.key)[1][0])
            changed(keyed, random.permutation(KEYS)[: KEYS // 100], number)
        sizes.append(bench.save(keyed.history()))
        bench.store.low_epoch = bench.key - 1
        bench.store.prune()
        if number % 20 == 0:
            assert same(keyed, bench.read(bench.key))
    assert max(sizes) <= 0.05 * full
    assert len(bench.store.keys()) == 2


def test_small_pieces_are_gathered_when_there_are_many(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES_MIN", 1)
    monkeypatch.setattr(segments, "PIECES_MAX", 3)
    lineage, table = Lineage(), pa.table({"n": range(1000)})
    for rows in (500, 600, 700, 800, 900, 1000):
        bench.save(Grown.of(table.slice(0, rows), lineage))
    bench.store.keep_from(bench.key)
    assert bench.segments() == [1, 5, 6]
    assert bench.load(bench.key)[1][0].table() == table


def test_a_segment_that_is_mostly_garbage_goes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES_MIN", 1)
    large, small = (Grown.of(pa.table({"n": range(rows)}), Lineage()) for rows in (5000, 100))
    bench.save(large, small)
    bench.save(small)
    bench.save(small)
    bench.store.keep_from(bench.key)
    assert bench.segments() == [2]
    assert bench.load(3)[1][0].table() == small.table()


def test_a_table_that_is_kept_is_written_once_and_another_one_is_not_taken_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES_MIN", 1)
    table, empty = pa.table({"n": range(1000)}), pa.table({"s": pa.array([], pa.string())})
    assert bench.save(table, empty) > 8000
    assert bench.save(table, empty) < 2000
    for value in range(20):  # what is gone may give its address to the next one
        bench.save(pa.table({"n": np.full(1000, value)}))
        assert set(bench.load(bench.key)[1][0].column("n").to_pylist()) == {value}
    loaded = bench.load(2)[1]
    assert loaded == [table, empty]
    assert bench.save(*loaded) < 2000
    assert bench.load(bench.key)[1] == loaded


def test_damage_concerns_the_checkpoints_that_refer_to_it(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    keyed = KeyedStore(["k"])
    for number in range(4):
        changed(keyed, np.arange(number * KEYS // 10, (number + 1) * KEYS // 10), number)
        bench.save(keyed.history())
    path = bench.store.path / "state-000000000003.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for key in (4, 3):
        with pytest.raises(TransientError, match="state-000000000003.arrow is wrong"):
            bench.load(key)
    assert bench.load(2)[1][0].rows == 2 * KEYS // 10
    assert bench.store.keys() == [1, 2]
    (bench.store.path / "state-000000000002.arrow").unlink()
    with caplog.at_level(logging.WARNING):
        found = read_stored(bench.path, "counts", 0, 1, 7, (CHILD,))
    assert [saved.key for saved in found.checkpoints] == [0, 1]
    assert "000000000002.arrow is left out" in caplog.text


def bundle(number: int, payload: Any, *more: Part) -> Bundle:
    part = Part(DATA, 1, Time.root(number), payload=payload, size=8 * 1000)
    return Bundle((number,), (DiffLink(7, (number,), 4), DiffLink(2, (9,), 4)), (part, *more))


class NeverRead:
    def read(self) -> Any:
        raise AssertionError("it is durable already")


def test_a_bundle_of_the_log_is_written_once(bench: Bench) -> None:
    batches = [pa.record_batch({"n": np.full(1000, number)}) for number in range(100)]
    log = [bundle(number + 1, batch) for number, batch in enumerate(batches)]
    assert bench.save(log=tuple(log[:40])) > 40 * 8000
    assert 10 * 8000 < bench.save(log=tuple(log[:50])) < 12 * 8000
    spilled = [
        one._replace(parts=(one.parts[0]._replace(payload=Spilled(NeverRead())),))
        for one in log[:50]
    ]
    stated = Bundle(ZERO, (), (Part(MARK, 1, Time.root(24), 99, 5),))
    cut = (stated, *spilled[25:], *log[50:60])
    assert bench.save(log=cut) < 12 * 8000
    bench.next()
    checkpoint, _ = bench.load(3)
    assert checkpoint.log[CHILD] == (stated, *log[25:60])
    again = checkpoint.log[CHILD]
    assert bench.save(log=(stated, *again[21:], *log[60:70])) < 12 * 8000
    assert bench.load(4)[0].log[CHILD] == (stated, *log[45:70])
    bench.store.keep_from(4)
    assert bench.segments() == [2, 3, 4]
    assert bench.save(log=(stated,)) < 2000
    assert bench.load(5)[0].log[CHILD] == (stated,)
    bench.store.keep_from(5)
    assert bench.files() == ["checkpoint-000000000005.arrow"]


def test_a_log_that_is_not_what_it_was_is_written_again(bench: Bench) -> None:
    batch = pa.record_batch({"n": np.arange(1000)})
    bench.save(log=tuple(bundle(number, batch) for number in range(1, 100)))
    other = tuple(bundle(number, batch) for number in range(2, 200, 2))
    bench.save(log=other)
    assert bench.load(2)[0].log[CHILD] == other
