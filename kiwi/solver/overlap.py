"""Channels that work at once: problems with loads, by problems without.

Of the loads of one window only the largest channel's counts. With weights w >= 0 of the channels
that sum to 1 in every window, the sum of w times load is at most that, so that the problem in which
each load counts w times bounds the true one from below (Lagrangian relaxation of t >= load for the
time t of a window; Geoffrion, *Lagrangean relaxation for integer programming*, 1974). Its solutions
are priced by the true cost.

1. All weight is on the first channel, computation. Most often it is the largest wherever it was
   given all: then bound and cost are those of the problem without loads, and the search ends.
2. Where another channel is larger, weight moves there, by bisection in each window.
3. At a balance all choices of one kind go one way, or all the other way. So the part of a window's
   nodes up to a place weighs as the one end of the bisection and the rest as the other, and the
   place is found by bisection, too. Such weights bound nothing.
   From weights found for a problem like this one (`Request.balances`) it is a step or two.
4. Where two solutions differ in parts without edges between them, these are exchanged one by one,
   as far as the true cost falls (path relinking; Glover, 1997).
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from kiwi.solver.evaluate import evaluate, fitting
from kiwi.solver.problem import Edge, Load, Node, Problem
from kiwi.solver.request import Request
from kiwi.solver.result import Balances, Progress, SolveResult, conclude, is_closed

MOST_BALANCED, MOST_SPLIT = 4, 4
"""How many problems without loads are solved at most to find the balance, and behind that."""

MOST_GIVEN = 2
"""How many where a balance is given."""

LATER_SHARE = 0.1
"""The part of the limits of work and time that each of them gets after the first."""

LATER_ROUNDS = 2
"""The rounds of each of them: they start from a solution."""

MOST_EXCHANGED = 100
"""How many parts are exchanged at most after each of them."""

_Key = tuple[int, int]


def solve_with_loads(request: Request, solver: Callable[[Request], SolveResult]) -> SolveResult:
    """The result of a solver for problems without loads, for one with loads."""
    problem, bound = request.problem, -math.inf
    weights, best = _Weights(problem, request.balances or {}), request.warm_start
    results: list[SolveResult] = []
    balances: Balances = {}
    for number in range(MOST_BALANCED + MOST_SPLIT if request.balances is None else MOST_GIVEN):
        result = solver(_asked(request, weights, best, is_first=number == 0))
        results.append(result)
        if result.solution is None:
            if best is None:
                return result
            break
        if not weights.is_split and result.bound > bound:
            bound, balances = result.bound, weights.balances
        best = _relinked(problem, best, result.solution)
        if is_closed(evaluate(problem, best).cost, bound, request.gap):
            break
        loads = evaluate(problem, result.solution).loads
        if not (weights.moved(loads) if number + 1 < MOST_BALANCED else weights.split(loads)):
            break
    last = results[-1]
    return replace(
        conclude(
            problem,
            best,
            bound,
            solver=last.solver,
            iterations=sum(each.iterations for each in results),
            message=results[0].message,
            deterministic=all(each.deterministic for each in results),
        ),
        work=sum(each.work for each in results),
        balances=balances,
    )


def _asked(
    request: Request, weights: "_Weights", best: Sequence[int] | None, *, is_first: bool
) -> Request:
    """The request for the problem without loads."""
    share, work = 1.0 if is_first else LATER_SHARE, request.work_limit
    return replace(
        request,
        problem=weights.weighted(),
        warm_start=None if best is None else tuple(best),
        time_limit_seconds=share * request.time_limit_seconds,
        work_limit=None if work is None else int(share * work),
        round_limit=request.round_limit if is_first else LATER_ROUNDS,
        on_progress=_translated(request),
        started=time.monotonic(),
    )


def _translated(request: Request) -> Callable[[Progress], None] | None:
    """Tells of progress by the true cost."""
    tell = request.on_progress
    if tell is None:
        return None

    def translated(progress: Progress) -> None:
        if progress.solution is not None:
            cost = evaluate(request.problem, progress.solution).cost
            progress = replace(progress, objective=cost, bound=min(progress.bound, cost))
        tell(progress)

    return translated


def _relinked(
    problem: Problem, known: Sequence[int] | None, found: Sequence[int]
) -> tuple[int, ...]:
    """The cheapest feasible solution known on a way from either to the other."""
    ends = fitting(problem, [tuple(each) for each in (known, found) if each is not None])
    if len(ends) < 2:
        return ends[0][1] if ends else tuple(found)
    (cost, best), (_, other) = ends
    for part in _differing(problem, best, other)[:MOST_EXCHANGED]:
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


@dataclass
class _Balance:
    """Two channels of a window, the first one and another.

    - `low`, `high`: weights of the other one, at which it is the larger and the smaller channel.
    - `first`, `last`: the place up to which nodes weigh as at `high`: it is between these.
    """

    channel: int
    low: float = 0.0
    high: float = 1.0
    first: float = 0.0
    last: float = 1.0

    @property
    def share(self) -> float:
        """The weight to try."""
        return (self.low + self.high) / 2

    @property
    def place(self) -> float:
        """The place to try."""
        return (self.first + self.last) / 2


class _Weights:
    """How much each channel counts in each window: at the start the first one alone, or as it did
    in another problem."""

    def __init__(self, problem: Problem, given: Balances) -> None:
        self.is_split = False
        self._problem = problem
        self._balances = {window: _Balance(*balance) for window, balance in given.items()}
        parts = [*problem.nodes, *problem.edges]
        nodes = [*range(len(problem.nodes)), *(edge.head for edge in problem.edges)]
        self._places: dict[int, list[int]] = {}
        for part, node in zip(parts, nodes, strict=True):
            for window in {load.window for load in part.loads}:
                self._places.setdefault(window, []).append(node)
        self._places = {w: sorted(set(own)) for w, own in self._places.items()}

    @property
    def balances(self) -> Balances:
        """What they come from."""
        return {w: (own.channel, own.low, own.high) for w, own in self._balances.items()}

    def moved(self, loads: Mapping[_Key, float]) -> bool:
        """Moves weight to the channels that are larger; whether any moved."""
        is_moved = False
        for window, other, is_larger in _compared(loads):
            balance = self._balances.get(window)
            if balance is None:
                if is_larger:
                    self._balances[window] = _Balance(other)
                    is_moved = True
                continue
            balance.low, balance.high = (
                (balance.share, balance.high) if is_larger else (balance.low, balance.share)
            )
            is_moved = True
        return is_moved

    def split(self, loads: Mapping[_Key, float]) -> bool:
        """Moves the places at which weights change; whether there are any."""
        for window, _, is_larger in _compared(loads) if self.is_split else ():
            balance = self._balances.get(window)
            if balance is not None:
                balance.first, balance.last = (
                    (balance.place, balance.last) if is_larger else (balance.first, balance.place)
                )
        self.is_split = True
        return bool(self._balances)

    def weighted(self) -> Problem:
        """The problem in which each load counts as its weight says."""
        known: dict[object, np.ndarray] = {}

        def costs_of(part: Node | Edge, node: int) -> np.ndarray:
            counted = [(load, self._weight(load, node) - 1) for load in part.loads]
            key = (id(part.costs), tuple((id(load.amounts), w) for load, w in counted))
            if key not in known:
                known[key] = part.costs + sum(w * load.amounts for load, w in counted)
            return known[key]

        nodes = tuple(
            replace(n, costs=costs_of(n, k), parts={}, loads=()) if n.loads else n
            for k, n in enumerate(self._problem.nodes)
        )
        edges = tuple(
            replace(e, costs=costs_of(e, e.head), parts={}, loads=()) if e.loads else e
            for e in self._problem.edges
        )
        return replace(self._problem, nodes=nodes, edges=edges)

    def _weight(self, load: Load, node: int) -> float:
        balance = self._balances.get(load.window)
        if balance is None:
            return 1.0 if load.channel == 0 else 0.0
        share = balance.share
        if self.is_split:
            own = self._places[load.window]
            is_before = bisect_left(own, node) < balance.place * len(own)
            share = balance.high if is_before else balance.low
        return {0: 1.0 - share, balance.channel: share}.get(load.channel, 0.0)


def _compared(loads: Mapping[_Key, float]) -> Iterator[tuple[int, int, bool]]:
    """For each window with several channels the largest beside the first, and whether it is larger
    than that."""
    for window in sorted({window for window, _ in loads}):
        own = {c: amount for (w, c), amount in loads.items() if w == window and c}
        if own:
            other = max(own, key=lambda c: (own[c], -c))
            yield window, other, own[other] > loads.get((window, 0), 0.0)
