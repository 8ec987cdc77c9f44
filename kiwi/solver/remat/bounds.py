"""Bounds on memory that hold for every schedule of a graph, and the order's own peak."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kiwi.errors import InvalidArgumentError
from kiwi.solver.remat.graph import RematGraph
from kiwi.solver.remat.simulate import simulate
from kiwi.solver.schedule import Schedule


@dataclass(frozen=True)
class WorkingSet:
    """The memory that one operator (or the end of the step, `operator` -1) cannot do without.

    Its inputs, outputs and temporary memory, and the inputs of the graph.
    """

    operator: int
    size_bytes: int


def largest_working_set(graph: RematGraph) -> WorkingSet:
    """The largest working set: a lower bound on the peak of every schedule."""

    def working_set(operator: int, values: Iterable[int], temporary_bytes: int) -> WorkingSet:
        computed_bytes = graph.bytes_of(v for v in values if graph.producer[v] >= 0)
        return WorkingSet(operator, computed_bytes + temporary_bytes + graph.resident_bytes)

    sets = [
        working_set(k, each.inputs + each.outputs, each.temporary_bytes)
        for k, each in enumerate(graph.operators)
    ]
    return max([*sets, working_set(-1, graph.results, 0)], key=lambda each: each.size_bytes)


def order_peak_bytes(graph: RematGraph) -> int:
    """The peak of the given order, without recomputation."""
    return simulate(graph, Schedule(graph.order)).peak_bytes


def evenly(low: int, high: int, count: int) -> list[int]:
    """`count` integers from above `low` up to `high`, without repetition."""
    return sorted({low + (high - low) * (k + 1) // count for k in range(count)})


def budget_from_share(graph: RematGraph, share: float) -> int:
    """`share` of the given order's peak in bytes, rounded up; raises
    `kiwi.errors.InvalidArgumentError` unless `share` is positive."""
    if not share > 0:
        raise InvalidArgumentError(f"the share of the peak must be positive, not {share}")
    # 0.7 * peak in floating point may fall just above an integer: round to 1e-9 shares first.
    return math.ceil(round(share * 10**9) * order_peak_bytes(graph) / 10**9)
