"""The paper's full model (Eq. 1, 12-23) as written: products of variables, solved by Gurobi.

`kiwi.literature.formulations.staged` is the same problem as a linear program. This module solves
the paper's own model, and needs a licence of Gurobi: the licence that comes with gurobipy takes
models of up to 200 variables with products.

**Sets, data.** As in `staged`, with parameters among the operators of the memory rows.

**Variables.** `s[i, o]`, `A[t, i]`, `B[t, i]` in {0, 1} as in `staged`; `e[i, j, o, p]` in {0, 1}:
i has strategy o and j has p; `F[t, i, k]` in {0, 1}: i is freed after k ran in stage t;
`U[t, k]`: memory while k runs in stage t. Bytes are scaled to M, seconds to the cheapest step.

**Minimise** (1) the sum over t, i of A[t, i] (c[i] s[i] + sum over inputs j of r[j, i] e[j, i]).

**Constraints** (names of rows in brackets; numbers are the paper's)

- (a) Each operator has one strategy (21) [one].
- (b) A[t, t] = 1; nothing runs before its own stage (14): those A and B do not exist.
- (c) A[t, j] <= A[t, i] + B[t, i] for i -> j (12) [inputs].
- (d) B[t, i] <= A[t-1, i] + B[t-1, i] (13) [kept].
- (e) Parameters are resident (15): B = 1, and F = 0.
- (f) U[t, first] starts from all that is kept (17), U[t, k+1] = U[t, k] - freed + A m s (18, 19)
  [memory].
- (g) F[t, i, k] = A[t, k] (1 - B[t+1, i]) product of (1 - A[t, j]) over users j > k (20), by the
  number of factors that are 0, as Checkmate does [freed].
- (h) U[t, k] and the workspace of k need at most M (16) [budget].
- (i) e[i, j] is one-hot, with margins s[i] and s[j] (22, 23) [tail, head].

Beyond the paper: `<=` in (h) where it has `<`; `e` sums to one in (i), since the paper's two rows
alone allow e = 0; workspaces; results are there at the end [results] and are not freed.
"""

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

from kiwi.errors import SolverUnavailableError
from kiwi.literature.formulations import Answer, Read, ShardedGraph, price, solve_formulation
from kiwi.solver.result import SolveStatus, relative_gap
from kiwi.solver.schedule import Schedule

MEMORY_UNITS = 1000.0
"""The memory limit in the model's unit of memory."""

Cell = tuple[int, int]


def solve_qcqp(
    graph: ShardedGraph,
    limit_bytes: int,
    *,
    time_limit_seconds: float = 60.0,
    seed: int = 0,
    gap: float = 1e-6,
) -> Answer:
    """Solves the full model with products; if Gurobi does not take it, solves the linear model with
    HiGHS.

    The answer's `message` says if the linear model was solved instead.
    """
    started = time.monotonic()
    try:
        return _solve(graph, limit_bytes, started, time_limit_seconds, seed, gap)
    except SolverUnavailableError as error:
        stood_in = solve_formulation(
            graph,
            limit_bytes,
            "full",
            time_limit_seconds=time_limit_seconds,
            seed=seed,
            gap=gap,
            relax_first=False,
        )
        message = f"{error.what} The linear model stood in, solved by {stood_in.solver}."
        message = " ".join(filter(None, (message, stood_in.message)))
        return replace(stood_in, message=message)


def _solve(
    graph: ShardedGraph, limit_bytes: int, started: float, seconds: float, seed: int, gap: float
) -> Answer:
    try:
        import gurobipy
    except ImportError as error:
        raise SolverUnavailableError("gurobipy is not installed.") from error
    try:
        with gurobipy.Env(params={"OutputFlag": 0}) as env, gurobipy.Model(env=env) as model:
            built = _QuadraticModel(graph, limit_bytes, model)
            built.add_all()
            model.Params.TimeLimit = max(seconds, 0.01)
            model.Params.Seed = seed
            model.Params.MIPGap = gap
            model.Params.FeasibilityTol = 1e-9
            model.Params.IntFeasTol = 1e-9
            model.Params.Threads = 1
            model.optimize()
            return _answer(built, started, gap, model.Status == gurobipy.GRB.INFEASIBLE)
    except gurobipy.GurobiError as error:
        raise SolverUnavailableError(f"Gurobi declined: {error}.") from error


def _answer(built: "_QuadraticModel", started: float, gap: float, infeasible: bool) -> Answer:
    elapsed = time.monotonic() - started
    if infeasible:
        message = f"Cannot be met under {built.limit_bytes} bytes: the memory rows."
        status = SolveStatus.INFEASIBLE
        return Answer(status, None, None, None, math.inf, "gurobi", elapsed, message)
    bound = float(built.model.ObjBound) * built.scale_seconds
    if not built.model.SolCount:
        status = SolveStatus.NO_SOLUTION_FOUND
        return Answer(status, None, None, None, bound, "gurobi", elapsed)
    schedule, strategies = built.read_answer()
    priced = price(built.graph, schedule, strategies)
    closed = relative_gap(priced.compute_seconds, bound) <= max(gap, 1e-6)
    status = SolveStatus.OPTIMAL if closed else SolveStatus.FEASIBLE
    return Answer(status, schedule, strategies, priced, bound, "gurobi", elapsed)


@dataclass(eq=False)
class _QuadraticModel:
    """The program. gurobipy has no types, hence `Any`."""

    graph: ShardedGraph
    limit_bytes: int
    model: Any
    chosen: list[list[Any]] = field(default_factory=list)
    computed: dict[Cell, Any] = field(default_factory=dict)
    kept: dict[Cell, Any] = field(default_factory=dict)
    pairs: dict[Cell, dict[Cell, Any]] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The index of the last stage."""
        return len(self.graph.operators) - 1

    @property
    def scale_seconds(self) -> float:
        """The time of the cheapest step, in seconds."""
        return sum(min(o.seconds) for o in self.graph.operators) or 1.0

    def binary(self, name: str, least: float = 0.0, most: float = 1.0) -> Any:
        """Returns a variable in {0, 1}; with `least` equal to `most` it is fixed."""
        return self.model.addVar(lb=least, ub=most, vtype="B", name=name)

    def bytes_of(self, i: int, workspace: bool = False) -> Any:
        """Returns the bytes of the result or of the workspace of i under its strategy, in the unit
        of memory."""
        o, scale = self.graph.operators[i], MEMORY_UNITS / max(1, self.limit_bytes)
        sizes = o.workspace_bytes if workspace else o.result_bytes
        return sum(scale * b * s for b, s in zip(sizes, self.chosen[i], strict=True))

    def add_all(self) -> None:
        """Adds all variables and constraints, in the order of the module's list."""
        self._add_choices()
        self._add_runs()
        self._add_dependencies()
        for t in self.graph.computing:
            self._add_memory(t)
        for one in self.graph.reads:
            self._add_pairs(one.producer, one.reader, one)
        self.model.setObjective(self._cost(), 1)

    def _add_choices(self) -> None:
        """(a)"""
        for i, o in enumerate(self.graph.operators):
            self.chosen.append([self.binary(f"s[{i},{k}]") for k in range(o.count)])
            self.model.addConstr(sum(self.chosen[i]) == 1, name=f"one[{i}]")

    def _add_runs(self) -> None:
        """(b), (e)"""
        for t in self.graph.computing:
            for i in range(self.graph.first):
                self.kept[t, i] = 1.0
            for i in range(self.graph.first, t + 1):
                most = float(i == t or self.graph.operators[i].may_recompute)
                self.computed[t, i] = self.binary(f"A[{t},{i}]", float(i == t), most)
                if i < t:
                    self.kept[t, i] = self.binary(f"B[{t},{i}]")

    def _there(self, t: int, i: int) -> Any:
        return self.computed.get((t, i), 0.0) + self.kept.get((t, i), 0.0)

    def _add_dependencies(self) -> None:
        """(c), (d), and results at the end"""
        first = self.graph.first
        for t, j in self.computed:
            for i in self.graph.inputs[j]:
                if i >= first:
                    row = self.computed[t, j] <= self._there(t, i)
                    self.model.addConstr(row, name=f"inputs[{t},{i},{j}]")
            if j < t:
                row = self.kept[t, j] <= self._there(t - 1, j)
                self.model.addConstr(row, name=f"kept[{t},{j}]")
        for i in self.graph.results:
            if first <= i < self.last:
                self.model.addConstr(self._there(self.last, i) >= 1, name=f"results[{i}]")

    def _add_memory(self, t: int) -> None:
        """(f), (h)"""
        held: Any = sum(self.kept.get((t, i), 0.0) * self.bytes_of(i) for i in range(t))
        for k in range(self.graph.first, t + 1):
            used = self.model.addVar(lb=0.0, ub=MEMORY_UNITS, name=f"U[{t},{k}]")
            row = used == held + self.computed[t, k] * self.bytes_of(k)
            self.model.addQConstr(row, name=f"memory[{t},{k}]")
            if any(self.graph.operators[k].workspace_bytes):
                work = self.computed[t, k] * self.bytes_of(k, workspace=True)
                self.model.addQConstr(used + work <= MEMORY_UNITS, name=f"budget[{t},{k}]")
            candidates = [i for i in (*self.graph.inputs[k], k) if i >= self.graph.first]
            held = used - sum(self._freed(t, i, k) * self.bytes_of(i) for i in candidates)

    def _freed(self, t: int, i: int, k: int) -> Any:
        """Constraint (g). Returns F, which is 1 if and only if none of the factors is 0."""
        if t == self.last and i in self.graph.results:
            return 0.0
        freed = self.binary(f"F[{t},{i},{k}]")
        later = [self.computed[t, j] for j in self.graph.readers[i] if k < j <= t]
        hazards = (1 - self.computed[t, k]) + self.kept.get((t + 1, i), 0.0) + sum(later)
        self.model.addConstr(1 - freed <= hazards, name=f"freed[{t},{i},{k},least]")
        most = len(later) + 2
        self.model.addConstr(hazards <= most * (1 - freed), name=f"freed[{t},{i},{k},most]")
        return freed

    def _add_pairs(self, i: int, j: int, one: Read) -> None:
        """(i)"""
        tail, head = self.chosen[i], self.chosen[j]
        rows, columns = one.seconds.shape
        cells = [(o, p) for o in range(rows) for p in range(columns)]
        e = {(o, p): self.binary(f"e[{i},{j},{o},{p}]") for o, p in cells}
        for p in range(columns):
            into = sum(e[o, p] for o in range(rows))
            self.model.addConstr(into <= head[p], name=f"head[{i},{j},{p}]")
        for o in range(rows):
            out = sum(e[o, p] for p in range(columns))
            self.model.addConstr(out <= tail[o], name=f"tail[{i},{j},{o}]")
        self.model.addConstr(sum(e.values()) == 1, name=f"pair[{i},{j}]")
        self.pairs[i, j] = e

    def _cost(self) -> Any:
        """Returns the objective (1), including costs that are paid once."""
        unit = 1.0 / self.scale_seconds
        step_costs = [self._step_cost(i) for i in range(len(self.graph.operators))]
        total: Any = sum(run * step_costs[i] for (_t, i), run in self.computed.items())
        for i, o in enumerate(self.graph.operators):
            once = o.once_seconds or (0.0,) * o.count
            total += sum(c * s for c, s in zip(once, self.chosen[i], strict=True))
        for tie in self.graph.ties:
            rows, columns = self.chosen[tie.first], self.chosen[tie.second]
            total += sum(
                float(tie.seconds[o, p]) * s * r
                for o, s in enumerate(rows)
                for p, r in enumerate(columns)
            )
        return unit * total

    def _step_cost(self, i: int) -> Any:
        """Returns the seconds of one computation of i, with the resharding of its operands."""
        seconds = self.graph.operators[i].seconds
        total: Any = sum(c * s for c, s in zip(seconds, self.chosen[i], strict=True))
        for read in self.graph.reads:
            if read.reader == i:
                pair = self.pairs[read.producer, i]
                total += sum(float(read.seconds[cell]) * e for cell, e in pair.items())
        return total

    def read_answer(self) -> tuple[Schedule, tuple[int, ...]]:
        """Returns the schedule and the strategies of the solution."""
        strategies = tuple(max(range(len(c)), key=lambda o: c[o].X) for c in self.chosen)
        runs = [cell for cell in sorted(self.computed) if self.computed[cell].X > 0.5]
        return Schedule(tuple(i for _, i in runs)), strategies
