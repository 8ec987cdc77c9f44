"""Compiles the inner loops, or loads what was compiled before, while no clock is running.

Numba compiles on first use: half a minute of work on a new machine, half a second to load what it
keeps in `__pycache__` afterwards. That is no part of a search, and would end a short one. Where
nothing is kept yet, two processes share the work, if they can while the step is still traced.
"""

import functools
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kiwi.solver.engine import Engine
from kiwi.solver.least_peak import least_peak
from kiwi.solver.network import Network, build_network
from kiwi.solver.order import time_order
from kiwi.solver.presolve.pipeline import presolve
from kiwi.solver.presolve.times import drop_times
from kiwi.solver.problem import Edge, Interval, Node, Problem
from kiwi.solver.search import seed_random

_NODES, _ROUNDS = 5, 3
_SEARCH, _PRESOLVE = (f"{__name__}:{name}" for name in ("_warm_up_search", "_warm_up_presolve"))
_CALL = """
import importlib, sys
for called in sys.argv[1:]:
    module, name = called.split(":")
    getattr(importlib.import_module(module), name)()
"""


@functools.cache
def warm_up() -> None:
    """Runs every inner loop of the solvers `auto` and `lagrangian` once; then does nothing more."""
    processes = compile_ahead()
    try:
        for process in processes:
            process.wait()
    except BaseException:
        for process in processes:
            process.kill()
        raise
    # Should a process have failed, this one compiles.
    _warm_up_search()
    _warm_up_presolve()


def compile_ahead(others: Sequence[str] = ()) -> tuple[subprocess.Popen[bytes], ...]:
    """Where nothing is kept, starts the processes that compile, once; `warm_up` waits for them.

    - `others`: functions without arguments that one of them calls as well, as "module:function".
    """
    if not _started and not _is_kept():
        _started.extend((_process(_SEARCH), _process(_PRESOLVE, *others)))
    return tuple(_started)


_started: list[subprocess.Popen[bytes]] = []


def _process(*functions: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _CALL, *functions]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, stdout=nowhere, stderr=nowhere)


def _warm_up_presolve() -> None:
    presolve(_network())


def _warm_up_search() -> None:
    net = _network()
    engine = Engine(net, seed=0, gap=0.0, deadline=math.inf)
    engine.run(_ROUNDS, _ROUNDS, force=True)
    engine.dual.reduced_costs()
    least_peak(replace(net, limit_bytes=0), 0, math.inf, None)


@functools.cache
def _is_kept() -> bool:
    """Whether numba found the first of the loops compiled."""
    seed_random(0)
    return not seed_random.stats.cache_misses


@functools.cache
def _network() -> Network:
    problem = _example()
    return drop_times(build_network(problem, time_order(problem)))


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
