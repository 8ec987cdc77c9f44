"""The view of a plan in a notebook: HTML in the colours of the page around it, and a plot of the
memory."""

import html
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from kiwi.errors import InvalidArgumentError
from kiwi.interval import Interval, curve_bytes
from kiwi.mesh.sharding import layout_text
from kiwi.messages import topics

CATEGORIES = {
    "arguments": ("arguments and results held throughout", "#98a2b3"),
    "forward": ("results of the forward pass", "#3b7de0"),
    "backward": ("results of the backward pass", "#e08a1e"),
    "update": ("results of the update", "#2a9d78"),
    "copies": ("resharded copies", "#c2508a"),
}
"""The categories of memory in the order of stacking. Each has a name for people, and the color of
the report's light page."""

_GIB = 2.0**30
_WIDTH, _HEIGHT = 720, 200
_MOST_ROWS = 8


def fragment(data: Mapping[str, Any]) -> str:
    """Returns HTML with the plan's figures, its memory curve and its largest arguments. `data` is
    as for `kiwi.report.render`."""
    document = data["plan"]
    estimate, options = document["estimate"], document["options"]
    checks = document["checks"]
    compiled = "not compiled" if checks is None else f"{checks['peak_bytes'] / _GIB:.2f} GiB"
    gap = document["bounds"]["gap"]
    figures = [
        ("step", f"{1e3 * estimate['step_seconds']:.3g} ms"),
        ("peak, estimated", f"{estimate['peak_bytes'] / _GIB:.3g} GiB"),
        ("peak, compiled", compiled),
        ("budget", f"{options['memory_budget_bytes'] / _GIB:.3g} GiB"),
        ("gap", "no bound" if gap is None else f"{gap:.1%}"),
    ]
    cells = "".join(
        f"<td><b>{html.escape(figure)}</b><br/><small>{k}</small></td>" for k, figure in figures
    )
    return (
        f"<div><p><b>{html.escape(data['title'])}</b>, {html.escape(options['profile'])}"
        f"{'' if data['fits'] else ': over the budget'}</p>"
        f"<table><tr>{cells}</tr></table>{_chart(data)}{_arguments(document)}</div>"
    )


def _chart(data: Mapping[str, Any]) -> str:
    curves, compiled = memory_curves(data["plan"]), data["compiled_curve"]
    most = max(
        float(np.sum(list(curves.values()), axis=0).max()),
        0.0 if compiled is None else float(max(compiled)),
        1.0,
    )
    below = np.zeros(len(curves["arguments"]))
    shapes = []
    for category, curve in curves.items():
        above = below + curve
        points = [*_steps(above, most), *reversed(_steps(below, most))]
        shapes.append(f'<polygon points="{_text(points)}" fill="{CATEGORIES[category][1]}"/>')
        below = above
    if compiled is not None:
        shapes.append(
            f'<polyline points="{_text(_steps(compiled, most))}" fill="none" '
            'stroke="currentColor" stroke-dasharray="4 3"/>'
        )
    names = "".join(
        f'<span style="color:{color}">&#9632;</span> {text} &nbsp; '
        for shown, (text, color) in CATEGORIES.items()
        if curves[shown].any()
    )
    dashed = "- - compiled" if compiled is not None else ""
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" '
        f'aria-label="memory over the step">{"".join(shapes)}</svg>'
        f"<div><small>{names}{dashed} (0 to {most / _GIB:.3g} GiB)</small></div>"
    )


def _steps(curve: Iterable[float], most: float) -> list[tuple[float, float]]:
    sizes, points = list(curve), []
    for k, size in enumerate(sizes):
        height = _HEIGHT * (1 - size / most)
        points += [(k * _WIDTH / len(sizes), height), ((k + 1) * _WIDTH / len(sizes), height)]
    return points


def _text(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{height:.1f}" for x, height in points)


def _arguments(document: Mapping[str, Any]) -> str:
    largest = sorted(document["arguments"].items(), key=lambda item: -item[1]["bytes"])
    rows = "".join(
        f"<tr><td><code>{html.escape(path)}</code></td><td><code>{html.escape(entry['type'])}</code>"
        f"</td><td><code>{html.escape(layout_text(entry['sharding']))}</code></td></tr>"
        for path, entry in largest[:_MOST_ROWS]
    )
    return f"<table><tr><th>argument</th><th>type</th><th>sharding</th></tr>{rows}</table>"


def memory_curves(document: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns, for each category, the bytes held while each operator runs: float64 [operators]."""
    horizon = max(1, len(document["operators"]))
    spans: dict[str, list[Interval]] = {category: [] for category in CATEGORIES}
    for category, start, end, size in _spans(document):
        spans[category].append(Interval(start, end, size))
    return {
        name: curve_bytes(intervals, horizon).astype(np.float64)
        for name, intervals in spans.items()
    }


def _spans(document: Mapping[str, Any]) -> Iterator[tuple[str, int, int, int]]:
    for source in (*document["arguments"].values(), *document["constants"]):
        for start, end, size in source["held"]:
            yield "arguments", start, end, size
    for operator in document["operators"].values():
        for start, end, size in operator["held"]:
            yield operator["phase"], start, end, size
        for start, end, size in operator["copies"]:
            yield "copies", start, end, size


def plot_memory(data: Mapping[str, Any], ax: Any = None) -> Any:
    """Draws the predicted and the compiled memory over the step, and returns the matplotlib axes.

    - `data`: as for `kiwi.report.render`.
    - `ax`: the axes to draw on; by default new ones.

    **Raises:** `InvalidArgumentError` if matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise InvalidArgumentError(
            "plot_memory needs matplotlib, which is not installed.",
            topic=topics.PACKAGE_MISSING,
        ) from error
    if ax is None:
        ax = plt.subplots(figsize=(9, 3.6), layout="constrained")[1]
    curves, compiled = memory_curves(data["plan"]), data["compiled_curve"]
    edges = np.arange(len(curves["arguments"]) + 1)
    below = np.zeros(len(edges) - 1)
    for category, curve in curves.items():
        if curve.any():
            above, (label, color) = below + curve / _GIB, CATEGORIES[category]
            ax.stairs(above, edges, baseline=below, fill=True, color=color, label=label)
            below = above
    if compiled is not None:
        ax.stairs(
            np.asarray(compiled) / _GIB, edges, color="black", linestyle="--", label="compiled"
        )
    budget = data["plan"]["options"]["memory_budget_bytes"] / _GIB
    if budget < 1.5 * below.max(initial=0.0):
        ax.axhline(budget, color="firebrick", label="budget")
    ax.set(xlabel="operators in the order they run", ylabel="GiB per device", xlim=(0, edges[-1]))
    ax.legend(fontsize="small", ncols=2)
    return ax
