"""Drills on running flows, from the outside: commands, scripts, what is refused."""

import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from penstock import Flow
from penstock.cli.app import app
from penstock.cli.drill import DrillSession
from penstock.connectors.memory import MemorySink
from penstock.engine.driver.command_channel import find_driver
from penstock.errors import SettingsError, TransientError
from penstock.testing.local import LocalQuery, start_local
from penstock.testing.processes import wait_until

SCHEMA = pa.schema({"n": pa.int64()})


def make(offset: int, n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(range(offset, offset + n))}, schema=SCHEMA)


class Running:
    """A flow of numbers with a keyed stage in two nodes."""

    def __init__(self, store: Path) -> None:
        flow = Flow("numbers")
        made = flow.generate(make, rate=5_000, name="made", shards=1)
        keyed = made.keyBy("n", shards=2).name("keyed")
        self.kept: MemorySink = keyed.memory(name="kept")
        self.store = str(store)
        self.query: LocalQuery = start_local(
            flow, hosts=3, epochInterval="10 ms", checkpointLocation=self.store
        )

    @property
    def drill(self) -> DrillSession:
        return DrillSession(find_driver(self.store), quiet=True)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path / "store")
    yield made
    made.query.stop()
    assert made.query.awaitTermination(30)
    got = sorted(row["n"] for row in made.kept.toPylist())
    assert got == list(range(len(got)))  # whatever was done to it


def test_a_crash_is_recovered_from_and_told(running: Running) -> None:
    drill = running.drill
    [killed] = drill.run("crash keyed[1]")
    assert "keyed[1]" in killed["nodes"]
    told = drill.run("wait recovered 30 seconds")
    assert "keyed[1]" in told["restarted"]
    assert len(drill.run("recoveries")) == 1
    assert drill.run("status")["message"] == "running"


def test_all_nodes_of_a_stage_are_crashed(running: Running) -> None:
    drill = running.drill
    killed = drill.run("crash keyed")
    assert {name for one in killed for name in one["nodes"]} == {"keyed[0]", "keyed[1]"}
    drill.run("wait recovered")


def test_a_slow_stage_holds_the_flow_up_until_it_is_quick_again(running: Running) -> None:
    drill = running.drill

    def epochs_in(seconds: float) -> int:
        before = max(running.kept.epochs(), default=-1)
        time.sleep(seconds)
        return max(running.kept.epochs(), default=-1) - before

    wait_until(running.kept.epochs, 20, "the first epoch")
    drill.run("slow keyed 100 ms")
    assert drill.run("status")["slow"] == {"keyed[0]": 100.0, "keyed[1]": 100.0}
    # Of thirty, once what was under way has come.
    wait_until(lambda: epochs_in(0.3) <= 12, 60, "slow epochs")
    # A node that restarts elsewhere is as slow as before.
    drill.run("crash keyed[0]")
    drill.run("wait recovered")
    wait_until(lambda: epochs_in(0.3) <= 12, 60, "slow epochs again")
    drill.run("slow keyed off")
    assert drill.run("status")["slow"] == {}
    reached = max(running.kept.epochs(), default=-1)
    wait_until(lambda: max(running.kept.epochs(), default=-1) > reached + 50, 60, "quick epochs")


def test_severed_connections_are_made_again(running: Running) -> None:
    assert running.drill.run("sever keyed[0]")[0]["host"] > 0
    before = max(running.kept.epochs(), default=-1)
    wait_until(lambda: max(running.kept.epochs(), default=-1) > before + 5, 20, "more epochs")


REFUSED = [
    ("crush keyed", "no command 'crush'; did you mean 'crash'?"),
    ("crash", "write it as: crash NODE"),
    ("crash kyed[1]", "no node, stage or host 'kyed[1]'; did you mean 'keyed[1]'?"),
    ("crash kept", "runs in the driver's own process"),
    ("crash host:99", "no node, stage or host 'host:99'"),
    ("freeze keyed[0]", "is a thread of the driver's"),
    ("freeze keyed[0] -1", "seconds are a number"),
    ("unfreeze keyed[0]", "is not frozen"),
    ("slow keyed soon", "soon"),
    ("slow keyed", "write it as: slow"),
    ("sever kept", "runs in a host"),
    ("wait for", "for"),
    ("wait 1e9", "to a day"),
    ("crash 'keyed", "No closing quotation"),
]


def test_what_cannot_be_done_is_refused(running: Running) -> None:
    drill = running.drill
    for line, said in REFUSED:
        with pytest.raises(SettingsError) as raised:
            drill.run(line)
        assert said in raised.value.message


def test_a_recovery_that_does_not_come_is_not_waited_for_for_ever(running: Running) -> None:
    drill = running.drill
    drill._before = 5
    with pytest.raises(TransientError, match=r"not recovered within 0\.05 s"):
        drill.run("wait recovered 50 ms")


def test_a_script_runs_line_by_line_and_says_where_it_failed(running: Running) -> None:
    drill = running.drill
    lines = ["# begin", "", "status", "wait 0.01  # a little", "crash nobody", "stop"]
    with pytest.raises(SettingsError, match=r"^plan:5: crash: there is no node"):
        drill.script(lines, "plan")
    assert [one["command"] for one in drill.done] == ["status", "wait 0.01"]
    assert running.query.isActive


def test_lines_from_a_pipe_end_with_quit(running: Running) -> None:
    drill = running.drill
    drill.typed(io.StringIO("status\nquit\nstop\n"))
    assert [one["command"] for one in drill.done] == ["status"]


def called(*words: str, input: str | None = None) -> Any:
    return CliRunner().invoke(app, ["drill", *words], input=input)


def test_the_command_by_store_with_a_script_and_as_json(running: Running, tmp_path: Path) -> None:
    script = tmp_path / "drill.txt"
    script.write_text("nodes\ncrash keyed[0]\nwait recovered\n")
    result = called(running.store, "--script", str(script), "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["pid"] == os.getpid()
    assert [one["command"] for one in told["commands"]] == [
        "nodes",
        "crash 'keyed[0]'",
        "wait recovered",
    ]
    shown = called(running.store, "status")
    assert "numbers: running" in shown.stdout
    assert "died; restarted" in called(running.store, input="recoveries\nhelp\nnodes\n").stdout
    both = called(running.store, "status", "--script", str(script))
    assert isinstance(both.exception, SettingsError)
    gone = called(running.store, "--script", str(tmp_path / "none"))
    assert "cannot read" in str(gone.exception)
