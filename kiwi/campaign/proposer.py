"""`Proposer`: the interface between a planner and the closed loop.

A `Proposer` *proposes* a plan under a memory limit, *learns* from the memory of the compiled
program, and may put the units of a plan *in another order*.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kiwi.errors import InfeasibleBudgetError, NoPlanFoundError
from kiwi.plans.plan import Plan
from kiwi.plans.record import Round

Refusal = InfeasibleBudgetError | NoPlanFoundError
"""An error that says that there is no plan under a limit."""


@dataclass(frozen=True)
class Orders:
    """The other orders in which plans over the budget are compiled.

    - `numbers`: one number for each other order of a plan. The proposer derives its seed from it.
    - `of_all`: the largest number of other orders of all plans together.
    - `at_once`: whether the other orders of a plan are compiled before the next plan is proposed.
      Otherwise they are compiled only if the next plan is slower.
    """

    numbers: range
    of_all: float = math.inf
    at_once: bool = False


@dataclass(frozen=True, eq=False)
class Proposal:
    """A plan, the limit under which it was found, and the time of finding it.

    - `correction_bytes`: the largest number of bytes that earlier programs have added to the
      prediction or subtracted from the limit.
    """

    plan: Plan
    limit_bytes: int
    solve_seconds: float = 0.0
    correction_bytes: int = 0


P = TypeVar("P", bound=Proposal)


class Proposer(Protocol[P]):
    """The part of a planner that the closed loop calls.

    - `most_rounds`: the largest number of rounds, each with one plan or refusal.
    - `orders`: the other orders in which each plan may be compiled.
    - `cause`: the cause in the error if no plan fits.
    - `instead`: the alternatives to a larger budget, appended to the error's suggestion.
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
        """Returns a plan under a limit, not yet compiled.

        **Raises:** `Refusal` if there is none.
        """
        ...

    def learn(self, plan: Plan, rounds: Sequence[Round]) -> int | None:
        """Returns the next limit after `plan` was compiled; None to end. `rounds` are all rounds so
        far."""
        ...

    def refused(self, error: Refusal, rounds: Sequence[Round]) -> int | None:
        """Returns the next limit after `propose` has raised `error`; None to end."""
        ...

    def reordered(self, proposal: P, number: int) -> P | None:
        """Returns the proposal with its units in another order, not yet compiled; None if no order
        may help.

        - `proposal`: a proposal with its compiled program.
        - `number`: a member of `orders.numbers`.
        """
        ...

    def known(self, most_seconds: float) -> Iterator[P]:
        """Yields plans known before that are predicted to fit and to take less than `most_seconds`,
        the fastest first. The loop asks for them after the last round."""
        ...
