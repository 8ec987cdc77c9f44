"""A plain version of the referee, node by node and edge by edge, which `evaluate` must equal."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kiwi.solver import Problem


@dataclass(frozen=True)
class PlainEvaluation:
    """The cost and the memory of a solution, see `kiwi.solver.evaluate.Evaluation`."""

    cost: float
    parts: dict[str, float]
    loads: dict[tuple[int, int], float]
    usage_bytes: list[int]
    host_peak_bytes: int
    forbidden: int


def plainly(problem: Problem, solution: Sequence[int]) -> PlainEvaluation:
    """Prices a solution that names an option for every node."""
    cost, forbidden = 0.0, 0
    parts: dict[str, float] = {}
    loads: dict[tuple[int, int], float] = {}
    held = [0] * problem.horizon
    on_host = [0] * problem.horizon
    priced = [(node, option) for node, option in zip(problem.nodes, solution, strict=True)]
    priced += [(e, e.cell(solution[e.tail], solution[e.head])) for e in problem.edges]
    for part, cell in priced:
        cost += float(part.costs[cell])
        forbidden += bool(np.isinf(part.costs[cell]))
        for kind, costs in part.parts.items():
            parts[kind] = parts.get(kind, 0.0) + float(costs[cell])
        for load in part.loads:
            key = load.window, load.channel
            loads[key] = loads.get(key, 0.0) + float(load.amounts[cell])
    for node, option in zip(problem.nodes, solution, strict=True):
        for usages, curve in ((node.usage, held), (node.host_usage, on_host)):
            for interval in usages[option] if usages else ():
                for time in range(interval.start, interval.end):
                    curve[time] += interval.bytes
    for window in {window for window, _ in loads}:
        amounts = [amount for (own, _), amount in loads.items() if own == window]
        cost -= sum(amounts) - max(amounts)
    return PlainEvaluation(cost, parts, loads, held, max(on_host, default=0), forbidden)
