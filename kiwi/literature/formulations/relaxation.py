"""A lower bound for the full model that needs no stages: time and memory that every schedule needs.

Operators run for the first time at times 0 .. n - 1. The uses of operator i are its first run, the
first runs of its readers, and the end of the step if i is a result. Let u < v be neighbouring uses.
The result of i is in memory at both. Between them, the result is held all the time or i runs again:
the *gap* is *held* or *dropped*. Runs in different gaps are different runs. Hence every schedule
costs and holds at least as much as a solution of this `Problem`:

- Options of i: strategy x set of dropped gaps. The cost is c (1 + number of dropped gaps).
- Memory at the first run of t: parameters, the result and workspace of t, the operands of t, the
  results at the last run, and every i with a held gap that contains t.
- Edges: resharding for each run of the reader.

The relaxation leaves out two costs of a dropped gap: the inputs of the second run must be in memory
or run again, and the second run needs memory. A schedule that attains the optimum of the relaxation
is optimal. Often this is the schedule of the joint formulation, or the relaxation's own.
"""

from itertools import chain, combinations, pairwise

from kiwi.errors import InvalidProblemError
from kiwi.literature.formulations.residencies import Residency, residency_problem
from kiwi.literature.formulations.sharded_graph import ShardedGraph, Solution, price
from kiwi.solver.solve import solve

MOST_GAPS = 4
"""The largest number of gaps of one value that may hold memory; the longest are taken.

Further gaps cost neither memory nor a run, so that the relaxation is still a bound.
"""


def solve_relaxation(
    graph: ShardedGraph, limit_bytes: int, time_limit_seconds: float, seed: int
) -> tuple[float, Solution | None]:
    """Returns a lower bound on the seconds of every schedule, and a solution or None.

    The bound is +inf if no schedule exists. The solution is the relaxation's own if it is also a
    solution of the full model within `limit_bytes`. HiGHS solves the relaxation, because it closes
    the gap of such small problems faster than Lagrangian multipliers.
    """
    residencies = [tuple(_residencies(graph, i)) for i in range(len(graph.operators))]
    built = residency_problem(graph, residencies, limit_bytes)
    result = solve(
        built.problem, solver="highs", time_limit_seconds=time_limit_seconds, seed=seed, gap=1e-7
    )
    if result.solution is None:
        return result.bound, None
    solution = built.read_answer(result.solution)
    try:  # the relaxation does not check that its schedule can be executed
        fits = price(graph, *solution).peak_bytes <= limit_bytes
    except InvalidProblemError:
        fits = False
    return result.bound, solution if fits else None


def _residencies(graph: ShardedGraph, i: int) -> list[Residency]:
    """Returns a residency for each set of dropped gaps: held at every use and in all other gaps."""
    end = len(graph.operators)
    if graph.operators[i].is_parameter:
        return [Residency(((0, end),))]
    uses = sorted({i, *graph.readers[i], *((end - 1,) if i in graph.results else ())})
    at_uses = [(use, use + 1) for use in uses]
    gaps = [(u + 1, v) for u, v in pairwise(uses) if v > u + 1]
    if not graph.operators[i].may_recompute:
        return [Residency((*at_uses, *gaps), (), (i,))]
    gaps = sorted(sorted(gaps, key=lambda gap: gap[0] - gap[1])[:MOST_GAPS])
    subsets = chain.from_iterable(combinations(gaps, n) for n in range(len(gaps) + 1))
    return [
        Residency(
            (*at_uses, *(gap for gap in gaps if gap not in dropped)),
            tuple(behind for _, behind in dropped),
            (i,),
        )
        for dropped in subsets
    ]
