"""The referee: prices solutions and finds the limits that they break, without any code of a
solver."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kiwi.solver.columns import Columns
from kiwi.solver.problem import Problem


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A priced solution.

    - `cost`: node plus edge costs, less `hidden`; infinite if a forbidden option or pair was
      chosen.
    - `problem`, `solution`: the problem, and the option of each node. `solution` is empty if it did
      not name an option of every node.
    - `hidden`: the sum of the loads that do not count, because another channel has a larger load in
      the same window.
    - `loads`: the load by window and channel.
    - `peak_bytes`, `peak_time`: the largest use of device memory and the first time it is reached.
    - `usage_bytes`: int64, shape (horizon,), the device memory held at each time.
    - `host_peak_bytes`: the largest use of the host's memory.
    - `violations`: one sentence for each reason for which the solution cannot be used.
    """

    cost: float
    peak_bytes: int
    peak_time: int
    usage_bytes: np.ndarray
    violations: tuple[str, ...]
    problem: Problem
    solution: tuple[int, ...] = ()
    loads: Mapping[tuple[int, int], float] = field(default_factory=dict)
    hidden: float = 0.0
    host_peak_bytes: int = 0

    @property
    def feasible(self) -> bool:
        """Whether the solution violates nothing."""
        return not self.violations

    @functools.cached_property
    def parts(self) -> Mapping[str, float]:
        """The cost by kind, summed over the nodes and edges that have `parts`."""
        seconds: dict[str, float] = {}
        if not self.solution:
            return seconds
        for node, option in zip(self.problem.nodes, self.solution, strict=True):
            _add_parts(seconds, node.parts, option)
        for edge in self.problem.edges:
            cell = edge.cell(self.solution[edge.tail], self.solution[edge.head])
            _add_parts(seconds, edge.parts, cell)
        return seconds


def evaluate(problem: Problem, solution: Sequence[int]) -> Evaluation:
    """Prices `solution`, one option index per node. Never raises: faults are `violations`."""
    violations = _malformed(problem, solution)
    if violations:
        empty = np.zeros(problem.horizon, dtype=np.int64)
        return Evaluation(float("inf"), 0, 0, empty, violations, problem)
    columns = Columns.of(problem)
    cells = columns.cells(np.array(solution, dtype=np.int64))
    amounts = columns.amounts(cells)
    # cumsum adds in order; sum adds in pairs, and its rounding depends on the number of amounts.
    cost = float(np.cumsum(amounts)[-1]) if len(amounts) else 0.0
    loads = columns.loads.totals(cells)
    if not np.isfinite(amounts).all():
        violations = tuple(_forbidden(problem, solution, amounts))
    usage_bytes, host_bytes = _usage(problem, solution, columns)
    host_peak_bytes = int(host_bytes.max(initial=0))
    peak_time = int(np.argmax(usage_bytes)) if problem.horizon else 0
    peak_bytes = int(usage_bytes[peak_time]) if problem.horizon else 0
    if problem.host_limit_bytes is not None and host_peak_bytes > problem.host_limit_bytes:
        violations += (
            f"{host_peak_bytes} bytes of the host's memory, of which the limit is "
            f"{problem.host_limit_bytes}.",
        )
    if problem.limit_bytes is not None and peak_bytes > problem.limit_bytes:
        violations += (
            f"{peak_bytes} bytes at time {peak_time}, the limit is {problem.limit_bytes}.",
        )
    hidden = hidden_amount(loads)
    return Evaluation(
        cost - hidden,
        peak_bytes,
        peak_time,
        usage_bytes,
        violations,
        problem,
        tuple(solution),
        loads,
        hidden,
        host_peak_bytes,
    )


def _usage(
    problem: Problem, solution: Sequence[int], columns: Columns
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bytes that a solution holds at each time, on the device and on the host."""
    chosen = [*zip(problem.nodes, solution, strict=True)]
    device = [node.usage[option] for node, option in chosen]
    host = [node.host_usage[option] for node, option in chosen if node.host_usage]
    return columns.curve_bytes(device, problem.horizon), columns.curve_bytes(host, problem.horizon)


def _forbidden(problem: Problem, solution: Sequence[int], amounts: np.ndarray) -> Iterator[str]:
    """Yields a sentence for each infinite cost, nodes before edges. `amounts`: see
    `Columns.amounts`."""
    count = len(problem.nodes)
    for part in np.flatnonzero(np.isinf(amounts)).tolist():
        if part < count:
            name = problem.nodes[part].name
            yield f"Option {solution[part]} of node {name!r} is forbidden."
            continue
        edge = problem.edges[part - count]
        pair = (solution[edge.tail], solution[edge.head])
        names = (problem.nodes[edge.tail].name, problem.nodes[edge.head].name)
        yield f"Options {pair} of nodes {names} are forbidden together."


def fitting(
    problem: Problem, solutions: Iterable[tuple[int, ...]]
) -> list[tuple[float, tuple[int, ...]]]:
    """Returns the feasible solutions among `solutions` with their costs, the cheapest first."""
    priced = ((evaluate(problem, solution), solution) for solution in solutions)
    return sorted((price.cost, solution) for price, solution in priced if price.feasible)


def hidden_amount(loads: Mapping[tuple[int, int], float]) -> float:
    """Returns the part of the loads that does not count: in each window, the sum of all but the
    largest. `loads`: by window and channel."""
    by_window: dict[int, list[float]] = {}
    for (window, _), amount in loads.items():
        by_window.setdefault(window, []).append(amount)
    return sum(sum(amounts) - max(amounts) for amounts in by_window.values())


def _malformed(problem: Problem, solution: Sequence[int]) -> tuple[str, ...]:
    if len(solution) != len(problem.nodes):
        return (f"{len(solution)} choices for {len(problem.nodes)} nodes.",)
    pairs = zip(problem.nodes, solution, strict=True)
    return tuple(
        f"Node {node.name!r} has no option {option}, only {node.costs.size}."
        for node, option in pairs
        if not 0 <= option < node.costs.size
    )


def _add_parts(
    total: dict[str, float], parts: Mapping[str, np.ndarray], index: int | tuple[int, int]
) -> None:
    for kind, costs in parts.items():
        total[kind] = total.get(kind, 0.0) + float(costs[index])
