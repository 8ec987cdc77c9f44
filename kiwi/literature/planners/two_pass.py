"""The planner "two-pass": recomputation of unsharded values first, then sharding.

1. A schedule of recomputation is found for one device and a budget that is as many times larger as
   there are devices.
2. What that schedule computes again is fixed, and the step is sharded under the budget itself.

So do systems that run the two passes one after the other (Liu et al., 2023).
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from kiwi.campaign.tools import Tools
from kiwi.errors import InfeasibleBudgetError
from kiwi.hlo.units import UnitGraph
from kiwi.literature.planners.remat_graph import one_device_strategies, remat_graph
from kiwi.literature.remat import solve
from kiwi.literature.remat.solve import DEFAULT_PLANNER
from kiwi.mesh import DeviceMesh
from kiwi.options import Settings
from kiwi.planners.alpa import RuleBased
from kiwi.problem.step import StepToPlan
from kiwi.sizes import format_bytes
from kiwi.targets.registry import planned_target


@dataclass(frozen=True)
class TwoPass(RuleBased):
    """Sharding of the step in which a schedule of one device says what is recomputed.

    The rule depends on the budget, and runs every unit in one sequence.
    """

    opens_loops: ClassVar[bool] = False

    def start_for(self, step: StepToPlan, budget_bytes: int, settings: Settings) -> None:
        """None: recomputation depends on the budget, so no other budget's problem can be used."""


def rematerialised_first(units: UnitGraph, budget_bytes: int, settings: Settings) -> frozenset[int]:
    """The units that a schedule for one device runs twice, under the budget of all devices
    together; raises `InfeasibleBudgetError` if there is no such schedule."""
    devices = settings.mesh.size
    one = DeviceMesh.create((1,), settings.mesh.hardware)
    kernels = planned_target(settings.verify, one.hardware).kernels(units, one.hardware)
    try:
        result = solve(
            remat_graph(kernels, one_device_strategies(kernels, one)),
            devices * budget_bytes,
            DEFAULT_PLANNER,
            settings.time_limit_seconds / 2,
            settings.seed,
            planned_seconds=Tools(settings).allowance.part(1 / 2).planned_seconds,
        )
    except InfeasibleBudgetError as error:
        least = None if not error.least_peak_bytes else -(-error.least_peak_bytes // devices)
        raise InfeasibleBudgetError(
            f"No schedule of unsharded values fits {devices} times {format_bytes(budget_bytes)}.",
            cause="The first of the two passes sees no sharding.",
            suggestion='planner="joint", or a larger memory_budget.',
            least_peak_bytes=least,
        ) from error
    runs = Counter(result.schedule.steps)
    return frozenset(u for u, n in runs.items() if n > 1)


TWO_PASS = TwoPass(
    "two-pass", "recomputation of unsharded values, then sharding", rematerialised_first
)
