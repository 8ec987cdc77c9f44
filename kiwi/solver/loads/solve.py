"""Solves problems with loads, in which channels work at the same time, by problems without loads.

In each window only the largest channel's load counts. Let w >= 0 be weights of the channels that
sum to 1 in every window. The sum of w times load is at most the largest load. The problem in which
each load counts w times is therefore a lower bound of the true problem (Lagrangian relaxation of t
>= load for the time t of a window; Geoffrion, *Lagrangean relaxation for integer programming*,
1974). Its solutions are priced by the true cost.

1. *Balance.* The first channel, computation, has all the weight for a few rounds. If another
   channel has the larger load in the solution found, weight moves to it, by bisection in each
   window. Balances of a similar problem (`Request.balances`) replace this step. The search ends if
   computation is the largest wherever it has all the weight, and the gap is closed.
2. *Search.* The problem at the balance is searched with all rounds. Most often computation is the
   largest wherever it has all the weight. Bound and cost then belong to the true problem, too, and
   the search ends.
3. *Rest.* Options that are in no better solution are ruled out at the latest weights. If few
   remain, HiGHS solves the remaining problem with its loads (`kiwi.solver.loads.exact`).
4. *Splits.* At a balance all similar choices go the same way. To divide them, the nodes of a window
   before a place get the weight of one end of the bisection, and the other nodes the weight of the
   other end. The place is found by bisection, too. Such weights give no bound.

After each problem, the parts in which the new and the best solution differ, without edges between
them, are exchanged one by one if the true cost falls (path relinking; Glover, 1997).
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
"""The largest number of problems without loads that are solved to find the balance; for splits; and
for splits if a balance is given."""

ROUGH_SHARE, ROUGH_ROUNDS = 0.1, 2
"""The share of work and time, and the number of rounds, of each of these problems. Only the search
at the balance gets all."""

FULL_ROUNDS = 20
"""The largest number of rounds at a balance. Further rounds find solutions that are cheaper at its
weights, but rarely by the true cost."""

MOST_EXCHANGED, MOST_EXCHANGED_NODES = 100, 100_000
"""The largest number of parts that are exchanged after each problem, and of parts times nodes."""

_MOST_PASSES, _SMALLER = 3, 0.9
"""The largest number of passes that rule out options, and the share of the options that may remain
after a pass for another to follow."""


_Solver = Callable[[Request], SolveResult]


def solve_with_loads(request: Request, solver: _Solver, unclosed: _Solver) -> SolveResult:
    """Solves a problem with loads by a solver for problems without loads.

    - `unclosed`: the solver without the step that closes the gap, which does not pay at a balance.
    """
    search = _Search(request, solver, unclosed)
    with contextlib.suppress(_NothingFound, _Interrupted):
        search.run()
    return search.result()


class _NothingFound(Exception):
    """Raised if no solution of the problem without loads was found."""


class _Interrupted(Exception):
    """Raised if Ctrl-C ended the last search. Its best solution so far has been taken."""


class _Search:
    """The state of one search: the weights, the best solution and bound, and the results so far."""

    def __init__(self, request: Request, solver: _Solver, unclosed: _Solver) -> None:
        self._request, self._solver, self._unclosed = request, solver, unclosed
        self._problem = request.problem
        self._weights = Weights(request.problem, request.balances or {})
        self._best = request.warm_start
        self._bound = -math.inf
        self._results: list[SolveResult] = []
        self._work, self._is_repeatable = 0, True

    def run(self) -> None:
        """Runs the steps of the module's description until the gap is closed."""
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
        """Searches for the balance. Returns whether the gap is still open."""
        for _ in range(MOST_BALANCED):
            try:
                loads = self._solved(is_rough=True)
            except _NothingFound:  # The rough search was too short.
                return True
            if not self._weights.moved(loads) or self._is_closed:
                break
        return not self._is_closed

    def _solved(self, *, is_rough: bool) -> Loads:
        """Solves the problem at the present weights and takes the result. Returns the loads of its
        solution."""
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
        """Returns the request for the problem without loads at the present weights."""
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
        """Rules out options, and hands the remaining ones to HiGHS."""
        assert self._best is not None
        limit, cost = self._request.work_limit, evaluate(self._problem, self._best).cost
        work_left = math.inf if limit is None else max(0, limit - self._all_work)
        rest = Restricted.nothing(self._problem)
        for _ in range(_MOST_PASSES if is_worth(self._problem, work_left) else 0):
            before = rest.problem.option_count
            at_weights = self._weights.weighted(rest.problem)
            rest, bound, work = without_worse(rest, at_weights, cost)
            self._bound, self._work = max(self._bound, min(bound, cost)), self._work + work
            if self._is_closed or rest.problem.option_count > _SMALLER * before:
                break
        if self._is_closed:
            return
        solution, bound, work, is_late = solve_rest(rest, self._request, self._best, work_left)
        self._work, self._is_repeatable = self._work + work, self._is_repeatable and not is_late
        if solution is not None:
            self._best = _relinked(self._problem, self._best, solution)
        cost = evaluate(self._problem, self._best).cost
        self._bound = max(self._bound, min(bound, cost))

    @property
    def _all_work(self) -> int:
        return self._work + sum(result.work for result in self._results)

    def result(self) -> SolveResult:
        """Returns the best solution of all searches with the best bound."""
        last = self._results[-1]
        if self._best is None:
            return last
        results = self._results
        message = next((result.message for result in results if result.message), "")
        is_repeatable = self._is_repeatable and all(result.deterministic for result in results)
        concluded = conclude(
            self._problem,
            self._best,
            self._bound,
            solver=last.solver,
            iterations=sum(result.iterations for result in results),
            message=message,
            deterministic=is_repeatable,
        )
        return replace(concluded, work=self._all_work, balances=self._weights.balances)


def _translated(request: Request) -> Callable[[Progress], None] | None:
    """Returns a callback that passes progress on with the true cost; None if nobody listens."""
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
    """Returns the cheapest feasible solution among `old`, `found`, and the solutions on a path from
    the better to the other."""
    ends = fitting(problem, [tuple(solution) for solution in (old, found) if solution is not None])
    if len(ends) < 2:
        return ends[0][1] if ends else tuple(found)
    (cost, best), (_, worse) = ends
    most = min(MOST_EXCHANGED, MOST_EXCHANGED_NODES // max(1, len(problem.nodes)))
    for part in _differing(problem, best, worse)[:most]:
        trial = tuple(worse[k] if k in part else option for k, option in enumerate(best))
        priced = evaluate(problem, trial)
        if priced.feasible and priced.cost < cost:
            cost, best = priced.cost, trial
    return best


def _differing(problem: Problem, one: Sequence[int], other: Sequence[int]) -> list[set[int]]:
    """Returns the nodes in which two solutions differ, as parts without edges between them."""
    differing = np.array(one) != np.array(other)
    inner = [
        (edge.tail, edge.head)
        for edge in problem.edges
        if differing[edge.tail] and differing[edge.head]
    ]
    tails, heads = np.array(inner, dtype=np.int64).reshape(-1, 2).T
    count = len(problem.nodes)
    graph = coo_array((np.ones(len(inner)), (tails, heads)), shape=(count, count))
    labels = connected_components(graph, directed=False)[1]
    parts: dict[int, set[int]] = {}
    for node in np.flatnonzero(differing):
        parts.setdefault(labels[node], set()).add(int(node))
    return list(parts.values())
