"""Schedules of a step, compiled under an ever lower limit until one is within the budget.

What "kiwi-full", "kiwi-reduced" and the planners of one device share. They find a schedule of the
step's units for a limit; what the compiled program holds beyond the budget is taken off what was
predicted, and the schedule is sought again within that. ("joint" corrects its problem instead:
`kiwi.plan.loop`.)
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, NoPlanFoundError
from kiwi.plan.budget import format_bytes
from kiwi.plan.notes import notes
from kiwi.plan.plan import Plan
from kiwi.plan.rounds import Round
from kiwi.plan.targets import compile_for
from kiwi.solver.schedule import Schedule

if TYPE_CHECKING:
    from kiwi.plan.settings import Settings

MOST_ROUNDS = 4
"""How many schedules are compiled at most; they share the time limit."""


def tightened(
    plan_within: Callable[[int], Plan],
    settings: "Settings",
    *,
    cause: str,
    instead: str = "",
    varies: bool = False,
) -> Plan:
    """The first plan whose program, compiled for `settings.verify`, is within the budget.

    **Arguments:**

    - `plan_within`: finds a plan for a limit in bytes, not yet compiled.
    - `cause`, `instead`: of the error, should no plan fit: why, and what else to try.
    - `varies`: whether `plan_within` finds another plan when asked for the same limit again. That
      is done where a lower limit is refused: orders that need the same memory compile to peaks
      some per cent apart. Then a limit between the two follows.

    **Raises:** what `plan_within` raises for the budget itself; `BudgetNotMetError` if no plan
    fits as compiled, with the nearest.
    """
    limit_bytes, nearest, refused_bytes = settings.memory_budget_bytes, None, 0
    rounds: tuple[Round, ...] = ()
    for _ in range(MOST_ROUNDS):
        try:
            plan = _compiled(plan_within(limit_bytes), limit_bytes, rounds, settings)
        except (InfeasibleBudgetError, NoPlanFoundError) as error:
            if nearest is None:
                raise
            # Between the smallest peak known and the last one there may be a schedule that fits.
            last_bytes = min(each.predicted_peak_bytes for each in rounds)
            least_bytes = getattr(error, "least_peak_bytes", None) or last_bytes
            lower_bytes = least_bytes if least_bytes < last_bytes else 0
            refused_bytes = max(refused_bytes, limit_bytes, lower_bytes)
            if varies:
                limit_bytes = min(each.limit_bytes for each in rounds)
            elif lower_bytes:
                limit_bytes = (refused_bytes + last_bytes) // 2
            else:
                break
            continue
        if settings.verify is None or plan.fits:
            return plan
        rounds = plan.rounds
        nearest = plan if nearest is None else min(nearest, plan, key=lambda p: p.peak_bytes)
        # What is predicted may lie below the limit: taken off that, the same plan would be found.
        excess_bytes = plan.peak_bytes - settings.memory_budget_bytes
        limit_bytes = min(limit_bytes, plan.estimate.peak_bytes) - excess_bytes
        if varies and limit_bytes <= refused_bytes:
            limit_bytes = (refused_bytes + plan.estimate.peak_bytes) // 2
        if limit_bytes <= 0:
            break
    assert nearest is not None
    raise _not_met(nearest, settings, cause, instead)


def with_schedule(
    plan: Plan,
    schedule: Schedule,
    step_seconds: float,
    peak_bytes: int,
    memory_bytes: Sequence[int],
) -> Plan:
    """The plan with a schedule in place of its own order, and what its simulation says.

    **Arguments:**

    - `plan`: runs every unit once, so that its time is all but the recomputation.
    - `schedule`: of units; `memory_bytes` is what is held at each of its steps.
    """
    execution = replace(plan.execution, schedule=schedule)
    memory = _bytes_by_unit(schedule.steps, memory_bytes)
    estimate = replace(
        plan.estimate,
        step_seconds=step_seconds,
        recompute_seconds=max(0.0, step_seconds - plan.estimate.step_seconds),
        peak_bytes=peak_bytes,
        peak_unit=memory.index(max(memory)) if memory else 0,
        memory_bytes=memory,
        held=(),  # the simulation follows sums alone
    )
    decisions = tuple(
        replace(d, residency="recompute") if u in execution.recomputed else d
        for u, d in enumerate(plan.decisions)
    )
    return replace(plan, execution=execution, estimate=estimate, decisions=decisions)


def _bytes_by_unit(steps: Sequence[int], memory: Sequence[int]) -> tuple[int, ...]:
    """The most that is held in any run of each unit."""
    found: dict[int, int] = {}
    for unit, held in zip(steps, memory, strict=True):
        found[unit] = max(held, found.get(unit, 0))
    return tuple(found[unit] for unit in sorted(found))


def _compiled(
    plan: Plan, limit_bytes: int, before: tuple[Round, ...], settings: "Settings"
) -> Plan:
    compiled = None if settings.verify is None else compile_for(settings.verify, plan.step)
    last = Round(
        limit_bytes,
        settings.memory_budget_bytes - limit_bytes,
        plan.estimate.peak_bytes,
        None if compiled is None else compiled.peak_bytes,
        plan.solve_result.seconds,
        0.0 if compiled is None else compiled.compile_seconds,
    )
    plan = replace(plan, compiled=compiled, rounds=(*before, last))
    return replace(plan, notes=notes(plan))


def _not_met(nearest: Plan, settings: "Settings", cause: str, instead: str) -> BudgetNotMetError:
    peak_bytes = nearest.peak_bytes
    return BudgetNotMetError(
        f"No schedule met {format_bytes(settings.memory_budget_bytes)} as compiled; the nearest "
        f"needs {format_bytes(peak_bytes)}.",
        cause=cause,
        suggestion=f"memory_budget={peak_bytes}, which that plan meets{instead}.",
        plan=nearest,
        least_peak_bytes=peak_bytes,
    )
