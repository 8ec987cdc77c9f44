"""Comparison of solutions with the copies of operands that each keeps.

The search charges each reader for its own resharded copy, and so prefers replicated parameters to
parameters it would have to gather twice. If memory is left, the second gather is unnecessary. So
the search's solution is compared with solutions for arguments sharded in the obvious ways
(`kiwi.campaign.obvious_starts`), once each keeps its copies.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kiwi.campaign import shares
from kiwi.campaign.tools import spent
from kiwi.plans.estimate import copies_again, copies_made
from kiwi.problem.build import KeptCopies, PlanningProblem
from kiwi.problem.kept_copies import KEPT_SHARE, kept_copies
from kiwi.problem.solved import Solved
from kiwi.solver import Problem, SolveResult, evaluate
from kiwi.solver.effort import Allowance
from kiwi.solver.evaluate import fitting
from kiwi.timings import timed

Solve = Callable[[Problem, Allowance, Sequence[int]], SolveResult]
"""Solves a problem from a start."""


@dataclass(frozen=True, eq=False)
class Keeping:
    """A solution and the copies that it keeps, with the work of finding these.

    - `compared`: how many other shardings of the arguments were searched.
    """

    solution: tuple[int, ...]
    kept: KeptCopies
    seconds: float
    took: Allowance
    compared: int = 0


@timed("copies")
def fastest_keeping(
    planning: PlanningProblem,
    corrected: PlanningProblem,
    found: Sequence[int],
    starts: Callable[[], Sequence[tuple[int, ...]]],
    solve: Solve,
    allowed: Allowance,
) -> Keeping:
    """The fastest of a solution and others within the limit, each with the copies that it keeps.

    - `planning`, `corrected`, `allowed`: as in `kiwi.problem.kept_copies`. Each solution with its
      copies may take the share `KEPT_SHARE`.
    - `starts`: solutions of `planning` for other shardings of the arguments.
    """
    share, limit_bytes = allowed.part(KEPT_SHARE), corrected.problem.limit_bytes
    best = _keeping(planning, corrected, tuple(found), share)
    others = _others(planning, limit_bytes, starts(), found)
    for start in itertools.islice(others, shares.MOST_OTHER_ARGUMENT_SHARDINGS):
        limited = _with_axes_of(planning, corrected.problem, start)
        result = solve(limited, share, (*start, *[0] * (len(limited.nodes) - len(start))))
        compared = best.compared + 1
        best = replace(best, took=best.took.and_also(spent(result)), compared=compared)
        if result.solution is None:
            continue
        solution = tuple(result.solution[: len(start)])
        cost = evaluate(planning.problem, solution).cost
        if (
            cost - _again_seconds(planning, solution)
            < shares.OTHER_ARGUMENT_SHARDINGS_GAIN * best.seconds
        ):
            other = _keeping(planning, corrected, solution, share)
            is_faster = other.seconds < shares.OTHER_ARGUMENT_SHARDINGS_GAIN * best.seconds
            took = best.took.and_also(other.took)
            best = replace(other if is_faster else best, took=took, compared=compared)
    return best


def _others(
    planning: PlanningProblem,
    limit_bytes: int | None,
    starts: Sequence[tuple[int, ...]],
    found: Sequence[int],
) -> Iterator[tuple[int, ...]]:
    """The starts within the limit that make copies again, for other shardings of the arguments.
    Those that would be fastest if they made none again come first."""
    count = len(planning.sources)
    tried = {tuple(found[:count])}
    limited = replace(planning.problem, limit_bytes=limit_bytes)
    fit = [(cost, _again_seconds(planning, s), s) for cost, s in fitting(limited, starts)]
    for _, again, start in sorted(fit, key=lambda each: each[0] - each[1]):
        if start[:count] not in tried and again:
            tried.add(start[:count])
            yield start


def _with_axes_of(planning: PlanningProblem, problem: Problem, solution: Sequence[int]) -> Problem:
    """The problem in which arguments and constants are sharded over the same mesh axes as in a
    solution, possibly along other dimensions."""
    nodes = list(problem.nodes)
    for number, source in enumerate(planning.sources):
        axes = [set(sharding.axes_used) for sharding in source.shardings]
        same = [each == axes[solution[number]] for each in axes]
        costs = np.where(same, nodes[number].costs, np.inf)
        nodes[number] = replace(nodes[number], costs=costs, parts={})
    return replace(problem, nodes=tuple(nodes))


def _again_seconds(planning: PlanningProblem, solution: tuple[int, ...]) -> float:
    """The time that a solution saves if it makes no copy again."""
    again = copies_again(planning, copies_made(Solved(planning, solution)))
    return sum(seconds for seconds, _ in again)


def _keeping(
    planning: PlanningProblem,
    corrected: PlanningProblem,
    solution: tuple[int, ...],
    allowed: Allowance,
) -> Keeping:
    kept, took = kept_copies(planning, corrected, solution, allowed)
    problem = planning.restricted(solution, kept).problem
    return Keeping(solution, kept, evaluate(problem, [0] * len(problem.nodes)).cost, took)
