"""A bound for the full model that needs no stages: what every schedule pays and holds.

Let operators run for the first time at times 0 .. n - 1, and let u < v be neighbouring uses of i:
its first run, the first runs of its readers, and the end of the step for a result. At both i is
there. So in between it is held all the time, or it runs again: a *gap* is *held* or *dropped*.
Runs in different gaps are different runs. Hence every schedule costs and holds at least as much as
a solution of this `Problem`:

- options of i: strategy x dropped gaps. Cost: c (1 + number of dropped gaps).
- memory at the first run of t: parameters, t with its workspace, what t reads, results at the
  last one, and all i of which t lies in a held gap.
- edges: resharding for each run of the reader.

It leaves out what else a dropped gap costs: that the inputs of the second run are there, or run
again, and the memory of that run. A schedule that attains its optimum is optimal: often the joint
one, or the relaxation's own.
"""

from itertools import chain, combinations, pairwise

from kiwi.errors import InvalidProblemError
from kiwi.literature.formulations.residencies import Residency, residency_problem
from kiwi.literature.formulations.sharded_graph import ShardedGraph, Solution, price
from kiwi.solver.solve import solve

MOST_GAPS = 4
"""Gaps of a value that may hold memory: the longest. Others hold none, which is a bound, too."""


def solve_relaxation(
    graph: ShardedGraph, limit_bytes: int, time_limit_seconds: float, seed: int
) -> tuple[float, Solution | None]:
    """A lower bound on the seconds of every schedule, +inf if there is none, and a solution.

    The solution is the relaxation's own, if it is one of the full model, too. HiGHS closes gaps of
    such small problems faster than multipliers do.
    """
    residencies = [tuple(_residencies(graph, i)) for i in range(len(graph.operators))]
    built = residency_problem(graph, residencies, limit_bytes)
    result = solve(
        built.problem, solver="highs", time_limit_seconds=time_limit_seconds, seed=seed, gap=1e-7
    )
    if result.solution is None:
        return result.bound, None
    found = built.read_answer(result.solution)
    try:  # the relaxation does not ask whether it can be executed
        fits = price(graph, *found).peak_bytes <= limit_bytes
    except InvalidProblemError:
        fits = False
    return result.bound, found if fits else None


def _residencies(graph: ShardedGraph, i: int) -> list[Residency]:
    """One for each set of dropped gaps: held at every use, and in the other gaps."""
    end = len(graph.operators)
    if graph.operators[i].is_parameter:
        return [Residency(((0, end),))]
    uses = sorted({i, *graph.readers[i], *((end - 1,) if i in graph.results else ())})
    there = [(use, use + 1) for use in uses]
    gaps = [(u + 1, v) for u, v in pairwise(uses) if v > u + 1]
    if not graph.operators[i].may_recompute:
        return [Residency((*there, *gaps), (), (i,))]
    gaps = sorted(sorted(gaps, key=lambda g: g[0] - g[1])[:MOST_GAPS])
    subsets = chain.from_iterable(combinations(gaps, n) for n in range(len(gaps) + 1))
    return [
        Residency(
            (*there, *(gap for gap in gaps if gap not in dropped)),
            tuple(behind for _, behind in dropped),
            (i,),
        )
        for dropped in subsets
    ]
