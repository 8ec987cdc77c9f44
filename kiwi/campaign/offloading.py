"""The test of whether a plan gains by offloading to host memory."""

from kiwi.campaign.overlap_search import compiled_seconds
from kiwi.plans.plan import Plan


def gains(found: Plan, plain: Plan) -> bool:
    """Whether a plan that offloads is predicted to be faster than a plan without, and is no slower
    as compiled. Estimates do not show which copies delay each other.

    - `found`: the plan that offloads. `plain`: the plan without offloading.
    """
    is_faster = found.estimate.step_seconds < plain.estimate.step_seconds
    return is_faster and compiled_seconds(found) <= compiled_seconds(plain)
