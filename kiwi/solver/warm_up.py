"""Compiles the inner loops, or loads what was compiled before, while no clock is running.

Numba compiles on first use: about half a minute on a new machine, half a second to load what it
keeps in `__pycache__` afterwards. That is no part of a search, and would end a short one.
"""

import functools
import math

import numpy as np

from kiwi.solver.engine import Engine
from kiwi.solver.least_peak import least_peak
from kiwi.solver.network import build_network
from kiwi.solver.order import time_order
from kiwi.solver.presolve import presolve
from kiwi.solver.problem import Edge, Interval, Node, Problem

_NODES, _ROUNDS = 5, 3


@functools.cache
def warm_up() -> None:
    """Runs every inner loop of the solvers `auto` and `lagrangian` once; then does nothing more."""
    problem = _example()
    net = build_network(problem, time_order(problem))
    presolve(net)
    engine = Engine(net, seed=0, gap=0.0, deadline=math.inf)
    engine.run(_ROUNDS, _ROUNDS, force=True)
    engine.dual.reduced_costs()
    least_peak(net._replace(limit_bytes=0), 0, math.inf, None)


def _example() -> Problem:
    """All pairs of five nodes avoid equal options of three: the relaxation leaves a gap, so that no
    part of the search ends early. There is memory for all but two large results. Another node
    must agree with the first one, and one more has few partners, so that presolve merges nodes.
    """
    sizes = [(3, 2, 1)] * _NODES + [(0, 0, 0), (1, 0, 1)]
    nodes = [
        Node(f"n{i}", np.array([0.0, 0.1, 0.2]), tuple((Interval(i, len(sizes), b),) for b in held))
        for i, held in enumerate(sizes)
    ]
    pairs = [(i, j) for i in range(_NODES) for j in range(i + 1, _NODES)]
    edges = [Edge(i, j, np.eye(3) + 0.01 * np.arange(9).reshape(3, 3)) for i, j in pairs]
    agree = np.where(np.eye(3) > 0, 0.0, np.inf)
    few = np.where(np.eye(3) > 0, np.inf, 0.1 * np.arange(9).reshape(3, 3))
    edges += [Edge(0, _NODES, agree), Edge(1, _NODES + 1, few), Edge(2, _NODES + 1, few)]
    return Problem(tuple(nodes), tuple(edges), limit_bytes=3 * _NODES - 4, horizon=len(sizes))
