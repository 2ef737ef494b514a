"""The Typer application: one function per command."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli import chaos as chaos_command
from penstock.cli import drill as drill_command
from penstock.cli import plan as plan_command
from penstock.cli import simulate as simulate_command
from penstock.cli import store as store_commands
from penstock.cli.bench import bench_app
from penstock.cli.dev import dev_app
from penstock.cli.output import print_json, set_up_logging
from penstock.errors import SettingsError

__all__ = ["app"]

app = typer.Typer(
    help="Streaming, batch and iterative dataflow on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("plan")(plan_command.plan)
app.command("chaos")(chaos_command.chaos)
app.command("simulate")(simulate_command.simulate)
app.command("status")(store_commands.status)
app.command("rollback")(store_commands.rollback)
app.command("explain-recovery")(store_commands.explain_recovery)
app.command("drill")(drill_command.drill)
app.add_typer(bench_app, name="bench")
app.add_typer(dev_app, name="dev")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Master = Annotated[
    str | None, typer.Option(help="Spark master URL; by default a local session is made.")
]
Hosts = Annotated[int, typer.Option(min=1, help="How many hosts (Spark tasks) run the flow.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Say more on standard error.")]


class Demo(StrEnum):
    """The demos."""

    ysb = "ysb"
    adserving = "adserving"


@app.command()
def version(json: Json = False) -> None:
    """Print the versions of Penstock and what it runs on."""
    import platform

    import pyarrow
    import pyspark

    import penstock

    versions = {
        "penstock": penstock.__version__,
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__,
        "python": platform.python_version(),
    }
    if json:
        print_json(versions)
    else:
        print("\n".join(f"{name} {number}" for name, number in versions.items()))


@app.command()
def demo(
    name: Annotated[Demo, typer.Argument(help="Which demo.")] = Demo.ysb,
    seconds: Annotated[
        float | None, typer.Option(min=2, help="How long events are made; by default 20 or 30.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=100, help="Events per second, of ysb a million.")
    ] = None,
    hosts: Annotated[
        int | None, typer.Option(min=1, help="How many hosts (Spark tasks); by default 4 or 6.")
    ] = None,
    kill: Annotated[int, typer.Option(min=0, help="Number of processes to kill meanwhile.")] = 0,
    database: Annotated[
        str | None,
        typer.Option(help="adserving: where to bill, sqlite:///... or postgresql://..."),
    ] = None,
    master: Master = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a demo on Spark and check its results.

    ysb: the Yahoo! Streaming Benchmark, ad views per campaign and second.
    adserving: tweets, connected components, collaborative filtering, ad queries and billing, each
    part with its own way of surviving.  With --kill real processes die on the way, and the display
    shows who restarts and how long it takes.
    """
    set_up_logging(verbose)
    if name is Demo.adserving:
        from penstock.cli.adserving import run_adserving

        run_adserving(seconds or 30, rate, hosts or 6, master, json, kill, database)
        return
    from penstock.cli.demo import run_ysb

    if database is not None:
        raise SettingsError("demo ysb: --database is for adserving")
    run_ysb(seconds or 20, rate or 1_000_000, hosts or 4, master, json, kill)


@app.command()
def run(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:FLOW|FILE.toml", help="A Flow, a function, or a file.")
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="An option of start(), such as checkpointLocation=/data/c; spark.* goes to Spark.",
        ),
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after this long.")] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="End when the input that is there is used up.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only say what the flow is, or what is wrong with it.")
    ] = False,
    master: Master = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a flow of your own until it ends or you press Ctrl-C.

    FLOW is a penstock.Flow, or a function without arguments that makes one, in a module that can be
    imported or a file: my_flows:views, flows/views.py:flow.  A topology file describes a flow in
    TOML: docs/topologies.md.
    """
    from penstock.cli.run import check_target, run_target

    set_up_logging(verbose)
    settings = [*(set_ or []), *(["availableNow=true"] if available_now else [])]
    if check:
        check_target(target, settings, json)
    else:
        run_target(target, settings, seconds, master, json)
