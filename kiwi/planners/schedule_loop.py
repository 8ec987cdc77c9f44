"""Schedules of a step, compiled under other limits until one is well within the budget.

What "kiwi-full", "kiwi-reduced" and the planners of one device share. They find a schedule of the
step's units for a limit; what the compiled program holds beyond the budget is taken off what was
predicted, and the schedule is sought again within that. XLA's heap wastes more of some orders than
of others, so that other orders of the same computations come first. ("joint" corrects its problem
instead: `kiwi.planners.closed_loop`.)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, NoPlanFoundError
from kiwi.options import Settings
from kiwi.planners.notes import notes
from kiwi.plans.plan import Plan
from kiwi.plans.rounds import Round
from kiwi.sizes import format_bytes
from kiwi.solver.schedule import Schedule
from kiwi.xla.compilers import compile_for

MOST_ROUNDS = 4
"""How many schedules are sought at most; they share the time limit."""
MOST_ORDERS = 4
"""In how many orders one of them is compiled at most."""
WORTH = 0.005
"""Share of the budget by which a limit has to rise for another schedule to be sought."""

CLOSE = 1.03
"""Up to how far above the budget, relatively, the smallest peak known may be for a search that
found nothing to be repeated."""

PlanWithin = Callable[[int], Plan]
Reordered = Callable[[Plan, int, int], Plan | None]


def tightened(
    plan_within: PlanWithin,
    settings: Settings,
    *,
    cause: str,
    instead: str = "",
    varies: bool = False,
    reordered: Reordered | None = None,
) -> Plan:
    """The fastest plan of all rounds whose program, compiled for `settings.verify`, fits.

    That is the first one, if it fits. Otherwise the limit moves by what the last program was over
    the budget or below it, so that a correction that was too large is taken back.

    **Arguments:**

    - `plan_within`: finds a plan for a limit in bytes, not yet compiled.
    - `cause`, `instead`: of the error, should no plan fit: why, and what else to try.
    - `varies`: whether `plan_within` finds another plan when asked for the same limit again. That
      is done where a lower limit is refused: orders that need the same memory compile to peaks
      some per cent apart. Then a limit between the two follows. And it is done where the budget
      itself is refused, but hardly less than the smallest peak that is known.
    - `reordered`: from a plan that is over the budget as compiled, its limit and what it is over,
      the same computations in another order, None if there is none. These are compiled, too, as
      long as all compilations together have taken less than `settings.time_limit_seconds`: they
      cost no time of the step, a lower limit does.

    **Raises:** what `plan_within` raises for the budget itself; `BudgetNotMetError` if no plan
    fits as compiled, with the nearest.
    """
    search = _Search(settings, varies, reordered)
    refusal: InfeasibleBudgetError | NoPlanFoundError | None = None
    for _ in range(MOST_ROUNDS):
        try:
            plan = plan_within(search.limit_bytes)
        except (InfeasibleBudgetError, NoPlanFoundError) as error:
            if not search.rounds and not search.may_vary(error):
                raise
            refusal = error
            search.refused(error)
        else:
            search.found(plan)
        if search.is_done:
            break
    if search.best is not None:
        return search.with_rounds(search.best)
    if search.nearest is None:
        assert refusal is not None
        raise refusal
    raise _not_met(search.with_rounds(search.nearest), settings, cause, instead)


class _Search:
    """What the rounds found, and the limit that follows.

    `best` is the fastest plan within the budget, `nearest` the smallest beyond it.
    """

    def __init__(self, settings: Settings, varies: bool, reordered: Reordered | None) -> None:
        self._settings, self._varies, self._reordered = settings, varies, reordered
        self._budget_bytes = settings.memory_budget_bytes
        self._refused_bytes = 0
        self.limit_bytes = self._budget_bytes
        self.rounds: tuple[Round, ...] = ()
        self.best: Plan | None = None
        self.nearest: Plan | None = None
        self.is_done = False

    def with_rounds(self, plan: Plan) -> Plan:
        """The plan with what all rounds did."""
        plan = replace(plan, rounds=self.rounds)
        return replace(plan, notes=notes(plan))

    def found(self, plan: Plan) -> None:
        """Compiles the plan, unless another one is better anyway."""
        if self.best is not None and _seconds(plan) >= _seconds(self.best):
            self.is_done = True
            return
        plan = self._compiled(plan, plan.solve_result.seconds)
        if self._settings.verify is not None and not plan.fits:
            plan = self._nearest_order(plan)
        if self._settings.verify is None or plan.fits:
            self._fits(plan)
        else:
            self._is_over(plan)

    def may_vary(self, error: InfeasibleBudgetError | NoPlanFoundError) -> bool:
        """Whether another search may find what the first one did not: just a smaller peak."""
        least_bytes = getattr(error, "least_peak_bytes", None) or math.inf
        bound_bytes = getattr(error, "least_peak_bound_bytes", None) or 0
        is_close = bound_bytes <= self._budget_bytes and least_bytes <= CLOSE * self._budget_bytes
        return self._varies and is_close

    def refused(self, error: InfeasibleBudgetError | NoPlanFoundError) -> None:
        """Nothing was found within the limit."""
        if not self.rounds:
            return
        if self.best is not None:
            self.is_done = True
            return
        # Between the smallest peak known and the last one there may be a schedule that fits.
        last_bytes = min(each.predicted_peak_bytes for each in self.rounds)
        least_bytes = getattr(error, "least_peak_bytes", None) or last_bytes
        lower_bytes = least_bytes if least_bytes < last_bytes else 0
        self._refused_bytes = max(self._refused_bytes, self.limit_bytes, lower_bytes)
        if self._varies:
            self.limit_bytes = min(each.limit_bytes for each in self.rounds)
        elif lower_bytes:
            self.limit_bytes = (self._refused_bytes + last_bytes) // 2
        else:
            self.is_done = True

    def _fits(self, plan: Plan) -> None:
        """Takes back what was taken off too much; a first plan had nothing taken off."""
        self.best = plan
        own_bytes = plan.estimate.peak_bytes
        over = [r.predicted_peak_bytes for r in self.rounds if not self._round_fits(r)]
        limit_bytes = own_bytes + self._budget_bytes - plan.peak_bytes
        if over and limit_bytes >= min(over):
            limit_bytes = (own_bytes + min(over)) // 2
        self.is_done = not over or limit_bytes - own_bytes < WORTH * self._budget_bytes
        self.limit_bytes = limit_bytes

    def _is_over(self, plan: Plan) -> None:
        nearest = self.nearest
        self.nearest = plan if nearest is None else min(nearest, plan, key=lambda p: p.peak_bytes)
        # What is predicted may lie below the limit: taken off that, the same plan would be found.
        over_bytes = plan.peak_bytes - self._budget_bytes
        self.limit_bytes = min(self.limit_bytes, plan.estimate.peak_bytes) - over_bytes
        if self._varies and self.limit_bytes <= self._refused_bytes:
            self.limit_bytes = (self._refused_bytes + plan.estimate.peak_bytes) // 2
        if self.best is not None:
            gained_bytes = self.limit_bytes - self.best.estimate.peak_bytes
            self.is_done = gained_bytes < WORTH * self._budget_bytes
        self.is_done = self.is_done or self.limit_bytes <= 0

    def _nearest_order(self, plan: Plan) -> Plan:
        """The first order of the same computations that fits, or the nearest."""
        for _ in range(MOST_ORDERS - 1):
            compiling = sum(each.compile_seconds for each in self.rounds)
            if self._reordered is None or compiling >= self._settings.time_limit_seconds:
                break
            over_bytes = plan.peak_bytes - self._budget_bytes
            other = self._reordered(plan, self.limit_bytes, over_bytes)
            if other is None:
                break
            plan = min(plan, self._compiled(other, 0.0), key=lambda p: p.peak_bytes)
            if plan.fits:
                break
        return plan

    def _compiled(self, plan: Plan, solve_seconds: float) -> Plan:
        target = self._settings.verify
        compiled = None if target is None else compile_for(target, plan.step)
        last = Round(
            self.limit_bytes,
            self._budget_bytes - self.limit_bytes,
            plan.estimate.peak_bytes,
            None if compiled is None else compiled.peak_bytes,
            solve_seconds,
            0.0 if compiled is None else compiled.compile_seconds,
        )
        self.rounds = (*self.rounds, last)
        return replace(plan, compiled=compiled)

    def _round_fits(self, each: Round) -> bool:
        compiled_bytes = each.compiled_peak_bytes
        return compiled_bytes is None or compiled_bytes <= self._budget_bytes


def _seconds(plan: Plan) -> float:
    return plan.estimate.step_seconds


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


def _not_met(nearest: Plan, settings: Settings, cause: str, instead: str) -> BudgetNotMetError:
    peak_bytes = nearest.peak_bytes
    return BudgetNotMetError(
        f"No schedule met {format_bytes(settings.memory_budget_bytes)} as compiled; the nearest "
        f"needs {format_bytes(peak_bytes)}.",
        cause=cause,
        suggestion=f"memory_budget={peak_bytes}, which that plan meets{instead}.",
        plan=nearest,
        least_peak_bytes=peak_bytes,
    )
