"""``penstock plan``: anchors and checkpoint intervals for a topology described in a JSON file.

Reads the file, calls ``penstock.core.plan`` and shows the result. Exit status: 0 with a plan, 2 if
the description or an option is wrong (the message names what), 3 if no plan fits the budget.
"""

from __future__ import annotations

import json
import math
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.core.plan import OperatorTopology, Plan, solve
from penstock.errors import SettingsError, UsageError

__all__ = ["plan", "read_topology", "to_json"]

_UNITS = {
    "frequency": "checkpoints per unit of time; null: a checkpoint costs nothing",
    "interval": "units of time; null: never, or at will",
    "overhead": "share of time, summed over operators",
    "recovery_time": "expected time spent on recovery per unit of time",
}


class MethodName(StrEnum):
    """The methods by their names on the command line."""

    EXACT = "exact"
    DP = "dp"
    RELAXED = "relaxed"
    NSEGMENTS = "nsegments"
    ONE_SEGMENT = "1segment"


def plan(
    file: Annotated[
        Path, typer.Argument(help="JSON description of the topology; - reads standard input.")
    ],
    max_overhead: Annotated[
        float, typer.Option(help="Budget: share of time for checkpoints and logs, e.g. 0.05.")
    ],
    method: Annotated[MethodName, typer.Option(help="How to plan.")] = MethodName.EXACT,
    steps: Annotated[
        int | None, typer.Option(help="Steps Z that dp divides the budget into.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the segments into this file (.png, .svg, .pdf).")
    ] = None,
) -> None:
    """Find where to log and how often to checkpoint, within an overhead budget."""
    try:
        topology = read_topology(file)
        found = solve(topology, max_overhead, method.value, steps=steps)
        baselines = {
            name: found if name == method else solve(topology, max_overhead, name)
            for name in ("nsegments", "1segment")
        }
        if plot is not None and found.feasible:
            from penstock.cli.plan_plot import draw

            draw(found, plot)
    except UsageError as error:
        print(f"penstock plan: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps(to_json(found, baselines), allow_nan=False))
    else:
        _show(found, baselines)
    if not found.feasible:
        raise typer.Exit(3)


def read_topology(file: Path) -> OperatorTopology:
    """The topology in a JSON file; a :class:`UsageError` names what is wrong with it."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {file}: {error}") from error
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise SettingsError(f"{file} is not JSON: {error}") from error
    return OperatorTopology.from_mapping(data)


def to_json(found: Plan, baselines: dict[str, Plan]) -> dict[str, Any]:
    """The plan as a JSON object; numbers that are not finite become null."""
    result: dict[str, Any] = {
        "feasible": found.feasible,
        "method": found.method,
        "shape": found.topology.shape,
        "max_overhead": found.max_overhead,
        "min_overhead": found.min_overhead,
        "anchors": list(found.anchors),
        "frequency": {name: _finite(eta) for name, eta in found.frequency.items()},
        "overhead": _finite(found.overhead),
        "recovery_time": _finite(found.recovery_time),
        "bound": _finite(found.bound),
        "segments": _segments(found),
        "baselines": {name: _baseline(found, other) for name, other in baselines.items()},
        "units": _UNITS,
    }
    if not found.feasible:
        result["reason"] = found.reason
    return result


def _segments(found: Plan) -> list[dict[str, Any]]:
    frequency, anchors = found.frequency, set(found.anchors)
    return [
        {
            "anchors": [name for name in part if name in anchors],
            "operators": list(part),
            "interval": {name: _interval(frequency[name]) for name in part},
        }
        for part in found.segments
    ]


def _baseline(found: Plan, other: Plan) -> dict[str, Any]:
    saving = None
    if found.feasible and other.feasible and other.recovery_time > 0.0:
        saving = 100.0 * (1.0 - found.recovery_time / other.recovery_time)
    return {
        "feasible": other.feasible,
        "recovery_time": _finite(other.recovery_time),
        "min_overhead": other.min_overhead,
        "saving_percent": saving,
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _interval(frequency: float) -> float | None:
    return 1.0 / frequency if 0.0 < frequency < math.inf else None


def _show(found: Plan, baselines: dict[str, Plan]) -> None:
    console = Console()
    if not found.feasible:
        console.print(
            f"No plan: {found.reason}.\n"
            f"The budget is {found.max_overhead:.6g}; method {found.method} needs more than "
            f"{found.min_overhead:.6g}."
        )
        return
    table = Table(title=f"{found.method} plan, {len(found.segments)} segments")
    for title in ("segment", "logs input of", "operators", "checkpoint every", "frequency"):
        table.add_column(title, justify="right" if title in ("segment", "frequency") else "left")
    for number, part in enumerate(_segments(found), start=1):
        rates = [found.frequency[name] for name in part["operators"]]
        distinct = sorted(set(rates), reverse=True)
        table.add_row(
            str(number),
            ", ".join(part["anchors"]),
            ", ".join(part["operators"]),
            " / ".join(_duration(rate) for rate in distinct),
            " / ".join("free" if math.isinf(rate) else f"{rate:.4g}" for rate in distinct),
        )
    console.print(table)
    console.print(
        f"overhead       {found.overhead:.6g} of {found.max_overhead:.6g}\n"
        f"recovery time  {found.recovery_time:.6g} per unit of time (no plan below "
        f"{found.bound:.6g})"
    )
    for name, other in baselines.items():
        facts = _baseline(found, other)
        if not other.feasible:
            console.print(f"{name:<14} infeasible: needs more than {other.min_overhead:.6g}")
        elif facts["saving_percent"] is None:
            console.print(f"{name:<14} {other.recovery_time:.6g}")
        else:
            console.print(
                f"{name:<14} {other.recovery_time:.6g}: the plan saves "
                f"{facts['saving_percent']:.1f} %"
            )


def _duration(frequency: float) -> str:
    if math.isinf(frequency):
        return "at will"
    return f"{1.0 / frequency:.4g}" if frequency > 0.0 else "never"
