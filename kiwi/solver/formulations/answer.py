"""What a formulation answers, and the one way in which it is priced: by simulation."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kiwi.solver.formulations.sharded_graph import ShardedGraph
from kiwi.solver.remat.simulate import Simulation, simulate
from kiwi.solver.result import SolveStatus
from kiwi.solver.schedule import Schedule

Solution = tuple[Schedule, tuple[int, ...]]
"""A schedule of operators, parameters left out, and a strategy for each operator."""


@dataclass(frozen=True)
class Answer:
    """A formulation's outcome.

    - `schedule`: of operators, parameters left out; `strategies`: one for each operator;
      `priced`: both, simulated. None without a solution.
    - `bound_seconds`: proven; -inf where none is known, +inf where infeasible.
    - `solver`: the backend that answered; `solve_seconds`: wall time.
    - `message`: a line for the user: a fall-back, or which families of rows cannot be met.
    """

    status: SolveStatus
    schedule: Schedule | None
    strategies: tuple[int, ...] | None
    priced: Simulation | None
    bound_seconds: float
    solver: str
    solve_seconds: float
    message: str = ""

    @property
    def seconds(self) -> float:
        """Time of the schedule; infinite without one."""
        return math.inf if self.priced is None else self.priced.compute_seconds

    @property
    def solution(self) -> Solution | None:
        """Schedule and strategies, if there are any."""
        if self.schedule is None or self.strategies is None:
            return None
        return self.schedule, self.strategies


def price(graph: ShardedGraph, schedule: Schedule, strategies: Sequence[int]) -> Simulation:
    """Runs the schedule step by step; its time includes what is paid once; raises
    `InvalidProblemError` if it cannot be executed."""
    steps = Schedule(tuple(i - graph.first for i in schedule.steps))
    found = simulate(graph.at(strategies), steps)
    once_seconds = graph.once_seconds(strategies)
    return replace(found, compute_seconds=found.compute_seconds + once_seconds)


def repeated_before(graph: ShardedGraph, repeats: Iterable[tuple[int, int]]) -> Schedule:
    """All operators in order; before operator t those i of which (i, t) is in `repeats`."""
    again: dict[int, list[int]] = {}
    for i, t in sorted(repeats):
        again.setdefault(t, []).append(i)
    return Schedule(tuple(i for t in graph.computing for i in (*again.get(t, ()), t)))
