"""Checkmate and rk-checkmate: the best schedule by stages in the given order, by HiGHS.

Both are the program of `kiwi.literature.remat.stages` with a node for each operator. Checkmate
(Jain et al., MLSys 2020; text in Zhao's thesis, section 2.1.1) keeps or drops all outputs of an
operator together. rk-checkmate (section 2.4) keeps or drops each output separately. Phantoms (a
framework's hidden saved tensors) are not used: a value that the backward pass reads is listed as a
value.

Checkmate's linear relaxation is solved by PDLP and rounded (FastSA, appendices A.1 and D.2). Values
kept between stages are rounded by 0.5 and by random thresholds; then the operators that must run
follow. The rounding that is best when simulated is returned.
"""

import datetime
import math
import random
from collections import Counter
from collections.abc import Mapping

from ortools.math_opt.python import mathopt

from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.result import Finding, Task, candidate
from kiwi.literature.remat.simulate import violations
from kiwi.literature.remat.stages import Node, Part, StageGraph, StageProgram, Substep
from kiwi.solver.mathopt_run import quiet_stdout, solve_model
from kiwi.solver.schedule import Schedule

GAP = 1e-9

BUDGET_SHARES = (0.9, 1.0)
"""The shares of the budget for which the relaxation is solved. A later share is used only if the
relaxation cannot meet the earlier one."""
TOLERANCE = 1e-4
RANDOM_THRESHOLDS = 100


def checkmate(task: Task) -> Finding:
    """Returns the best schedule in which all outputs of an operator are kept together."""
    return _solved(task, checkmate_program(task))


def checkmate_program(
    task: Task, *, integer: bool = True, budget_share: float = 1.0
) -> StageProgram:
    """Returns Checkmate's program for `budget_share` of the budget, or its linear relaxation."""
    budget_bytes = budget_share * (task.budget_bytes - task.graph.resident_bytes)
    graph = stage_graph(task.graph, joined=True)
    return StageProgram(graph, budget_bytes, once=True, integer=integer)


def rk_checkmate(task: Task, loss: int = -1, save_bytes: int | None = None) -> Finding:
    """Returns the best schedule in which each value is kept separately.

    At most `save_bytes` are in memory after the first (and only) computation of operator `loss`.
    None means no such limit.
    """
    resident_bytes = task.graph.resident_bytes
    limit_bytes = None if save_bytes is None else save_bytes - resident_bytes
    graph, budget_bytes = stage_graph(task.graph, loss), task.budget_bytes - resident_bytes
    return _solved(task, StageProgram(graph, budget_bytes, limit_bytes))


def stage_graph(graph: RematGraph, loss: int = -1, *, joined: bool = False) -> StageGraph:
    """Returns the stage graph in which node k is the k-th operator of the given order.

    If `joined`, value k stands for all values that node k writes. Otherwise values have their
    numbers in `graph`. Operator `loss` runs once.
    """
    rank = {k: place for place, k in enumerate(graph.order)}
    number = {
        value: rank[writer] if joined else value
        for value, writer in enumerate(graph.producer)
        if writer >= 0
    }
    size_bytes: Counter[int] = Counter()
    for value, d in number.items():
        size_bytes[d] += graph.values[value].size_bytes
    nodes = []
    for k in graph.order:
        operator = graph.operators[k]
        reads = frozenset(number[value] for value in operator.inputs if value in number)
        part = Part((k,), operator.compute_seconds, reads, (Substep(operator.temporary_bytes),))
        nodes.append(Node((part,), repeatable=operator.recomputable and k != loss))
    return StageGraph(
        tuple(nodes),
        size_bytes,
        {d: rank[graph.producer[value]] for value, d in number.items()},
        frozenset(number[value] for value in graph.results if value in number),
        loss=rank.get(loss, -1),
    )


def _solved(task: Task, program: StageProgram) -> Finding:
    answer = solve_model(program.model, task.remaining_seconds(), task.seed, GAP)
    values, schedule = answer.values, None
    if values is not None:
        schedule = Schedule(program.graph.steps_of(program.runs(values)))
    bound_seconds = answer.bound * program.graph.once_seconds
    return Finding(
        schedule,
        family_bound=bound_seconds if math.isfinite(answer.bound) else None,
        family_is_infeasible=answer.infeasible,
        iterations=answer.nodes,
        deterministic=not answer.timed_out,
    )


def checkmate_lp(task: Task, thresholds: int = RANDOM_THRESHOLDS) -> Finding:
    """Returns the best rounding of the relaxation, at 0.5 and at `thresholds` random thresholds."""
    for share in BUDGET_SHARES:
        built = checkmate_program(task, integer=False, budget_share=share)
        with quiet_stdout():
            result = mathopt.solve(built.model, mathopt.SolverType.PDLP, params=_parameters(task))
        if result.has_primal_feasible_solution():
            return _rounded(task, built, result, thresholds)
    return Finding(None, deterministic=not _timed_out(result))


def _rounded(task: Task, built: StageProgram, result: mathopt.SolveResult, count: int) -> Finding:
    kept = {cell: result.variable_values(variable) for cell, variable in built.present.items()}
    draw = random.Random(task.seed)
    thresholds = [0.5] + [draw.random() for _ in range(count)]
    rounded = {round_kept(built.graph, kept, threshold).steps for threshold in thresholds}
    schedules = [Schedule(steps) for steps in sorted(rounded)]
    valid = [
        candidate(task, schedule) for schedule in schedules if not violations(task.graph, schedule)
    ]
    best = min(valid, key=lambda rounding: rounding.rank, default=None)
    return Finding(
        None if best is None else best.schedule,
        iterations=len(rounded),
        deterministic=not _timed_out(result),
    )


def round_kept(
    graph: StageGraph, kept: Mapping[tuple[int, int], float], threshold: float
) -> Schedule:
    """Returns the schedule that keeps values above `threshold` and computes what is then needed.

    `kept[t, d]` says how far value d is present when stage t begins. A value that may not be
    computed again is kept until the first computation of its last reader. If a recomputation needs
    the value later, the schedule is not valid.
    """
    lasts = {d for d in graph.writer if not graph.nodes[d].repeatable}
    steps: list[int] = []
    present: set[int] = set()
    for t in range(len(graph.nodes)):
        following = {i for i in range(t + 1) if kept.get((t + 1, i), 0.0) > threshold}
        following |= {i for i in lasts if i <= t < max(graph.readers[i], default=-1)}
        if t == len(graph.nodes) - 1:
            following |= graph.results
        needed = {t} | (following - present)
        for i in range(t, -1, -1):
            if i in needed:
                needed |= graph.nodes[i].parts[0].reads - present
        steps += graph.steps_of((i, 0) for i in sorted(needed))
        present = following & (present | needed)
    return Schedule(tuple(steps))


def _parameters(task: Task) -> mathopt.SolveParameters:
    limit = datetime.timedelta(seconds=max(0.01, 0.9 * task.remaining_seconds()))
    parameters = mathopt.SolveParameters(time_limit=limit)
    criteria = parameters.pdlp.termination_criteria.simple_optimality_criteria
    criteria.eps_optimal_relative = criteria.eps_optimal_absolute = TOLERANCE
    return parameters


def _timed_out(result: mathopt.SolveResult) -> bool:
    return result.termination.limit == mathopt.Limit.TIME
