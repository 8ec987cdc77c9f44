"""Checkmate and rk-checkmate: the best schedule by stages in the given order, by HiGHS.

Both are the program of `kiwi.solver.remat.stages` with a node for each operator. Checkmate (Jain et
al., MLSys 2020; text in Zhao's thesis, section 2.1.1) keeps or drops all outputs of an operator
together; rk-checkmate (section 2.4) each by itself. Without phantoms (a framework's hidden saved
tensors): what backward reads is listed as a value.
"""

import math
from collections import Counter

from kiwi.solver.mathopt_run import solve_model
from kiwi.solver.remat.graph import RematGraph
from kiwi.solver.remat.result import Finding, Task
from kiwi.solver.remat.stages import Node, Part, StageGraph, StageProgram, Substep
from kiwi.solver.schedule import Schedule

GAP = 1e-9


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
        family_bound_seconds=bound_seconds if math.isfinite(answer.bound) else None,
        family_is_infeasible=answer.infeasible,
        iterations=answer.nodes,
        deterministic=not answer.timed_out,
    )
