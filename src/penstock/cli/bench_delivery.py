"""``penstock bench delivery``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.output import print_json, print_rows, set_up_logging

__all__ = ["bench_delivery_command"]


def bench_delivery_command(
    tuples: Annotated[int, typer.Option(min=100_000, help="Tuples of a run.")] = 6_000_000,
    rounds: Annotated[
        int, typer.Option(min=1, help="Runs of what is compared, in turn, with four replicas.")
    ] = 3,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say more on standard error.")] = False,
) -> None:
    """Two operators under every guarantee, by records, mirrors and waiting: messages, bytes, time.

    Figures are per 100,000 tuples; ratio_replicated is exactly once by records against at most
    once, with four replicas.
    """
    from penstock.bench.delivery import bench_delivery

    set_up_logging(verbose)
    result = bench_delivery(tuples, rounds)
    if json:
        print_json(result)
    else:
        print_rows("Delivery, per 100,000 tuples", result["rows"])
        print(f"exactly once by records / at most once: {result['ratio_replicated']}")
