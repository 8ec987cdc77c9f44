"""The common part of the paper's integer programs: strategies, their products with decisions, the
cost.

Bytes are scaled to the limit, seconds to the cheapest step. A product `b * s[o]` of a decision b in
[0, 1] and a one-hot choice s becomes variables `p[o] <= s[o]` with `sum(o) p[o] = b`. That is exact
if s is integral, and the tightest linear relaxation (the convex hull).

**Conflicts** explain why a model has no solution, by its families of rows, in words. A family is in
conflict if the model has a solution once that family alone is left out. Each relaxation is solved
for feasibility, without the objective. Rows that only define the meaning of a variable (products,
one-hot choices) belong to no family.
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
"""The limit in the model's unit of memory."""

SECONDS = 10.0
"""For all relaxations of a model together."""
Families = Mapping[str, tuple[str, ...]]
"""The demands of rows, in words, and the beginnings of their names."""


class StrategyProgram:
    """A program whose operators have one strategy each (Eq. 21), `chosen[i]` by strategy."""

    families: ClassVar[Families]

    def __init__(self, graph: ShardedGraph, limit_bytes: int) -> None:
        self.graph, self.model = graph, mathopt.Model()
        self.scale_seconds = sum(min(o.seconds) for o in graph.operators) or 1.0
        unit = MEMORY_UNITS / max(1, limit_bytes)
        self.size = [[unit * size for size in o.result_bytes] for o in graph.operators]
        self.work = [[unit * size for size in o.workspace_bytes] for o in graph.operators]
        self.chosen = [self._one_hot(o.count, f"s[{i}]") for i, o in enumerate(graph.operators)]

    def read_answer(self, values) -> Solution:
        """Schedule and strategies of a solution."""
        raise NotImplementedError

    def strategies(self, values) -> tuple[int, ...]:
        """The strategies of a solution."""
        return tuple(max(range(len(c)), key=lambda o: values[c[o]]) for c in self.chosen)

    def add(self, row: Any, name: str) -> None:
        """Adds a constraint."""
        self.model.add_linear_constraint(row, name=name)

    def share(self, name: str) -> mathopt.Variable:
        """A variable in [0, 1]."""
        return self.model.add_variable(lb=0.0, ub=1.0, name=name)

    def times(self, decision: Linear, i: int, name: str) -> list[mathopt.Variable]:
        """The product of a decision in [0, 1] with each strategy of operator i."""
        parts = [self.share(f"{name}[{o}]") for o in range(len(self.chosen[i]))]
        self.add(mathopt.fast_sum(parts) == decision, f"sum {name}")
        if len(parts) > 1:
            for o, (part, whole) in enumerate(zip(parts, self.chosen[i], strict=True)):
                self.add(part <= whole, f"only {name}[{o}]")
        return parts

    def minimise(self, runs: Sequence[Sequence[Sequence[mathopt.Variable]]]) -> None:
        """The objective in units of `scale_seconds`; `runs[i]`: by strategy, for each run of i."""
        graph, unit = self.graph, 1.0 / self.scale_seconds
        terms: list[Linear] = []
        for o, chosen, mine in zip(graph.operators, self.chosen, runs, strict=True):
            terms.append(dot([unit * c for c in o.once], chosen))
            terms += [dot([unit * c for c in o.seconds], parts) for parts in mine]
        for read in graph.reads:
            tail, costs = self.chosen[read.producer], unit * read.seconds
            for q, head in enumerate(runs[read.reader]):
                terms.append(self._pair(costs, tail, head, f"e{q}[{read.producer},{read.reader}]"))
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
        """The resharding cost of a pair of choices, Eq. 22-23 as flows from `tail` to `head`.

        `head` may sum to less than one (a recomputation that may not happen): then the flow does.
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
    """The weighted sum; zero weights are left out."""
    pairs = zip(weights, variables, strict=True)
    return mathopt.fast_sum(float(w) * v for w, v in pairs if w)


def conflict(build: Callable[[], mathopt.Model], families: Families) -> str:
    """The families that make a model infeasible, in words.

    `build` makes the model anew each time.
    """
    deadline = time.monotonic() + SECONDS
    found, open_ = [], []
    for done, (words, rows) in enumerate(families.items()):
        share = max(0.2, (deadline - time.monotonic()) / (len(families) - done))
        feasible = _fits_without(build(), rows, share)
        if feasible is None:
            open_.append(words)
        elif feasible:
            found.append(words)
    return _told(found, open_)


def _fits_without(model: mathopt.Model, rows: tuple[str, ...], seconds: float) -> bool | None:
    """Whether the model has a solution without the rows of a family; None where not decided."""
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
    """Several families are told apart from one; none means that two at least must give way."""
    if not found:
        text = "No single family of constraints is to blame"
    elif len(found) == 1:
        text = f"It would be feasible without one demand alone: {found[0]}"
    else:
        text = "It would be feasible without any one of these demands: " + "; ".join(found)
    undecided = f" Not decided in time: {'; '.join(open_)}." if open_ else ""
    return f"{text}.{undecided}"
