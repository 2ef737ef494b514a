"""``penstock demo adserving``."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.live import recovery_line
from penstock.cli.output import print_json, print_table
from penstock.demos.adserving import PARTS, AdServing, Scale
from penstock.demos.adserving_check import AdServingOutcome, balances, check
from penstock.demos.adserving_run import COOL_S, WARM_S, Drill, LiveFigures, figures, recovered
from penstock.demos.ysb import Ysb
from penstock.engine.driver.query import FlowQuery
from penstock.engine.spark.session import local_session
from penstock.errors import SettingsError
from penstock.terminal import stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CONF", "adserving", "run_adserving"]

CONF = {"spark.sql.shuffle.partitions": "2"}
"""Spark's default is for tables a thousand times as large."""
EPOCH = "50 ms"
LINGER = "25 ms"
"""Answers leave at the end of an epoch: rows may gather until then."""
LEASE = "15 seconds"
"""Long, because a dozen processes may have few cores; a process that dies is noticed at once."""
KILL_S_MIN = 2.0
LEAD_S_MIN, LEAD_S_MAX = 4.0, 40.0
END_S_MAX = 120.0
REFRESH_S = 0.25
LINE_S = 5.0


def run_adserving(
    seconds: float,
    rate: float | None,
    hosts: int,
    master: str | None,
    json: bool,
    kills: int = 0,
    database: str | None = None,
) -> None:
    """Run the ad-serving application, kill processes of it if wanted, check everything."""
    least_s = WARM_S + COOL_S + kills * KILL_S_MIN
    if seconds < least_s:
        raise SettingsError(
            f"demo adserving: with --kill {kills} give at least --seconds {least_s:g}, got "
            f"{seconds:g}"
        )
    scale = Scale(seconds) if rate is None else Scale(seconds, tweets_per_s=rate)
    if not json:
        stderr.print("Starting Spark ...")
    began = time.monotonic()
    spark = local_session("penstock adserving", hosts + 1, master=master, conf=CONF)
    # A machine that is slow to start Spark is slow to start hosts.
    lead_s = min(LEAD_S_MAX, max(LEAD_S_MIN, (time.monotonic() - began) / 2))
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-adserving-") as scratch:
            result, outcome, ended = adserving(
                spark, scale, Path(scratch), hosts, kills, database, lead_s, quiet=json
            )
    finally:
        spark.stop()
    if json:
        print_json(result)
    else:
        shown = {key: value for key, value in result.items() if key not in ("each", "checked")}
        print_table("Ad serving: answers, response times and bills", shown)
    if ended and outcome.right:
        if not json:
            stderr.print("[green]Every answer, every bill and every window is right.[/green]")
        return
    stderr.print("[red]Something is not as it must be:[/red]", end=" ")
    stderr.print(_problem(outcome, ended), highlight=False)
    sys.exit(1)


def adserving(
    spark: SparkSession,
    scale: Scale,
    folder: Path,
    hosts: int,
    kills: int,
    database: str | None = None,
    lead_s: float = LEAD_S_MIN,
    quiet: bool = True,
) -> tuple[dict[str, Any], AdServingOutcome, bool]:
    """One run on a session: figures, the outcome, whether everything came to an end."""
    url = database or f"sqlite:///{folder / 'billing.db'}"
    before = balances(url)
    writer = f"adserving {uuid.uuid4().hex[:8]}"
    run = AdServing(scale, Ysb.soon(lead_s), folder, url, writer=writer)
    query = run.flow.start(
        spark,
        hosts=hosts,
        standby=1 if kills else 0,
        parallelism=1,
        epochInterval=EPOCH,
        linger=LINGER,
        lease=LEASE,
        checkpointLocation=str(folder / "store"),
    )
    live = LiveFigures(run, before)
    collector = threading.Thread(target=run.collect, args=(live.add,), daemon=True)
    collector.start()
    from_s = max(time.time(), run.origin.timestamp()) + WARM_S
    drill = _drill(query, kills, from_s, run.origin.timestamp() + scale.seconds - COOL_S)
    try:
        ended = _watch(query, drill, live, scale.seconds + END_S_MAX, quiet)
    finally:
        query.stop()
    collector.join(5)
    outcome = check(run, before)
    return _result(run, drill, outcome, from_s), outcome, ended and recovered(drill)


def _drill(query: FlowQuery, kills: int, first_s: float, last_s: float) -> Drill | None:
    if not kills:
        return None
    drill = Drill(query, kills, first_s, max(0.0, last_s - first_s) / kills)
    threading.Thread(target=drill.run, daemon=True).start()
    return drill


def _result(
    run: AdServing, drill: Drill | None, outcome: AdServingOutcome, from_s: float
) -> dict[str, Any]:
    found = figures(run, drill, from_s * 1e6)
    each = found.pop("each")
    return {
        "queries": outcome.queries,
        "lost": outcome.lost,
        "duplicated": outcome.duplicated,
        "billing_exact": outcome.billing_exact,
        **found,
        "model_fits": outcome.fits,
        "windows": outcome.windows,
        "checked": asdict(outcome),
        "each": each,
    }


def _problem(outcome: AdServingOutcome, ended: bool) -> str:
    if not ended:
        return "the flow did not end, or a node did not recover"
    kinds = ("lost", "duplicated", "wrong")
    counts = {name: n for name, n in asdict(outcome).items() if name.endswith(kinds) and n}
    return ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in counts.items())


# -- the display ---------------------------------------------------------------------------------


def _watch(
    query: FlowQuery, drill: Drill | None, live: LiveFigures, seconds: float, quiet: bool
) -> bool:
    """Show the flow until it ends or the time is up; say whether it ended."""
    if quiet:
        return bool(query.awaitTermination(seconds))
    deadline = time.monotonic() + seconds
    if not stderr.is_terminal:
        return _lines(query, live, deadline)
    with Live(console=stderr, refresh_per_second=8, transient=True) as shown:
        while time.monotonic() < deadline and not query.awaitTermination(REFRESH_S):
            shown.update(
                Group(_table(query, drill), Text(live.queries()), Text(f"{live.billing()}"))
            )
    return bool(query.awaitTermination(0))


def _lines(query: FlowQuery, live: LiveFigures, deadline: float) -> bool:
    told, next_line = 0, time.monotonic() + LINE_S
    while time.monotonic() < deadline and not query.awaitTermination(REFRESH_S):
        for entry in query.recoveries[told:]:
            if entry["recovered_us"] is None:
                break
            stderr.print(f"{query.name}: {recovery_line(entry)}", highlight=False)
            told += 1
        if time.monotonic() >= next_line:
            next_line += LINE_S
            stderr.print(f"{query.name}: {live.queries()}; {live.billing()}", highlight=False)
    return bool(query.awaitTermination(0))


def _table(query: FlowQuery, drill: Drill | None) -> Table:
    """A row per part: regime, hosts, rows, and how it has survived so far."""
    table = Table(title=f"{query.name}: {query.status['message']}", title_justify="left")
    table.add_column("part")
    table.add_column("regimes")
    for heading in ("hosts", "rows/s", "kills", "recovered after"):
        table.add_column(heading, justify="right")
    progress = query.lastProgress
    rates = (
        {} if progress is None else {s["name"]: s["inputRowsPerSecond"] for s in progress.stages}
    )
    nodes = query.nodes()
    for part in PARTS:
        own = [node for node in nodes if node["part"] == part]
        done = [kill for kill in (drill.done if drill else ()) if kill["part"] == part]
        times = [
            f"{(kill['recovered_us'] - kill['at_us']) / 1e6:.2f} s" if kill["recovered_us"] else "…"
            for kill in done
        ]
        table.add_row(
            part,
            ", ".join(dict.fromkeys(node["regime"] for node in own)),
            str(len({node["host"] for node in own})),
            f"{max((rates.get(node['stage'], 0.0) for node in own), default=0.0):,.0f}",
            str(len(done)) if done else "",
            ", ".join(times),
        )
    return table
