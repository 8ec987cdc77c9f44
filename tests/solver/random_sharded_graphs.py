"""Random small graphs with sharding strategies."""

import numpy as np

from kiwi.solver.formulations import Operator, Read, ShardedGraph, Tie, price
from kiwi.solver.schedule import Schedule


def random_graph(seed: int, most_operators: int = 6) -> ShardedGraph:
    """One parameter, then forward and other operators; whole costs and sizes."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(3, most_operators + 1))
    forward = int(draw.integers(1, count))
    operators = [_operator(draw, i, i <= forward) for i in range(count)]
    reads = [
        Read(i, j, _costs(draw, operators[i], operators[j]))
        for j in range(1, count)
        for i in range(j)
        if draw.random() < 0.5
    ]
    ties = (Tie(0, count - 1, _costs(draw, operators[0], operators[-1])),)
    results = frozenset({count - 1} if draw.random() < 0.5 else ())
    return ShardedGraph(
        tuple(operators), tuple(reads), ties if draw.random() < 0.5 else (), results
    )


def _operator(draw: np.random.Generator, i: int, is_forward: bool) -> Operator:
    options, is_parameter = int(draw.integers(1, 3)), i == 0
    runs = 0 if is_parameter else 1
    return Operator(
        f"o{i}",
        tuple(map(float, draw.integers(0, 6, options) * runs)),
        tuple(map(int, draw.integers(1, 6, options))),
        tuple(map(int, draw.integers(0, 3, options) * runs)),
        tuple(map(float, draw.integers(0, 3, options))) if draw.random() < 0.3 else (),
        is_parameter,
        is_forward,
        bool(draw.random() < 0.9),
    )


def _costs(draw: np.random.Generator, tail: Operator, head: Operator) -> np.ndarray:
    return draw.integers(0, 4, (tail.count, head.count)).astype(float)


def random_limit(graph: ShardedGraph, seed: int) -> int:
    """Around what one schedule without recomputation needs."""
    schedule = Schedule(tuple(graph.computing))
    peak = price(graph, schedule, [0] * len(graph.operators)).peak_bytes
    return int(peak * np.random.default_rng(seed).uniform(0.5, 1.05))
