"""Epochs are published whole, once, in one rename; whatever happens in between."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors import parquet
from penstock.connectors.parquet import MANIFEST, ParquetCommit, ParquetWrite
from penstock.errors import NotWrittenError, SchemaError, SinkError
from penstock.testing.harness import Harness


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.int64())})


class Flow:
    """Writers and a committer, joined by hand; a new one is a new run of the driver."""

    def __init__(self, path: Path, shards: int = 2, prepare: bool = True) -> None:
        self.sink = ParquetCommit(path)
        self.sink.check()
        if prepare:
            self.sink.prepare()
        self.writers = [
            Harness(ParquetWrite(path), stage="out", shard=shard, shards=shards)
            for shard in range(shards)
        ]
        self.committer = Harness(self.sink)

    def epoch(self, epoch: int, *parts: list[int], publish: bool = True) -> None:
        for writer, part in zip(self.writers, parts, strict=True):
            if part:
                writer.recv(batch(*part), epoch)
            writer.complete(epoch)
            for manifest in writer.batches(epoch=epoch):
                self.committer.recv(manifest, epoch)
        if publish:
            self.committer.complete(epoch)


def published(path: Path) -> dict[str, list[int]]:
    """What a reader sees that leaves out hidden names, as Spark does."""
    return {
        directory.name: [
            value
            for part in sorted(directory.iterdir())
            for value in pq.read_table(part, partitioning=None)["x"].to_pylist()
        ]
        for directory in sorted(path.iterdir())
        if not directory.name.startswith(("_", "."))
    }


def test_epoch_becomes_visible_as_a_whole(tmp_path: Path) -> None:
    flow = Flow(tmp_path / "out")
    flow.epoch(0, [1, 2], [3], publish=False)
    assert published(tmp_path / "out") == {}
    flow.committer.complete(0)
    assert published(tmp_path / "out") == {"epoch=0": [1, 2, 3]}
    names = sorted(path.name for path in (tmp_path / "out" / "epoch=0").iterdir())
    assert names == ["part-00000.parquet", "part-00001.parquet"]
    assert flow.committer.counters["rows_published"] == 3
    assert flow.committer.counters["bytes_published"] > 0


def test_manifest_names_the_file_and_repeats_itself(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.epoch(0, [1, 2], [])
    first = flow.writers[0].table()
    assert first.schema == MANIFEST
    assert first.to_pylist()[0] | {"bytes": 0} == {
        "file": "part-00000.parquet",
        "rows": 2,
        "bytes": 0,
    }
    again = Harness(ParquetWrite(tmp_path), stage="out", shards=2)
    again.recv(batch(1, 2), 0)
    again.complete(0)
    assert again.table().equals(first)


def test_epochs_without_rows_publish_nothing(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.epoch(3, [], [])
    flow.epoch(4, [], [1])
    assert published(tmp_path) == {"epoch=4": [1]}
    assert flow.sink.committed() == 4


def test_interleaved_epochs_stay_apart(tmp_path: Path) -> None:
    flow = Flow(tmp_path, shards=1)
    writer = flow.writers[0]
    for value in range(10):
        writer.recv(batch(value), value % 2)
    for epoch in (0, 1):
        writer.complete(epoch)
        flow.committer.recv(writer.batches(epoch=epoch)[0], epoch)
    flow.committer.complete(1)
    assert published(tmp_path) == {"epoch=0": [0, 2, 4, 6, 8], "epoch=1": [1, 3, 5, 7, 9]}


def test_large_epochs_stream_into_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 800)
    flow = Flow(tmp_path, shards=1)
    for start in range(0, 1000, 50):
        flow.writers[0].recv(batch(*range(start, start + 50)), 0)
        open_epoch = flow.writers[0].vertex._open[0]  # type: ignore[attr-defined]
        assert open_epoch.pending_bytes < 800
    flow.epoch(0, [])
    assert published(tmp_path) == {"epoch=0": list(range(1000))}
    assert pq.ParquetFile(tmp_path / "epoch=0" / "part-00000.parquet").num_row_groups == 10


def test_publishing_again_changes_nothing(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.epoch(0, [1], [2])
    part = tmp_path / "epoch=0" / "part-00000.parquet"
    inode = part.stat().st_ino
    again = Flow(tmp_path)
    again.epoch(0, [1], [2])
    again.epoch(1, [3], [4])
    assert published(tmp_path) == {"epoch=0": [1, 2], "epoch=1": [3, 4]}
    assert part.stat().st_ino == inode
    assert again.committer.counters["epochs_published"] == 1


def test_restart_at_any_point_neither_loses_nor_doubles(tmp_path: Path) -> None:
    """A run that dies between any two steps, and one that does the rest."""
    steps = ("staged one", "staged all", "published")
    for step in steps:
        path = tmp_path / step.replace(" ", "_")
        flow = Flow(path)
        flow.epoch(0, [1], [2])
        flow.writers[0].recv(batch(3), 1)
        flow.writers[0].complete(1)
        if step != "staged one":
            flow.epoch(1, [], [4], publish=step == "published")
        restarted = Flow(path)
        assert not (path / "_staging" / flow.writers[0].vertex._staging.run).exists()  # type: ignore[attr-defined]
        done = restarted.sink.committed()
        assert done == (1 if step == "published" else 0)
        for epoch in range(done + 1, 3):
            restarted.epoch(epoch, [2 * epoch + 1], [2 * epoch + 2])
        if step != "published":
            assert published(path) == {"epoch=0": [1, 2], "epoch=1": [3, 4], "epoch=2": [5, 6]}


def test_what_was_staged_is_there_for_the_next_run(tmp_path: Path) -> None:
    """A writer that is restored after an epoch does not make its part again."""
    flow = Flow(tmp_path)
    flow.epoch(0, [1], [2])
    flow.epoch(1, [3], [4], publish=False)
    manifests = [rows for writer in flow.writers for rows in writer.batches(epoch=1)]
    flow.committer.vertex.close()
    restarted = Flow(tmp_path)
    for manifest in manifests:
        restarted.committer.recv(manifest, 1)
    restarted.committer.complete(1)
    assert published(tmp_path) == {"epoch=0": [1, 2], "epoch=1": [3, 4]}
    restarted.committer.vertex.close()
    assert not list((tmp_path / "_staging").iterdir())


def test_frozen_process_of_an_earlier_run_cannot_disturb(tmp_path: Path) -> None:
    old = Flow(tmp_path)
    old.writers[0].recv(batch(99), 0)
    new = Flow(tmp_path)
    new.writers[0].recv(batch(1), 0)
    with pytest.raises(SinkError, match="written to by another run"):
        old.writers[0].complete(0)
    new.epoch(0, [], [2])
    assert published(tmp_path) == {"epoch=0": [1, 2]}


def test_check_of_a_run_that_is_refused_does_not_disturb_the_running_one(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.epoch(0, [1], [2], publish=False)
    second = ParquetCommit(tmp_path)
    second.check()
    second.committed()
    flow.committer.complete(0)
    flow.epoch(1, [3], [4])
    assert published(tmp_path) == {"epoch=0": [1, 2], "epoch=1": [3, 4]}


def test_parts_of_a_killed_run_are_not_published_even_if_nobody_cleaned_up(tmp_path: Path) -> None:
    killed = Flow(tmp_path, prepare=False)
    killed.epoch(0, [98], [99], publish=False)
    again = Flow(tmp_path, prepare=False)
    again.epoch(0, [1], [])
    assert published(tmp_path) == {"epoch=0": [1]}


def test_restarted_node_makes_its_part_again(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.writers[0].recv(batch(1), 0)
    flow.writers[0].vertex.onRecv(0, batch(2), flow.writers[0].asked[0])
    flow.writers[0] = Harness(ParquetWrite(tmp_path), stage="out", shards=2)
    flow.epoch(0, [1, 2], [3])
    assert published(tmp_path) == {"epoch=0": [1, 2, 3]}


def test_committed_knows_of_epochs_that_were_moved_away(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    assert flow.sink.committed() is None
    flow.epoch(0, [1], [2])
    flow.epoch(1, [3], [4])
    shutil.rmtree(tmp_path / "epoch=1")
    assert flow.sink.committed() == 1
    (tmp_path / "_penstock" / "committed.json").write_text('{"ep')
    assert flow.sink.committed() == 0
    assert ParquetCommit(tmp_path / "nowhere").committed() is None


def test_closing_leaves_no_staged_files(tmp_path: Path) -> None:
    flow = Flow(tmp_path, shards=1)
    flow.writers[0].recv(batch(1), 0)
    flow.writers[0].vertex._open[0].flush(tmp_path / "x")  # type: ignore[attr-defined]
    flow.writers[0].vertex.close()
    flow.committer.vertex.close()
    assert not list((tmp_path / "_staging").iterdir())
    assert not (tmp_path / "x").exists()


def test_a_committer_that_ends_first_does_not_disturb_those_who_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 1)
    flow = Flow(tmp_path)
    flow.writers[0].recv(batch(1), 0)  # has its file open
    flow.committer.vertex.close()
    flow.epoch(0, [2], [3], publish=False)
    flow.committer.vertex.close()
    flow.writers[1].recv(batch(4), 1)  # whose folder is gone: it is made again
    flow.writers[1].complete(1)
    assert flow.writers[1].batches(epoch=1)[0]["rows"].to_pylist() == [1]


def test_lost_staged_file_is_noticed(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.epoch(0, [1], [2], publish=False)
    next((tmp_path / "_staging").glob("*/epoch=0/part-00001.parquet")).unlink()
    with pytest.raises(SinkError, match=r"part-00001\.parquet is gone"):
        flow.committer.complete(0)
    assert published(tmp_path) == {}


def test_unwritable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="cannot write to .*file/out: Not a directory"):
        ParquetCommit(tmp_path / "file" / "out").check()
    with pytest.raises(SinkError, match="hdfs://x/y is not a path"):
        ParquetWrite("hdfs://x/y")
    if os.getuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(SinkError, match="Permission denied"):
            ParquetCommit(tmp_path / "closed").check()


def test_columns_that_parquet_cannot_hold_are_refused_while_building(tmp_path: Path) -> None:
    bad = pa.schema({"u": pa.sparse_union([pa.field("a", pa.int64())])})
    with pytest.raises(SchemaError, match="cannot be written"):
        ParquetWrite(tmp_path).output_schemas([bad])
    with pytest.raises(SchemaError, match="must be a ParquetWrite"):
        ParquetCommit(tmp_path).output_schemas([pa.schema({"x": pa.int64()})])


def test_marker_never_claims_more_than_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(tmp_path)
    flow.epoch(0, [1], [2])
    flow.epoch(1, [3], [4], publish=False)
    monkeypatch.setattr(os, "rename", _refuse)
    with pytest.raises(NotWrittenError, match="No space"):
        flow.committer.complete(1)
    monkeypatch.undo()
    marker = json.loads((tmp_path / "_penstock" / "committed.json").read_text())
    assert marker["epoch"] == 0
    assert flow.sink.committed() == 0


def _refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_relative_path_is_the_drivers_whatever_folder_a_host_works_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ParquetWrite("out").path == ParquetCommit("out").path == str(tmp_path / "out")
