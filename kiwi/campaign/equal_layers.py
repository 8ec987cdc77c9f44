"""Equal decisions for equal layers if they cost almost nothing (docs/how_it_works/solver.md).

1. The *tied* problem is solved. It has one node for the equal nodes of all layers
   (`kiwi.problem.equal_layers`).
2. The whole problem is solved for a few rounds, from the tied solution and from its balance of
   channels. The reported bound is the whole problem's.
3. If these rounds gain more than `shares.DIFFERENT_LAYERS_GAIN`, the layers differ for a reason,
   and the search continues from the solution found. Otherwise the tied solution is the answer.

In a later round of the closed loop the problem is no less constrained than in the round before. The
bound of that round therefore still holds. If the tied solution costs hardly more than the answer of
that round, it is the answer without step 2.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from kiwi.campaign import shares
from kiwi.campaign.attempt import Attempt
from kiwi.campaign.attempts import (
    DIFFERENT_LAYERS,
    EACH_OPERATOR,
    TIED_LAYERS,
)
from kiwi.campaign.tools import Tools, spent
from kiwi.problem.build import PlanningProblem
from kiwi.problem.equal_layers import equal_nodes
from kiwi.solver import Problem, Progress, SolveResult, evaluate
from kiwi.solver.effort import Allowance
from kiwi.solver.evaluate import fitting
from kiwi.solver.result import Balances, conclude, is_closed
from kiwi.solver.settle import settled
from kiwi.solver.tied import EqualNodes, Tied, tied
from kiwi.timings import timed

Solution = tuple[int, ...]
"""The index of an option for each node of a problem."""

EQUAL_LAYERS = "Equal layers decide alike"
"""The first words of the message of a result whose equal layers decide alike."""


class EqualLayers:
    """Solves the problems of one step, which differ in their limits and in the further nodes that
    hold the corrections from compiled programs.

    - `planning`: the problem without corrections.
    - `seen`: all solutions that searches of the step have come by. The next search begins with the
      cheapest feasible one. Instances for other problems of the same step may share this dict.
    """

    def __init__(
        self, planning: PlanningProblem, tools: Tools, seen: dict[Solution, None] | None = None
    ) -> None:
        self._planning, self._tools = planning, tools
        self._seen = {} if seen is None else seen
        self._equal: tuple[EqualNodes, ...] = ()
        self._known: tuple[Problem, SolveResult] | None = None
        self._balances: Balances | None = None
        self._found: list[tuple[Problem, int, SolveResult]] = []
        self.made_by = 0
        """The number of the last answer's record in the history."""
        if tools.settings.equal_layers:
            equal = tuple(
                tie for tie in equal_nodes(planning) if len(tie.members) >= shares.LEAST_LAYERS
            )
            count = sum(len(tie.members) for tie in equal)
            if count >= shares.LEAST_EQUAL_SHARE * len(planning.problem.nodes):
                self._equal = equal

    def solve(
        self, problem: Problem, allowed: Allowance, warm_start: Sequence[int] | None
    ) -> SolveResult:
        """Returns the result of solving a problem. Among solutions of equal cost it has the one
        with the least memory.

        A solution that was found under a higher limit, and that is feasible under this one, is
        returned without a search.
        """
        for before, made_by, answer in self._found:
            if _is_answer(before, answer, problem):
                self.made_by = made_by
                return replace(answer, iterations=0, work=0, seconds=0.0)
        answer = self._searched(problem, allowed, warm_start)
        self._found.append((problem, self.made_by, answer))
        return answer

    @timed("solve")
    def _searched(
        self, problem: Problem, allowed: Allowance, warm_start: Sequence[int] | None
    ) -> SolveResult:
        """Solves a problem as the module's docstring says: tied, then as a whole."""
        warm_start = self._best_seen(problem, warm_start)
        if not self._equal:
            result = self._tools.solve(problem, allowed, warm_start, balances=self._balances)
            self._balances = result.balances if result.solution else None
            return self._logged(EACH_OPERATOR, problem, settled_result(problem, result))
        tied_problem = tied(problem, self._equal)
        tied_allowance = allowed.part(shares.TIED_SHARE)
        tied_result = self._logged(
            TIED_LAYERS, problem, self._solved_tied(tied_problem, tied_allowance, warm_start)
        )
        remaining = allowed.less(spent(tied_result)).at_least(tied_allowance)
        if tied_result.solution is None:
            answer = self._tools.solve(problem, remaining, warm_start)
            answer = self._logged(EACH_OPERATOR, problem, settled_result(problem, answer))
            return _after([tied_result], _with_peak_of(answer, tied_result))
        assert tied_result.objective is not None
        start = tied_problem.expanded(tied_result.solution)
        self._see(start)
        decisions = len(tied_problem.classes)
        earlier = self._bounded(problem, tied_result.objective)
        if earlier is not None:
            return _after([tied_result], _with_bound(problem, start, earlier, decisions))
        given_start = () if warm_start is None else tuple(warm_start)
        better = _cheaper(problem, start, given_start)
        polished = self._tools.solve(
            problem, remaining, better, shares.POLISH_ROUNDS, tied_result.balances
        )
        assert polished.objective is not None
        most_seconds = (1 - shares.DIFFERENT_LAYERS_GAIN) * tied_result.objective
        is_better = polished.objective < most_seconds
        self._logged(DIFFERENT_LAYERS, problem, polished, is_better=is_better)
        if not is_better:
            answer = _with_bound(problem, start, polished, decisions)
            self._known = problem, answer
            return _after([tied_result], answer)
        self._equal = ()  # Layers differ in later rounds, too.
        if is_closed(polished.objective, polished.bound, self._tools.settings.gap):
            return _after([tied_result], settled_result(problem, polished))
        remaining = remaining.less(spent(polished)).at_least(tied_allowance)
        answer = settled_result(problem, self._tools.solve(problem, remaining, polished.solution))
        # A search that ends at once has no balances: those of the search before it are kept.
        self._balances = answer.balances or polished.balances
        self._logged(DIFFERENT_LAYERS, problem, answer)
        return _after([tied_result, polished], answer)

    def _see(self, solution: Sequence[int]) -> None:
        """Records a solution without the options of further nodes."""
        self._seen[tuple(solution[: len(self._planning.problem.nodes)])] = None

    def _best_seen(
        self, problem: Problem, warm_start: Sequence[int] | None
    ) -> Sequence[int] | None:
        """Returns the cheapest feasible solution among the recorded ones and `warm_start`;
        `warm_start` if none is feasible."""
        further = (0,) * (len(problem.nodes) - len(self._planning.problem.nodes))
        known = [(*solution, *further) for solution in self._seen]
        given = [] if warm_start is None else [tuple(warm_start)]
        best = fitting(problem, (*given, *known))
        return best[0][1] if best else warm_start

    def _bounded(self, problem: Problem, objective: float) -> SolveResult | None:
        """Returns the whole problem's result of an earlier round if its bound holds for this round
        and `objective` is hardly more than its objective; None otherwise.

        Such a bound holds under a limit that is no higher, since corrections only add memory.
        """
        if self._known is None:
            return None
        before, earlier = self._known
        assert earlier.objective is not None
        is_alike = objective <= (1 + shares.DIFFERENT_LAYERS_GAIN) * earlier.objective
        took = {"iterations": 0, "work": 0, "seconds": 0.0}
        return replace(earlier, **took) if _is_tighter(problem, before) and is_alike else None

    def solve_roughly(self, problem: Problem, allowed: Allowance) -> SolveResult:
        """Returns the result after a few rounds of the solver, with tied layers if layers are
        equal."""
        if not self._equal:
            result = self._tools.solve(problem, allowed, None, shares.TIED_ROUNDS)
            return self._logged(EACH_OPERATOR, problem, settled_result(problem, result))
        tied_problem = tied(problem, self._equal)
        result = self._logged(TIED_LAYERS, problem, self._solved_tied(tied_problem, allowed, None))
        return replace(result, solution=result.solution and tied_problem.expanded(result.solution))

    def _logged(
        self, attempt: Attempt, problem: Problem, result: SolveResult, *, is_better: bool = True
    ) -> SolveResult:
        """Logs a result and records its solution. If it is better, its number in the history
        becomes `made_by`. Returns the result."""
        if result.solution is not None and len(result.solution) >= len(problem.nodes):
            self._see(result.solution)
        limit_bytes, history = problem.limit_bytes, self._tools.history
        number = history.solution(attempt, limit_bytes, result, is_better=is_better)
        if is_better:
            self.made_by = number
        return result

    def _solved_tied(
        self, small: Tied, allowed: Allowance, warm_start: Sequence[int] | None
    ) -> SolveResult:
        """Returns the result of the tied problem. Its bound does not hold for the whole problem."""
        pass_on = self._tools.settings.on_progress

        def expanded(progress: Progress) -> None:
            solution = progress.solution and small.expanded(progress.solution)
            if solution is not None:
                self._see(solution)
            if pass_on is not None:
                pass_on(replace(progress, bound=-float("inf"), solution=solution))

        passing_on = self._tools.with_settings(on_progress=expanded)
        start = None if warm_start is None else small.tied(warm_start)
        result = passing_on.solve(small.problem, allowed, start, shares.TIED_ROUNDS)
        return settled_result(small.problem, result)


def _is_answer(before: Problem, found: SolveResult, problem: Problem) -> bool:
    """Whether `found`, the result of the problem `before`, is also an answer to `problem`: both
    differ only in the limit, the new limit is no higher, and the solution is feasible under it."""
    if before.nodes is not problem.nodes or before.edges is not problem.edges:
        return False
    is_same_host = before.host_limit_bytes == problem.host_limit_bytes
    if found.solution is None or not is_same_host or not _is_tighter(problem, before):
        return False
    return evaluate(problem, found.solution).feasible


def _is_tighter(problem: Problem, before: Problem) -> bool:
    """Whether the memory limit of a problem is no higher than the limit of the problem `before`."""
    limit_bytes, before_bytes = (
        math.inf if limited.limit_bytes is None else limited.limit_bytes
        for limited in (problem, before)
    )
    return limit_bytes <= before_bytes


def _cheaper(problem: Problem, one: Solution, other: Solution) -> Solution:
    """Returns the other solution if it is feasible and costs less, otherwise the first."""
    other_priced, one_priced = evaluate(problem, other), evaluate(problem, one)
    return other if other_priced.feasible and other_priced.cost < one_priced.cost else one


def settled_result(problem: Problem, result: SolveResult) -> SolveResult:
    """Returns the result with the solution that holds the least memory among solutions of equal
    cost (`kiwi.solver.settle`)."""
    if result.solution is None:
        return result
    solution = settled(problem, result.solution)
    concluded = conclude(problem, solution, result.bound, solver=result.solver)
    return replace(
        result, solution=solution, objective=concluded.objective, peak_bytes=concluded.peak_bytes
    )


def _with_peak_of(found: SolveResult, first: SolveResult) -> SolveResult:
    """Returns the result `found`. If it has no solution, it gets the smaller least peak of the two
    results."""
    known = [result.least_peak_bytes for result in (found, first) if result.least_peak_bytes]
    if found.solution is not None or not known:
        return found
    return replace(found, least_peak_bytes=min(known))


def _with_bound(
    problem: Problem, solution: Sequence[int], polished: SolveResult, decisions: int
) -> SolveResult:
    """Returns the result for a tied solution with the bound of the search of the whole problem.

    - `polished`: the result of that search.
    - `decisions`: the number of nodes of the tied problem.
    """
    message = f"{EQUAL_LAYERS}: {len(problem.nodes)} decisions are {decisions}."
    concluded = conclude(problem, solution, polished.bound, solver=polished.solver, message=message)
    parts = polished.iterations, polished.work, polished.seconds, polished.deterministic
    names = "iterations", "work", "seconds", "deterministic"
    return replace(concluded, **dict(zip(names, parts, strict=True)))


def _after(searches: Sequence[SolveResult], last: SolveResult) -> SolveResult:
    """Returns the result of the last of several searches, with the iterations, the work and the
    time of all."""
    results = (*searches, last)
    return replace(
        last,
        iterations=sum(result.iterations for result in results),
        work=sum(result.work for result in results),
        seconds=sum(result.seconds for result in results),
        deterministic=all(result.deterministic for result in results),
    )
