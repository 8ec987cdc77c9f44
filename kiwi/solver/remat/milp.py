"""What the integer programs of this package share: scaling, rows of memory, solving, schedules."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ortools.math_opt.python import mathopt

from kiwi.solver.mathopt_run import solve_model
from kiwi.solver.remat.graph import RematGraph
from kiwi.solver.remat.result import Finding, Task
from kiwi.solver.schedule import Schedule

BUDGET_UNITS = 1e4
"""Memory is scaled so that the budget has this size: tolerances are then far below a byte."""

Cells = dict[tuple[int, int], mathopt.Variable]
"""Variables by (stage, position in the given order)."""
CellValues = Mapping[tuple[int, int], float]
Deletions = Mapping[tuple[int, int], list[tuple[int, mathopt.Variable]]]
"""By (stage, operator): what may leave memory behind it, with the variable that says so."""


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


@dataclass(frozen=True)
class StagesModel:
    """A program over partitioned stages, with the variables that a schedule is read from.

    - `computed[t, k]`: operator k runs in stage t.
    - `kept[t, x]`: x, a value or all outputs of an operator, is in memory when stage t begins.
    """

    model: mathopt.Model
    ranked: RankedGraph
    computed: Cells
    kept: Cells

    def minimise_time(self) -> None:
        """The objective: the time of all that is computed."""
        time = self.ranked.time
        self.model.minimize(
            mathopt.fast_sum(time[k] * run for (_, k), run in self.computed.items())
        )


def add_computed(
    model: mathopt.Model, ranked: RankedGraph, repeatable: Sequence[bool], *, integer: bool
) -> Cells:
    """Stage t ends with operator t; operators that are not `repeatable` run in no other stage."""
    return {
        (t, k): model.add_variable(
            lb=float(k == t),
            ub=float(k == t or repeatable[k]),
            is_integer=integer,
            name=f"R[{t},{k}]",
        )
        for t, k in triangle(ranked.count)
    }


def add_deletions(built: StagesModel, uses: Mapping[tuple[int, int], Sequence[int]]) -> Deletions:
    """What is in memory leaves it after its last use in a stage, unless the next stage keeps it.

    `uses[t, x]`: the operators around x in stage t, in order. Each row states one condition.
    """
    model, deletions = built.model, {}
    for (t, x), around in uses.items():
        for place, k in enumerate(around):
            deleted = model.add_variable(lb=0.0, ub=1.0, name=f"D[{t},{x},{k}]")
            deletions.setdefault((t, k), []).append((x, deleted))
            name = f"deleted[{t},{x},{k}]"
            model.add_linear_constraint(deleted <= built.computed[t, k], name=name)
            if (t + 1, x) in built.kept:
                row = deleted <= 1.0 - built.kept[t + 1, x]
                model.add_linear_constraint(row, name=name + "kept")
            for j in around[place + 1 :]:
                row = deleted <= 1.0 - built.computed[t, j]
                model.add_linear_constraint(row, name=f"{name}{j}")
    return deletions


def add_memory(
    built: StagesModel,
    size: Sequence[float],
    created: Callable[[int, int], mathopt.LinearTypes],
    deletions: Deletions,
    most_after: Mapping[tuple[int, int], float] | None = None,
) -> None:
    """Memory while operator k runs in stage t, `created(t, k)` included, is within the budget.

    `most_after`: limits on what is left behind some (t, k).
    """
    model, ranked = built.model, built.ranked
    at_start: list[list[mathopt.LinearTypes]] = [[] for _ in range(ranked.count + 1)]
    for (t, x), kept in built.kept.items():
        at_start[t].append(size[x] * kept)
    for t in range(ranked.count):
        held = mathopt.fast_sum(at_start[t])
        for k in range(t + 1):
            used = model.add_variable(lb=0.0, ub=BUDGET_UNITS, name=f"U[{t},{k}]")
            model.add_linear_constraint(used == held + created(t, k), name=f"memory[{t},{k}]")
            if ranked.temporary[k]:
                row = used + ranked.temporary[k] * built.computed[t, k] <= BUDGET_UNITS
                model.add_linear_constraint(row, name=f"budget[{t},{k}]")
            gone = (size[x] * deleted for x, deleted in deletions.get((t, k), []))
            held = used - mathopt.fast_sum(gone)
            if most_after and (t, k) in most_after:
                model.add_linear_constraint(held <= most_after[t, k], name=f"after[{t},{k}]")


def schedule_of(ranked: RankedGraph, computed: CellValues) -> Schedule:
    """Stage by stage and in the given order within each, the cells whose value is one."""
    return Schedule(
        tuple(
            ranked.operators[place]
            for stage, place in triangle(ranked.count)
            if computed[stage, place] > 0.5
        )
    )


def solve_stages(built: StagesModel, task: Task) -> Finding:
    """Solves the program by HiGHS and reads the schedule off it."""
    answer = solve_model(built.model, task.remaining_seconds(), task.seed, gap=1e-9)
    schedule = None
    if answer.values is not None:
        values = {cell: answer.values[each] for cell, each in built.computed.items()}
        schedule = schedule_of(built.ranked, values)
    bound_seconds = answer.bound * built.ranked.graph.once_seconds
    return Finding(
        schedule,
        family_bound_seconds=bound_seconds if math.isfinite(answer.bound) else None,
        family_is_infeasible=answer.infeasible,
        iterations=answer.nodes,
        deterministic=not answer.timed_out,
    )
