"""Every example runs as it is and finds its results right."""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import Flow
from penstock.cli.run import load_flow
from penstock.engine.spark import session
from penstock.planning.physical import physical_plan

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SHORTER = {"adserving": ["7", "1"]}
"""Examples that run for a while by themselves, and what to give them here."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.timeout(180)
@pytest.mark.spark
def test_example_runs_and_checks_itself(
    example: Path,
    roomy: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the session that is there: one of its own would take longer than the example."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example), *SHORTER.get(example.stem, [])])
    for module, name in ((penstock, "localSession"), (session, "local_session")):
        monkeypatch.setattr(module, name, partial(_with_settings, roomy))
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)
    runpy.run_path(str(example), run_name="__main__")
    assert "right" in capsys.readouterr().out


def _with_settings(
    spark: SparkSession, *_: object, conf: Mapping[str, str] | None = None, **__: object
) -> SparkSession:
    for name, value in (conf or {}).items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)
    return spark


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_has_a_flow_for_penstock_run(example: Path) -> None:
    names = [n.name for n in ast.parse(example.read_text()).body if isinstance(n, ast.FunctionDef)]
    assert "flow" in names
    made = load_flow(f"{example}:flow")
    assert isinstance(made, Flow)
    assert physical_plan(made, 2).sinks
