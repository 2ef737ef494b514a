"""The picture of a plan: operators in layers, one colour per segment, anchors as squares."""

from __future__ import annotations

import math
from pathlib import Path

from penstock.core.plan import Plan
from penstock.errors import SettingsError

__all__ = ["draw"]


def draw(plan: Plan, file: Path) -> None:
    """Write the picture; the file's suffix chooses the format."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingsError(
            "--plot needs matplotlib: pip install 'penstock[plot]'", missing="matplotlib"
        ) from error
    topology = plan.topology
    place = _places(plan)
    width = max(x for x, _ in place) + 1
    height = max(y for _, y in place) - min(y for _, y in place) + 1
    figure = Figure(figsize=(max(5.0, 1.5 * width), max(2.4, 1.1 * height + 1.2)))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for i, above in enumerate(topology.parents):
        for p in above:
            axes.annotate(
                "",
                xy=place[i],
                xytext=place[p],
                arrowprops={"arrowstyle": "-|>", "color": "0.6", "shrinkA": 13, "shrinkB": 13},
            )
    names, anchors = topology.names, set(plan.anchors)
    colour_of = {name: f"C{k % 10}" for k, part in enumerate(plan.segments) for name in part}
    for i, (x, y) in enumerate(place):
        name = names[i]
        axes.scatter(
            [x],
            [y],
            s=380,
            zorder=2,
            marker="s" if name in anchors else "o",
            color=colour_of[name],
            edgecolor="black" if name in anchors else "none",
        )
        eta = plan.frequency[name]
        every = "at will" if math.isinf(eta) else f"{1 / eta:.3g}" if eta > 0 else "never"
        axes.text(x, y - 0.32, f"{name}\n{every}", ha="center", va="top", fontsize=8)
    axes.set_title(
        f"{plan.method}: recovery {plan.recovery_time:.4g}, overhead {plan.overhead:.3g} "
        f"(squares log their input; numbers: checkpoint interval)",
        fontsize=9,
    )
    axes.margins(0.12, 0.35)
    axes.set_axis_off()
    try:
        figure.savefig(file, dpi=130, bbox_inches="tight")
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot write {file}: {error}") from error


def _places(plan: Plan) -> list[tuple[float, float]]:
    """Columns by the longest path from the source, rows in order of appearance."""
    topology = plan.topology
    depth = [0] * len(topology)
    rows: dict[int, int] = {}
    place = [(0.0, 0.0)] * len(topology)
    for i in topology.order:
        depth[i] = 1 + max((depth[p] for p in topology.parents[i]), default=-1)
        row = rows.get(depth[i], 0)
        rows[depth[i]] = row + 1
        place[i] = (float(depth[i]), -float(row))
    return place
