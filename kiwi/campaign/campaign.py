"""The state of one planning, and the searches that run until one of them finds a plan.

1. The first search solves the problem under the budget.
2. If it finds no plan, the other searches that apply follow in their order
   (`kiwi.campaign.searches`). Each changes the state: it sets the plan, or the refusal.
3. The first plan found is the answer. If no search finds one, the last refusal is raised.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kiwi.campaign import shares
from kiwi.campaign.attempt import Attempt
from kiwi.campaign.closed_loop import ClosedLoop
from kiwi.campaign.planner_facts import PlannerFacts
from kiwi.campaign.problem_search import ProblemSearch
from kiwi.campaign.proposer import Refusal
from kiwi.campaign.tools import Tools
from kiwi.options import Settings
from kiwi.plans.plan import Plan
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Start
from kiwi.problem.step import StepToPlan


@dataclass(eq=False)
class Campaign:
    """The state of one planning.

    - `planner`: the facts of the planner for which plans are made. `step`: the step to plan.
    - `tools`: the settings, the compiler, the allowance of searches, and the history.
    - `start`: the problem of the first search, and a solution to begin with, if one is known.
    - `is_given`: whether the caller gave the start. No other start is looked for then.
    - `formulate`: returns the planner's problem for other settings.
    - `plan`: the answer; None until a search has found one. `solves`: the problem that the plan
      solves.
    - `refusal`: the error of the last search that found no plan; None if there was none.
    """

    planner: PlannerFacts
    step: StepToPlan
    tools: Tools
    start: Start
    is_given: bool
    formulate: Callable[[Settings], PlanningProblem]
    plan: Plan | None = None
    solves: PlanningProblem | None = None
    refusal: Refusal | None = None

    @property
    def budget_bytes(self) -> int:
        """The memory budget of one device."""
        return self.tools.settings.memory_budget_bytes

    @property
    def problem(self) -> PlanningProblem:
        """The problem of the first search, given by the caller or formulated by the planner."""
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
        """Returns the plan that the closed loop finds from a start (`searched`).

        **Raises:** the errors of `ClosedLoop.run`.
        """
        return searched(self.planner, self.step, tools, start, limit_bytes, most_rounds)

    def begin_again(self, start: Start) -> None:
        """Searches from another start and takes the plan as the answer.

        **Raises:** the errors of `ClosedLoop.run` if this search finds no plan either.
        """
        self.answered(self.search(start, self.second_tools), start.problem)

    def answered(self, plan: Plan, problem: PlanningProblem) -> None:
        """Records a plan as the answer, with the problem that it solves."""
        self.plan, self.solves = plan, problem


class Search(Protocol):
    """A search of a campaign."""

    @property
    def attempt(self) -> Attempt:
        """The row of the table of attempts that describes the search."""
        ...

    def applies(self, campaign: Campaign) -> bool:
        """Whether the search is worth its work, given that no plan was found so far."""
        ...

    def run(self, campaign: Campaign) -> None:
        """Searches, and records the plan or the refusal in the campaign.

        **Raises:** the refusal if no other search may follow.
        """
        ...


def run(campaign: Campaign, searches: Sequence[Search]) -> tuple[PlanningProblem, Plan]:
    """Returns the problem and the plan of the first search that finds one.

    **Raises:** the last refusal if no search finds a plan.
    """
    left = campaign.tools.programs
    for search in searches:
        if campaign.refusal is not None and left is not None and not left.count:
            break
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
    """Returns the plan that the closed loop finds for one problem under the settings' budget.

    - `start`: the problem, and a solution to begin with, if one is known.
    - `limit_bytes`: the first memory limit. By default it is the budget, or a little less for a
      long step (`shares.LONG_STEP_AIM`).
    - `most_rounds`: the largest number of rounds. By default the proposer sets it.

    **Raises:** the errors of `ClosedLoop.run`.
    """
    proposer = ProblemSearch(planner, step, tools, start, limit_bytes)
    proposer.most_rounds = most_rounds or proposer.most_rounds
    return ClosedLoop(planner, proposer, tools.settings.memory_budget_bytes, tools).run()
