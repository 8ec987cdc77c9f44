"""Schedules under changing limits, until a compiled program meets the budget closely.

This is the proposer that planners of schedules give to the closed loop
(`kiwi.campaign.closed_loop`): "two-stage", the paper's models and the planners of one device. These
planners know only the memory of a whole schedule. So the bytes that a compiled program needs beyond
the budget are subtracted from the limit. ("joint" corrects its problem instead:
`kiwi.campaign.problem_search`.)
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kiwi.campaign import shares
from kiwi.campaign.limits import Measured, ScheduleLimits
from kiwi.campaign.proposer import Orders, Proposal, Refusal
from kiwi.plans.plan import Plan
from kiwi.plans.record import Round

Reordered = Callable[[Plan, int, int], Plan | None]
"""Returns the computations of a plan in another order; None if there is no such order. The
arguments are a plan that is over the budget as compiled, its limit, and its excess over the budget,
both in bytes."""


@dataclass(eq=False)
class LimitSearch:
    """Moves the limit by the bytes that the last program was over or below the budget
    (`ScheduleLimits`).

    - `find`: returns a plan under a limit in bytes, not yet compiled; raises `Refusal` if there is
      none.
    - `cause`, `instead`: as in `Proposer`.
    - `varies`: whether `find` is randomised. If so, a refused limit is answered by repeating the
      last accepted one, then by one in between. A refused first limit is tried again if it is
      hardly less than the smallest known peak.
    - `other_order`: the other orders of a schedule; None if the planner has none.
    - `orders`, `most_rounds`: as in `Proposer`.
    """

    find: Callable[[int], Plan]
    budget_bytes: int
    cause: str
    instead: str = ""
    varies: bool = False
    other_order: Reordered | None = None
    orders: Orders = field(default_factory=lambda: Orders(range(0)))
    most_rounds: int = shares.SCHEDULE_ROUNDS
    _limit_bytes: int = 0

    def __post_init__(self) -> None:
        self._limits = ScheduleLimits(self.budget_bytes, varies=self.varies)

    @property
    def first_limit_bytes(self) -> int:
        """The budget."""
        return self.budget_bytes

    def propose(self, limit_bytes: int) -> Proposal:
        """Returns the plan that `find` returns; raises the `Refusal` that it raises."""
        self._limit_bytes = limit_bytes
        plan = self.find(limit_bytes)
        return self._proposal(plan, plan.solve_result.seconds)

    def reordered(self, proposal: Proposal, number: int) -> Proposal | None:
        """Returns the plan's computations in another order that should need less memory by the
        excess over the budget; None if there is none."""
        if self.other_order is None:
            return None
        over_bytes = proposal.plan.peak_bytes - self.budget_bytes
        other = self.other_order(proposal.plan, proposal.limit_bytes, over_bytes)
        return None if other is None else self._proposal(other, 0.0)

    def known(self, most_seconds: float) -> Iterator[Proposal]:
        """Yields nothing: planners of schedules know no plan before."""
        return iter(())

    def learn(self, plan: Plan, rounds: Sequence[Round]) -> int | None:
        """Returns the next limit, higher by the free bytes or lower by the excess; None to end."""
        last = Measured(rounds[-1].limit_bytes, plan.estimate.peak_bytes, plan.peak_bytes)
        return self._limits.after_program(last, rounds)

    def refused(self, error: Refusal, rounds: Sequence[Round]) -> int | None:
        """Returns the next limit after a refusal, between the smallest known peak and the last
        limit; None if no such limit may help."""
        if not rounds:
            return self._limit_bytes if self._may_vary(error) else None
        if self._limits.has_best:
            return None
        least_bytes = getattr(error, "least_peak_bytes", None)
        return self._limits.after_refusal(self._limit_bytes, least_bytes, rounds)

    def _may_vary(self, error: Refusal) -> bool:
        """Whether a repeated search may find a slightly smaller peak than the first search did."""
        least_bytes = getattr(error, "least_peak_bytes", None) or math.inf
        bound_bytes = getattr(error, "least_peak_bound_bytes", None) or 0
        is_close = (
            bound_bytes <= self.budget_bytes
            and least_bytes <= shares.REPEATED_CLOSE * self.budget_bytes
        )
        return self.varies and is_close

    def _proposal(self, plan: Plan, seconds: float) -> Proposal:
        limit_bytes = self._limit_bytes
        return Proposal(plan, limit_bytes, seconds, self.budget_bytes - limit_bytes)
