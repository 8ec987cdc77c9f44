"""The closed loop: solve, emit, compile, and correct the model where the compiler disagrees.

1. The problem is solved under the budget; copies that fit beside the solution are kept
   (`kiwi.problem.kept_copies`).
2. Where the predicted size of XLA's heap (`kiwi.memory.heap`) is over the budget, units change
   places, at no time of the step (`kiwi.planners.reordered_units`).
3. The planned step is compiled. If its peak is within the budget, the plan is verified. (Without
   a target to compile for, the predicted heap stands in: while it is over the budget, the limit is
   lowered by as much and the problem solved again.)
4. Otherwise what the compiled program holds beyond the prediction, unit by unit, becomes memory
   of the problem that no option can avoid (`kiwi.xla.excess_memory`); what its heap wastes lowers
   the limit. Then again from 1, starting from the last solution. If no plan is left, the limit is
   lowered by half as much: another plan's heap may waste less.
5. Where the peak was over the budget by no more than the heap wastes, and the next plan is slower
   or there is none, up to `MOST_ORDERS` other orders of the same units are compiled first.

After `MOST_ROUNDS` compilations, or if no plan is left, the budget is refused, naming the nearest
one for which the compiled program is known to fit.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kiwi.calls.traced import Traced
from kiwi.emit.execution import build_execution
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, NoPlanFoundError
from kiwi.options import Settings
from kiwi.planners.notes import notes
from kiwi.planners.reordered_units import Ordered
from kiwi.plans.breakdown import Ledger
from kiwi.plans.decision import decisions
from kiwi.plans.estimate import estimate_solution
from kiwi.plans.estimate_without_barriers import estimate_as_written
from kiwi.plans.plan import Plan
from kiwi.plans.rounds import Round
from kiwi.problem.build import NONE_KEPT, KeptCopies, PlanningProblem
from kiwi.problem.kept_copies import SHARE_OF_TIME, kept_copies
from kiwi.sizes import format_bytes
from kiwi.solver import SolveResult, SolveStatus, evaluate, solve
from kiwi.solver.problem import Node
from kiwi.solver.settle import settled
from kiwi.xla.compilers import compile_for
from kiwi.xla.excess_memory import as_intervals, excess

MOST_ROUNDS = 5
"""How many plans are compiled at most."""

LEAST_LOWERING = 0.001
"""The part of the budget by which the limit is lowered at least."""

NEAR_BUDGET = 0.95
"""The part of the budget from which compiled memory corrects the prediction."""

MOST_ORDERS = 5
"""How many other orders of one plan are compiled at most."""

MOST_ORDERS_OF_ALL = 8
"""The same of all plans together."""

LEAST_SLOWER = 0.001
"""By which part of the step a plan must be slower for other orders of the one before."""

LATE_SHARE = 0.25
"""The part of the time limit that every round gets, however long the others took."""

LATE_SECONDS = 8.0
"""What it gets at least, if that is not more than half of the limit: a start that the compiled
program has shown not to fit may leave a search with nothing but its first rounds."""

MOST_SOLVES = 6
"""How often is solved without a check, lowering the limit by what the heap wastes."""


def late_seconds(time_limit_seconds: float) -> float:
    """What a late round gets of a time limit."""
    return max(LATE_SHARE * time_limit_seconds, min(time_limit_seconds / 2, LATE_SECONDS))


@dataclass
class _Model:
    """What compiled programs taught so far: bytes by unit, and bytes at every time.

    `solved_waste_bytes`: those under which the last plan was found.
    """

    excess_bytes: np.ndarray
    waste_bytes: int = 0
    solved_waste_bytes: int = 0

    def learn(self, plan: Plan) -> None:
        """Takes over what the plan's compiled program holds beyond its prediction.

        Where it is far below the budget it stays out: that would only narrow the search.
        """
        assert plan.compiled is not None
        memory = plan.compiled.memory
        self.solved_waste_bytes = self.waste_bytes
        if memory is None:
            beyond = plan.compiled.peak_bytes - plan.estimate.peak_bytes
            self.waste_bytes += max(beyond, 0)
            return
        matters = NEAR_BUDGET * plan.memory_budget_bytes
        found = excess(memory, plan.estimate.memory_bytes, matters)
        self.excess_bytes = np.maximum(self.excess_bytes, found)
        self.waste_bytes = max(self.waste_bytes, memory.fragmentation_bytes)

    def relax(self, budget_bytes: int) -> bool:
        """Halves by how much the limit was lowered last; whether it still is."""
        lowered = (self.waste_bytes - self.solved_waste_bytes) // 2
        self.waste_bytes = self.solved_waste_bytes + lowered
        return lowered > LEAST_LOWERING * budget_bytes


@dataclass(frozen=True)
class _Tried:
    """A plan, its order, the limit under which it was found, and how long that took."""

    plan: Plan
    ordered: Ordered
    limit_bytes: int
    solve_seconds: float = 0.0


class ClosedLoop:
    """Plans one problem until its compiled program meets the budget."""

    def __init__(self, traced: Traced, planning: PlanningProblem, settings: Settings) -> None:
        self._traced = traced
        self._planning = planning
        self._settings = settings
        self._model = _Model(np.zeros(planning.problem.horizon, dtype=np.int64))
        self._solved_seconds = 0.0
        self._rounds: list[Round] = []
        self._orders_left = MOST_ORDERS_OF_ALL
        self._nearest: Plan | None = None
        self._wasteful: _Tried | None = None

    @property
    def _budget_bytes(self) -> int:
        return self._settings.memory_budget_bytes

    def run(self, warm_start: Sequence[int] | None) -> Plan:
        """The first plan that fits.

        **Raises:** `InfeasibleBudgetError` or `NoPlanFoundError` if there is none to compile;
        `BudgetNotMetError` if none fits as compiled.
        """
        if self._settings.verify is None:
            return self._checked(self._predicted(warm_start))
        for _ in range(MOST_ROUNDS):
            try:
                found = self._found(warm_start)
            except (InfeasibleBudgetError, NoPlanFoundError):
                if self._nearest is None:
                    raise
                if self._fits_in_another_order() or not self._model.relax(self._budget_bytes):
                    break
                continue
            if self._costs_time(found) and self._fits_in_another_order():
                break
            plan = self._compiled(found)
            if plan.fits:
                break
            warm_start = plan.solve_result.solution
            self._model.learn(plan)
        else:
            self._fits_in_another_order()
        assert self._nearest is not None
        if not self._nearest.fits:
            raise self._not_met(self._nearest)
        return self._nearest

    def _found(self, warm_start: Sequence[int] | None) -> _Tried:
        """The solution under the budget less what compiled heaps wasted."""
        before = self._solved_seconds
        limit = max(0, self._budget_bytes - self._model.waste_bytes)
        tried = self._solved(limit, warm_start)
        return replace(tried, solve_seconds=self._solved_seconds - before)

    def _predicted(self, warm_start: Sequence[int] | None) -> _Tried:
        """The plan that is not compiled, for which the predicted heap stands in."""
        packed = self._packed(self._found(warm_start))
        return replace(packed, plan=self._no_worse(packed.plan, warm_start))

    def _packed(self, tried: _Tried) -> _Tried:
        """Solves until the predicted heap is within the budget, as far as that is possible."""
        for _ in range(MOST_SOLVES - 1):
            if tried.plan.fits:
                break
            over = tried.plan.estimate.peak_bytes - self._budget_bytes
            limit_bytes = max(0, tried.limit_bytes - over)
            try:
                tried = self._solved(limit_bytes, tried.plan.solve_result.solution)
            except (InfeasibleBudgetError, NoPlanFoundError):
                break
        return tried

    def _fitting_order(self, tried: _Tried) -> _Tried:
        """Another order, where the predicted heap alone is over the budget."""
        estimate = tried.plan.estimate
        budget_bytes = self._budget_bytes
        if not max(estimate.memory_bytes) <= budget_bytes < estimate.peak_bytes:
            return tried
        other = self._another_order(tried, 0)
        if other is None or other.plan.estimate.peak_bytes >= estimate.peak_bytes:
            return tried
        return other

    def _costs_time(self, found: _Tried) -> bool:
        """Whether the next plan is slower than the one whose heap wastes too much."""
        if self._wasteful is None:
            return False
        before, after = (t.plan.estimate.step_seconds for t in (self._wasteful, found))
        return after > (1 + LEAST_SLOWER) * before

    def _fits_in_another_order(self) -> bool:
        """Whether the plan whose heap wastes too much fits in one of some other orders."""
        given, self._wasteful = self._wasteful, None
        if given is None:
            return False
        for number in range(1, MOST_ORDERS + 1):
            other = self._another_order(given, number) if self._orders_left else None
            if other is None:
                return False
            self._orders_left -= 1
            if self._checked(other).fits:
                return True
        return False

    def _another_order(self, tried: _Tried, number: int) -> _Tried | None:
        """The same units in another order, whose heap is predicted to need no more than the budget
        or at least less than now; None if there is none."""
        plan = tried.plan
        limit_bytes = max(tried.limit_bytes, *plan.estimate.memory_bytes)
        budget_bytes = self._budget_bytes
        seed = self._settings.seed + number
        ordered = tried.ordered.another(limit_bytes, budget_bytes, seed)
        if ordered is None:
            return None
        other = self._plan_in(ordered, plan.solve_result)
        return replace(tried, plan=other, ordered=ordered, solve_seconds=0.0)

    def _plan_in(self, ordered: Ordered, found: SolveResult) -> Plan:
        """The plan of a solution in another order, not yet compiled."""
        nodes = len(ordered.planning.problem.nodes)
        only = replace(found, solution=(0,) * nodes)
        plan = plan_of(self._traced, ordered.planning, only, self._settings, ordered.kept)
        held_bytes = max(plan.estimate.memory_bytes)
        estimate = replace(plan.estimate, peak_bytes=max(held_bytes, ordered.needed_bytes))
        answer = replace(found, peak_bytes=held_bytes)
        return replace(plan, estimate=estimate, solve_result=answer)

    def _no_worse(self, plan: Plan, warm_start: Sequence[int] | None) -> Plan:
        """The plan, or what was begun with where that is faster: its heap may have fitted when
        those of the solver's first solutions did not."""
        if warm_start is None:
            return plan
        begun = evaluate(self._planning.problem, warm_start)
        is_slower = begun.cost >= plan.estimate.step_seconds
        if not math.isfinite(begun.cost) or (plan.fits and is_slower):
            return plan
        result = replace(
            plan.solve_result,
            solution=tuple(warm_start),
            objective=begun.cost,
            peak_bytes=begun.peak_bytes,
        )
        start = plan_of(self._traced, self._planning, result, self._settings)
        return start if start.fits else plan

    def _solved(self, limit_bytes: int, warm_start: Sequence[int] | None) -> _Tried:
        """In the given order, or in one whose predicted heap is smaller."""
        total = self._settings.time_limit_seconds
        # All rounds share the time limit, but a late one gets a part of its own.
        seconds = max(total - self._solved_seconds, late_seconds(total))
        planning = self._corrected(limit_bytes)
        extra = len(planning.problem.nodes) - len(self._planning.problem.nodes)
        start = None if warm_start is None else (*warm_start, *[0] * extra)
        result = _solve(planning, replace(self._settings, time_limit_seconds=seconds), start)
        self._solved_seconds += result.seconds
        assert result.solution is not None
        own = result.solution[: len(result.solution) - extra]
        result = replace(result, solution=own)
        started = time.monotonic()
        kept = kept_copies(self._planning, planning, own, SHARE_OF_TIME * seconds)
        self._solved_seconds += time.monotonic() - started
        plan = plan_of(self._traced, self._planning, result, self._settings, kept)
        tried = _Tried(plan, Ordered.given(self._planning, own, kept), limit_bytes)
        return self._fitting_order(tried) if self._settings.verify is None else tried

    def _corrected(self, limit_bytes: int) -> PlanningProblem:
        """The problem with what was learnt as one more node, whose only option holds it."""
        problem = replace(self._planning.problem, limit_bytes=limit_bytes)
        usage = as_intervals(self._model.excess_bytes)
        if usage:
            node = Node("held by the compiled program", np.zeros(1), (usage,))
            problem = replace(problem, nodes=(*problem.nodes, node))
        return replace(self._planning, problem=problem)

    def _compiled(self, tried: _Tried) -> Plan:
        """The plan with its compiled program; noted if that is too large for the heap's waste."""
        plan = self._checked(tried)
        memory = None if plan.compiled is None else plan.compiled.memory
        wasted = 0 if memory is None else memory.fragmentation_bytes
        is_wasteful = 0 < plan.peak_bytes - self._budget_bytes <= wasted
        self._wasteful = tried if is_wasteful else None
        return plan

    def _checked(self, tried: _Tried) -> Plan:
        """The plan with its compiled program, on record."""
        target, plan = self._settings.verify, tried.plan
        compiled = None if target is None else compile_for(target, plan.step)
        self._rounds.append(
            Round(
                tried.limit_bytes,
                int(self._model.excess_bytes.max(initial=0)),
                plan.estimate.peak_bytes,
                None if compiled is None else compiled.peak_bytes,
                tried.solve_seconds,
                0.0 if compiled is None else compiled.compile_seconds,
            )
        )
        checked = replace(plan, compiled=compiled, rounds=tuple(self._rounds))
        checked = replace(checked, notes=notes(checked))
        if self._nearest is None or checked.peak_bytes < self._nearest.peak_bytes:
            self._nearest = checked
        return checked

    def _not_met(self, nearest: Plan) -> BudgetNotMetError:
        peak, budget = nearest.peak_bytes, self._budget_bytes
        nearest = replace(nearest, rounds=tuple(self._rounds))
        return BudgetNotMetError(
            f"No plan met {format_bytes(budget)} per device as compiled; the nearest one, of "
            f"{len(self._rounds)} that were compiled, needs {format_bytes(peak)}.",
            cause="The budget is close to the least that is possible, or XLA holds more than "
            "any plan can influence; kiwi.memory_report(error.plan) shows what.",
            suggestion=f"memory_budget={peak}, which that plan meets, or a larger mesh.",
            plan=nearest,
            least_peak_bytes=peak,
        )


def _solve(
    planning: PlanningProblem, settings: Settings, warm_start: Sequence[int] | None
) -> SolveResult:
    """Solves; of equal solutions takes the one that holds least memory."""
    problem = planning.problem
    result = solve(
        problem,
        solver=settings.solver,
        time_limit_seconds=settings.time_limit_seconds,
        seed=settings.seed,
        gap=settings.gap,
        warm_start=warm_start,
        on_progress=settings.on_progress,
    )
    limit = problem.limit_bytes or 0
    if result.status is SolveStatus.INFEASIBLE:
        raise infeasible_budget(limit, result)
    if result.solution is None:
        raise NoPlanFoundError(
            f"No plan was found in {settings.time_limit_seconds:g} s under {format_bytes(limit)}.",
            cause="The budget is close to the least that is possible, or the limit is short. "
            + result.message,
            suggestion="A larger time_limit_seconds or memory_budget.",
        )
    solution = settled(problem, result.solution)
    priced = evaluate(problem, solution)
    return replace(result, solution=solution, objective=priced.cost, peak_bytes=priced.peak_bytes)


def infeasible_budget(limit_bytes: int, result: SolveResult) -> InfeasibleBudgetError:
    """The error for a budget that no plan meets, with the smallest one found."""
    least = result.least_peak_bytes
    known = f"The smallest peak found is {format_bytes(least)}." if least else ""
    return InfeasibleBudgetError(
        f"No plan needs as little as {format_bytes(limit_bytes)} per device. {known}".strip(),
        cause="Arguments, results and the largest operator's operands need more than that.",
        suggestion=f"memory_budget={least}, or a larger mesh, or a smaller batch."
        if least
        else "A larger memory_budget or mesh, or a smaller batch.",
        least_peak_bytes=least,
    )


def plan_of(
    traced: Traced,
    planning: PlanningProblem,
    result: SolveResult,
    settings: Settings,
    kept: KeptCopies = NONE_KEPT,
) -> Plan:
    """The plan of a solution with some copies kept, not yet compiled."""
    assert result.solution is not None
    estimate = estimate_solution(planning, result.solution, kept)
    as_is = planning.fixed.values
    return Plan(
        mesh=settings.mesh,
        profile=settings.mesh.hardware.name,
        planner=settings.planner,
        memory_budget_bytes=settings.memory_budget_bytes,
        estimate=estimate,
        compiled=None,
        solve_result=result,
        decisions=decisions(planning, result.solution),
        execution=build_execution(planning, result.solution, kept),
        trees=traced.trees,
        notes=(),
        planning_seconds=0.0,
        ledger=Ledger((), ()),
        as_written=estimate_as_written(planning, result.solution, estimate) if as_is else None,
    )
