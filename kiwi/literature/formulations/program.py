"""The common part of the paper's integer programs: strategies, their products with decisions, cost.

Memory is scaled so that the limit is `MEMORY_UNITS`. Time is scaled so that the cheapest step takes
1. A product `b * s[o]` of a decision b in [0, 1] and a one-hot choice s becomes variables
   `p[o] <= s[o]` with `sum(o) p[o] = b`. This form is exact if s is integral, and it is the
   tightest linear relaxation (the convex hull).

**Conflicts** explain in words which families of rows leave a model without a solution. A family is
in conflict if the model has a solution once that family alone is left out. Each relaxation is
solved for feasibility, without the objective. Rows that only define the meaning of a variable
(products, one-hot choices) belong to no family.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ortools.math_opt.python import mathopt

from kiwi.errors import SolverUnavailableError
from kiwi.literature.formulations.sharded_graph import ShardedGraph, Solution
from kiwi.solver.mathopt_run import solve_model

Linear = mathopt.LinearTypes
MEMORY_UNITS = 1000.0
"""The value of the memory limit in the model's unit of memory."""

SECONDS = 10.0
"""The time limit, in seconds, for all relaxations that explain one infeasible model."""
Families = Mapping[str, tuple[str, ...]]
"""The families of rows: maps a demand in words to the prefixes of the names of its rows."""


class StrategyProgram:
    """An integer program that chooses one strategy for each operator (Eq. 21).

    `chosen[i]` holds the binary variables of operator i, one for each strategy. `limit_bytes` is
    the memory limit. Subclasses add variables and rows.
    """

    families: ClassVar[Families]

    def __init__(self, graph: ShardedGraph, limit_bytes: int) -> None:
        self.graph, self.model = graph, mathopt.Model()
        self.scale_seconds = sum(min(operator.seconds) for operator in graph.operators) or 1.0
        unit = MEMORY_UNITS / max(1, limit_bytes)
        self.size = [
            [unit * size for size in operator.result_bytes] for operator in graph.operators
        ]
        self.work = [
            [unit * size for size in operator.workspace_bytes] for operator in graph.operators
        ]
        self.chosen = [
            self._one_hot(operator.count, f"s[{i}]") for i, operator in enumerate(graph.operators)
        ]

    def read_answer(self, values) -> Solution:
        """Returns the schedule and the strategies of a solution.

        `values` maps each variable to its value.
        """
        raise NotImplementedError

    def strategies(self, values) -> tuple[int, ...]:
        """Returns the index of the chosen strategy of each operator in a solution."""
        return tuple(
            max(range(len(variables)), key=lambda strategy: values[variables[strategy]])
            for variables in self.chosen
        )

    def add(self, row: Any, name: str) -> None:
        """Adds a linear constraint to the model."""
        self.model.add_linear_constraint(row, name=name)

    def share(self, name: str) -> mathopt.Variable:
        """Returns a new continuous variable in [0, 1]."""
        return self.model.add_variable(lb=0.0, ub=1.0, name=name)

    def times(self, decision: Linear, i: int, name: str) -> list[mathopt.Variable]:
        """Returns variables for the products of a decision in [0, 1] with i's strategies."""
        parts = [self.share(f"{name}[{strategy}]") for strategy in range(len(self.chosen[i]))]
        self.add(mathopt.fast_sum(parts) == decision, f"sum {name}")
        if len(parts) > 1:
            for strategy, (part, whole) in enumerate(zip(parts, self.chosen[i], strict=True)):
                self.add(part <= whole, f"only {name}[{strategy}]")
        return parts

    def minimise(self, runs: Sequence[Sequence[Sequence[mathopt.Variable]]]) -> None:
        """Sets the objective: the time of all runs and reshardings, in units of `scale_seconds`.

        `runs[i]` has an entry for each possible run of operator i: the run's products with the
        strategies.
        """
        graph, unit = self.graph, 1.0 / self.scale_seconds
        terms: list[Linear] = []
        for operator, chosen, operator_runs in zip(graph.operators, self.chosen, runs, strict=True):
            terms.append(dot([unit * cost for cost in operator.once], chosen))
            terms += [
                dot([unit * cost for cost in operator.seconds], parts) for parts in operator_runs
            ]
        for read in graph.reads:
            tail, costs = self.chosen[read.producer], unit * read.seconds
            for number, head in enumerate(runs[read.reader]):
                terms.append(
                    self._pair(costs, tail, head, f"e{number}[{read.producer},{read.reader}]")
                )
        for tie in graph.ties:
            first, second = self.chosen[tie.first], self.chosen[tie.second]
            name = f"tie[{tie.first},{tie.second}]"
            terms.append(self._pair(unit * tie.seconds, first, second, name))
        self.model.minimize(mathopt.fast_sum(terms))

    def _one_hot(self, count: int, name: str) -> list[mathopt.Variable]:
        chosen = [self.model.add_binary_variable(name=f"{name}[{o}]") for o in range(count)]
        self.add(mathopt.fast_sum(chosen) == 1.0, f"one {name}")
        return chosen

    def _pair(
        self, seconds, tail: Sequence[mathopt.Variable], head: Sequence[mathopt.Variable], name: str
    ) -> Linear:
        """Returns the resharding cost of a pair of choices: Eq. 22-23 as flows from tail to head.

        `seconds[o, p]` is the cost of strategy o at the tail and strategy p at the head. `head` may
        sum to less than one, for a recomputation that may not happen. The flow then sums to the
        same.
        """
        if not seconds.any():
            return 0.0
        flows = [
            [self.share(f"{name}[{o},{p}]") for p in range(len(head))] for o in range(len(tail))
        ]
        for p, into in enumerate(head):
            self.add(mathopt.fast_sum(row[p] for row in flows) == into, f"head {name}[{p}]")
        for o, out in enumerate(tail):
            self.add(mathopt.fast_sum(flows[o]) <= out, f"tail {name}[{o}]")
        return mathopt.fast_sum(dot(costs, row) for costs, row in zip(seconds, flows, strict=True))


def dot(weights: Sequence[float], variables: Sequence[Linear]) -> Linear:
    """Returns the weighted sum of variables, without the terms of zero weight."""
    pairs = zip(weights, variables, strict=True)
    return mathopt.fast_sum(float(weight) * variable for weight, variable in pairs if weight)


def conflict(build: Callable[[], mathopt.Model], families: Families) -> str:
    """Returns a sentence that names the families of rows that make a model infeasible.

    `build` makes the model anew on each call.
    """
    deadline = time.monotonic() + SECONDS
    conflicting, undecided = [], []
    for done, (words, rows) in enumerate(families.items()):
        seconds = max(0.2, (deadline - time.monotonic()) / (len(families) - done))
        feasible = _fits_without(build(), rows, seconds)
        if feasible is None:
            undecided.append(words)
        elif feasible:
            conflicting.append(words)
    return _told(conflicting, undecided)


def _fits_without(model: mathopt.Model, rows: tuple[str, ...], seconds: float) -> bool | None:
    """Returns whether the model has a solution without the rows of one family; None if undecided.

    `rows` are the prefixes of the names of the family's rows. The rows are deleted from `model`.
    """
    for row in list(model.linear_constraints()):
        if row.name.split("[")[0] in rows:
            model.delete_linear_constraint(row)
    model.minimize(0.0)
    try:
        answer = solve_model(model, seconds, seed=0, gap=0.0)
    except SolverUnavailableError:
        return None
    if answer.values is not None:
        return True
    return False if answer.infeasible else None


def _told(found: list[str], open_: list[str]) -> str:
    """Returns the text of a conflict.

    - `found`: the families of constraints each of whose removal makes the model feasible. If there
      is none, at least two families must give way.
    - `open_`: the families for which the solver did not decide that in time.
    """
    if not found:
        text = "No single family of constraints is to blame"
    elif len(found) == 1:
        text = f"It would be feasible without one demand alone: {found[0]}"
    else:
        text = "It would be feasible without any one of these demands: " + "; ".join(found)
    undecided = f" Not decided in time: {'; '.join(open_)}." if open_ else ""
    return f"{text}.{undecided}"
