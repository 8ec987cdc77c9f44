"""Searches one instance, and finds the best solution of all methods with ten times the work.

Work is counted as the search counts it. The reference is the best of these solutions: searches with
other seeds, every second one started from the best solution so far, until together they had ten
times the work; toulbar2 on the priced networks, and HiGHS from the best solution, each for as many
seconds as the searches took, at most 5. A search that ends within 0.1 % of its bound is its own
reference. If ten times the work is too much, fewer searches are run, and `Reference.times` holds
their work. (Records from before restarts were counted in rounds of searches without restarts.)
"""

import itertools
import math
import time
from dataclasses import dataclass, replace

from benchmarks.solver.generated.cases import Case, Instance, fingerprint
from kiwi.solver import Problem, Progress, SolveResult, solve
from kiwi.solver.result import OnProgress

_MORE = 10
_MOST_WORK = 10**11
"""The number of options and table cells after which no other search starts. Heavy instances get
less than ten times the work, and their rows say how much."""
_CLOSED = 1e-3
"""No better solution is looked for within this gap."""
_MOST_SECONDS = 5.0
"""The time limit of each method that does not count its work."""
_NO_TIME_LIMIT_SECONDS = 1e6
_ROUNDS_BY_HAND = 3


@dataclass(frozen=True)
class Reference:
    """The best known solution of an instance, and the method that found it.

    - `by_hand`: the least cost with arguments sharded by hand; None if no such solution was found.
    - `times`: the work of the other searches, as a multiple of the first search's work; 0 if the
      first search was closed.
    """

    objective: float | None
    solver: str
    bound: float
    by_hand: float | None
    times: float


@dataclass(frozen=True)
class Row:
    """One searched instance.

    - `trace`: after each round and at the end: work (the number of options and table cells
      visited), cost (or None) and bound.
    - `work_seconds`: processor seconds.
    """

    case: Case
    fingerprint: str
    limit_bytes: int
    nodes: int
    options: int
    objective: float | None
    bound: float
    rounds: int
    trace: tuple[tuple[int, float | None, float], ...]
    work_seconds: float
    reference: Reference

    @property
    def best(self) -> float | None:
        """The least known cost."""
        known = [c for c in (self.objective, self.reference.objective) if c is not None]
        return min(known, default=None)

    @property
    def excess(self) -> float:
        """The cost relative to the best one, minus 1; infinite if only others found a solution."""
        if self.best is None:
            return 0.0
        return math.inf if self.objective is None else self.objective / self.best - 1.0

    @property
    def gap(self) -> float | None:
        """The distance of the bound from the cost, relative to the cost."""
        return None if self.objective is None else max(0.0, 1.0 - self.bound / self.objective)

    @property
    def is_slower_than_by_hand(self) -> bool:
        """Whether a hand-written sharding costs less."""
        by_hand = self.reference.by_hand
        return by_hand is not None and (self.objective is None or self.objective > by_hand)


def search(problem: Problem, on_progress: OnProgress | None = None) -> SolveResult:
    """Runs the search as users do: it ends by its own rules."""
    return solve(problem, time_limit_seconds=_NO_TIME_LIMIT_SECONDS, on_progress=on_progress)


def measure(
    made: Case, instance: Instance, known: Reference | None = None, *, more: bool = False
) -> Row:
    """Searches one instance.

    - `known`: the recorded reference, if there is one.
    - `more`: whether to look for a better reference too.
    """
    started, trace = time.process_time(), []

    def note(state: Progress) -> None:
        trace.append((state.work, state.objective, state.bound))

    result = search(instance.problem, note)
    work_seconds = time.process_time() - started
    reference = known
    if known is None or more:
        reference = _better(known, _reference(instance, result))
    assert reference is not None
    assert instance.problem.limit_bytes is not None
    return Row(
        case=made,
        fingerprint=fingerprint(instance.problem),
        limit_bytes=instance.problem.limit_bytes,
        nodes=len(instance.problem.nodes),
        options=instance.problem.option_count,
        objective=result.objective,
        bound=result.bound,
        rounds=result.iterations,
        trace=tuple(trace),
        work_seconds=work_seconds,
        reference=reference,
    )


def _reference(instance: Instance, first: SolveResult) -> Reference:
    problem, started = instance.problem, time.monotonic()
    results = [first]
    most_work, work = min(_MORE * first.work, _MOST_WORK), 0
    for seed in itertools.count(1):
        if work >= most_work or _is_closed(results):
            break
        best = min(results, key=_cost)
        result = solve(
            problem,
            seed=seed,
            gap=_CLOSED,
            time_limit_seconds=_NO_TIME_LIMIT_SECONDS,
            work_limit=_MORE * first.work - work,
            warm_start=best.solution if seed % 2 == 0 else None,
        )
        results.append(result)
        work += max(1, result.work)
    seconds = min(time.monotonic() - started, _MOST_SECONDS)
    if not _is_closed(results):
        results.append(_other("toulbar2", problem, seconds, None))
        results.append(_other("highs", problem, seconds, min(results, key=_cost)))
    by_hand = min(map(_cost, map(_laid_out, instance.starts.values())), default=math.inf)
    best = min(results, key=_cost)
    return Reference(
        objective=best.objective,
        solver=best.solver,
        bound=max(candidate.bound for candidate in results),
        by_hand=by_hand if math.isfinite(by_hand) else None,
        times=work / max(1, first.work),
    )


def _better(known: Reference | None, found: Reference) -> Reference:
    """Returns the reference with the smaller cost and the larger bound of both."""
    if known is None or known.objective is None:
        return found
    if found.objective is None or known.objective < found.objective:
        found = replace(found, objective=known.objective, solver=known.solver)
    return replace(found, bound=max(found.bound, known.bound))


def _laid_out(start: Problem) -> SolveResult:
    """Returns the result of a short search for the choices that a hand-written sharding leaves
    open."""
    return solve(
        start,
        solver="lagrangian",
        round_limit=_ROUNDS_BY_HAND,
        time_limit_seconds=_NO_TIME_LIMIT_SECONDS,
    )


def _other(solver: str, problem: Problem, seconds: float, start: SolveResult | None) -> SolveResult:
    solution = None if start is None else start.solution
    return solve(
        problem, solver=solver, gap=_CLOSED, time_limit_seconds=seconds, warm_start=solution
    )


def _is_closed(found: list[SolveResult]) -> bool:
    best, bound = min(map(_cost, found)), max(candidate.bound for candidate in found)
    return math.isfinite(best) and best - bound <= _CLOSED * abs(best)


def _cost(result: SolveResult) -> float:
    return math.inf if result.objective is None else result.objective
