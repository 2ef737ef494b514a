"""``penstock demo``."""

from __future__ import annotations

import sys
import threading

from rich.progress import Progress

from penstock.cli.live import watch
from penstock.cli.output import errors, print_json, print_table
from penstock.demos.ysb import Ysb, percentiles
from penstock.engine.spark.session import local_session

__all__ = ["run_ysb"]


def run_ysb(seconds: float, rate: float, hosts: int, master: str | None, json: bool) -> None:
    """Run the Yahoo! Streaming Benchmark and check every count."""
    if not json:
        errors.print("Starting Spark ...")
    spark = local_session("penstock demo ysb", hosts=hosts, master=master)
    try:
        ysb = Ysb(rate, seconds, Ysb.soon(3.0))
        query = ysb.flow.start(spark, hosts=hosts)
        collector = threading.Thread(target=ysb.collect, daemon=True)
        collector.start()
        try:
            ended = watch(query, seconds + 60, quiet=json)
        finally:
            query.stop()
        collector.join(5)
        with Progress(console=errors, transient=True, disable=json) as progress:
            task = progress.add_task("Checking every count", total=seconds)
            check = ysb.check(lambda: progress.advance(task))
    finally:
        spark.stop()
    result = {
        "events": check.events,
        "windows": check.windows,
        "lost": check.lost,
        "duplicated": check.duplicated,
        "events_per_s": round(check.events / seconds),
        "response_ms": percentiles(check.response_ms),
    }
    if json:
        print_json(result)
    else:
        print_table("Yahoo! Streaming Benchmark: ad views per campaign and second", result)
        if ended and not check.lost and not check.duplicated:
            errors.print("[green]Every count is right.[/green]")
    if not ended or check.lost or check.duplicated:
        errors.print("[red]The counts are not what the generator made.[/red]")
        sys.exit(1)
