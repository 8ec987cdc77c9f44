"""Why a model has no solution: its families of rows, in words.

A family is in conflict if the model has a solution once that family alone is left out. Each
relaxation is solved for feasibility, without the objective. Rows that only define what a variable
means (products, one-hot choices) belong to no family.
"""

import time
from collections.abc import Callable, Mapping

from ortools.math_opt.python import mathopt

from kiwi.errors import SolverUnavailableError
from kiwi.solver.mathopt_run import solve_model

SECONDS = 10.0
"""For all relaxations of a model together."""


Families = Mapping[str, tuple[str, ...]]
"""What rows demand, in words, and the beginnings of their names."""


def conflict(build: Callable[[], mathopt.Model], families: Families) -> str:
    """Which families of an infeasible model stand in the way, in words.

    `build` makes the model anew each time.
    """
    deadline = time.monotonic() + SECONDS
    found, open_ = [], []
    for done, (words, rows) in enumerate(families.items()):
        share = max(0.2, (deadline - time.monotonic()) / (len(families) - done))
        feasible = _is_feasible_without(build(), rows, share)
        if feasible is None:
            open_.append(words)
        elif feasible:
            found.append(words)
    return _told(found, open_)


def _is_feasible_without(
    model: mathopt.Model, rows: tuple[str, ...], seconds: float
) -> bool | None:
    """Whether the model has a solution without the rows of a family; None where not decided."""
    for row in list(model.linear_constraints()):
        if row.name.split("[")[0] in rows:
            model.delete_linear_constraint(row)
    model.minimize(0.0)
    try:
        answer = solve_model(model, seconds, seed=0, gap=0.0)
    except SolverUnavailableError:
        return None
    if answer.values is not None:
        return True
    return False if answer.infeasible else None


def _told(found: list[str], open_: list[str]) -> str:
    """Several families are told apart from one; none means that two at least must give way."""
    if not found:
        text = "No single family of constraints is to blame"
    elif len(found) == 1:
        text = f"It would be feasible without one demand alone: {found[0]}"
    else:
        text = "It would be feasible without any one of these demands: " + "; ".join(found)
    undecided = f" Not decided in time: {'; '.join(open_)}." if open_ else ""
    return f"{text}.{undecided}"
