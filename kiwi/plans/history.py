"""The history of a plan's search: one record for each attempt, in order.

`kiwi.campaign.attempts` lists the attempts, their triggers, and the work that each may spend. Wall
times are left out, so equal plans have equal histories.
"""

import enum
from dataclasses import dataclass


class Outcome(enum.Enum):
    """The outcome of an attempt.

    - `ANSWER`: the attempt made the plan's solution, or its program.
    - `FOUND`: it made a solution. The search went on from this solution, or another was better.
    - `SLOWER`: it made a solution that was no better than the known solution.
    - `NO_PLAN`: it found no solution within the limit.
    - `FITS`: it made a program within the budget that is not the answer.
    - `OVER`: it made a program over the budget.
    - `NO_PROGRAM`: the compiler could not compile its plan.
    """

    ANSWER = "answer"
    FOUND = "found"
    SLOWER = "slower"
    NO_PLAN = "no plan"
    FITS = "fits"
    OVER = "over the budget"
    NO_PROGRAM = "does not compile"


@dataclass(frozen=True)
class Trial:
    """One attempt of the search.

    - `attempt`: the attempt's name.
    - `within`: the names of the attempts that it was made for, the outermost first.
    - `limit_bytes`: the memory limit of the solver; None without a limit.
    - `predicted_peak_bytes`, `predicted_seconds`: the figures of its solution or plan; None if
      there is none.
    - `compiled_peak_bytes`, `compiled_seconds`: the figures of its program; None if nothing was
      compiled, or if the program's schedule has no price.
    - `work`: the number of options and table cells that the solver went over
      (`kiwi.solver.effort`).
    """

    attempt: str
    within: tuple[str, ...]
    outcome: Outcome
    limit_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    predicted_seconds: float | None = None
    compiled_peak_bytes: int | None = None
    compiled_seconds: float | None = None
    work: int = 0
