"""Compiles the inner loops before the time limit of a search begins, or loads them from numba's
cache.

numba compiles a loop on its first call, and stores the result in `__pycache__`. Within a search,
this would use up a short time limit. If nothing is stored yet, two processes compile, if possible
while the step is still traced.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kiwi.solver.compiled import compile_ahead, wait_for
from kiwi.solver.engine import Engine
from kiwi.solver.least_peak import least_peak
from kiwi.solver.network import Network, build_network
from kiwi.solver.order import time_order
from kiwi.solver.presolve.pipeline import presolve
from kiwi.solver.presolve.times import drop_times
from kiwi.solver.problem import Edge, Interval, Node, Problem
from kiwi.solver.search import seed_random

_NODES, _OPTIONS, _ROUNDS = 5, 3, 3
_SEARCH, _PRESOLVE = (f"{__name__}:{name}" for name in ("_warm_up_search", "_warm_up_presolve"))


@functools.cache
def warm_up() -> None:
    """Runs every inner loop of the solvers `auto` and `lagrangian` once. Later calls do nothing."""
    compile_loops()
    wait_for(_SEARCH, _PRESOLVE)
    _warm_up_search()
    _warm_up_presolve()


def compile_loops(after_search: Sequence[str] = (), after_presolve: Sequence[str] = ()) -> None:
    """Starts the processes that compile, once, if numba's cache is empty. `warm_up` waits for them.

    - `after_search`, `after_presolve`: functions, each "module:function", that the two processes
      call after the loops of the search and of presolving.
    """
    if not _is_kept():
        compile_ahead((_SEARCH, *after_search), (_PRESOLVE, *after_presolve))


def _warm_up_presolve() -> None:
    problem = _example()
    presolve(drop_times(build_network(problem, time_order(problem))))


def _warm_up_search() -> None:
    net = _example_network()
    engine = Engine(net, seed=0, gap=0.0, deadline=math.inf)
    engine.run(_ROUNDS, _ROUNDS, force=True)
    engine.primal.force(engine.dual.best_prices, _ROUNDS)  # If rounds settle it, none forces.
    engine.dual.reduced_costs()
    least_peak(replace(net, limit_bytes=0), 0, math.inf, None)


@functools.cache
def _is_kept() -> bool:
    """Returns whether numba's cache on disk has the first compiled loop."""
    seed_random(0)
    return not seed_random.stats.cache_misses


def _example_network() -> Network:
    """Returns a network of five nodes with three options each, in which all pairs of nodes avoid
    equal options.

    The relaxation leaves a gap, so that no part of the search ends early. The memory limit excludes
    that all nodes take their largest option. The arrays are written out, because the other process
    compiles the loops that build networks.
    """
    ends = np.stack(np.triu_indices(_NODES, 1), axis=1)
    edges, options = len(ends), _NODES * _OPTIONS
    return Network(
        option_start=np.arange(0, options + 1, _OPTIONS),
        cost=np.tile((0.0, 0.1, 0.2), _NODES),
        use_start=np.arange(options + 1),
        use_begin=np.repeat(np.arange(_NODES), _OPTIONS),
        use_end=np.full(options, _NODES),
        use_bytes=np.tile((3, 2, 1), _NODES),
        times=np.arange(_NODES),
        limit_bytes=3 * _NODES - 4,
        end_node=ends.ravel(),
        line_start=np.arange(0, 2 * edges * _OPTIONS + 1, _OPTIONS),
        line=np.tile(np.arange(_OPTIONS), 2 * edges),
        line_count=np.full(2 * edges, _OPTIONS),
        step=np.tile((_OPTIONS, 1), edges),
        table_start=np.zeros(edges, dtype=np.int64),
        table=_avoiding().ravel(),
        near_start=np.arange(0, 2 * edges + 1, _NODES - 1),
        near_end=np.lexsort((ends[:, ::-1].ravel(), ends.ravel())),
    )


def _avoiding() -> np.ndarray:
    return np.eye(_OPTIONS) + 0.01 * np.arange(_OPTIONS**2).reshape(_OPTIONS, _OPTIONS)


def _example() -> Problem:
    """Returns the example with two more nodes, which presolve merges: one must agree with the first
    node, and few pairs are allowed for the other."""
    sizes = [(3, 2, 1)] * _NODES + [(0, 0, 0), (1, 0, 1)]
    nodes = [
        Node(
            f"n{i}",
            np.array([0.0, 0.1, 0.2]),
            tuple((Interval(i, len(sizes), held_bytes),) for held_bytes in held),
        )
        for i, held in enumerate(sizes)
    ]
    pairs = [(i, j) for i in range(_NODES) for j in range(i + 1, _NODES)]
    edges = [Edge(i, j, _avoiding()) for i, j in pairs]
    agree = np.where(np.eye(3) > 0, 0.0, np.inf)
    few = np.where(np.eye(3) > 0, np.inf, 0.1 * np.arange(9).reshape(3, 3))
    edges += [Edge(0, _NODES, agree), Edge(1, _NODES + 1, few), Edge(2, _NODES + 1, few)]
    return Problem(tuple(nodes), tuple(edges), limit_bytes=3 * _NODES - 4, horizon=len(sizes))
