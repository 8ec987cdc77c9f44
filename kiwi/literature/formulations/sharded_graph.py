"""The input of the formulations, operators with sharding strategies, and their answers.

Simulation is the only way in which an answer is priced.

Operators are numbered in the order of execution, which is the paper's topological order. Parameters
and other inputs of the step are operators too. They come first, take no time, and are resident
throughout. The strategy of a parameter is its sharding.
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
    """One operator. All tuples have one entry for each of its sharding strategies.

    - `seconds`: the time of computation and of the operator's own communication (`c + d` of the
      paper), paid for each run.
    - `result_bytes`: the size of the result on one device.
    - `workspace_bytes`: further memory that is held only while the operator runs.
    - `once_seconds`: time that is paid once, however often the operator runs, e.g. for resharding a
      result of the step. An empty tuple means zero.
    - `is_parameter`: the operator is an input of the step, resident throughout.
    - `is_forward`: the operator belongs to the forward pass and may be recomputed for the backward
      pass.
    - `may_recompute`: False if the operator must run exactly once.
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
        """`once_seconds`, with zeros in place of an empty tuple."""
        return self.once_seconds or (0.0,) * self.count


@dataclass(frozen=True, eq=False)
class Read:
    """A read of the result of operator `producer` by operator `reader`.

    Each run of the reader pays `seconds[o, p]` for resharding, with strategy o of the producer and
    strategy p of the reader.
    """

    producer: int
    reader: int
    seconds: np.ndarray


@dataclass(frozen=True, eq=False)
class Tie:
    """A cost of `seconds[o, p]`, paid once, for strategies o of `first` and p of `second`."""

    first: int
    second: int
    seconds: np.ndarray


@dataclass(frozen=True, eq=False)
class ShardedGraph:
    """A training step as operators in order of execution, reads, ties and results.

    - `reads`: at most one for each pair of operators.
    - `results`: the operators whose results the step returns.

    Raises `InvalidProblemError` if the parts do not fit together.
    """

    operators: tuple[Operator, ...]
    reads: tuple[Read, ...]
    ties: tuple[Tie, ...] = ()
    results: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        flags = [operator.is_parameter for operator in self.operators]
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
        for relation in (*self.reads, *self.ties):
            ends = (
                (relation.producer, relation.reader)
                if isinstance(relation, Read)
                else (relation.first, relation.second)
            )
            if relation.seconds.shape != tuple(self.operators[k].count for k in ends):
                raise InvalidProblemError(f"The costs between {ends} have another shape.")

    @property
    def first(self) -> int:
        """The number of parameters, which is the index of the first operator that computes."""
        return sum(operator.is_parameter for operator in self.operators)

    @property
    def computing(self) -> range:
        """The indices of the operators that are not parameters."""
        return range(self.first, len(self.operators))

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """The readers of each operator, in ascending order."""
        return self._grouped((read.producer, read.reader) for read in self.reads)

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The operators that each operator reads, in ascending order."""
        return self._grouped((read.reader, read.producer) for read in self.reads)

    def _grouped(self, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
        groups: list[list[int]] = [[] for _ in self.operators]
        for key, member in sorted(pairs):
            groups[key].append(member)
        return tuple(map(tuple, groups))

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        """The last reader of each operator (`live`).

        This is the operator itself if nothing reads it, and the last operator for a result of the
        step.
        """
        end = len(self.operators) - 1
        return tuple(
            end if i in self.results else max(readers, default=i)
            for i, readers in enumerate(self.readers)
        )

    @cached_property
    def first_late_use(self) -> tuple[int | None, ...]:
        """Each operator's first reader behind the forward pass (`H`); None without (`z = 0`)."""
        return tuple(
            min(
                (reader for reader in readers if not self.operators[reader].is_forward),
                default=None,
            )
            for readers in self.readers
        )

    @cached_property
    def last_forward_use(self) -> tuple[int, ...]:
        """Each operator's last reader in the forward pass; without one, the operator itself."""
        return tuple(
            max((reader for reader in readers if self.operators[reader].is_forward), default=i)
            for i, readers in enumerate(self.readers)
        )

    def may_repeat(self, i: int) -> bool:
        """Returns whether the reduced models may recompute operator `i`.

        They recompute forward operators that are not results of the step.
        """
        operator = self.operators[i]
        return (
            operator.is_forward
            and operator.may_recompute
            and not operator.is_parameter
            and i not in self.results
        )

    def at(self, strategies: Sequence[int]) -> RematGraph:
        """Returns the graph with one strategy for each operator, on which schedules are simulated.

        Operator `k` of the returned graph is operator `first + k` of this graph.
        """
        seconds = [
            operator.seconds[strategy]
            for operator, strategy in zip(self.operators, strategies, strict=True)
        ]
        for read in self.reads:
            cell = (strategies[read.producer], strategies[read.reader])
            seconds[read.reader] += float(read.seconds[cell])
        values = tuple(
            Value(operator.name, operator.result_bytes[strategy])
            for operator, strategy in zip(self.operators, strategies, strict=True)
        )
        operators = tuple(
            RematOperator(
                self.operators[i].name,
                seconds[i],
                self.inputs[i],
                (i,),
                self.operators[i].workspace_bytes[strategies[i]],
                self.operators[i].may_recompute,
            )
            for i in self.computing
        )
        results = frozenset(result for result in self.results if result >= self.first)
        return RematGraph(operators, values, tuple(range(len(operators))), results)

    def once_seconds(self, strategies: Sequence[int]) -> float:
        """Returns the seconds that every schedule pays exactly once under the given strategies."""
        operator_seconds = sum(
            operator.once[strategy]
            for operator, strategy in zip(self.operators, strategies, strict=True)
        )
        return operator_seconds + sum(
            float(tie.seconds[strategies[tie.first], strategies[tie.second]]) for tie in self.ties
        )


Solution = tuple[Schedule, tuple[int, ...]]
"""A schedule of operators without parameters, and the index of a strategy for each operator."""


@dataclass(frozen=True)
class Answer:
    """The outcome of a formulation.

    - `schedule`: a schedule of operators without parameters; None without a solution.
    - `strategies`: the strategy of each operator; None without a solution.
    - `priced`: the simulation of both; None without a solution.
    - `bound_seconds`: a proven lower bound; -inf if none is known, +inf if the problem is
      infeasible.
    - `solver`: the backend that answered.
    - `solve_seconds`: wall time.
    - `message`: a line for the user about a fall-back, or about the families of rows that cannot be
      met.
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
        """The time of the schedule; infinite without a schedule."""
        return math.inf if self.priced is None else self.priced.compute_seconds

    @property
    def solution(self) -> Solution | None:
        """The schedule and the strategies, or None if there is no solution."""
        if self.schedule is None or self.strategies is None:
            return None
        return self.schedule, self.strategies


def price(graph: ShardedGraph, schedule: Schedule, strategies: Sequence[int]) -> Simulation:
    """Returns the simulation of a schedule under the given strategies.

    Its time includes the costs that are paid once. Raises `InvalidProblemError` if the schedule
    cannot be executed.
    """
    steps = Schedule(tuple(i - graph.first for i in schedule.steps))
    simulated = simulate(graph.at(strategies), steps)
    once_seconds = graph.once_seconds(strategies)
    return replace(simulated, compute_seconds=simulated.compute_seconds + once_seconds)


def repeated_before(graph: ShardedGraph, repeats: Iterable[tuple[int, int]]) -> Schedule:
    """Returns the schedule of all operators in order, with recomputations.

    A pair (i, t) of `repeats` says that operator i runs again just before operator t.
    """
    again: dict[int, list[int]] = {}
    for i, t in sorted(repeats):
        again.setdefault(t, []).append(i)
    return Schedule(tuple(i for t in graph.computing for i in (*again.get(t, ()), t)))
