"""Ties nodes that decide alike: one node of a smaller problem represents them.

Equal layers of a model have equal nodes. One tied node represents the equal nodes of all layers:

- Its cost is the sum of the nodes' costs, and it holds the memory of all of them.
- The edges between the members of two classes add up to one edge.
- An edge between two members of one class, which take the same option, becomes a cost of the
  option.
- The loads of a channel in a window add up likewise.

Each solution of the tied problem is a solution of the whole problem, with the same cost and the
same memory at every time. The least cost of the tied problem is no lower bound of the whole
problem.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kiwi.solver.problem import Edge, Interval, Load, Node, Problem


@dataclass(frozen=True, eq=False)
class EqualNodes:
    """A class of nodes that decide alike.

    - `members`: the indices of the nodes in the problem, at least one.
    - `options`: int64, shape (members, options): for each member, its option by option of the
      class; a permutation of the member's options.
    """

    members: tuple[int, ...]
    options: np.ndarray


@dataclass(frozen=True, eq=False)
class Tied:
    """A problem in which equal nodes are one node, and the way back.

    - `problem`: the tied problem. Its k-th node represents the k-th class.
    - `classes`: the classes. Each node of the whole problem is in exactly one.
    """

    problem: Problem
    classes: tuple[EqualNodes, ...]

    def expanded(self, solution: Sequence[int]) -> tuple[int, ...]:
        """Returns the solution of the whole problem for a solution of the tied problem."""
        options = np.zeros(sum(len(equal.members) for equal in self.classes), dtype=np.int64)
        for equal, option in zip(self.classes, solution, strict=True):
            options[list(equal.members)] = equal.options[:, option]
        return tuple(options.tolist())

    def tied(self, solution: Sequence[int]) -> tuple[int, ...]:
        """Returns the solution of the tied problem in which each class takes the option that most
        of its members take in `solution`, a solution of the whole problem."""
        taken_options = (
            np.array([[solution[member]] for member in equal.members]) for equal in self.classes
        )
        pairs = zip(self.classes, taken_options, strict=True)
        return tuple(
            int((equal.options == options).sum(axis=0).argmax()) for equal, options in pairs
        )


def tied(problem: Problem, equal: Iterable[EqualNodes]) -> Tied:
    """Returns the problem with each class of `equal` as one node. Classes must have no member in
    common; a node in no class becomes a class of its own."""
    count = len(problem.nodes)
    classes: list[EqualNodes | None] = [None] * count  # By their first members.
    alone = np.ones(count, dtype=np.bool_)
    for node_class in equal:
        classes[min(node_class.members)] = node_class
        alone[list(node_class.members)] = False
    for node in np.flatnonzero(alone).tolist():
        all_options = np.arange(problem.nodes[node].costs.size)[None, :]
        classes[node] = EqualNodes((node,), all_options)
    larger = tuple(node_class for node_class in classes if node_class is not None)
    within, between = _merged_edges(problem.edges, _Places.of(larger, count))
    nodes = tuple(
        _merged_node(problem.nodes, node_class, within.get(number, []))
        for number, node_class in enumerate(larger)
    )
    return Tied(replace(problem, nodes=nodes, edges=tuple(between)), larger)


@dataclass(frozen=True, eq=False)
class _Places:
    """The class of each node of the whole problem, and the node's option for each option of the
    class."""

    class_of: Sequence[int]
    options: Sequence[np.ndarray]

    @classmethod
    def of(cls, classes: Sequence[EqualNodes], count: int) -> "_Places":
        class_of, options = [0] * count, [np.arange(0)] * count
        for number, equal in enumerate(classes):
            for member, member_options in zip(equal.members, equal.options, strict=True):
                class_of[member], options[member] = number, member_options
        return cls(class_of, options)


def _merged_node(nodes: Sequence[Node], equal: EqualNodes, within: Sequence["_Lines"]) -> Node:
    """Returns one node for all members of `equal`. `within`: the edges between members."""
    pairs = [
        (nodes[member], options)
        for member, options in zip(equal.members, equal.options, strict=True)
    ]
    costs = np.sum(
        [
            *(node.costs[options] for node, options in pairs),
            *(edge.table[edge.rows, edge.columns] for edge in within),
        ],
        axis=0,
    )
    loads = (
        *((load, load.amounts[options]) for node, options in pairs for load in node.loads),
        *(
            (load, load.amounts[inner_edge.rows, inner_edge.columns])
            for inner_edge in within
            for load in inner_edge.loads
        ),
    )
    usage = _merged_usage([[node.usage[option] for option in options] for node, options in pairs])
    on_host = [
        [node.host_usage[option] for option in options]
        for node, options in pairs
        if node.host_usage
    ]
    suffix = f" and {len(pairs) - 1} equal to it" if len(pairs) > 1 else ""
    name, host_usage = pairs[0][0].name + suffix, _merged_usage(on_host)
    return Node(name, costs, usage, loads=_added(loads), host_usage=host_usage)


def _merged_usage(
    usages: Sequence[Sequence[tuple[Interval, ...]]],
) -> tuple[tuple[Interval, ...], ...]:
    """Returns, for each option, the intervals of all members. `usages`: one list per member."""
    merged_by_key: dict[tuple[int, ...], tuple[Interval, ...]] = {}
    merged = []
    for held in zip(*usages, strict=True):
        key = tuple(map(id, held))
        if key not in merged_by_key:  # Options with the same intervals share one tuple.
            merged_by_key[key] = tuple(interval for intervals in held for interval in intervals)
        merged.append(merged_by_key[key])
    return tuple(merged)


def _added(parts: Iterable[tuple[Load, np.ndarray]]) -> tuple[Load, ...]:
    """Returns one load for each window and channel: the sum of the amounts given for its loads."""
    added: dict[tuple[int, int], np.ndarray] = {}
    for load, amounts in parts:
        key = load.window, load.channel
        added[key] = added.get(key, 0.0) + amounts
    return tuple(Load(*key, amounts) for key, amounts in added.items())


@dataclass(frozen=True, eq=False)
class _Lines:
    """A table of costs with the row of each option of one class and the column of each option of
    the other. The amounts of `loads` have the table's rows and columns."""

    table: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    loads: tuple[Load, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is equal for the same lines of the same tables and loads."""
        loads = ((load.window, load.channel, *_where(load.amounts)) for load in self.loads)
        return _where(self.table), self.rows.tobytes(), self.columns.tobytes(), *loads

    @property
    def turned(self) -> "_Lines":
        """The transpose, with rows for the head and columns for the tail."""
        loads = tuple(replace(load, amounts=load.amounts.T) for load in self.loads)
        return _Lines(self.table.T, self.columns, self.rows, loads)


def _where(array: np.ndarray) -> tuple[object, ...]:
    interface = array.__array_interface__
    return interface["data"][0], interface["shape"], interface["strides"]


def _merged_edges(
    edges: Iterable[Edge], places: _Places
) -> tuple[Mapping[int, list[_Lines]], list[Edge]]:
    """Returns the edges within each class, and one edge for each pair of classes with edges between
    them."""
    within: dict[int, list[_Lines]] = {}
    between: dict[tuple[int, int], list[_Lines]] = {}
    for edge in edges:
        tail, head = places.class_of[edge.tail], places.class_of[edge.head]
        rows = edge.tail_class[places.options[edge.tail]]
        columns = edge.head_class[places.options[edge.head]]
        lines = _Lines(edge.costs, rows, columns, edge.loads)
        if tail == head:
            within.setdefault(tail, []).append(lines)
        elif tail < head:
            between.setdefault((tail, head), []).append(lines)
        else:
            between.setdefault((head, tail), []).append(lines.turned)
    return within, [_sum(ends, lines) for ends, lines in between.items()]


def _sum(ends: tuple[int, int], lines: Sequence[_Lines]) -> Edge:
    """Returns the sum of several tables as one edge between `ends`. A table that occurs several
    times is multiplied instead of added."""
    times: dict[tuple[object, ...], int] = {}
    distinct: dict[tuple[object, ...], _Lines] = {}
    for line in lines:
        times[line.key] = times.get(line.key, 0) + 1
        distinct.setdefault(line.key, line)
    first = next(iter(distinct.values()))
    if len(distinct) == 1:
        count = len(lines)
        costs = first.table if count == 1 else count * first.table
        loads = _added((load, count * load.amounts) for load in first.loads)
        return Edge(*ends, costs, {}, first.rows, first.columns, loads)
    rows, row_of = _joint(line.rows for line in distinct.values())
    columns, column_of = _joint(line.columns for line in distinct.values())
    tables = [*zip(times.values(), distinct.values(), rows, columns, strict=True)]
    costs = sum(
        n * line.table[np.ix_(table_rows, table_columns)]
        for n, line, table_rows, table_columns in tables
    )
    loads = _added(
        (load, n * load.amounts[np.ix_(table_rows, table_columns)])
        for n, line, table_rows, table_columns in tables
        for load in line.loads
    )
    return Edge(*ends, np.asarray(costs), {}, row_of, column_of, loads)


def _joint(lines: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Merges the lines of several tables. Two options share a joint line if they share their line
    in every table.

    Returns the line in each table of each joint line, shape (tables, joint lines), and the joint
    line of each option.
    """
    stacked = np.stack(list(lines))
    cells, line_of = np.unique(stacked, axis=1, return_inverse=True)
    return cells, line_of.ravel()
