"""The way from a bound call to a `Plan`: trace, lower, enumerate, solve, emit, check."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from kiwi.errors import (
    InfeasibleBudgetError,
    InvalidArgumentError,
    NoPlanFoundError,
    UnknownPlannerError,
    UnknownSolverError,
)
from kiwi.hlo.lowering import lower
from kiwi.hlo.program import Program, trace
from kiwi.hlo.units import UnitGraph, build_units
from kiwi.mesh import DeviceMesh
from kiwi.plan.budget import format_bytes
from kiwi.plan.carried import carried_results
from kiwi.plan.decision import decisions
from kiwi.plan.estimate import estimate_solution
from kiwi.plan.execution import build_execution
from kiwi.plan.ledger import Ledger, build_ledger
from kiwi.plan.notes import notes
from kiwi.plan.origin import Origin
from kiwi.plan.plan import ArgumentTrees, Plan
from kiwi.plan.progress import ProgressLog
from kiwi.plan.propagated import propagated
from kiwi.plan.propagated import propagated
from kiwi.plan.signature import Call, flatten_prefix, to_tensor_sharding
from kiwi.plan.targets import TARGETS, compile_for
from kiwi.solver import SOLVERS, SolveResult, SolveStatus, evaluate, solve
from kiwi.solver.outcome import OnProgress
from kiwi.solver.settle import settled
from kiwi.strategy.build import Fixed, PlanningProblem, build_problem

PLANNERS = {"joint": True, "alpa": False, "xla": False}
"""Planner names, and whether they recompute. "joint" decides sharding and recomputation
together; "alpa" decides sharding alone under the same memory limit (Zheng et al., 2022). "xla"
decides nothing: values are sharded as XLA does by itself from what the caller gives."""

CHECK_ROUNDS = 4
"""How often a plan is tightened and solved again when its compiled peak is over the budget."""


CHECK_HEADROOM = 0.96
"""The part of the budget that a checked plan aims at first. XLA:CPU's heap of temporaries is a
few per cent larger than what lives in it at the peak: 2 to 6 % for gpt-13b-4l on (2, 4) at
100, 60 and 40 % of the free peak."""


@dataclass(frozen=True, eq=False)
class Settings:
    """What a plan is made for.

    - `verify`: one of `kiwi.plan.targets.TARGETS` to compile each plan for, None does not.
    - `gap`: the solver may stop once this close to its bound, relatively.
    - `respect_user_checkpoint`: keeps the recomputation that `jax.checkpoint` in the function
      asks for, instead of planning it anew.
    - `on_progress`: called by the solver whenever solution or bound improve.
    """

    mesh: DeviceMesh
    memory_budget_bytes: int
    planner: str
    time_limit_seconds: float
    verify: str | None
    solver: str
    seed: int
    gap: float
    respect_user_checkpoint: bool
    on_progress: OnProgress | None = None

    def check(self) -> None:
        """Raises `UnknownPlannerError`, `UnknownSolverError` or `InvalidArgumentError`."""
        if self.planner not in PLANNERS:
            raise UnknownPlannerError(
                f"There is no planner {self.planner!r}.",
                suggestion="One of " + ", ".join(repr(p) for p in PLANNERS) + ".",
            )
        if self.verify is not None and self.verify not in TARGETS:
            raise InvalidArgumentError(
                f"verify={self.verify!r} is not a target of the compile check.",
                suggestion="One of " + ", ".join(repr(t) for t in TARGETS) + ", or None.",
            )
        if self.solver not in SOLVERS:
            raise UnknownSolverError(
                f"There is no solver {self.solver!r}.",
                suggestion="One of " + ", ".join(repr(s) for s in SOLVERS) + ".",
            )
        if not self.time_limit_seconds > 0:
            raise InvalidArgumentError(
                f"time_limit_seconds={self.time_limit_seconds} is not positive."
            )


@dataclass(frozen=True, eq=False)
class Traced:
    """A call, traced, with its result's structure and the units of its program.

    `seconds` is the time that tracing and lowering took.
    """

    call: Call
    out_tree: Any
    units: UnitGraph
    seconds: float

    @property
    def trees(self) -> ArgumentTrees:
        """Structure of arguments and result, for the plan."""
        c = self.call
        return ArgumentTrees(c.tree, self.out_tree, c.paths, c.shapes, c.donated, c.name)


def make_plan(
    traced: Traced,
    out_shardings: Any,
    settings: Settings,
    *,
    planning: PlanningProblem | None = None,
    warm_start: Sequence[int] | None = None,
) -> Plan:
    """Plans a traced call.

    **Arguments:**

    - `planning`: the problem where it is at hand already; by default it is formulated.
    - `warm_start`: a solution of it to begin with.

    **Raises:** the errors of its steps; see `kiwi.plan`.
    """
    started = time.monotonic()
    settings.check()
    if planning is None:
        planning = formulate(traced, out_shardings, settings)
    log = ProgressLog(settings.on_progress)
    plan = _solve_and_check(traced, planning, replace(settings, on_progress=log), warm_start)
    assert plan.solve_result.solution is not None
    return replace(
        plan,
        planning_seconds=traced.seconds + time.monotonic() - started,
        origin=Origin(traced, out_shardings, settings),
        ledger=build_ledger(planning, plan.solve_result.solution),
        progress=log.entries,
    )


def trace_call(call: Call, *, keep_checkpoints: bool = False) -> Traced:
    """Traces and lowers a call."""
    started = time.monotonic()
    out_tree: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        found, tree = jax.tree.flatten(call.function(*leaves))
        out_tree.append(tree)
        return found

    program = trace(flat, call.shapes, keep_checkpoints=keep_checkpoints)
    donated = frozenset(program.arguments[k] for k in call.donated)
    units = build_units(lower(program), donated)
    return Traced(call, out_tree[0], units, time.monotonic() - started)


def formulate(traced: Traced, out_shardings: Any, settings: Settings) -> PlanningProblem:
    """The problem of a traced call."""
    program = traced.units.graph.program
    mesh = settings.mesh
    arguments = {
        program.arguments[k]: to_tensor_sharding(
            given, traced.call.shapes[k].shape, mesh, traced.call.paths[k]
        )
        for k, given in traced.call.given_shardings.items()
    }
    results = _given_results(traced, program, out_shardings, mesh)
    replaced = carried_results(traced.call, traced.out_tree, traced.units)
    carried = {p: argument for p, argument in replaced.items() if p not in results}
    fixed = Fixed(arguments, results, carried, PLANNERS[settings.planner])
    if settings.planner == "xla":
        fixed = replace(fixed, values=propagated(program, mesh, fixed))
    return build_problem(traced.units, mesh, fixed, settings.memory_budget_bytes)


def _given_results(
    traced: Traced, program: Program, out_shardings: Any, mesh: DeviceMesh
) -> dict[int, Any]:
    if out_shardings is None:
        return {}
    shell = jax.tree.unflatten(traced.out_tree, list(range(len(program.results))))
    given = flatten_prefix(out_shardings, shell, "out_shardings")
    found = {}
    for position, (sharding, result) in enumerate(zip(given, program.results, strict=True)):
        if sharding is not None and isinstance(result, int):
            shape = program.values[result].shape
            what = f"result {position}"
            found[position] = to_tensor_sharding(sharding, shape, mesh, what)
    return found


def _solve_and_check(
    traced: Traced,
    planning: PlanningProblem,
    settings: Settings,
    warm_start: Sequence[int] | None = None,
) -> Plan:
    """Solves; while the compiled peak is over the budget, tightens the limit and solves again.

    The model's error is taken to be proportional: the next limit is the budget times
    predicted over compiled peak. Returns the first plan that fits, else the one that comes
    closest.
    """
    budget = settings.memory_budget_bytes

    solved_seconds = 0.0

    def attempt(limit_bytes: int, warm: Plan | None = None) -> Plan:
        nonlocal solved_seconds
        start = warm_start if warm is None else warm.solve_result.solution
        # All rounds share the time limit; a late round still gets a part of it.
        total = settings.time_limit_seconds
        seconds = max(total - solved_seconds, total / CHECK_ROUNDS)
        result = _solve(planning, limit_bytes, replace(settings, time_limit_seconds=seconds), start)
        solved_seconds += result.seconds
        return _checked(_plan_of(traced, planning, result, settings), settings)

    if settings.verify is None:
        return attempt(budget)
    try:
        last = attempt(int(CHECK_HEADROOM * budget))
    except (InfeasibleBudgetError, NoPlanFoundError):
        last = attempt(budget)
    best = last
    for _ in range(CHECK_ROUNDS - 1):
        if best.fits:
            break
        try:
            last = attempt(int(budget * last.estimate.peak_bytes / _peak(last)), last)
        except (InfeasibleBudgetError, NoPlanFoundError):
            break
        best = min(best, last, key=_peak)
    return best


def _peak(plan: Plan) -> int:
    return plan.estimate.peak_bytes if plan.compiled is None else plan.compiled.peak_bytes


def _solve(
    planning: PlanningProblem, limit_bytes: int, settings: Settings, warm: Any
) -> SolveResult:
    problem = replace(planning.problem, limit_bytes=limit_bytes)
    result = solve(
        problem,
        solver=settings.solver,
        time_limit_seconds=settings.time_limit_seconds,
        seed=settings.seed,
        gap=settings.gap,
        warm_start=warm,
        on_progress=settings.on_progress,
    )
    if result.status is SolveStatus.INFEASIBLE:
        raise infeasible_budget(limit_bytes, result)
    if result.solution is None:
        raise NoPlanFoundError(
            f"No plan was found in {settings.time_limit_seconds:g} s under "
            f"{format_bytes(limit_bytes)}.",
            cause="The budget is close to the least that is possible, or the limit is short. "
            + result.message,
            suggestion="A larger time_limit_seconds or memory_budget.",
        )
    solution = settled(problem, result.solution)
    priced = evaluate(problem, solution)
    return replace(
        result, solution=solution, objective=priced.cost, peak_bytes=priced.peak_bytes
    )


def infeasible_budget(limit_bytes: int, result: SolveResult) -> InfeasibleBudgetError:
    """The error for a budget that no plan meets, with the smallest one found."""
    least = result.least_peak_bytes
    known = f"The smallest peak found is {format_bytes(least)}." if least else ""
    return InfeasibleBudgetError(
        f"No plan needs as little as {format_bytes(limit_bytes)} per device. {known}".strip(),
        cause="Arguments, results and the largest operator's operands need more than that.",
        suggestion=f"memory_budget={least}, or a larger mesh, or a smaller batch."
        if least
        else "A larger memory_budget or mesh, or a smaller batch.",
        least_peak_bytes=least,
    )


def _plan_of(
    traced: Traced, planning: PlanningProblem, result: SolveResult, settings: Settings
) -> Plan:
    assert result.solution is not None
    return Plan(
        mesh=settings.mesh,
        profile=settings.mesh.hardware.name,
        planner=settings.planner,
        memory_budget_bytes=settings.memory_budget_bytes,
        estimate=estimate_solution(planning, result.solution),
        compiled=None,
        solve_result=result,
        decisions=decisions(planning, result.solution),
        execution=build_execution(planning, result.solution),
        trees=traced.trees,
        notes=(),
        planning_seconds=0.0,
        ledger=Ledger((), ()),
    )


def _checked(plan: Plan, settings: Settings) -> Plan:
    if settings.verify is not None:
        plan = replace(plan, compiled=compile_for(settings.verify, plan.step))
    return replace(plan, notes=notes(plan))
