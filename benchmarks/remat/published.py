"""Planners on published graphs, beside the published figures.

    python -m benchmarks.remat.published --data FOLDER --planners remat fastsa --out results.json

FOLDER holds `rl1.json`, `rl2.json` and `cm1.json` (or some of them) from the Moccasin repository
(Bartan et al., ICML 2023). Figures of Checkmate, Moccasin and FastSA are those of table 1 in
Imanishi et al., NeurIPS 2023: cost increase in per cent, at budgets in per cent of the peak of
the given order. Every schedule is simulated again from what the planner returned.
"""

import argparse
import datetime
import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kiwi.errors import KiwiError
from kiwi.solver.remat import PLANNERS, budget_from_share, order_peak_bytes, simulate, solve
from kiwi.solver.remat.node_link import read_node_link

Figures = dict[str, float | None]
OVER_BUDGET = "FastSA over budget"
PUBLISHED: dict[tuple[str, int], Figures] = {
    ("rl1", 90): {"Checkmate": 0.8, "Moccasin": 0.8, "FastSA": 0.0},
    ("rl1", 80): {"Checkmate": 2.3, "Moccasin": 2.3, "FastSA": 0.3},
    ("rl1", 70): {OVER_BUDGET: 2.2},
    ("rl2", 90): {"Checkmate": 0.9, "Moccasin": 0.9, "FastSA": 0.0},
    ("rl2", 80): {"Moccasin": 4.9, "FastSA": 0.0},
    ("rl2", 70): {"FastSA": 2.6},
    ("cm1", 90): {"Checkmate": 0.0, "Moccasin": 0.0, "FastSA": 0.1},
    ("cm1", 80): {"Checkmate": 0.1, "Moccasin": 0.1, "FastSA": 0.1},
    ("cm1", 70): {"FastSA": 3.0},
}
TIME_LIMIT_SECONDS = {"rl1": 11.5, "rl2": 14.5, "cm1": 9.4}
"""The published times of FastSA."""


@dataclass(frozen=True)
class Cell:
    """One planner on one graph under one budget; None where it found no schedule."""

    graph: str
    budget_percent: int
    planner: str
    increase_percent: float | None
    peak_percent: float | None
    within_budget: bool
    seconds: float | None


def main() -> None:
    """Runs all cells, writes JSON and the table beside it, prints the table."""
    options = _parser().parse_args()
    cells = [
        run_cell(options.data, name, budget, planner, options.time_limit, options.seed)
        for name, budget in PUBLISHED
        if (options.data / f"{name}.json").exists()
        for planner in options.planners
    ]
    if options.out is not None:
        head = {"command": "python -m benchmarks.remat.published --data FOLDER"}
        head |= {"date": datetime.date.today().isoformat()}
        head |= {package: version(package) for package in ("numba", "ortools")}
        text = json.dumps({**head, "cells": [asdict(cell) for cell in cells]}, indent=1)
        options.out.write_text(text + "\n")
        with options.out.with_suffix(".txt").open("w") as file:
            Console(file=file, width=110).print(_table(cells, options.planners))
    Console().print(_table(cells, options.planners))


def run_cell(
    data: Path, name: str, budget_percent: int, planner: str, time_limit: float | None, seed: int
) -> Cell:
    """Plans one cell."""
    graph = read_node_link(data / f"{name}.json").graph
    budget = budget_from_share(graph, budget_percent / 100)
    limit = time_limit if time_limit is not None else TIME_LIMIT_SECONDS[name]
    try:
        result = solve(graph, budget, planner, limit, seed)
    except KiwiError:
        return Cell(name, budget_percent, planner, None, None, False, None)
    found = simulate(graph, result.schedule)
    return Cell(
        name,
        budget_percent,
        planner,
        100 * (found.compute_seconds / graph.once_seconds - 1),
        100 * found.peak_bytes / order_peak_bytes(graph),
        found.peak_bytes <= budget,
        result.seconds,
    )


def _table(cells: list[Cell], planners: list[str]) -> Table:
    table = Table("graph", "budget %", *planners, "published", title="Cost increase % / s")
    for (name, budget), figures in PUBLISHED.items():
        row = {c.planner: c for c in cells if (c.graph, c.budget_percent) == (name, budget)}
        if row:
            published = ", ".join(f"{who} {value}" for who, value in figures.items())
            shown = [_shown(row[planner]) for planner in planners]
            table.add_row(name, str(budget), *shown, published)
    return table


def _shown(cell: Cell) -> str:
    if cell.increase_percent is None or cell.seconds is None:
        return "none found"
    mark = "" if cell.within_budget else " over budget"
    return f"{cell.increase_percent:.2f} / {cell.seconds:.1f}{mark}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--planners", nargs="+", choices=sorted(PLANNERS), default=["remat", "fastsa"]
    )
    parser.add_argument("--time-limit", type=float, help="seconds; default: as published")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    return parser


if __name__ == "__main__":
    main()
