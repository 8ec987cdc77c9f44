"""The log of a campaign: one record for each attempt, in the order in which attempts were made."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from kiwi.campaign.attempt import Attempt
from kiwi.plans.history import Outcome, Trial
from kiwi.plans.plan import Plan
from kiwi.solver import SolveResult


class History:
    """The records of the attempts of one planning.

    A record names the attempts within which its attempt was made.
    """

    def __init__(self) -> None:
        self._trials: list[Trial] = []
        self._within: tuple[str, ...] = ()

    @contextmanager
    def within(self, attempt: Attempt) -> Iterator[None]:
        """A context manager. Attempts logged inside it are logged as parts of `attempt`."""
        before = self._within
        self._within = (*before, attempt.name)
        try:
            yield
        finally:
            self._within = before

    def solution(
        self,
        attempt: Attempt,
        limit_bytes: int | None,
        result: SolveResult,
        *,
        is_better: bool = True,
    ) -> int:
        """Logs a result of the solver; returns the record's number.

        - `limit_bytes`: the memory limit of the search.
        - `is_better`: whether the solution is taken; otherwise it is logged as slower.
        """
        outcome = Outcome.FOUND if is_better else Outcome.SLOWER
        return self._add(
            Trial(
                attempt.name,
                self._within,
                Outcome.NO_PLAN if result.solution is None else outcome,
                limit_bytes=limit_bytes,
                predicted_peak_bytes=result.peak_bytes,
                predicted_seconds=result.objective,
                work=result.work,
            )
        )

    def program(
        self, attempt: Attempt, plan: Plan, limit_bytes: int | None, needed_bytes: int | None
    ) -> Plan:
        """Logs the program of a plan; returns the plan with the record's number in `made_by`.

        - `limit_bytes`: the memory limit under which the plan was found.
        - `needed_bytes`: the peak that must be within the budget; None if the compiler failed.
        """
        if needed_bytes is None:
            outcome = Outcome.NO_PROGRAM
        else:
            outcome = Outcome.FITS if needed_bytes <= plan.memory_budget_bytes else Outcome.OVER
        compiled = plan.compiled
        number = self._add(
            Trial(
                attempt.name,
                self._within,
                outcome,
                limit_bytes=limit_bytes,
                predicted_peak_bytes=plan.estimate.peak_bytes,
                predicted_seconds=plan.estimate.step_seconds,
                compiled_peak_bytes=None if compiled is None else needed_bytes,
                compiled_seconds=None
                if compiled is None or needed_bytes is None
                else compiled.step_seconds,
            )
        )
        return replace(plan, made_by=(*plan.made_by[:1], number))

    def concluded(self, made_by: Collection[int]) -> tuple[Trial, ...]:
        """Returns all records. Records whose numbers are in `made_by` have the outcome `ANSWER`."""
        return tuple(
            replace(trial, outcome=Outcome.ANSWER) if number in made_by else trial
            for number, trial in enumerate(self._trials)
        )

    def _add(self, trial: Trial) -> int:
        self._trials.append(trial)
        return len(self._trials) - 1
