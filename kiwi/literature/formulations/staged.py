"""The paper's full model (Eq. 1, appendix 7.1) as a tight integer linear program.

Sets, data, variables and rows, each with the paper's number, are in
docs/literature/paper_models.md, "The same in rows". The methods below name the rows in brackets, as
that page does. Memory is scaled to the limit, time to the cheapest step. `As, Bs, Hs` are products
with the strategy (`kiwi.literature.formulations.program`).

Equations 17 to 20 define U by a recurrence over F, which says what is freed. This program uses H,
which says what is held, in place of 1 - F. It needs no chain of equations, and its products relax
to convex hulls instead of big-M rows.
"""

from collections.abc import Sequence
from typing import ClassVar

from ortools.math_opt.python import mathopt

from kiwi.literature.formulations.program import MEMORY_UNITS, Linear, StrategyProgram, dot
from kiwi.literature.formulations.sharded_graph import ShardedGraph, Solution
from kiwi.solver.schedule import Schedule


class StagedModel(StrategyProgram):
    """The integer program for a memory limit in bytes, and the variables that define its answer."""

    families: ClassVar = {
        "the memory held while some operator runs is within the limit": ("memory",),
        "the inputs of an operator are there when it runs (Eq. 12)": ("inputs",),
        "only what is there can be kept (Eq. 13)": ("kept",),
        "a value is held until its users in a stage have run (Eq. 17-20)": ("hold",),
        "the results are there at the end": ("results",),
    }

    def __init__(self, graph: ShardedGraph, limit_bytes: int) -> None:
        super().__init__(graph, limit_bytes)
        self.last = len(graph.operators) - 1
        self.computed: dict[tuple[int, int], mathopt.Variable] = {}
        self.kept: dict[tuple[int, int], mathopt.Variable] = {}
        self._computed_as: dict[tuple[int, int], list[mathopt.Variable]] = {}
        self._kept_as: dict[tuple[int, int], list[mathopt.Variable]] = {}
        self._held_as: dict[tuple[int, int, int], list[mathopt.Variable]] = {}
        self._add_runs()
        self._add_inputs()
        self._add_kept()
        self._add_needed()
        self._add_results()
        self._add_holds()
        self._add_memory()
        runs: list[list[list[mathopt.Variable]]] = [[] for _ in graph.operators]
        for (_t, i), parts in self._computed_as.items():
            runs[i].append(parts)
        self.minimise(runs)

    def read_answer(self, values) -> Solution:
        """Returns the schedule and the strategies of a solution."""
        runs = [cell for cell in sorted(self.computed) if values[self.computed[cell]] > 0.5]
        return Schedule(tuple(i for _, i in runs)), self.strategies(values)

    def add_bound(self, seconds: float) -> None:
        """Adds the row [bound]: the objective is at least `seconds`, less the solver's tolerance.

        `seconds` is a lower bound on every schedule (`kiwi.literature.formulations.relaxation`).
        """
        least = seconds / self.scale_seconds * (1.0 - 1e-9)
        self.add(self.model.objective.as_linear_expression() >= least, "bound")

    def hint(self, schedule: Schedule, strategies: Sequence[int]) -> dict[mathopt.Variable, float]:
        """Returns the variables' values in a known solution, from which some solvers can start."""
        strategy_hints = {
            variable: float(option == strategy)
            for strategy, variables in zip(strategies, self.chosen, strict=True)
            for option, variable in enumerate(variables)
        }
        runs, stage = set(), self.graph.first
        for i in schedule.steps:
            runs.add((stage, i))
            stage += i == stage
        return strategy_hints | {
            variable: float(cell in runs) for cell, variable in self.computed.items()
        }

    def _users(self, t: int, i: int) -> list[int]:
        """Returns the readers of i that may run in stage t."""
        return [j for j in self.graph.readers[i] if j <= t]

    def _there(self, t: int, i: int) -> Linear:
        run = self.computed[t, i]
        return run + self.kept[t, i] if (t, i) in self.kept else run

    def _add_runs(self) -> None:
        """Adds A, B and their products with s, and the rows [once].

        A[t, t] = 1 (progress). Parameters have no A and no B.
        """
        for t in self.graph.computing:
            for i in range(self.graph.first, t):
                again = float(self.graph.operators[i].may_recompute)
                run = self.model.add_integer_variable(lb=0.0, ub=again, name=f"A[{t},{i}]")
                keep = self.model.add_binary_variable(name=f"B[{t},{i}]")
                self.computed[t, i], self.kept[t, i] = run, keep
                self._computed_as[t, i] = self.times(run, i, f"As[{t},{i}]")
                self._kept_as[t, i] = self.times(keep, i, f"Bs[{t},{i}]")
                self.add(run + keep <= 1.0, f"once[{t},{i}]")
            run = self.model.add_integer_variable(lb=1.0, ub=1.0, name=f"A[{t},{t}]")
            self.computed[t, t], self._computed_as[t, t] = run, self.chosen[t]

    def _add_inputs(self) -> None:
        """Adds the rows [inputs] (Eq. 12)."""
        for (t, j), run in self.computed.items():
            for i in self.graph.inputs[j]:
                if i >= self.graph.first:
                    self.add(run <= self._there(t, i), f"inputs[{t},{i},{j}]")

    def _add_kept(self) -> None:
        """Adds the rows [kept] (Eq. 13)."""
        for (t, i), keep in self.kept.items():
            self.add(keep <= self._there(t - 1, i), f"kept[{t},{i}]")

    def _add_needed(self) -> None:
        """Adds the rows [needed]: a recomputation is used in its stage or kept for the next."""
        for (t, i), run in self.computed.items():
            if i != t and not self._is_result_at_end(t, i):
                uses = [self.computed[t, j] for j in self._users(t, i)]
                uses += [self.kept[t + 1, i]] if t < self.last else []
                self.add(run <= mathopt.fast_sum(uses), f"needed[{t},{i}]")

    def _is_result_at_end(self, t: int, i: int) -> bool:
        return t == self.last and i in self.graph.results

    def _add_results(self) -> None:
        """Adds the rows [results]: results of the step are in memory at the end."""
        for i in self.graph.results:
            if self.graph.first <= i < self.last:
                self.add(self._there(self.last, i) >= 1.0, f"results[{i}]")

    def _add_holds(self) -> None:
        """Adds the rows [hold], which stand for Eq. 17 to 20."""
        for t, i in self.computed:
            users = [] if self._is_result_at_end(t, i) else self._users(t, i)
            for q in range(len(users)):
                hold = self.share(f"H[{t},{i},{q}]")
                parts = self._held_as[t, i, q] = self.times(hold, i, f"Hs[{t},{i},{q}]")
                for j in users[q:]:
                    self.add(hold >= self.computed[t, j], f"hold[{t},{i},{q},{j}]")
                for o, kept in enumerate(self._kept_as.get((t + 1, i), ())):
                    self.add(parts[o] >= kept, f"hold[{t},{i},{q},kept,{o}]")

    def _held(self, t: int, i: int, k: int) -> list[mathopt.Variable]:
        """Returns, for each strategy of operator i, the variable that says whether the result of i
        is held while operator k runs in stage t. The list is empty if it is never held then."""
        if i > k:
            return self._kept_as.get((t, i), [])
        if self._is_result_at_end(t, i):
            return self.chosen[i]
        past = sum(j < k for j in self._users(t, i))
        return self._held_as.get((t, i, past)) or self._kept_as.get((t + 1, i), [])

    def _add_memory(self) -> None:
        """Adds the rows [memory] (Eq. 15, 16)."""
        first = self.graph.first
        parameters = [dot(self.size[i], self.chosen[i]) for i in range(first)]
        for (t, k), run in self._computed_as.items():
            held = [dot(self.size[k], run), dot(self.work[k], run), *parameters]
            others = ((i, self._held(t, i, k)) for i in range(first, t + 1) if i != k)
            held += [dot(self.size[i], parts) for i, parts in others if parts]
            self.add(mathopt.fast_sum(held) <= MEMORY_UNITS, f"memory[{t},{k}]")
