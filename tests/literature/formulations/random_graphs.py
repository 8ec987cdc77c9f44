"""Random problems that are small enough to enumerate for every formulation."""

from dataclasses import replace

import numpy as np

from kiwi.literature.formulations import Operator, Read, ShardedGraph, Tie, price
from kiwi.solver.schedule import Schedule


def random_graph(seed: int, forward: int = 3, backward: int = 2) -> ShardedGraph:
    """Returns a graph with one parameter, and a chain whose backward part reads values of its
    forward part."""
    draw = np.random.default_rng(seed)
    operators = [_operator(draw, "parameter", is_parameter=True)]
    operators += [_operator(draw, f"forward {k}", is_forward=True) for k in range(forward)]
    operators += [_operator(draw, f"backward {k}") for k in range(backward)]
    if draw.random() < 0.5:  # a peak between the passes: what is kept over it is dear
        peak = (int(draw.integers(4, 16)),) * operators[forward + 1].count
        operators[forward + 1] = replace(operators[forward + 1], workspace_bytes=peak)
    count = len(operators)
    pairs = {(i, i + 1) for i in range(1, count - 1)} | {(0, int(draw.integers(1, count)))}
    pairs |= {(i, int(draw.integers(forward + 1, count))) for i in range(1, forward + 1)}
    pairs |= {(i, j) for j in range(1, count) for i in range(j) if draw.random() < 0.15}
    reads = tuple(
        Read(i, j, _resharding(draw, operators[i].count, operators[j].count))
        for i, j in sorted(pairs)
    )
    ties = ()
    if draw.random() < 0.3:
        shape = operators[0].count, operators[-1].count
        ties = (Tie(0, count - 1, _resharding(draw, *shape)),)
    results = {count - 1} | {i for i in range(1, count - 1) if draw.random() < 0.15}
    return ShardedGraph(tuple(operators), reads, ties, frozenset(results))


def random_limit(graph: ShardedGraph, seed: int) -> int:
    """Returns a share of the memory that some strategies need without recomputation. Some limits
    cannot be met."""
    draw = np.random.default_rng(seed + 10_000)
    strategies = [int(draw.integers(o.count)) for o in graph.operators]
    peak_bytes = price(graph, Schedule(tuple(graph.computing)), strategies).peak_bytes
    return int(draw.uniform(0.75, 1.05) * peak_bytes)


def _operator(draw: np.random.Generator, name: str, **flags: bool) -> Operator:
    count = int(draw.integers(1, 3))
    parameter = flags.get("is_parameter", False)
    seconds = (0.0,) * count if parameter else tuple(map(float, draw.integers(1, 9, count)))
    workspace = draw.integers(0, 3, count) * (draw.random() < 0.3) * (not parameter)
    once = tuple(map(float, draw.integers(0, 3, count))) if draw.random() < 0.3 else ()
    again = bool(draw.random() < 0.9)
    result = tuple(map(int, draw.integers(1, 9, count)))
    return Operator(
        name, seconds, result, tuple(map(int, workspace)), once, may_recompute=again, **flags
    )


def _resharding(draw: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return draw.integers(0, 4, (rows, columns)).astype(float)
