"""Checkmate (Jain et al., MLSys 2020; text in Zhao's thesis, section 2.1.1) as an integer program.

**Sets.** Operators i, j, k and stages t, all numbered 0 … n - 1 by the given order; users(i) are
the operators that read an output of i. Stage t ends with the first computation of operator t
("partitioned stages": the triangle i <= t is all that is needed).

**Data.** time(i); M(i) bytes of all outputs of i together; tmp(i) bytes while i runs; budget B.
Bytes are scaled to B.

**Variables.** `R[t, i]` in {0, 1}: i is computed in stage t. `S[t, i]` in {0, 1}, i < t: the
outputs of i are kept from stage t - 1 into stage t. `F[t, i, k]` in [0, 1], k in {i} and users(i):
they are freed after k in stage t. `U[t, k]` in [0, B]: memory while k runs in stage t.

**Minimise** the sum of time(i) R[t, i].

**Constraints** (names of rows in brackets)

- (a) R[t, t] = 1: stage t ends with operator t; R[t, i] = 0 for i < t that may not run again
  (bounds of the variables).
- (b) R[t, j] <= R[t, i] + S[t, i] for i -> j: inputs are there [inputs].
- (c) S[t, i] <= R[t - 1, i] + S[t - 1, i]: only what is there is kept [kept].
- (d) R[t, i] + S[t, i] <= 1: what is kept is not computed [once].
- (e) F[t, i, k] <= R[t, k], F[t, i, k] <= 1 - S[t + 1, i], and F[t, i, k] <= 1 - R[t, j] for
  users j > k: freed after the last use in the stage, unless kept [free].
- (f) U[t, 0] = sum of M(i) S[t, i] + M(0) R[t, 0], and
  U[t, k + 1] = U[t, k] - sum of M(i) F[t, i, k] + M(k + 1) R[t, k + 1] [memory].
- (g) U[t, k] + tmp(k) R[t, k] <= B [budget].
- (h) Results of the graph are there at the end: R[n - 1, i] + S[n - 1, i] >= 1, and are not freed
  in the last stage [results].

(e) states the three factors of the product one by one instead of their sum: the same
integer points, a tighter relaxation, and F need not be integer.
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


@dataclass(frozen=True)
class CheckmateModel:
    """The program with the variables that a schedule is read from."""

    model: mathopt.Model
    ranked: RankedGraph
    computed: Cells
    kept: Cells


def checkmate(task: Task) -> Finding:
    """The best schedule of partitioned stages in the given order, by HiGHS."""
    built = build_checkmate(task, integer=True)
    return solve_stages(built.model, built.ranked, built.computed, task)


def build_checkmate(task: Task, *, integer: bool, budget_share: float = 1.0) -> CheckmateModel:
    """The program for `budget_share` of the budget, or its linear relaxation."""
    resident = task.graph.resident_bytes
    budget_bytes = resident + budget_share * (task.budget_bytes - resident)
    ranked = ranked_graph(task.graph, budget_bytes)
    model = mathopt.Model(name="checkmate")
    cells = triangle(ranked.count)
    computed = {
        (t, i): model.add_variable(
            lb=float(i == t),
            ub=float(i == t or ranked.recomputable[i]),
            is_integer=integer,
            name=f"R[{t},{i}]",
        )
        for t, i in cells
    }
    kept = {
        (t, i): model.add_variable(lb=0.0, ub=1.0, is_integer=integer, name=f"S[{t},{i}]")
        for t, i in cells
        if i < t
    }
    built = CheckmateModel(model, ranked, computed, kept)
    users = _users(ranked)
    _add_inputs(built, users)
    _add_kept(built)
    _add_once(built)
    freed = _add_free(built, users)
    _add_memory(built, freed)
    _add_results(built)
    model.minimize(mathopt.fast_sum(ranked.time[i] * computed[t, i] for t, i in cells))
    return built


def _users(ranked: RankedGraph) -> dict[int, tuple[int, ...]]:
    return {
        i: tuple(
            sorted({reader for value in ranked.outputs[i] for reader in ranked.readers[value]})
        )
        for i in range(ranked.count)
    }


def _add_inputs(built: CheckmateModel, users: Mapping[int, tuple[int, ...]]) -> None:
    """(b)"""
    for i, readers in users.items():
        for j in readers:
            for t in range(j, built.ranked.count):
                there = built.computed[t, i] + built.kept[t, i] if i < t else built.computed[t, i]
                row = built.computed[t, j] <= there
                built.model.add_linear_constraint(row, name=f"inputs[{t},{i},{j}]")


def _add_kept(built: CheckmateModel) -> None:
    """(c)"""
    for (t, i), kept in built.kept.items():
        before = built.computed[t - 1, i]
        there = before + built.kept[t - 1, i] if i < t - 1 else before
        built.model.add_linear_constraint(kept <= there, name=f"kept[{t},{i}]")


def _add_once(built: CheckmateModel) -> None:
    """(d)"""
    for (t, i), kept in built.kept.items():
        row = built.computed[t, i] + kept <= 1.0
        built.model.add_linear_constraint(row, name=f"once[{t},{i}]")


def _add_free(
    built: CheckmateModel, users: Mapping[int, tuple[int, ...]]
) -> dict[tuple[int, int], list[tuple[int, mathopt.Variable]]]:
    """(e); returns, for each stage and operator k, the pairs (i, F[t, i, k])."""
    model, last = built.model, built.ranked.count - 1
    results = built.ranked.graph.results
    freed: dict[tuple[int, int], list[tuple[int, mathopt.Variable]]] = {}
    for t, i in triangle(built.ranked.count):
        if t == last and results.intersection(built.ranked.outputs[i]):
            continue
        around = [k for k in (i, *users[i]) if k <= t]
        for place, k in enumerate(around):
            free = model.add_variable(lb=0.0, ub=1.0, name=f"F[{t},{i},{k}]")
            freed.setdefault((t, k), []).append((i, free))
            name = f"free[{t},{i},{k}]"
            model.add_linear_constraint(free <= built.computed[t, k], name=name)
            if t < last:
                model.add_linear_constraint(free <= 1.0 - built.kept[t + 1, i], name=name + "kept")
            for j in around[place + 1 :]:
                model.add_linear_constraint(free <= 1.0 - built.computed[t, j], name=name + f"{j}")
    return freed


def _add_memory(
    built: CheckmateModel, freed: Mapping[tuple[int, int], list[tuple[int, mathopt.Variable]]]
) -> None:
    """(f), (g)"""
    ranked, model = built.ranked, built.model
    size = [sum(ranked.size[value] for value in outputs) for outputs in ranked.outputs]
    for t in range(ranked.count):
        held = mathopt.fast_sum(size[i] * built.kept[t, i] for i in range(t))
        for k in range(t + 1):
            used = model.add_variable(lb=0.0, ub=BUDGET_UNITS, name=f"U[{t},{k}]")
            computed = built.computed[t, k]
            model.add_linear_constraint(used == held + size[k] * computed, name=f"memory[{t},{k}]")
            if ranked.temporary[k]:
                row = used + ranked.temporary[k] * computed <= BUDGET_UNITS
                model.add_linear_constraint(row, name=f"budget[{t},{k}]")
            held = used - mathopt.fast_sum(size[i] * free for i, free in freed.get((t, k), []))


def _add_results(built: CheckmateModel) -> None:
    """(h); that results are not freed at the end is built into (e)."""
    ranked, t = built.ranked, built.ranked.count - 1
    for i in range(t):
        if ranked.graph.results.intersection(ranked.outputs[i]):
            row = built.computed[t, i] + built.kept[t, i] >= 1.0
            built.model.add_linear_constraint(row, name=f"results[{i}]")
