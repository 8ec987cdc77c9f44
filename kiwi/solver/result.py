"""The result of every solver: a solution priced by the referee, a proven bound, and the reason for
which the search ended."""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kiwi.solver.evaluate import evaluate
from kiwi.solver.problem import Problem


class SolveStatus(enum.Enum):
    """The reason for which a search ended. It is derived from the solution as the referee prices it
    and from the proven bound (`conclude`)."""

    OPTIMAL = "optimal"
    """A feasible solution, and a proven bound within `OPTIMAL_GAP` of its cost."""
    FEASIBLE = "feasible"
    """A feasible solution. The gap between objective and bound is larger than `OPTIMAL_GAP`."""
    INFEASIBLE = "infeasible"
    """No assignment meets the limit without forbidden pairs, and that is proven."""
    NO_SOLUTION_FOUND = "no solution found"
    """The search ended with neither a solution nor a proof that there is none."""


INTERRUPTED = "Interrupted."
"""The message of a result whose search was ended by Ctrl-C under `any_time`."""

OPTIMAL_GAP = 1e-6
"""A solution counts as optimal if its relative distance to the bound is at most this."""


@dataclass(frozen=True)
class Progress:
    """A state of the search, as given to `on_progress`.

    - `seconds`: wall time of the search.
    - `objective`: cost of the best solution (in seconds, if the problem's costs are), or None.
    - `bound`: proven lower bound on the cost of every feasible solution; -inf if none is known,
      +inf if the problem is proven infeasible.
    - `peak_bytes`: the largest memory use of the solution, or None.
    - `solver`: the backend that found the solution.
    - `iterations`: rounds, nodes or steps, as the backend counts them.
    - `solution`: one option index per node, or None.
    - `work`: the number of options and table cells that sweeps and trees have visited, the same on
      every machine; 0 for backends that do not count.
    """

    seconds: float
    objective: float | None
    bound: float
    peak_bytes: int | None
    solver: str
    iterations: int = 0
    solution: tuple[int, ...] | None = None
    work: int = 0

    @property
    def gap(self) -> float | None:
        """(objective - bound) / |objective|, at least 0; None without a solution or a bound."""
        if self.objective is None or math.isinf(self.bound):
            return None
        return relative_gap(self.objective, self.bound)


OnProgress = Callable[[Progress], None]

Balances = Mapping[int, tuple[int, float, float]]
"""By window: a channel other than the first that counts there, and a lower and an upper bound of
its weight (`kiwi.solver.loads.solve`). Windows in which the first channel counts have no entry."""


@dataclass(frozen=True, kw_only=True)
class SolveResult(Progress):
    """The outcome of one search: its last state, and the reason for which it ended.

    - `status`: a `SolveStatus`. `OPTIMAL` comes only with a bound within `OPTIMAL_GAP`.
    - `message`: a remark for the caller, e.g. that another backend stood in.
    - `least_peak_bytes`: the smallest peak that was found, if no solution meets the limit.
    - `least_peak_bound_bytes`: a proven lower bound of the peak of every assignment, if no solution
      meets the limit.
    - `deterministic`: False if the clock ended the search, so that another run may differ.
    - `balances`: the last balances, for a problem with loads.
    """

    status: SolveStatus
    message: str = ""
    least_peak_bytes: int | None = None
    least_peak_bound_bytes: int | None = None
    deterministic: bool = True
    balances: Balances = field(default_factory=dict, hash=False, repr=False)


def is_closed(objective: float, bound: float, gap: float) -> bool:
    """Whether the relative gap of objective and bound is at most `gap`, or `OPTIMAL_GAP` if that is
    larger."""
    return relative_gap(objective, bound) <= max(gap, OPTIMAL_GAP)


def relative_gap(objective: float, bound: float) -> float:
    """Returns (objective - bound) / |objective|, at least 0; infinity for an objective of 0 above
    the bound."""
    distance = objective - bound
    if distance <= 0.0:
        return 0.0
    return distance / abs(objective) if objective else math.inf


def conclude(
    problem: Problem,
    solution: Sequence[int] | None,
    bound: float,
    *,
    solver: str,
    iterations: int = 0,
    work: int = 0,
    message: str = "",
    deterministic: bool = True,
    least_peak_bytes: int | None = None,
    least_peak_bound_bytes: int | None = None,
) -> SolveResult:
    """Prices `solution` with the referee, and derives the status from its cost and from `bound`.

    A solution that the referee rejects is dropped. A bound above the cost of a feasible solution,
    a matter of rounding, is lowered to that cost.
    """
    priced = None if solution is None else evaluate(problem, solution)
    cost = priced.cost if priced is not None and priced.feasible else math.inf
    is_found = math.isfinite(cost)
    bound = min(bound, cost)
    return SolveResult(
        status=_status(cost, bound),
        solution=tuple(int(option) for option in solution or ()) if is_found else None,
        objective=cost if is_found else None,
        bound=bound,
        seconds=0.0,
        solver=solver,
        peak_bytes=priced.peak_bytes if priced is not None and is_found else None,
        message=message,
        least_peak_bytes=None if is_found else least_peak_bytes,
        least_peak_bound_bytes=None if is_found else least_peak_bound_bytes,
        iterations=iterations,
        work=work,
        deterministic=deterministic,
    )


def _status(cost: float, bound: float) -> SolveStatus:
    if cost == math.inf:
        return SolveStatus.INFEASIBLE if bound == cost else SolveStatus.NO_SOLUTION_FOUND
    closed = math.isfinite(bound) and relative_gap(cost, bound) <= OPTIMAL_GAP
    return SolveStatus.OPTIMAL if closed else SolveStatus.FEASIBLE
