"""``penstock plan``: what it prints and how it exits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.plan import plan

SAMPLE = Path(__file__).parents[3] / "examples" / "topology.json"

app = typer.Typer()
app.command()(plan)


def run(*arguments: str, text: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments), input=text)
    return result.exit_code, result.stdout, result.stderr


def run_json(*arguments: str) -> dict[str, Any]:
    status, out, _ = run(str(SAMPLE), "--max-overhead", "0.1", "--json", *arguments)
    assert status == 0
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_json_has_the_plan() -> None:
    found = run_json()
    assert found["feasible"] is True
    assert found["method"] == "exact"
    assert found["anchors"] == ["parse", "model", "alerts"]
    assert set(found["frequency"]) == {"parse", "enrich", "sessions", "fraud", "model", "alerts"}
    assert found["overhead"] <= 0.1
    assert found["bound"] == found["recovery_time"]
    assert found["baselines"]["1segment"]["saving_percent"] > 0


def test_no_method_beats_exact_but_the_relaxed_one() -> None:
    exact = run_json()["recovery_time"]
    for method in ("nsegments", "1segment"):
        found = run_json("--method", method)
        assert found["method"] == method
        assert found["recovery_time"] >= exact >= found["bound"]
    assert run_json("--method", "relaxed")["recovery_time"] <= exact


def test_dp_gets_closer_with_more_steps(tmp_path: Path) -> None:
    data = json.loads(SAMPLE.read_text(encoding="utf-8"))
    data["operators"] = data["operators"][:3]
    file = tmp_path / "chain.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    times = []
    for steps in ("5", "10", "40"):
        status, out, _ = run(
            str(file), "--max-overhead", "0.1", "--method", "dp", "--steps", steps, "--json"
        )
        assert status == 0
        times.append(json.loads(out)["recovery_time"])
    assert times == sorted(times, reverse=True)
    assert times[-1] >= json.loads(out)["bound"]


def test_table_names_segments_and_savings() -> None:
    status, out, _ = run(str(SAMPLE), "--max-overhead", "0.1")
    assert status == 0
    assert "exact plan, 3 segments" in out
    assert "nsegments" in out
    assert "saves" in out


def test_a_budget_too_small_exits_3() -> None:
    status, out, _ = run(str(SAMPLE), "--max-overhead", "0.02", "--json")
    assert status == 3
    found = json.loads(out)
    assert found["feasible"] is False
    assert found["min_overhead"] == pytest.approx(0.03)
    status, out, _ = run(str(SAMPLE), "--max-overhead", "0.02")
    assert status == 3
    assert "needs more than 0.03" in out


def test_what_is_wrong_is_named_and_exits_2(tmp_path: Path) -> None:
    def change(edit: Any) -> tuple[int, str, str]:
        data = json.loads(SAMPLE.read_text(encoding="utf-8"))
        edit(data)
        file = tmp_path / "topology.json"
        file.write_text(json.dumps(data), encoding="utf-8")
        return run(str(file), "--max-overhead", "0.1", "--json")

    def cycle(data: Any) -> None:
        data["operators"][0]["inputs"] = ["alerts"]

    def unknown(data: Any) -> None:
        data["operators"][1]["inputs"] = ["prase"]

    def negative(data: Any) -> None:
        data["operators"][2]["cost"] = -1

    def missing(data: Any) -> None:
        del data["storage_cost"]

    for edit, word in (
        (cycle, "cycle"),
        (unknown, "prase"),
        (negative, "cost of operator 'sessions'"),
        (missing, "storage_cost"),
    ):
        status, out, err = change(edit)
        assert (status, out) == (2, "")
        assert word in err


def test_files_that_cannot_be_read_exit_2(tmp_path: Path) -> None:
    assert run(str(tmp_path / "none.json"), "--max-overhead", "0.1")[0] == 2
    broken = tmp_path / "broken.json"
    broken.write_text("{", encoding="utf-8")
    status, _, err = run(str(broken), "--max-overhead", "0.1")
    assert status == 2
    assert "not JSON" in err
    assert run(str(SAMPLE), "--max-overhead", "-1")[0] == 2
    assert run(str(SAMPLE), "--max-overhead", "0.1", "--method", "guess")[0] == 2


def test_standard_input_is_read() -> None:
    status, out, _ = run(
        "-", "--max-overhead", "0.1", "--json", text=SAMPLE.read_text(encoding="utf-8")
    )
    assert status == 0
    assert json.loads(out)["shape"] == "dag"


def test_plot_writes_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plan.png"
    status, _, _ = run(str(SAMPLE), "--max-overhead", "0.1", "--plot", str(picture))
    assert status == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
