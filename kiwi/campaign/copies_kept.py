"""The comparison of solutions by their cost after each has chosen which resharded copies to keep.

The search charges each reader for its own resharded copy, and so prefers replicated parameters to
parameters it would have to gather twice. If memory is left, the second gather is unnecessary. So
the search's solution is compared with solutions whose arguments are sharded in the obvious ways
(`kiwi.campaign.obvious_starts`). Each solution keeps the copies that save the most time.
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
"""Solves a problem with an allowance, from a solution of it."""


@dataclass(frozen=True, eq=False)
class Keeping:
    """A solution and the copies that it keeps.

    - `seconds`: the step's cost with these copies kept.
    - `took`: the work and the time spent on finding the copies and on comparing solutions.
    - `compared`: the number of other shardings of the arguments that were searched.
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
    """Returns the fastest solution within the limit, with the copies that it keeps.

    The candidates are `found` and solutions for other shardings of the arguments.

    - `planning`, `corrected`: as in `kiwi.problem.kept_copies`.
    - `found`: the search's solution of `planning`.
    - `starts`: returns solutions of `planning` for other shardings of the arguments.
    - `solve`: solves the problem with the arguments sharded as in a start.
    - `allowed`: the whole allowance. Each solve, and each choice of copies, may spend the share
      `KEPT_SHARE`.
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
    """Yields the starts within the limit that shard the arguments otherwise and make copies again,
    one for each sharding of the arguments. They are ordered by their cost without repeated copies.
    """
    count = len(planning.sources)
    tried = {tuple(found[:count])}
    limited = replace(planning.problem, limit_bytes=limit_bytes)
    fit = [
        (cost, _again_seconds(planning, solution), solution)
        for cost, solution in fitting(limited, starts)
    ]
    for _, again_seconds, start in sorted(fit, key=lambda priced: priced[0] - priced[1]):
        if start[:count] not in tried and again_seconds:
            tried.add(start[:count])
            yield start


def _with_axes_of(planning: PlanningProblem, problem: Problem, solution: Sequence[int]) -> Problem:
    """Returns the problem in which each argument and constant is sharded over the same mesh axes as
    in a solution. The axes may divide other dimensions."""
    nodes = list(problem.nodes)
    for number, source in enumerate(planning.sources):
        axes = [set(sharding.axes_used) for sharding in source.shardings]
        same = [used == axes[solution[number]] for used in axes]
        costs = np.where(same, nodes[number].costs, np.inf)
        nodes[number] = replace(nodes[number], costs=costs, parts={})
    return replace(problem, nodes=tuple(nodes))


def _again_seconds(planning: PlanningProblem, solution: tuple[int, ...]) -> float:
    """Returns the seconds that a solution would save if it made no copy again."""
    again = copies_again(planning, copies_made(Solved(planning, solution)))
    return sum(seconds for seconds, _ in again)


def _keeping(
    planning: PlanningProblem,
    corrected: PlanningProblem,
    solution: tuple[int, ...],
    allowed: Allowance,
) -> Keeping:
    """Returns a solution with the copies that it keeps, found with an allowance."""
    kept, took = kept_copies(planning, corrected, solution, allowed)
    problem = planning.restricted(solution, kept).problem
    return Keeping(solution, kept, evaluate(problem, [0] * len(problem.nodes)).cost, took)
