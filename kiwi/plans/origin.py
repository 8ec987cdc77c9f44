"""What a plan was made from: enough to formulate its problem, and to plan, again."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kiwi.calls.traced import Traced
from kiwi.memory.residency import Residency
from kiwi.options import Settings
from kiwi.problem.build import PlanningProblem
from kiwi.problem.step import StepToPlan


class MadeBy(Protocol):
    """What a plan asks of the planner that made it (`kiwi.planners.planner.Planner`)."""

    formulate: Callable[..., PlanningProblem]
    make: Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Origin:
    """The traced call, the settings and the planner of a plan.

    A `PlanningProblem` is large and made in seconds, so that a plan keeps what leads to it.
    `offered`: residencies of other plans that it was made from
    (`kiwi.planners.joint`), or its own, which today's problem may not offer by itself.
    """

    traced: Traced
    out_shardings: Any
    settings: Settings
    planner: MadeBy
    offered: tuple[tuple[Residency, ...], ...] = ()

    @property
    def step(self) -> StepToPlan:
        """What was planned."""
        return StepToPlan(self.traced, self.out_shardings)

    @functools.cached_property
    def planning(self) -> PlanningProblem:
        """The problem that the plan solves; formulated on first use."""
        budget_bytes = self.settings.memory_budget_bytes
        return self.planner.formulate(self.step, budget_bytes, self.settings, offered=self.offered)
