"""What the reader of a plan should know."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp

from kiwi.campaign.planner_facts import PlannerFacts
from kiwi.campaign.tools import CLOCK_ENDED_SEARCH
from kiwi.hlo.equation_kinds import is_opaque
from kiwi.hlo.hints import HINT_PRIMITIVE
from kiwi.hlo.partitioned_functions import CUSTOM_PARTITIONING
from kiwi.hlo.regions import called_name, inner_jaxprs
from kiwi.options import Settings
from kiwi.plans.record import PlanRecord
from kiwi.problem.library_calls import library_calls
from kiwi.problem.manual_computations import given_layouts, region_name
from kiwi.problem.pins import Pin
from kiwi.problem.user_pins import asked_pins, constraint_pin
from kiwi.sizes import format_bytes, format_seconds

NOTED_DIFFERENCE = 0.25
"""Relative distance of estimate and compiled peak from which a plan says so."""

LONG_DIMENSION = 32
"""Elements on each device from which a dimension is long: padding is little of it."""


COSTLY_KERNEL = 0.1
"""Part of the step from which a kernel without a sharding rule is warned of."""


def notes(plan: PlanRecord, planner: PlannerFacts, settings: Settings) -> tuple[str, ...]:
    """What the reader of a plan for these settings should know, one sentence each."""
    return (
        *_undivided(plan),
        *_uneven(plan),
        *_unmeasured(plan),
        *_regions(plan),
        *costly_kernels(plan),
        *_unread_hints(plan, planner),
        *_pinned(plan, settings),
        *_unfollowed_constraints(plan, settings),
        *_kept_copies(plan),
        *_solver(plan),
        *_compiled(plan),
    )


def _undivided(plan: PlanRecord) -> Iterator[str]:
    """Arguments that no mesh axis divides."""
    sizes = [plan.mesh.shape[a] for a in plan.mesh.nontrivial_axes]
    names = [
        f"{path} {shape.shape}"
        for path, shape in zip(plan.traced.call.paths, plan.traced.call.shapes, strict=True)
        if shape.shape and sizes and not any(d % n == 0 for d in shape.shape for n in sizes)
    ]
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield (
            f"No mesh axis (sizes {', '.join(map(str, sizes))}) divides a dimension of {shown}: "
            "replicated on every device."
        )


def _uneven(plan: PlanRecord) -> Iterator[str]:
    """Long dimensions of parameters that no mesh axis divides, where another dimension is divided:
    that of a vocabulary, most often."""
    sizes = [plan.mesh.shape[a] for a in plan.mesh.nontrivial_axes]
    found: dict[int, list[str]] = {}
    for path, shape in zip(plan.traced.call.paths, plan.traced.call.shapes, strict=True):
        is_matrix = len(shape.shape) > 1 and jnp.issubdtype(shape.dtype, jnp.inexact)
        uneven = {d for d in shape.shape if all(d % n for n in sizes)}
        if is_matrix and sizes and uneven != set(shape.shape):
            for dim in uneven:
                if dim >= LONG_DIMENSION * plan.mesh.size:
                    found.setdefault(dim, []).append(path)
    for dim, paths in found.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        padded = -(-dim // plan.mesh.size) * plan.mesh.size
        yield (
            f"No mesh axis divides the {dim} of {paths[0]}{more}: nothing is sharded along it. "
            f"With {padded}, {padded / dim - 1:.2%} more, it could be."
        )


def _kept_copies(plan: PlanRecord) -> Iterator[str]:
    """What keeping gathered operands saves; the solver's gap knows nothing of it."""
    count = len(plan.execution.kept_copies)
    if count:
        before, plural = plan.solve_result.objective, count > 1
        # Less than nothing where the estimate is of a program that waits for its collectives.
        saved = 0.0 if before is None else before - plan.estimate.step_seconds
        saves = f", which saves {format_seconds(saved)}" if saved > 0 else ""
        yield (
            f"{count} resharded operand{'s are' if plural else ' is'} kept for later readers"
            f"{saves}; the gap is that of plans without {'these' if plural else 'it'}."
        )


def _unmeasured(plan: PlanRecord) -> Iterator[str]:
    """Axes whose collectives the profile table does not know, and matmuls and convolutions that it
    does not know in any shape."""
    table, units = plan.mesh.table, plan.execution.units
    if table is None:
        return
    known = {entry.devices for entry in table.collectives}
    sizes = sorted({plan.mesh.shape[a] for a in plan.mesh.nontrivial_axes} - known)
    if sizes:
        yield (
            f"The profile has no collectives over {', '.join(map(str, sizes))} devices: priced by "
            "the alpha-beta model."
        )
    found = (library_calls(units, unit, plan.mesh.hardware) for unit in units.units)
    matmuls = [call for calls in found for call in calls if call and call.is_matmul]
    missing = {call.opcode for call in matmuls if not table.has(*call.known)}
    if missing:
        yield (
            f"The profile lacks some {' and '.join(sorted(missing))} of this step: priced by the "
            "roofline."
        )


def _regions(plan: PlanRecord) -> Iterator[str]:
    """What is not looked into: regions, and calls of what has no sharding rule."""
    units = plan.execution.units
    whole, given, opaque = (
        "Planned whole and replicated: {}.",
        "Left as written, between the layouts that it names: {}.",
        "Without a sharding rule, replicated and kept: {}.",
    )
    found: dict[str, set[str]] = {whole: set(), given: set(), opaque: set()}
    for unit in units.units:
        equation = units.graph.program.equations[unit.root]
        name = equation.name
        if given_layouts(units, unit, plan.mesh) is not None:
            found[given].add(name)
        elif units.graph.equations[unit.root].is_region:
            found[whole].add(region_name(equation))
        elif is_opaque(units.graph, unit.root):
            found[opaque].add(name)
    return (text.format(", ".join(sorted(names))) for text, names in found.items() if names)


def costly_kernels(plan: PlanRecord) -> tuple[str, ...]:
    """Kernels without a sharding rule that take long, whole on every device."""
    units, step_seconds = plan.execution.units, plan.estimate.step_seconds
    if plan.mesh.size == 1:
        return ()
    found: dict[tuple[str, str], float] = {}
    for unit, decision in zip(units.units, plan.decisions, strict=True):
        equation = units.graph.program.equations[unit.root]
        is_unruled = equation.name == CUSTOM_PARTITIONING and not equation.is_kernel
        is_whole = given_layouts(units, unit, plan.mesh) is None
        if is_whole and (is_unruled or is_opaque(units.graph, unit.root)):
            place = called_name(equation.jaxpr_eqn), decision.source_line
            found[place] = found.get(place, 0.0) + decision.seconds
    return tuple(
        f"{name} ({line}) takes {seconds / step_seconds:.0%} of the step, whole on every device: "
        "it has no sharding rule. kiwi.register_kernel gives its function one."
        for (name, line), seconds in found.items()
        if seconds > COSTLY_KERNEL * step_seconds
    )


def _unread_hints(plan: PlanRecord, planner: PlannerFacts) -> Iterator[str]:
    """Hints that the planner does not heed, or that are inside of what is planned whole."""
    graph = plan.execution.units.graph
    placed = [p for hints in graph.program.hints.values() for p in hints if p.hint.pins]
    if placed and not planner.heeds_hints:
        yield f"The planner {planner.name!r} heeds no hints: {len(placed)} are not read."
    elif not planner.recomputes and any(p.hint.keep or p.hint.recompute for p in placed):
        yield f"The planner {planner.name!r} heeds no hints to keep or to recompute."
    if plan.host_limit_bytes is None and any(p.hint.offload for p in placed):
        yield "Hints to offload are not read: the plan may not use the host's memory."
    inside = sum(_hints_inside(e.jaxpr_eqn) for e in graph.program.equations)
    if inside:
        yield f"{inside} hints inside of what is planned whole are not read."


def _hints_inside(eqn: Any) -> int:
    """How many hints the regions of a traced equation have."""
    inner = [e for region in inner_jaxprs(eqn) for e in region.eqns]
    return sum((e.primitive.name == HINT_PRIMITIVE) + _hints_inside(e) for e in inner)


def _own_pins(plan: PlanRecord, settings: Settings) -> Iterator[tuple[Pin, bool]]:
    """What the function and its arguments ask of shardings, and whether the plan follows it."""
    program, layouts = plan.execution.units.graph.program, plan.execution.layouts
    if plan.mesh.size == 1 or not settings.respect_user_shardings:
        return
    pins = [(v, constraint_pin(program, v, plan.mesh)) for v in program.constraints]
    for value, pin in (*asked_pins(plan.traced, settings).items(), *pins):
        lies = layouts.get(value)
        yield pin, pin.layout is not None and lies is not None and pin.allows(lies)


def _pinned(plan: PlanRecord, settings: Settings) -> Iterator[str]:
    """How many values lie as the function asks, and how many of these whole on every device."""
    followed = [pin for pin, is_followed in _own_pins(plan, settings) if is_followed]
    whole = [pin for pin in followed if not any(pin.layout or ((),))]
    if followed:
        replicated = f", {len(whole)} of them replicated ({_labels(whole)})" if whole else ""
        are = "values are" if len(followed) > 1 else "value is"
        yield (
            f"{len(followed)} {are} pinned by shardings of the function or its arguments"
            f"{replicated}. respect_user_shardings=False plans without that, and "
            "plan.without_user_shardings() says what it costs."
        )


def _labels(pins: Sequence[Pin]) -> str:
    return ", ".join(list(dict.fromkeys(pin.label for pin in pins))[:3])


def _unfollowed_constraints(plan: PlanRecord, settings: Settings) -> Iterator[str]:
    """What the function or its arguments ask of shardings and the plan lays out otherwise."""
    missed = [pin for pin, is_followed in _own_pins(plan, settings) if not is_followed]
    if missed:
        yield (
            f"{len(missed)} values lie otherwise than the function constrains them "
            f"({_labels(missed)}): the planner, the mesh {plan.mesh.shape} or the operators allow "
            "no such layout."
        )


def _solver(plan: PlanRecord) -> Iterator[str]:
    if plan.solve_result.message:
        yield plan.solve_result.message
    if not plan.solve_result.deterministic:
        yield CLOCK_ENDED_SEARCH


def _compiled(plan: PlanRecord) -> Iterator[str]:
    """How far the compiled peak is from the estimate and the budget."""
    if plan.compiled is None:
        return
    peak = format_bytes(plan.compiled.peak_bytes)
    ratio = plan.estimate.peak_bytes / max(1, plan.compiled.peak_bytes)
    if abs(ratio - 1) > NOTED_DIFFERENCE:
        yield (
            f"The estimated peak {format_bytes(plan.estimate.peak_bytes)} is {ratio:.2f} times the "
            f"compiled one, {peak}."
        )
    if plan.compiled.rematerialized:
        count = plan.compiled.rematerialized
        yield f"The compiler itself recomputes {count} instructions beside the plan."
    if not plan.fits:
        yield (
            f"Over the budget: the compiled peak is {peak}, the budget "
            f"{format_bytes(plan.memory_budget_bytes)}."
        )
