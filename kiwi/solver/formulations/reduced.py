"""The paper's model of reduced complexity (Eq. 2-11), linear as in its appendix (Eq. 24-31).

Its three simplifications: an operator is recomputed at most once, and only for the backward pass;
backward operators are not recomputed; no input of a recomputed operator is recomputed.

**Sets.** Operators i, j in order, parameters first; strategies o, p; X(k): forward operators whose
first use behind the forward pass is k; L(k): those whose last forward use is k; Y(k): operators
that are not forward and last used at k.

**Data.** c[i, o] seconds of computation and communication; r[i, j, o, p] seconds of resharding;
m[i, o] bytes of the result, w[i, o] of workspace; M the limit; H[i] the first use behind the
forward pass, z[i] = 1 where there is one; live[i] the last use. Bytes are scaled to M.

**Variables.** `s[i, o]` in {0, 1}: the strategy. `m[i]` in {0, 1}: the result stays in memory
through the forward pass. `h[i]`: when it is freed at last; `hz[i, j]` in {0, 1}: what attains the
maximum that h is; `F-, F, F+[i, k]` in {0, 1}: h[i] < k, = k, > k.
Products with s as in `kiwi.solver.formulations.products`.

**Minimise** (2) the sum of (1 + z[i] (1 - m[i])) (c[i] s[i] + sum over inputs j of r[j, i] e).

**Constraints** (names of rows in brackets; numbers are the paper's)

- (a) Each operator has one strategy (21) [one].
- (b) m[j] = 0 implies m[i] = 1 for all inputs i (9, 31) [inputs].
- (c) h[i] = max(live[i], H[j] (1 - m[j]) over readers j) (10, 24-28) [when].
- (d) F[i, k] = 1 if and only if h[i] = k (11, 29, 30) [freed].
- (e) U[k + 1] = U[k] + m s[k + 1] + recomputed for k + 1 - freed after k (3-7): U is this sum,
  not a variable, which solvers over the integers could not take.
- (f) U[k] and the workspaces of k and of what is recomputed for it need at most M (8) [memory].

Beyond the paper: workspaces (f); results of the step are not freed; an operator that the backward
pass does not read, or that may not be computed again, has m = 1.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from ortools.math_opt.python import mathopt

from kiwi.solver.formulations.answer import Solution, repeated_before
from kiwi.solver.formulations.conflict import Family
from kiwi.solver.formulations.products import Linear, dot, one_hot, pair_cost, times
from kiwi.solver.formulations.sharded_graph import ShardedGraph

MEMORY_UNITS = 1000.0
"""The limit in the model's unit of memory."""
FAMILIES = (
    Family("the memory held while some operator runs is within the limit (Eq. 8)", ("memory",)),
    Family("no input of a recomputed operator is recomputed (Eq. 9)", ("inputs",)),
    Family("a value is held until the recomputations that read it (Eq. 10, 11)", ("when", "freed")),
)
"""What the model demands, in words, by the names of its rows."""
_DELTA = 0.5
"""Between whole points of time: strictly below 1 is all that Eq. 29 asks for."""


@dataclass(eq=False)
class ReducedModel:
    """The program, and the variables that an answer is read from."""

    families: ClassVar[tuple[Family, ...]] = FAMILIES

    graph: ShardedGraph
    limit_bytes: int
    scale_seconds: float
    model: mathopt.Model = field(default_factory=lambda: mathopt.Model(name="reduced"))
    chosen: list[list[mathopt.Variable]] = field(default_factory=list)
    stays: list[mathopt.Variable] = field(default_factory=list)
    freed: dict[tuple[int, int], mathopt.Variable] = field(default_factory=dict)
    again: dict[int, list[mathopt.Variable]] = field(default_factory=dict)

    def read_answer(self, values) -> Solution:
        """Schedule and strategies of a solution."""
        strategies = tuple(max(range(len(c)), key=lambda o: values[c[o]]) for c in self.chosen)
        at = [
            (i, time)
            for i, time in enumerate(self.graph.first_late_use)
            if time is not None and values[self.stays[i]] < 0.5
        ]
        return repeated_before(self.graph, at), strategies


def build_reduced(graph: ShardedGraph, limit_bytes: int) -> ReducedModel:
    """The program for a limit in bytes."""
    cheapest = sum(min(o.seconds) for o in graph.operators)
    built = ReducedModel(graph, limit_bytes, cheapest or 1.0)
    model = built.model
    for i, o in enumerate(graph.operators):
        built.chosen.append(one_hot(model, o.count, f"s[{i}]"))
        free = graph.may_repeat(i) and graph.first_late_use[i] is not None
        built.stays.append(model.add_integer_variable(lb=float(not free), ub=1.0, name=f"m[{i}]"))
        if free:
            built.again[i] = times(model, 1.0 - built.stays[i], built.chosen[i], f"again[{i}]")
    _add_inputs(built)
    _add_times(built)
    _add_memory(built)
    model.minimize(_cost(built))
    return built


def _add_inputs(built: ReducedModel) -> None:
    """(b)"""
    for j, inputs in enumerate(built.graph.inputs):
        if inputs and j in built.again:
            big = float(len(inputs))
            row = big * built.stays[j] + mathopt.fast_sum(built.stays[i] for i in inputs) >= big
            built.model.add_linear_constraint(row, name=f"inputs[{j}]")


def _add_times(built: ReducedModel) -> None:
    """(c), (d), for forward operators that some reader may be recomputed behind."""
    graph, model = built.graph, built.model
    for i, o in enumerate(graph.operators):
        if o.is_parameter or not o.is_forward or i in graph.results:
            continue
        live = graph.last_use[i]
        readers = [j for j in graph.readers[i] if j in built.again]
        later = {_late(graph, j) for j in readers}
        candidates = sorted({live, *(t for t in later if t > live)})
        h = model.add_variable(lb=live, ub=candidates[-1], name=f"h[{i}]")
        _add_maximum(built, i, h, readers)
        for k in candidates:
            _add_freed(built, i, k, h)


def _late(graph: ShardedGraph, j: int) -> int:
    time = graph.first_late_use[j]
    assert time is not None
    return time


def _add_maximum(built: ReducedModel, i: int, h: mathopt.Variable, readers: list[int]) -> None:
    """(c): Eq. 24 to 28."""
    graph, model = built.graph, built.model
    big, live = float(len(graph.operators)), graph.last_use[i]
    hz = [model.add_binary_variable(name=f"hz[{i},{q}]") for q in range(len(readers) + 1)]
    model.add_linear_constraint(mathopt.fast_sum(hz) == 1.0, name=f"when[{i}]")
    model.add_linear_constraint(h <= live + big * (1.0 - hz[0]), name=f"when[{i},live]")
    for j, attains in zip(readers, hz[1:], strict=True):
        time = _late(graph, j) * (1.0 - built.stays[j])
        model.add_linear_constraint(h >= time, name=f"when[{i},{j},least]")
        row = h <= time + big * (1.0 - attains)
        model.add_linear_constraint(row, name=f"when[{i},{j},most]")


def _add_freed(built: ReducedModel, i: int, k: int, h: mathopt.Variable) -> None:
    """(d): Eq. 29 and 30."""
    model, big = built.model, float(len(built.graph.operators))
    before, at, after = (model.add_binary_variable(name=f"{f}[{i},{k}]") for f in ("F-", "F", "F+"))
    model.add_linear_constraint(before + at + after == 1.0, name=f"freed[{i},{k}]")
    low = k * at + (k + _DELTA) * after
    model.add_linear_constraint(low <= h, name=f"freed[{i},{k},low]")
    high = (k - _DELTA) * before + k * at + big * after
    model.add_linear_constraint(h <= high, name=f"freed[{i},{k},high]")
    built.freed[i, k] = at


def _add_memory(built: ReducedModel) -> None:
    """(e), (f)"""
    graph, model, scale = built.graph, built.model, MEMORY_UNITS / max(1, built.limit_bytes)
    size = [[scale * b for b in o.result_bytes] for o in graph.operators]
    held: Linear = mathopt.fast_sum(dot(size[i], built.chosen[i]) for i in range(graph.first))
    for k in graph.computing:
        repeated = [i for i in built.again if graph.first_late_use[i] == k]
        new = [dot(size[k], built.chosen[k]), *(dot(size[i], built.again[i]) for i in repeated)]
        used = held + mathopt.fast_sum(new)
        work = [dot([scale * w for w in graph.operators[k].workspace_bytes], built.chosen[k])]
        work += [
            dot([scale * w for w in graph.operators[i].workspace_bytes], built.again[i])
            for i in repeated
        ]
        row = used + mathopt.fast_sum(work) <= MEMORY_UNITS
        model.add_linear_constraint(row, name=f"memory[{k}]")
        held = used - _freed_after(built, k, size)


def _freed_after(built: ReducedModel, k: int, size: list[list[float]]) -> Linear:
    """What is freed after operator k ran: Eq. 6 and 7."""
    graph = built.graph
    freed: list[Linear] = []
    for (i, time), at in built.freed.items():
        if time == k:
            parts = times(built.model, at, built.chosen[i], f"Fs[{i},{k}]")
            freed.append(dot(size[i], parts))
    for i, again in built.again.items():
        if graph.last_forward_use[i] == k:
            freed.append(dot(size[i], again))
    for i in graph.computing:
        ends = not graph.operators[i].is_forward and i not in graph.results
        if ends and graph.last_use[i] == k:
            freed.append(dot(size[i], built.chosen[i]))
    return mathopt.fast_sum(freed)


def _cost(built: ReducedModel) -> Linear:
    """The objective (2), in units of `scale_seconds`."""
    graph, unit = built.graph, 1.0 / built.scale_seconds
    terms: list[Linear] = []
    for i, o in enumerate(graph.operators):
        once = o.once_seconds or (0.0,) * o.count
        terms.append(
            dot([unit * (a + b) for a, b in zip(o.seconds, once, strict=True)], built.chosen[i])
        )
        if i in built.again:
            terms.append(dot([unit * c for c in o.seconds], built.again[i]))
    for read in graph.reads:
        i, j = read.producer, read.reader
        runs = [built.chosen[j], *([built.again[j]] if j in built.again else [])]
        for run, head in enumerate(runs):
            costs, name = unit * read.seconds, f"e[{run},{i},{j}]"
            terms.append(pair_cost(built.model, costs, built.chosen[i], head, name))
    for tie in graph.ties:
        ends = built.chosen[tie.first], built.chosen[tie.second]
        name = f"tie[{tie.first},{tie.second}]"
        terms.append(pair_cost(built.model, unit * tie.seconds, *ends, name))
    return mathopt.fast_sum(terms)
