"""The cost of the shardings in the user's own function."""

from dataclasses import replace
from typing import TypeVar

from kiwi.plans.explain import origin_of
from kiwi.plans.record import PlanRecord

_Plan = TypeVar("_Plan", bound=PlanRecord)


def without_user_shardings(plan: _Plan, *, effort: str = "quick") -> _Plan:
    """Returns the plan of the same request without the shardings that the function and its
    arguments ask for (`respect_user_shardings=False`). The plan is not compiled.

    The cost of these shardings is the difference between the `estimate.step_seconds` of this plan
    and of the new plan. Unlike with `respect_user_shardings=False`, each `shard_map` stays.

    - `effort`: the effort of the search for the new plan.

    **Raises:** `InvalidArgumentError` if the problem cannot be formulated again;
    `InfeasibleBudgetError` and `NoPlanFoundError` as `kiwi.plan` does.
    """
    origin = origin_of(plan)
    settings = replace(
        origin.settings, respect_user_shardings=False, effort=effort, on_progress=None
    )
    return origin.planner.make(origin.step, settings, is_checked=False)
