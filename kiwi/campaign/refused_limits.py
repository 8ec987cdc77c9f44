"""Limits under which a problem is known to have no plan.

The rounds of a search lower their limits until one is refused, and raise them again. The search
above the budget that may follow does the same. A search that finds no plan takes longest, since it
ends with a search for the least peak. So no limit at or below a refused limit is searched again. If
a plan is known, no limit below the least peak that the refused search found is searched, either.
"""

import math
from weakref import WeakKeyDictionary

from kiwi.problem.build import PlanningProblem
from kiwi.solver import Problem, SolveResult


class RefusedLimits:
    """The highest refused limit of a problem, and the result of its search.

    Later rounds only add memory to the problem, so that a refusal holds for them, too.
    """

    def __init__(self) -> None:
        self._limit_bytes = -1
        self._result: SolveResult | None = None
        self._planned_bytes: float = math.inf

    @property
    def least_peak_bytes(self) -> int | None:
        """The smallest peak in bytes that the refused search found; None if no limit was refused or
        no peak was found."""
        return None if self._result is None else self._result.least_peak_bytes

    def take(self, problem: Problem, result: SolveResult) -> None:
        """Records a search. A search without a solution that the clock ended is ignored, and so is
        any search without a limit or with a host limit."""
        limit_bytes = problem.limit_bytes
        if limit_bytes is None or problem.host_limit_bytes is not None:
            return
        if result.solution is not None:
            self._planned_bytes = min(self._planned_bytes, result.peak_bytes or math.inf)
        elif result.deterministic and limit_bytes > self._limit_bytes:
            self._limit_bytes, self._result = limit_bytes, result

    def known(self, problem: Problem) -> SolveResult | None:
        """Returns the refused search's result if it shows that a problem has no plan; None
        otherwise.

        It shows that if its limit is at least the problem's limit, or if the problem's limit is
        below the peak that the search has proven or found to be the least.
        """
        result, limit_bytes = self._result, problem.limit_bytes
        if result is None or limit_bytes is None or problem.host_limit_bytes is not None:
            return None
        proven_bytes = result.least_peak_bound_bytes or 0
        least_bytes = 0.0  # If no plan is known, the least peak found may be far from the optimum.
        if self._planned_bytes < math.inf:
            least_bytes = min(result.least_peak_bytes or 0, self._planned_bytes)
        is_refused = limit_bytes <= self._limit_bytes or limit_bytes < max(
            proven_bytes, least_bytes
        )
        return result if is_refused else None


_OF_PROBLEMS: WeakKeyDictionary[PlanningProblem, RefusedLimits] = WeakKeyDictionary()
"""The refused limits of each problem in use."""


def refused_limits(planning: PlanningProblem) -> RefusedLimits:
    """Returns the refused limits of a problem, the same object for all of its searches."""
    return _OF_PROBLEMS.setdefault(planning, RefusedLimits())
