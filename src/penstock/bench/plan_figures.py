"""The planner's figures: chapter 4 of "FastRecover" redrawn from ``bench.plan``'s results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.errors import SettingsError

__all__ = ["draw_all"]

_AXIS = {
    "n": "operators n",
    "input_rate": "input rate (tuples/min)",
    "max_overhead": "overhead budget",
    "steps": "steps Z",
    "selectivity_max": "selectivity drawn from 0.1 to …",
    "tuple_size_kb": "tuple size (KB)",
    "cost_min": "cost per tuple (min)",
    "state_size_kb": "mean state size (KB)",
}
_LABEL = {
    "dp": "FastRecover (dp)",
    "exact": "exact",
    "relaxed": "relaxed",
    "nsegments_grid": "NSegments (grid)",
    "nsegments": "NSegments",
    "exact_where_nsegments": "exact",
    "dp_where_nsegments_grid": "FastRecover (dp)",
    "1segment": "1Segment",
}
_COMPARED = {
    "plan_fig_4_01": "chain_n",
    "plan_fig_4_04": "chain_input_rate",
    "plan_fig_4_05": "chain_max_overhead",
    "plan_fig_4_06": "chain_steps",
    "plan_fig_4_07": "tree_n",
    "plan_fig_4_08": "tree_input_rate",
    "plan_fig_4_09": "tree_max_overhead",
    "plan_fig_4_10": "tree_steps",
    "plan_tree_as_printed": "tree_as_printed_n",
    "plan_open_selectivity": "chain_selectivity_max",
    "plan_open_tuple_size": "chain_tuple_size_kb",
    "plan_open_cost": "chain_cost_min",
    "plan_open_state_size": "chain_state_size_kb",
}


def draw_all(results: dict[str, Any], folder: Path) -> list[str]:
    """Write all figures into ``folder`` and return their file names."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise SettingsError("figures need matplotlib: pip install 'penstock[plot]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    sweeps, written = results["sweeps"], []

    def figure(columns: int, width: float = 4.2) -> tuple[Any, Any]:
        made = matplotlib.figure.Figure(figsize=(width * columns, 3.2), layout="constrained")
        return made, made.subplots(1, columns, squeeze=False)[0]

    def save(made: Any, name: str) -> None:
        made.savefig(folder / f"{name}.png", dpi=80)
        written.append(f"{name}.png")

    for name, sweep in _COMPARED.items():
        made, axes = figure(2)
        _compare(axes, sweeps[sweep], _axis(sweep))
        save(made, name)
    for name, methods in (
        ("plan_fig_4_02", ("dp", "exact", "nsegments_grid", "1segment")),
        ("plan_fig_4_03", ("dp", "exact", "nsegments_grid")),
    ):
        made, axes = figure(len(methods), 3.0)
        _boxes(axes, sweeps["chain_n"], methods)
        save(made, name)
    for name, shape in (("plan_fig_4_11", "chain"), ("plan_fig_4_12", "tree")):
        made, axes = figure(4, 3.0)
        for place, key in zip(axes, ("n", "input_rate", "max_overhead", "steps"), strict=True):
            _failures(place, sweeps[f"{shape}_{key}"], _AXIS[key])
        save(made, name)
    for name, shape in (("plan_fig_4_13", "chain"), ("plan_fig_4_14", "tree")):
        made, axes = figure(2)
        for place, key in zip(axes, ("n", "steps"), strict=True):
            _times(place, results["run_time_ms"][f"{shape}_{key}"], _AXIS[key])
        save(made, name)
    return written


def _axis(sweep: str) -> str:
    for key, label in _AXIS.items():
        if sweep.endswith(f"_{key}"):
            return label
    return sweep


def _series(points: list[dict[str, Any]], method: str, key: str) -> tuple[list[float], list[float]]:
    pairs = [(p["value"], p["methods"][method].get(key)) for p in points]
    return [x for x, y in pairs if y is not None], [y for _, y in pairs if y is not None]


def _compare(axes: Any, points: list[dict[str, Any]], label: str) -> None:
    left, right = axes
    for method, style in (
        ("exact_where_nsegments", "s--"),
        ("nsegments", "d-"),
        ("dp_where_nsegments_grid", "o:"),
        ("nsegments_grid", "v:"),
    ):
        left.plot(*_series(points, method, "mean"), style, ms=4, label=_LABEL[method])
    for method, style in (("dp", "o-"), ("exact", "s--"), ("relaxed", "^:"), ("1segment", "d-")):
        right.plot(*_series(points, method, "mean"), style, ms=4, label=_LABEL[method])
    right.set_yscale("log")
    left.set_ylim(bottom=0)
    share = left.twinx()
    share.plot(*_series(points, "nsegments_grid", "infeasible_percent"), "x-", color="0.6", ms=4)
    share.set_ylabel("NSegments (grid) infeasible (%)", color="0.4", fontsize=8)
    share.set_ylim(0, 105)
    left.set_title("where NSegments is feasible", fontsize=8)
    right.set_title("all topologies", fontsize=8)
    for place in axes:
        place.set_xlabel(label, fontsize=8)
        place.set_ylabel("expected recovery time", fontsize=8)
        place.legend(fontsize=7)
        if label.startswith("cost"):
            place.set_xscale("log")


def _boxes(axes: Any, points: list[dict[str, Any]], methods: tuple[str, ...]) -> None:
    for place, method in zip(axes, methods, strict=True):
        boxes = []
        for point in points:
            found = point["methods"][method]
            if "q1" in found:
                boxes.append(
                    {
                        "label": f"{point['value']:.0f}",
                        "med": found["median"],
                        "q1": found["q1"],
                        "q3": found["q3"],
                        "whislo": found["whisker_low"],
                        "whishi": found["whisker_high"],
                        "fliers": [found["max"]],
                    }
                )
        place.bxp(boxes)
        place.set_title(_LABEL[method], fontsize=9)
        place.set_xlabel("operators n", fontsize=8)
        place.set_yscale("log")


def _failures(place: Any, points: list[dict[str, Any]], label: str) -> None:
    place.plot(*_series(points, "dp", "mean"), "o-", ms=4, label="expected")
    known = [p for p in points if p["failure_work"] is not None]
    values = [p["value"] for p in known]
    place.plot(values, [p["failure_work"] for p in known], "s--", ms=4, label="work of a failure")
    place.plot(values, [p["failure_latency"] for p in known], "^:", ms=4, label="latency")
    place.set_xlabel(label, fontsize=8)
    place.set_yscale("log")
    place.legend(fontsize=7)


def _times(place: Any, points: list[dict[str, float]], label: str) -> None:
    values = [p["value"] for p in points]
    place.plot(values, [p["dp_ms"] for p in points], "o-", ms=4, label="dp")
    place.plot(values, [p["exact_ms"] for p in points], "s--", ms=4, label="exact")
    place.set_xlabel(label, fontsize=8)
    place.set_ylabel("run time (ms)", fontsize=8)
    place.set_yscale("log")
    place.legend(fontsize=7)
