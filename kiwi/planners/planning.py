"""The way from a call to a `Plan`: the call is traced, lowered, and planned by the settings'
planner.

**A quick bound** on the step time guides searches of configurations, and takes little work. The
solver's bound holds for every solution of the problem, in which each reader reshards its operands
for itself. Plans may then keep copies for later readers (`kiwi.problem.kept_copies`), and so be
faster than this bound. By how much is not known. So the saving of kept copies is computed for the
solution that was found, and subtracted from the bound.

If little work finds no solution within the budget, the bound of the step without a budget is used.
In that case planners may begin with the plan of another planner (`kiwi.planners.joint`), whose
residencies this problem does not offer. A bound of this problem under the budget would not hold for
that plan.
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
    """Checks the planner, the mesh and the search settings.

    **Raises:** `UnknownPlannerError`, `UnknownSolverError`, `InvalidMeshError` or
    `InvalidArgumentError`.
    """
    planner_named(settings.planner).check(settings.mesh)
    check_search(settings)


def make_plan(step: StepToPlan, settings: Settings, cache: PlanCache | None = None) -> Plan:
    """Returns the plan of a traced call, from the cache if it is there.

    **Raises:** the errors of `kiwi.plan`.
    """
    planner = planner_named(settings.planner)
    plan = planner.make(step, settings) if cache is None else cache.plan(step, settings, planner)
    note_peak(step, settings, plan.peak_bytes)
    return plan


def trace_call(
    call: Call,
    on_host: OnHost | None = None,
    fusion: Fusion = NO_FUSION,
    mesh: DeviceMesh | None = None,
    **kept: Any,
) -> StepToPlan:
    """Traces and lowers a call, and groups its equations into units.

    If `on_host` does not give the results in host memory, a first trace determines them. The call
    is then traced again, if any argument or result is in host memory.

    - `on_host`: the arguments and results in host memory; by default none are given.
    - `fusion`: the operators that the target fuses into other kernels.
    - `mesh`: the plan's mesh, for bare `PartitionSpec`s in a function that is traced without a mesh
      (`kiwi.planners.tracing_context`).
    - `kept`: options of `kiwi.hlo.tracing.trace`.
    """
    on_host = on_host or OnHost()

    def traced(arguments: frozenset[int], results: frozenset[int]) -> StepToPlan:
        return grouped(lowered_call(call, arguments, results, mesh, **kept), fusion)

    if on_host.results is not None:
        return traced(on_host.arguments, on_host.results)
    step = traced(frozenset(), frozenset())
    results = host_results(call, on_host.arguments, step.out_tree, step.units)
    return traced(on_host.arguments, results) if on_host.arguments or results else step


@dataclass(frozen=True, eq=False)
class Lowered:
    """A traced call in StableHLO, not yet grouped into units.

    - `call`: the call, with the context in which it was traced.
    - `out_tree`: the tree structure of the call's result.
    - `donated`: the value indices of donated arguments.
    - `seconds`: the time that tracing and lowering took.
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

    - `on_host`, `to_host`: the positions of the flat arguments and results in host memory.
    - `mesh`, `kept`: as in `trace_call`.
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
    """Returns a lowered call with its equations grouped into units.

    - `fusion`: the operators that the target fuses into other kernels.
    """
    started = time.monotonic()
    with stage("units"):
        units = build_units(lowered.graph, lowered.donated, fusion)
    seconds = lowered.seconds + time.monotonic() - started
    return StepToPlan(lowered.call, lowered.out_tree, units, seconds)


def quick_bound(step: StepToPlan, settings: Settings) -> float:
    """Returns a step time in seconds that no plan is expected to beat; 0 for a planner without a
    bound.

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
    """Returns the problem under a memory limit; None for no limit."""
    return replace(problem, problem=replace(problem.problem, limit_bytes=limit_bytes))


def _solved(problem: PlanningProblem, tools: Tools) -> SolveResult:
    return EqualLayers(problem, tools).solve(problem.problem, tools.allowance, None)


def _saved_seconds(problem: PlanningProblem, result: SolveResult, tools: Tools) -> float:
    """Returns the seconds that kept copies save in the result's solution; 0 if none are kept."""
    if result.solution is None or result.objective is None:
        return 0.0
    allowed = tools.allowance.part(KEPT_SHARE)
    kept, _ = kept_copies(problem, problem, result.solution, allowed)
    plan_seconds = estimate_solution(Solved(problem, result.solution, kept)).step_seconds
    return max(0.0, result.objective - plan_seconds)
