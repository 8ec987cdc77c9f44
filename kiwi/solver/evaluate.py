"""The referee: what a solution costs and which limits it breaks. Shares nothing with any solver."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kiwi.interval import Interval, curve_bytes
from kiwi.solver.problem import Load, Problem


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A solution, priced.

    - `cost`: node plus edge costs, less what is `hidden`; infinite where something forbidden was
      chosen.
    - `hidden`: the loads that do not count, because another channel's are larger in their window.
    - `loads`: by window and channel.
    - `parts`: the cost by kind, of those nodes and edges that split theirs.
    - `peak_bytes`, `peak_time`: the largest memory use and the first time it is reached.
    - `usage_bytes`: int64, shape (horizon,), the memory held at each time.
    - `host_peak_bytes`: the largest use of the host's memory.
    - `violations`: one sentence for each thing that makes the solution unusable.
    """

    cost: float
    parts: Mapping[str, float]
    peak_bytes: int
    peak_time: int
    usage_bytes: np.ndarray
    violations: tuple[str, ...]
    loads: Mapping[tuple[int, int], float] = field(default_factory=dict)
    hidden: float = 0.0
    host_peak_bytes: int = 0

    @property
    def feasible(self) -> bool:
        """True where nothing is violated."""
        return not self.violations


def evaluate(problem: Problem, solution: Sequence[int]) -> Evaluation:
    """Prices `solution`, one option index per node. Never raises: what is wrong is a violation."""
    violations = _malformed(problem, solution)
    if violations:
        empty = np.zeros(problem.horizon, dtype=np.int64)
        return Evaluation(float("inf"), {}, 0, 0, empty, violations)
    cost, parts, loads, violations = 0.0, {}, {}, ()
    held: list[Interval] = []
    on_host: list[Interval] = []
    for node, option in zip(problem.nodes, solution, strict=True):
        cost += float(node.costs[option])
        _add_parts(parts, node.parts, option)
        _add_loads(loads, node.loads, option)
        if np.isinf(node.costs[option]):
            violations += (f"Option {option} of node {node.name!r} is forbidden.",)
        held += node.usage[option]
        on_host += node.host_usage[option] if node.host_usage else ()
    for edge in problem.edges:
        pair = (solution[edge.tail], solution[edge.head])
        cell = edge.cell(*pair)
        cost += float(edge.costs[cell])
        _add_parts(parts, edge.parts, cell)
        _add_loads(loads, edge.loads, cell)
        if np.isinf(edge.costs[cell]):
            names = (problem.nodes[edge.tail].name, problem.nodes[edge.head].name)
            violations += (f"Options {pair} of nodes {names} are forbidden together.",)
    usage_bytes = curve_bytes(held, problem.horizon)
    host_peak_bytes = int(curve_bytes(on_host, problem.horizon).max(initial=0))
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
    peak = peak_bytes, peak_time, usage_bytes
    return Evaluation(cost - hidden, parts, *peak, violations, loads, hidden, host_peak_bytes)


def fitting(
    problem: Problem, solutions: Iterable[tuple[int, ...]]
) -> list[tuple[float, tuple[int, ...]]]:
    """The feasible ones of several solutions with their costs, the cheapest first."""
    priced = ((evaluate(problem, solution), solution) for solution in solutions)
    return sorted((price.cost, solution) for price, solution in priced if price.feasible)


def hidden_amount(loads: Mapping[tuple[int, int], float]) -> float:
    """What does not count of loads by window and channel: in each window all but the largest."""
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


def _add_loads(
    total: dict[tuple[int, int], float], loads: Sequence[Load], index: int | tuple[int, int]
) -> None:
    for load in loads:
        key = (load.window, load.channel)
        total[key] = total.get(key, 0.0) + float(load.amounts[index])


def _add_parts(
    total: dict[str, float], parts: Mapping[str, np.ndarray], index: int | tuple[int, int]
) -> None:
    for kind, costs in parts.items():
        total[kind] = total.get(kind, 0.0) + float(costs[index])
