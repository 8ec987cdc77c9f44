"""Moccasin (Bartan et al., ICML 2023): retention intervals in CP-SAT, at most C computations each.

**Sets.** Operators k and stages t >= k by the given order; copies c = 0 … C - 1 of each operator.
Time has one slot for each stage and operator: slot(t, k) = t (t + 1) / 2 + k.

**Data.** time(k), bytes of values, temporary bytes of operators, budget B, all integers.

**Variables.** `active[k, c]`; `start[k, c]` in the slots of k; per written value v and copy c of
its writer `end[v, c]`: the slot in which it is last read. The retention interval of (v, c) is
[start, end], the one of temporary memory is [start, start].

**Minimise** the sum of time(k) active[k, c].

**Constraints**

- (a) The first copy is active and starts in slot(k, k); the second is not active where the
  operator may not run again.
- (b) Copies are used in turn: active[k, c + 1] implies active[k, c], and start[k, c + 1] comes
  after end[v, c] for all outputs v of k.
- (c) Each active copy of k lies, for each input v, in the retention interval of some active copy
  of v's writer, after its start: one of the booleans `reads[k, c, v, d]` is true.
- (d) Results: some active copy is retained until the last slot (`reads_end[v, d]`).
- (e) At each slot, the bytes of the retention intervals do not exceed B (cumulative).

With C = n, the copies do not bind, and the schedules are those of Checkmate.
"""

from ortools.sat.python import cp_model

from kiwi.solver.remat.graph import RematGraph
from kiwi.solver.remat.result import Finding, Task
from kiwi.solver.schedule import Schedule

MOST_COPIES = 2
TIME_UNITS = 10**9


class _Model:
    """The program under construction: one method per constraint family."""

    def __init__(self, graph: RematGraph, budget_bytes: int, copies: int) -> None:
        self.graph, self.copies, self.count = graph, copies, len(graph.order)
        self.rank = {operator: place for place, operator in enumerate(graph.order)}
        self.last_slot = _slot(self.count - 1, self.count - 1)
        self.model = cp_model.CpModel()
        self.active: dict[tuple[int, int], cp_model.IntVar] = {}
        self.start: dict[tuple[int, int], cp_model.IntVar] = {}
        self.end: dict[tuple[int, int], cp_model.IntVar] = {}
        self._add_variables()
        self._add_first_copies()
        self._add_turns()
        self._add_readings()
        self._add_results()
        self._add_budget(budget_bytes - graph.resident_bytes)
        self._add_objective()

    def _add_variables(self) -> None:
        for k, operator in enumerate(self.graph.operators):
            first = self.rank[k]
            slots = [_slot(stage, first) for stage in range(first, self.count)]
            domain = cp_model.Domain.from_values(slots)
            for c in range(self.copies):
                self.active[k, c] = self.model.new_bool_var(f"active[{k},{c}]")
                self.start[k, c] = self.model.new_int_var_from_domain(domain, f"start[{k},{c}]")
                for v in operator.outputs:
                    end = self.model.new_int_var(slots[0], self.last_slot, f"end[{v},{c}]")
                    self.end[v, c] = end
                    self.model.add(end >= self.start[k, c])

    def _add_first_copies(self) -> None:
        """(a)"""
        for k, first in self.rank.items():
            self.model.add(self.active[k, 0] == 1)
            if not self.graph.operators[k].recomputable and self.copies > 1:
                self.model.add(self.active[k, 1] == 0)
            self.model.add(self.start[k, 0] == _slot(first, first))

    def _add_turns(self) -> None:
        """(b)"""
        for k, c in self.active:
            if c + 1 < self.copies:
                later = self.active[k, c + 1]
                self.model.add_implication(later, self.active[k, c])
                self.model.add(self.start[k, c] < self.start[k, c + 1]).only_enforce_if(later)
                for v in self.graph.operators[k].outputs:
                    row = self.model.add(self.end[v, c] < self.start[k, c + 1])
                    row.only_enforce_if(later)

    def _add_readings(self) -> None:
        """(c)"""
        for k, c in self.active:
            for v in self.graph.operators[k].inputs:
                writer = self.graph.producer[v]
                if writer < 0:
                    continue
                choices = []
                for d in range(self.copies):
                    reads = self.model.new_bool_var(f"reads[{k},{c},{v},{d}]")
                    self.model.add_implication(reads, self.active[writer, d])
                    self.model.add(self.start[writer, d] < self.start[k, c]).only_enforce_if(reads)
                    self.model.add(self.end[v, d] >= self.start[k, c]).only_enforce_if(reads)
                    choices.append(reads)
                self.model.add_bool_or([*choices, ~self.active[k, c]])

    def _add_results(self) -> None:
        """(d)"""
        for v in self.graph.results:
            writer = self.graph.producer[v]
            if writer < 0:
                continue
            choices = []
            for d in range(self.copies):
                reads = self.model.new_bool_var(f"reads_end[{v},{d}]")
                self.model.add_implication(reads, self.active[writer, d])
                self.model.add(self.end[v, d] == self.last_slot).only_enforce_if(reads)
                choices.append(reads)
            self.model.add_bool_or(choices)

    def _add_budget(self, budget_bytes: int) -> None:
        """(e)"""
        intervals, demands = [], []
        for k, c in self.active:
            start, active = self.start[k, c], self.active[k, c]
            for v in self.graph.operators[k].outputs:
                size = self.model.new_int_var(1, self.last_slot + 1, f"size[{v},{c}]")
                past = self.end[v, c] + 1
                name = f"retention[{v},{c}]"
                intervals.append(
                    self.model.new_optional_interval_var(start, size, past, active, name)
                )
                demands.append(self.graph.values[v].size_bytes)
            temporary = self.graph.operators[k].temporary_bytes
            if temporary:
                name = f"temporary[{k},{c}]"
                intervals.append(
                    self.model.new_optional_fixed_size_interval_var(start, 1, active, name)
                )
                demands.append(temporary)
        self.model.add_cumulative(intervals, demands, budget_bytes)

    def _add_objective(self) -> None:
        unit = time_unit(self.graph)
        self.model.minimize(
            sum(
                round(self.graph.operators[k].compute_seconds / unit) * active
                for (k, _), active in self.active.items()
            )
        )


def time_unit(graph: RematGraph) -> float:
    """The unit in which times are integers: 1 where they are integers already."""
    seconds = [operator.compute_seconds for operator in graph.operators]
    if all(float(each).is_integer() for each in seconds) and sum(seconds) < TIME_UNITS:
        return 1.0
    return (graph.once_seconds or 1.0) / TIME_UNITS


def moccasin(task: Task, copies: int = MOST_COPIES) -> Finding:
    """The best schedule with at most `copies` computations of each operator, by CP-SAT."""
    graph = task.graph
    built = _Model(graph, task.budget_bytes, copies)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.01, task.remaining_seconds())
    solver.parameters.random_seed = task.seed % (1 << 30)
    solver.parameters.num_workers = 2
    status = solver.solve(built.model)
    infeasible = status == cp_model.INFEASIBLE
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Finding(None, family_is_infeasible=infeasible, deterministic=infeasible)
    computed = sorted(
        (solver.value(built.start[k, c]), k)
        for (k, c), active in built.active.items()
        if solver.boolean_value(active)
    )
    return Finding(
        Schedule(tuple(k for _, k in computed)),
        family_bound_seconds=solver.best_objective_bound * time_unit(graph),
        iterations=solver.num_branches,
        deterministic=status == cp_model.OPTIMAL,
    )


def _slot(stage: int, place: int) -> int:
    return stage * (stage + 1) // 2 + place
