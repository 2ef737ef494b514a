"""``penstock simulate``: causal recovery under random graphs, schedules and faults, from a seed.

Exit status: 0 if no invariant was broken (with ``--mutants``: if every mutant was caught), else 1.
"""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from penstock.cli.output import print_json, print_table

__all__ = ["simulate"]


def simulate(
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 1,
    runs: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 1000,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Break the protocol on purpose: is it noticed?")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print what happens in one run, line by line.")
    ] = False,
    processes: Annotated[int, typer.Option(min=1, help="How many processes.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate failures: the real machines of nodes and controller over a simulated world."""
    from penstock.testing.simulator.run import catch_mutants, run_many, run_seed

    if trace:
        outcome = run_seed(seed, trace=True)
        print("\n".join(outcome.trace))
        sys.exit(0 if outcome.violation is None else 1)
    if mutants:
        started = time.perf_counter()
        caught = catch_mutants(seed)
        result: dict[str, Any] = {
            "mutants": {name: by is not None for name, by in caught.items()},
            "caught_by_seed": caught,
            "seconds": round(time.perf_counter() - started, 3),
        }
        failed = None in caught.values()
    else:
        result = run_many(seed, runs, min(processes, 1 + runs // 200))
        failed = result["violations"] > 0
    if as_json:
        print_json(result)
    else:
        print_table("simulate", result)
    sys.exit(1 if failed else 0)
