"""The paper's model of reduced complexity (Eq. 2-11), linearised as in its appendix (Eq. 24-31).

The model makes three simplifications. An operator is recomputed at most once, and only for the
backward pass. Backward operators are not recomputed. No input of a recomputed operator is
recomputed.

Sets, data, variables and rows, each with the paper's number, are in
docs/literature/paper_models.md, "The same in rows". The methods below name the rows in brackets, as
that page does. `hz[i, j]` in {0, 1} selects the term that attains the maximum that defines h.
`F-, F, F+[i, k]` say that h[i] < k, = k, > k.

Beyond the paper, the model counts workspaces and does not free results of the step. An operator has
m = 1 if the backward pass does not read it or if it may not be computed again.
"""

from typing import ClassVar

from ortools.math_opt.python import mathopt

from kiwi.literature.formulations.program import MEMORY_UNITS, Linear, StrategyProgram, dot
from kiwi.literature.formulations.sharded_graph import ShardedGraph, Solution, repeated_before

_DELTA = 0.5
"""The strictness margin of Eq. 29. Times are integers, so any value below 1 is exact."""


class ReducedModel(StrategyProgram):
    """The integer program for a memory limit in bytes, and the variables that define its answer.

    `late[i]` is the time before which operator i may be recomputed. `again[i]` holds one variable
    for each strategy of operator i: whether the operator is recomputed under that strategy.
    """

    families: ClassVar = {
        "the memory held while some operator runs is within the limit (Eq. 8)": ("memory",),
        "no input of a recomputed operator is recomputed (Eq. 9)": ("inputs",),
        "a value is held until the recomputations that read it (Eq. 10, 11)": ("when", "freed"),
    }

    def __init__(self, graph: ShardedGraph, limit_bytes: int) -> None:
        super().__init__(graph, limit_bytes)
        late_uses = enumerate(graph.first_late_use)
        self.late = {i: time for i, time in late_uses if time is not None and graph.may_repeat(i)}
        self.stays = [
            self.model.add_integer_variable(lb=float(i not in self.late), ub=1.0, name=f"m[{i}]")
            for i in range(len(graph.operators))
        ]
        self.again = {i: self.times(1.0 - self.stays[i], i, f"again[{i}]") for i in self.late}
        self._freed: dict[tuple[int, int], mathopt.Variable] = {}
        self._add_inputs()
        self._add_times()
        self._add_memory()
        again = ([self.again[i]] if i in self.again else [] for i in range(len(graph.operators)))
        self.minimise(
            [[first_run, *repeats] for first_run, repeats in zip(self.chosen, again, strict=True)]
        )

    def read_answer(self, values) -> Solution:
        """Returns the schedule and the strategies of a solution."""
        at = [(i, time) for i, time in self.late.items() if values[self.stays[i]] < 0.5]
        return repeated_before(self.graph, at), self.strategies(values)

    def _add_inputs(self) -> None:
        """Adds the rows [inputs] (Eq. 9)."""
        for j in self.late:
            inputs = self.graph.inputs[j]
            if inputs:
                big = float(len(inputs))
                staying = mathopt.fast_sum(self.stays[i] for i in inputs)
                self.add(big * self.stays[j] + staying >= big, f"inputs[{j}]")

    def _add_times(self) -> None:
        """Adds the rows [when] and [freed] for forward operators that the step does not return."""
        for i, operator in enumerate(self.graph.operators):
            if operator.is_parameter or not operator.is_forward or i in self.graph.results:
                continue
            live = self.graph.last_use[i]
            readers = [j for j in self.graph.readers[i] if j in self.late]
            later = {self.late[j] for j in readers}
            candidates = sorted({live, *(time for time in later if time > live)})
            h = self.model.add_variable(lb=live, ub=candidates[-1], name=f"h[{i}]")
            self._add_maximum(i, h, readers)
            for k in candidates:
                self._add_freed(i, k, h)

    def _add_maximum(self, i: int, h: mathopt.Variable, readers: list[int]) -> None:
        """Adds the rows [when] (Eq. 24 to 28), which define `h` as a maximum."""
        big, live = float(len(self.graph.operators)), self.graph.last_use[i]
        hz = self._one_hot(len(readers) + 1, f"hz[{i}]")
        self.add(h <= live + big * (1.0 - hz[0]), f"when[{i},live]")
        for j, attains in zip(readers, hz[1:], strict=True):
            time = self.late[j] * (1.0 - self.stays[j])
            self.add(h >= time, f"when[{i},{j},least]")
            self.add(h <= time + big * (1.0 - attains), f"when[{i},{j},most]")

    def _add_freed(self, i: int, k: int, h: mathopt.Variable) -> None:
        """Adds the rows [freed] (Eq. 29 and 30): whether operator i is freed at time k."""
        big = float(len(self.graph.operators))
        before, at, after = self._one_hot(3, f"F[{i},{k}]")
        self.add(k * at + (k + _DELTA) * after <= h, f"freed[{i},{k},low]")
        self.add(h <= (k - _DELTA) * before + k * at + big * after, f"freed[{i},{k},high]")
        self._freed[i, k] = at

    def _add_memory(self) -> None:
        """Adds the rows [memory] (Eq. 3 to 8)."""
        graph = self.graph
        held: Linear = mathopt.fast_sum(
            dot(self.size[i], self.chosen[i]) for i in range(graph.first)
        )
        for k in graph.computing:
            running = [(k, self.chosen[k])]
            running += [(i, self.again[i]) for i, late in self.late.items() if late == k]
            used = held + mathopt.fast_sum(dot(self.size[i], parts) for i, parts in running)
            work = mathopt.fast_sum(dot(self.work[i], parts) for i, parts in running)
            self.add(used + work <= MEMORY_UNITS, f"memory[{k}]")
            held = used - self._freed_after(k)

    def _freed_after(self, k: int) -> Linear:
        """Returns the memory of the values that are freed after operator k (Eq. 6 and 7)."""
        graph = self.graph
        freed = [
            (i, self.times(at, i, f"Fs[{i},{k}]"))
            for (i, time), at in self._freed.items()
            if time == k
        ]
        freed += [(i, again) for i, again in self.again.items() if graph.last_forward_use[i] == k]
        for i in graph.computing:
            ends = not graph.operators[i].is_forward and i not in graph.results
            if ends and graph.last_use[i] == k:
                freed.append((i, self.chosen[i]))
        return mathopt.fast_sum(dot(self.size[i], parts) for i, parts in freed)
