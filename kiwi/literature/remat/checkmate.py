"""Checkmate and rk-checkmate: the best schedule by stages in the given order, by HiGHS.

All are the program of `kiwi.literature.remat.stages` with a node for each operator. Checkmate (Jain
et al., MLSys 2020; text in Zhao's thesis, section 2.1.1) keeps or drops all outputs of an operator
together; rk-checkmate (section 2.4) each by itself. Without phantoms (a framework's hidden saved
tensors): what backward reads is listed as a value.

Checkmate's linear relaxation is solved by PDLP and rounded (FastSA, appendices A.1 and D.2): what
is kept between stages is rounded by 0.5 and by random thresholds; what must be computed follows.
The best rounding by the simulator is returned.
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
"""For which the relaxation is solved; the second where it cannot meet the first."""
TOLERANCE = 1e-4
RANDOM_THRESHOLDS = 100


def checkmate(task: Task) -> Finding:
    """The best schedule in which all outputs of an operator are kept together."""
    return _solved(task, checkmate_program(task))


def checkmate_program(
    task: Task, *, integer: bool = True, budget_share: float = 1.0
) -> StageProgram:
    """Checkmate's program for `budget_share` of the budget, or its linear relaxation."""
    budget_bytes = budget_share * (task.budget_bytes - task.graph.resident_bytes)
    graph = stage_graph(task.graph, joined=True)
    return StageProgram(graph, budget_bytes, once=True, integer=integer)


def rk_checkmate(task: Task, loss: int = -1, save_bytes: int | None = None) -> Finding:
    """The best schedule in which each value is kept by itself.

    At most `save_bytes` are in memory after the first (and only) computation of operator `loss`.
    """
    resident_bytes = task.graph.resident_bytes
    limit_bytes = None if save_bytes is None else save_bytes - resident_bytes
    graph, budget_bytes = stage_graph(task.graph, loss), task.budget_bytes - resident_bytes
    return _solved(task, StageProgram(graph, budget_bytes, limit_bytes))


def stage_graph(graph: RematGraph, loss: int = -1, *, joined: bool = False) -> StageGraph:
    """Node k is the k-th operator of the given order.

    `joined`: value k is all that node k writes; otherwise values have their numbers in `graph`.
    """
    rank = {k: place for place, k in enumerate(graph.order)}
    number = {v: rank[w] if joined else v for v, w in enumerate(graph.producer) if w >= 0}
    size_bytes: Counter[int] = Counter()
    for v, d in number.items():
        size_bytes[d] += graph.values[v].size_bytes
    nodes = []
    for k in graph.order:
        each = graph.operators[k]
        reads = frozenset(number[v] for v in each.inputs if v in number)
        part = Part((k,), each.compute_seconds, reads, (Substep(each.temporary_bytes),))
        nodes.append(Node((part,), repeatable=each.recomputable and k != loss))
    return StageGraph(
        tuple(nodes),
        size_bytes,
        {d: rank[graph.producer[v]] for v, d in number.items()},
        frozenset(number[v] for v in graph.results if v in number),
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
    """The best rounding of the relaxation, among those at 0.5 and at so many random thresholds."""
    for share in BUDGET_SHARES:
        built = checkmate_program(task, integer=False, budget_share=share)
        with quiet_stdout():
            result = mathopt.solve(built.model, mathopt.SolverType.PDLP, params=_parameters(task))
        if result.has_primal_feasible_solution():
            return _rounded(task, built, result, thresholds)
    return Finding(None, deterministic=not _timed_out(result))


def _rounded(task: Task, built: StageProgram, result: mathopt.SolveResult, count: int) -> Finding:
    kept = {cell: result.variable_values(each) for cell, each in built.present.items()}
    draw = random.Random(task.seed)
    thresholds = [0.5] + [draw.random() for _ in range(count)]
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
    """Keeps every value above `threshold`, and computes what is needed then, stage by stage.

    A value that may not be computed again is kept until its last reader's first computation. If a
    recomputation needs it later, the schedule is not valid.
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
