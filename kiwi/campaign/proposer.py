"""What a planner supplies to the closed loop, and what it answers.

A `Proposer` *proposes* a plan under a memory limit, *learns* from what a plan needs as compiled,
and may put the same computations *in another order*.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kiwi.errors import InfeasibleBudgetError, NoPlanFoundError
from kiwi.plans.plan import Plan
from kiwi.plans.record import Round

Refusal = InfeasibleBudgetError | NoPlanFoundError


@dataclass(frozen=True)
class Orders:
    """In how many other orders plans are compiled while they are over the budget.

    - `numbers`: one for each order of a plan, from which the proposer derives its seed.
    - `of_all`: how many orders of all plans together.
    - `at_once`: before the next plan is proposed; otherwise where that is slower.
    """

    numbers: range
    of_all: float = math.inf
    at_once: bool = False


@dataclass(frozen=True, eq=False)
class Proposal:
    """A plan, the limit under which it was found, and how long that took.

    - `correction_bytes`: the most that earlier programs added to the prediction or took off the
      limit.
    """

    plan: Plan
    limit_bytes: int
    solve_seconds: float = 0.0
    correction_bytes: int = 0


P = TypeVar("P", bound=Proposal)


class Proposer(Protocol[P]):
    """What a planner supplies to the loop.

    - `most_rounds`: how many plans are proposed at most; `orders`: in how many orders.
    - `cause`, `instead`: of the error, should no plan fit: why, and what else to try.
    """

    most_rounds: int
    orders: Orders
    cause: str
    instead: str

    @property
    def first_limit_bytes(self) -> int:
        """Under which limit the first plan is proposed."""
        ...

    def propose(self, limit_bytes: int) -> P:
        """A plan under a limit, not yet compiled; raises `Refusal` where there is none."""
        ...

    def learn(self, plan: Plan, rounds: Sequence[Round]) -> int | None:
        """The next limit after a plan was compiled, None to end; `rounds` are all until then."""
        ...

    def refused(self, error: Refusal, rounds: Sequence[Round]) -> int | None:
        """The next limit after `propose` raised, None to end."""
        ...

    def reordered(self, proposal: P, number: int) -> P | None:
        """The same computations in another order, None where none may help; `proposal` has its
        compiled program."""
        ...

    def known(self, most_seconds: float) -> Iterator[P]:
        """Plans known before that are predicted to fit, and to take less than so many seconds, the
        fastest first; asked at the end."""
        ...
