"""What every solver returns: a solution, a proven bound, and why the search ended."""

import enum
import math
from dataclasses import dataclass


class SolveStatus(enum.Enum):
    """Why a search ended, as claimed by the solver and checked by `solve`."""

    OPTIMAL = "optimal"
    """A feasible solution, and a bound that proves it within the requested gap."""
    FEASIBLE = "feasible"
    """A feasible solution; the gap between objective and bound stays open."""
    INFEASIBLE = "infeasible"
    """Proven: no assignment meets the limit (or the forbidden pairs)."""
    NO_SOLUTION_FOUND = "no solution found"
    """The time ran out, and neither a solution nor a proof that there is none was found."""


OPTIMAL_GAP = 1e-6
"""Relative distance of objective and bound below which a solution counts as optimal."""


@dataclass(frozen=True)
class SolveResult:
    """The outcome of one search.

    **Attributes:**

    - `status`: a `SolveStatus`. `OPTIMAL` comes only with a bound within `OPTIMAL_GAP`.
    - `solution`: one option index per node, or None.
    - `objective`: cost of the solution (seconds, where the problem's costs are), or None.
    - `bound`: proven lower bound on the cost of every feasible solution; -inf where none is known,
      +inf where the problem is proven infeasible.
    - `seconds`: wall time of the search.
    - `solver`: the backend that found it.
    - `peak_bytes`: the largest memory use of the solution, or None.
    - `message`: anything the caller should know, e.g. that another backend stood in.
    - `least_peak_bytes`: where no solution meets the limit, the smallest peak that was found.
    - `least_peak_bound_bytes`: proven: no assignment peaks lower.
    - `iterations`: rounds, nodes or steps, as the backend counts them.
    - `deterministic`: False where the clock ended the search, so that another run may differ.
    """

    status: SolveStatus
    solution: tuple[int, ...] | None
    objective: float | None
    bound: float
    seconds: float
    solver: str
    peak_bytes: int | None = None
    message: str = ""
    least_peak_bytes: int | None = None
    least_peak_bound_bytes: int | None = None
    iterations: int = 0
    deterministic: bool = True

    @property
    def gap(self) -> float | None:
        """(objective - bound) / |objective|, at least 0; None without a solution or a bound."""
        if self.objective is None or math.isinf(self.bound):
            return None
        return relative_gap(self.objective, self.bound)


@dataclass(frozen=True)
class Progress:
    """A state of the search, as given to `on_progress`; `solution` is the best so far."""

    seconds: float
    objective: float | None
    bound: float
    peak_bytes: int | None
    solver: str
    iterations: int
    solution: tuple[int, ...] | None = None

    @property
    def gap(self) -> float | None:
        """As `SolveResult.gap`."""
        if self.objective is None or math.isinf(self.bound):
            return None
        return relative_gap(self.objective, self.bound)


def relative_gap(objective: float, bound: float) -> float:
    """(objective - bound) / |objective|, at least 0; infinite for a zero objective above bound."""
    distance = objective - bound
    if distance <= 0.0:
        return 0.0
    return distance / abs(objective) if objective else math.inf
