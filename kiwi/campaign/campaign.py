"""The state of one planning, and its searches, until one of them finds a plan.

1. The problem is searched under the budget.
2. If that finds no plan, other searches follow in their order (`kiwi.campaign.searches`), each if
   it applies. They change the state: the plan, or why there is none.
3. The first plan is the answer. Without one, the last refusal is raised.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kiwi.campaign import shares
from kiwi.campaign.attempt import Attempt
from kiwi.campaign.closed_loop import ClosedLoop
from kiwi.campaign.limits import limit_below
from kiwi.campaign.planner_facts import PlannerFacts
from kiwi.campaign.problem_search import ProblemSearch
from kiwi.campaign.proposer import Refusal
from kiwi.campaign.tools import Tools
from kiwi.options import Settings
from kiwi.plans.plan import Plan
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Start
from kiwi.problem.step import StepToPlan

OtherStart = Callable[[Refusal, Tools], Start | None]
"""The start of another search, from a refusal, and tools with the budget that the start has to
meet."""


@dataclass(eq=False)
class Campaign:
    """The state of one planning.

    - `planner`: the planner. `step`: the step.
    - `tools`: the settings, the compiler, the allowance of searches, and the history.
    - `problem`: the problem of the step, given by the caller or formulated by the planner for
      settings (`formulate`).
    - `is_given`: whether a caller gave the problem, and perhaps a first solution. No other start is
      looked for then.
    - `other_start`: a start from other planners' plans.
    - `plan`: the answer, once there is one. `solves`: the problem that it is a solution of.
    - `refusal`: why there is no plan so far.
    """

    planner: PlannerFacts
    step: StepToPlan
    tools: Tools
    start: Start
    is_given: bool
    formulate: Callable[[Settings], PlanningProblem]
    other_start: OtherStart
    plan: Plan | None = None
    solves: PlanningProblem | None = None
    refusal: Refusal | None = None

    @property
    def budget_bytes(self) -> int:
        """The budget of one device."""
        return self.tools.settings.memory_budget_bytes

    @property
    def problem(self) -> PlanningProblem:
        """The problem of the first search."""
        return self.start.problem

    @property
    def second_tools(self) -> Tools:
        """The tools of a search that follows one without a plan."""
        return self.tools.part(shares.SECOND_SEARCH_SHARE)

    def search(
        self,
        start: Start,
        tools: Tools,
        limit_bytes: int | None = None,
        most_rounds: int | None = None,
    ) -> Plan:
        """The plan that the closed loop finds for one problem; raises as it does."""
        return searched(self.planner, self.step, tools, start, limit_bytes, most_rounds)

    def begin_again(self, start: Start) -> None:
        """Searches from another start; raises if that finds no plan either."""
        limit_bytes = None
        if self.refusal is not None:
            limit_bytes = limit_below(self.refusal, self.budget_bytes)
        self.answered(self.search(start, self.second_tools, limit_bytes), start.problem)

    def answered(self, plan: Plan, problem: PlanningProblem) -> None:
        """Takes a plan as the answer."""
        self.plan, self.solves = plan, problem


class Search(Protocol):
    """A search of a campaign."""

    @property
    def attempt(self) -> Attempt:
        """Its description."""
        ...

    def applies(self, campaign: Campaign) -> bool:
        """Whether it is worth its work, if no plan was found so far."""
        ...

    def run(self, campaign: Campaign) -> None:
        """Searches, and changes the state; raises if no other search may follow."""
        ...


def run(campaign: Campaign, searches: Sequence[Search]) -> tuple[PlanningProblem, Plan]:
    """The plan that the first successful search finds, and the problem that it solves.

    **Raises:** the last refusal if there is none.
    """
    for search in searches:
        if search.applies(campaign):
            with campaign.tools.history.within(search.attempt):
                search.run(campaign)
        if campaign.plan is not None and campaign.solves is not None:
            return campaign.solves, campaign.plan
    assert campaign.refusal is not None
    raise campaign.refusal


def searched(
    planner: PlannerFacts,
    step: StepToPlan,
    tools: Tools,
    start: Start,
    limit_bytes: int | None = None,
    most_rounds: int | None = None,
) -> Plan:
    """The plan that the closed loop finds for one problem under the settings' budget; it begins
    with `limit_bytes`, by default the budget, and ends after `most_rounds`."""
    proposer = ProblemSearch(planner, step, tools, start, limit_bytes)
    proposer.most_rounds = most_rounds or proposer.most_rounds
    return ClosedLoop(planner, proposer, tools.settings.memory_budget_bytes, tools).run()
