"""A new run takes over: what processes of the run before it still do has no effect."""

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.connectors.parquet import ParquetCommit
from penstock.connectors.staging import Staging
from penstock.engine.driver.prepare import prepare_run
from penstock.engine.driver.targets import release_targets
from penstock.engine.settings import RunSettings
from penstock.engine.store.flow_store import BoundaryLog
from penstock.errors import PeerError
from penstock.planning.physical import physical_plan


def staged(path: Path, epoch: int, *names: str) -> Staging:
    """A run that has staged an epoch's files and not published them."""
    run = Staging(str(path))
    run.begin()
    for name in names:
        file = run.path / "_staging" / run.run / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"rows")
        run.stage(file, epoch, name)
    return run


def test_what_an_earlier_process_appends_to_a_boundary_log_goes_nowhere(tmp_path: Path) -> None:
    before, after = (BoundaryLog(tmp_path, "input", 0) for _ in range(2))
    before.append({"epoch": 1, "position": 10})
    assert after.take_over(0) == [{"epoch": 1, "position": 10}]
    before.append({"epoch": 2, "position": 20})
    after.append({"epoch": 2, "position": 15})
    assert after.read() == [{"epoch": 1, "position": 10}, {"epoch": 2, "position": 15}]
    before.close()
    after.close()


def test_an_incarnation_that_wakes_up_late_cannot_claim_a_boundary_log(tmp_path: Path) -> None:
    controller, early, late, present = (BoundaryLog(tmp_path, "input", 0) for _ in range(4))
    early.claim(1)
    early.append({"epoch": 1, "position": 10})
    controller.take_over(0, ended=True, fence=3)
    with pytest.raises(PeerError, match="belongs to incarnation 3"):
        late.claim(2)
    with pytest.raises(PeerError, match="belongs to incarnation 3"):
        early.compact(1)
    present.claim(3)
    present.append({"epoch": 2, "position": 15})
    with pytest.raises(FileNotFoundError, match="another file now"):
        early.append({"epoch": 2, "position": 20})  # or it would act on what nobody reads
    with pytest.raises(PeerError, match="was replaced"):
        early.append({"epoch": 2, "position": 20})
    present.compact(2)  # the fence outlives it
    with pytest.raises(PeerError, match="belongs to incarnation 3"):
        late.claim(2)
    assert [record["position"] for record in present.read()] == [15]
    for log in (early, late, present):
        log.close()


def test_a_boundary_log_in_which_there_is_nothing_is_fenced_as_well(tmp_path: Path) -> None:
    controller, early, late, present = (BoundaryLog(tmp_path, "input", 0) for _ in range(4))
    early.claim(1)
    for fence in (2, 3):
        controller.take_over(None, ended=True, fence=fence)
    assert len(controller.read()) == 1
    with pytest.raises(PeerError, match="belongs to incarnation 3"):
        late.claim(2)
    present.claim(3)
    present.append({"epoch": 1, "position": 15})
    with pytest.raises(FileNotFoundError, match="another file now"):
        early.append({"epoch": 1, "position": 10})
    assert [r["position"] for r in controller.read() if "position" in r] == [15]
    for log in (early, late, present):
        log.close()


def test_who_opens_a_boundary_log_again_after_an_error_claims_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, controller = (BoundaryLog(tmp_path, "input", 0) for _ in range(2))
    early.claim(1)

    def full(*_: Any) -> int:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="no space"):
            early.append({"epoch": 1, "position": 10})
    controller.take_over(None, ended=True, fence=2)
    with pytest.raises(PeerError, match="belongs to incarnation 2|was replaced"):
        early.append({"epoch": 1, "position": 10})
    assert not any("position" in record for record in controller.read())


def test_an_earlier_committer_publishes_a_whole_epoch_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = staged(tmp_path, 3, "a.parquet", "b.parquet")
    remove, tried = shutil.rmtree, []

    def remove_slowly(path: Path, **options: Any) -> None:
        for file in Path(path).rglob("a.parquet"):
            file.unlink()
        with pytest.raises(FileNotFoundError):
            before.publish(3, ["b.parquet"])
        tried.append(path)
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", remove_slowly)
    after = Staging(str(tmp_path))
    after.begin()
    assert tried
    assert not (tmp_path / "epoch=3").exists()
    assert after.publish(3, ["a.parquet", "b.parquet"])


def test_the_resume_point_is_what_was_published_when_earlier_runs_were_shut_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow("takeover")
    flow.memory(pa.schema({"n": pa.int64()})).parquet(str(tmp_path / "out"))
    settings = RunSettings(checkpointLocation=str(tmp_path / "checkpoint"))
    plan = physical_plan(flow, 1)
    run = prepare_run(flow, plan, settings, hosts=1)
    assert (run.resume, run.base) == (-1, 0)
    assert run.store is not None
    run.store.close()
    release_targets(plan)
    before = staged(tmp_path / "out", 7, "part-00000.parquet")
    prepare = ParquetCommit.prepare

    def just_in_time(sink: ParquetCommit) -> None:
        before.publish(7, ["part-00000.parquet"])
        prepare(sink)

    monkeypatch.setattr(ParquetCommit, "prepare", just_in_time)
    run = prepare_run(flow, plan, settings, hosts=1)
    assert run.store is not None
    run.store.close()
    release_targets(plan)
    assert (run.resume, run.base) == (7, 8)
