"""What the integer programs of this package share: scaling, solving, reading off schedules."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ortools.math_opt.python import mathopt

from kiwi.solver.mathopt_run import solve_by_highs
from kiwi.solver.remat.graph import RematGraph
from kiwi.solver.remat.result import Finding, Task
from kiwi.solver.schedule import Schedule

BUDGET_UNITS = 1e4
"""Memory is scaled so that the budget has this size: tolerances are then far below a byte."""

Cells = dict[tuple[int, int], mathopt.Variable]
"""Variables by (stage, position in the given order)."""
CellValues = Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class RankedGraph:
    """A graph whose operators are numbered by their position in the given order.

    Memory is in units of `budget_bytes / BUDGET_UNITS` after subtraction of the inputs of the
    graph, time in units of the time of all operators together. Values that no operator
    writes are left out of `inputs`.
    """

    graph: RematGraph
    operators: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    size: tuple[float, ...]
    temporary: tuple[float, ...]
    time: tuple[float, ...]
    recomputable: tuple[bool, ...]
    writer: Mapping[int, int]
    readers: Mapping[int, tuple[int, ...]]

    @property
    def count(self) -> int:
        """The number of operators, and of stages."""
        return len(self.operators)


def ranked_graph(graph: RematGraph, budget_bytes: float) -> RankedGraph:
    """`graph` in the given order and scaled to `budget_bytes`."""
    unit = BUDGET_UNITS / max(1.0, budget_bytes - graph.resident_bytes)
    rank = {operator: place for place, operator in enumerate(graph.order)}
    listed = [graph.operators[operator] for operator in graph.order]
    written = [value for value, producer in enumerate(graph.producer) if producer >= 0]
    total = graph.once_seconds or 1.0
    return RankedGraph(
        graph,
        graph.order,
        tuple(tuple(v for v in each.inputs if graph.producer[v] >= 0) for each in listed),
        tuple(each.outputs for each in listed),
        tuple(value.size_bytes * unit for value in graph.values),
        tuple(each.temporary_bytes * unit for each in listed),
        tuple(each.compute_seconds / total for each in listed),
        tuple(each.recomputable for each in listed),
        {value: rank[graph.producer[value]] for value in written},
        {value: tuple(sorted(rank[r] for r in graph.readers[value])) for value in written},
    )


def triangle(count: int) -> list[tuple[int, int]]:
    """(stage, position) with position <= stage, stage by stage."""
    return [(stage, place) for stage in range(count) for place in range(stage + 1)]


def schedule_of(ranked: RankedGraph, computed: CellValues) -> Schedule:
    """Stage by stage and in the given order within each, the cells whose value is one."""
    return Schedule(
        tuple(
            ranked.operators[place]
            for stage, place in triangle(ranked.count)
            if computed[stage, place] > 0.5
        )
    )


def solve_stages(model: mathopt.Model, ranked: RankedGraph, computed: Cells, task: Task) -> Finding:
    """Solves `model` by HiGHS and reads the schedule off `computed`."""
    answer = solve_by_highs(model, task.remaining_seconds(), task.seed, gap=1e-9)
    schedule = None
    if answer.values is not None:
        values = {cell: answer.values[each] for cell, each in computed.items()}
        schedule = schedule_of(ranked, values)
    bound_seconds = answer.bound * ranked.graph.once_seconds
    return Finding(
        schedule,
        family_bound_seconds=bound_seconds if math.isfinite(answer.bound) else None,
        family_is_infeasible=answer.infeasible,
        iterations=answer.nodes,
        deterministic=not answer.timed_out,
    )
