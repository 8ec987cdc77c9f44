"""Channels that work at once: problems with loads, by problems without.

Of the loads of one window only the largest channel's counts. With weights w >= 0 of the channels
that sum to 1 in every window, the sum of w times load is at most that, so that the problem in which
each load counts w times bounds the true one from below (Lagrangian relaxation of t >= load for the
time t of a window; Geoffrion, *Lagrangean relaxation for integer programming*, 1974). Its solutions
are priced by the true cost.

1. *Balance.* All weight is on the first channel, computation, for a few rounds. Where another
   channel is larger in what they find, weight moves there, by bisection in each window. Weights
   found for a problem like this one (`Request.balances`) are where it begins. If computation is
   the largest wherever it was given all, and the gap is closed, this is the end.
2. *Search*, at the balance, with all rounds. Most often computation is the largest wherever it was
   given all: then bound and cost are those of the problem without loads, and this is the end.
3. *Rest.* Options that are in no better solution are left out at the weights that were tried, and
   HiGHS solves what is left with its loads, where that is small (`kiwi.solver.loads.exact`).
4. *Splits.* Where it is not: at a balance all choices of one kind go one way, or all the other
   way. So the part of a window's nodes up to a place weighs as the one end of the bisection and the
   rest as the other, and the place is found by bisection, too. Such weights bound nothing.

Where two solutions differ in parts without edges between them, these are exchanged one by one, as
far as the true cost falls (path relinking; Glover, 1997).
"""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from kiwi.solver.evaluate import evaluate, fitting
from kiwi.solver.loads.exact import is_worth, solve_rest, without_worse
from kiwi.solver.loads.restricted import Restricted
from kiwi.solver.loads.weights import Loads, Weights
from kiwi.solver.problem import Problem
from kiwi.solver.request import Request
from kiwi.solver.result import INTERRUPTED, Progress, SolveResult, conclude, is_closed

MOST_BALANCED, MOST_SPLIT, MOST_GIVEN = 4, 4, 1
"""The largest numbers of problems without loads that are solved: to find the balance, after that,
and after that if a balance is given."""

ROUGH_SHARE, ROUGH_ROUNDS = 0.1, 2
"""The share of work and time, and the rounds, of all these problems but one."""

FULL_ROUNDS = 20
"""The rounds at a balance. More of them find solutions that are cheaper at its weights, but rarely
by the true cost."""

MOST_EXCHANGED, MOST_EXCHANGED_NODES = 100, 100_000
"""The largest number of parts that are exchanged after each problem, absolute and times
the nodes."""

_MOST_PASSES, _SMALLER = 3, 0.9
"""How often options are left out, as long as at most this share of them remains each time."""


_Solver = Callable[[Request], SolveResult]


def solve_with_loads(request: Request, solver: _Solver, unclosed: _Solver) -> SolveResult:
    """The result of a solver for problems without loads, for one with loads.

    `unclosed`: the same where the gap is not worth closing, as it is not at a balance.
    """
    search = _Search(request, solver, unclosed)
    with contextlib.suppress(_NothingFound, _Interrupted):
        search.run()
    return search.result()


class _NothingFound(Exception):
    """The problem without loads has no solution, or none was found."""


class _Interrupted(Exception):
    """Ctrl-C ended the last search, which has its best solution so far."""


class _Search:
    """The results of searches at several weights so far."""

    def __init__(self, request: Request, solver: _Solver, unclosed: _Solver) -> None:
        self._request, self._solver, self._unclosed = request, solver, unclosed
        self._problem = request.problem
        self._weights = Weights(request.problem, request.balances or {})
        self._best = request.warm_start
        self._bound = -math.inf
        self._results: list[SolveResult] = []
        self._work, self._is_repeatable = 0, True

    def run(self) -> None:
        """The steps above, until the gap is closed."""
        if self._request.balances is None and not self._find_balance():
            return
        loads = self._solved(is_rough=False)
        is_moved = self._weights.moved(loads)
        if self._is_closed or not is_moved:
            return
        if self._request.round_limit is not None:
            return
        self._solve_rest()
        for _ in range(MOST_SPLIT if self._request.balances is None else MOST_GIVEN):
            if self._is_closed or not self._weights.split(loads):
                return
            loads = self._solved(is_rough=True)

    @property
    def _is_closed(self) -> bool:
        if self._best is None:
            return False
        return is_closed(evaluate(self._problem, self._best).cost, self._bound, self._request.gap)

    def _find_balance(self) -> bool:
        """Searches for the balance; returns whether there is anything left to search for."""
        for _ in range(MOST_BALANCED):
            try:
                loads = self._solved(is_rough=True)
            except _NothingFound:  # too rough to tell
                return True
            if not self._weights.moved(loads) or self._is_closed:
                break
        return not self._is_closed

    def _solved(self, *, is_rough: bool) -> Loads:
        """Takes the solver's result at the weights; returns its loads."""
        solver = self._unclosed if self._weights.balances else self._solver
        result = solver(self._asked(is_rough=is_rough))
        self._results.append(result)
        if result.solution is None:
            raise _NothingFound
        if not self._weights.is_split and result.bound > self._bound:
            self._bound = result.bound
        self._best = _relinked(self._problem, self._best, result.solution)
        if result.message == INTERRUPTED:
            raise _Interrupted
        return evaluate(self._problem, result.solution).loads

    def _asked(self, *, is_rough: bool) -> Request:
        """The request for the problem without loads."""
        request, rounds = self._request, self._request.round_limit
        share, work = ROUGH_SHARE if is_rough else 1.0, request.work_limit
        if is_rough or self._weights.balances:
            most = ROUGH_ROUNDS if is_rough else FULL_ROUNDS
            rounds = most if rounds is None else min(rounds, most)
        return replace(
            request,
            problem=self._weights.weighted(self._problem),
            warm_start=None if self._best is None else tuple(self._best),
            time_limit_seconds=share * request.time_limit_seconds,
            work_limit=None if work is None else int(share * work),
            round_limit=rounds,
            on_progress=_translated(request),
            started=time.monotonic(),
        )

    def _solve_rest(self) -> None:
        """Leaves out options, and asks HiGHS about the rest."""
        assert self._best is not None
        limit, cost = self._request.work_limit, evaluate(self._problem, self._best).cost
        left = math.inf if limit is None else max(0, limit - self._all_work)
        rest = Restricted.nothing(self._problem)
        for _ in range(_MOST_PASSES if is_worth(self._problem, left) else 0):
            before = rest.problem.option_count
            at_weights = self._weights.weighted(rest.problem)
            rest, bound, work = without_worse(rest, at_weights, cost)
            self._bound, self._work = max(self._bound, min(bound, cost)), self._work + work
            if self._is_closed or rest.problem.option_count > _SMALLER * before:
                break
        if self._is_closed:
            return
        solution, bound, work, is_late = solve_rest(rest, self._request, self._best, left)
        self._work, self._is_repeatable = self._work + work, self._is_repeatable and not is_late
        if solution is not None:
            self._best = _relinked(self._problem, self._best, solution)
        cost = evaluate(self._problem, self._best).cost
        self._bound = max(self._bound, min(bound, cost))

    @property
    def _all_work(self) -> int:
        return self._work + sum(result.work for result in self._results)

    def result(self) -> SolveResult:
        """The best of all searches."""
        last = self._results[-1]
        if self._best is None:
            return last
        message = next((each.message for each in self._results if each.message), "")
        is_repeatable = self._is_repeatable and all(each.deterministic for each in self._results)
        concluded = conclude(
            self._problem,
            self._best,
            self._bound,
            solver=last.solver,
            iterations=sum(each.iterations for each in self._results),
            message=message,
            deterministic=is_repeatable,
        )
        seen = {each.solution: None for each in self._results if each.solution is not None}
        others = tuple(each for each in seen if each != concluded.solution)
        return replace(
            concluded, work=self._all_work, balances=self._weights.balances, others=others
        )


def _translated(request: Request) -> Callable[[Progress], None] | None:
    """Reports progress by the true cost."""
    tell = request.on_progress
    if tell is None:
        return None

    def translated(progress: Progress) -> None:
        if progress.solution is not None:
            cost = evaluate(request.problem, progress.solution).cost
            progress = replace(progress, objective=cost, bound=min(progress.bound, cost))
        tell(progress)

    return translated


def _relinked(problem: Problem, old: Sequence[int] | None, found: Sequence[int]) -> tuple[int, ...]:
    """The cheapest feasible solution known on a path from either solution to the other."""
    ends = fitting(problem, [tuple(solution) for solution in (old, found) if solution is not None])
    if len(ends) < 2:
        return ends[0][1] if ends else tuple(found)
    (cost, best), (_, other) = ends
    most = min(MOST_EXCHANGED, MOST_EXCHANGED_NODES // max(1, len(problem.nodes)))
    for part in _differing(problem, best, other)[:most]:
        trial = tuple(other[k] if k in part else option for k, option in enumerate(best))
        priced = evaluate(problem, trial)
        if priced.feasible and priced.cost < cost:
            cost, best = priced.cost, trial
    return best


def _differing(problem: Problem, one: Sequence[int], other: Sequence[int]) -> list[set[int]]:
    """The nodes in which two solutions differ, in parts without edges between them."""
    differing = np.array(one) != np.array(other)
    inner = [(e.tail, e.head) for e in problem.edges if differing[e.tail] and differing[e.head]]
    tails, heads = np.array(inner, dtype=np.int64).reshape(-1, 2).T
    count = len(problem.nodes)
    graph = coo_array((np.ones(len(inner)), (tails, heads)), shape=(count, count))
    labels = connected_components(graph, directed=False)[1]
    parts: dict[int, set[int]] = {}
    for node in np.flatnonzero(differing):
        parts.setdefault(labels[node], set()).add(int(node))
    return list(parts.values())
