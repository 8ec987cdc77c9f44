"""Whether a plan gains by offloading to the host's memory."""

from kiwi.campaign.overlap_search import compiled_seconds
from kiwi.plans.plan import Plan


def gains(found: Plan, plain: Plan) -> bool:
    """Whether a plan that offloads is faster than one that does not, and no slower as compiled:
    estimates do not know which copies delay each other."""
    is_faster = found.estimate.step_seconds < plain.estimate.step_seconds
    return is_faster and compiled_seconds(found) <= compiled_seconds(plain)
