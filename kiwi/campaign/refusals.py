"""The errors for budgets that no plan meets, and the limits that may be tried after them."""

from collections.abc import Callable

from kiwi.campaign import shares
from kiwi.campaign.proposer import Refusal
from kiwi.campaign.tools import Tools
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, NoPlanFoundError
from kiwi.plans.plan import Plan
from kiwi.problem.pins import Pins
from kiwi.sizes import format_bytes, size_above
from kiwi.solver import SolveResult


def raised_limits(error: Refusal, budget_bytes: int) -> tuple[int, ...]:
    """Returns limits above the budget whose plans may fit as compiled; none if the refusal follows
    from a compiled plan."""
    if isinstance(error, BudgetNotMetError):
        return ()
    least_bytes = getattr(error, "least_peak_bytes", None)
    if least_bytes is None:
        shares_of_budget = shares.FIRST_RAISED, shares.MOST_RAISED
        return tuple(int(share * budget_bytes) for share in shares_of_budget)
    limit_bytes = int(shares.ABOVE_LEAST * least_bytes)
    return (limit_bytes,) if limit_bytes <= shares.MOST_RAISED_TO_LEAST * budget_bytes else ()


def infeasible_budget(limit_bytes: int, result: SolveResult) -> InfeasibleBudgetError:
    """Returns the error for a limit that no solution meets, as the solver has proven, with the
    smallest peak found. The proof holds for predicted memory; a compiled program may need less."""
    bound_bytes = max(result.least_peak_bound_bytes or 0, limit_bytes + 1)
    return _infeasible(limit_bytes, result.least_peak_bytes, bound_bytes)


def _infeasible(
    limit_bytes: int, least: int | None, bound_bytes: int | None
) -> InfeasibleBudgetError:
    """Returns the error for a limit without a plan.

    - `least`: the smallest peak found, in bytes; None if none was found.
    - `bound_bytes`: a lower bound of all peaks; None if there is none.
    """
    smallest_text = f"The smallest peak found is {format_bytes(least)}." if least else ""
    is_proven = bound_bytes is not None and bound_bytes > limit_bytes
    no_plan = "No plan is" if is_proven else "No plan was found that is"
    return InfeasibleBudgetError(
        f"{no_plan} predicted to need as little as {format_bytes(limit_bytes)} per device. "
        f"{smallest_text}".strip(),
        cause="Arguments, results and the largest operator's operands need more than that.",
        suggestion=f"memory_budget={size_above(least)}, or a larger mesh, or a smaller batch."
        if least
        else "A larger memory_budget or mesh, or a smaller batch.",
        least_peak_bytes=least,
        least_peak_bound_bytes=bound_bytes,
    )


def with_least_peak(error: Refusal, budget_bytes: int, least: int | None) -> Refusal:
    """Returns the error; if `least` is smaller than the least peak that the error names, the
    returned error names `least`.

    - `least`: a peak in bytes. It is ignored if it is None or within the budget.
    """
    named_bytes = error.least_peak_bytes if isinstance(error, InfeasibleBudgetError) else None
    if least is None or least <= budget_bytes or (named_bytes is not None and named_bytes <= least):
        return error
    if isinstance(error, NoPlanFoundError):
        what = f"{error.what} The smallest peak known is {format_bytes(least)}."
        suggestion = f"memory_budget={size_above(least)}. {error.suggestion}"
        return error.changed(what=what, suggestion=suggestion)
    return _infeasible(budget_bytes, least, error.least_peak_bound_bytes)


def blamed(
    error: InfeasibleBudgetError, pins: Pins, tools: Tools, planned: Callable[[Tools], Plan]
) -> InfeasibleBudgetError:
    """Returns the error with the pins to blame in its cause.

    If there is no plan without all pins either, the budget itself is too small, and the error is
    returned unchanged. Otherwise pins are dropped one at a time, and each pin is named without
    which there is a plan. If there is no such pin, only several pins together are to blame, and all
    are named.

    - `planned`: plans the step with other tools; raises a `Refusal` if there is no plan.
    """
    # If only compiled programs break the budget, only compiled programs show whether it is met.
    trial = tools if isinstance(error, BudgetNotMetError) else tools.unchecked
    trial = trial.with_settings(
        effort=shares.PIN_TRIAL_EFFORT, gap=shares.ANY_PLAN, on_progress=None
    )

    def is_possible_without(*labels: str) -> bool:
        try:
            return planned(trial.with_settings(dropped_pins=frozenset(labels))).fits
        except (InfeasibleBudgetError, NoPlanFoundError):
            return False

    labels = pins.labels
    if not labels or not is_possible_without(*labels):
        return error
    tried_labels = labels if len(labels) <= shares.MOST_DROPPED_PINS else ()
    guilty = [label for label in tried_labels if is_possible_without(label)]
    without = ", or without ".join(guilty) or f"the pins {', '.join(labels)}"
    return error.changed(
        cause=f"A plan is found without {without}.",
        suggestion=f"Loosen that pin. {error.suggestion}",
    )
