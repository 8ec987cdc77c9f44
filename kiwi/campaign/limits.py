"""The controllers that choose the next memory limit of a search.

A plan found under a limit has a predicted peak, and its compiled program has a compiled peak. Both
determine the next limit:

- *By the excess.* The limit falls by the bytes that the program is over the budget, or rises by the
  bytes that it leaves free. The starting point is the bytes that the plan holds, not the plan's
  limit: a limit that is only a little below one that the plan did not fill allows the same plan.
- *Between.* If one limit is known to be too high and another to be low enough, the next limit lies
  between them. The limit by the excess is taken if it lies there, otherwise the middle.

Each kind of search has its own controller. A problem's plans may leave part of their limit free
(`ProblemLimits`). Schedules may be found at random (`ScheduleLimits`). The peaks of programs whose
collectives overlap follow the peaks of their plans only loosely (`OverlapLimits`). The smallest
changes of a limit that are worth another plan are in `kiwi.campaign.shares`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kiwi.campaign import shares
from kiwi.plans.record import Round


@dataclass(frozen=True)
class Measured:
    """The memory of a plan and of its program.

    - `limit_bytes`: the limit under which the plan was found.
    - `planned_bytes`: the predicted peak of the plan.
    - `needed_bytes`: the peak of the program.
    """

    limit_bytes: int
    planned_bytes: int
    needed_bytes: int

    @classmethod
    def of(cls, one: Round) -> "Measured":
        """Returns the bytes of a round of the closed loop."""
        return cls(one.limit_bytes, one.predicted_peak_bytes, one.peak_bytes)

    @property
    def held_bytes(self) -> int:
        """The smallest limit that is known to allow the plan."""
        return min(self.limit_bytes, self.planned_bytes)


class LimitController:
    """Moves a limit so that a program meets the budget and leaves little of it free.

    - `low_bytes`: a limit that is known to be low enough; None if none is known.
    - `high_bytes`: a limit that is known to be too high; None if none is known.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.low_bytes: int | None = None
        self.high_bytes: int | None = None

    def over_bytes(self, measured: Measured) -> int:
        """Returns the bytes by which a program is over the budget; negative if it leaves room."""
        return measured.needed_bytes - self.budget_bytes

    def by_excess(self, from_bytes: int, measured: Measured, further_bytes: float = 0) -> int:
        """Returns `from_bytes` lowered by the program's excess over the budget and by
        `further_bytes`."""
        return from_bytes - math.ceil(self.over_bytes(measured) + further_bytes)

    def middle(self) -> int:
        """Returns the middle of `low_bytes` and `high_bytes`, which must be known."""
        assert self.low_bytes is not None and self.high_bytes is not None
        return (self.low_bytes + self.high_bytes) // 2

    def inside(self, limit_bytes: int) -> int:
        """Returns the limit if it lies between `low_bytes` and `high_bytes`, otherwise their
        middle."""
        assert self.low_bytes is not None and self.high_bytes is not None
        is_between = self.low_bytes < limit_bytes < self.high_bytes
        return limit_bytes if is_between else self.middle()

    def is_worth(self, gained_bytes: int, part: float) -> bool:
        """Whether the bytes gained are more than a part of the budget."""
        return gained_bytes > part * self.budget_bytes


class ProblemLimits(LimitController):
    """The limits of one problem (`kiwi.campaign.problem_search`)."""

    def after_program(self, last: Measured, rounds: Sequence[Round], *, fits: bool) -> int | None:
        """Returns the limit after a program with few barriers; None to end.

        XLA orders such a program freely, so that it teaches nothing about single operators. The
        limit rises only if the program leaves much more room than the plan left of its limit.

        - `last`: the last plan, whose `planned_bytes` do not include the heap's waste.
        - `rounds`: all rounds so far.
        - `fits`: whether the last plan is within all budgets, the host's included.
        """
        measured = [Measured.of(past) for past in rounds]
        over_held_bytes = [plan.held_bytes for plan in measured if self.over_bytes(plan) > 0]
        within_limit_bytes = [plan.limit_bytes for plan in measured if self.over_bytes(plan) <= 0]
        left_bytes = last.held_bytes - self.over_bytes(last) - last.limit_bytes
        if not over_held_bytes and left_bytes < shares.ROOM * self.budget_bytes:
            return None
        limit_bytes = self.by_excess(last.limit_bytes if fits else last.held_bytes, last)
        if not within_limit_bytes:
            return max(0, limit_bytes - int(shares.LOWER * self.budget_bytes))
        if not over_held_bytes:
            return max(0, limit_bytes)
        self.low_bytes, self.high_bytes = max(within_limit_bytes), min(over_held_bytes)
        limit_bytes = self.inside(limit_bytes)
        is_worth = self.is_worth(limit_bytes - self.low_bytes, shares.PROBLEM_RISE)
        return limit_bytes if is_worth else None

    def after_excess(self, last: Measured) -> int:
        """Returns the limit lowered by the last program's excess over the budget, at least 0."""
        return max(0, self.by_excess(last.held_bytes, last))

    def after_refusal(
        self, limit_bytes: int, rounds: Sequence[Round], least_bytes: int | None = None
    ) -> int | None:
        """Returns the limit after a refusal: halfway back to the lowest limit that had a plan, and
        at least `least_bytes`.

        Returns None if that is hardly above the refused limit, or hardly below the lowest limit
        that had a plan.

        - `limit_bytes`: the refused limit.
        - `rounds`: all rounds so far, at least one.
        - `least_bytes`: the smallest peak that a refused search found, if there is one.
        """
        planned_bytes = min(past.limit_bytes for past in rounds)
        raised_bytes = (planned_bytes - limit_bytes) // 2
        if not self.is_worth(raised_bytes, shares.LEAST_LOWERING):
            return None
        raised_to_bytes = max(limit_bytes + raised_bytes, least_bytes or 0)
        is_lower = self.is_worth(planned_bytes - raised_to_bytes, shares.LEAST_LOWERING)
        return raised_to_bytes if is_lower else None


class ScheduleLimits(LimitController):
    """The limits of schedules (`kiwi.campaign.limit_search`).

    If a program leaves room because the limit was lowered too far, the limit rises again.

    - `varies`: whether the search is randomised. Such a search may find another schedule under the
      same limit, so that a refused limit does not end the search.
    """

    def __init__(self, budget_bytes: int, *, varies: bool) -> None:
        super().__init__(budget_bytes)
        self._varies = varies
        self._refused_bytes = 0
        self._best_bytes: int | None = None

    @property
    def has_best(self) -> bool:
        """Whether the program of some schedule fits."""
        return self._best_bytes is not None

    def after_program(self, last: Measured, rounds: Sequence[Round]) -> int | None:
        """Returns the limit after a program; None to end. `rounds`: all rounds so far."""
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
        """Returns the limit after a refusal; None if no other limit may help.

        A randomised search repeats the lowest limit that had a schedule. Any other search continues
        between the refused bytes and the smallest predicted peak.

        - `limit_bytes`: the refused limit.
        - `least_bytes`: the smallest peak that the refusal names, if it names one.
        - `rounds`: all rounds so far, at least one.
        """
        last_bytes = min(past.predicted_peak_bytes for past in rounds)
        named_bytes = least_bytes or last_bytes
        lower_bytes = named_bytes if named_bytes < last_bytes else 0
        self._refused_bytes = max(self._refused_bytes, limit_bytes, lower_bytes)
        if self._varies:
            return min(past.limit_bytes for past in rounds)
        return (self._refused_bytes + last_bytes) // 2 if lower_bytes else None

    def _above(self, last: Measured, rounds: Sequence[Round]) -> int:
        """Returns the limit after a program within the budget: between its plan and the smallest
        larger plan whose program was over the budget. If there is no such plan, the limit was not
        lowered before, and the plan's own bytes are returned."""
        too_large = [
            plan.planned_bytes
            for plan in map(Measured.of, rounds)
            if self.over_bytes(plan) > 0 and plan.planned_bytes > last.planned_bytes
        ]
        if not too_large:
            return last.planned_bytes
        self.low_bytes, self.high_bytes = last.planned_bytes, min(too_large)
        limit_bytes = self.by_excess(last.planned_bytes, last)
        return limit_bytes if limit_bytes < min(too_large) else self.middle()

    def _below(self, last: Measured) -> int:
        """Returns the limit after a program over the budget."""
        limit_bytes = self.by_excess(last.held_bytes, last)
        if self._varies and limit_bytes <= self._refused_bytes:
            self.low_bytes, self.high_bytes = self._refused_bytes, last.planned_bytes
            return self.middle()
        return limit_bytes


class OverlapLimits(LimitController):
    """The limits of plans whose programs overlap (`kiwi.campaign.overlap_search`).

    The peaks of such programs follow the peaks of their plans loosely, so each limit falls by more
    than the excess. After a plan that leaves room, or a limit without a promising plan, the next
    limit is halfway to the plan that was too large.
    """

    @property
    def most_over_bytes(self) -> float:
        """The largest excess over the budget, in bytes, after which a further plan is tried."""
        return shares.MOST_OVER * self.budget_bytes

    def after_program(self, last: Measured, tried: int, *, is_tied: bool) -> int | None:
        """Returns the limit after a program; None to end.

        - `tried`: the number of plans of less memory that were tried before.
        - `is_tied`: whether the plan fits only because steps are tied. A plan of less memory may
          fit without tied steps.
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
            # If copies or the heap took the plan beyond its limit, the next plan will do the same.
            limit_bytes = self.by_excess(last.held_bytes, last, further * self.budget_bytes)
            return limit_bytes if limit_bytes > 0 else None
        if is_tied:
            limit_bytes = int(last.planned_bytes - shares.FURTHER * self.budget_bytes)
            return limit_bytes if limit_bytes > 0 else None
        is_loose = -over_bytes >= shares.LOOSE * self.budget_bytes
        return self.after_refusal(last.held_bytes) if is_loose else None

    def after_refusal(self, low_bytes: int) -> int | None:
        """Returns the limit halfway from `low_bytes`, which is low enough, to the plan that was too
        large; None if they are close, or if no plan was too large."""
        self.low_bytes = low_bytes
        more_bytes = 0 if self.high_bytes is None else self.high_bytes - low_bytes
        return self.middle() if self.is_worth(more_bytes, shares.LOOSE) else None
