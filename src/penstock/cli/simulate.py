"""``penstock simulate``: recovery under random graphs, schedules and faults, from a seed.

Nodes that recover causally, with all regimes and guarantees, and rings of replicas that share
records: the seed picks.  ``--replicas``: only those.  A name such as ``layers:mixed:1371`` fixes
every switch.  With ``--minutes`` the seeds are drawn anew each time.

``--mutants`` breaks the protocols on purpose; ``--coverage`` says which statements of ``core/`` the
runs reach, and which never.

Exit status: 0 if no invariant was broken (with ``--mutants``: if every mutant was caught), else 1.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.cli.output import print_json, print_table
from penstock.errors import SettingsError
from penstock.terminal import stderr
from penstock.testing.shards import CORES, SHARD, for_seconds, in_shards

if TYPE_CHECKING:
    from penstock.testing.simulator.cases import Case
    from penstock.testing.simulator.run import Shard

__all__ = ["simulate"]

SEEDS_END = 10**12
"""Seeds that are drawn are less than this."""


def simulate(
    seed: Annotated[
        str, typer.Option(help="The first seed, or the name of a run (layers:mixed:1371).")
    ] = "1",
    runs: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 1000,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help="Instead: fresh random seeds, for this many minutes."),
    ] = None,
    mutants: Annotated[
        bool,
        typer.Option("--mutants", help="Break the protocols on purpose: is each mutant caught?"),
    ] = False,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Which statements of core/ do the runs reach?")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print what happens in one run, line by line.")
    ] = False,
    replicas: Annotated[
        bool,
        typer.Option("--replicas", help="Only flows of replicas: rings, take-over, records."),
    ] = False,
    processes: Annotated[
        int,
        typer.Option(min=1, help="How many processes.", show_default="the number of cores"),
    ] = CORES,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate failures: the real machines of nodes and controller over a simulated world."""
    from penstock.testing.simulator.cases import Case
    from penstock.testing.simulator.run import run_seed

    named = not seed.isdecimal()
    first = _case(seed)
    draw = first.at if named else Case.of_replicas if replicas else Case.drawn
    if trace:
        outcome = run_seed(draw(first.seed), trace=True)
        print("\n".join(outcome.trace))
        sys.exit(0 if outcome.violation is None else 1)
    if mutants:
        from penstock.testing.mutants.catch import catch_all

        result = catch_all(processes)
        failed = result["caught"] < result["count"]
    elif coverage:
        from penstock.testing.core_coverage import measure

        result = measure(first.seed, runs, processes)
        failed = False
    else:
        result = _run(draw, first.seed, runs, minutes, processes)
        failed = result["violations"] > 0
    if as_json:
        print_json(result)
    else:
        print_table("simulate", result)
    sys.exit(1 if failed else 0)


def _case(seed: str) -> Case:
    from penstock.testing.simulator.cases import case_of

    try:
        return case_of(seed)
    except SettingsError as error:
        raise typer.BadParameter(error.message, param_hint="--seed") from error


def _run(
    draw: Callable[[int], Case], seed: int, runs: int, minutes: float | None, processes: int
) -> dict[str, Any]:
    from penstock.testing.simulator.run import run_shard, summed

    function = partial(run_shard, draw=draw)
    if minutes is None:
        processes = min(processes, -(-runs // SHARD))
        shards = in_shards(function, seed, runs, processes)
        return {"first_seed": seed, **summed(_watched(shards, runs=runs))}
    first = [secrets.randbelow(SEEDS_END) for _ in range(processes)]
    begin = ", ".join(map(str, first))
    stderr.print(f"penstock simulate: seeds from {begin} on", highlight=False, soft_wrap=True)
    shards = for_seconds(function, first, 60 * minutes)
    return {"first_seeds": first, **summed(_watched(shards, seconds=60 * minutes))}


def _watched(shards: Iterable[Shard], runs: int = 0, seconds: float = 0) -> Iterator[Shard]:
    """Show how far it is, and each violation when it is found."""
    bar = Progress(
        BarColumn(),
        TextColumn("{task.fields[done]:,} runs, {task.fields[found]} violations"),
        TimeElapsedColumn(),
        console=stderr,
        transient=True,
    )
    started = time.monotonic()
    done = found = 0
    with bar:
        task = bar.add_task("", total=runs or seconds, done=0, found=0)
        for shard in shards:
            done += shard.runs
            found += len(shard.failed)
            for failure in shard.failed:
                bar.console.print(
                    f"seed {failure['seed']}: {failure['violation']}\n"
                    f"    penstock simulate --seed {failure['seed']} --trace",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )
            completed = done if runs else time.monotonic() - started
            bar.update(task, completed=completed, done=done, found=found)
            yield shard
