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
  users j > k: freed after the last use in the stage, unless kept [deleted].
- (f) U[t, 0] = sum of M(i) S[t, i] + M(0) R[t, 0], and
  U[t, k + 1] = U[t, k] - sum of M(i) F[t, i, k] + M(k + 1) R[t, k + 1] [memory].
- (g) U[t, k] + tmp(k) R[t, k] <= B [budget].
- (h) Results of the graph are there at the end: R[n - 1, i] + S[n - 1, i] >= 1, and are not freed
  in the last stage [results].

(e) states the three factors of the product one by one instead of their sum: the same
integer points, a tighter relaxation, and F need not be integer.
"""

from ortools.math_opt.python import mathopt

from kiwi.solver.remat.milp import (
    Deletions,
    StagesModel,
    add_computed,
    add_deletions,
    add_memory,
    ranked_graph,
    solve_stages,
    triangle,
)
from kiwi.solver.remat.result import Finding, Task


def checkmate(task: Task) -> Finding:
    """The best schedule of partitioned stages in the given order, by HiGHS."""
    return solve_stages(build_checkmate(task, integer=True), task)


def build_checkmate(task: Task, *, integer: bool, budget_share: float = 1.0) -> StagesModel:
    """The program for `budget_share` of the budget, or its linear relaxation."""
    resident = task.graph.resident_bytes
    budget_bytes = resident + budget_share * (task.budget_bytes - resident)
    ranked = ranked_graph(task.graph, budget_bytes)
    model = mathopt.Model(name="checkmate")
    computed = add_computed(model, ranked, ranked.recomputable, integer=integer)
    kept = {
        (t, i): model.add_variable(lb=0.0, ub=1.0, is_integer=integer, name=f"S[{t},{i}]")
        for t, i in triangle(ranked.count)
        if i < t
    }
    built = StagesModel(model, ranked, computed, kept)
    users = [
        sorted({reader for value in outputs for reader in ranked.readers[value]})
        for outputs in ranked.outputs
    ]
    _add_inputs(built, users)
    _add_kept(built)
    _add_once(built)
    deletions = _add_free(built, users)
    size = [sum(ranked.size[value] for value in outputs) for outputs in ranked.outputs]
    add_memory(built, size, lambda t, k: size[k] * computed[t, k], deletions)  # (f), (g)
    _add_results(built)
    built.minimise_time()
    return built


def _add_inputs(built: StagesModel, users: list[list[int]]) -> None:
    """(b)"""
    for i, readers in enumerate(users):
        for j in readers:
            for t in range(j, built.ranked.count):
                row = built.computed[t, j] <= _there(built, t, i)
                built.model.add_linear_constraint(row, name=f"inputs[{t},{i},{j}]")


def _there(built: StagesModel, t: int, i: int) -> mathopt.LinearTypes:
    computed = built.computed[t, i]
    return computed + built.kept[t, i] if i < t else computed


def _add_kept(built: StagesModel) -> None:
    """(c)"""
    for (t, i), kept in built.kept.items():
        row = kept <= _there(built, t - 1, i)
        built.model.add_linear_constraint(row, name=f"kept[{t},{i}]")


def _add_once(built: StagesModel) -> None:
    """(d)"""
    for (t, i), kept in built.kept.items():
        row = built.computed[t, i] + kept <= 1.0
        built.model.add_linear_constraint(row, name=f"once[{t},{i}]")


def _add_free(built: StagesModel, users: list[list[int]]) -> Deletions:
    """(e), and the second half of (h)"""
    last, results = built.ranked.count - 1, built.ranked.graph.results
    uses = {
        (t, i): [k for k in (i, *users[i]) if k <= t]
        for t, i in triangle(built.ranked.count)
        if t < last or not results.intersection(built.ranked.outputs[i])
    }
    return add_deletions(built, uses)


def _add_results(built: StagesModel) -> None:
    """(h)"""
    ranked, t = built.ranked, built.ranked.count - 1
    for i in range(t):
        if ranked.graph.results.intersection(ranked.outputs[i]):
            row = built.computed[t, i] + built.kept[t, i] >= 1.0
            built.model.add_linear_constraint(row, name=f"results[{i}]")
