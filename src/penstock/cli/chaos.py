"""``penstock chaos``.

Exit status: 0 if the published tables are right and no node restarted needlessly, else 1.  With
``--random``: 0 if every run was right.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import print_json, print_table, set_up_logging
from penstock.errors import SettingsError
from penstock.terminal import stderr

if TYPE_CHECKING:
    from penstock.bench.random_flows.run import RandomRuns, Run

__all__ = ["chaos"]


def chaos(
    kills: Annotated[int, typer.Option(min=1, help="How many processes are killed.")] = 20,
    seconds: Annotated[
        float | None,
        typer.Option(min=10, help="How long events are made; by default as long as kills take."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Chooses the victims; with --random the first flow.")
    ] = 1,
    rate: Annotated[float, typer.Option(min=1000, help="Events per second.")] = 4_000,
    standby: Annotated[int, typer.Option(min=0, help="Hosts that are kept ready.")] = 1,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Kill executor JVMs of a standalone cluster instead.")
    ] = False,
    connections: Annotated[
        bool, typer.Option("--connections", help="Cut live connections instead of killing.")
    ] = False,
    driver: Annotated[
        bool,
        typer.Option(
            "--driver", help="Kill the driver instead, and start it again with the same command."
        ),
    ] = False,
    freeze: Annotated[
        int, typer.Option(min=0, help="Number of processes to freeze for a while instead.")
    ] = 0,
    frozen: Annotated[
        float, typer.Option(min=1, help="With --freeze: seconds that each is frozen.")
    ] = 10.0,
    takeover: Annotated[
        bool,
        typer.Option(
            "--takeover",
            help="Kill replicas of a stage whose states a host that stands by follows.",
        ),
    ] = False,
    state_mb: Annotated[
        float, typer.Option(min=1, help="With --takeover: all states together.")
    ] = 100.0,
    random: Annotated[
        bool,
        typer.Option("--random", help="Run flows drawn at random instead, with faults drawn too."),
    ] = False,
    runs: Annotated[int, typer.Option(min=1, help="With --random: how many flows.")] = 50,
    threads: Annotated[
        bool,
        typer.Option(
            "--threads", help="With --random: without Spark, hosts as threads; much faster."
        ),
    ] = False,
    parallel: Annotated[
        int, typer.Option(min=1, help="With --random: how many flows run at once.")
    ] = 1,
    limit: Annotated[
        float, typer.Option(min=10, help="With --random: seconds after which a flow has hung.")
    ] = 90.0,
    keep: Annotated[
        Path | None,
        typer.Option(help="With --random: where the files of runs that went wrong are kept."),
    ] = None,
    shrink: Annotated[
        bool,
        typer.Option("--shrink", help="With --random: make flows that go wrong smaller; slow."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say more.")] = False,
) -> None:
    """Kill processes of a running flow with kill -9 and check that nothing is lost or doubled.

    The flow has sources, a sharder, a windowed count, a join, an order-sensitive stage, a loop and
    Parquet sinks; nodes of each kind are killed in turn, under load. With --driver it runs in a
    process of its own, which is killed at random moments; resume_s is from the moment Spark is up
    again until the first new epoch is published. With --freeze processes are stopped for a while
    (SIGSTOP, SIGCONT); moved_ms is from the signal until their nodes are open on other hosts. With
    --takeover a flow with one keyed stage of three replicas runs instead; takeover_ms is from the
    kill until the keys are served again. With --random every run is another flow with other faults
    (hosts, the driver, stops); its sinks are compared with a model, and each run that is wrong,
    cannot be recovered or hangs is reported with the command that repeats it.
    """
    from penstock.bench.chaos import Chaos
    from penstock.bench.chaos import chaos as run
    from penstock.bench.chaos_driver import kill_drivers
    from penstock.bench.random_flows.run import RandomRuns
    from penstock.bench.takeover import TakeoverSettings
    from penstock.bench.takeover import takeover as run_takeover

    if cluster + connections + driver + bool(freeze) + takeover + random > 1:
        raise SettingsError(
            "chaos: give one of --cluster, --connections, --driver, --freeze, --random and "
            "--takeover"
        )
    set_up_logging(verbose)
    if random:
        _random(RandomRuns(runs, seed, threads, parallel, limit, keep, shrink), json)
        return
    if driver:
        result = kill_drivers(kills, rate, seed)
    elif takeover:
        result = run_takeover(TakeoverSettings(kills, state_mb, seed, rate))
    else:
        result = run(
            Chaos(
                kills,
                seconds,
                seed,
                rate,
                cluster,
                connections,
                standby=standby,
                freezes=freeze,
                frozen_s=frozen,
            )
        )
    if json:
        print_json(result)
    else:
        shown = {name: value for name, value in result.items() if name != "each"}
        print_table("Chaos", shown)
    others = result.get("other_restarted") or result.get("restarted")
    wanted = result["equal"] and not others
    if not wanted:
        stderr.print("[red]The tables are wrong, or too many nodes were restarted.[/red]")
        sys.exit(1)


def _random(settings: RandomRuns, json: bool) -> None:
    """Run drawn flows under a progress bar, and report."""
    from rich.progress import Progress

    from penstock.bench.random_flows.run import RIGHT, run_random

    with Progress(console=stderr, transient=True) as progress:
        task = progress.add_task("Random flows", total=settings.runs)

        def on_run(run: Run) -> None:
            progress.advance(task)
            if run.outcome != RIGHT:
                progress.console.print(f"{run.outcome}: {settings.command(run.drawn.seed)}")

        result = run_random(settings, on_run)
    if json:
        print_json(result)
    else:
        print_table("Random flows", {name: one for name, one in result.items() if name != "bad"})
        for bad in result["bad"]:
            said = bad.get("text") or bad.get("sinks") or bad["standing"].get("status")
            print(f"{bad['command']}\n  {bad['outcome']}: {said}")
            flow = bad.get("smallest", bad)["flow"]
            print("".join(f"    {line}\n" for line in flow))
    if result["bad"]:
        sys.exit(1)
