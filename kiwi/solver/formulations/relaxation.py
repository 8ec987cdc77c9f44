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
again, and the memory of that run. It has a node per operator where the model has stages of them, so
that its optimum is found at once. A schedule that attains it is optimal: often the joint one, or
the relaxation's own.
"""

from dataclasses import dataclass
from itertools import chain, combinations, pairwise

import numpy as np

from kiwi.errors import InvalidProblemError
from kiwi.solver.formulations.answer import Solution, price, repeated_before
from kiwi.solver.formulations.joint import tied_edge
from kiwi.solver.formulations.sharded_graph import Read, ShardedGraph
from kiwi.solver.problem import Edge, Interval, Node, Problem
from kiwi.solver.solve import solve

MOST_GAPS = 4
"""Gaps of a value that may hold memory: the longest. Others hold none, which is a bound, too."""

Gap = tuple[int, int]
"""Half-open: the times between two uses."""


@dataclass(frozen=True, eq=False)
class Relaxation:
    """The `Problem`, and what its options mean: strategies x sets of dropped gaps."""

    graph: ShardedGraph
    dropped: tuple[tuple[tuple[Gap, ...], ...], ...]
    problem: Problem

    def read_answer(self, solution: tuple[int, ...]) -> Solution:
        """The schedule in which what is dropped runs again just before it is used.

        It may not be executable, or need more than the limit: the relaxation does not ask.
        """
        pairs = [divmod(o, len(d)) for o, d in zip(solution, self.dropped, strict=True)]
        repeats = ((i, end) for i, (_, k) in enumerate(pairs) for _, end in self.dropped[i][k])
        return repeated_before(self.graph, repeats), tuple(s for s, _ in pairs)


@dataclass(frozen=True)
class Relaxed:
    """`bound_seconds`: no schedule takes less, +inf if there is none; `found`: the schedule and
    strategies of the relaxation where they are a solution of the full model, too."""

    bound_seconds: float
    found: Solution | None


def solve_relaxation(
    graph: ShardedGraph, limit_bytes: int, time_limit_seconds: float, seed: int
) -> Relaxed:
    """Solves it by HiGHS, which closes gaps of such small problems faster than multipliers do."""
    built = build_relaxation(graph, limit_bytes)
    result = solve(
        built.problem,
        solver="highs",
        time_limit_seconds=time_limit_seconds,
        seed=seed,
        gap=1e-7,
    )
    if result.solution is None:
        return Relaxed(result.bound, None)
    found = built.read_answer(result.solution)
    try:
        fits = price(graph, *found).peak_bytes <= limit_bytes
    except InvalidProblemError:
        fits = False
    return Relaxed(result.bound, found if fits else None)


def build_relaxation(graph: ShardedGraph, limit_bytes: int) -> Relaxation:
    """The relaxation for a limit in bytes."""
    gaps = [_gaps(graph, i) for i in range(len(graph.operators))]
    dropped = tuple(tuple(_subsets(graph, i, gaps[i])) for i in range(len(gaps)))
    nodes = tuple(_node(graph, i, gaps[i], dropped[i]) for i in range(len(gaps)))
    runs = [np.array([1.0 + len(d) for d in mine]) for mine in dropped]
    edges = [_read_edge(read, runs) for read in graph.reads]
    edges += [tied_edge(tie, len(runs[tie.first]), len(runs[tie.second])) for tie in graph.ties]
    return Relaxation(graph, dropped, Problem(nodes, tuple(edges), limit_bytes, len(nodes)))


def _uses(graph: ShardedGraph, i: int) -> list[int]:
    """Times at which i is there in every schedule."""
    end = [len(graph.operators) - 1] if i in graph.results else []
    return sorted({i, *graph.readers[i], *end})


def _gaps(graph: ShardedGraph, i: int) -> tuple[Gap, ...]:
    if graph.operators[i].is_parameter:
        return ()
    uses = _uses(graph, i)
    found = [(u + 1, v) for u, v in pairwise(uses) if v > u + 1]
    if not graph.operators[i].may_recompute:
        return tuple(found)
    return tuple(sorted(sorted(found, key=lambda g: g[0] - g[1])[:MOST_GAPS]))


def _subsets(graph: ShardedGraph, i: int, gaps: tuple[Gap, ...]) -> list[tuple[Gap, ...]]:
    if not graph.operators[i].may_recompute:
        return [()]
    return list(chain.from_iterable(combinations(gaps, n) for n in range(len(gaps) + 1)))


def _node(
    graph: ShardedGraph, i: int, gaps: tuple[Gap, ...], dropped: tuple[tuple[Gap, ...], ...]
) -> Node:
    o = graph.operators[i]
    once = np.array(o.once_seconds or (0.0,) * o.count)
    costs = np.outer(o.seconds, [1.0 + len(d) for d in dropped]) + once[:, None]
    usage = []
    for result, workspace in zip(o.result_bytes, o.workspace_bytes, strict=True):
        work = (Interval(i, i + 1, workspace),) if workspace else ()
        for left_out in dropped:
            if o.is_parameter:
                usage.append((Interval(0, len(graph.operators), result),))
                continue
            times = [(u, u + 1) for u in _uses(graph, i)]
            times += [gap for gap in gaps if gap not in left_out]
            usage.append((*(Interval(a, b, result) for a, b in times), *work))
    return Node(o.name, costs.ravel(), tuple(usage))


def _read_edge(read: Read, runs: list[np.ndarray]) -> Edge:
    """Resharding for each run of the reader."""
    tails, heads = runs[read.producer], runs[read.reader]
    return Edge(read.producer, read.reader, np.kron(read.seconds, np.tile(heads, (len(tails), 1))))
