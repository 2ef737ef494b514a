"""``penstock bench plan-live``: a running flow is planned, and killed under three plans."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.output import print_json, print_table, set_up_logging

__all__ = ["bench_plan_live_command"]


def bench_plan_live_command(
    kills: Annotated[int, typer.Option(min=1, help="Kills under each plan.")] = 20,
    budget: Annotated[
        float, typer.Option(min=0.001, max=0.9, help="Share of time for checkpoints and logs.")
    ] = 0.05,
    rate: Annotated[float, typer.Option(min=10, help="Rows per second.")] = 1000,
    seconds: Annotated[float, typer.Option(min=2, help="How long each measurement takes.")] = 15,
    seed: Annotated[int, typer.Option(help="When exactly stages are killed.")] = 1,
    throughput: Annotated[
        bool, typer.Option(help="Also run at full speed, with the plan and without recovery.")
    ] = True,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say more on standard error.")] = False,
) -> None:
    """Plan a running flow within a budget, and kill its stages: the plan against two baselines."""
    from penstock.bench.plan_live import PlanLive, bench_plan_live

    set_up_logging(verbose)
    result = bench_plan_live(PlanLive(kills, budget, rate, seconds, seed, throughput))
    if json:
        print_json(result)
    else:
        print_table("The planner on a running flow", result)
