"""A solved planning problem: the input of estimates, decisions and executions."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from kiwi.memory.residency import Residency
from kiwi.mesh import TensorSharding
from kiwi.problem.build import NONE_KEPT, KeptCopies, PlanningProblem
from kiwi.problem.strategies import ShardingStrategy
from kiwi.solver.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Solved:
    """A problem, the option chosen for each of its nodes, and the kept copies of operands.

    - `solution`: the option index of each node, at least of sources and units. The options of
      copies follow from these.
    - `kept`: reads that use an earlier reader's copy.
    - `schedule`: the order of units; None for the one that follows from the residencies.
    - `fetched`: the units whose later steps in the schedule are fetches from the host.
    """

    problem: PlanningProblem
    solution: Sequence[int]
    kept: KeptCopies = NONE_KEPT
    schedule: Schedule | None = None
    fetched: frozenset[int] = frozenset()

    @functools.cached_property
    def restricted(self) -> PlanningProblem:
        """The problem with the chosen options only; its only solution is all zeros."""
        return self.problem.restricted(self.solution, self.kept)

    @functools.cached_property
    def choices(self) -> list[tuple[ShardingStrategy, Residency]]:
        """The strategy and the residency of each unit, in order."""
        return self.problem.unit_choices(self.solution)

    @functools.cached_property
    def runs(self) -> tuple[int, ...]:
        """The number of times that each unit is computed. Fetches from the host do not count."""
        if self.schedule is None:
            return tuple(2 if residency.recomputes else 1 for _, residency in self.choices)
        counts = self.schedule.computations()
        units = range(len(self.choices))
        return tuple(1 if unit in self.fetched else counts[unit] for unit in units)

    @functools.cached_property
    def layouts(self) -> dict[int, TensorSharding]:
        """The sharding in which each argument, constant and result of a unit is stored."""
        return self.problem.layouts(self.solution)


@dataclass(frozen=True, eq=False)
class Start:
    """The start of a search: a problem, and a solution of the problem if one is known."""

    problem: PlanningProblem
    solution: tuple[int, ...] | None = None
