"""A checkpoint comes back as it was written, or not at all."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import DiffLink, completion
from penstock.core.causal.logs import Bundle, Fact, Part, Spilled
from penstock.core.causal.reports import NodeReport
from penstock.core.node.causal_effects import Checkpoint
from penstock.core.node.messages import DATA, MARK
from penstock.core.progress.notifications import Notification
from penstock.core.time import Time
from penstock.engine.host.chain_state import ChainState, StageState
from penstock.engine.store.durable import SpillFile
from penstock.engine.store.durable.checkpoint_file import (
    DamagedError,
    read_checkpoint,
    read_manifest,
    write_checkpoint,
)
from penstock.engine.store.durable.segments import Known
from penstock.engine.store.state_codec import freeze, thaw
from penstock.errors import InvariantError
from penstock.storage.folder import LocalFolder

REPORT = NodeReport(
    7,
    (4, -1),
    3,
    4,
    {2: Position((9,), 3)},
    {8: Floor((1,), 2, 2)},
    ((DiffLink(2, (9,), 4), DiffLink(-4, (30, 20), 4)), (DiffLink(2, (10,), 4), completion(4))),
    (Fact(2, (1,), 0, (5,)),),
)


def data(batch: Any, epoch: int = 4, size: int = 16) -> Part:
    return Part(DATA, 1, Time.root(epoch), payload=batch, size=size)


def bundle(number: int, *parts: Part) -> Bundle:
    return Bundle((number,), (DiffLink(7, (number,), 4), DiffLink(2, (9,), 4)), parts)


def written(path: Path, log: Any = None, state: ChainState | None = None) -> Path:
    size = write_checkpoint(
        LocalFolder(path, sync=True),
        "checkpoint-1.arrow",
        Checkpoint(REPORT, log or {}),
        state or ChainState(),
        Known(),
    ).size
    assert size == sum(file.stat().st_size for file in path.iterdir())
    return path / "checkpoint-1.arrow"


def read(path: Path) -> tuple[Checkpoint, ChainState]:
    return read_checkpoint(LocalFolder(path.parent, sync=False), path.name)[:2]


def report_of(path: Path) -> NodeReport:
    return read_manifest(LocalFolder(path.parent, sync=False), path.name).report


def test_report_and_log_come_back(tmp_path: Path) -> None:
    batch = pa.record_batch({"n": [1, 2]})
    coded = pa.record_batch({"k": pa.array(["a", "b", "a"]).dictionary_encode()})
    other = pa.record_batch({"k": pa.array(["c"]).dictionary_encode()})
    mark = Part(MARK, 1, Time.root(4), 99, 5)
    log = {
        8: (bundle(3, data(batch), mark), bundle(4, data(coded), data(other))),
        9: (bundle(3, data(batch)), bundle(5, data(pa.record_batch({"n": [3]})))),
        10: (),
    }
    path = written(tmp_path, log)
    checkpoint, state = read(path)
    assert checkpoint.report == report_of(path) == REPORT
    assert checkpoint.log == log
    assert state == ChainState()
    assert checkpoint.log[8][0].parts[0].payload is checkpoint.log[9][0].parts[0].payload


def test_spilled_payloads_and_buffers_are_written_as_what_they_stand_for(tmp_path: Path) -> None:
    spill = SpillFile()
    batch = pa.record_batch({"n": [1, 2]})
    raw = pa.py_buffer(b"abc")
    log = {8: (bundle(3, data(Spilled(spill.write(batch))), data(raw)),)}
    checkpoint, _ = read(written(tmp_path, log))
    one, two = (part.payload for part in checkpoint.log[8][0].parts)
    assert one == batch
    assert two == raw


def test_the_state_of_a_chain_comes_back(tmp_path: Path) -> None:
    tables: list[pa.Table] = []
    values = freeze({"rows": pa.table({"a": ["x", None]}), "n": 3}, tables)
    asked = (Notification(Time(5, (1,)), None), Notification.at(Time.root(6)))
    batch = pa.record_batch({"n": [5]})
    state = ChainState(
        (StageState(values, tuple(tables), asked, ((3, None), (4, 77))), StageState()),
        ((0, Time.root(5), batch), (1, Time.root(6), batch)),
        ((3, None), (4, 80)),
    )
    _, back = read(written(tmp_path, state=state))
    assert back == state
    assert back.pending[0][2] is back.pending[1][2]
    assert thaw(back.stages[0].values, back.stages[0].tables)["rows"] == tables[0]
    assert isinstance(back.pending[0][1], Time)


def test_a_large_table_of_several_chunks_comes_back(tmp_path: Path) -> None:
    schema = pa.schema({"n": pa.int64()})
    table = pa.concat_tables([pa.table({"n": range(n)}, schema) for n in (1, 200_000, 0, 3)])
    state = ChainState((StageState(("table", 0), (table,)),))
    _, back = read(written(tmp_path, state=state))
    assert back.stages[0].tables[0] == table


def test_any_changed_byte_is_noticed(tmp_path: Path) -> None:
    state = ChainState((StageState(("table", 0), (pa.table({"n": [1, 2, 3]}),)),))
    path = written(tmp_path, {8: (bundle(3, data(pa.record_batch({"n": [7]}))),)}, state)
    whole = path.read_bytes()
    unused = 0
    for position in range(8, len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 4
        path.write_bytes(changed)
        try:
            read(path)
            unused += 1
        except DamagedError:
            pass
    assert unused <= 3 * 63  # what fills up to the next block


@pytest.mark.parametrize("length", [0, 5, 30, -1])
def test_a_file_that_ends_too_early_is_refused(tmp_path: Path, length: int) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedError):
        report_of(path)
    with pytest.raises(DamagedError):
        read(path)


def test_a_payload_that_is_no_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvariantError, match="not <class 'str'>"):
        written(tmp_path, {8: (bundle(3, data("rows")),)})
