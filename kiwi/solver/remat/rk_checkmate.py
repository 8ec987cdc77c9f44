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
- (g) U[loss, loss] - deleted after loss <= save budget (2.19) [save].
- (h) Results are in memory after the last stage [results].
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ortools.math_opt.python import mathopt

from kiwi.solver.remat.milp import (
    BUDGET_UNITS,
    Cells,
    RankedGraph,
    ranked_graph,
    solve_stages,
    triangle,
)
from kiwi.solver.remat.result import Finding, Task

Deletions = Mapping[tuple[int, int], list[tuple[int, mathopt.Variable]]]


@dataclass(frozen=True)
class SaveLimit:
    """At most `save_bytes` in memory after the first (and only) computation of operator `loss`."""

    loss: int
    save_bytes: int


@dataclass(frozen=True)
class RkModel:
    """The program; `present` is P by (stage, value), `created` is C by (stage, value)."""

    model: mathopt.Model
    ranked: RankedGraph
    computed: Cells
    present: Cells
    created: Cells


def rk_checkmate(task: Task, save: SaveLimit | None = None) -> Finding:
    """The best schedule of partitioned stages in the given order, by HiGHS."""
    built = build_rk_checkmate(task, save)
    return solve_stages(built.model, built.ranked, built.computed, task)


def build_rk_checkmate(task: Task, save: SaveLimit | None = None) -> RkModel:
    """The program for `task`."""
    ranked = ranked_graph(task.graph, task.budget_bytes)
    model = mathopt.Model(name="rk-checkmate")
    loss = ranked.operators.index(save.loss) if save else ranked.count
    cells = triangle(ranked.count)
    computed = {
        (t, k): model.add_variable(
            lb=float(k == t),
            ub=float(k == t or (k != loss and ranked.recomputable[k])),
            is_integer=True,
            name=f"R[{t},{k}]",
        )
        for t, k in cells
    }
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
    built = RkModel(model, ranked, computed, present, created)
    _add_inputs(built)
    _add_kept(built)
    _add_created(built)
    deletions = _add_deleted(built)
    _add_memory(built, deletions, save, loss, task)
    _add_results(built)
    model.minimize(mathopt.fast_sum(ranked.time[k] * computed[t, k] for t, k in cells))
    return built


def _at_start(built: RkModel, stage: int, value: int) -> mathopt.Variable | float:
    """P, or zero in stages before which the value cannot have been computed."""
    return built.present.get((stage, value), 0.0)


def _add_inputs(built: RkModel) -> None:
    """(b)"""
    for t, k in built.computed:
        for v in built.ranked.inputs[k]:
            there = built.computed[t, built.ranked.writer[v]] + _at_start(built, t, v)
            row = built.computed[t, k] <= there
            built.model.add_linear_constraint(row, name=f"inputs[{t},{k},{v}]")


def _add_kept(built: RkModel) -> None:
    """(c)"""
    for (t, v), kept in built.present.items():
        there = built.computed[t - 1, built.ranked.writer[v]] + _at_start(built, t - 1, v)
        built.model.add_linear_constraint(kept <= there, name=f"kept[{t},{v}]")


def _add_created(built: RkModel) -> None:
    """(d)"""
    for (t, v), created in built.created.items():
        computed = built.computed[t, built.ranked.writer[v]]
        before = _at_start(built, t, v)
        model, name = built.model, f"created[{t},{v}]"
        model.add_linear_constraint(created <= computed, name=name + "only")
        model.add_linear_constraint(created >= computed - before, name=name + "if")
        model.add_linear_constraint(created + before <= 1.0, name=name + "once")


def _add_deleted(built: RkModel) -> Deletions:
    """(e); returns, for each stage and operator k, the pairs (v, D[t, v, k])."""
    model, ranked = built.model, built.ranked
    deletions: dict[tuple[int, int], list[tuple[int, mathopt.Variable]]] = {}
    for t, v in built.created:
        uses = [k for k in (ranked.writer[v], *ranked.readers[v]) if k <= t]
        for place, k in enumerate(uses):
            name = f"deleted[{t},{v},{k}]"
            deleted = model.add_variable(lb=0.0, ub=1.0, name=f"D[{t},{v},{k}]")
            deletions.setdefault((t, k), []).append((v, deleted))
            model.add_linear_constraint(deleted <= built.computed[t, k], name=name)
            kept = built.present[t + 1, v]
            model.add_linear_constraint(deleted <= 1.0 - kept, name=name + "kept")
            for j in uses[place + 1 :]:
                row = deleted <= 1.0 - built.computed[t, j]
                model.add_linear_constraint(row, name=f"{name}{j}")
    return deletions


def _add_memory(
    built: RkModel, deletions: Deletions, save: SaveLimit | None, loss: int, task: Task
) -> None:
    """(f), (g)"""
    ranked, model = built.ranked, built.model
    for t in range(ranked.count):
        held = mathopt.fast_sum(
            ranked.size[v] * built.present[t, v] for v, w in ranked.writer.items() if w < t
        )
        for k in range(t + 1):
            new = mathopt.fast_sum(ranked.size[v] * built.created[t, v] for v in ranked.outputs[k])
            used = model.add_variable(lb=0.0, ub=BUDGET_UNITS, name=f"U[{t},{k}]")
            model.add_linear_constraint(used == held + new, name=f"memory[{t},{k}]")
            if ranked.temporary[k]:
                row = used + ranked.temporary[k] * built.computed[t, k] <= BUDGET_UNITS
                model.add_linear_constraint(row, name=f"budget[{t},{k}]")
            gone = deletions.get((t, k), [])
            held = used - mathopt.fast_sum(ranked.size[v] * deleted for v, deleted in gone)
            if save and t == k == loss:
                resident = task.graph.resident_bytes
                unit = BUDGET_UNITS / max(1.0, task.budget_bytes - resident)
                limit = (save.save_bytes - resident) * unit
                model.add_linear_constraint(held <= limit, name="save")


def _add_results(built: RkModel) -> None:
    """(h)"""
    ranked = built.ranked
    for v in ranked.writer:
        if v in ranked.graph.results:
            end = built.present[ranked.count, v]
            built.model.add_linear_constraint(end == 1.0, name=f"results[{v}]")
