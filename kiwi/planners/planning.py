"""The way from a call to a `Plan`: traced, lowered, and planned by the planner of the settings."""

import functools
import time
from typing import Any

import jax

from kiwi.calls.host_memory import OnHost, host_results, moving
from kiwi.calls.signature import Call
from kiwi.hlo.chains import FusedMaps
from kiwi.hlo.grouping import build_units
from kiwi.hlo.lowering import lower
from kiwi.hlo.tracing import trace
from kiwi.options import Settings
from kiwi.planners.known_peaks import note_peak
from kiwi.planners.registry import planner_named
from kiwi.planners.tools import check_search
from kiwi.plans.plan import Plan
from kiwi.plans.plan_cache import PlanCache
from kiwi.problem.step import StepToPlan


def check_settings(settings: Settings) -> None:
    """Raises `UnknownPlannerError`, `UnknownSolverError`, `InvalidMeshError` or
    `InvalidArgumentError`."""
    planner_named(settings.planner).check(settings.mesh)
    check_search(settings)


def make_plan(step: StepToPlan, settings: Settings, cache: PlanCache | None = None) -> Plan:
    """Plans a traced call, or takes the plan from a cache; raises as `kiwi.plan`."""
    planner = planner_named(settings.planner)
    if cache is None:
        return planner.make(step, settings)
    found = cache.plan(step, settings, planner)
    note_peak(step, settings, found.peak_bytes)
    return found


def trace_call(
    call: Call,
    on_host: OnHost | None = None,
    fused: FusedMaps = FusedMaps.OF_ONE_READER,
    **kept: Any,
) -> StepToPlan:
    """Traces and lowers a call. Which results lie in host memory is known from the program, which
    is then traced again. `fused`: the maps that the compiler fuses; `kept`: options of `trace`.
    """
    on_host = on_host or OnHost()
    traced = functools.partial(_traced, call, fused, **kept)
    if on_host.results is not None:
        return traced(on_host.arguments, on_host.results)
    found = traced(frozenset(), frozenset())
    results = host_results(call, on_host.arguments, found.out_tree, found.units)
    return traced(on_host.arguments, results) if on_host.arguments or results else found


def _traced(
    call: Call,
    fused: FusedMaps,
    on_host: frozenset[int],
    to_host: frozenset[int],
    **kept: Any,
) -> StepToPlan:
    started = time.monotonic()
    out_tree: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        found, tree = jax.tree.flatten(call.function(*leaves))
        out_tree.append(tree)
        return found

    moved = moving(flat, on_host, to_host)
    program = trace(moved, call.shapes, **kept)
    donated = frozenset(program.arguments[k] for k in call.donated)
    units = build_units(lower(program), donated, fused)
    return StepToPlan(call, out_tree[0], units, time.monotonic() - started)
