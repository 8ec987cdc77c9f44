"""The paper's full model (Eq. 1, appendix 7.1) as a tight integer linear program.

**Sets.** Operators i, j, k that compute, numbered 0 .. n - 1, parameters apart; stages t, of
which t ends with the first computation of operator t; strategies o, p; users(i) read i.

**Data.** c[i, o] seconds of computation and communication, paid each time; r[i, j, o, p] seconds
of resharding from i to j; m[i, o] bytes of the result, w[i, o] of workspace; M the limit. Bytes
are scaled to M, seconds to the cheapest step.

**Variables.** `s[i, o]` in {0, 1}: the strategy. `A[t, i]` in {0, 1}: i is computed in stage t.
`B[t, i]` in {0, 1}, i < t: i is kept from stage t - 1 into stage t. `H[t, i, q]` in [0, 1]: i is
held in stage t behind its first q users. `As, Bs, Hs`: their products with s, `e` those of two
choices (`kiwi.solver.formulations.products`).

**Minimise** the sum of c As, of r e and, for recomputations, of r times the flow into As.

**Constraints** (names of rows in brackets; numbers are the paper's)

- (a) Each operator has one strategy (21) [one].
- (b) A[t, t] = 1; nothing runs before its own stage (14): those A and B do not exist.
- (c) A[t, j] <= A[t, i] + B[t, i] for i -> j: inputs are there (12) [inputs].
- (d) B[t, i] <= A[t-1, i] + B[t-1, i]: only what is there is kept (13) [kept].
- (e) A[t, i] + B[t, i] <= 1: what is kept is not computed (Checkmate's) [once].
- (f) H[t, i, q] >= A[t, j] for the users j behind the q-th, and Hs >= Bs[t + 1] [hold].
- (g) While k runs in stage t, parameters, what is held (i < k), what was kept and waits (i > k),
  and k itself need at most M (16) [memory].
- (h) Parameters are resident (15): they are in every row of (g).
- (i) A[t, i] <= sum of A[t, j] over users + B[t + 1, i]: nothing runs for nothing [needed].
- (j) Results are there at the end [results].
- (k) The cost is at least that of a relaxation without stages [bound].

Equations 17 to 20 define U by a recurrence over F, which frees. (f) and (g) say the same with H,
that holds, in place of 1 - F: no chain of equations, and products that relax to convex hulls
instead of big-M rows.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from ortools.math_opt.python import mathopt

from kiwi.solver.formulations.answer import Solution
from kiwi.solver.formulations.conflict import Family
from kiwi.solver.formulations.products import Linear, dot, one_hot, pair_cost, times
from kiwi.solver.formulations.sharded_graph import ShardedGraph
from kiwi.solver.schedule import Schedule

MEMORY_UNITS = 1000.0
"""The limit in the model's unit of memory."""
FAMILIES = (
    Family("the memory held while some operator runs is within the limit", ("memory",)),
    Family("the inputs of an operator are there when it runs (Eq. 12)", ("inputs",)),
    Family("only what is there can be kept (Eq. 13)", ("kept",)),
    Family("a value is held until its users in a stage have run (Eq. 17-20)", ("hold",)),
    Family("the results are there at the end", ("results",)),
)
"""What the model demands, in words, by the names of its rows."""

Cell = tuple[int, int]


@dataclass(eq=False)
class StagedModel:
    """The program, and the variables that an answer is read from."""

    families: ClassVar[tuple[Family, ...]] = FAMILIES

    graph: ShardedGraph
    limit_bytes: int
    scale_seconds: float
    model: mathopt.Model = field(default_factory=lambda: mathopt.Model(name="staged"))
    chosen: list[list[mathopt.Variable]] = field(default_factory=list)
    computed: dict[Cell, mathopt.Variable] = field(default_factory=dict)
    kept: dict[Cell, mathopt.Variable] = field(default_factory=dict)
    computed_as: dict[Cell, list[mathopt.Variable]] = field(default_factory=dict)
    kept_as: dict[Cell, list[mathopt.Variable]] = field(default_factory=dict)
    held_as: dict[tuple[int, int, int], list[mathopt.Variable]] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The last stage."""
        return len(self.graph.operators) - 1

    def users(self, t: int, i: int) -> tuple[int, ...]:
        """Who reads i and may run in stage t."""
        return tuple(j for j in self.graph.readers[i] if j <= t)

    def read_answer(self, values) -> Solution:
        """Schedule and strategies of a solution."""
        strategies = tuple(max(range(len(c)), key=lambda o: values[c[o]]) for c in self.chosen)
        runs = [cell for cell in sorted(self.computed) if values[self.computed[cell]] > 0.5]
        return Schedule(tuple(i for _, i in runs)), strategies

    def add_bound(self, seconds: float) -> None:
        """(k): what every schedule takes at least (`kiwi.solver.formulations.relaxation`), less
        the solver's tolerance."""
        least = seconds / self.scale_seconds * (1.0 - 1e-9)
        objective = self.model.objective.as_linear_expression()
        self.model.add_linear_constraint(objective >= least, name="bound")

    def hint(self, schedule: Schedule, strategies) -> dict[mathopt.Variable, float]:
        """A known solution, for solvers that begin with one."""
        found = {
            v: float(o == s)
            for s, c in zip(strategies, self.chosen, strict=True)
            for o, v in enumerate(c)
        }
        runs, seen, t = set(), set(), self.graph.first
        for i in schedule.steps:
            runs.add((t, i))
            if i == t:
                t += 1
            seen.add(i)
        return found | {v: float(cell in runs) for cell, v in self.computed.items()}


def build_staged(graph: ShardedGraph, limit_bytes: int) -> StagedModel:
    """The program for a limit in bytes."""
    cheapest = sum(min(o.seconds) for o in graph.operators)
    built = StagedModel(graph, limit_bytes, cheapest or 1.0)
    built.chosen = [one_hot(built.model, o.count, f"s[{i}]") for i, o in enumerate(graph.operators)]
    _add_runs(built)
    _add_inputs(built)
    _add_kept(built)
    _add_needed(built)
    _add_results(built)
    _add_holds(built)
    _add_memory(built)
    built.model.minimize(_cost(built))
    return built


def _add_runs(built: StagedModel) -> None:
    """(b): A, B and their products with s; no B for what is never kept."""
    model, graph = built.model, built.graph
    for t in graph.computing:
        for i in range(graph.first, t + 1):
            again = i == t or graph.operators[i].may_recompute
            run = model.add_integer_variable(lb=float(i == t), ub=float(again), name=f"A[{t},{i}]")
            built.computed[t, i] = run
            if i == t:
                built.computed_as[t, i] = built.chosen[i]
                continue
            built.computed_as[t, i] = times(model, run, built.chosen[i], f"As[{t},{i}]")
            keep = model.add_binary_variable(name=f"B[{t},{i}]")
            built.kept[t, i] = keep
            built.kept_as[t, i] = times(model, keep, built.chosen[i], f"Bs[{t},{i}]")
            model.add_linear_constraint(run + keep <= 1.0, name=f"once[{t},{i}]")


def _there(built: StagedModel, t: int, i: int) -> Linear:
    run = built.computed[t, i]
    return run + built.kept[t, i] if (t, i) in built.kept else run


def _add_inputs(built: StagedModel) -> None:
    """(c)"""
    for t, j in built.computed:
        for i in built.graph.inputs[j]:
            if i >= built.graph.first:
                row = built.computed[t, j] <= _there(built, t, i)
                built.model.add_linear_constraint(row, name=f"inputs[{t},{i},{j}]")


def _add_kept(built: StagedModel) -> None:
    """(d)"""
    for (t, i), keep in built.kept.items():
        row = keep <= _there(built, t - 1, i)
        built.model.add_linear_constraint(row, name=f"kept[{t},{i}]")


def _add_needed(built: StagedModel) -> None:
    """(i)"""
    for t, i in built.computed:
        if i == t or (t == built.last and i in built.graph.results):
            continue
        uses = [built.computed[t, j] for j in built.users(t, i)]
        uses += [built.kept[t + 1, i]] if t < built.last else []
        row = built.computed[t, i] <= mathopt.fast_sum(uses)
        built.model.add_linear_constraint(row, name=f"needed[{t},{i}]")


def _add_results(built: StagedModel) -> None:
    """(j)"""
    for i in built.graph.results:
        if built.graph.first <= i < built.last:
            row = _there(built, built.last, i) >= 1.0
            built.model.add_linear_constraint(row, name=f"results[{i}]")


def _add_holds(built: StagedModel) -> None:
    """(f)"""
    for t, i in built.computed:
        if t == built.last and i in built.graph.results:
            continue
        users = built.users(t, i)
        for q in range(len(users)):
            name = f"H[{t},{i},{q}]"
            hold = built.model.add_variable(lb=0.0, ub=1.0, name=name)
            parts = times(built.model, hold, built.chosen[i], f"Hs[{t},{i},{q}]")
            built.held_as[t, i, q] = parts
            for j in users[q:]:
                row = hold >= built.computed[t, j]
                built.model.add_linear_constraint(row, name=f"hold[{t},{i},{q},{j}]")
            for o, kept in enumerate(built.kept_as.get((t + 1, i), ())):
                row = parts[o] >= kept
                built.model.add_linear_constraint(row, name=f"hold[{t},{i},{q},kept,{o}]")


def _held(built: StagedModel, t: int, i: int, k: int) -> list[mathopt.Variable]:
    """By strategy whether i is held while k runs in stage t; empty where never."""
    if i > k:
        return built.kept_as.get((t, i), [])
    if t == built.last and i in built.graph.results:
        return built.chosen[i]
    past = sum(j < k for j in built.users(t, i))
    return built.held_as.get((t, i, past)) or built.kept_as.get((t + 1, i), [])


def _add_memory(built: StagedModel) -> None:
    """(g), (h)"""
    graph, scale = built.graph, MEMORY_UNITS / max(1, built.limit_bytes)
    size = [[scale * b for b in o.result_bytes] for o in graph.operators]
    parameters = [dot(size[i], built.chosen[i]) for i in range(graph.first)]
    for t, k in built.computed:
        o = graph.operators[k]
        own = [scale * (r + w) for r, w in zip(o.result_bytes, o.workspace_bytes, strict=True)]
        held = [dot(own, built.computed_as[t, k]), *parameters]
        for i in range(graph.first, t + 1):
            parts = _held(built, t, i, k) if i != k else []
            if parts:
                held.append(dot(size[i], parts))
        row = mathopt.fast_sum(held) <= MEMORY_UNITS
        built.model.add_linear_constraint(row, name=f"memory[{t},{k}]")


def _cost(built: StagedModel) -> Linear:
    """The objective, in units of `scale_seconds`."""
    graph, unit = built.graph, 1.0 / built.scale_seconds
    terms: list[Linear] = []
    for i, o in enumerate(graph.operators):
        once = o.once_seconds or (0.0,) * o.count
        terms.append(dot([unit * c for c in once], built.chosen[i]))
    for (_t, i), parts in built.computed_as.items():
        terms.append(dot([unit * c for c in graph.operators[i].seconds], parts))
    for read in graph.reads:
        i, j = read.producer, read.reader
        for t in range(j, built.last + 1):
            name = f"e[{t},{i},{j}]"
            head = built.computed_as[t, j]
            terms.append(pair_cost(built.model, unit * read.seconds, built.chosen[i], head, name))
    for tie in graph.ties:
        ends = built.chosen[tie.first], built.chosen[tie.second]
        name = f"tie[{tie.first},{tie.second}]"
        terms.append(pair_cost(built.model, unit * tie.seconds, *ends, name))
    return mathopt.fast_sum(terms)
