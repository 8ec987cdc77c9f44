"""The way from a call to a `Plan`: traced, lowered, and planned by the planner of the settings.

**A quick bound** on the step time guides searches of configurations. It takes little work. The
solver's bound holds for every solution of the problem, in which each reader reshards its operands
for itself. Plans then keep copies for later readers (`kiwi.problem.kept_copies`), and are faster
than such a bound. No bound knows by how much. So the saving is measured on the solution that was
found, and subtracted.

If little work finds no solution within the budget, the bound is that of the step without a budget.
In that case planners begin with what another planner recomputes (`kiwi.planners.joint`). That is
another selection of residencies, and no solution of this problem.
"""

import functools
import time
from dataclasses import dataclass, replace
from typing import Any

import jax

from kiwi.calls.host_memory import OnHost, host_results, moving
from kiwi.calls.signature import Call
from kiwi.campaign import shares
from kiwi.campaign.equal_layers import EqualLayers
from kiwi.campaign.known_peaks import note_peak
from kiwi.campaign.refusals import infeasible_budget
from kiwi.campaign.tools import Tools, check_search
from kiwi.hlo.chains import NO_FUSION, Fusion
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.grouping import build_units
from kiwi.hlo.lowering import lower
from kiwi.hlo.tracing import trace
from kiwi.mesh import DeviceMesh
from kiwi.options import Settings
from kiwi.planners.registry import planner_named
from kiwi.planners.tracing_context import under_some_mesh
from kiwi.plans.estimate import estimate_solution
from kiwi.plans.plan import Plan
from kiwi.plans.plan_cache import PlanCache
from kiwi.problem.build import PlanningProblem
from kiwi.problem.kept_copies import KEPT_SHARE, kept_copies
from kiwi.problem.solved import Solved
from kiwi.problem.step import StepToPlan
from kiwi.solver import SolveResult, SolveStatus
from kiwi.timings import stage


def check_settings(settings: Settings) -> None:
    """Raises `UnknownPlannerError`, `UnknownSolverError`, `InvalidMeshError` or
    `InvalidArgumentError`."""
    planner_named(settings.planner).check(settings.mesh)
    check_search(settings)


def make_plan(step: StepToPlan, settings: Settings, cache: PlanCache | None = None) -> Plan:
    """Plans a traced call, or takes the plan from a cache; raises as `kiwi.plan`."""
    planner = planner_named(settings.planner)
    found = planner.make(step, settings) if cache is None else cache.plan(step, settings, planner)
    note_peak(step, settings, found.peak_bytes)
    return found


def trace_call(
    call: Call,
    on_host: OnHost | None = None,
    fusion: Fusion = NO_FUSION,
    mesh: DeviceMesh | None = None,
    **kept: Any,
) -> StepToPlan:
    """Traces and lowers a call. The program determines which results lie in host memory, and is
    then traced again.

    - `fusion`: what the target computes inside other kernels. `kept`: options of `trace`.
    - `mesh`: the plan's mesh, for bare `PartitionSpec`s of a function that is traced without one;
      see `kiwi.planners.tracing_context`.
    """
    on_host = on_host or OnHost()

    def traced(arguments: frozenset[int], results: frozenset[int]) -> StepToPlan:
        return grouped(lowered_call(call, arguments, results, mesh, **kept), fusion)

    if on_host.results is not None:
        return traced(on_host.arguments, on_host.results)
    found = traced(frozenset(), frozenset())
    results = host_results(call, on_host.arguments, found.out_tree, found.units)
    return traced(on_host.arguments, results) if on_host.arguments or results else found


@dataclass(frozen=True, eq=False)
class Lowered:
    """A traced call in StableHLO, not yet grouped into units.

    - `call`: in the context in which it was traced.
    - `out_tree`: the structure of its result. `donated`: value indices of donated arguments.
    - `seconds`: what tracing and lowering took.
    """

    call: Call
    graph: HloGraph
    out_tree: Any
    donated: frozenset[int]
    seconds: float


def lowered_call(
    call: Call,
    on_host: frozenset[int] = frozenset(),
    to_host: frozenset[int] = frozenset(),
    mesh: DeviceMesh | None = None,
    **kept: Any,
) -> Lowered:
    """Traces and lowers a call.

    - `on_host`, `to_host`: positions of the arguments and results that lie in host memory.
    - `mesh`: as of `trace_call`. `kept`: options of `kiwi.hlo.tracing.trace`.
    """
    return under_some_mesh(call, mesh, functools.partial(_lowered, on_host, to_host, **kept))


def _lowered(on_host: frozenset[int], to_host: frozenset[int], call: Call, **kept: Any) -> Lowered:
    started = time.monotonic()
    out_tree: list[Any] = []

    @functools.wraps(call.function)
    def flat(*leaves: Any) -> list[Any]:
        results, tree = jax.tree.flatten(call.function(*leaves))
        out_tree.append(tree)
        return results

    moved = moving(flat, on_host, to_host)
    with stage("trace"):
        program = trace(moved, call.traced_types, context=call.context.entered(), **kept)
    donated = frozenset(program.arguments[k] for k in call.donated)
    with stage("lower"):
        graph = lower(program)
    return Lowered(call, graph, out_tree[0], donated, time.monotonic() - started)


def grouped(lowered: Lowered, fusion: Fusion) -> StepToPlan:
    """A lowered call with its units; `fusion`: what the target computes inside of other kernels."""
    started = time.monotonic()
    with stage("units"):
        units = build_units(lowered.graph, lowered.donated, fusion)
    seconds = lowered.seconds + time.monotonic() - started
    return StepToPlan(lowered.call, lowered.out_tree, units, seconds)


def quick_bound(step: StepToPlan, settings: Settings) -> float:
    """A step time that no plan is expected to beat; 0 for a planner without a bound.

    **Raises:** `InfeasibleBudgetError` if no plan is predicted to meet the budget.
    """
    planner, budget_bytes = planner_named(settings.planner), settings.memory_budget_bytes
    planner.check(settings.mesh)
    start = planner.start_for(step, budget_bytes, settings)
    if start is None:
        return 0.0
    tools = (
        Tools.of(settings).unchecked.with_settings(on_progress=None).part(shares.QUICK_BOUND_SHARE)
    )
    limited = _limited(start.problem, budget_bytes)
    result = _solved(limited, tools)
    if result.status is SolveStatus.INFEASIBLE:
        raise infeasible_budget(budget_bytes, result)
    if result.solution is None:
        limited = _limited(start.problem, None)
        result = _solved(limited, tools)
    return max(0.0, result.bound - _saved_seconds(limited, result, tools))


def _limited(problem: PlanningProblem, limit_bytes: int | None) -> PlanningProblem:
    return replace(problem, problem=replace(problem.problem, limit_bytes=limit_bytes))


def _solved(problem: PlanningProblem, tools: Tools) -> SolveResult:
    return EqualLayers(problem, tools).solve(problem.problem, tools.allowance, None)


def _saved_seconds(problem: PlanningProblem, result: SolveResult, tools: Tools) -> float:
    """The seconds that kept copies save in the solution; 0 if none are kept."""
    if result.solution is None or result.objective is None:
        return 0.0
    allowed = tools.allowance.part(KEPT_SHARE)
    kept, _ = kept_copies(problem, problem, result.solution, allowed)
    plan_seconds = estimate_solution(Solved(problem, result.solution, kept)).step_seconds
    return max(0.0, result.objective - plan_seconds)
