"""Planners on generated graphs of any size that resemble the published ones
(`benchmarks.remat.graphs`).

    python -m benchmarks.remat.generated --graphs layered-500 resnet-8 --budgets 80 70 --out r.json

The benchmark checks that planners generalise. With `--planners checkmate hiremate` on small graphs
it shows the distance of hiremate from the optimum by stages.
"""

import argparse
from dataclasses import replace

from rich.console import Console

from benchmarks.remat.graphs import graph_named
from benchmarks.remat.row import WIDTH, Results, Row, add_common_options, command_of, solved, table
from kiwi.literature.remat import budget_from_share


def main() -> None:
    """Makes the missing rows, then prints the table."""
    options = _parser().parse_args()
    wanted = [
        Row(name, 0, budget, planner, options.time_limit, seed)
        for name in options.graphs
        for budget in options.budgets
        for planner in options.planners
        for seed in options.seeds
    ]
    command = command_of("benchmarks.remat.generated")
    rows = Results(options.out, command, options.graphs).make(wanted, run_row)
    Console(width=WIDTH).print(table(rows))


def run_row(row: Row) -> Row:
    """Plans one row."""
    graph = graph_named(row.graph)
    row = replace(row, operators=len(graph.operators))
    return solved(row, graph, budget_from_share(graph, row.budget_percent / 100))[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_common_options(parser, ["remat", "fastsa"])
    parser.add_argument("--graphs", nargs="+", default=["layered-100", "resnet-8", "unet-3"])
    parser.add_argument("--budgets", nargs="+", type=int, default=[80, 70], help="per cent")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds")
    return parser


if __name__ == "__main__":
    main()
