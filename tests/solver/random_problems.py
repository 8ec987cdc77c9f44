"""Random problems that are small enough for brute force."""

from dataclasses import replace

import numpy as np

from kiwi.solver import Edge, Interval, Node, Problem, evaluate
from kiwi.solver.problem import Load


def random_problem(seed: int, *, most_nodes: int = 7, integral: bool = True) -> Problem:
    """Returns a problem with up to 7 nodes of up to 4 options, with forbidden pairs, parallel edges
    and a tight limit."""
    rng = np.random.default_rng(seed)
    horizon = int(rng.integers(1, 9))
    nodes = tuple(_node(rng, i, horizon, integral) for i in range(rng.integers(1, most_nodes + 1)))
    edges = tuple(_edges(rng, nodes, integral))
    free = Problem(nodes, edges, None, horizon)
    peaks = [_peak(free, rng) for _ in range(20)]
    low, high = min(peaks), max(peaks)
    limits = (None, low, (low + high) // 2, (2 * low + high) // 3, max(0, low - 1))
    return Problem(nodes, edges, limits[rng.integers(len(limits))], horizon)


def loaded_problem(seed: int) -> Problem:
    """Returns the same problem with loads: parts of all costs, in one of two windows, of one of two
    channels."""
    problem, rng = random_problem(seed), np.random.default_rng(seed)

    def loads(costs: np.ndarray) -> tuple[Load, ...]:
        amounts = np.where(np.isfinite(costs), costs, 0.0) * rng.choice([0.5, 1.0])
        return (Load(int(rng.integers(2)), int(rng.integers(2)), amounts),)

    return replace(
        problem,
        nodes=tuple(replace(n, loads=loads(n.costs)) for n in problem.nodes),
        edges=tuple(replace(e, loads=loads(e.costs)) for e in problem.edges),
    )


def _node(rng: np.random.Generator, index: int, horizon: int, integral: bool) -> Node:
    options = int(rng.integers(1, 5))
    usage = tuple(
        tuple(_interval(rng, horizon) for _ in range(rng.integers(0, 3))) for _ in range(options)
    )
    return Node(f"n{index}", _costs(rng, (options,), 0.05, integral), usage)


def _interval(rng: np.random.Generator, horizon: int) -> Interval:
    start = int(rng.integers(0, horizon))
    return Interval(start, int(rng.integers(start, horizon + 1)), int(rng.integers(0, 30)))


def _edges(rng: np.random.Generator, nodes: tuple[Node, ...], integral: bool) -> list[Edge]:
    edges = []
    for tail in range(len(nodes)):
        for head in range(len(nodes)):
            if tail != head and rng.random() < 0.3:
                shape = (nodes[tail].costs.size, nodes[head].costs.size)
                edges.append(_edge(rng, tail, head, shape, integral))
    return edges


def _edge(
    rng: np.random.Generator, tail: int, head: int, shape: tuple[int, int], integral: bool
) -> Edge:
    """Returns an edge. In every other edge, options share lines of the matrix."""
    if rng.random() < 0.5:
        return Edge(tail, head, _costs(rng, shape, 0.1, integral))
    lines = (int(rng.integers(1, shape[0] + 1)), int(rng.integers(1, shape[1] + 1)))
    classes = [rng.integers(0, lines[side], shape[side]) for side in range(2)]
    costs = _costs(rng, lines, 0.1, integral)
    return Edge(tail, head, costs, tail_class=classes[0], head_class=classes[1])


def _costs(rng: np.random.Generator, shape: tuple, forbidden: float, integral: bool) -> np.ndarray:
    costs = rng.integers(0, 40, shape).astype(float) if integral else rng.random(shape) * 1e-3
    costs[rng.random(shape) < forbidden] = np.inf
    return costs


def _peak(problem: Problem, rng: np.random.Generator) -> int:
    choice = [int(rng.integers(node.costs.size)) for node in problem.nodes]
    return evaluate(problem, choice).peak_bytes
