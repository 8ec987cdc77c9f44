"""Checkmate's linear relaxation, solved by PDLP and rounded (FastSA, appendices A.1 and D.2).

What is kept between stages is rounded by 0.5 and by random thresholds; what must be computed
follows. The best rounding by the simulator is returned.
"""

import datetime
import random
from collections.abc import Mapping

from ortools.math_opt.python import mathopt

from kiwi.solver.quiet import quiet_stdout
from kiwi.solver.remat.checkmate import checkmate_program
from kiwi.solver.remat.result import Finding, Task, candidate
from kiwi.solver.remat.simulate import violations
from kiwi.solver.remat.stages import StageGraph, StageProgram
from kiwi.solver.schedule import Schedule

BUDGET_SHARES = (0.9, 1.0)
"""For which the relaxation is solved; the second where it cannot meet the first."""
TOLERANCE = 1e-4
RANDOM_THRESHOLDS = 100


def checkmate_lp(task: Task) -> Finding:
    """The best rounding of the relaxation."""
    for share in BUDGET_SHARES:
        built = checkmate_program(task, integer=False, budget_share=share)
        with quiet_stdout():
            result = mathopt.solve(built.model, mathopt.SolverType.PDLP, params=_parameters(task))
        if result.has_primal_feasible_solution():
            return _rounded(task, built, result)
    return Finding(None, deterministic=not _timed_out(result))


def _rounded(task: Task, built: StageProgram, result: mathopt.SolveResult) -> Finding:
    kept = {cell: result.variable_values(each) for cell, each in built.present.items()}
    draw = random.Random(task.seed)
    thresholds = [0.5] + [draw.random() for _ in range(RANDOM_THRESHOLDS)]
    rounded = {round_kept(built.graph, kept, threshold).steps for threshold in thresholds}
    schedules = [Schedule(steps) for steps in sorted(rounded)]
    valid = [candidate(task, each) for each in schedules if not violations(task.graph, each)]
    best = min(valid, key=lambda c: c.rank, default=None)
    return Finding(
        None if best is None else best.schedule,
        iterations=len(rounded),
        deterministic=not _timed_out(result),
    )


def round_kept(
    graph: StageGraph, kept: Mapping[tuple[int, int], float], threshold: float
) -> Schedule:
    """Keeps what exceeds `threshold`, and computes what is needed then, stage by stage.

    What may not be computed again is kept until its last reader's first computation. Where a
    recomputation needs it later still, the schedule is not valid.
    """
    lasts = {d for d in graph.writer if not graph.nodes[d].repeatable}
    steps: list[int] = []
    there: set[int] = set()
    for t in range(len(graph.nodes)):
        following = {i for i in range(t + 1) if kept.get((t + 1, i), 0.0) > threshold}
        following |= {i for i in lasts if i <= t < max(graph.readers[i], default=-1)}
        if t == len(graph.nodes) - 1:
            following |= graph.results
        needed = {t} | (following - there)
        for i in range(t, -1, -1):
            if i in needed:
                needed |= graph.nodes[i].parts[0].reads - there
        steps += graph.steps_of((i, 0) for i in sorted(needed))
        there = following & (there | needed)
    return Schedule(tuple(steps))


def _parameters(task: Task) -> mathopt.SolveParameters:
    limit = datetime.timedelta(seconds=max(0.01, 0.9 * task.remaining_seconds()))
    parameters = mathopt.SolveParameters(time_limit=limit)
    criteria = parameters.pdlp.termination_criteria.simple_optimality_criteria
    criteria.eps_optimal_relative = criteria.eps_optimal_absolute = TOLERANCE
    return parameters


def _timed_out(result: mathopt.SolveResult) -> bool:
    return result.termination.limit == mathopt.Limit.TIME
