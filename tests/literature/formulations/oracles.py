"""The definition of each formulation by enumeration: the oracles that the formulations are tested
against.

The oracles share only the referee with the formulations: a schedule is feasible for the full
definition if its simulated peak is within the limit.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from kiwi.literature.formulations.joint import build_joint
from kiwi.literature.formulations.sharded_graph import ShardedGraph, price
from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.simulate import live_ranges, violations
from kiwi.solver import solve
from kiwi.solver.schedule import Schedule


def full_seconds(graph: ShardedGraph, limit_bytes: int) -> float:
    """Returns the least time over all staged schedules and strategies; infinite if none fits."""
    strategies = list(itertools.product(*(range(o.count) for o in graph.operators)))
    plain = [graph.at(each) for each in strategies]
    seconds = np.array([[o.compute_seconds for o in each.operators] for each in plain])
    work = np.array([[o.temporary_bytes for o in each.operators] for each in plain])
    size = np.array([[v.size_bytes for v in each.values] for each in plain])
    once = np.array([graph.once_seconds(each) for each in strategies])
    best, found = math.inf, None
    for steps in _staged_schedules(graph):
        runs = [i - graph.first for i in steps]
        memory = size @ _held(graph, plain[0], runs).T + work[:, runs]
        times = seconds[:, runs].sum(axis=1) + once
        times[memory.max(axis=1) > limit_bytes] = math.inf
        k = int(times.argmin())
        if times[k] < best:
            best, found = float(times[k]), (Schedule(steps), strategies[k])
    return best if found is None else price(graph, *found).compute_seconds


def _held(graph: ShardedGraph, plain: RematGraph, runs: list[int]) -> np.ndarray:
    """Returns `[step, value]`: how often a value is held while a step runs. The count does not
    depend on the strategies."""
    held = np.zeros((len(runs), len(plain.values)), int)
    held[:, : graph.first] = 1
    for live in live_ranges(plain, Schedule(tuple(runs))):
        held[live.first : live.last + 1, live.value] += 1
    return held


def _staged_schedules(graph: ShardedGraph) -> Iterator[tuple[int, ...]]:
    """Yields every way to run some earlier operators, in order, before each operator."""
    plain = graph.at([0] * len(graph.operators))
    choices = []
    for t in graph.computing:
        earlier = [i for i in range(graph.first, t) if graph.operators[i].may_recompute]
        subsets = itertools.product((False, True), repeat=len(earlier))
        choices.append(
            [(*(i for i, b in zip(earlier, bits, strict=True) if b), t) for bits in subsets]
        )
    for stages in itertools.product(*choices):
        steps = tuple(i for stage in stages for i in stage)
        if not violations(plain, Schedule(tuple(i - graph.first for i in steps))):
            yield steps


def joint_seconds(graph: ShardedGraph, limit_bytes: int, *, chains: bool = True) -> float:
    """Returns the least cost of the joint problem, or with Eq. 9 of the reduced problem, by
    enumeration."""
    problem = build_joint(graph, limit_bytes, chains=chains).problem
    result = solve(problem, solver="brute-force")
    return math.inf if result.objective is None else result.objective
