"""``penstock bench``: one command per benchmark; each prints figures that it has measured."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from penstock.cli import (
    bench_cost,
    bench_delivery,
    bench_monitor,
    bench_plan,
    bench_plan_live,
    bench_regimes,
)
from penstock.cli.output import print_json, print_table, set_up_logging
from penstock.errors import SettingsError

__all__ = ["bench_app"]

bench_app = typer.Typer(help="Measure, with every result checked.", no_args_is_help=True)
bench_app.command("plan")(bench_plan.bench_plan)
bench_app.command("plan-live")(bench_plan_live.bench_plan_live_command)
bench_app.command("monitor")(bench_monitor.bench_monitor_command)
bench_app.command("cost")(bench_cost.bench_cost_command)
bench_app.command("delivery")(bench_delivery.bench_delivery_command)
bench_app.command("regimes")(bench_regimes.regimes)
bench_app.command("selective")(bench_regimes.selective)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Say more on standard error.")]


class BenchGuarantee(StrEnum):
    """What the benchmark's sink promises."""

    none = "none"
    exactly_once = "exactly-once"


def _show(title: str, result: dict[str, Any], json: bool) -> None:
    if json:
        print_json(result)
    else:
        print_table(title, result)


@bench_app.command()
def ysb(
    seconds: Annotated[float, typer.Option(min=5, help="How long each rate is held.")] = 30,
    guarantee: Annotated[
        BenchGuarantee, typer.Option(help="exactly-once: recovery is on, epochs go to Parquet.")
    ] = BenchGuarantee.none,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """The Yahoo! Streaming Benchmark: the highest rate held, and response times.

    Response is from the end of a window to its result outside the hosts (exactly-once: until it is
    published, visible to readers), at 200 k, 1 M and 4 M events/s.
    """
    from penstock.bench.ysb import bench_ysb

    set_up_logging(verbose)
    result = bench_ysb(seconds, guarantee is BenchGuarantee.exactly_once)
    _show("Yahoo! Streaming Benchmark", result, json)


@bench_app.command()
def kafka(
    seconds: Annotated[float, typer.Option(min=5, help="How long messages are sent.")] = 30,
    rate: Annotated[int, typer.Option(min=1_000, help="Messages per second.")] = 100_000,
    backlog: Annotated[
        int, typer.Option(min=100_000, help="Messages of 100 B that are there already.")
    ] = 2_000_000,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Kafka, windowed counts, Kafka, exactly once: response at a rate, and the highest rate.

    Response is from the end of a window to its counts at a read-committed reader.  A broker is
    started for it; that needs Maven, once.
    """
    from penstock.bench.kafka import bench_kafka

    set_up_logging(verbose)
    _show("Kafka to Kafka, exactly once", bench_kafka(seconds, rate, backlog), json)


@bench_app.command()
def barrier(
    rounds: Annotated[int, typer.Option(min=100, help="How many rounds.")] = 3000,
    stalls: Annotated[
        bool, typer.Option("--stalls", help="Also measure without each remedy against stalls.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """A round of global coordination: every node waits for the notifications of all others."""
    from penstock.bench.barrier import bench_barrier

    set_up_logging(verbose)
    _show("Barrier", bench_barrier(rounds, stalls), json)


@bench_app.command()
def progress(
    events: Annotated[int, typer.Option(min=1_000_000, help="Events per run.")] = 250_000_000,
    pairs: Annotated[int, typer.Option(min=1, help="Runs of each kind, in turn.")] = 4,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """What tracked progress costs: throughput against the same flow with marks in band."""
    from penstock.bench.progress import bench_progress

    set_up_logging(verbose)
    _show("Progress tracking", bench_progress(events, pairs), json)


@bench_app.command()
def wcc(
    vertices: Annotated[int, typer.Option(min=100, help="Vertices of the graph.")] = 500_000,
    edges: Annotated[int, typer.Option(min=100, help="Edges in the first 99 epochs.")] = 999_000,
    late: Annotated[int, typer.Option(min=1, help="Edges in the late epoch.")] = 1_000,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Connected components of a growing graph, against a PySpark loop over the whole graph."""
    from penstock.bench.wcc import bench_wcc

    set_up_logging(verbose)
    _show("Connected components", bench_wcc(vertices, edges, late), json)


@bench_app.command()
def recovery(
    articles: Annotated[
        str, typer.Option(help="How many articles are loaded, separated by commas.")
    ] = "100000,1000000,10000000",
    trials: Annotated[int, typer.Option(min=1, help="Kills for each number and kind.")] = 11,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Votes summed per author: how long the flow is held up when the sharder is killed.

    Causal recovery restarts the sharder alone; the baseline purges everything behind it and
    rebuilds it from the sources.
    """
    from penstock.bench.recovery import bench_recovery

    set_up_logging(verbose)
    _show("Recovery", bench_recovery(_numbers(articles), trials, quiet=json), json)


@bench_app.command()
def overhead(
    events: Annotated[int, typer.Option(min=1_000_000, help="Events per run.")] = 250_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each kind, in turn.")] = 3,
    seconds: Annotated[float, typer.Option(min=1, help="How long probes are sent, a run.")] = 10,
    soak: Annotated[float, typer.Option(min=0, help="Seconds of a run at 1 M events/s.")] = 0,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """What causal recovery costs while nothing fails: throughput, latency, headers, logs."""
    from penstock.bench.overhead import bench_overhead

    set_up_logging(verbose)
    _show("Overhead of causal recovery", bench_overhead(events, rounds, seconds, soak), json)


@bench_app.command()
def beside(
    rounds: Annotated[int, typer.Option(min=1, help="Jobs of each kind, in turn.")] = 5,
    standby: Annotated[int, typer.Option(min=0, help="Hosts that are kept ready.")] = 1,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """A DataFrame job of 64 tasks beside a flow: what each does to the other.

    The job is timed alone and beside the flow, in turn; then a host is killed while it runs.
    """
    from penstock.bench.beside import bench_beside

    set_up_logging(verbose)
    _show("A DataFrame job beside a flow", bench_beside(rounds, standby=standby), json)


def _numbers(text: str) -> list[int]:
    """Numbers from a list with commas.

    >>> _numbers("100,2_000")
    [100, 2000]
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise SettingsError(f"--articles {text!r}: write it as 100000,1000000") from error
    if min(numbers) < 1:
        raise SettingsError(f"--articles {text!r}: at least 1")
    return numbers
