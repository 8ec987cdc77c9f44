"""The input of the formulations: operators with sharding strategies, and their operands; and their
answers, priced in one way only: by simulation.

Operators are numbered in the order of execution, which is the paper's topological order. Parameters
(and other inputs of the step) are operators too: they come first, cost nothing, and are resident.
The choice for them is their sharding.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from kiwi.errors import InvalidProblemError
from kiwi.literature.remat.graph import Operator as RematOperator
from kiwi.literature.remat.graph import RematGraph, Value
from kiwi.literature.remat.simulate import Simulation, simulate
from kiwi.solver.result import SolveStatus
from kiwi.solver.schedule import Schedule


@dataclass(frozen=True)
class Operator:
    """One operator; all tuples have one entry for each of its sharding strategies.

    - `seconds`: computation and its own communication (`c + d` of the paper), paid each time.
    - `result_bytes`: local bytes of its result; `workspace_bytes`: more, only while it runs.
    - `once_seconds`: paid once however often it runs, e.g. resharding of a result of the step.
      Empty: nothing.
    - `is_parameter`: an input of the step, resident throughout.
    - `is_forward`: may be recomputed for the backward pass.
    """

    name: str
    seconds: tuple[float, ...]
    result_bytes: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    once_seconds: tuple[float, ...] = ()
    is_parameter: bool = False
    is_forward: bool = False
    may_recompute: bool = True

    @property
    def count(self) -> int:
        """The number of strategies."""
        return len(self.seconds)

    @property
    def once(self) -> tuple[float, ...]:
        """`once_seconds` for each strategy."""
        return self.once_seconds or (0.0,) * self.count


@dataclass(frozen=True, eq=False)
class Read:
    """`reader` reads the result of `producer`, at `seconds[o, p]` of resharding each time."""

    producer: int
    reader: int
    seconds: np.ndarray


@dataclass(frozen=True, eq=False)
class Tie:
    """Two operators whose strategies `o`, `p` cost `seconds[o, p]` once."""

    first: int
    second: int
    seconds: np.ndarray


@dataclass(frozen=True, eq=False)
class ShardedGraph:
    """Operators in order, reads (at most one for each pair), ties, and what the step returns;
    raises `InvalidProblemError` where the pieces do not fit together."""

    operators: tuple[Operator, ...]
    reads: tuple[Read, ...]
    ties: tuple[Tie, ...] = ()
    results: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        flags = [o.is_parameter for o in self.operators]
        if flags != sorted(flags, reverse=True):
            raise InvalidProblemError("A parameter stands behind an operator that computes.")
        counts = Counter((read.producer, read.reader) for read in self.reads)
        for (producer, reader), count in counts.items():
            if not 0 <= producer < reader < len(flags) or flags[reader]:
                raise InvalidProblemError(f"Operator {reader} cannot read {producer}.")
            if count > 1:
                raise InvalidProblemError(
                    f"Operator {reader} reads {producer} twice.",
                    suggestion="add the matrices of both reads",
                )
        for one in (*self.reads, *self.ties):
            ends = (one.producer, one.reader) if isinstance(one, Read) else (one.first, one.second)
            if one.seconds.shape != tuple(self.operators[k].count for k in ends):
                raise InvalidProblemError(f"The costs between {ends} have another shape.")

    @property
    def first(self) -> int:
        """The number of parameters: the index of the first operator that computes."""
        return sum(o.is_parameter for o in self.operators)

    @property
    def computing(self) -> range:
        """The operators that are no parameters."""
        return range(self.first, len(self.operators))

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each operator who reads it, in order."""
        return self._grouped((read.producer, read.reader) for read in self.reads)

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """For each operator what it reads."""
        return self._grouped((read.reader, read.producer) for read in self.reads)

    def _grouped(self, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.operators]
        for one, other in sorted(pairs):
            found[one].append(other)
        return tuple(map(tuple, found))

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        """The last reader of each (`live`), itself where none, the last operator for a result."""
        end = len(self.operators) - 1
        return tuple(
            end if i in self.results else max(readers, default=i)
            for i, readers in enumerate(self.readers)
        )

    @cached_property
    def first_late_use(self) -> tuple[int | None, ...]:
        """The first reader behind the forward pass (`H`); None without one (`z = 0`)."""
        return tuple(
            min((r for r in readers if not self.operators[r].is_forward), default=None)
            for readers in self.readers
        )

    @cached_property
    def last_forward_use(self) -> tuple[int, ...]:
        """The last reader in the forward pass, itself where none."""
        return tuple(
            max((r for r in readers if self.operators[r].is_forward), default=i)
            for i, readers in enumerate(self.readers)
        )

    def may_repeat(self, i: int) -> bool:
        """Whether the reduced models may recompute `i`: a forward operator, not returned."""
        o = self.operators[i]
        return o.is_forward and o.may_recompute and not o.is_parameter and i not in self.results

    def at(self, strategies: Sequence[int]) -> RematGraph:
        """The graph with one strategy for each operator: what a schedule is simulated on.

        Operator `k` of it is operator `first + k` of this graph.
        """
        again = [o.seconds[s] for o, s in zip(self.operators, strategies, strict=True)]
        for read in self.reads:
            cell = (strategies[read.producer], strategies[read.reader])
            again[read.reader] += float(read.seconds[cell])
        values = tuple(
            Value(o.name, o.result_bytes[s])
            for o, s in zip(self.operators, strategies, strict=True)
        )
        operators = tuple(
            RematOperator(
                self.operators[i].name,
                again[i],
                self.inputs[i],
                (i,),
                self.operators[i].workspace_bytes[strategies[i]],
                self.operators[i].may_recompute,
            )
            for i in self.computing
        )
        results = frozenset(r for r in self.results if r >= self.first)
        return RematGraph(operators, values, tuple(range(len(operators))), results)

    def once_seconds(self, strategies: Sequence[int]) -> float:
        """Seconds that every schedule takes once."""
        own = sum(o.once[s] for o, s in zip(self.operators, strategies, strict=True))
        return own + sum(
            float(t.seconds[strategies[t.first], strategies[t.second]]) for t in self.ties
        )


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
