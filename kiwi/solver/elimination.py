"""The exact least cost of a network without memory limit: nodes are eliminated one by one.

To eliminate a node is to replace the node and all tables that it has a part in by one table of its
neighbours. The table has, for each combination of the neighbours' options, the least cost of the
node and the replaced tables. After the last node only the least cost of all is left (non-serial
dynamic programming: Bertelè and Brioschi, 1972; bucket elimination: Dechter, *Artificial
Intelligence* 113, 1999). The work is the size of all tables. It grows with the number of neighbours
that nodes have when they are eliminated. The graph of a training step is a ladder: the forward pass
is one rail, the backward pass the other, and a value that both read is a rung. Few values cross any
cut of the graph, so that each further layer adds little work.

Two reductions keep the tables small:

- Options of a node that share their line in every edge's table differ in their own costs only. They
  form a *group*, which the cheapest of them represents. Options that differ in residency are a
  group, at given prices of memory.
- A table has one line for all groups that none of its factors distinguishes.

The backward pass gives the least cost of all assignments with a given option (*min-marginals*) from
the same tables. Forward and backward pass are the two passes of a junction tree (Cowell et al.,
*Probabilistic Networks and Expert Systems*, 1999, chapter 6, with minima for sums).

The shapes of the tables follow from the network alone; prices change only their values.
`Elimination.of` plans them once, and refuses a network whose tables have too many cells.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kiwi.solver.network import Network


@dataclass(frozen=True, eq=False)
class _Axis:
    """An axis of a table, which belongs to a node.

    - `line_of`: for each group of the node, its line along the axis.
    - `count`: the number of lines.
    """

    node: int
    line_of: np.ndarray
    count: int


@dataclass(frozen=True, eq=False)
class _Factor:
    """A table as its axes. It belongs to the edge `edge`, or is the result of the step `step`."""

    axes: tuple[_Axis, ...]
    edge: int | None = None
    step: int | None = None

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(axis.node for axis in self.axes)


@dataclass(frozen=True, eq=False)
class _Placed:
    """The position of a factor in the table of the node that is eliminated with it.

    - `order`: the factor's axes in the order of the table's axes.
    - `lines`: for each of these axes, the factor's line by the table's line.
    - `shape`: the table's shape, with 1 for axes that the factor does not have.
    """

    factor: _Factor
    order: tuple[int, ...]
    lines: tuple[np.ndarray, ...]
    shape: tuple[int, ...]

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Returns the factor's values, in a shape that broadcasts to the table."""
        values = values.transpose(self.order)
        return values[np.ix_(*self.lines)].reshape(self.shape)

    def gathered(self, table: np.ndarray) -> np.ndarray:
        """Returns, for each cell of the factor, the least value of the table's cells that map to
        it."""
        missing_axes = tuple(k for k, size in enumerate(self.shape) if size == 1)
        kept = table.min(axis=missing_axes, keepdims=True) if missing_axes else table
        kept = kept.reshape([len(lines) for lines in self.lines])
        for axis, lines in enumerate(self.lines):
            kept = _least_by_line(kept, lines, axis)
        return kept.transpose(np.argsort(self.order))


@dataclass(frozen=True, eq=False)
class _Step:
    """The elimination of a node.

    - `axes`: the axes of its table, the node's own axis first.
    - `factors`: the tables that are added up in it.
    """

    axes: tuple[_Axis, ...]
    factors: tuple[_Placed, ...]

    @property
    def node(self) -> int:
        return self.axes[0].node

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.count for axis in self.axes)

    @property
    def left(self) -> tuple[_Axis, ...]:
        """The axes of the step's result: the neighbours' axes."""
        return self.axes[1:]


@dataclass(frozen=True, eq=False)
class _Passed:
    """The values of one forward pass.

    - `group_cost`, `group_option`: for each node, the least cost of each group and its option.
    - `tables`: each step's table, if the pass keeps them.
    - `best`: for each step, the best line along the first axis. `left`: its result.
    """

    group_cost: list[np.ndarray]
    group_option: list[np.ndarray]
    tables: list[np.ndarray]
    best: list[np.ndarray]
    left: list[np.ndarray]


@dataclass(frozen=True, eq=False)
class Elimination:
    """The steps that eliminate all nodes of a network.

    - `groups`: for each node, the group of each option.
    - `cells`: the work of one pass: the cells of all steps' tables, times one more than the number
      of factors in the table.
    """

    net: Network
    groups: tuple[np.ndarray, ...]
    steps: tuple[_Step, ...]
    cells: int

    @classmethod
    def of(cls, net: Network, most_cells: float) -> "Elimination | None":
        """Plans the steps: the next node is always the node with the smallest table. Returns None
        if the work of a pass exceeds `most_cells`."""
        planner = _Planner(net, most_cells)
        steps = planner.run()
        if steps is None:
            return None
        return cls(net, tuple(planner.groups), tuple(steps), planner.cells)

    def solve(self, unary: np.ndarray) -> tuple[np.ndarray, float]:
        """Returns the cheapest assignment, shape (n,), and its cost. `unary` (K): the costs of the
        options, all finite."""
        passed = self._forward(unary, keep_tables=False)
        return self._choice(passed), self._value(passed)

    def min_marginals(self, unary: np.ndarray) -> np.ndarray:
        """Returns, for each option, the least cost of all assignments with it, shape (K,)."""
        passed = self._forward(unary, keep_tables=True)
        outside = self._backward(passed)
        marginals = np.empty(self.net.option_count)
        for number, step in enumerate(self.steps):
            table = passed.tables[number] + outside[number][None]
            least = table.reshape(table.shape[0], -1).min(axis=1)
            options, node = self.net.option_slice(step.node), step.node
            above = unary[options] - passed.group_cost[node][self.groups[node]]
            marginals[options] = least[self.groups[node]] + above
        return marginals

    def _forward(self, unary: np.ndarray, *, keep_tables: bool) -> _Passed:
        group_cost, group_option = self._cheapest(unary)
        passed = _Passed(group_cost, group_option, [], [], [])
        for step in self.steps:
            table = np.zeros(step.shape)
            table += group_cost[step.node].reshape(-1, *[1] * len(step.left))
            for placed in step.factors:
                table += placed.spread(self._values(placed.factor, passed.left))
            passed.best.append(table.argmin(axis=0))
            passed.left.append(table.min(axis=0))
            if keep_tables:
                passed.tables.append(table)
        return passed

    def _values(self, factor: _Factor, left: Sequence[np.ndarray]) -> np.ndarray:
        if factor.edge is not None:
            return self.net.edge_table(factor.edge)
        assert factor.step is not None
        return left[factor.step]

    def _cheapest(self, unary: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Returns, for each node, the least cost of each group and the first option with that
        cost."""
        costs, options = [], []
        for node, group_of in enumerate(self.groups):
            option_costs = unary[self.net.option_slice(node)]
            order = np.lexsort((option_costs, group_of))
            first = np.flatnonzero(np.diff(group_of[order], prepend=-1))
            costs.append(option_costs[order[first]])
            options.append(order[first])
        return costs, options

    def _choice(self, passed: _Passed) -> np.ndarray:
        group = np.zeros(self.net.node_count, dtype=np.int64)
        for step, best in zip(reversed(self.steps), reversed(passed.best), strict=True):
            lines = tuple(axis.line_of[group[axis.node]] for axis in step.left)
            group[step.node] = best[lines]
        chosen = [
            passed.group_option[node][group_of_node]
            for node, group_of_node in enumerate(group.tolist())
        ]
        return np.array(chosen, dtype=np.int64)

    def _value(self, passed: _Passed) -> float:
        """Returns the sum of the results without axes, one for each connected component."""
        alone = (
            result for step, result in zip(self.steps, passed.left, strict=True) if not step.left
        )
        return float(sum(float(result) for result in alone))

    def _backward(self, passed: _Passed) -> list[np.ndarray]:
        """Returns, for each step, the least cost of everything outside its table, by the axes of
        its result."""
        value = self._value(passed)
        outside: list[np.ndarray] = [
            np.asarray(value - result) if not step.left else np.zeros(0)
            for step, result in zip(self.steps, passed.left, strict=True)
        ]
        for number in reversed(range(len(self.steps))):
            table = None
            for placed in self.steps[number].factors:
                source = placed.factor.step
                if source is None:
                    continue
                if table is None:
                    table = passed.tables[number] + outside[number][None]
                outside[source] = placed.gathered(table) - passed.left[source]
        return outside


class _Planner:
    """Plans the steps. The next node is always the node with the smallest table."""

    def __init__(self, net: Network, most_cells: float) -> None:
        self._net, self._most_cells = net, most_cells
        self.cells = 0
        at_node: list[list[tuple[int, np.ndarray]]] = [[] for _ in range(net.node_count)]
        for edge, ends in enumerate(net.ends.tolist()):
            for node, lines in zip(ends, net.lines(edge), strict=True):
                at_node[node].append((edge, lines))
        self.groups = [
            _joint([lines for _, lines in near], int(size))
            for near, size in zip(at_node, np.diff(net.option_start), strict=True)
        ]
        self._counts = [int(group.max(initial=-1)) + 1 for group in self.groups]
        self._known_axes: dict[tuple[int, frozenset[int]], _Axis] = {}
        axes: list[list[_Axis]] = [[] for _ in range(net.edge_count)]
        for node, near in enumerate(at_node):
            for edge, lines in near:
                line_of = np.zeros(self._counts[node], dtype=np.int64)
                line_of[self.groups[node]] = lines
                count = int(net.line_count[2 * edge + len(axes[edge])])
                axes[edge].append(_Axis(node, line_of, count))
        self._factors: list[list[_Factor]] = [[] for _ in range(net.node_count)]
        for edge, edge_axes in enumerate(axes):
            self._add(_Factor(tuple(edge_axes), edge=edge))

    def run(self) -> list[_Step] | None:
        """Returns the steps, or None as soon as they take too many cells."""
        remaining = dict.fromkeys(range(self._net.node_count))
        known: dict[int, tuple[_Axis, ...]] = {}
        sizes: dict[int, int] = {}
        steps: list[_Step] = []
        while remaining:
            for node in remaining:
                if node not in known:
                    known[node] = self._axes(node)
                    sizes[node] = math.prod(axis.count for axis in known[node])
            node = min(remaining, key=sizes.__getitem__)
            factors = tuple(self._factors[node])
            self.cells += sizes[node] * (len(factors) + 1)
            if self.cells > self._most_cells:
                return None
            axes = known[node]
            steps.append(_Step(axes, tuple(_placed(axes, factor) for factor in factors)))
            del remaining[node]
            for factor in factors:
                self._remove(factor)
            if axes[1:]:
                self._add(_Factor(axes[1:], step=len(steps) - 1))
            for axis in axes:
                known.pop(axis.node, None)
        return steps

    def _axes(self, node: int) -> tuple[_Axis, ...]:
        """Returns the axes of a node's table: one line per group of the node, and for each
        neighbour one line per set of groups that the node's factors do not distinguish."""
        count = self._counts[node]
        by_node: dict[int, list[np.ndarray]] = {}
        for factor in self._factors[node]:
            for axis in factor.axes:
                if axis.node != node:
                    by_node.setdefault(axis.node, []).append(axis.line_of)
        others = (
            self._joint_axis(neighbour, lines) for neighbour, lines in sorted(by_node.items())
        )
        return _Axis(node, np.arange(count), count), *others

    def _joint_axis(self, node: int, lines: Sequence[np.ndarray]) -> _Axis:
        """Returns the axis of a node that distinguishes two groups if any entry of `lines` does."""
        distinct = {id(axis_lines): axis_lines for axis_lines in lines}
        key = node, frozenset(distinct)
        if key not in self._known_axes:
            line_of = _joint([*distinct.values()], self._counts[node])
            axis = _Axis(node, line_of, int(line_of.max(initial=-1)) + 1)
            self._known_axes[key] = axis
            # The joint axis of this axis alone is the axis itself.
            self._known_axes[node, frozenset({id(line_of)})] = axis
        return self._known_axes[key]

    def _add(self, factor: _Factor) -> None:
        for node in factor.nodes:
            self._factors[node].append(factor)

    def _remove(self, factor: _Factor) -> None:
        for node in factor.nodes:
            self._factors[node] = [kept for kept in self._factors[node] if kept is not factor]


def _joint(lines: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Returns, for each of `count` entries, the number of its combination of lines."""
    joint = np.zeros(count, dtype=np.int64)
    for axis_lines in lines:
        keys = joint * (int(axis_lines.max(initial=0)) + 1) + axis_lines
        joint = np.unique(keys, return_inverse=True)[1].reshape(-1)
    return joint


def _placed(axes: Sequence[_Axis], factor: _Factor) -> _Placed:
    places = {axis.node: k for k, axis in enumerate(axes)}
    order = tuple(sorted(range(len(factor.axes)), key=lambda k: places[factor.axes[k].node]))
    lines, shape = [], [1] * len(axes)
    for k in order:
        axis = factor.axes[k]
        place = places[axis.node]
        line_of = np.zeros(axes[place].count, dtype=np.int64)
        line_of[axes[place].line_of] = axis.line_of
        lines.append(line_of)
        shape[place] = axes[place].count
    return _Placed(factor, order, tuple(lines), tuple(shape))


def _least_by_line(values: np.ndarray, lines: np.ndarray, axis: int) -> np.ndarray:
    """Returns `values` with, along `axis`, the least of the entries of each line. Every line has at
    least one entry."""
    order = np.argsort(lines, kind="stable")
    first = np.flatnonzero(np.diff(lines[order], prepend=-1))
    if len(first) == len(lines):
        return values.take(order, axis=axis)
    return np.minimum.reduceat(values.take(order, axis=axis), first, axis=axis)
