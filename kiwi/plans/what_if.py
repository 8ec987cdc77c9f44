"""What if one operator were done otherwise: a plan with pins."""

from dataclasses import replace
from typing import TypeVar

import jax

from kiwi.errors import InfeasibleBudgetError, InvalidArgumentError
from kiwi.memory.residency import RESIDENCIES
from kiwi.mesh import TensorSharding
from kiwi.plans.explain import find_operator, pin
from kiwi.plans.record import PlanRecord
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Start
from kiwi.problem.translation import follow

_Plan = TypeVar("_Plan", bound=PlanRecord)


def what_if(
    plan: _Plan,
    operator: int | str,
    *,
    sharding: jax.sharding.PartitionSpec | None = None,
    residency: str | None = None,
    time_limit_seconds: float | None = None,
    verify: str | None = None,
) -> _Plan:
    """The best plan in which one operator is done as told.

    - `operator`: as for `explain`.
    - `sharding`: of its (first) result; None leaves it open.
    - `residency`: "keep", "recompute" or "offload"; None leaves it open.
    - `verify`: as for `kiwi.plan`; by default the new plan is not compiled, and predicted for this
      plan's compiler.

    **Raises:** `InvalidArgumentError` if that is none of the operator's options;
    `InfeasibleBudgetError`, `NoPlanFoundError` as `kiwi.plan`.
    """
    if plan.origin is None:
        raise InvalidArgumentError(
            "The problem that this plan solves cannot be formulated.",
            cause="It was made by another version of Kiwi, or from a profile table that is not "
            "where it was, or was changed.",
            suggestion="Plan again.",
        )
    if residency not in (None, *RESIDENCIES):
        raise InvalidArgumentError(
            f"residency={residency!r} is unknown.",
            suggestion="One of " + ", ".join(map(repr, RESIDENCIES)) + ".",
        )
    planning = plan.origin.planning
    unit = find_operator(plan, operator)
    allowed = _allowed(plan, planning, unit, sharding, residency)
    pinned = pin(planning, unit, allowed)
    start = follow(pinned, plan.breakdown.solution_of(planning), unit, allowed)
    settings = replace(
        plan.origin.settings,
        verify=verify or plan.origin.settings.verify,
        time_limit_seconds=time_limit_seconds or plan.origin.settings.time_limit_seconds,
    )
    try:
        return plan.origin.planner.make(
            plan.origin.step, settings, Start(pinned, start), is_checked=verify is not None
        )
    except InfeasibleBudgetError as error:
        raise InfeasibleBudgetError(
            f"With operator {unit} pinned: {error.what}",
            cause=error.cause,
            suggestion="Another sharding or residency, or a larger budget.",
            least_peak_bytes=error.least_peak_bytes,
        ) from error


def _allowed(
    plan: PlanRecord,
    planning: PlanningProblem,
    unit: int,
    sharding: jax.sharding.PartitionSpec | None,
    residency: str | None,
) -> list[int]:
    node = planning.unit_nodes[unit]
    wanted = None
    if sharding is not None:
        rank = node.strategies[0].results[0].rank if node.strategies[0].results else 0
        wanted = (TensorSharding.from_partition_spec(sharding, rank, plan.mesh.axis_names),)
    options = node.options_where(
        lambda s, r: residency in (None, r.name) and wanted in (None, s.results[:1])
    )
    if not options:
        known = sorted({plan.mesh.describe(s.results[0]) for s in node.strategies if s.results})
        raise InvalidArgumentError(
            f"Operator {unit} ({plan.decisions[unit].opcode}) has no option with "
            f"sharding={sharding}, residency={residency}.",
            cause="; ".join(plan.breakdown.operators[unit].excluded)
            or "Options that others beat in time and memory are left out.",
            suggestion="Layouts of its result that can be planned: " + ", ".join(known) + ".",
        )
    return options
