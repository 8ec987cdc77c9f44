"""What a plan was made from: enough to formulate its problem, and to plan, again."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kiwi.calls.traced import Traced
from kiwi.memory.residency import Residency
from kiwi.options import Settings
from kiwi.problem.build import PlanningProblem


class Planning(Protocol):
    """The way from a traced call to a plan. Plans are told it by whoever makes them
    (`kiwi.planners.planning.PLANNING`), because they know no planner."""

    def formulate(
        self,
        traced: Traced,
        out_shardings: Any,
        settings: Settings,
        *,
        offered: tuple[tuple[Residency, ...], ...] = (),
    ) -> PlanningProblem:
        """The problem of the call; `offered` as in `kiwi.problem.build.Fixed`."""
        ...

    def make_plan(
        self,
        traced: Traced,
        out_shardings: Any,
        settings: Settings,
        *,
        planning: PlanningProblem | None = None,
        warm_start: Sequence[int] | None = None,
    ) -> Any:
        """A `kiwi.plans.plan.Plan` of the call, of `planning` where that is given."""
        ...


@dataclass(frozen=True, eq=False)
class Origin:
    """The traced call and the settings of a plan.

    A `PlanningProblem` is large and made in seconds, so that a plan keeps what leads to it.
    `offered`: residencies of other plans that it was made from
    (`kiwi.planners.baseline_starts`), or its own, which today's problem may not offer by itself.
    """

    traced: Traced
    out_shardings: Any
    settings: Settings
    way: Planning
    offered: tuple[tuple[Residency, ...], ...] = ()

    @functools.cached_property
    def planning(self) -> PlanningProblem:
        """The problem that the plan solves; formulated on first use."""
        return self.way.formulate(
            self.traced, self.out_shardings, self.settings, offered=self.offered
        )
