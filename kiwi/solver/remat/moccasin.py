"""Moccasin (Bartan et al., ICML 2023): retention intervals in CP-SAT, at most C computations each.

Time has one slot for each stage and operator; a stage ends with the first computation of an
operator in the given order. That is the program of `kiwi.solver.remat.neighbourhood` around the
given order, with C - 1 recomputations of every operator. With C = n, the copies do not bind, and
the schedules are those of Checkmate.
"""

from ortools.sat.python import cp_model

from kiwi.solver.remat.neighbourhood import Frame, RetentionModel, time_unit
from kiwi.solver.remat.result import Finding, Task

MOST_COPIES = 2


def moccasin(task: Task, copies: int = MOST_COPIES) -> Finding:
    """The best schedule with at most `copies` computations of each operator, by CP-SAT."""
    graph = task.graph
    free = [k for k in graph.order if graph.operators[k].recomputable]
    built = RetentionModel(graph, Frame(graph.order, {k: [] for k in free}), copies - 1)
    built.add_budget(task.budget_bytes)
    built.add_hints()
    unit = time_unit(graph)
    once = sum(round(operator.compute_seconds / unit) for operator in graph.operators)
    built.model.minimize(once + built.recomputation_units())
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.01, task.remaining_seconds())
    solver.parameters.random_seed = task.seed % (1 << 30)
    solver.parameters.num_workers = 2
    status = solver.solve(built.model)
    infeasible = status == cp_model.INFEASIBLE
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Finding(None, family_is_infeasible=infeasible, deterministic=infeasible)
    return Finding(
        built.schedule(solver),
        family_bound_seconds=solver.best_objective_bound * unit,
        iterations=solver.num_branches,
        deterministic=status == cp_model.OPTIMAL,
    )
