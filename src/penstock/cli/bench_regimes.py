"""``penstock bench regimes`` and ``penstock bench selective``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.output import print_json, print_rows, print_table, set_up_logging

__all__ = ["regimes", "selective"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Say more on standard error.")]
Rounds = Annotated[int, typer.Option(min=1, help="Runs of each kind, in turn.")]


def regimes(
    events: Annotated[
        int, typer.Option(min=1_000_000, help="Events of a run at full speed.")
    ] = 100_000_000,
    rate: Annotated[float, typer.Option(min=1000, help="Events/s of a run with a kill.")] = 200_000,
    seconds: Annotated[float, typer.Option(min=6, help="How long a run with a kill lasts.")] = 12,
    rounds: Rounds = 3,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """One flow under each regime: throughput, response, recovery, what is stored, who goes back."""
    from penstock.bench.regimes import bench_regimes

    set_up_logging(verbose)
    result = bench_regimes(events, rate, seconds, rounds)
    if json:
        print_json(result)
    else:
        print_rows("Regimes", result["rows"])


def selective(
    rate: Annotated[float, typer.Option(min=1000, help="Events per second.")] = 200_000,
    seconds: Annotated[float, typer.Option(min=6, help="How long a run lasts.")] = 20,
    rounds: Rounds = 2,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Events 400 ms late every 5 s: response times with and without selective rollback."""
    from penstock.bench.selective import bench_selective

    set_up_logging(verbose)
    result = bench_selective(rate, seconds, rounds)
    if json:
        print_json(result)
    else:
        print_table("Selective rollback", result)
