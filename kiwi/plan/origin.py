"""What a plan was made from: enough to formulate its problem again."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kiwi.plan.settings import Settings
    from kiwi.plan.traced import Traced
    from kiwi.strategy.build import PlanningProblem
    from kiwi.strategy.residency import Residency


@dataclass(frozen=True, eq=False)
class Origin:
    """The traced call and the settings of a plan.

    A `PlanningProblem` is large and made in seconds, so that a plan keeps what leads to it.
    `offered`: residencies of other plans that it was made from (`kiwi.plan.starts`), or its own,
    which today's problem may not offer by itself.
    """

    traced: "Traced"
    out_shardings: Any
    settings: "Settings"
    offered: "tuple[tuple[Residency, ...], ...]" = ()

    @functools.cached_property
    def planning(self) -> "PlanningProblem":
        """The problem that the plan solves; formulated on first use."""
        from kiwi.plan.planner import formulate

        return formulate(self.traced, self.out_shardings, self.settings, offered=self.offered)
