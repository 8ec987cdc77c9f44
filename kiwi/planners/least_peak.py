"""The least memory of the fastest shardings, for budgets that no plan was found to meet.

The search for the least peak follows prices of memory through all options at once. What is worth
most to know is simpler: how far recomputation brings the peak of the plan without a limit down. So
its shardings are fixed, and the residencies are searched alone, which includes those of full
rematerialisation. Where layers repeat they are tied (`kiwi.planners.equal_layers`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kiwi.planners.equal_layers import EqualLayers
from kiwi.planners.refusals import ANY_PLAN
from kiwi.planners.tools import Tools
from kiwi.problem.build import PlanningProblem
from kiwi.solver import Problem, evaluate

SHARE = 0.1
"""Of what searches may take, for each of these two at most."""


@dataclass(frozen=True)
class LeastPeak:
    """- `peak_bytes`: of the solution of least memory that is known; None where there is none.
    - `solution`: one within the limit, if there is one."""

    peak_bytes: int | None
    solution: tuple[int, ...] | None = None


def least_peak(planning: PlanningProblem, limit_bytes: int, tools: Tools) -> LeastPeak:
    """The least peak of the fastest shardings; `limit_bytes` is the least that is of interest."""
    allowed = tools.allowance.part(SHARE)
    quick = tools.with_settings(gap=ANY_PLAN, on_progress=None)
    layers = EqualLayers(planning, quick)
    fastest = layers.solve_roughly(replace(planning.problem, limit_bytes=None), allowed)
    if fastest.solution is None:
        return LeastPeak(None)
    limited = replace(planning.problem, limit_bytes=limit_bytes)
    known = evaluate(limited, fastest.solution).peak_bytes
    found = layers.solve_roughly(with_shardings_of(planning, limited, fastest.solution), allowed)
    if found.solution is not None:
        return LeastPeak(found.peak_bytes, found.solution)
    return LeastPeak(min(known, found.least_peak_bytes or known))


def with_shardings_of(
    planning: PlanningProblem, problem: Problem, solution: Sequence[int]
) -> Problem:
    """The problem in which sources and units are sharded as in a solution."""
    nodes, first = list(problem.nodes), len(planning.sources)
    widths = [1] * first + [len(node.residency.options) for node in planning.unit_nodes]
    for number, width in enumerate(widths):
        node, option = nodes[number], solution[number]
        same = np.arange(node.costs.size) // width == option // width
        costs = np.where(same, node.costs, np.inf)
        nodes[number] = replace(node, costs=costs, parts={})
    return replace(problem, nodes=tuple(nodes))
