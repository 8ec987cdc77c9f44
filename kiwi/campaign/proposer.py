"""`Proposer`: the interface between a planner and the closed loop.

A `Proposer` *proposes* a plan under a memory limit, *learns* from the memory of the compiled
program, and may put the same computations *in another order*.
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
    """The other orders in which plans are compiled while they are over the budget.

    - `numbers`: one for each order of a plan, from which the proposer derives its seed.
    - `of_all`: the number of orders of all plans together.
    - `at_once`: orders are compiled before the next plan is proposed; otherwise only if that plan
      is slower.
    """

    numbers: range
    of_all: float = math.inf
    at_once: bool = False


@dataclass(frozen=True, eq=False)
class Proposal:
    """A plan, its limit, and the time of finding it.

    - `correction_bytes`: the most that earlier programs added to the prediction or subtracted from
      the limit.
    """

    plan: Plan
    limit_bytes: int
    solve_seconds: float = 0.0
    correction_bytes: int = 0


P = TypeVar("P", bound=Proposal)


class Proposer(Protocol[P]):
    """The part of a planner that the loop calls.

    - `most_rounds`: the largest number of plans. `orders`: the other orders of each.
    - `cause`, `instead`: the cause and the suggestion of the error if no plan fits.
    """

    most_rounds: int
    orders: Orders
    cause: str
    instead: str

    @property
    def first_limit_bytes(self) -> int:
        """The limit of the first plan."""
        ...

    def propose(self, limit_bytes: int) -> P:
        """A plan under a limit, not yet compiled; raises `Refusal` if there is none."""
        ...

    def learn(self, plan: Plan, rounds: Sequence[Round]) -> int | None:
        """The next limit after a plan was compiled, None to end. `rounds` are all rounds so far."""
        ...

    def refused(self, error: Refusal, rounds: Sequence[Round]) -> int | None:
        """The next limit after `propose` raised, None to end."""
        ...

    def reordered(self, proposal: P, number: int) -> P | None:
        """The same computations in another order; None if no order may help. `proposal` has its
        compiled program."""
        ...

    def known(self, most_seconds: float) -> Iterator[P]:
        """Plans known before that are predicted to fit and to be fast enough, the fastest first.
        The loop asks for them at the end."""
        ...
