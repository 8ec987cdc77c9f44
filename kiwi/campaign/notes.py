"""The notes that a plan has for its user."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp

from kiwi.campaign.equal_layers import EQUAL_LAYERS
from kiwi.campaign.planner_facts import PlannerFacts
from kiwi.campaign.tools import CLOCK_ENDED_SEARCH
from kiwi.hlo.equation_kinds import is_opaque
from kiwi.hlo.hints import HINT_PRIMITIVE
from kiwi.hlo.partitioned_functions import CUSTOM_PARTITIONING
from kiwi.hlo.regions.work import called_name, inner_jaxprs
from kiwi.messages import Note, Topic, topics
from kiwi.options import Settings
from kiwi.plans.record import PlanRecord
from kiwi.problem.library_calls import library_calls
from kiwi.problem.manual_computations import given_layouts, region_name
from kiwi.problem.pins import Pin
from kiwi.problem.user_pins import asked_pins, constraint_pin
from kiwi.sizes import format_bytes, format_seconds

NOTED_DIFFERENCE = 0.25
"""A note names both peaks if the estimated peak differs from the compiled peak by more than this
part of the compiled peak."""

LONG_DIMENSION = 32
"""An uneven dimension is noted from this many elements on each device on: padding adds little to
it."""


COSTLY_KERNEL = 0.1
"""A kernel without a sharding rule gets a warning if it takes more than this part of the step."""


def notes(plan: PlanRecord, planner: PlannerFacts, settings: Settings) -> tuple[Note, ...]:
    """Returns the notes of a plan that `planner` made under these settings."""
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


def _undivided(plan: PlanRecord) -> Iterator[Note]:
    """Notes arguments without any dimension that a mesh axis divides."""
    sizes = [plan.mesh.shape[axis] for axis in plan.mesh.nontrivial_axes]
    names = [
        f"{path} {shape.shape}"
        for path, shape in zip(plan.traced.call.paths, plan.traced.call.shapes, strict=True)
        if shape.shape and sizes and not any(dim % n == 0 for dim in shape.shape for n in sizes)
    ]
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield Note.of(
            topics.REPLICATED,
            f"No mesh axis (sizes {', '.join(map(str, sizes))}) divides a dimension of {shown}: "
            "replicated on every device.",
            arguments=len(names),
        )


def _uneven(plan: PlanRecord) -> Iterator[Note]:
    """Notes long dimensions that no mesh axis divides, of parameters with another dimension that an
    axis divides. Such a dimension is most often the vocabulary."""
    sizes = [plan.mesh.shape[axis] for axis in plan.mesh.nontrivial_axes]
    paths_of_dim: dict[int, list[str]] = {}
    for path, shape in zip(plan.traced.call.paths, plan.traced.call.shapes, strict=True):
        is_matrix = len(shape.shape) > 1 and jnp.issubdtype(shape.dtype, jnp.inexact)
        uneven = {size for size in shape.shape if all(size % n for n in sizes)}
        if is_matrix and sizes and uneven != set(shape.shape):
            for dim in uneven:
                if dim >= LONG_DIMENSION * plan.mesh.size:
                    paths_of_dim.setdefault(dim, []).append(path)
    for dim, paths in paths_of_dim.items():
        others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        padded = -(-dim // plan.mesh.size) * plan.mesh.size
        yield Note.of(
            topics.UNEVEN_DIMENSION,
            f"No mesh axis divides the {dim} of {paths[0]}{others}: nothing is sharded along it. "
            f"With {padded}, {padded / dim - 1:.2%} more, it could be.",
            argument=paths[0],
            size=dim,
            padded_size=padded,
        )


def _kept_copies(plan: PlanRecord) -> Iterator[Note]:
    """Notes the time saved by kept copies of operands, which the solver's gap does not include."""
    count = len(plan.execution.kept_copies)
    if count:
        searched_seconds, plural = plan.solve_result.objective, count > 1
        # Negative if the estimate is of a program that waits for its collectives.
        saved = 0.0 if searched_seconds is None else searched_seconds - plan.estimate.step_seconds
        saves = f", which saves {format_seconds(saved)}" if saved > 0 else ""
        yield Note.of(
            topics.KEPT_COPIES,
            f"{count} resharded operand{'s are' if plural else ' is'} kept for later readers"
            f"{saves}; the gap is that of plans without {'these' if plural else 'it'}.",
            operands=count,
            saved_seconds=max(0.0, saved),
        )


def _unmeasured(plan: PlanRecord) -> Iterator[Note]:
    """Notes axes whose collectives the profile does not have, and kinds of matmuls and convolutions
    that it has in no shape."""
    table, units = plan.mesh.table, plan.execution.units
    if table is None:
        return
    known = {entry.devices for entry in table.collectives}
    sizes = sorted({plan.mesh.shape[axis] for axis in plan.mesh.nontrivial_axes} - known)
    if sizes:
        yield Note.of(
            topics.COLLECTIVES_UNMEASURED,
            f"The profile has no collectives over {', '.join(map(str, sizes))} devices: priced by "
            "the alpha-beta model.",
        )
    calls_of_units = (library_calls(units, unit, plan.mesh.hardware) for unit in units.units)
    matmuls = [call for calls in calls_of_units for call in calls if call and call.is_matmul]
    missing = {call.opcode for call in matmuls if not table.has(*call.known)}
    if missing:
        yield Note.of(
            topics.OPERATORS_UNMEASURED,
            f"The profile lacks some {' and '.join(sorted(missing))} of this step: priced by the "
            "roofline.",
        )


def _regions(plan: PlanRecord) -> Iterator[Note]:
    """Returns notes on parts of the program that Kiwi does not look into: regions, and calls
    without a sharding rule."""
    units = plan.execution.units
    whole, given, opaque = (
        (topics.WHOLE, "Planned whole and replicated: {}."),
        (topics.AS_WRITTEN, "Left as written, between the layouts that it names: {}."),
        (topics.RULELESS, "Without a sharding rule, replicated and kept: {}."),
    )
    names_of_topic: dict[tuple[Topic, str], set[str]] = {whole: set(), given: set(), opaque: set()}
    for unit in units.units:
        equation = units.graph.program.equations[unit.root]
        name = equation.name
        if given_layouts(units, unit, plan.mesh) is not None:
            names_of_topic[given].add(name)
        elif units.graph.equations[unit.root].is_region:
            names_of_topic[whole].add(region_name(equation))
        elif is_opaque(units.graph, unit.root):
            names_of_topic[opaque].add(name)
    return (
        Note.of(topic, text.format(", ".join(sorted(names))), regions=len(names))
        for (topic, text), names in names_of_topic.items()
        if names
    )


def costly_kernels(plan: PlanRecord) -> tuple[Note, ...]:
    """Returns notes on slow kernels that run whole on every device for want of a sharding rule."""
    units, step_seconds = plan.execution.units, plan.estimate.step_seconds
    if plan.mesh.size == 1:
        return ()
    seconds_of_kernel: dict[tuple[str, str], float] = {}
    for unit, decision in zip(units.units, plan.decisions, strict=True):
        equation = units.graph.program.equations[unit.root]
        is_unruled = equation.name == CUSTOM_PARTITIONING and not equation.is_kernel
        is_whole = given_layouts(units, unit, plan.mesh) is None
        if is_whole and (is_unruled or is_opaque(units.graph, unit.root)):
            place = called_name(equation.jaxpr_eqn), decision.source_line
            seconds_of_kernel[place] = seconds_of_kernel.get(place, 0.0) + decision.seconds
    return tuple(
        Note.of(
            topics.COSTLY_KERNEL,
            f"{name} ({line}) takes {seconds / step_seconds:.0%} of the step, whole on every "
            "device: it has no sharding rule. kiwi.register_kernel gives its function one.",
            seconds=seconds,
        )
        for (name, line), seconds in seconds_of_kernel.items()
        if seconds > COSTLY_KERNEL * step_seconds
    )


def _unread_hints(plan: PlanRecord, planner: PlannerFacts) -> Iterator[Note]:
    """Notes hints that the planner does not heed, or that are inside a region planned whole."""
    graph = plan.execution.units.graph
    placed = [pin for hints in graph.program.hints.values() for pin in hints if pin.hint.pins]
    if placed and not planner.heeds_hints:
        yield Note.of(
            topics.HINTS_UNHEEDED,
            f"The planner {planner.name!r} heeds no hints: {len(placed)} are not read.",
            hints=len(placed),
        )
    elif not planner.recomputes and any(pin.hint.keep or pin.hint.recompute for pin in placed):
        yield Note.of(
            topics.RESIDENCY_UNHEEDED,
            f"The planner {planner.name!r} heeds no hints to keep or to recompute.",
        )
    if plan.host_limit_bytes is None and any(pin.hint.offload for pin in placed):
        yield Note.of(
            topics.OFFLOAD_UNREAD,
            "Hints to offload are not read: the plan may not use the host's memory.",
        )
    inside = sum(_hints_inside(equation.jaxpr_eqn) for equation in graph.program.equations)
    if inside:
        yield Note.of(
            topics.HINTS_INSIDE,
            f"{inside} hints inside of what is planned whole are not read.",
            hints=inside,
        )


def _hints_inside(eqn: Any) -> int:
    """Returns the number of hints in the regions of a jaxpr equation, at any depth."""
    inner = [inner_eqn for region in inner_jaxprs(eqn) for inner_eqn in region.eqns]
    return sum(
        (inner_eqn.primitive.name == HINT_PRIMITIVE) + _hints_inside(inner_eqn)
        for inner_eqn in inner
    )


def _own_pins(plan: PlanRecord, settings: Settings) -> Iterator[tuple[Pin, bool]]:
    """Yields each sharding that the function or its arguments ask for, and whether the plan follows
    it."""
    program, layouts = plan.execution.units.graph.program, plan.execution.layouts
    if plan.mesh.size == 1 or not settings.respect_user_shardings:
        return
    pins = [(value, constraint_pin(program, value, plan.mesh)) for value in program.constraints]
    for value, pin in (*asked_pins(plan.traced, settings).items(), *pins):
        layout = layouts.get(value)
        yield pin, pin.layout is not None and layout is not None and pin.allows(layout)


def _pinned(plan: PlanRecord, settings: Settings) -> Iterator[Note]:
    """Notes the number of values with the sharding that the function asks for, and how many of them
    are replicated."""
    followed = [pin for pin, is_followed in _own_pins(plan, settings) if is_followed]
    whole = [pin for pin in followed if not any(pin.layout or ((),))]
    if followed:
        replicated = f", {len(whole)} of them replicated ({_labels(whole)})" if whole else ""
        are = "values are" if len(followed) > 1 else "value is"
        yield Note.of(
            topics.PINNED,
            f"{len(followed)} {are} pinned by shardings of the function or its arguments"
            f"{replicated}. respect_user_shardings=False plans without that, and "
            "plan.without_user_shardings() says what it costs.",
            values_pinned=len(followed),
            replicated=len(whole),
        )


def _labels(pins: Sequence[Pin]) -> str:
    """Returns the labels of up to three different pins."""
    return ", ".join(list(dict.fromkeys(pin.label for pin in pins))[:3])


def _unfollowed_constraints(plan: PlanRecord, settings: Settings) -> Iterator[Note]:
    """Notes values whose sharding in the plan differs from the one that the function or its
    arguments ask for."""
    missed = [pin for pin, is_followed in _own_pins(plan, settings) if not is_followed]
    if missed:
        yield Note.of(
            topics.UNFOLLOWED,
            f"{len(missed)} values lie otherwise than the function constrains them "
            f"({_labels(missed)}): the planner, the mesh {plan.mesh.shape} or the operators allow "
            "no such layout.",
            values_missed=len(missed),
        )


def _solver(plan: PlanRecord) -> Iterator[Note]:
    """Notes the solver's message, and whether the clock ended the search."""
    if plan.solve_result.message:
        is_tied = plan.solve_result.message.startswith(EQUAL_LAYERS)
        topic = topics.EQUAL_LAYERS if is_tied else topics.SOLVER_SAID
        yield Note.of(topic, plan.solve_result.message)
    if not plan.solve_result.deterministic:
        yield CLOCK_ENDED_SEARCH


def _compiled(plan: PlanRecord) -> Iterator[Note]:
    """Notes the difference of the compiled peak from the estimate, recomputation by the compiler,
    and the excess over the budget."""
    if plan.compiled is None:
        return
    peak = format_bytes(plan.compiled.peak_bytes)
    ratio = plan.estimate.peak_bytes / max(1, plan.compiled.peak_bytes)
    if abs(ratio - 1) > NOTED_DIFFERENCE:
        yield Note.of(
            topics.PEAKS_DIFFER,
            f"The estimated peak {format_bytes(plan.estimate.peak_bytes)} is {ratio:.2f} times the "
            f"compiled one, {peak}.",
            estimated_bytes=plan.estimate.peak_bytes,
            compiled_bytes=plan.compiled.peak_bytes,
        )
    if plan.compiled.rematerialized:
        count = plan.compiled.rematerialized
        yield Note.of(
            topics.COMPILER_RECOMPUTES,
            f"The compiler itself recomputes {count} instructions beside the plan.",
            instructions=count,
        )
    if not plan.fits:
        yield Note.of(
            topics.OVER_BUDGET,
            f"Over the budget: the compiled peak is {peak}, the budget "
            f"{format_bytes(plan.memory_budget_bytes)}.",
            compiled_bytes=plan.compiled.peak_bytes,
            budget_bytes=plan.memory_budget_bytes,
        )
