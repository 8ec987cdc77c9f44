"""How a plan was found: one record for each attempt of the search, in order.

`kiwi.campaign.attempts` lists the attempts, their triggers and what each may spend. Wall times are
left out, so equal plans have equal histories.
"""

import enum
from dataclasses import dataclass


class Outcome(enum.Enum):
    """The outcome of an attempt.

    - `ANSWER`: the plan's solution, or its program.
    - `FOUND`: a solution. The search went on from it, or another one was better.
    - `SLOWER`: a solution that was no better than the known one.
    - `NO_PLAN`: no solution within the limit.
    - `FITS`: a program within the budget that is not the answer.
    - `OVER`: a program over the budget.
    - `NO_PROGRAM`: the compiler could not compile it.
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
    """One attempt.

    - `attempt`: its name. `within`: the names of the attempts that it was made for, the outermost
      first.
    - `limit_bytes`: the memory limit of the solver; None without one.
    - `predicted_peak_bytes`, `predicted_seconds`: of its solution or plan; None if there is none.
    - `compiled_peak_bytes`, `compiled_seconds`: of its program; None if it was not compiled, or if
      its schedule has no price.
    - `work`: options and table cells that the solver went over (`kiwi.solver.effort`).
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
