"""Nodes that decide alike, as one node of a smaller problem.

Equal layers of a model have equal nodes. Tied, one node stands for those of all layers:

- its cost is the sum of theirs, and it holds what all of them hold;
- edges between members of the same two classes add up;
- an edge between two members of one class, which take the same option, is a cost of that option;
- what they load of a channel in a window adds up likewise.

Each solution of the tied problem is one of the whole problem, of the same cost and with the same
memory at every time. The least cost of the tied problem is no bound on that of the whole one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kiwi.solver.problem import Edge, Interval, Load, Node, Problem


@dataclass(frozen=True, eq=False)
class EqualNodes:
    """Nodes that decide alike.

    - `members`: their numbers in the problem, at least one.
    - `options`: int64, shape (members, options): the meaning of each option of the class for each
      member; a permutation of the member's options.
    - `first_layer`: the layer of the first member. The others are in the layers after it.
    """

    members: tuple[int, ...]
    options: np.ndarray
    first_layer: int = 0

    @property
    def end_layer(self) -> int:
        """The layer behind the last one."""
        return self.first_layer + len(self.members)

    def split(self, layer: int) -> "tuple[EqualNodes, ...]":
        """The members in the layers before this one, and those from there on."""
        count = min(max(0, layer - self.first_layer), len(self.members))
        before = EqualNodes(self.members[:count], self.options[:count], self.first_layer)
        behind = EqualNodes(self.members[count:], self.options[count:], self.first_layer + count)
        return tuple(part for part in (before, behind) if part.members)


@dataclass(frozen=True, eq=False)
class Tied:
    """A problem in which equal nodes are one, and the way back.

    - `problem`: its k-th node stands for the k-th class.
    - `classes`: every node of the whole problem is in one of them.
    """

    problem: Problem
    classes: tuple[EqualNodes, ...]

    def expanded(self, solution: Sequence[int]) -> tuple[int, ...]:
        """A solution of the tied problem as one of the whole problem."""
        options = np.zeros(sum(len(equal.members) for equal in self.classes), dtype=np.int64)
        for equal, option in zip(self.classes, solution, strict=True):
            options[list(equal.members)] = equal.options[:, option]
        return tuple(options.tolist())

    def tied(self, solution: Sequence[int]) -> tuple[int, ...]:
        """The solution in which each class has the option that most of its members have in a
        solution of the whole problem."""
        taken = (np.array([[solution[m]] for m in equal.members]) for equal in self.classes)
        pairs = zip(self.classes, taken, strict=True)
        return tuple(int((equal.options == own).sum(axis=0).argmax()) for equal, own in pairs)


def tied(problem: Problem, equal: Iterable[EqualNodes]) -> Tied:
    """The problem with each class of `equal` as one node; classes have no member in common."""
    count = len(problem.nodes)
    classes: list[EqualNodes | None] = [None] * count  # by the first member
    alone = np.ones(count, dtype=np.bool_)
    for each in equal:
        classes[min(each.members)] = each
        alone[list(each.members)] = False
    for node in np.flatnonzero(alone).tolist():
        own = np.arange(problem.nodes[node].costs.size)[None, :]
        classes[node] = EqualNodes((node,), own)
    larger = tuple(each for each in classes if each is not None)
    within, between = _merged_edges(problem.edges, _Places.of(larger, count))
    nodes = tuple(
        _merged_node(problem.nodes, each, within.get(number, []))
        for number, each in enumerate(larger)
    )
    return Tied(replace(problem, nodes=nodes, edges=tuple(between)), larger)


@dataclass(frozen=True, eq=False)
class _Places:
    """For each node of the whole problem its class, and what the options of the class mean."""

    class_of: Sequence[int]
    options: Sequence[np.ndarray]

    @classmethod
    def of(cls, classes: Sequence[EqualNodes], count: int) -> "_Places":
        class_of, options = [0] * count, [np.arange(0)] * count
        for number, equal in enumerate(classes):
            for member, own in zip(equal.members, equal.options, strict=True):
                class_of[member], options[member] = number, own
        return cls(class_of, options)


def _merged_node(nodes: Sequence[Node], equal: EqualNodes, within: Sequence["_Lines"]) -> Node:
    """One node for all members; `within`: the edges between them."""
    pairs = [(nodes[m], own) for m, own in zip(equal.members, equal.options, strict=True)]
    costs = np.sum(
        [
            *(node.costs[own] for node, own in pairs),
            *(edge.table[edge.rows, edge.columns] for edge in within),
        ],
        axis=0,
    )
    loads = (
        *((load, load.amounts[own]) for node, own in pairs for load in node.loads),
        *((load, load.amounts[e.rows, e.columns]) for e in within for load in e.loads),
    )
    usage = _merged_usage([[node.usage[o] for o in own] for node, own in pairs])
    on_host = [[node.host_usage[o] for o in own] for node, own in pairs if node.host_usage]
    more = f" and {len(pairs) - 1} equal to it" if len(pairs) > 1 else ""
    name, host_usage = pairs[0][0].name + more, _merged_usage(on_host)
    return Node(name, costs, usage, loads=_added(loads), host_usage=host_usage)


def _merged_usage(
    usages: Sequence[Sequence[tuple[Interval, ...]]],
) -> tuple[tuple[Interval, ...], ...]:
    """For each option the memory of all members."""
    known: dict[tuple[int, ...], tuple[Interval, ...]] = {}
    merged = []
    for held in zip(*usages, strict=True):
        key = tuple(map(id, held))
        if key not in known:  # options that hold equally much share their list
            known[key] = tuple(interval for own in held for interval in own)
        merged.append(known[key])
    return tuple(merged)


def _added(parts: Iterable[tuple[Load, np.ndarray]]) -> tuple[Load, ...]:
    """One load for each window and channel, of amounts that belong to loads."""
    added: dict[tuple[int, int], np.ndarray] = {}
    for load, amounts in parts:
        key = load.window, load.channel
        added[key] = added.get(key, 0.0) + amounts
    return tuple(Load(*key, amounts) for key, amounts in added.items())


@dataclass(frozen=True, eq=False)
class _Lines:
    """A table of costs, and for each option of either class its line; `loads` have the table's
    lines."""

    table: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    loads: tuple[Load, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """The same for equal lines of one table, and of the same loads."""
        loads = ((load.window, load.channel, *_where(load.amounts)) for load in self.loads)
        return _where(self.table), self.rows.tobytes(), self.columns.tobytes(), *loads

    @property
    def turned(self) -> "_Lines":
        """The table turned from head to tail."""
        loads = tuple(replace(load, amounts=load.amounts.T) for load in self.loads)
        return _Lines(self.table.T, self.columns, self.rows, loads)


def _where(array: np.ndarray) -> tuple[object, ...]:
    interface = array.__array_interface__
    return interface["data"][0], interface["shape"], interface["strides"]


def _merged_edges(
    edges: Iterable[Edge], places: _Places
) -> tuple[Mapping[int, list[_Lines]], list[Edge]]:
    """By class the edges within it, and one edge for each two classes with edges between them."""
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
    """The sum of some tables as one edge. Equal tables of equal layers count several times."""
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
    costs = sum(n * line.table[np.ix_(mine, theirs)] for n, line, mine, theirs in tables)
    loads = _added(
        (load, n * load.amounts[np.ix_(mine, theirs)])
        for n, line, mine, theirs in tables
        for load in line.loads
    )
    return Edge(*ends, np.asarray(costs), {}, row_of, column_of, loads)


def _joint(lines: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Lines that distinguish the options that any of the tables distinguishes: (tables, lines) of
    the tables' lines, and for each option its line."""
    stacked = np.stack(list(lines))
    cells, line_of = np.unique(stacked, axis=1, return_inverse=True)
    return cells, line_of.ravel()
