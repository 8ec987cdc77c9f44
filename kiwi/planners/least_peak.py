"""The least memory of the fastest shardings, for budgets that no plan was found to meet.

The search for the least peak follows prices of memory through all options at once. What is worth
most to know is simpler: how far recomputation brings the peak of the plan without a limit down. So
its shardings are fixed, and the residencies are searched alone; where layers repeat they are tied
(`kiwi.planners.equal_layers`). It never ends behind full rematerialisation layer by layer
(`kiwi.memory.residency`) under these shardings, or under those that anyone would try first
(`kiwi.planners.obvious_starts`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kiwi.memory.residency import UnitResidency, rematerialised_layers
from kiwi.planners.equal_layers import EqualLayers
from kiwi.planners.obvious_starts import obvious_starts
from kiwi.planners.refusals import ANY_PLAN
from kiwi.planners.tools import Tools
from kiwi.problem.build import PlanningProblem, build_problem
from kiwi.problem.solved import Start
from kiwi.problem.translation import Choices
from kiwi.solver import Problem, evaluate
from kiwi.solver.evaluate import fitting

SHARE = 0.1
"""Of what searches may take, for each of these two at most."""


@dataclass(frozen=True)
class LeastPeak:
    """- `peak_bytes`: of the solution of least memory that is known; None where there is none.
    - `start`: one within the limit with the problem that offers it, if there is one."""

    peak_bytes: int | None
    start: Start | None = None


def least_peak(planning: PlanningProblem, limit_bytes: int, tools: Tools) -> LeastPeak:
    """The least peak of the fastest shardings; `limit_bytes` is the least that is of interest."""
    allowed = tools.allowance.part(SHARE)
    quick = tools.with_settings(gap=ANY_PLAN, on_progress=None)
    layers = rematerialised_layers(planning.units)
    planning = _offering(planning, layers)
    equal = EqualLayers(planning, quick)
    fastest = equal.solve_roughly(replace(planning.problem, limit_bytes=None), allowed)
    if fastest.solution is None:
        return LeastPeak(None)
    limited = replace(planning.problem, limit_bytes=limit_bytes)
    found = equal.solve_roughly(with_shardings_of(planning, limited, fastest.solution), allowed)
    sharded = (fastest.solution, *obvious_starts(planning))
    again = [_recomputed(planning, each, layers) for each in sharded]
    every = [each for each in (fastest.solution, found.solution, *again) if each is not None]
    for _, solution in fitting(limited, every):
        return LeastPeak(evaluate(limited, solution).peak_bytes, Start(planning, solution))
    priced = (evaluate(limited, each) for each in every)
    peaks = [price.peak_bytes for price in priced if np.isfinite(price.cost)]
    return LeastPeak(min(*peaks, found.least_peak_bytes or peaks[0]))


def _offering(planning: PlanningProblem, layers: Sequence[UnitResidency]) -> PlanningProblem:
    """The problem with the residencies of full rematerialisation among the others; the same where
    all are there, or something else rules what is recomputed."""
    fixed = planning.fixed
    is_ruled = not fixed.recompute or fixed.rewrite is not None
    pairs = zip(planning.unit_nodes, layers, strict=True)
    if is_ruled or all(set(own.options) <= set(node.residency.options) for node, own in pairs):
        return planning
    before = fixed.offered or ((),) * len(layers)
    offered = tuple((*mine, *own.options) for mine, own in zip(before, layers, strict=True))
    offering = replace(fixed, offered=offered)
    return build_problem(planning.units, planning.mesh, offering, planning.problem.limit_bytes)


def _recomputed(
    planning: PlanningProblem, solution: Sequence[int], layers: Sequence[UnitResidency]
) -> tuple[int, ...] | None:
    """A solution with the residencies of full rematerialisation; None where one is not offered."""
    found = Choices.of(planning, solution)
    pairs = zip(found.units, layers, strict=True)
    units = tuple(replace(choice, residency=own.options[0]) for choice, own in pairs)
    return replace(found, units=units).solution_of(planning)


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
