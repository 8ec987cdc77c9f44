"""The searches of a campaign, in the order in which they are made."""

import math
from dataclasses import dataclass

from kiwi.campaign import shares
from kiwi.campaign.attempt import Attempt
from kiwi.campaign.attempts import (
    ABOVE_BUDGET,
    FIRST_SEARCH,
    FREE_PROGRAM,
    LEAST_PEAK,
    WITHOUT_PINS,
)
from kiwi.campaign.campaign import Campaign, Search
from kiwi.campaign.obvious_starts import least_peak
from kiwi.campaign.refusals import blamed, raised_limits, with_least_peak
from kiwi.campaign.tools import Tools
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, NoPlanFoundError
from kiwi.plans.plan import Plan
from kiwi.problem.solved import Start

UNLIMITED_BYTES = 2**50
"""A limit in bytes above the memory of any device: plans under it are planned without a limit."""


@dataclass(frozen=True)
class FirstSearch:
    """Searches the problem under the budget."""

    attempt: Attempt = FIRST_SEARCH

    def applies(self, campaign: Campaign) -> bool:
        """Always."""
        return True

    def run(self, campaign: Campaign) -> None:
        """Takes the plan, or records the refusal."""
        try:
            campaign.answered(campaign.search(campaign.start, campaign.tools), campaign.problem)
        except (InfeasibleBudgetError, NoPlanFoundError) as refusal:
            campaign.refusal = refusal


@dataclass(frozen=True)
class LeastPeakSearch:
    """Searches from the solution with the least peak of the fastest shardings, if that peak is
    within the budget."""

    attempt: Attempt = LEAST_PEAK

    def applies(self, campaign: Campaign) -> bool:
        """Returns whether the solver found no plan. After a refusal by a compiled program, the
        least predicted peak would say less."""
        return not campaign.is_given and not isinstance(campaign.refusal, BudgetNotMetError)

    def run(self, campaign: Campaign) -> None:
        """Begins again from a solution within the budget. If there is none, the refusal names the
        least peak found."""
        assert campaign.refusal is not None
        budget_bytes = campaign.budget_bytes
        least = least_peak(campaign.problem, budget_bytes, campaign.tools)
        campaign.refusal = with_least_peak(campaign.refusal, budget_bytes, least.peak_bytes)
        if least.start is not None:
            campaign.begin_again(least.start)


@dataclass(frozen=True)
class AboveBudgetSearch:
    """Searches under limits above the budget: compiled programs may need less than predicted."""

    attempt: Attempt = ABOVE_BUDGET

    def applies(self, campaign: Campaign) -> bool:
        """Returns whether there is a compiler."""
        return campaign.tools.compile is not None

    def run(self, campaign: Campaign) -> None:
        """Takes the first plan whose compiled program is within the budget. If a program is over
        the budget, its refusal is recorded, and no further limit is tried."""
        assert campaign.refusal is not None
        for limit_bytes in raised_limits(campaign.refusal, campaign.budget_bytes):
            try:
                plan = campaign.search(campaign.start, campaign.second_tools, limit_bytes)
            except BudgetNotMetError as not_met:
                campaign.refusal = not_met
                return
            except (InfeasibleBudgetError, NoPlanFoundError):
                continue
            campaign.answered(plan, campaign.problem)
            return


@dataclass(frozen=True)
class FreeProgramSearch:
    """Compiles the plan without a limit. A budget that this program meets must not be refused: a
    user who plans without a budget would see the program fit."""

    attempt: Attempt = FREE_PROGRAM

    def applies(self, campaign: Campaign) -> bool:
        """Returns whether there is a compiler, estimates alone have refused the budget, and the
        least known peak is not too far above it (`shares.MOST_RAISED_TO_FREE`)."""
        refusal = campaign.refusal
        if campaign.tools.compile is None or isinstance(refusal, BudgetNotMetError):
            return False
        least_bytes = getattr(refusal, "least_peak_bytes", None) or math.inf
        return least_bytes <= shares.MOST_RAISED_TO_FREE * campaign.budget_bytes

    def run(self, campaign: Campaign) -> None:
        """Takes the plan if its program fits."""
        try:
            plan = campaign.search(campaign.start, campaign.second_tools, UNLIMITED_BYTES, 1)
        except (InfeasibleBudgetError, NoPlanFoundError):
            return
        campaign.answered(plan, campaign.problem)


@dataclass(frozen=True)
class SearchWithoutPins:
    """Searches without pins, only to name the pins to blame in the error."""

    attempt: Attempt = WITHOUT_PINS

    def applies(self, campaign: Campaign) -> bool:
        """Returns whether something is pinned and the budget was refused."""
        is_refused = isinstance(campaign.refusal, InfeasibleBudgetError)
        return is_refused and bool(campaign.problem.fixed.pins.labels)

    def run(self, campaign: Campaign) -> None:
        """Replaces the refusal by one that names the pins to blame."""
        assert isinstance(campaign.refusal, InfeasibleBudgetError)

        def planned(trial: Tools) -> Plan:
            return campaign.search(Start(campaign.formulate(trial.settings)), trial)

        pins = campaign.problem.fixed.pins
        campaign.refusal = blamed(campaign.refusal, pins, campaign.tools, planned)


SEARCHES: tuple[Search, ...] = (
    FirstSearch(),
    LeastPeakSearch(),
    AboveBudgetSearch(),
    FreeProgramSearch(),
    SearchWithoutPins(),
)
"""All searches, in the order in which they are made."""
