"""One problem, solved under limits that follow from its compiled programs.

This is the proposer that `kiwi.planners.problem_planner` gives to the closed loop.

1. The problem is solved under the limit. If an obvious start (`kiwi.campaign.obvious_starts`) is
   better than the solution, the problem is solved again from that start. Copies that fit beside the
   solution are kept (`kiwi.problem.kept_copies`).
2. A compiled program teaches corrections (`kiwi.xla.read.buffer_assignment`). The bytes that it
   holds beyond the prediction, unit by unit, become memory of the problem that no option can avoid.
   The bytes that its heap wastes lower the limit. The next search starts from the last solution.
   - If that leaves no plan, the limit is lowered by half as much: another plan's heap may waste
     less.
   - If there is still no plan, the last excess is dropped from the problem and moves the limit
     instead: it may be specific to the last plan.
   - A program with few barriers moves only the limit.
3. Without a compiler, the limit is lowered by the bytes that the predicted size of XLA's heap
   (`kiwi.memory.heap`) is over the budget.
4. If a peak is over the budget by no more than the heap wastes, the units are put into another
   order (`kiwi.campaign.reordered_units`).
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kiwi.campaign import shares
from kiwi.campaign.attempts import (
    CROWDED_COPIES,
    KNOWN_START,
    OBVIOUS_START,
    OTHER_ARGUMENTS,
)
from kiwi.campaign.copies_kept import fastest_keeping
from kiwi.campaign.equal_layers import EqualLayers, settled_result
from kiwi.campaign.limits import Measured, ProblemLimits
from kiwi.campaign.obvious_starts import better_start, obvious_starts
from kiwi.campaign.planner_facts import PlannerFacts
from kiwi.campaign.proposer import Orders, Proposal, Refusal
from kiwi.campaign.refusals import infeasible_budget
from kiwi.campaign.refused_limits import refused_limits
from kiwi.campaign.reordered_units import Ordered
from kiwi.campaign.tools import Tools, spent
from kiwi.errors import NoPlanFoundError
from kiwi.plans.of_solution import plan_of_solution
from kiwi.plans.plan import Plan
from kiwi.plans.record import Round
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Solved, Start
from kiwi.problem.step import StepToPlan
from kiwi.sizes import format_bytes
from kiwi.solver import SolveResult, SolveStatus, evaluate
from kiwi.solver.effort import Allowance
from kiwi.solver.evaluate import fitting
from kiwi.solver.problem import Node, Problem
from kiwi.xla.read.buffer_assignment import as_intervals, excess

ORDERS = Orders(shares.PROBLEM_ORDERS, of_all=shares.MOST_PROBLEM_ORDERS)
"""The other orders that are tried for compiled plans."""

PREDICTED_ORDERS = Orders(shares.PREDICTED_ORDERS, at_once=True)
"""The other orders that are tried for plans without a compiler."""


def late_part(total: Allowance) -> Allowance:
    """Returns the least allowance of a late round, as a share of the search's allowance."""
    late, seconds = total.part(shares.LATE_SHARE), min(total.seconds / 2, shares.LATE_SECONDS)
    return late.at_least(Allowance(0.0, seconds))


@dataclass
class _Model:
    """The corrections from compiled programs so far.

    - `excess_bytes`: the bytes beyond the prediction at each unit's time, int64, shape (horizon,).
    - `waste_bytes`: the bytes that the limit is lowered by, at every time.
    - `solved_excess_bytes`, `solved_waste_bytes`: the corrections under which the last plan was
      found.
    """

    excess_bytes: np.ndarray
    solved_excess_bytes: np.ndarray
    waste_bytes: int = 0
    solved_waste_bytes: int = 0

    def learn(self, plan: Plan) -> None:
        """Adds the bytes that the plan's compiled program holds beyond its prediction.

        Excess at units where the program is far below the budget is ignored
        (`shares.NEAR_BUDGET`): such corrections would only narrow the search.
        """
        assert plan.compiled is not None
        memory = plan.compiled.memory
        self.solved_excess_bytes, self.solved_waste_bytes = self.excess_bytes, self.waste_bytes
        if memory is None:
            beyond_bytes = plan.compiled.peak_bytes - plan.estimate.peak_bytes
            self.waste_bytes += max(beyond_bytes, 0)
            return
        least_bytes = shares.NEAR_BUDGET * plan.memory_budget_bytes
        compiled_excess = excess(memory, plan.estimate.memory_bytes, least_bytes)
        is_new = (
            np.any(compiled_excess > self.excess_bytes)
            or memory.fragmentation_bytes > self.waste_bytes
        )
        self.excess_bytes = np.maximum(self.excess_bytes, compiled_excess)
        self.waste_bytes = max(self.waste_bytes, memory.fragmentation_bytes)
        if not is_new:  # The program is over the budget without exceeding the corrections.
            self.waste_bytes += plan.compiled.peak_bytes - plan.memory_budget_bytes

    def relax(self, budget_bytes: int) -> bool:
        """Halves the last lowering of the limit; returns whether it is still worth a search."""
        lowered = (self.waste_bytes - self.solved_waste_bytes) // 2
        self.waste_bytes = self.solved_waste_bytes + lowered
        return lowered > shares.LEAST_LOWERING * budget_bytes

    def forget_excess(self) -> bool:
        """Drops the excess that the last program added; returns whether there was any."""
        learnt, self.excess_bytes = self.excess_bytes, self.solved_excess_bytes
        return bool(np.any(learnt > self.excess_bytes))


@dataclass(frozen=True, eq=False, kw_only=True)
class _InOrder(Proposal):
    """A plan, and its solution in the order of its units."""

    ordered: Ordered


class ProblemSearch:
    """The proposer of one problem.

    - `start`: the problem, and a solution to begin with, if one is known.
    - `first_limit_bytes`: the first limit. By default it is the budget, or just below the budget
      for a step whose check takes long.
    """

    def __init__(
        self,
        planner: PlannerFacts,
        step: StepToPlan,
        tools: Tools,
        start: Start,
        first_limit_bytes: int | None = None,
    ) -> None:
        self._planner, self._step, self._tools = planner, step, tools
        self._budget_bytes = budget_bytes = tools.settings.memory_budget_bytes
        self._problem = self._uncut = start.problem
        self._given = self._latest = start.solution
        self._seen: dict[tuple[int, ...], None] = {}
        self._layers = EqualLayers(start.problem, tools, self._seen)
        self._refused = refused_limits(start.problem)
        nothing = np.zeros(start.problem.problem.horizon, dtype=np.int64)
        self._model, self._limit_alone_moves = _Model(nothing, nothing), False
        is_long = len(start.problem.units.units) >= shares.LONG_STEP and tools.compile is not None
        self.first_limit_bytes = first_limit_bytes or int(
            (shares.LONG_STEP_AIM if is_long else 1) * budget_bytes
        )
        self._limit_bytes = self.first_limit_bytes
        self._limits = ProblemLimits(budget_bytes)
        self._spent = Allowance(0.0, 0.0)
        self._is_repeatable = True
        self._answer: SolveResult | None = None
        self._found: tuple[int, ...] | None = None
        self._missed, self._is_first_faster = 0, False
        self._made_by = 0
        self.is_checked = tools.compile is not None
        self.most_rounds = shares.PROBLEM_ROUNDS if self.is_checked else shares.PREDICTED_ROUNDS
        self.orders = ORDERS if self.is_checked else PREDICTED_ORDERS
        self.cause = (
            "The budget is close to the least that is possible, or XLA holds more than any plan "
            "can influence; kiwi.memory_report(error.plan) shows what."
            if self.is_checked
            else "XLA's heap is predicted to waste more than any plan that was found leaves."
        )
        self.instead = ", or a larger mesh"

    def propose(self, limit_bytes: int) -> _InOrder:
        """Returns a plan under the limit, found from the last solution; raises `Refusal` if there
        is none."""
        self._limit_bytes = limit_bytes
        spent_before, total = self._spent, self._tools.allowance
        # All rounds share one allowance, but each late round gets at least a part of it.
        allowed = total.less(spent_before).at_least(late_part(total))
        result = self._beside_crowds(limit_bytes, allowed)
        solution, starts, corrected = (
            result.solution,
            self._other_starts,
            self._corrected(limit_bytes),
        )
        assert solution is not None

        def solved(problem: Problem, part: Allowance, start: Sequence[int]) -> SolveResult:
            with self._tools.history.within(OTHER_ARGUMENTS):
                return self._layers.solve(problem, part, start)

        best = fastest_keeping(self._problem, corrected, solution, starts, solved, allowed)
        self._is_first_faster |= best.compared > 0 and best.solution == solution
        self._spent, self._found = self._spent.and_also(best.took), solution
        self._answer = result
        if best.solution != self._found:
            self._made_by = self._layers.made_by
            self._answer = _of_solution(result, self._problem.problem, best.solution)
        return self._proposal(
            Solved(self._problem, best.solution, best.kept), self._answer, spent_before
        )

    def _beside_crowds(self, limit_bytes: int, allowed: Allowance) -> SolveResult:
        """Returns the result of the search, without options of correction nodes.

        Only a solution shows where its copies crowd: where they share the time behind which they
        are hidden. The problem is first solved without cuts, then with cuts where the copies of the
        last solution crowd, as long as the solution gets faster. Without cuts, copies hide behind
        more computation, so the first bound holds for all these problems.
        """
        self._cut(self._uncut)
        spent_before = self._spent
        best = self._own(limit_bytes, allowed, self._latest)
        made_by = self._made_by
        assert best.solution is not None
        cut = self._problem.crowded_as(best.solution)
        for _ in range(shares.MOST_CROWD_CUTS):
            if cut is self._problem:
                break
            self._cut(cut)
            assert best.solution is not None
            best = _of_solution(best, cut.problem, best.solution)
            remaining = allowed.less(self._spent.less(spent_before)).at_least(late_part(allowed))
            with self._tools.history.within(CROWDED_COPIES):
                solved_again = self._own(limit_bytes, remaining, best.solution)
            assert solved_again.solution is not None
            cut = self._problem.crowded_as(solved_again.solution)
            solved_again = replace(
                _of_solution(solved_again, cut.problem, solved_again.solution), bound=best.bound
            )
            assert best.objective is not None and solved_again.objective is not None
            if solved_again.objective >= best.objective:
                break
            best, made_by = solved_again, self._made_by
        self._made_by = made_by
        return best

    def _cut(self, problem: PlanningProblem) -> None:
        """Makes a problem with other cuts the current one."""
        if problem is not self._problem:
            self._problem = problem
            self._layers = EqualLayers(problem, self._tools, self._seen)

    def _own(
        self, limit_bytes: int, allowed: Allowance, start: Sequence[int] | None
    ) -> SolveResult:
        """Solves the current problem with corrections; returns the result without options of
        correction nodes."""
        corrected = self._corrected(limit_bytes)
        extra = len(corrected.problem.nodes) - len(self._problem.problem.nodes)
        result = self._solved(corrected, allowed, start and (*start, *[0] * extra))
        assert result.solution is not None
        return replace(result, solution=result.solution[: len(result.solution) - extra])

    def _other_starts(self) -> tuple[tuple[int, ...], ...]:
        """Returns the starts for other shardings of the arguments; none if they are hopeless.

        Such starts gain only by kept copies, for which later rounds have less memory. If they were
        slower in one round, they are slower in later rounds, too.
        """
        is_hopeless = self._is_first_faster or self._missed >= shares.MOST_MISSED
        return () if is_hopeless else self._obvious_starts

    def learn(self, plan: Plan, rounds: Sequence[Round]) -> int | None:
        """Returns the next limit after a program; None to end.

        If every step of the program is tied, its excess at each unit becomes part of the problem,
        and the limit is lowered by the heap's waste. Otherwise the excess moves only the limit.
        """
        self._missed += not plan.fits
        if plan.execution.tied_steps is not None or self._limit_alone_moves:
            self._latest = self._found
            return self._limits.after_program(self._measured(plan, rounds), rounds, fits=plan.fits)
        if plan.fits:
            return None
        self._latest = self._found
        if self.is_checked:
            self._model.learn(plan)
            return self._next_limit()
        return self._limits.after_excess(self._measured(plan, rounds))

    def refused(self, error: Refusal, rounds: Sequence[Round]) -> int | None:
        """Returns the next limit after a refusal; None to end.

        If the first limit was refused below the budget, the budget is the next limit. If the last
        program had every step tied, the last correction is reduced. Otherwise the limit rises
        halfway to the lowest limit that had a plan.
        """
        if not rounds:
            return self._budget_bytes if self._limit_bytes < self._budget_bytes else None
        if self.is_checked and rounds[-1].is_tied:
            return self._relaxed_limit(rounds[-1])
        least_bytes = self._refused.least_peak_bytes
        return self._limits.after_refusal(self._limit_bytes, rounds, least_bytes)

    def reordered(self, proposal: _InOrder, number: int) -> _InOrder | None:
        """Returns the proposal with its units in another order; None if no order may help.

        An order may help only if the plan is over the budget by no more than its heap wastes. The
        new heap is predicted to need no more than the budget, or at least less than before.
        """
        plan = proposal.plan
        if plan.peak_bytes - self._budget_bytes > _wasted_bytes(plan):
            return None
        limit_bytes = max(proposal.limit_bytes, *plan.estimate.memory_bytes)
        seed = self._tools.settings.seed + number
        if plan.execution.fetched:
            return None
        ordered = proposal.ordered.another(limit_bytes, self._budget_bytes, seed)
        if ordered is None:
            return None
        other = self._plan_in(ordered, plan.solve_result)
        return replace(proposal, plan=other, solve_seconds=0.0)

    def known(self, most_seconds: float) -> Iterator[_InOrder]:
        """Yields plans of solutions known from the beginning: the given start and the obvious
        starts. Corrections may have excluded them."""
        if self._answer is None:
            return
        known = () if self._given is None else (self._given,)
        is_lowered = self._limit_bytes < self._budget_bytes or self._model.excess_bytes.any()
        # Otherwise no obvious start is faster: the search has compared them.
        if is_lowered or most_seconds > (self._answer.objective or 0.0):
            known += self._obvious_starts
        limited = replace(self._problem.problem, limit_bytes=self._budget_bytes)
        for seconds, solution in fitting(limited, known):
            if seconds >= most_seconds:
                return
            result = _of_solution(self._answer, limited, solution)
            history = self._tools.history
            self._made_by = history.solution(KNOWN_START, self._budget_bytes, result)
            proposal = self._proposal(Solved(self._problem, solution), result, self._spent)
            if proposal.plan.fits:
                yield proposal

    def _relaxed_limit(self, last: Round) -> int | None:
        """Returns the limit with a smaller correction from the last program, or lowered by its
        excess; None if neither may help."""
        if self._model.relax(self._budget_bytes):
            return self._next_limit()
        self._limit_alone_moves = self._model.forget_excess()
        if not self._limit_alone_moves:
            return None
        return self._limits.after_excess(Measured.of(last))

    def _measured(self, plan: Plan, rounds: Sequence[Round]) -> Measured:
        """Returns the bytes of the last plan. Its `planned_bytes` do not include the waste of the
        heap."""
        return Measured(rounds[-1].limit_bytes, max(plan.estimate.memory_bytes), plan.peak_bytes)

    def _next_limit(self) -> int:
        """Returns the budget lowered by the waste of the heap, at least 0."""
        return max(0, self._budget_bytes - self._model.waste_bytes)

    def _proposal(self, solved: Solved, result: SolveResult, before: Allowance) -> _InOrder:
        """Returns the proposal of a solution. `before`: the work and time spent before it."""
        plan = plan_of_solution(self._planner.name, self._step, solved, result, self._budget_bytes)
        return _InOrder(
            replace(plan, made_by=(self._made_by,)),
            self._limit_bytes,
            self._spent.seconds - before.seconds,
            int(self._model.excess_bytes.max(initial=0)),
            ordered=Ordered.given(solved),
        )

    def _plan_in(self, ordered: Ordered, found: SolveResult) -> Plan:
        """Returns the plan of a solution in another order, not yet compiled."""
        plan = plan_of_solution(
            self._planner.name, self._step, ordered.solved, found, self._budget_bytes
        )
        answer = replace(found, peak_bytes=max(plan.estimate.memory_bytes))
        return replace(plan, solve_result=answer)

    def _corrected(self, limit_bytes: int) -> PlanningProblem:
        """Returns the current problem under a limit, with one more node whose only option holds the
        excess bytes."""
        problem = replace(self._problem.problem, limit_bytes=limit_bytes)
        usage = as_intervals(self._model.excess_bytes)
        if usage:
            node = Node("held by the compiled program", np.zeros(1), (usage,))
            problem = replace(problem, nodes=(*problem.nodes, node))
        return replace(self._problem, problem=problem)

    def _solved(
        self, planning: PlanningProblem, allowed: Allowance, warm_start: Sequence[int] | None
    ) -> SolveResult:
        """Solves a corrected problem; raises `Refusal` if there is no solution.

        The problem is solved a second time from an obvious start that is better than the solution.
        """
        problem = planning.problem
        if (known := self._refused.known(problem)) is not None:
            raise _refusal(problem.limit_bytes or 0, known)
        result = self._layers.solve(problem, allowed, warm_start)
        self._made_by = self._layers.made_by
        self._spent = self._spent.and_also(spent(result))
        if (start := better_start(lambda: self._obvious_starts, problem, result)) is not None:
            remaining, searched = allowed.less(spent(result)), result
            result = settled_result(problem, self._tools.solve(problem, remaining, start))
            result = replace(result, deterministic=searched.deterministic and result.deterministic)
            self._spent = self._spent.and_also(spent(result))
            history = self._tools.history
            self._made_by = history.solution(OBVIOUS_START, problem.limit_bytes, result)
        # If the clock ended one search, another run may continue from another solution.
        self._is_repeatable = self._is_repeatable and result.deterministic
        self._refused.take(problem, result)
        if result.solution is None:
            raise _refusal(problem.limit_bytes or 0, result)
        return replace(result, deterministic=self._is_repeatable)

    @functools.cached_property
    def _obvious_starts(self) -> tuple[tuple[int, ...], ...]:
        return obvious_starts(self._problem)


def _refusal(limit_bytes: int, result: SolveResult) -> Refusal:
    """Returns the error for a limit under which a search found no plan."""
    if result.status is SolveStatus.INFEASIBLE:
        return infeasible_budget(limit_bytes, result)
    return NoPlanFoundError(
        f"No plan was found in {result.seconds:.3g} s under {format_bytes(limit_bytes)}.",
        cause="The budget is close to the least that is possible. " + result.message,
        suggestion="A larger memory_budget or mesh"
        + (', or effort="thorough".' if result.deterministic else ", or time limit."),
    )


def _of_solution(result: SolveResult, problem: Problem, solution: tuple[int, ...]) -> SolveResult:
    """Returns the result with another solution, priced by the evaluator."""
    priced = evaluate(problem, solution)
    return replace(result, solution=solution, objective=priced.cost, peak_bytes=priced.peak_bytes)


def _wasted_bytes(plan: Plan) -> int:
    """Returns the bytes that the heap wastes, in the compiled program if there is one, otherwise as
    predicted."""
    if plan.compiled is None:
        return plan.estimate.peak_bytes - max(plan.estimate.memory_bytes)
    memory = plan.compiled.memory
    return 0 if memory is None else memory.fragmentation_bytes
