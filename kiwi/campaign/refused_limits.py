"""Limits under which a problem was found to have no plan.

The rounds of a search, and the search above the budget that follows it, lower their limits until
one is refused, and rise again. A search without a plan is the dearest of all: it ends with a search
for the least peak. So no limit at or below one that was refused is searched again, nor one below
the least peak that was found then if a plan is known.
"""

import math
from weakref import WeakKeyDictionary

from kiwi.problem.build import PlanningProblem
from kiwi.solver import Problem, SolveResult


class RefusedLimits:
    """The highest refused limit of a problem, and what its search found.

    What later rounds add to the problem only takes memory, so that a refusal holds for them too.
    """

    def __init__(self) -> None:
        self._limit_bytes = -1
        self._result: SolveResult | None = None
        self._planned_bytes: float = math.inf

    @property
    def least_peak_bytes(self) -> int | None:
        """The smallest peak that a refused search found."""
        return None if self._result is None else self._result.least_peak_bytes

    def take(self, problem: Problem, result: SolveResult) -> None:
        """Records a search. One that the clock ended without a solution says nothing."""
        limit_bytes = problem.limit_bytes
        if limit_bytes is None or problem.host_limit_bytes is not None:
            return
        if result.solution is not None:
            self._planned_bytes = min(self._planned_bytes, result.peak_bytes or math.inf)
        elif result.deterministic and limit_bytes > self._limit_bytes:
            self._limit_bytes, self._result = limit_bytes, result

    def known(self, problem: Problem) -> SolveResult | None:
        """The result of the search that tells that a problem has no plan: one that was refused
        under a higher limit, or found or proved no smaller peak."""
        result, limit_bytes = self._result, problem.limit_bytes
        if result is None or limit_bytes is None or problem.host_limit_bytes is not None:
            return None
        proven_bytes = result.least_peak_bound_bytes or 0
        least_bytes = 0.0  # Without a plan nothing tells how good the least peak is.
        if self._planned_bytes < math.inf:
            least_bytes = min(result.least_peak_bytes or 0, self._planned_bytes)
        is_refused = limit_bytes <= self._limit_bytes or limit_bytes < max(
            proven_bytes, least_bytes
        )
        return result if is_refused else None


_OF_PROBLEMS: WeakKeyDictionary[PlanningProblem, RefusedLimits] = WeakKeyDictionary()


def refused_limits(planning: PlanningProblem) -> RefusedLimits:
    """Those of a problem, for all of its searches."""
    return _OF_PROBLEMS.setdefault(planning, RefusedLimits())
