"""Generated problems like a training step: layers of operators, shardings times residencies.

Every operator of a layer's forward half is sharded over two mesh axes, each along one of its
dimensions or not at all. Its result is kept until the backward half has read it, or dropped after
the forward half and recomputed. Matmuls have a parameter that stays for the whole step. Costs
follow a simple machine: the work is divided by the number of devices that share it, and partial
sums and mismatched shardings move bytes over their axis. Sizes are random within a layer and repeat
from layer to layer, as in a real model.
"""

import itertools
from dataclasses import dataclass, replace

import numpy as np

from kiwi.solver import Edge, Interval, Node, Problem, solve

AXIS_SIZES = (2, 4)
AXIS_BYTES_PER_SECOND = (50e9, 300e9)
FLOPS_PER_SECOND = 100e12
MEMORY_BYTES_PER_SECOND = 2e12
OPERATORS_PER_LAYER = 24
DIMENSIONS = 3
"""The number of dimensions of each result: batch, sequence, features. A matmul's axis has a fourth
choice: the contraction."""


@dataclass(frozen=True)
class Operator:
    """One operator of the forward half. `inputs` are positions within the layer; -1 is the layer's
    input."""

    inputs: tuple[int, ...]
    result_bytes: int
    flops: float
    parameter_bytes: int

    @property
    def is_matmul(self) -> bool:
        """Whether the operator has a parameter."""
        return self.parameter_bytes > 0


def layered_problem(layers: int, *, seed: int = 0) -> Problem:
    """Returns the problem of `layers` equal layers, forward and backward, without a memory
    limit."""
    return _Builder(_random_layer(np.random.default_rng(seed)), layers).build()


def with_budget(problem: Problem, fraction: float) -> Problem:
    """Returns the problem with a limit of `fraction` of the peak of the best solution without a
    limit."""
    free = solve(replace(problem, limit_bytes=None), solver="lagrangian")
    assert free.peak_bytes is not None
    return replace(problem, limit_bytes=int(fraction * free.peak_bytes))


def _random_layer(rng: np.random.Generator) -> tuple[Operator, ...]:
    operators = []
    for position in range(OPERATORS_PER_LAYER):
        near = [p for p in range(position - 3, position) if p >= -1]
        inputs = {position - 1} | ({int(rng.choice(near))} if rng.random() < 0.4 else set())
        if position in (OPERATORS_PER_LAYER // 2, OPERATORS_PER_LAYER - 1):
            inputs |= {-1}
        size = int(rng.choice([1, 1, 2, 4])) * 64 * 2**20
        matmul = rng.random() < 0.3
        flops = 2e12 * float(rng.choice([1, 2, 4])) if matmul else size / 4
        parameter = int(rng.choice([1, 2, 4])) * 50 * 2**20 if matmul else 0
        operators.append(Operator(tuple(sorted(inputs)), size, flops, parameter))
    return tuple(operators)


class _Builder:
    """Builds the problem. In time, the forward operators of all layers come first, then the
    backward operators in reverse."""

    def __init__(self, layer: tuple[Operator, ...], layers: int) -> None:
        self.layer, self.layers = layer, layers
        self.count = len(layer) * layers
        self.horizon = 2 * self.count
        self.shardings = {
            matmul: list(itertools.product(range(DIMENSIONS + 1 + matmul), repeat=2))
            for matmul in (False, True)
        }

    def build(self) -> Problem:
        forward = [self._forward(i) for i in range(self.count)]
        backward = [self._backward(i) for i in reversed(range(self.count))]
        edges = [edge for i in range(self.count) for edge in self._edges(i)]
        return Problem((*forward, *backward), tuple(edges), None, self.horizon)

    def _operator(self, index: int) -> Operator:
        return self.layer[index % len(self.layer)]

    def _inputs(self, index: int) -> list[int]:
        start = index - index % len(self.layer)
        inputs = [start + p for p in self._operator(index).inputs]
        return [p for p in inputs if p >= 0]

    def _twin(self, index: int) -> int:
        """Returns the index of the backward operator, which is both its time and its node."""
        return self.horizon - 1 - index

    def _seconds(self, operator: Operator, sharding: tuple[int, ...], factor: float) -> float:
        split = np.prod([size for size, d in zip(AXIS_SIZES, sharding, strict=True) if d])
        moved = operator.result_bytes / split / MEMORY_BYTES_PER_SECOND
        seconds = factor * max(operator.flops / split / FLOPS_PER_SECOND, moved)
        for axis, dimension in enumerate(sharding):
            if dimension == DIMENSIONS + 1:
                seconds += 2 * operator.result_bytes / split / AXIS_BYTES_PER_SECOND[axis]
            if dimension in (1, 2) and operator.is_matmul and factor > 1:
                seconds += 2 * operator.parameter_bytes / AXIS_BYTES_PER_SECOND[axis]
        return seconds

    def _bytes(self, size: int, sharding: tuple[int, ...], dimensions: tuple[int, ...]) -> int:
        for axis, dimension in enumerate(sharding):
            if dimension in dimensions:
                size //= AXIS_SIZES[axis]
        return size

    def _forward(self, i: int) -> Node:
        """Returns the node of a forward operator. Its options are all shardings with the result
        kept, then all shardings with the result recomputed."""
        operator = self._operator(i)
        shardings = self.shardings[operator.is_matmul]
        seconds = np.array([self._seconds(operator, s, 1.0) for s in shardings])
        readers = [j for j in range(i + 1, min(self.count, i + 30)) if i in self._inputs(j)]
        last = max(readers, default=i) + 1
        kept, dropped = [], []
        for sharding in shardings:
            size = self._bytes(operator.result_bytes, sharding, (1, 2, 3))
            kept.append((Interval(i, self._twin(i) + 1, size), *self._parameter(i, sharding)))
            second_copy = Interval(self._twin(last - 1), self._twin(i) + 1, size)
            dropped.append((Interval(i, last, size), second_copy, *self._parameter(i, sharding)))
        return Node(f"f{i}", np.concatenate([seconds, 2 * seconds]), (*kept, *dropped))

    def _parameter(self, i: int, sharding: tuple[int, ...]) -> tuple[Interval, ...]:
        size = self._operator(i).parameter_bytes
        if not size:
            return ()
        return (Interval(0, self.horizon, 4 * self._bytes(size, sharding, (3, 4))),)

    def _backward(self, i: int) -> Node:
        operator = self._operator(i)
        shardings = self.shardings[operator.is_matmul]
        seconds = np.array([self._seconds(operator, s, 2.0) for s in shardings])
        time, last = self._twin(i), max([self._twin(p) for p in self._inputs(i)], default=0)
        sizes = [self._bytes(operator.result_bytes, s, (1, 2, 3)) for s in shardings]
        usage = tuple((Interval(time, max(time, last) + 1, size),) for size in sizes)
        return Node(f"b{i}", seconds, usage)

    def _edges(self, i: int) -> list[Edge]:
        edges = []
        for p in self._inputs(i):
            moves = self._moves(p, i)
            doubled = np.block([[moves, 2 * moves], [moves, 2 * moves]])
            edges.append(Edge(p, i, doubled))
            edges.append(Edge(self._twin(i), self._twin(p), self._moves(i, p)))
        to_backward = self._moves(i, i)
        edges.append(Edge(i, self._twin(i), np.concatenate([to_backward, to_backward])))
        return edges

    def _moves(self, source: int, target: int) -> np.ndarray:
        """Returns resharding seconds by sharding of both operators. An axis that splits another
        dimension moves its share of the bytes."""
        rows = self.shardings[self._operator(source).is_matmul]
        columns = self.shardings[self._operator(target).is_matmul]
        size = self._operator(source).result_bytes
        table = np.zeros((len(rows), len(columns)))
        for a, b in itertools.product(range(len(rows)), range(len(columns))):
            for axis in range(2):
                have, want = rows[a][axis] % 4, columns[b][axis] % 4
                if have and have != want:
                    share = size / (1 if not want else AXIS_SIZES[axis])
                    share /= AXIS_SIZES[1 - axis] if columns[b][1 - axis] else 1
                    table[a, b] += share / AXIS_BYTES_PER_SECOND[axis]
        return table
