"""``penstock bench plan``: the planner's methods over random topologies, with figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.bench.plan import run
from penstock.bench.plan_figures import draw_all
from penstock.errors import UsageError

__all__ = ["bench_plan"]

_HEADLINE = (
    "speedup_over_dp",
    "speedup_over_dp_arrays",
    "dp_ms",
    "exact_ms",
    "dp_excess_over_exact_percent",
    "tree_200_s",
    "tree_200_gap_percent",
    "dag_100_s",
    "dag_100_gap_percent",
)


def bench_plan(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quick: Annotated[bool, typer.Option(help="Few topologies per point, no figures.")] = False,
    topologies: Annotated[int, typer.Option(min=2, help="Random topologies per point.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the random topologies.")] = 2016,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for PNG figures; none with --quick by default.")
    ] = None,
) -> None:
    """Compare all planning methods on random topologies, as the FastRecover paper does."""
    results = run(4 if quick else topologies, seed, lambda line: print(line, file=sys.stderr))
    if figures is None and not quick:
        figures = Path("docs/figures")
    results["figures"] = []
    if figures is not None:
        try:
            results["figures"] = draw_all(results, figures)
        except UsageError as error:
            print(f"penstock bench plan: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps(results, allow_nan=False))
    else:
        _show(results)


def _show(results: dict[str, Any]) -> None:
    console = Console()
    for key in _HEADLINE:
        console.print(f"{key:<30} {results[key]:.4g}")
    table = Table(title="mean expected recovery time")
    for title in (
        "sweep",
        "value",
        "dp",
        "exact",
        "relaxed",
        "nsegments",
        "1segment",
        "infeasible",
    ):
        table.add_column(title, justify="left" if title == "sweep" else "right")
    for name, points in results["sweeps"].items():
        for point in points:
            methods = point["methods"]
            means = [
                f"{methods[m]['mean']:.4g}" if "mean" in methods[m] else "-"
                for m in ("dp", "exact", "relaxed", "nsegments_grid", "1segment")
            ]
            share = f"{methods['nsegments_grid']['infeasible_percent']:.0f} %"
            table.add_row(name, f"{point['value']:g}", *means, share)
    console.print(table)
