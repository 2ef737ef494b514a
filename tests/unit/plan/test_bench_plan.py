"""The planner's benchmark: its random topologies, its points and its figures."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from penstock.bench import plan as bench
from penstock.bench import plan_figures
from penstock.bench.topologies import random_chain, random_dag, random_tree
from penstock.cli.bench_plan import bench_plan


def test_random_topologies_have_the_shape_asked_for() -> None:
    rng = random.Random(1)
    assert random_chain(rng, 15).shape == "chain"
    tree = random_tree(rng, 40)
    assert tree.shape == "tree"
    assert max(len(below) for below in tree.children) <= 3
    dag = random_dag(rng, 40)
    assert dag.shape == "dag"
    assert len(dag.sources) == 1


def test_the_same_seed_gives_the_same_topology() -> None:
    assert random_chain(random.Random(5), 9) == random_chain(random.Random(5), 9)


@pytest.mark.parametrize("setting", [bench.CHAIN, bench.TREE], ids=["chain", "tree"])
def test_methods_are_ordered_as_they_must_be(setting: bench.Setting) -> None:
    point = bench._measure(replace(setting, n=8), 4, seed=1)
    mean = {name: found.get("mean") for name, found in point["methods"].items()}
    assert mean["relaxed"] <= mean["exact"] <= mean["dp_closed_form"] <= mean["dp"]
    assert mean["exact"] < mean["1segment"]
    assert point["failure_latency"] <= point["failure_work"]
    assert point["saving"]["exact_over_1segment_percent"] > 0


@pytest.fixture
def few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sweep with two small points, and no long run times."""
    sweeps = bench._sweeps

    def small() -> dict[str, list[tuple[float, bench.Setting]]]:
        return {
            name: [(value, replace(setting, n=4, steps=10)) for value, setting in points[:2]]
            for name, points in sweeps().items()
        }

    def times(count: int, seed: int) -> dict[str, list[dict[str, float]]]:
        point = {"value": 1.0, "dp_ms": 1.0, "exact_ms": 0.1}
        return {f"{shape}_{key}": [point] for shape in ("chain", "tree") for key in ("n", "steps")}

    monkeypatch.setattr(bench, "_sweeps", small)
    monkeypatch.setattr(bench, "_run_times", times)
    monkeypatch.setattr(
        bench,
        "_headline",
        lambda count, seed: {"speedup_over_dp": 1.0, "tree_200_s": 1.0, "dag_100_s": 1.0},
    )


@pytest.mark.usefixtures("few_points")
def test_json_is_one_object_and_figures_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    app = typer.Typer()
    app.command()(bench_plan)
    result = CliRunner().invoke(
        app, ["--json", "--topologies", "3", "--figures", str(tmp_path / "figures")]
    )
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["topologies_per_point"] == 3
    assert {"speedup_over_dp", "tree_200_s", "dag_100_s", "sweeps", "run_time_ms"} <= set(found)
    written = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert written == sorted(found["figures"])
    for number in range(1, 15):
        assert f"plan_fig_4_{number:02d}.png" in written


def test_every_sweep_has_a_label() -> None:
    for sweep in bench._sweeps():
        assert plan_figures._axis(sweep) != sweep
