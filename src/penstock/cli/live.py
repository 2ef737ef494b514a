"""The live display of a running flow: rates, latency and frontier per stage, and recoveries."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.api.progress import FlowProgress
from penstock.engine.driver.query import FlowQuery
from penstock.terminal import stderr

__all__ = ["recovery_line", "seconds_of", "watch"]

REFRESH_S = 0.25
LINE_S = 5.0
RECOVERIES = 8
"""Number of recoveries shown, the latest ones."""


def watch(query: FlowQuery, seconds: float | None = None, quiet: bool = False) -> bool:
    """Show a flow until it ends or the time is up; say whether it ended.

    On a terminal a table is redrawn in place; elsewhere a line is printed every few seconds.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    if quiet:
        return bool(query.awaitTermination(seconds if seconds is not None else 1e9))
    if not stderr.is_terminal:
        return _lines(query, deadline)
    with Live(console=stderr, refresh_per_second=8, transient=True) as live:
        while not _over(query, deadline):
            shown = _table(query.name, query.lastProgress, query.status["message"])
            live.update(Group(shown, *_recoveries(query)))
    _tell_recoveries(query, 0)
    return _ended(query)


def _over(query: FlowQuery, deadline: float | None) -> bool:
    left = REFRESH_S if deadline is None else min(REFRESH_S, deadline - time.monotonic())
    return left <= 0 or bool(query._ended.wait(left))


def _ended(query: FlowQuery) -> bool:
    return bool(query.awaitTermination(0))


def _lines(query: FlowQuery, deadline: float | None) -> bool:
    next_line = time.monotonic() + LINE_S
    told = 0
    while not _over(query, deadline):
        told = _tell_recoveries(query, told)
        if time.monotonic() >= next_line and query.lastProgress is not None:
            next_line += LINE_S
            progress = query.lastProgress
            latencies = [s["latencyMs"] for s in progress.sinks if s["latencyMs"] is not None]
            latency = f", {max(latencies):.1f} ms to the sink" if latencies else ""
            stderr.print(
                f"{query.name}: {progress.inputRowsPerSecond:,.0f} rows/s, "
                f"{progress.numInputRows:,} rows, epoch {progress.batchId}{latency}",
                highlight=False,
            )
    _tell_recoveries(query, told)
    return _ended(query)


def _tell_recoveries(query: FlowQuery, told: int) -> int:
    """Print the recoveries that are over; how many were told by now."""
    known = query.recoveries
    for entry in known[told:]:
        if entry["recovered_us"] is None and entry is known[-1]:
            break
        stderr.print(f"{query.name}: {recovery_line(entry)}", highlight=False)
        told += 1
    return told


def _recoveries(query: FlowQuery) -> list[Text]:
    return [
        Text(recovery_line(entry), style="yellow" if entry["recovered_us"] is None else "green")
        for entry in query.recoveries[-RECOVERIES:]
    ]


def recovery_line(entry: Mapping[str, Any]) -> str:
    """Who died, who restarted, how long it took; a later loss may have put an end to it.

    >>> entry = {"lost": ["counts[1]"], "restarted": ["counts[1]"], "lost_us": 0}
    >>> recovery_line(entry | {"recovered_us": 312_000})
    'counts[1] died; restarted counts[1]; recovered after 0.31 s'
    """
    restarted = ", ".join(entry["restarted"]) or "no node yet"
    until = entry["recovered_us"]
    took = "not recovered yet" if until is None else f"recovered after {seconds_of(entry):.2f} s"
    return f"{', '.join(entry['lost'])} died; restarted {restarted}; {took}"


def seconds_of(entry: Mapping[str, Any]) -> float:
    """How long a recovery took, from the loss until all nodes had caught up."""
    return round((entry["recovered_us"] - entry["lost_us"]) / 1e6, 3)


def _table(name: str, progress: FlowProgress | None, message: str) -> Any:
    if progress is None:
        return Text(f"{name}: {message}")
    table = Table(title=f"{name}: {message}", title_justify="left")
    table.add_column("stage")
    for heading in ("nodes", "rows/s", "rows", "epoch", "load", "queued"):
        table.add_column(heading, justify="right")
    for stage in progress.stages:
        table.add_row(
            stage["name"],
            str(stage["nodes"]),
            f"{stage['inputRowsPerSecond']:,.0f}",
            f"{stage['numInputRows']:,}",
            "end" if stage["ended"] else str(stage["frontier"]),
            f"{stage['load']:.0%}",
            f"{stage['queuedBytes'] / 1e6:,.1f} MB",
        )
    sinks = Text(
        "   ".join(
            f"{sink['name']}: epoch {sink['epoch']}, {sink['latencyMs'] or 0:.1f} ms after its end"
            for sink in progress.sinks
        )
    )
    return Group(table, sinks)
