"""What the shardings of the user's own function cost."""

from dataclasses import replace
from typing import TypeVar

from kiwi.plans.explain import origin_of
from kiwi.plans.record import PlanRecord

_Plan = TypeVar("_Plan", bound=PlanRecord)


def without_user_shardings(plan: _Plan, *, effort: str = "quick") -> _Plan:
    """The plan of the same request without what the function and its arguments say of shardings
    (`respect_user_shardings=False`), not compiled.

    Its `estimate.step_seconds` beside this plan's is what they cost. It is a second plan, made
    with the given effort. A `shard_map` stays, as opposed to `respect_user_shardings=False`.

    **Raises:** `InvalidArgumentError` if the problem cannot be formulated anew;
    `InfeasibleBudgetError`, `NoPlanFoundError` as `kiwi.plan`.
    """
    origin = origin_of(plan)
    settings = replace(
        origin.settings, respect_user_shardings=False, effort=effort, on_progress=None
    )
    return origin.planner.make(origin.step, settings, is_checked=False)
