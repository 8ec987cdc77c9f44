"""Planners on published graphs, beside the published figures.

    python -m benchmarks.remat.published --data FOLDER --planners remat fastsa --out results.json

FOLDER holds `rl1.json`, `rl2.json` and `cm1.json` (or some of them) from the Moccasin repository
(Bartan et al., ICML 2023). Figures of Checkmate, Moccasin and FastSA are those of table 1 in
Imanishi et al., NeurIPS 2023: cost increase in per cent, at budgets in per cent of the peak of
the given order. Every schedule is simulated again from what the planner returned.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.remat.row import WIDTH, Results, Row, add_common_options, command_of, solved, table
from kiwi.literature.remat import budget_from_share
from kiwi.literature.remat.node_link import read_node_link

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
"""The published times of FastSA, by graph."""


def main() -> None:
    """Makes the missing rows, then prints the table."""
    options = _parser().parse_args()
    wanted = [
        Row(name, 0, budget, planner, options.time_limit or TIME_LIMIT_SECONDS[name], seed)
        for name, budget in PUBLISHED
        if (options.data / f"{name}.json").exists()
        for planner in options.planners
        for seed in options.seeds
    ]
    command = command_of("benchmarks.remat.published", data="FOLDER")
    results = Results(options.out, command, list(TIME_LIMIT_SECONDS))
    rows = results.make(wanted, lambda row: run_row(options.data, row))
    Console(width=WIDTH).print(table(rows))


def run_row(data: Path, row: Row) -> Row:
    """Plans one row. The published figures are its note."""
    graph = read_node_link(data / f"{row.graph}.json").graph
    row = replace(row, operators=len(graph.operators))
    budget_bytes = budget_from_share(graph, row.budget_percent / 100)
    figures = PUBLISHED[row.graph, row.budget_percent]
    published = ", ".join(f"{who} {value}" for who, value in figures.items())
    planned_row, _ = solved(row, graph, budget_bytes)
    return replace(planned_row, note=f"{planned_row.note} published: {published}".strip())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_common_options(parser, ["remat", "fastsa"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--time-limit", type=float, help="seconds; default: as published")
    return parser


if __name__ == "__main__":
    main()
