"""``penstock status``, ``rollback`` and ``explain-recovery``, while flows run and afterwards."""

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock import Flow
from penstock.api import functions as F
from penstock.cli.app import app
from penstock.engine.driver.command_channel import call, find_driver
from penstock.engine.store.description import FlowDescription
from penstock.engine.store.story_log import read_story
from penstock.errors import SettingsError
from penstock.testing.kills import await_epochs, await_recovery
from penstock.testing.local import LocalQuery, start_local

ROWS = 30_000
RATE = 10_000
WAIT_S = 60.0


def numbers(offset: int, n: int) -> pa.RecordBatch:
    offsets = range(offset, offset + n)
    return pa.record_batch(
        {"n": pa.array(offsets, pa.int64()), "key": pa.array([o % 7 for o in offsets], pa.int64())}
    )


def start(folder: Path, rows: int = ROWS) -> LocalQuery:
    flow = Flow("totals")
    kept = (
        flow.generate(numbers, rate=RATE, rows=rows, shards=2, name="numbers")
        .filter("n >= 0")
        .name("clean")
        .persist(name="kept")
    )
    totals = kept.groupBy("key").agg(F.count("*").alias("rows")).name("totals")
    totals.parquet(str(folder / "out"), name="published")
    return start_local(
        flow,
        hosts=2,
        parallelism=2,
        checkpointLocation=str(folder / "store"),
        checkpointInterval="200 ms",
        rollbackWindow="1 minute",
    )


def command(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def totals(folder: Path) -> dict[int, int]:
    """The last count of every key."""
    found: dict[int, int] = {}
    for file in (folder / "out").glob("epoch=*/*.parquet"):
        for row in pq.read_table(file).to_pylist():
            found[row["key"]] = max(found.get(row["key"], 0), row["rows"])
    return found


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    query = start(tmp_path)
    time.sleep(0.6)
    query.checkpoint()
    time.sleep(0.4)
    query.stop()
    query.finish(WAIT_S)
    return tmp_path


def test_the_store_of_a_flow_that_has_ended_says_what_it_holds(ended: Path) -> None:
    found = command("status", str(ended / "store"))
    assert (found["flow"], found["running"], found["driver"]) == ("totals", False, None)
    stages = {stage["stage"]: stage for stage in found["stages"]}
    kinds = {stage["kind"] for stage in found["stages"]}
    assert kinds >= {"source", "sink", "stateful"}
    stateful = [stage for stage in stages.values() if stage["kind"] == "stateful"]
    for stage in stateful:
        for shard in stage["shards"]:
            assert shard["kept"] == sorted(shard["kept"])
            assert shard["low"] in shard["kept"]
            assert shard["bytes"] > 100
            assert stage["regime"] == "Causal()"
    assert stages["numbers" if "numbers" in stages else "clean"]["shards"][0]["rows"] > 0
    assert found["bytes"] > 1000
    assert found["low"] >= 0
    text = CliRunner().invoke(app, ["status", str(ended / "store")]).output
    assert "does not run" in text
    assert f"low-watermark {found['low']}" in text


def test_a_rollback_of_a_flow_that_does_not_run_is_done_at_the_next_start(ended: Path) -> None:
    store = str(ended / "store")
    oldest = command("status", store)["oldestRollback"]
    told = command("rollback", store, "--to", str(oldest), "--dry-run")
    assert (told["running"], told["done"]) == (False, "nothing")
    assert command("status", store)["rollbackTo"] is None
    assert command("rollback", store, "--to", str(oldest))["stages"] == told["stages"]
    assert command("status", store)["rollbackTo"] == oldest
    query = start(ended)
    try:
        assert command("status", store)["rollbackTo"] is None
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert totals(ended) == {key: len(range(key, ROWS, 7)) for key in range(7)}


def test_a_running_flow_is_asked_to_go_back_at_once(tmp_path: Path) -> None:
    query = start(tmp_path)
    store = str(tmp_path / "store")
    try:
        time.sleep(0.4)
        epoch = min(call(find_driver(store), "checkpoint").values())
        found = command("status", store)
        assert found["running"]
        assert "pid" in found["driver"]
        assert command("rollback", store, "--to", str(epoch), "--dry-run")["done"] == "nothing"
        assert not query.recoveries
        text = CliRunner().invoke(app, ["rollback", store, "--to", str(epoch)]).output
        assert f"the flow has gone back to epoch {epoch}" in text
        assert query.recoveries[-1]["reason"] == f"rolled back to epoch {epoch}"
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert totals(tmp_path) == {key: len(range(key, ROWS, 7)) for key in range(7)}


@pytest.mark.parametrize("to", [100_000, 1 << 61])
def test_an_epoch_that_never_was_is_refused_with_those_that_can_be_had(
    ended: Path, to: int
) -> None:
    store = str(ended / "store")
    with pytest.raises(SettingsError, match=r"has not been") as refused:
        CliRunner().invoke(app, ["rollback", store, "--to", str(to)], catch_exceptions=False)
    found = command("status", store)
    assert found["rollbackTo"] is None
    text = str(refused.value)
    assert f"can go back to epoch {found['oldestRollback']} or a later one, up to " in text
    newest = int(text.rsplit(" ", 1)[1])
    assert command("rollback", store, "--to", str(newest), "--dry-run")["done"] == "nothing"


def test_an_epoch_that_never_was_is_refused_though_one_input_has_ended() -> None:
    flow = Flow("ending")
    ends = flow.memory(numbers(0, 0).schema, manualEpochs=True)
    flow.generate(numbers, rate=1_000, rows=1_000_000, name="goes_on").union(ends).memory()
    ends.close()
    query = start_local(flow)
    try:
        deadline = time.monotonic() + WAIT_S
        while max(figures.epoch for figures in query._controller.figures().values()) < 1 << 60:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(SettingsError, match="has not been"):
            query.rollback(to=100_000, dryRun=True)
    finally:
        query.stop()


def test_what_is_no_store_and_what_cannot_be_reached_is_refused(ended: Path) -> None:
    runner = CliRunner()
    with pytest.raises(SettingsError, match="is not the store of a flow"):
        runner.invoke(app, ["status", str(ended / "out")], catch_exceptions=False)
    with pytest.raises(SettingsError, match=r"epoch -1 cannot be reached.*can go back to epoch"):
        runner.invoke(app, ["rollback", str(ended / "store"), "--to", "-1"], catch_exceptions=False)
    (ended / "store" / "flow.json").write_text("{")
    with pytest.raises(SettingsError, match=r"flow\.json is damaged"):
        runner.invoke(app, ["status", str(ended / "store")], catch_exceptions=False)
    (ended / "store" / "flow.json").unlink()
    with pytest.raises(SettingsError, match=r"has no flow\.json"):
        runner.invoke(app, ["status", str(ended / "store")], catch_exceptions=False)


def test_a_description_comes_back_as_it_was_written(ended: Path) -> None:
    found = FlowDescription.read(ended / "store")
    assert found is not None
    assert FlowDescription.from_plain(json.loads(json.dumps(found.to_plain()))) == found
    assert {chain.regime for chain in found.chains} == {"Causal()"}


def test_a_recovery_is_told_as_a_story(tmp_path: Path) -> None:
    query = start(tmp_path, rows=60_000)
    try:
        await_epochs(query, 2)
        killed = query.kill("totals[0]")
        names = await_recovery(query)["lost"]
        query.finish(WAIT_S)
    finally:
        query.stop()
    store = str(tmp_path / "store")
    begin, recovery, *_ = command("explain-recovery", store)["recoveries"]
    assert begin["lines"][0]["step"] == "begin"
    assert recovery["lost"]
    assert recovery["recovered"]
    assert list(recovery["steps_ms"]) == ["fence", "plan", "start", "open", "replay"]
    assert sum(recovery["steps_ms"].values()) == pytest.approx(recovery["took_ms"])
    lost = recovery["lines"][0]
    assert lost["text"].startswith(f"host {killed['host']} was lost (")
    assert all(name in lost["text"] for name in names)
    assert all(line["cause"] == lost["cause"] for line in recovery["lines"])
    texts = [line["text"] for line in recovery["lines"]]
    assert any(names[0] in text and "why: host lost" in text for text in texts)
    [newest] = command("explain-recovery", store, "--last", "1")["recoveries"]
    assert newest["rounds"][-1] >= recovery["rounds"][-1]
    printed = CliRunner().invoke(app, ["explain-recovery", store], catch_exceptions=False)
    assert lost["text"] in printed.output


def test_a_store_without_a_story_says_so(ended: Path) -> None:
    story = ended / "store" / "story.log"
    assert len(read_story(ended / "store")) > 3
    story.unlink()
    with pytest.raises(SettingsError, match="no story"):
        command("explain-recovery", str(ended / "store"))
    with pytest.raises(SettingsError, match="not the store of a flow"):
        command("explain-recovery", str(ended))
