"""The planner "two-pass": recomputation of unsharded values first, then sharding.

1. A schedule of recomputation is found for one device whose budget is the memory of all devices.
2. The recomputations of that schedule are fixed, and the step is sharded under the budget itself.

Systems that run the passes in sequence work in this way (Liu et al., 2023).
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
    """Sharding of a step in which a schedule for one device says what is recomputed.

    The rule depends on the budget, and runs every unit in one sequence.
    """

    opens_loops: ClassVar[bool] = False

    def start_for(self, step: StepToPlan, budget_bytes: int, settings: Settings) -> None:
        """Returns None: what is recomputed depends on the budget, so no problem can be reused."""


def rematerialised_first(units: UnitGraph, budget_bytes: int, settings: Settings) -> frozenset[int]:
    """Returns the units that a schedule for one device runs more than once.

    The budget of that schedule is `budget_bytes` times the number of devices. Raises
    `InfeasibleBudgetError` if there is no such schedule.
    """
    devices = settings.mesh.size
    single = DeviceMesh.create((1,), settings.mesh.hardware)
    kernels = planned_target(settings.verify, single.hardware).kernels(units, single.hardware)
    try:
        result = solve(
            remat_graph(kernels, one_device_strategies(kernels, single)),
            devices * budget_bytes,
            DEFAULT_PLANNER,
            settings.time_limit_seconds / 2,
            settings.seed,
            planned_seconds=Tools(settings).allowance.part(1 / 2).planned_seconds,
        )
    except InfeasibleBudgetError as error:
        least_bytes = None if not error.least_peak_bytes else -(-error.least_peak_bytes // devices)
        raise InfeasibleBudgetError(
            f"No schedule of unsharded values fits {devices} times {format_bytes(budget_bytes)}.",
            cause="The first of the two passes sees no sharding.",
            suggestion='planner="joint", or a larger memory_budget.',
            least_peak_bytes=least_bytes,
        ) from error
    runs = Counter(result.schedule.steps)
    return frozenset(unit for unit, count in runs.items() if count > 1)


TWO_PASS = TwoPass(
    "two-pass", "recomputation of unsharded values, then sharding", rematerialised_first
)
