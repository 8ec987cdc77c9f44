"""Compiles the numba code of the planners ahead of a search.

The first use on a machine takes about ten seconds, later ones load from numba's cache. Time
limits are meant for searching, so that `solve` calls this before its clock starts.
"""

import functools
import time

from kiwi.solver.remat.chain import make_chain
from kiwi.solver.remat.fastsa import AnnealingSettings, run_annealing
from kiwi.solver.remat.graph import single_output_graph
from kiwi.solver.remat.linearise import linearise
from kiwi.solver.remat.result import Task
from kiwi.solver.remat.rotor import solve_chain
from kiwi.solver.schedule import Schedule

ANNEALERS = frozenset({"fastsa", "hiremate", "order-only", "remat"})
CHAIN_PLANNERS = frozenset({"hiremate", "rockmate", "rotor"})


def compile_for(planner: str) -> None:
    """Makes the compiled code of `planner` ready, if it has any."""
    if planner in ANNEALERS:
        _compile_annealing()
    if planner in CHAIN_PLANNERS:
        _compile_chains()


def _smallest_task() -> Task:
    graph = single_output_graph([1.0, 1.0], [1, 1], [(0, 1)], backward_of=((0, 1),))
    return Task(graph, 2, time.monotonic() + 3600, 1.0, 0)


@functools.cache
def _compile_annealing() -> None:
    task = _smallest_task()
    run_annealing(task, task.graph, Schedule(task.graph.order), AnnealingSettings(1))


@functools.cache
def _compile_chains() -> None:
    task = _smallest_task()
    solve_chain(task, make_chain(task.graph, linearise(task.graph)))
