"""Payloads on disk: they come back, and their space is given back."""

import contextlib
import gc
import os
from pathlib import Path

import pyarrow as pa

from penstock.engine.store.durable import SpillFile


def open_files(directory: Path) -> int:
    links = Path("/proc/self/fd")
    count = 0
    for link in os.listdir(links):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(links / link).startswith(str(directory))
    return count


def test_batches_and_buffers_come_back(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path)
    coded = pa.record_batch({"k": pa.array(["a", "b", "a"]).dictionary_encode(), "n": [1, 2, None]})
    payloads = [pa.record_batch({"n": [1, 2]}), coded, pa.py_buffer(b"abc"), coded.slice(1)]
    references = [spill.write(payload) for payload in payloads]
    assert [spill.read(reference) for reference in references] == payloads
    spill.close()
    assert [reference.read() for reference in references] == payloads


def test_nothing_is_left_in_the_directory(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path)
    reference = spill.write(pa.record_batch({"n": [1]}))
    assert os.listdir(tmp_path) == []
    assert spill.read(reference).num_rows == 1


def test_a_segment_goes_with_its_last_reference(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path, segment_bytes=1000)
    batch = pa.record_batch({"n": range(100)})
    references = [spill.write(batch) for _ in range(6)]
    full = open_files(tmp_path)
    assert full >= 3
    del references[:-1]
    gc.collect()
    assert open_files(tmp_path) == 1
    assert spill.read(references[0]) == batch
    references.clear()
    spill.close()
    gc.collect()
    assert open_files(tmp_path) == 0
