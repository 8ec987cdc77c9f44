"""A picture of each instance's cost and bound over work, relative to the best known cost."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.solver.generated.measure import Row

_PANELS_IN_A_ROW = 8
_WORK_TICKS = (1e6, 1e8, 1e10)
_LEAST = 1e-6
"""Smaller distances, including 0, are drawn at this one."""


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws one panel per instance, with two logarithmic axes. Without matplotlib nothing is
    drawn."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [row for row in rows if row.trace and row.best is not None]
    height = math.ceil(len(shown) / _PANELS_IN_A_ROW)
    figure, axes = pyplot.subplots(
        height,
        _PANELS_IN_A_ROW,
        figsize=(1.9 * _PANELS_IN_A_ROW, 1.6 * height),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for axis, row in itertools.zip_longest(axes.flat, shown):
        if row is None:
            axis.set_axis_off()
        else:
            _panel(axis, row)
    figure.supxlabel("work: options and table cells gone over", fontsize=9)
    figure.supylabel("distance of cost (blue) and bound (orange) from the best known", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=70)
    pyplot.close(figure)


def _panel(axis: Any, row: Row) -> None:
    best = row.best
    assert best is not None
    costs = [(work, cost / best - 1.0) for work, cost, _ in row.trace if cost is not None]
    bounds = [(work, 1.0 - bound / best) for work, _, bound in row.trace]
    for points, colour in ((costs, "C0"), (bounds, "C1")):
        drawn = [(work, min(1.0, max(_LEAST, distance))) for work, distance in points]
        if drawn:
            axis.step(*zip(*drawn, strict=True), where="post", color=colour, marker=".")
    axis.set(xscale="log", yscale="log", ylim=(_LEAST / 2, 2.0), xticks=_WORK_TICKS)
    axis.minorticks_off()
    axis.set_title(f"{row.case.number} {row.case.name}", fontsize=8)
    axis.tick_params(labelsize=7)
