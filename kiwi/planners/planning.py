"""The way from a bound call to a `Plan`: trace, lower, enumerate, solve, emit, check."""

import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from kiwi.calls.host_memory import OnHost, host_results, moving
from kiwi.calls.replaced_arguments import carried_results
from kiwi.calls.signature import Call, flatten_prefix, to_tensor_sharding
from kiwi.calls.traced import Traced
from kiwi.errors import (
    InfeasibleBudgetError,
    InvalidArgumentError,
    NoPlanFoundError,
    ShardingConflictError,
    UnknownSolverError,
)
from kiwi.hlo.lowering import lower
from kiwi.hlo.program import Program
from kiwi.hlo.tracing import trace
from kiwi.hlo.units import build_units
from kiwi.memory.residency import Residency
from kiwi.mesh import DeviceMesh, TensorSharding, enumerate_shardings
from kiwi.options import Settings
from kiwi.planners.baseline_starts import begun_by_baselines, may_help
from kiwi.planners.closed_loop import ClosedLoop
from kiwi.planners.infeasible_pins import blamed
from kiwi.planners.one_device import NO_LIMIT_BYTES, plan_one_device
from kiwi.planners.paper_models import plan_formulated
from kiwi.planners.progress import ProgressLog
from kiwi.planners.registry import Way, planner_named
from kiwi.planners.reordered_units import reformulated
from kiwi.planners.two_stage import plan_two_stage
from kiwi.planners.user_pins import resolve_pins
from kiwi.planners.xla_shardings import propagated
from kiwi.plans.breakdown import build_ledger
from kiwi.plans.origin import Origin
from kiwi.plans.plan import Plan
from kiwi.problem.build import Fixed, PlanningProblem, build_problem
from kiwi.problem.pins import Pins
from kiwi.solver import SOLVERS
from kiwi.xla.compilers import TARGETS, memory_model


def check_settings(settings: Settings) -> None:
    """Raises `UnknownPlannerError`, `UnknownSolverError` or `InvalidArgumentError`."""
    planner_named(settings.planner).check(settings.mesh)
    if settings.verify is not None and settings.verify not in TARGETS:
        raise InvalidArgumentError(
            f"verify={settings.verify!r} is not a target of the compile check.",
            suggestion="One of " + ", ".join(repr(t) for t in TARGETS) + ", or None.",
        )
    if settings.solver not in SOLVERS:
        raise UnknownSolverError(
            f"There is no solver {settings.solver!r}.",
            suggestion="One of " + ", ".join(repr(s) for s in SOLVERS) + ".",
        )
    if not settings.time_limit_seconds > 0:
        raise InvalidArgumentError(
            f"time_limit_seconds={settings.time_limit_seconds} is not positive."
        )


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
    check_settings(settings)
    _check_target(traced, settings)
    way = planner_named(settings.planner).way
    if way is Way.SCHEDULE:
        kept = replace(settings, planner="alpa", memory_budget_bytes=NO_LIMIT_BYTES)
        plan = plan_one_device(traced, formulate(traced, out_shardings, kept), settings)
        return replace(plan, planning_seconds=traced.seconds + time.monotonic() - started)
    if way is Way.MODEL:
        kept = replace(settings, planner="alpa", memory_budget_bytes=NO_LIMIT_BYTES)
        plan = plan_formulated(traced, formulate(traced, out_shardings, kept), settings)
        return replace(plan, planning_seconds=traced.seconds + time.monotonic() - started)
    if way is Way.CHAIN:
        whole = formulate(traced, out_shardings, settings) if planning is None else planning
        plan = plan_two_stage(traced, whole, settings)
        return replace(plan, planning_seconds=traced.seconds + time.monotonic() - started)
    log = ProgressLog(settings.on_progress)
    planning, plan = _searched(
        traced, out_shardings, replace(settings, on_progress=log), planning, warm_start
    )
    solution = plan.solve_result.solution
    assert solution is not None
    if plan.execution.units is not planning.units:
        traced = replace(traced, units=plan.execution.units)
        planning, solution = reformulated(
            planning,
            solution,
            traced.units,
            lambda offered: formulate(traced, out_shardings, settings, offered=offered),
        )
    return replace(
        plan,
        planning_seconds=traced.seconds + time.monotonic() - started,
        origin=Origin(traced, out_shardings, settings, PLANNING, planning.fixed.offered),
        ledger=build_ledger(planning, solution, plan.execution.kept_copies),
        progress=log.entries,
    )


def _check_target(traced: Traced, settings: Settings) -> None:
    """XLA:CPU knows one memory only, and cannot check what lies in the other one."""
    if settings.verify == "cpu" and traced.units.graph.program.host_values:
        raise InvalidArgumentError(
            'verify="cpu" cannot check a plan with arguments or results in host memory.',
            cause="XLA:CPU has one memory, and leaves copies between two of them out.",
            suggestion='verify="cuda" or "device", or verify=None.',
        )


def _searched(
    traced: Traced,
    out_shardings: Any,
    settings: Settings,
    planning: PlanningProblem | None,
    warm_start: Sequence[int] | None,
) -> tuple[PlanningProblem, Plan]:
    """A plan of the problem, and that problem: the given one, or one that offers more where
    nothing was given and nothing found (`kiwi.planners.baseline_starts`)."""
    ask = functools.partial(formulate, traced, out_shardings)
    own = ask(settings) if planning is None else planning
    try:
        return own, ClosedLoop(traced, own, settings).run(warm_start)
    except (InfeasibleBudgetError, NoPlanFoundError) as error:
        is_trial = planning is not None or bool(settings.dropped_pins)
        begun = None
        if not is_trial and may_help(error, settings):
            begun = begun_by_baselines(traced, settings, ask)
        if begun is not None:
            return begun
        pins = own.fixed.pins
        if isinstance(error, NoPlanFoundError) or settings.dropped_pins or not pins.labels:
            raise
        other = functools.partial(make_plan, traced, out_shardings)
        raise blamed(error, pins, settings, other) from error


def trace_call(
    call: Call,
    *,
    keep_checkpoints: bool = False,
    open_loops: bool = False,
    on_host: OnHost | None = None,
) -> Traced:
    """Traces and lowers a call.

    Which results lie in host memory is known from the program, which is then traced again.
    """
    on_host = on_host or OnHost()
    traced = functools.partial(_traced, call, keep_checkpoints, open_loops)
    if on_host.results is not None:
        return traced(on_host.arguments, on_host.results)
    found = traced(frozenset(), frozenset())
    results = host_results(call, on_host.arguments, found.out_tree, found.units)
    return traced(on_host.arguments, results) if on_host.arguments or results else found


def _traced(
    call: Call,
    keep_checkpoints: bool,
    open_loops: bool,
    on_host: frozenset[int],
    to_host: frozenset[int],
) -> Traced:
    started = time.monotonic()
    out_tree: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        found, tree = jax.tree.flatten(call.function(*leaves))
        out_tree.append(tree)
        return found

    moved = moving(flat, on_host, to_host)
    program = trace(moved, call.shapes, keep_checkpoints=keep_checkpoints, open_loops=open_loops)
    donated = frozenset(program.arguments[k] for k in call.donated)
    units = build_units(lower(program), donated)
    return Traced(call, out_tree[0], units, time.monotonic() - started)


def formulate(
    traced: Traced,
    out_shardings: Any,
    settings: Settings,
    *,
    offered: tuple[tuple[Residency, ...], ...] = (),
) -> PlanningProblem:
    """The problem of a traced call; `offered` as in `kiwi.problem.build.Fixed`."""
    program = traced.units.graph.program
    mesh = settings.mesh
    arguments = {
        program.arguments[k]: to_tensor_sharding(
            given, traced.call.shapes[k].shape, mesh, traced.call.paths[k]
        )
        for k, given in traced.call.given_shardings.items()
    }
    planner = planner_named(settings.planner)
    pins = resolve_pins(traced, settings.constraints, mesh, planner, settings.dropped_pins)
    arguments |= _pinned_arguments(program, pins, arguments, mesh)
    results = _given_results(traced, program, out_shardings, mesh)
    replaced = carried_results(traced.call, traced.out_tree, traced.units)
    carried = {p: argument for p, argument in replaced.items() if p not in results}
    fixed = Fixed(
        arguments,
        results,
        carried,
        planner.recomputes,
        target=memory_model(settings.verify),
        rewrite=None if planner.rule is None else planner.rule(traced.units, settings),
        offered=offered,
        pins=pins,
    )
    if settings.planner == "xla":
        fixed = replace(fixed, values=propagated(program, mesh, fixed))
    return build_problem(traced.units, mesh, fixed, settings.memory_budget_bytes)


def _pinned_arguments(
    program: Program, pins: Pins, given: dict[int, TensorSharding], mesh: DeviceMesh
) -> dict[int, TensorSharding]:
    """The arguments whose shardings pins leave no choice.

    **Raises:** `ShardingConflictError` if `in_shardings` says otherwise.
    """
    found = {}
    for value in set(pins.values) & set(program.arguments):
        shape = program.values[value].shape
        options = [given[value]] if value in given else enumerate_shardings(shape, mesh)
        allowed = pins.of_source(value, options)
        if not allowed:
            labels = " and ".join(pin.label for pin in pins.values[value])
            raise ShardingConflictError(
                f"in_shardings gives {mesh.describe(given[value])}, which contradicts {labels}.",
                suggestion="Drop one of them.",
            )
        if len(allowed) == 1:
            found[value] = allowed[0]
    return found


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


class _Planning:
    """`formulate` and `make_plan`, for plans that are explained or changed."""

    formulate = staticmethod(formulate)
    make_plan = staticmethod(make_plan)


PLANNING = _Planning()
