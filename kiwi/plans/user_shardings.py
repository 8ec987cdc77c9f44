"""The cost of the shardings in the user's own function."""

from dataclasses import replace
from typing import TypeVar

from kiwi.plans.explain import origin_of
from kiwi.plans.record import PlanRecord

_Plan = TypeVar("_Plan", bound=PlanRecord)


def without_user_shardings(plan: _Plan, *, effort: str = "quick") -> _Plan:
    """The plan of the same request without the shardings that the function and its arguments ask
    for (`respect_user_shardings=False`). It is not compiled.

    The difference of its `estimate.step_seconds` to this plan's is their cost. It is a second plan,
    made with the given effort. Unlike with `respect_user_shardings=False`, each `shard_map` stays.

    **Raises:** `InvalidArgumentError` if the problem cannot be formulated again;
    `InfeasibleBudgetError`, `NoPlanFoundError` as `kiwi.plan`.
    """
    origin = origin_of(plan)
    settings = replace(
        origin.settings, respect_user_shardings=False, effort=effort, on_progress=None
    )
    return origin.planner.make(origin.step, settings, is_checked=False)
