"""rk-checkmate (Zhao's thesis, section 2.4): computations and values apart, temporary memory.

An operator with several outputs can have one of them dropped and the other kept, which
Checkmate's joint treatment cannot express. Every value has one writer here; gradients that
accumulate are operators of their own. Fast-forward computations and phantoms (a framework's
hidden saved tensors) do not occur in a plain graph: what backward reads is listed as a value.

**Sets.** Operators k and stages t >= k by the given order, stage t ends with the first computation
of operator t; values v with writer w(v) and readers; uses(v) = {w(v)} and readers(v).

**Data.** time(k), tmp(k), M(v), peak budget B, and optionally an operator `loss` with a save
budget. Bytes are scaled to B.

**Variables.** `R[t, k]` in {0, 1}: k is computed in stage t. `P[t, v]` in {0, 1}: v is in memory
when stage t begins. `C[t, v]` in [0, 1]: v is created in stage t. `D[t, v, k]` in [0, 1]: v is
deleted after k in stage t. `U[t, k]` in [0, B]: memory while k runs in stage t.

**Minimise** the sum of time(k) R[t, k].

**Constraints** (names of rows in brackets; numbers of the thesis)

- (a) R[t, t] = 1 (2.5), and R[t, k] = 0 for k < t that is the loss (2.6) or may not run again,
  by bounds.
- (b) R[t, k] <= R[t, w(v)] + P[t, v] for inputs v of k (2.8) [inputs].
- (c) P[t + 1, v] <= P[t, v] + R[t, w(v)] (2.7) [kept].
- (d) R[t, w(v)] - P[t, v] <= C[t, v] <= R[t, w(v)], P[t, v] + C[t, v] <= 1 (2.13, 2.15) [created].
- (e) D[t, v, k] <= R[t, k], 1 - P[t + 1, v] and 1 - R[t, j] for readers j > k (2.16) [deleted].
- (f) U[t, 0] = sum of M(v) P[t, v] + created by 0, and U[t, k] = U[t, k - 1] - deleted after k - 1
  + created by k [memory]; U[t, k] + tmp(k) R[t, k] <= B (2.18) [budget].
- (g) U[loss, loss] - deleted after loss <= save budget (2.19) [after].
- (h) Results are in memory after the last stage [results].
"""

from dataclasses import dataclass

from ortools.math_opt.python import mathopt

from kiwi.solver.remat.milp import (
    BUDGET_UNITS,
    Cells,
    Deletions,
    StagesModel,
    add_computed,
    add_deletions,
    add_memory,
    ranked_graph,
    solve_stages,
)
from kiwi.solver.remat.result import Finding, Task


@dataclass(frozen=True)
class SaveLimit:
    """At most `save_bytes` in memory after the first (and only) computation of operator `loss`."""

    loss: int
    save_bytes: int


def rk_checkmate(task: Task, save: SaveLimit | None = None) -> Finding:
    """The best schedule of partitioned stages in the given order, by HiGHS."""
    return solve_stages(build_rk_checkmate(task, save), task)


def build_rk_checkmate(task: Task, save: SaveLimit | None = None) -> StagesModel:
    """The program for `task`."""
    ranked = ranked_graph(task.graph, task.budget_bytes)
    model = mathopt.Model(name="rk-checkmate")
    loss = ranked.operators.index(save.loss) if save else ranked.count
    repeatable = [again and k != loss for k, again in enumerate(ranked.recomputable)]
    computed = add_computed(model, ranked, repeatable, integer=True)
    present = {
        (t, v): model.add_variable(lb=0.0, ub=1.0, is_integer=True, name=f"P[{t},{v}]")
        for v, writer in ranked.writer.items()
        for t in range(writer + 1, ranked.count + 1)
    }
    created = {
        (t, v): model.add_variable(lb=0.0, ub=1.0, name=f"C[{t},{v}]")
        for v, writer in ranked.writer.items()
        for t in range(writer, ranked.count)
    }
    built = StagesModel(model, ranked, computed, present)
    _add_inputs(built)
    _add_kept(built)
    _add_created(built, created)
    deletions = _add_deleted(built, created)
    _add_memory(built, created, deletions, {(loss, loss): _units(task, save)} if save else {})
    _add_results(built)
    built.minimise_time()
    return built


def _units(task: Task, save: SaveLimit) -> float:
    """The save budget in the program's unit of memory."""
    resident = task.graph.resident_bytes
    unit = BUDGET_UNITS / max(1.0, task.budget_bytes - resident)
    return (save.save_bytes - resident) * unit


def _at_start(built: StagesModel, stage: int, value: int) -> mathopt.Variable | float:
    """P, or zero in stages before which the value cannot have been computed."""
    return built.kept.get((stage, value), 0.0)


def _add_inputs(built: StagesModel) -> None:
    """(b)"""
    for t, k in built.computed:
        for v in built.ranked.inputs[k]:
            there = built.computed[t, built.ranked.writer[v]] + _at_start(built, t, v)
            row = built.computed[t, k] <= there
            built.model.add_linear_constraint(row, name=f"inputs[{t},{k},{v}]")


def _add_kept(built: StagesModel) -> None:
    """(c)"""
    for (t, v), kept in built.kept.items():
        there = built.computed[t - 1, built.ranked.writer[v]] + _at_start(built, t - 1, v)
        built.model.add_linear_constraint(kept <= there, name=f"kept[{t},{v}]")


def _add_created(built: StagesModel, created: Cells) -> None:
    """(d)"""
    for (t, v), each in created.items():
        computed = built.computed[t, built.ranked.writer[v]]
        before = _at_start(built, t, v)
        model, name = built.model, f"created[{t},{v}]"
        model.add_linear_constraint(each <= computed, name=name + "only")
        model.add_linear_constraint(each >= computed - before, name=name + "if")
        model.add_linear_constraint(each + before <= 1.0, name=name + "once")


def _add_deleted(built: StagesModel, created: Cells) -> Deletions:
    """(e)"""
    ranked = built.ranked
    return add_deletions(
        built,
        {(t, v): [k for k in (ranked.writer[v], *ranked.readers[v]) if k <= t] for t, v in created},
    )


def _add_memory(
    built: StagesModel, created: Cells, deletions: Deletions, save: dict[tuple[int, int], float]
) -> None:
    """(f), (g)"""
    ranked = built.ranked

    def new(t: int, k: int) -> mathopt.LinearTypes:
        return mathopt.fast_sum(ranked.size[v] * created[t, v] for v in ranked.outputs[k])

    add_memory(built, ranked.size, new, deletions, save)


def _add_results(built: StagesModel) -> None:
    """(h)"""
    ranked = built.ranked
    for v in ranked.writer:
        if v in ranked.graph.results:
            end = built.kept[ranked.count, v]
            built.model.add_linear_constraint(end == 1.0, name=f"results[{v}]")
