"""The way from a call to a `Plan`: traced, lowered, and planned by the planner of the settings."""

import functools
import time
from typing import Any

import jax

from kiwi.calls.host_memory import OnHost, host_results, moving
<<<<<<< HEAD
from kiwi.calls.signature import Call
=======
from kiwi.calls.replaced_arguments import replaced_arguments
from kiwi.calls.signature import Call, flatten_prefix, to_tensor_sharding
>>>>>>> 6863403 (Names of XLA and JAX in emit, hlo, mesh and calls: barriers instead of fences, an interpreter of loop bodies instead of frames, replaced arguments instead of carried results)
from kiwi.calls.traced import Traced
from kiwi.hlo.lowering import lower
from kiwi.hlo.tracing import trace
from kiwi.hlo.units import build_units
from kiwi.options import Settings
from kiwi.planners.registry import planner_named
from kiwi.planners.tools import check_search
from kiwi.plans.plan import Plan
from kiwi.problem.step import StepToPlan


def check_settings(settings: Settings) -> None:
    """Raises `UnknownPlannerError`, `UnknownSolverError`, `InvalidMeshError` or
    `InvalidArgumentError`."""
    planner_named(settings.planner).check(settings.mesh)
    check_search(settings)


def make_plan(traced: Traced, out_shardings: Any, settings: Settings) -> Plan:
    """Plans a traced call; raises as `kiwi.plan`."""
    planner = planner_named(settings.planner)
    return planner.make(StepToPlan(traced, out_shardings), settings)


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
<<<<<<< HEAD
=======


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
    replaced = replaced_arguments(traced.call, traced.out_tree, traced.units)
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
>>>>>>> 6863403 (Names of XLA and JAX in emit, hlo, mesh and calls: barriers instead of fences, an interpreter of loop bodies instead of frames, replaced arguments instead of carried results)
