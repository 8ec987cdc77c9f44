"""Each definition by enumeration: the oracles that the formulations are tested against.

They share the simulator with nothing but the referee: a schedule is feasible for the full
definition when its simulated peak is within the limit.
"""

import itertools
import math
from collections.abc import Iterator

from kiwi.solver.brute_force import solve_brute_force
from kiwi.solver.formulations.answer import price
from kiwi.solver.formulations.joint import build_joint
from kiwi.solver.formulations.sharded_graph import ShardedGraph
from kiwi.solver.remat.simulate import violations
from kiwi.solver.schedule import Schedule


def full_seconds(graph: ShardedGraph, limit_bytes: int) -> float:
    """The least time over all staged schedules and strategies; infinite where none fits."""
    schedules = [Schedule(steps) for steps in _staged_schedules(graph)]
    best = math.inf
    for strategies in itertools.product(*(range(o.count) for o in graph.operators)):
        for schedule in schedules:
            priced = price(graph, schedule, strategies)
            if priced.peak_bytes <= limit_bytes:
                best = min(best, priced.seconds)
    return best


def _staged_schedules(graph: ShardedGraph) -> Iterator[tuple[int, ...]]:
    """Every way to run some earlier operators, in order, before each operator."""
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
    """The least cost of the joint problem, or with Eq. 9 of the reduced one, by enumeration."""
    result = solve_brute_force(build_joint(graph, limit_bytes, chains=chains).problem)
    return math.inf if result.objective is None else result.objective
