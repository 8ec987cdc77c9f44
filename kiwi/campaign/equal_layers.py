"""Equal layers, equal decisions, where that costs next to nothing (docs/how_it_works/solver.md).

1. The layers tied: one node for the equal nodes of all layers (`kiwi.problem.equal_layers`).
2. Two groups, where layers that are all alike load one channel and leave another one idle
   (`best_mixture`): solutions of the tied problem at different weights of the channels
   (`SolveResult.others`), as many layers of each as balance all loads.
3. The whole problem from there, for a few rounds, and from the balance of channels of 1. Its bound
   is the one that is reported.
4. If these rounds gain more than `shares.DIFFERENT_LAYERS_GAIN`, the layers differ for a reason:
   the search goes on from what they found. Otherwise the tied solution is the answer.

A later round of the closed loop leaves no more room than the one before, so that the bound of that
one holds; where the tied solution costs hardly more, it is the answer without 3.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kiwi.campaign import shares
from kiwi.campaign.attempt import Attempt
from kiwi.campaign.attempts import (
    DIFFERENT_LAYERS,
    EACH_OPERATOR,
    TIED_LAYERS,
    TWO_GROUPS,
)
from kiwi.campaign.tools import Tools, spent
from kiwi.problem.build import PlanningProblem
from kiwi.problem.equal_layers import equal_nodes
from kiwi.solver import Problem, Progress, SolveResult, evaluate
from kiwi.solver.effort import Allowance
from kiwi.solver.evaluate import fitting, hidden_amount
from kiwi.solver.loads.restricted import Restricted
from kiwi.solver.result import Balances, conclude, is_closed
from kiwi.solver.settle import settled
from kiwi.solver.tied import EqualNodes, Tied, tied
from kiwi.timings import timed

Solution = tuple[int, ...]

EQUAL_LAYERS = "Equal layers decide alike"
"""The beginning of the message of a search over tied decisions."""


class EqualLayers:
    """Solves problems of one step, under other limits and with what was learnt of compiled
    programs as further nodes.

    `seen`: all solutions that searches of the step came by; the best one that is feasible is where
    the next search begins. Whoever makes another problem of the same step hands them on.
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
        self._is_grouped = False
        self.made_by = 0
        """The number in the history of the last answer."""
        if tools.settings.equal_layers:
            equal = tuple(e for e in equal_nodes(planning) if len(e.members) >= shares.LEAST_LAYERS)
            count = sum(len(each.members) for each in equal)
            if count >= shares.LEAST_EQUAL_SHARE * len(planning.problem.nodes):
                self._equal = equal

    def solve(
        self, problem: Problem, allowed: Allowance, warm_start: Sequence[int] | None
    ) -> SolveResult:
        """The solution; of equal ones that which holds least memory. What was found under a higher
        limit, and fits, is found again without a search."""
        for before, made_by, found in self._found:
            if _is_answer(before, found, problem):
                self.made_by = made_by
                return replace(found, iterations=0, work=0, seconds=0.0)
        found = self._searched(problem, allowed, warm_start)
        self._found.append((problem, self.made_by, found))
        return found

    @timed("solve")
    def _searched(
        self, problem: Problem, allowed: Allowance, warm_start: Sequence[int] | None
    ) -> SolveResult:
        warm_start = self._best_seen(problem, warm_start)
        if not self._equal:
            result = self._tools.solve(problem, allowed, warm_start, balances=self._balances)
            self._balances = result.balances if result.solution else None
            return self._logged(EACH_OPERATOR, problem, settled_result(problem, result))
        small = tied(problem, self._equal)
        part = allowed.part(shares.TIED_SHARE)
        first = self._logged(TIED_LAYERS, problem, self._solved_tied(small, part, warm_start))
        left = allowed.less(spent(first)).at_least(part)
        if first.solution is None:
            found = self._tools.solve(problem, left, warm_start)
            found = self._logged(EACH_OPERATOR, problem, settled_result(problem, found))
            return _after([first], _with_peak_of(found, first))
        searches = [first]
        groups = self._better_groups(problem, small, first, part)
        if groups is not None:
            small, grouped = groups
            searches.append(grouped)
            left = left.less(spent(grouped)).at_least(part)
        best = searches[-1]
        assert best.objective is not None and best.solution is not None
        start = small.expanded(best.solution)
        self._see(start)
        known = self._bounded(problem, best.objective)
        if known is not None:
            return _after(searches, _with_bound(problem, start, known, len(small.classes)))
        given = () if warm_start is None else tuple(warm_start)
        better = _cheaper(problem, start, given)
        polished = self._tools.solve(problem, left, better, shares.POLISH_ROUNDS, best.balances)
        assert polished.objective is not None
        is_better = polished.objective < (1 - shares.DIFFERENT_LAYERS_GAIN) * best.objective
        self._logged(DIFFERENT_LAYERS, problem, polished, is_better=is_better)
        if not is_better:
            found = _with_bound(problem, start, polished, len(small.classes))
            self._known = problem, found
            return _after(searches, found)
        self._equal = ()  # in later rounds, too
        if is_closed(polished.objective, polished.bound, self._tools.settings.gap):
            return _after(searches, settled_result(problem, polished))
        left = left.less(spent(polished)).at_least(part)
        found = settled_result(problem, self._tools.solve(problem, left, polished.solution))
        # A search that ends at once never saw the balance, which the polishing one began at.
        self._balances = found.balances or polished.balances
        self._logged(DIFFERENT_LAYERS, problem, found)
        return _after([*searches, polished], found)

    def _see(self, solution: Sequence[int]) -> None:
        """Records a solution, without the options of further nodes."""
        self._seen[tuple(solution[: len(self._planning.problem.nodes)])] = None

    def _best_seen(
        self, problem: Problem, warm_start: Sequence[int] | None
    ) -> Sequence[int] | None:
        """The cheapest feasible solution that is known; the given one if there is none."""
        more = (0,) * (len(problem.nodes) - len(self._planning.problem.nodes))
        known = [(*each, *more) for each in self._seen]
        given = [] if warm_start is None else [tuple(warm_start)]
        best = fitting(problem, (*given, *known))
        return best[0][1] if best else warm_start

    def _better_groups(
        self, problem: Problem, small: Tied, first: SolveResult, part: Allowance
    ) -> tuple[Tied, SolveResult] | None:
        """The problem with groups of layers, and its solution, where that is worth it; in later
        rounds its layers are in these groups from the start."""
        assert first.objective is not None
        most = (1 - shares.DIFFERENT_LAYERS_GAIN) * first.objective
        if self._is_grouped or first.bound > most:
            return None
        mixture = best_mixture(small.problem, first, max(e.end_layer for e in self._equal))
        if mixture is None or mixture.cost > most:
            return None
        equal = mixture.groups(self._equal)
        groups = tied(problem, equal)
        rest = mixture.between(groups, small, self._equal)
        found = self._tools.solve(rest.problem, part, None, shares.TIED_ROUNDS, first.balances)
        is_better = found.objective is not None and found.objective <= most
        self._logged(TWO_GROUPS, problem, found, is_better=is_better)
        if found.solution is None or not is_better:
            return None
        self._equal, self._is_grouped = equal, True
        return groups, replace(found, solution=rest.whole(found.solution))

    def _bounded(self, problem: Problem, objective: float) -> SolveResult | None:
        """A bound from an earlier round, where it serves: what is learnt of compiled programs only
        adds memory."""
        if self._known is None:
            return None
        before, found = self._known
        assert found.objective is not None
        is_alike = objective <= (1 + shares.DIFFERENT_LAYERS_GAIN) * found.objective
        took = {"iterations": 0, "work": 0, "seconds": 0.0}
        return replace(found, **took) if _is_tighter(problem, before) and is_alike else None

    def solve_roughly(self, problem: Problem, allowed: Allowance) -> SolveResult:
        """A solution after a few rounds, with equal layers if there are any."""
        if not self._equal:
            found = self._tools.solve(problem, allowed, None, shares.TIED_ROUNDS)
            return self._logged(EACH_OPERATOR, problem, settled_result(problem, found))
        small = tied(problem, self._equal)
        found = self._logged(TIED_LAYERS, problem, self._solved_tied(small, allowed, None))
        return replace(found, solution=found.solution and small.expanded(found.solution))

    def _logged(
        self, attempt: Attempt, problem: Problem, result: SolveResult, *, is_better: bool = True
    ) -> SolveResult:
        """The result, on record; the answer of this problem, if it is better."""
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
        """The tied problem's solution. Its bound does not hold for the whole problem."""
        pass_on = self._tools.settings.on_progress

        def expanded(progress: Progress) -> None:
            solution = progress.solution and small.expanded(progress.solution)
            if solution is not None:
                self._see(solution)
            if pass_on is not None:
                pass_on(replace(progress, bound=-float("inf"), solution=solution))

        own = self._tools.with_settings(on_progress=expanded)
        start = None if warm_start is None else small.tied(warm_start)
        found = own.solve(small.problem, allowed, start, shares.TIED_ROUNDS)
        return settled_result(small.problem, found)


def _is_answer(before: Problem, found: SolveResult, problem: Problem) -> bool:
    """Whether the solution of a problem is as good for the same problem under another limit."""
    if before.nodes is not problem.nodes or before.edges is not problem.edges:
        return False
    is_same_host = before.host_limit_bytes == problem.host_limit_bytes
    if found.solution is None or not is_same_host or not _is_tighter(problem, before):
        return False
    return evaluate(problem, found.solution).feasible


def _is_tighter(problem: Problem, before: Problem) -> bool:
    """Whether a problem's limit is at most that of another one."""
    own, other = (
        math.inf if each.limit_bytes is None else each.limit_bytes for each in (problem, before)
    )
    return own <= other


def _cheaper(problem: Problem, one: Solution, other: Solution) -> Solution:
    """The other solution if it is feasible and costs less, otherwise the first."""
    priced, own = evaluate(problem, other), evaluate(problem, one)
    return other if priced.feasible and priced.cost < own.cost else one


def settled_result(problem: Problem, result: SolveResult) -> SolveResult:
    """The result with the solution that holds least memory among those of equal cost."""
    if result.solution is None:
        return result
    solution = settled(problem, result.solution)
    own = conclude(problem, solution, result.bound, solver=result.solver)
    return replace(result, solution=solution, objective=own.objective, peak_bytes=own.peak_bytes)


def _with_peak_of(found: SolveResult, first: SolveResult) -> SolveResult:
    """The result; if nothing was found, with the least peak of both."""
    known = [each.least_peak_bytes for each in (found, first) if each.least_peak_bytes]
    if found.solution is not None or not known:
        return found
    return replace(found, least_peak_bytes=min(known))


def _with_bound(
    problem: Problem, solution: Sequence[int], polished: SolveResult, decisions: int
) -> SolveResult:
    """A tied solution with the whole problem's bound."""
    message = f"{EQUAL_LAYERS}: {len(problem.nodes)} decisions are {decisions}."
    found = conclude(problem, solution, polished.bound, solver=polished.solver, message=message)
    parts = polished.iterations, polished.work, polished.seconds, polished.deterministic
    names = "iterations", "work", "seconds", "deterministic"
    return replace(found, **dict(zip(names, parts, strict=True)))


def _after(searches: Sequence[SolveResult], last: SolveResult) -> SolveResult:
    """The last of several searches, with the rounds, the work and the time of all."""
    every = (*searches, last)
    return replace(
        last,
        iterations=sum(each.iterations for each in every),
        work=sum(each.work for each in every),
        seconds=sum(each.seconds for each in every),
        deterministic=all(each.deterministic for each in every),
    )


@dataclass(frozen=True)
class Mixture:
    """The layers before one as in one solution of the tied problem, those from there on as in
    another one.

    - `cost`: without what is resharded in between.
    - `layer`: the first one that is as in `behind`.
    """

    cost: float
    before: tuple[int, ...]
    behind: tuple[int, ...]
    layer: int

    def groups(self, equal: Sequence[EqualNodes]) -> tuple[EqualNodes, ...]:
        """The layers before, the two in between, and those behind."""
        for layer in (self.layer - 1, self.layer, self.layer + 1):
            equal = [group for each in equal for group in each.split(layer)]
        return tuple(equal)

    def between(self, groups: Tied, small: Tied, equal: Sequence[EqualNodes]) -> Restricted:
        """The problem of groups in which the layers before and behind take what they do in the two
        solutions, and all else is open."""
        rest = Restricted.nothing(groups.problem)
        grouped = {member for each in equal for member in each.members}
        taken = {
            member: options
            for each, *options in zip(small.classes, self.before, self.behind, strict=True)
            for member in each.members
            if member in grouped
        }
        masks = [np.ones(len(own), dtype=np.bool_) for own in rest.kept]
        for group, mask in zip(groups.classes, masks, strict=True):
            options = taken.get(group.members[0])
            if options is not None and not self.layer - 1 <= group.first_layer <= self.layer:
                mask[:] = False
                mask[options[group.first_layer >= self.layer]] = True
        return rest.to(masks)


def best_mixture(problem: Problem, found: SolveResult, layers: int) -> Mixture | None:
    """The cheapest mixture of two solutions of the tied problem, by the share of layers of each;
    None where there was only one."""
    assert found.solution is not None
    ends = [_End.of(problem, each) for each in (found.solution, *found.others)]
    return min(
        (
            Mixture(cost, before.solution, behind.solution, layer)
            for before in ends
            for behind in ends
            if before is not behind
            for layer in range(1, layers)
            for cost in [behind.mixed_cost(before, layer / layers)]
        ),
        key=lambda each: each.cost,
        default=None,
    )


@dataclass(frozen=True)
class _End:
    """A solution, its cost without overlap, and its loads by window and channel."""

    solution: tuple[int, ...]
    cost: float
    loads: Mapping[tuple[int, int], float]

    @classmethod
    def of(cls, problem: Problem, solution: tuple[int, ...]) -> "_End":
        priced = evaluate(problem, solution)
        return cls(solution, priced.cost + priced.hidden, priced.loads)

    def mixed_cost(self, other: "_End", share: float) -> float:
        """The cost if the other solution has this share of all layers."""
        own, more = 1 - share, share
        keys = {*self.loads, *other.loads}
        loads = {k: own * self.loads.get(k, 0) + more * other.loads.get(k, 0) for k in keys}
        return own * self.cost + more * other.cost - hidden_amount(loads)
