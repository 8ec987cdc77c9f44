"""Which pins make a budget infeasible: those without which a plan is found.

1. Without any pin there is no plan either: the budget itself is too small.
2. Pins are dropped one at a time, the others stay; each that lets a plan through is named.
3. If no single one does, they are too much together, and all are named.
"""

from collections.abc import Callable
from typing import Any

from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, NoPlanFoundError
from kiwi.planners.tools import Tools
from kiwi.plans.plan import Plan
from kiwi.problem.pins import Pins

MOST_TRIED = 12
"""How many pins are dropped one at a time; with more, all are named."""

TRIAL_SECONDS = 10.0
"""Time limit of each trial."""

ANY_PLAN = 1.0
"""The gap at which a trial ends: whether there is a plan is known long before the best one."""


def blamed(
    error: InfeasibleBudgetError,
    pins: Pins,
    tools: Tools,
    planned: Callable[[Tools], Plan],
) -> InfeasibleBudgetError:
    """The error, with the pins that are to blame in its cause.

    **Arguments:**

    - `planned`: plans with other tools, without blaming anything.
    """
    # A budget that only compiled programs break is only met, or not, by compiled programs.
    trial = tools if isinstance(error, BudgetNotMetError) else tools.unchecked
    seconds = min(tools.settings.time_limit_seconds, TRIAL_SECONDS)
    trial = trial.with_settings(time_limit_seconds=seconds, gap=ANY_PLAN, on_progress=None)

    def is_possible_without(labels: frozenset[str]) -> bool:
        return _is_possible(planned, trial.with_settings(dropped_pins=labels))

    labels = pins.labels
    if not labels or not is_possible_without(frozenset(labels)):
        return error
    tried = labels if len(labels) <= MOST_TRIED else ()
    guilty = [label for label in tried if is_possible_without(frozenset([label]))]
    if guilty:
        cause = "A plan is found without " + ", or without ".join(guilty) + "."
    else:
        cause = "A plan is found without the pins " + ", ".join(labels) + "."
    return _with_cause(error, cause)


def _is_possible(planned: Callable[[Tools], Plan], trial: Tools) -> bool:
    try:
        return planned(trial).fits
    except (InfeasibleBudgetError, NoPlanFoundError):
        return False


def _with_cause(error: InfeasibleBudgetError, cause: str) -> InfeasibleBudgetError:
    suggestion = f"Loosen that pin. {error.suggestion}"
    known: dict[str, Any] = {"least_peak_bytes": error.least_peak_bytes}
    if isinstance(error, BudgetNotMetError):
        return BudgetNotMetError(
            error.what, cause=cause, suggestion=suggestion, plan=error.plan, **known
        )
    known["least_peak_bound_bytes"] = error.least_peak_bound_bytes
    return InfeasibleBudgetError(error.what, cause=cause, suggestion=suggestion, **known)
