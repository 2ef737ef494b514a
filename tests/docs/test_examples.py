"""Every example runs as it is and finds its results right."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Flow
from penstock.cli.run import load_flow
from penstock.physical import physical_plan

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.timeout(180)
@pytest.mark.spark
def test_example_runs_and_checks_itself(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "right" in done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_has_a_flow_for_penstock_run(example: Path) -> None:
    names = [n.name for n in ast.parse(example.read_text()).body if isinstance(n, ast.FunctionDef)]
    assert "flow" in names
    made = load_flow(f"{example}:flow")
    assert isinstance(made, Flow)
    assert physical_plan(made, 2).sinks
