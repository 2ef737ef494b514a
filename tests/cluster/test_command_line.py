"""The commands that run flows, in processes of their own, as a user types them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from penstock.testing.cluster import StandaloneCluster

WAIT_S = 150
EXAMPLE = """
import numpy as np
import pyarrow as pa
from penstock import Flow

def numbers(offset, n):
    return pa.record_batch({"n": np.arange(offset, offset + n)})

def doubled(batch):
    return pa.array(twice(batch["n"].to_numpy()))

def twice(values):  # a function of the module's own must reach the hosts too
    return values * 2

def flow():
    made = Flow("example")
    rows = made.generate(numbers, rows=1_000, rate=100_000)
    rows.withColumn("twice", doubled, pa.int64()).parquet("out")
    return made
"""


def penstock(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from penstock.cli import main; main()", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


def one_object(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON object on standard output."""
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    return json.loads(line)


def test_a_flow_of_the_users_runs_on_a_cluster_with_options_from_the_command_line(
    cluster: StandaloneCluster, session_slot: Any, tmp_path: Path
) -> None:
    session_slot.clear()  # it holds all the cluster's cores
    (tmp_path / "example.py").write_text(EXAMPLE)
    settings = [
        "hosts=2",
        "epochInterval=50 ms",
        f"checkpointLocation={tmp_path / 'checkpoint'}",
        "spark.executor.memory=512m",
    ]
    arguments = ["--master", cluster.url, "--json"]
    for setting in settings:
        arguments += ["--set", setting]
    done = penstock("run", "example.py:flow", *arguments, folder=tmp_path)
    progress = one_object(done)
    assert progress["name"] == "example"
    assert progress["numInputRows"] == 1_000
    assert (tmp_path / "checkpoint" / "metadata.json").exists()
    rows = pq.read_table(tmp_path / "out").sort_by("n")
    assert rows["n"].to_pylist() == list(range(1_000))
    assert rows["twice"].to_pylist() == [2 * n for n in range(1_000)]


def test_a_flow_that_cannot_be_loaded_ends_with_status_two_and_one_line(tmp_path: Path) -> None:
    for target, word in (("nowhere.py:flow", "nowhere.py"), ("no_module:flow", "no_module")):
        done = penstock("run", target, "--json", folder=tmp_path)
        assert done.returncode == 2
        assert done.stdout == ""
        assert word in done.stderr
        assert "Traceback" not in done.stderr
