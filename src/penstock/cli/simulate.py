"""``penstock simulate``: recovery under random graphs, schedules and faults, from a seed.

Causal recovery with all regimes and guarantees; ``--replicas``: rings that share records.

Exit status: 0 if no invariant was broken (with ``--mutants``: if every mutant was caught), else 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NamedTuple

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
    replicas: Annotated[
        bool,
        typer.Option("--replicas", help="Rings, take-over, reinstatement and records of tuples."),
    ] = False,
    processes: Annotated[int, typer.Option(min=1, help="How many processes.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate failures: the real machines of nodes and controller over a simulated world."""
    simulator = _replicas() if replicas else _causal()
    if trace:
        outcome = simulator.trace(seed)
        print("\n".join(outcome.trace))
        sys.exit(0 if outcome.violation is None else 1)
    if mutants:
        started = time.perf_counter()
        caught = simulator.mutants(seed)
        result: dict[str, Any] = {
            "mutants": {name: by is not None for name, by in caught.items()},
            "caught_by_seed": caught,
            "seconds": round(time.perf_counter() - started, 3),
        }
        failed = None in caught.values()
    else:
        result = simulator.run(seed, runs, min(processes, 1 + runs // 200))
        failed = result["violations"] > 0
    if as_json:
        print_json(result)
    else:
        print_table("simulate", result)
    sys.exit(1 if failed else 0)


class _Simulator(NamedTuple):
    trace: Callable[[int], Any]
    mutants: Callable[[int], dict[str, int | None]]
    run: Callable[[int, int, int], dict[str, Any]]


def _causal() -> _Simulator:
    from penstock.testing.simulator.run import catch_mutants, run_many, run_seed

    return _Simulator(partial(run_seed, trace=True), catch_mutants, run_many)


def _replicas() -> _Simulator:
    from penstock.testing.simulator_delivery.run import (
        catch_delivery_mutants,
        run,
        simulate_delivery,
    )

    return _Simulator(partial(run, trace=True), catch_delivery_mutants, simulate_delivery)
