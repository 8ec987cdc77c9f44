"""The pictures of `docs/architecture.md`: the rooms, and the way of the memory budget."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

from benchmarks.structure.budget import Passes  # noqa: E402
from benchmarks.structure.imports import imports, layers, room, sources  # noqa: E402

INK, PAPER, BAND, BOX, LINE = "#263238", "#fafafa", "#eceff1", "#cfd8dc", "#546e7a"
FONT_SIZE = 9
LETTER = 0.085
"""Inches of one letter in a box."""

Place = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """Modules side by side; `label` is the room, on its first row only."""

    label: str
    modules: tuple[str, ...]


def draw_budget(passes: Passes, file: Path) -> None:
    """Draws which module passes the memory budget to which, from the highest layer down."""
    rows = budget_rows(passes)
    places = _places(rows, passes)
    figure, axes = _canvas(10.5, 0.72 * len(rows) + 0.2)
    for number, row in enumerate(rows):
        if number % 2 == 0:
            axes.axhspan(-number - 0.5, -number + 0.5, color=BAND, lw=0)
        axes.text(0.1, -number, row.label, weight="bold", va="center", color=INK)
        for module in row.modules:
            _box(axes, places[module], _short(module))
    for sender, receiver in sorted(passes):
        _arrow(axes, places[sender], places[receiver])
    axes.set(xlim=(0, 10.5), ylim=(-len(rows) + 0.4, 0.6))
    _save(figure, file)


def budget_rows(passes: Passes) -> list[Row]:
    """The modules that get the budget, by layer; in a layer each stands below its senders."""
    modules = {module for pair in passes for module in pair}
    rows = []
    for layer in layers():
        inside = {module for module in modules if room(module) in layer}
        depths = _depths(inside, passes)
        for depth in sorted(set(depths.values())):
            here = sorted(module for module in inside if depths[module] == depth)
            label = " | ".join(sorted({room(module) for module in here}))
            rows.append(Row("" if rows and rows[-1].label == label else label, tuple(here)))
    return rows


def upward(passes: Passes) -> list[tuple[str, str]]:
    """The passes that do not go to a lower row of the picture."""
    order = {m: number for number, row in enumerate(budget_rows(passes)) for m in row.modules}
    return [pair for pair in passes if order[pair[0]] >= order[pair[1]]]


def _depths(inside: Iterable[str], passes: Passes) -> dict[str, int]:
    senders = {m: {a for a, b in passes if b == m and a in set(inside)} for m in inside}
    found: dict[str, int] = {}
    for module in TopologicalSorter(senders).static_order():
        found[module] = max((found[sender] + 1 for sender in senders[module]), default=0)
    return found


def _places(rows: Sequence[Row], passes: Passes) -> dict[str, Place]:
    """Boxes below the mean of their senders, as far as there is room."""
    places: dict[str, Place] = {}
    left, right = 1.4, 10.4
    for number, row in enumerate(rows):
        wanted = {}
        for module in row.modules:
            above = [places[a][0] for a, b in passes if b == module and a in places]
            wanted[module] = sum(above) / len(above) if above else (left + right) / 2
        widths = {m: _width(_short(m)) + 0.3 for m in row.modules}
        listed = sorted(row.modules, key=lambda m: (wanted[m], m))
        x = left
        starts = []
        for module in listed:
            x = max(x, wanted[module] - widths[module] / 2)
            starts.append(x)
            x += widths[module]
        limit = right
        for k in reversed(range(len(listed))):
            limit = starts[k] = min(starts[k], limit - widths[listed[k]])
        shift = 0.35 * (-1) ** number if len(listed) == 1 and number else 0.0
        for module, start in zip(listed, starts, strict=True):
            places[module] = (start + widths[module] / 2 + shift, -float(number))
    return places


def draw_rooms(file: Path) -> None:
    """Draws the rooms by layer, with their sentence, their lines, and who imports whom."""
    listed = [name for layer in layers() for name in layer if name != "__main__"]
    lines = {name: _room_lines(name) for name in listed}
    figure, axes = _canvas(10.5, 0.36 * len(listed) + 0.6)
    heights = _heights(listed)
    axes.text(1.3, 1, "modules", ha="right", va="center", color=LINE, size=FONT_SIZE - 1)
    axes.text(1.95, 1, "lines", ha="right", va="center", color=LINE, size=FONT_SIZE - 1)
    for number, layer in enumerate([layer for layer in layers() if set(layer) & set(listed)]):
        if number % 2 == 0:
            top, bottom = heights[layer[0]] + 0.5, heights[layer[-1]] - 0.5
            axes.axhspan(bottom, top, color=BAND, lw=0)
    for name in listed:
        y, (count, total) = heights[name], lines[name]
        axes.text(0.1, y, name, weight="bold", va="center", color=INK)
        axes.text(1.3, y, str(count), ha="right", va="center", color=LINE)
        axes.text(1.95, y, f"{total:,}", ha="right", va="center", color=LINE)
        axes.text(2.2, y, _sentence(name), va="center", color=INK)
    axes.set(xlim=(0, 10.5), ylim=(-len(listed) + 0.3, 1.6))
    _save(figure, file)


def _heights(listed: Sequence[str]) -> Mapping[str, float]:
    return {name: -float(number) for number, name in enumerate(listed)}


def _room_lines(name: str) -> tuple[int, int]:
    files = [file for module, file in sources().items() if room(module) == name]
    return len(files), sum(len(file.read_text().splitlines()) for file in files)


def _sentence(name: str) -> str:
    """The first sentence of a room's docstring."""
    text = ast.get_docstring(ast.parse(sources()[f"kiwi.{name}"].read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("`", "")


def _canvas(width: float, height: float) -> tuple[Any, Any]:
    """A figure whose unit along x is an inch."""
    plt.rcParams.update({"font.size": FONT_SIZE, "svg.hashsalt": "kiwi", "svg.fonttype": "none"})
    figure, axes = plt.subplots(figsize=(width, height), facecolor=PAPER)
    axes.set_position((0, 0, 1, 1))
    axes.axis("off")
    return figure, axes


def _short(module: str) -> str:
    return ".".join(module.split(".")[2:]) or module.split(".")[1]


def _width(text: str) -> float:
    return LETTER * len(text) + 0.2


def _box(axes: Any, place: Place, text: str) -> None:
    style = {"boxstyle": "round,pad=0.35", "facecolor": BOX, "edgecolor": LINE, "lw": 0.8}
    axes.text(*place, text, ha="center", va="center", color=INK, bbox=style, zorder=3)


def _arrow(axes: Any, start: Place, end: Place) -> None:
    shape = {"arrowstyle": "-|>", "color": LINE, "lw": 0.9, "shrinkA": 0, "shrinkB": 0}
    steps = start[1] - end[1]
    side = 1 if start[0] >= end[0] else -1
    bend = 0.0 if steps <= 1 else side * min(0.25, 0.06 * steps)
    shape["connectionstyle"] = f"arc3,rad={bend}"
    axes.annotate("", (end[0], end[1] + 0.2), (start[0], start[1] - 0.2), arrowprops=shape)


def _save(figure: Any, file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    metadata = {"Date": None} if file.suffix == ".svg" else {}
    figure.savefig(file, facecolor=PAPER, metadata=metadata, dpi=110)
    plt.close(figure)
