"""What the reader of a plan should know."""

from typing import Any

from jax.extend import core as jex

from kiwi.hlo.fusion import is_opaque
from kiwi.hlo.hints import HINT_PRIMITIVE
from kiwi.planners.planner import Planner
from kiwi.planners.user_pins import constraint_pin
from kiwi.plans.record import PlanRecord
from kiwi.problem.library_calls import library_calls
from kiwi.problem.manual_computations import given_layouts
from kiwi.sizes import format_bytes, format_seconds

NOTED_DIFFERENCE = 0.25
"""Relative distance of estimate and compiled peak from which a plan says so."""


def notes(plan: PlanRecord, planner: Planner) -> tuple[str, ...]:
    """What the reader should know, one sentence each."""
    return (
        *_undivided(plan),
        *_unmeasured(plan),
        *_unmeasured_operators(plan),
        *_regions(plan),
        *_unread_hints(plan, planner),
        *_unfollowed_constraints(plan),
        *_kept_copies(plan),
        *_solver(plan),
        *_difference(plan),
        *_budget(plan),
    )


def _undivided(plan: PlanRecord) -> list[str]:
    """Arguments that no mesh axis divides."""
    sizes = [plan.mesh.shape[a] for a in plan.mesh.nontrivial_axes]
    names = [
        f"{path} {shape.shape}"
        for path, shape in zip(plan.trees.paths, plan.trees.shapes, strict=True)
        if shape.shape and sizes and not any(d % n == 0 for d in shape.shape for n in sizes)
    ]
    if not names:
        return []
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return [
        f"No mesh axis (sizes {', '.join(map(str, sizes))}) divides a dimension of {shown}: "
        "replicated on every device."
    ]


def _kept_copies(plan: PlanRecord) -> list[str]:
    """What keeping gathered operands saves; the solver's gap knows nothing of it."""
    count = len(plan.execution.kept_copies)
    if not count:
        return []
    before, plural = plan.solve_result.objective, count > 1
    saved = "" if before is None else format_seconds(before - plan.estimate.step_seconds)
    return [
        f"{count} resharded operand{'s are' if plural else ' is'} kept for later readers, which "
        f"saves {saved}; the gap is that of plans without {'these' if plural else 'it'}."
    ]


def _unmeasured(plan: PlanRecord) -> list[str]:
    """Axes whose collectives the profile table does not know."""
    table = plan.mesh.table
    if table is None:
        return []
    known = {entry.devices for entry in table.collectives}
    sizes = sorted({plan.mesh.shape[a] for a in plan.mesh.nontrivial_axes} - known)
    if not sizes:
        return []
    return [
        f"The profile has no collectives over {', '.join(map(str, sizes))} devices: priced by the "
        "alpha-beta model."
    ]


def _unmeasured_operators(plan: PlanRecord) -> list[str]:
    """Matmuls and convolutions that the profile table does not know in any shape."""
    table, units = plan.mesh.table, plan.execution.units
    if table is None:
        return []
    calls = [call for unit in units.units for call in library_calls(units, unit)]
    missing = {c.opcode for c in calls if c and c.is_matmul and not table.has(*c.known)}
    if not missing:
        return []
    return [
        f"The profile lacks some {' and '.join(sorted(missing))} of this step: priced by the "
        "roofline."
    ]


def _regions(plan: PlanRecord) -> list[str]:
    """What is not looked into: regions, and calls of what has no sharding rule."""
    units = plan.execution.units
    equations = units.graph.program.equations
    given, whole, opaque = set(), set(), set()
    for unit in units.units:
        name = equations[unit.root].name
        if given_layouts(units, unit, plan.mesh) is not None:
            given.add(name)
        elif units.graph.equations[unit.root].is_region:
            whole.add(name)
        elif is_opaque(units.graph, unit.root):
            opaque.add(name)
    sentences = (
        (whole, "Planned whole and replicated: {}."),
        (given, "Left as written, between the layouts that it names: {}."),
        (opaque, "Without a sharding rule, replicated and kept: {}."),
    )
    return [text.format(", ".join(sorted(names))) for names, text in sentences if names]


def _unread_hints(plan: PlanRecord, planner: Planner) -> list[str]:
    """Hints that the planner does not heed, or that are inside of what is planned whole."""
    graph = plan.execution.units.graph
    placed = [p for hints in graph.program.hints.values() for p in hints if p.hint.pins]
    found = []
    if placed and not planner.heeds_hints:
        found.append(f"The planner {planner.name!r} heeds no hints: {len(placed)} are not read.")
    elif not planner.recomputes and any(p.hint.keep or p.hint.recompute for p in placed):
        found.append(f"The planner {planner.name!r} heeds no hints to keep or to recompute.")
    inside = sum(_hints_inside(e.jaxpr_eqn) for e in graph.program.equations)
    if inside:
        found.append(f"{inside} hints inside of what is planned whole are not read.")
    return found


def _unfollowed_constraints(plan: PlanRecord) -> list[str]:
    """The function's own constraints that the plan lays out otherwise."""
    program, layouts = plan.execution.units.graph.program, plan.execution.layouts
    labels = []
    for value in program.constraints:
        pin, lies = constraint_pin(program, value, plan.mesh), layouts.get(value)
        if pin.layout is None or lies is None or not pin.allows(lies):
            labels.append(pin.label)
    if not labels or plan.mesh.size == 1:
        return []
    shown = ", ".join(list(dict.fromkeys(labels))[:3])
    return [
        f"{len(labels)} values lie otherwise than the function constrains them ({shown}): the "
        f"planner, the mesh {plan.mesh.shape} or the operators allow no such layout."
    ]


def _hints_inside(eqn: Any) -> int:
    """How many hints the regions of a traced equation have."""
    regions = (getattr(region, "jaxpr", region) for region in jex.jaxprs_in_params(eqn.params))
    inner = [e for region in regions for e in region.eqns]
    return sum((e.primitive.name == HINT_PRIMITIVE) + _hints_inside(e) for e in inner)


def _solver(plan: PlanRecord) -> list[str]:
    found = []
    if plan.solve_result.message:
        found.append(plan.solve_result.message)
    if not plan.solve_result.deterministic:
        found.append("The time limit ended the search: another run may find another plan.")
    return found


def _difference(plan: PlanRecord) -> list[str]:
    if plan.compiled is None:
        return []
    ratio = plan.estimate.peak_bytes / max(1, plan.compiled.peak_bytes)
    if abs(ratio - 1) <= NOTED_DIFFERENCE:
        return []
    return [
        f"The estimated peak {format_bytes(plan.estimate.peak_bytes)} is {ratio:.2f} times the "
        f"compiled one, {format_bytes(plan.compiled.peak_bytes)}."
    ]


def _budget(plan: PlanRecord) -> list[str]:
    if plan.fits or plan.compiled is None:
        return []
    return [
        f"Over the budget: the compiled peak is {format_bytes(plan.compiled.peak_bytes)}, the "
        f"budget {format_bytes(plan.memory_budget_bytes)}."
    ]
