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
    error: InfeasibleBudgetError, pins: Pins, tools: Tools, planned: Callable[[Tools], Plan]
) -> InfeasibleBudgetError:
    """The error, with the pins that are to blame in its cause; `planned` plans with other tools."""
    # A budget that only compiled programs break is only met, or not, by compiled programs.
    trial = tools if isinstance(error, BudgetNotMetError) else tools.unchecked
    seconds = min(tools.settings.time_limit_seconds, TRIAL_SECONDS)
    trial = trial.with_settings(time_limit_seconds=seconds, gap=ANY_PLAN, on_progress=None)

    def is_possible_without(*labels: str) -> bool:
        try:
            return planned(trial.with_settings(dropped_pins=frozenset(labels))).fits
        except (InfeasibleBudgetError, NoPlanFoundError):
            return False

    labels = pins.labels
    if not labels or not is_possible_without(*labels):
        return error
    tried = labels if len(labels) <= MOST_TRIED else ()
    guilty = [label for label in tried if is_possible_without(label)]
    without = ", or without ".join(guilty) or f"the pins {', '.join(labels)}"
    return _with_cause(error, f"A plan is found without {without}.")


def _with_cause(error: InfeasibleBudgetError, cause: str) -> InfeasibleBudgetError:
    suggestion = f"Loosen that pin. {error.suggestion}"
    known: dict[str, Any] = {"cause": cause, "suggestion": suggestion}
    known["least_peak_bytes"] = error.least_peak_bytes
    if isinstance(error, BudgetNotMetError):
        return BudgetNotMetError(error.what, plan=error.plan, **known)
    bound_bytes = error.least_peak_bound_bytes
    return InfeasibleBudgetError(error.what, least_peak_bound_bytes=bound_bytes, **known)
