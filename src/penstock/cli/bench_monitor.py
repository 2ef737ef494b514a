"""``penstock bench monitor``: how long the span monitor takes to choose a rollback."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.bench.monitor import SIZES, bench_monitor
from penstock.cli.output import print_json, print_table
from penstock.errors import SettingsError

__all__ = ["bench_monitor_command"]


def bench_monitor_command(
    edges: Annotated[
        str, typer.Option(help="Sizes of the graphs in edges, separated by commas.")
    ] = ",".join(map(str, SIZES)),
    runs: Annotated[int, typer.Option(min=1, help="Runs per size; the best counts.")] = 5,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """The ad-serving graph scaled up: seconds from a failure to the rollback span of every node."""
    try:
        sizes = [int(part) for part in edges.split(",")]
    except ValueError as error:
        raise SettingsError(f"--edges {edges!r}: write it as 1000,10000") from error
    result = bench_monitor(sizes, runs)
    if json:
        print_json(result)
    else:
        print_table("Span monitor", result)
