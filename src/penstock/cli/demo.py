"""``penstock demo``."""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Any

from rich.progress import Progress

from penstock.cli.live import seconds_of, watch
from penstock.cli.output import print_json, print_table
from penstock.demos.ysb import Ysb, percentiles
from penstock.engine.driver.query import FlowQuery
from penstock.engine.spark.session import local_session
from penstock.errors import SettingsError
from penstock.terminal import stderr

__all__ = ["run_ysb"]

LEAD_S = 3.0
SPARED_S = 2.0
"""Seconds at the beginning and at the end of the events in which no process is killed."""


def run_ysb(
    seconds: float, rate: float, hosts: int, master: str | None, json: bool, kills: int = 0
) -> None:
    """Run the Yahoo! Streaming Benchmark, kill processes of it if wanted, check every count."""
    if kills and seconds < 2 * SPARED_S + kills:
        raise SettingsError(
            f"--kill {kills} takes at least --seconds {2 * SPARED_S + kills:g}, got {seconds:g}"
        )
    if not json:
        stderr.print("Starting Spark ...")
    standby = 1 if kills else 0
    spark = local_session("penstock demo ysb", hosts=hosts + standby, master=master)
    try:
        ysb = Ysb(rate, seconds, Ysb.soon(LEAD_S))
        query = ysb.flow.start(spark, hosts=hosts, standby=standby)
        collector = threading.Thread(target=ysb.collect, daemon=True)
        collector.start()
        if kills:
            first_s = ysb.origin_us / 1e6 + SPARED_S
            every_s = (seconds - 2 * SPARED_S) / kills
            threading.Thread(
                target=_kill, args=(query, kills, first_s, every_s), daemon=True
            ).start()
        try:
            ended = watch(query, seconds + 60, quiet=json)
        finally:
            query.stop()
        collector.join(5)
        recoveries = query.recoveries
        with Progress(console=stderr, transient=True, disable=json) as progress:
            task = progress.add_task("Checking every count", total=seconds)
            check = ysb.check(lambda: progress.advance(task))
    finally:
        spark.stop()
    result: dict[str, Any] = {
        "events": check.events,
        "windows": check.windows,
        "lost": check.lost,
        "duplicated": check.duplicated,
        "events_per_s": round(check.events / seconds),
        "response_ms": percentiles(check.response_ms),
    }
    if kills:
        result["kills"] = len(recoveries)
        result["recoveries"] = [
            {"lost": one["lost"], "restarted": one["restarted"], "seconds": seconds_of(one)}
            for one in recoveries
            if one["recovered_us"] is not None
        ]
    if json:
        print_json(result)
    else:
        result.pop("recoveries", None)  # shown as they happened
        print_table("Yahoo! Streaming Benchmark: ad views per campaign and second", result)
        if ended and not check.lost and not check.duplicated:
            stderr.print("[green]Every count is right.[/green]")
    if not ended or check.lost or check.duplicated:
        stderr.print("[red]The counts are not what the generator made.[/red]")
        sys.exit(1)


def _kill(query: FlowQuery, kills: int, first_s: float, every_s: float) -> None:
    """Kill the process of one node after another, the first at a moment of the wall clock."""
    chance = random.Random(1)
    for number in range(kills):
        time.sleep(max(0.0, first_s + number * every_s - time.time()))
        while query.isActive and not _recovered(query, number):
            time.sleep(0.02)
        hosts = {host["host"] for host in query.hosts}
        nodes = [one["name"] for one in query.nodes() if one["host"] in hosts]
        if query.isActive:
            query.kill(chance.choice(nodes))


def _recovered(query: FlowQuery, kills: int) -> bool:
    """Whether ``kills`` kills were noticed and their recoveries are over."""
    known = query.recoveries
    return len(known) >= kills and all(one["recovered_us"] is not None for one in known)
