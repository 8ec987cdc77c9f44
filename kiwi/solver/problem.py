"""The optimisation problem that every planner solves: choices with costs, under a memory limit that
holds at every point of time.

Sets and data:

- nodes `i` with options `o`: each option has a cost and a list of half-open intervals of time in
  which it holds memory;
- edges `(i, j)` with a cost for every pair of options, infinite where the pair is forbidden;
- a limit in bytes that holds at every point of time `0 .. horizon - 1`.

A solution names one option per node. Its cost is the sum of the chosen node and edge costs. It is
feasible if that cost is finite and the bytes held never exceed the limit. The ASPLOS/EuroSys 2025
contest on intra-operator parallelism states the same problem; there a node has one interval, here
each option has a list of intervals. The host's memory is a second memory with its own limit over
the same times.

Channels (the arithmetic units, the links) work at the same time. A part of a cost may be the load
of a channel in a window of time. In each window only the channel with the largest load counts:

    cost = sum of costs - sum over windows of (sum over channels of load - largest load)
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from kiwi.errors import InvalidProblemError
from kiwi.interval import Interval as Interval

PARTS_RELATIVE_TOLERANCE = 1e-6
"""The largest relative difference between a cost and the sum of its parts, which are added in
floating point. `InvalidProblemError` beyond it."""

MOST_COST = 1e150
"""The largest sum of costs: solvers multiply costs without overflow up to here.
`InvalidProblemError` beyond it."""

MOST_BYTES = 2**60
"""The largest sum of bytes: 64-bit integers hold the solvers' differences and priced sums of bytes
up to here. `InvalidProblemError` beyond it."""


@dataclass(frozen=True, eq=False)
class Load:
    """The part of the costs of a node or an edge that is the load of a channel in a window of time.

    - `window`, `channel`: numbers of both.
    - `amounts`: the load of each option or pair, in the unit and shape of the costs.
    """

    window: int
    channel: int
    amounts: np.ndarray


@dataclass(frozen=True, eq=False)
class Node:
    """A choice among k options.

    - `name`: the name in messages.
    - `costs`: float64, shape (k,); an infinite cost forbids the option.
    - `usage`: for each of the k options, the intervals in which it holds device memory.
    - `parts`: the costs split by kind ("compute", "communication", ...), each array of shape (k,).
      If there are any, they sum to `costs`.
    - `loads`: the parts of `costs` that are loads of channels.
    - `host_usage`: like `usage`, for the host's memory; empty if no option holds any.

    **Raises:** `InvalidProblemError` if there is no option, a cost is NaN or -inf, or an array or
    tuple does not have one entry per option.
    """

    name: str
    costs: np.ndarray
    usage: tuple[tuple[Interval, ...], ...]
    parts: Mapping[str, np.ndarray] = field(default_factory=dict)
    loads: tuple[Load, ...] = ()
    host_usage: tuple[tuple[Interval, ...], ...] = ()

    def __post_init__(self) -> None:
        what = f"Node {self.name!r}"
        object.__setattr__(self, "costs", _checked_costs(self.costs, 1, what))
        if self.costs.size == 0:
            raise InvalidProblemError(
                f"{what} has no options.",
                cause="every option was filtered out before the problem was built",
                suggestion="leave at least one option for each node",
            )
        for usage in (self.usage, self.host_usage or self.usage):
            if len(usage) != self.costs.size:
                raise InvalidProblemError(
                    f"{what} has {self.costs.size} costs but {len(usage)} lists of intervals.",
                    cause="costs and usage were built from different lists of options",
                    suggestion="give one tuple of intervals for each option, empty where none",
                )
        _check_parts(self.costs, self.parts, what)
        _check_loads(self.costs, self.loads, what)

    @functools.cached_property
    def held(self) -> tuple[int, int]:
        """The largest sum of bytes of one option's intervals, and the end of the last interval.

        The value is cached: problems that differ only in their limits share their nodes.
        """
        most_bytes = last_end = 0
        for option in {id(option): option for option in (*self.usage, *self.host_usage)}.values():
            total_bytes = 0
            for interval in option:
                total_bytes += interval.bytes
                last_end = max(last_end, interval.end)
            most_bytes = max(most_bytes, total_bytes)
        return most_bytes, last_end

    @functools.cached_property
    def largest_cost(self) -> float:
        """The largest absolute value of a finite cost."""
        return _largest_finite(self.costs)


@dataclass(frozen=True, eq=False)
class Edge:
    """A cost for each pair of options of two nodes. The costs of several edges between the same two
    nodes add up.

    Options of a node that cost the same with every partner may share a row or column of the matrix.
    If both nodes have 600 options (20 shardings x 30 residencies) and only the shardings matter,
    the matrix has 400 entries instead of 360,000.

    - `tail`, `head`: indices of two different nodes.
    - `costs`: float64, shape (rows, columns); an infinite cost forbids the pair.
    - `parts`, `loads`: as in `Node`, in the shape of `costs`.
    - `tail_class`, `head_class`: the row of each option of the tail, and the column of each option
      of the head. By default option k has row or column k.

    Arrays are not copied and must not be changed afterwards.

    **Raises:** `InvalidProblemError` if both ends are the same node, a cost is NaN or -inf, or the
    shapes do not agree.
    """

    tail: int
    head: int
    costs: np.ndarray
    parts: Mapping[str, np.ndarray] = field(default_factory=dict)
    tail_class: np.ndarray = field(default_factory=lambda: np.arange(0))
    head_class: np.ndarray = field(default_factory=lambda: np.arange(0))
    loads: tuple[Load, ...] = ()

    def __post_init__(self) -> None:
        what = f"Edge ({self.tail}, {self.head})"
        object.__setattr__(self, "costs", _checked_costs(self.costs, 2, what))
        if self.tail == self.head:
            raise InvalidProblemError(
                f"{what} joins a node with itself.",
                cause="an operator that reads its own result",
                suggestion="add the diagonal of the matrix to the costs of the node",
            )
        _check_parts(self.costs, self.parts, what)
        _check_loads(self.costs, self.loads, what)
        for name, count in zip(("tail_class", "head_class"), self.costs.shape, strict=True):
            object.__setattr__(self, name, _checked_classes(getattr(self, name), count, what))

    @functools.cached_property
    def largest_cost(self) -> float:
        """The largest absolute value of a finite cost."""
        return _largest_finite(self.costs)

    @property
    def option_counts(self) -> tuple[int, int]:
        """The number of options of the tail and of the head."""
        return len(self.tail_class), len(self.head_class)

    def cell(self, tail_option: int, head_option: int) -> tuple[int, int]:
        """Returns the row and column of a pair of options in `costs`, `parts` and `loads`."""
        return int(self.tail_class[tail_option]), int(self.head_class[head_option])


@dataclass(frozen=True, eq=False)
class Problem:
    """The nodes and edges of a problem, and its memory limits.

    - `limit_bytes`: the limit of the device's memory at each time; None for no limit.
    - `horizon`: the number of points of time. They are 0 .. horizon - 1.
    - `host_limit_bytes`: the limit of the host's memory at each time; None for no limit.

    **Raises:** `InvalidProblemError` if a limit is negative, an edge does not fit its nodes, an
    interval ends after the horizon, or the costs or bytes sum to more than `MOST_COST` or
    `MOST_BYTES`.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    limit_bytes: int | None
    horizon: int
    host_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        object.__setattr__(self, "edges", tuple(self.edges))
        for limit in (self.limit_bytes, self.host_limit_bytes):
            if limit is not None and limit < 0:
                raise InvalidProblemError(
                    f"The limit is {limit} bytes.",
                    cause="a budget that became negative by subtraction",
                    suggestion="give a limit of 0 or more, or None for no limit",
                )
        _check_bytes(self.nodes, self.horizon)
        _check_total_cost(self.nodes, self.edges)
        for edge in self.edges:
            _check_edge_fits(edge, self.nodes)

    @property
    def option_count(self) -> int:
        """The number of options of all nodes together."""
        return sum(node.costs.size for node in self.nodes)


def _checked_costs(costs: np.ndarray, dimensions: int, what: str) -> np.ndarray:
    array = np.asarray(costs, dtype=np.float64).view()
    if array.ndim != dimensions:
        raise InvalidProblemError(
            f"{what} has costs of shape {array.shape}, expected {dimensions} dimension(s).",
            suggestion="node costs are vectors, edge costs matrices",
        )
    if array.size and not array.min() > -np.inf:  # a NaN makes the minimum NaN
        raise InvalidProblemError(
            f"{what} has the cost {array.min()}.",
            cause="a division by zero or an overflow where the costs were computed",
            suggestion="costs are finite numbers, or +inf for what is forbidden",
        )
    array.setflags(write=False)
    return array


def _check_parts(costs: np.ndarray, parts: Mapping[str, np.ndarray], what: str) -> None:
    if not parts:
        return
    for kind, part in parts.items():
        if np.shape(part) != costs.shape:
            raise InvalidProblemError(
                f"{what} has part {kind!r} of shape {np.shape(part)}, its costs {costs.shape}.",
                suggestion="give every part the shape of the costs",
            )
    total = functools.reduce(np.add, (np.asarray(part, np.float64) for part in parts.values()))
    if not (
        np.array_equal(total, costs)
        or np.allclose(total, costs, rtol=PARTS_RELATIVE_TOLERANCE, atol=0.0)
    ):
        raise InvalidProblemError(
            f"{what} has parts {sorted(parts)} that do not sum to its costs.",
            cause="a kind of cost was added to the total and to no part, or the other way round",
            suggestion="compute the costs as the sum of the parts",
        )


def _check_loads(costs: np.ndarray, loads: tuple[Load, ...], what: str) -> None:
    for load in loads:
        if np.shape(load.amounts) != costs.shape or not np.isfinite(load.amounts).all():
            raise InvalidProblemError(
                f"{what} has a load of shape {np.shape(load.amounts)}, its costs {costs.shape}.",
                cause="a load of another shape, or an infinite one",
                suggestion="give loads the shape of the costs; forbid options by costs",
            )


def _checked_classes(lines: np.ndarray, count: int, what: str) -> np.ndarray:
    lines = np.asarray(lines)
    if lines.ndim != 1 or lines.dtype.kind not in "iu":
        raise InvalidProblemError(
            f"{what} has classes of shape {lines.shape} and type {lines.dtype}.",
            suggestion="give one integer for each option: its line of `costs`",
        )
    if len(lines) and not 0 <= lines.min() <= lines.max() < count:
        raise InvalidProblemError(
            f"{what} has classes {lines.min()} .. {lines.max()} for {count} lines.",
            suggestion="classes number the lines of `costs`, from 0",
        )
    return lines.astype(np.int64, copy=False) if len(lines) else np.arange(count)


def _largest_finite(costs: np.ndarray) -> float:
    return float(np.abs(costs[np.isfinite(costs)]).max(initial=0.0))


def _check_bytes(nodes: tuple[Node, ...], horizon: int) -> None:
    for node in nodes:
        if node.held[1] > horizon:
            raise InvalidProblemError(
                f"Node {node.name!r} holds memory until {node.held[1]}, behind the horizon "
                f"{horizon}.",
                cause="a live range that was computed for another schedule",
                suggestion="make the horizon at least the largest end of an interval",
            )
    total = sum(node.held[0] for node in nodes)
    if total > MOST_BYTES:
        raise InvalidProblemError(
            f"The nodes can hold {total} bytes together, more than {MOST_BYTES}.",
            cause="sizes in the wrong unit, or an overflow where they were computed",
            suggestion="give sizes in bytes, or in a larger unit throughout",
        )


def _check_total_cost(nodes: tuple[Node, ...], edges: tuple[Edge, ...]) -> None:
    """Raises if a sum of finite costs could overflow, since infinity means forbidden."""
    total = sum(node.largest_cost for node in nodes) + sum(edge.largest_cost for edge in edges)
    if not total <= MOST_COST:
        raise InvalidProblemError(
            f"The costs sum to as much as {total}, more than {MOST_COST}.",
            cause="a large number that stands for forbidden, or an overflow",
            suggestion="forbid with infinite costs, and scale the others down",
        )


def _check_edge_fits(edge: Edge, nodes: tuple[Node, ...]) -> None:
    for end in (edge.tail, edge.head):
        if not 0 <= end < len(nodes):
            raise InvalidProblemError(
                f"Edge ({edge.tail}, {edge.head}) names node {end} of {len(nodes)}.",
                suggestion="edges name nodes by their index in `nodes`",
            )
    expected = (nodes[edge.tail].costs.size, nodes[edge.head].costs.size)
    if edge.option_counts != expected:
        raise InvalidProblemError(
            f"Edge ({edge.tail}, {edge.head}) has costs for {edge.option_counts} options, "
            f"expected {expected}.",
            cause="the matrix is transposed, or options were dropped after it was built",
            suggestion="rows are options of the tail, columns options of the head",
        )
