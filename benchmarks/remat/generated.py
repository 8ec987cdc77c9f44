"""Graphs in the spirit of the published ones, of any size: random layered, training of convnets.

    python -m benchmarks.remat.generated --graphs layered-500 resnet-8 --budgets 80 70 --out r.json

For checking that planners generalise: sizes and times are drawn, nothing is fitted to them. With
`--planners checkmate hiremate` on small graphs: how far hiremate is from the optimum by stages.
"""

import argparse
import datetime
import json
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kiwi.errors import InfeasibleBudgetError
from kiwi.solver.remat import (
    PLANNERS,
    RematGraph,
    budget_from_share,
    order_peak_bytes,
    single_output_graph,
    solve,
)


def layered(operators: int, seed: int = 0) -> RematGraph:
    """A random layered graph: most edges join neighbouring layers, some go far.

    Operators read one to six values, more in larger graphs; sizes are up to 8000, times up to 1000.
    """
    draw = random.Random(seed)
    layer_of = [0]
    while len(layer_of) < operators:
        width = draw.randint(2, max(3, operators // 12))
        layer_of += [layer_of[-1] + 1] * min(width, operators - len(layer_of))
    most = 3 if operators < 200 else 6
    edges = []
    for reader, layer in enumerate(layer_of):
        near = [k for k in range(reader) if layer_of[k] == layer - 1]
        far = [k for k in range(reader) if layer_of[k] < layer - 1]
        for _ in range(draw.randint(1, most)):
            pool = far if far and draw.random() < 0.12 else near
            if pool:
                edges.append((draw.choice(pool), reader))
    sizes = [round(10 * draw.randint(1, 20) * draw.randint(1, 40)) for _ in range(operators)]
    seconds = [float(draw.randint(0, 1000)) for _ in range(operators)]
    return single_output_graph(seconds, sizes, edges)


@dataclass
class _Net:
    """Forward operators under construction: edges, sizes and times."""

    edges: list[tuple[int, int]]
    sizes: list[int]
    seconds: list[float]

    def add(self, inputs: list[int], size: int, seconds: float) -> int:
        """One more operator; returns its number."""
        self.edges += [(k, len(self.sizes)) for k in inputs]
        self.sizes.append(size)
        self.seconds.append(seconds)
        return len(self.sizes) - 1

    def training(self) -> RematGraph:
        """With a backward operator for each, which reads gradients and the inputs of its own."""
        forward = len(self.sizes)
        readers: list[list[int]] = [[] for _ in self.sizes]
        writers: list[list[int]] = [[] for _ in self.sizes]
        for writer, reader in self.edges:
            readers[writer].append(reader)
            writers[reader].append(writer)
        for k in reversed(range(forward)):
            gradients = [2 * forward - 1 - r for r in readers[k]] or [k]
            size = max([self.sizes[w] for w in writers[k]], default=0)
            self.add(list(dict.fromkeys([*gradients, *writers[k]])), size, 2 * self.seconds[k])
        pairs = tuple((k, 2 * forward - 1 - k) for k in range(forward))
        return single_output_graph(self.seconds, self.sizes, self.edges, backward_of=pairs)


def resnet(blocks: int, seed: int = 0) -> RematGraph:
    """Residual blocks of convolution, normalisation and activation; size halves now and then."""
    draw, net, size = random.Random(seed), _Net([], [], []), 4096

    def unit(below: int) -> int:
        convolved = net.add([below], size, draw.uniform(80, 120))
        normal = net.add([convolved], size, size / 512)
        return net.add([normal], size, size / 1024)

    last = net.add([], size, 1.0)
    for block in range(blocks):
        if block and block % max(1, blocks // 4) == 0:
            size //= 2
        inner = unit(unit(last))
        skip = net.add([last], size, draw.uniform(10, 20)) if net.sizes[last] != size else last
        last = net.add([inner, skip], size, size / 1024)
    net.add([last], 8, 1.0)
    return net.training()


def unet(depth: int, seed: int = 0) -> RematGraph:
    """An encoder, and a decoder that reads every encoder level again."""
    draw, net, size = random.Random(seed), _Net([], [], []), 8192
    last, skips = net.add([], size, 1.0), []
    for _ in range(depth):
        for _ in range(2):
            convolved = net.add([last], size, draw.uniform(80, 120))
            last = net.add([convolved], size, size / 1024)
        skips.append((last, size))
        size //= 2
        last = net.add([last], size, size / 1024)
    for skip, size in reversed(skips):
        up = net.add([last], size, draw.uniform(20, 40))
        last = net.add([up, skip], 2 * size, size / 512)
        for _ in range(2):
            convolved = net.add([last], size, draw.uniform(80, 120))
            last = net.add([convolved], size, size / 1024)
    net.add([last], 8, 1.0)
    return net.training()


FAMILIES: dict[str, Callable[[int], RematGraph]] = {
    "layered": layered,
    "resnet": resnet,
    "unet": unet,
}


def graph_named(name: str) -> RematGraph:
    """The graph of a name such as "layered-500": family and size."""
    family, size = name.rsplit("-", 1)
    return FAMILIES[family](int(size))


@dataclass(frozen=True)
class Cell:
    """One planner on one graph under one budget; None where it found no schedule.

    `is_proven`: the planner proved it the best of the schedules that it can express.
    """

    graph: str
    operators: int
    budget_percent: int
    planner: str
    time_limit_seconds: float
    seed: int
    increase_percent: float | None = None
    peak_percent: float | None = None
    seconds: float | None = None
    is_proven: bool = False


def main() -> None:
    """Runs all cells, writes JSON and the table beside it, prints the table."""
    options = _parser().parse_args()
    cells = [
        run_cell(name, budget, planner, options.time_limit, seed)
        for name in options.graphs
        for budget in options.budgets
        for planner in options.planners
        for seed in options.seeds
    ]
    if options.out is not None:
        head = {
            "command": _command(sys.argv[1:]),
            "date": datetime.date.today().isoformat(),
        }
        head |= {package: version(package) for package in ("numba", "ortools")}
        text = json.dumps({**head, "cells": [asdict(cell) for cell in cells]}, indent=1)
        options.out.write_text(text + "\n")
        with options.out.with_suffix(".txt").open("w") as file:
            Console(file=file, width=110).print(_table(cells))
    Console(width=110).print(_table(cells))


def _command(arguments: list[str]) -> str:
    """The command without the path that it writes to."""
    kept = arguments[: arguments.index("--out")] if "--out" in arguments else arguments
    return " ".join(["python -m benchmarks.remat.generated", *kept])


def run_cell(name: str, budget_percent: int, planner: str, limit: float, seed: int) -> Cell:
    """Plans one cell."""
    graph = graph_named(name)
    cell = (name, len(graph.operators), budget_percent, planner, limit, seed)
    budget = budget_from_share(graph, budget_percent / 100)
    try:
        result = solve(graph, budget, planner, limit, seed)
    except InfeasibleBudgetError:
        return Cell(*cell)
    peak = 100 * result.peak_bytes / order_peak_bytes(graph)
    bound = result.family_bound_seconds or result.bound_seconds
    proven = result.compute_seconds <= bound * (1 + 1e-6)
    return Cell(*cell, 100 * result.overhead, peak, result.seconds, proven)


def _table(cells: list[Cell]) -> Table:
    columns = ("graph", "operators", "budget %", "planner", "limit s", "seed")
    table = Table(*columns, "increase %", "peak %", "seconds", "proven")
    for cell in cells:
        shown = (cell.increase_percent, cell.peak_percent, cell.seconds)
        table.add_row(
            *(cell.graph, str(cell.operators), str(cell.budget_percent), cell.planner),
            *(f"{cell.time_limit_seconds:g}", str(cell.seed)),
            *("none" if value is None else f"{value:.2f}" for value in shown),
            "yes" if cell.is_proven else "",
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--graphs", nargs="+", default=["layered-100", "resnet-8", "unet-3"])
    parser.add_argument(
        "--planners", nargs="+", choices=sorted(PLANNERS), default=["remat", "fastsa"]
    )
    parser.add_argument("--budgets", nargs="+", type=int, default=[80, 70], help="per cent")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds")
    parser.add_argument("--out", type=Path)
    return parser


if __name__ == "__main__":
    main()
