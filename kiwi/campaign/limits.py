"""Where a memory limit goes next: one controller for every search.

A plan found under a limit has a predicted need, and its compiled program has another one. Both
determine the next limit:

- *By the excess.* The limit falls by the bytes that the program is over the budget, or rises by the
  bytes that it leaves free. It moves from the bytes that the plan holds, not from the limit of the
  plan: just below a limit that the plan did not fill, the same plan would be found.
- *Between.* Once one limit is known to be too high and another one to be low enough, the next one
  lies between them: by the excess if that is between them, otherwise in the middle.

Searches differ in what else they know. A problem's plans fill their limit or not, schedules are
found at random, and programs whose collectives overlap follow their plans loosely. Each kind has a
rule here (`ProblemLimits`, `ScheduleLimits`, `OverlapLimits`). The parts of the budget that make
another plan worthwhile are in `kiwi.campaign.shares`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kiwi.campaign import shares
from kiwi.errors import BudgetNotMetError, KiwiError
from kiwi.plans.plan import Plan
from kiwi.plans.record import Round


@dataclass(frozen=True)
class Measured:
    """A plan and its program, in bytes.

    - `limit_bytes`: the limit under which the plan was found.
    - `planned_bytes`: what the plan is predicted to need.
    - `needed_bytes`: what the program needs.
    """

    limit_bytes: int
    planned_bytes: int
    needed_bytes: int

    @classmethod
    def of(cls, one: Round) -> "Measured":
        """The figures of a round of the closed loop."""
        return cls(one.limit_bytes, one.predicted_peak_bytes, one.peak_bytes)

    @property
    def held_bytes(self) -> int:
        """The least limit that is known to allow the plan."""
        return min(self.limit_bytes, self.planned_bytes)


class LimitController:
    """Moves a limit so that a program meets the budget and leaves little of it free.

    - `low_bytes`: a limit that is low enough; None while none is known.
    - `high_bytes`: a limit that is too high; None while none is known.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.low_bytes: int | None = None
        self.high_bytes: int | None = None

    def over_bytes(self, measured: Measured) -> int:
        """The bytes by which a program is over the budget; negative if it leaves room."""
        return measured.needed_bytes - self.budget_bytes

    def by_excess(self, from_bytes: int, measured: Measured, further_bytes: float = 0) -> int:
        """The limit lowered by the program's excess over the budget, and by some bytes more."""
        return from_bytes - math.ceil(self.over_bytes(measured) + further_bytes)

    def middle(self) -> int:
        """The middle of the two known limits."""
        assert self.low_bytes is not None and self.high_bytes is not None
        return (self.low_bytes + self.high_bytes) // 2

    def inside(self, limit_bytes: int) -> int:
        """The limit if it is between the two known ones, otherwise their middle."""
        assert self.low_bytes is not None and self.high_bytes is not None
        is_between = self.low_bytes < limit_bytes < self.high_bytes
        return limit_bytes if is_between else self.middle()

    def is_worth(self, gained_bytes: int, part: float) -> bool:
        """Whether bytes are more than a part of the budget."""
        return gained_bytes > part * self.budget_bytes


class ProblemLimits(LimitController):
    """The limits of one problem (`kiwi.campaign.problem_search`)."""

    def after_program(self, last: Measured, rounds: Sequence[Round], *, fits: bool) -> int | None:
        """The limit after a program with few barriers; None to end.

        XLA orders such a program as it likes, so that nothing is learnt of single operators from
        it. The limit rises only if the program leaves much room beyond what the plan left of its
        limit.

        - `last`: with what the plan holds without the heap's waste; `rounds`: all until then.
        - `fits`: whether it is within all budgets, that of the host's memory included.
        """
        measured = [Measured.of(one) for one in rounds]
        over = [each.held_bytes for each in measured if self.over_bytes(each) > 0]
        within = [each.limit_bytes for each in measured if self.over_bytes(each) <= 0]
        left_bytes = last.held_bytes - self.over_bytes(last) - last.limit_bytes
        if not over and left_bytes < shares.ROOM * self.budget_bytes:
            return None
        limit_bytes = self.by_excess(last.limit_bytes if fits else last.held_bytes, last)
        if not within:
            return max(0, limit_bytes - int(shares.LOWER * self.budget_bytes))
        if not over:
            return max(0, limit_bytes)
        self.low_bytes, self.high_bytes = max(within), min(over)
        limit_bytes = self.inside(limit_bytes)
        is_worth = self.is_worth(limit_bytes - self.low_bytes, shares.PROBLEM_RISE)
        return limit_bytes if is_worth else None

    def after_excess(self, last: Measured) -> int:
        """The limit lowered by the last program's excess over the budget."""
        return max(0, self.by_excess(last.held_bytes, last))

    def after_refusal(
        self, limit_bytes: int, rounds: Sequence[Round], least_bytes: int | None = None
    ) -> int | None:
        """The limit halfway back to the lowest one that had a plan, and no less than the smallest
        peak that was found, if there is one; None if that is hardly more, or if no lower peak than
        that plan's limit was found."""
        planned_bytes = min(one.limit_bytes for one in rounds)
        raised_bytes = (planned_bytes - limit_bytes) // 2
        if not self.is_worth(raised_bytes, shares.LEAST_LOWERING):
            return None
        raised_to_bytes = max(limit_bytes + raised_bytes, least_bytes or 0)
        is_lower = self.is_worth(planned_bytes - raised_to_bytes, shares.LEAST_LOWERING)
        return raised_to_bytes if is_lower else None


class ScheduleLimits(LimitController):
    """The limits of schedules (`kiwi.campaign.limit_search`).

    A correction that was too large is taken back. A randomised search finds another schedule when
    asked for the same limit again, so that a limit without one is not given up at once.
    """

    def __init__(self, budget_bytes: int, *, varies: bool) -> None:
        super().__init__(budget_bytes)
        self._varies = varies
        self._refused_bytes = 0
        self._best_bytes: int | None = None

    @property
    def has_best(self) -> bool:
        """Whether a schedule fits."""
        return self._best_bytes is not None

    def after_program(self, last: Measured, rounds: Sequence[Round]) -> int | None:
        """The limit after a program; None to end."""
        if self.over_bytes(last) <= 0:
            self._best_bytes = last.planned_bytes
            limit_bytes = self._above(last, rounds)
        else:
            limit_bytes = self._below(last)
        if self._best_bytes is None:
            return limit_bytes if limit_bytes > 0 else None
        gained_bytes = limit_bytes - self._best_bytes
        return limit_bytes if gained_bytes >= shares.SCHEDULE_RISE * self.budget_bytes else None

    def after_refusal(
        self, limit_bytes: int, least_bytes: int | None, rounds: Sequence[Round]
    ) -> int | None:
        """A limit between the smallest peak known and the last one, if that may help.

        `least_bytes`: the smallest peak that the refusal names.
        """
        last_bytes = min(one.predicted_peak_bytes for one in rounds)
        named_bytes = least_bytes or last_bytes
        lower_bytes = named_bytes if named_bytes < last_bytes else 0
        self._refused_bytes = max(self._refused_bytes, limit_bytes, lower_bytes)
        if self._varies:
            return min(one.limit_bytes for one in rounds)
        return (self._refused_bytes + last_bytes) // 2 if lower_bytes else None

    def _above(self, last: Measured, rounds: Sequence[Round]) -> int:
        """Takes back a correction that was too large. A first schedule has none."""
        too_large = [
            one.planned_bytes
            for one in map(Measured.of, rounds)
            if self.over_bytes(one) > 0 and one.planned_bytes > last.planned_bytes
        ]
        if not too_large:
            return last.planned_bytes
        self.low_bytes, self.high_bytes = last.planned_bytes, min(too_large)
        limit_bytes = self.by_excess(last.planned_bytes, last)
        return limit_bytes if limit_bytes < min(too_large) else self.middle()

    def _below(self, last: Measured) -> int:
        limit_bytes = self.by_excess(last.held_bytes, last)
        if self._varies and limit_bytes <= self._refused_bytes:
            self.low_bytes, self.high_bytes = self._refused_bytes, last.planned_bytes
            return self.middle()
        return limit_bytes


class OverlapLimits(LimitController):
    """The limits of plans whose programs overlap (`kiwi.campaign.overlap_search`).

    Such programs follow their plans loosely: each limit falls further than by the excess, and once
    a plan fits, or has no promise, the next one is halfway to the plan that was too large.
    """

    @property
    def most_over_bytes(self) -> float:
        """No plan is sought for a program that is over the budget by more than this."""
        return shares.MOST_OVER * self.budget_bytes

    def after_program(self, last: Measured, tried: int, *, is_tied: bool) -> int | None:
        """The limit after a program; None to end.

        - `tried`: how many plans of less memory were tried before.
        - `is_tied`: whether steps had to be tied: a plan of less memory may do without.
        """
        over_bytes = self.over_bytes(last)
        if over_bytes > self.most_over_bytes:
            return None
        if over_bytes > 0:
            high_bytes = last.held_bytes
            self.high_bytes = min(high_bytes, self.high_bytes or high_bytes)
            if self.low_bytes is not None:
                return self.after_refusal(self.low_bytes)
            further = max(shares.LITTLE_FURTHER, tried * shares.FURTHER)
            # A plan whose copies or heap took more than its limit will do so again.
            limit_bytes = self.by_excess(last.held_bytes, last, further * self.budget_bytes)
            return limit_bytes if limit_bytes > 0 else None
        if is_tied:
            return int(last.planned_bytes - shares.FURTHER * self.budget_bytes)
        is_loose = -over_bytes >= shares.LOOSE * self.budget_bytes
        return self.after_refusal(last.held_bytes) if is_loose else None

    def after_refusal(self, low_bytes: int) -> int | None:
        """The limit halfway from one that is low enough to the plan that was too large; None if
        little is between."""
        self.low_bytes = low_bytes
        more_bytes = 0 if self.high_bytes is None else self.high_bytes - low_bytes
        return self.middle() if self.is_worth(more_bytes, shares.LOOSE) else None


def limit_below(error: KiwiError, budget_bytes: int) -> int | None:
    """The limit of the search that follows one whose programs were over the budget: what the
    nearest plan was predicted to need, less the excess, and never more than the budget; None if no
    program was compiled."""
    if not isinstance(error, BudgetNotMetError):
        return None
    nearest: Plan = error.plan
    last = Measured(budget_bytes, nearest.estimate.peak_bytes, nearest.peak_bytes)
    return min(budget_bytes, LimitController(budget_bytes).by_excess(last.planned_bytes, last))
