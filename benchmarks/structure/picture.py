"""The pictures of `docs/extend/architecture.md`: the rooms, and the way of the memory budget."""

import ast
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.patches import PathPatch
from matplotlib.path import Path as PlotPath

from benchmarks.structure.budget import Passes
from benchmarks.structure.imports import circles, imports, layers, room, sources

INK, PAPER, BAND, BOX, LINE = "#263238", "#fafafa", "#eceff1", "#cfd8dc", "#546e7a"
FONT_SIZE = 9
LETTER = 0.085
"""The width of one letter in a box, in inches."""

LEAST_WIDTH, LEFT, RIGHT, ROW, HALF = 10.5, 1.4, 0.1, 0.62, 0.24
"""Sizes in inches, except `HALF`, half the height of a box in rows."""

Place: TypeAlias = tuple[float, float]
Point: TypeAlias = "str | tuple[str, int]"
"""A module, or a row that a line to a module crosses."""


@dataclass(frozen=True)
class Row:
    """Modules of one layer, side by side. `rooms` names the layer."""

    rooms: str
    modules: tuple[str, ...]


def draw_budget(passes: Passes, file: Path) -> None:
    """Draws which module passes the memory budget to which, from the highest layer down."""
    passes = merged(passes)
    rows = budget_rows(passes)
    strands = _strands(rows, passes)
    ordered = _ordered(rows, strands)
    width = max(LEAST_WIDTH, LEFT + RIGHT + max(sum(map(_width, row)) for row in ordered))
    places = _places(ordered, strands, width)
    figure, axes = _canvas(width, ROW * len(rows) + 0.1)
    for number, (label, members) in enumerate(groupby(range(len(rows)), lambda k: rows[k].rooms)):
        listed = list(members)
        if number % 2 == 0:
            axes.axhspan(-listed[-1] - 0.5, -listed[0] + 0.5, color=BAND, lw=0)
        middle = -(listed[0] + listed[-1]) / 2
        axes.text(0.1, middle, label, weight="bold", va="center", color=INK)
    for row in rows:
        for module in row.modules:
            _box(axes, places[module], _short(module))
    for strand in strands:
        _arrow(axes, [places[point] for point in strand])
    axes.set(xlim=(0, width), ylim=(-len(rows) + 0.45, 0.55))
    _save(figure, file)


def merged(passes: Passes) -> Passes:
    """Returns the passes, with one name for the modules of a room that pass the budget back and
    forth.

    A loop calls the function that it repeats, and is called with it. Within a room that is not a
    pass upward.
    """
    names: dict[str, str] = {}
    for name in {room(module) for pair in passes for module in pair}:
        inside = {m for pair in passes for m in pair if room(m) == name}
        receivers = {m: {b for a, b in passes if a == m and b in inside} for m in inside}
        for circle in circles(receivers):
            joined = f"kiwi.{name}.{' · '.join(_short(module) for module in circle)}"
            names.update(dict.fromkeys(circle, joined))
    merged_passes: Passes = Counter()
    for (sender, receiver), count in passes.items():
        pair = names.get(sender, sender), names.get(receiver, receiver)
        if pair[0] != pair[1]:
            merged_passes[pair] += count
    return merged_passes


def budget_rows(passes: Passes) -> list[Row]:
    """Returns the modules that get the budget, by layer. Within a layer each module is below its
    senders. `passes` must be `merged`."""
    modules = {module for pair in passes for module in pair}
    rows = []
    for layer in layers():
        inside = {module for module in modules if room(module) in layer}
        depths = _depths(inside, passes)
        for depth in sorted(set(depths.values())):
            here = sorted(module for module in inside if depths[module] == depth)
            rows.append(Row(" | ".join(sorted({room(m) for m in inside})), tuple(here)))
    return rows


def upward(passes: Passes) -> list[tuple[str, str]]:
    """Returns the passes that do not go to a lower row of the picture."""
    order = merged(passes)
    rows = _row_of(budget_rows(order))
    return [(sender, to) for sender, to in order if rows[sender] >= rows[to]]


def _row_of(rows: Sequence[Row]) -> dict[str, int]:
    return {module: number for number, row in enumerate(rows) for module in row.modules}


def _depths(inside: Set[str], passes: Passes) -> dict[str, int]:
    """Returns the length of the longest way to each module inside of a layer."""
    senders = {m: {a for a, b in passes if b == m and a in inside} for m in inside}
    depth_of: dict[str, int] = {}
    for module in TopologicalSorter(senders).static_order():
        depth_of[module] = max((depth_of[sender] + 1 for sender in senders[module]), default=0)
    return depth_of


def _strands(rows: Sequence[Row], passes: Passes) -> list[tuple[Point, ...]]:
    """Returns each pass as points, one per row. Passes to one module share the points between."""
    row_of = _row_of(rows)
    return [
        (a, *((b, row) for row in range(row_of[a] + 1, row_of[b])), b) for a, b in sorted(passes)
    ]


def _ordered(rows: Sequence[Row], strands: Sequence[tuple[Point, ...]]) -> list[list[Point]]:
    """Returns the points of each row, ordered so that few lines cross (Sugiyama et al., 1981:
    barycentres)."""
    ordered: list[list[Point]] = [list(row.modules) for row in rows]
    for _, row in sorted({p for s in strands for p in s if isinstance(p, tuple)}):
        ordered[row] += sorted(
            {p for s in strands for p in s[1:-1] if p[1] == row} - {*ordered[row]}
        )
    links = [pair for strand in strands for pair in pairwise(strand)]
    for sweep in range(24):
        down = sweep % 2 == 0
        for row in range(1, len(ordered)) if down else reversed(range(len(ordered) - 1)):
            other = ordered[row - 1 if down else row + 1]
            position = {point: k / max(1, len(other) - 1) for k, point in enumerate(other)}
            ordered[row].sort(key=lambda point: _mean(point, links, position))
    return ordered


def _mean(point: Point, links: Sequence[tuple[Point, Point]], of: Mapping[Point, float]) -> float:
    """Returns the mean position of the linked points that have a position; 0.5 if there are
    none."""
    linked = [b if a == point else a for a, b in links if point in (a, b)]
    known = [of[other] for other in linked if other in of]
    return sum(known) / len(known) if known else 0.5


def _places(
    ordered: Sequence[Sequence[Point]], strands: Sequence[tuple[Point, ...]], width: float
) -> dict[Point, Place]:
    """Returns coordinates in a picture of this width. Points keep their order, and move towards the
    mean of their neighbours."""
    links = [pair for strand in strands for pair in pairwise(strand)]
    x = {}
    for row in ordered:
        step = (width - LEFT) / (len(row) + 1)
        x.update({point: LEFT + step * (k + 1) for k, point in enumerate(row)})
    middle = (LEFT + width) / 2
    for _ in range(40):
        for row in ordered:
            wanted = [0.3 * x[p] + 0.6 * _mean(p, links, x) + 0.1 * middle for p in row]
            spread = _spread(wanted, [_width(point) for point in row], width - RIGHT)
            x.update(zip(row, spread, strict=True))
    return {point: (x[point], -float(k)) for k, row in enumerate(ordered) for point in row}


def _spread(wanted: Sequence[float], widths: Sequence[float], right: float) -> list[float]:
    """Returns positions at which neighbours do not overlap, between the names of the layers and the
    right edge."""
    positions, free = [], LEFT
    for middle, width in zip(wanted, widths, strict=True):
        positions.append(max(middle, free + width / 2))
        free = positions[-1] + width / 2
    free = right
    for k in reversed(range(len(positions))):
        positions[k] = min(positions[k], free - widths[k] / 2)
        free = positions[k] - widths[k] / 2
    return positions


def draw_rooms(file: Path) -> None:
    """Draws the rooms by layer: their size, the first sentence of their docstring, and a dot for
    each room that they import."""
    listed = [name for layer in layers() for name in layer if name != "__main__"]
    column = {name: 8.6 + 0.2 * k for k, name in enumerate(listed)}
    width = column[listed[-1]] + 0.7
    figure, axes = _canvas(width, 0.3 * len(listed) + 1)
    slanted = {"rotation": 60, "rotation_mode": "anchor", "ha": "left", "va": "center"}
    axes.text(1.3, 1, "modules", ha="right", va="center", color=LINE)
    axes.text(1.95, 1, "lines", ha="right", va="center", color=LINE)
    axes.text(2.2, 1, "what it is", va="center", color=LINE)
    for number, name in enumerate(listed):
        count, total = _room_lines(name)
        if number % 2 == 0:
            axes.axhspan(-number - 0.5, -number + 0.5, color=BAND, lw=0)
        axes.text(0.1, -number, name, weight="bold", va="center", color=INK)
        axes.text(1.3, -number, str(count), ha="right", va="center", color=LINE)
        axes.text(1.95, -number, f"{total:,}", ha="right", va="center", color=LINE)
        axes.text(2.2, -number, _sentence(name), va="center", color=INK)
        axes.text(column[name], 0.7, name, color=LINE, **slanted)
        dots = [column[other] for other in sorted(_imported_rooms(name) & set(listed))]
        axes.scatter(dots, [-number] * len(dots), s=18, color=LINE, zorder=3)
        axes.scatter([column[name]], [-number], s=20, marker="s", color=BOX, zorder=3)
    axes.set(xlim=(0, width), ylim=(-len(listed) + 0.4, 3.4))
    _save(figure, file)


def _imported_rooms(name: str) -> set[str]:
    pairs = ((room(module), others) for module, others in imports().items())
    return {room(o) for importer, others in pairs if importer == name for o in others} - {name}


def _room_lines(name: str) -> tuple[int, int]:
    files = [file for module, file in sources().items() if room(module) == name]
    return len(files), sum(len(file.read_text().splitlines()) for file in files)


def _sentence(name: str) -> str:
    """Returns the first paragraph of a room's docstring."""
    text = ast.get_docstring(ast.parse(sources()[f"kiwi.{name}"].read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("`", "")


def _canvas(width: float, height: float) -> tuple[Any, Any]:
    """Returns a figure whose unit along x is an inch."""
    plt.rcParams.update({"font.size": FONT_SIZE, "svg.hashsalt": "kiwi", "svg.fonttype": "none"})
    figure, axes = plt.subplots(figsize=(width, height), facecolor=PAPER)
    axes.set_position((0, 0, 1, 1))
    axes.axis("off")
    return figure, axes


def _short(module: str) -> str:
    return ".".join(module.split(".")[2:]) or module.split(".")[1]


def _width(point: Point) -> float:
    return LETTER * len(_short(point)) + 0.4 if isinstance(point, str) else 0.22


def _box(axes: Any, place: Place, text: str) -> None:
    style = {"boxstyle": "round,pad=0.35", "facecolor": BOX, "edgecolor": LINE, "lw": 0.8}
    axes.text(*place, text, ha="center", va="center", color=INK, bbox=style, zorder=3)


def _arrow(axes: Any, places: Sequence[Place]) -> None:
    """Draws a curve through the places, vertical at each of them, with its head at the last."""
    (x, y), (last_x, last_y) = places[0], places[-1]
    ends = [(x, y - HALF), *places[1:-1], (last_x, last_y + HALF)]
    points, codes = [ends[0]], [PlotPath.MOVETO]
    for (x, y), (to_x, to_y) in pairwise(ends):
        middle = (y + to_y) / 2
        points += [(x, middle), (to_x, middle), (to_x, to_y)]
        codes += [PlotPath.CURVE4] * 3
    axes.add_patch(PathPatch(PlotPath(points, codes), fill=False, color=LINE, lw=0.9))
    axes.plot(last_x, last_y + HALF + 0.03, marker="v", color=LINE, markersize=4.5)


def _save(figure: Any, file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    metadata = {"Date": None} if file.suffix == ".svg" else {}
    figure.savefig(file, facecolor=PAPER, metadata=metadata, dpi=110)
    plt.close(figure)
