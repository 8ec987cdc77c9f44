"""The summary of a plan as text and tables, for the terminal."""

import re
from collections.abc import Iterator, Sequence

from kiwi.plans.breakdown import PARTS, Decision
from kiwi.plans.deviations import worst_memory_text, worst_text
from kiwi.plans.record import PlanRecord
from kiwi.problem.predicted_collectives import describe
from kiwi.sizes import format_bytes, format_seconds
from kiwi.solver import SolveStatus
from kiwi.xla.read.collectives import COLLECTIVE_KINDS

_MOST_ROWS = 8
"""A table shows this many rows, and the number of the others."""
_LEAST_SHARE = 0.05
"""Stages with a smaller fraction of the processor time are summed up as "all else"."""
SAME_TIME = SAME_PEAK = 0.05
"""If the compiled step time or peak differs from the estimated one by a larger fraction, the
summary says why."""

_LONGEST_PATH = 44
_INDEX = re.compile(r"\[\d+\]")


def summary(plan: PlanRecord) -> str:
    """Returns a text of about thirty lines: the plan's cost, whether the plan fits, its shardings,
    and its offloaded and recomputed operators."""
    blocks = [_head(plan), _time(plan), _memory(plan), _collectives(plan)]
    blocks += [_arguments(plan), _offloaded(plan), _recomputed(plan)]
    blocks.append("\n".join(note.line for note in plan.notes))
    return "\n\n".join(block for block in blocks if block)


def _head(plan: PlanRecord) -> str:
    mesh = mesh_text(plan.mesh.axis_names, plan.mesh.shape)
    result = plan.solve_result
    texts = zip(plan.mesh.axis_names, plan.mesh.axis_texts, strict=True)
    over = ", ".join(f"{name}: {text}" for name, text in texts if text)
    origin = f"from the cache, planned on {plan.cached_on}" if plan.cached_on else "planned"
    return (
        f"Plan for {plan.mesh.size} x {plan.profile} ({mesh}), budget "
        f"{format_bytes(plan.memory_budget_bytes)} per device\n"
        + (f"{over}\n" if over else "")
        + f"planner {_planner(plan)}, {_quality(plan)} ({result.solver} "
        f"{result.seconds:.1f} s), {origin} in {plan.planning_seconds:.1f} s" + _timings(plan)
    )


def _quality(plan: PlanRecord) -> str:
    """Returns the quality that the solver proves, by the plan's prices and its account of memory.
    The plan is called "optimal" only if the compiled program takes the planned time."""
    result, ratio = plan.solve_result, plan.time_ratio
    if result.gap is None:
        return f"{result.status.value}, no bound"
    is_as_planned = ratio is None or abs(ratio - 1) <= SAME_TIME
    if result.status is SolveStatus.OPTIMAL and is_as_planned:
        return f"optimal by its prices, gap {result.gap:.2%}"
    return f"gap {result.gap:.2%} by its prices"


def _planner(plan: PlanRecord) -> str:
    """Returns the planner's name, with the parameters that are not at their defaults."""
    parameters = ", ".join(f"{name}={value!r}" for name, value in plan.planner_parameters.items())
    return f"{plan.planner}({parameters})" if parameters else plan.planner


def _timings(plan: PlanRecord) -> str:
    """Returns a line with the stages that took most of the processor time."""
    total = sum(stage_time.cpu_seconds for stage_time in plan.timings)
    if not total:
        return ""
    shown = [
        candidate for candidate in plan.timings if candidate.cpu_seconds >= _LEAST_SHARE * total
    ]
    remaining = total - sum(stage_time.cpu_seconds for stage_time in shown)
    parts = [f"{stage_time.stage} {stage_time.cpu_seconds:.1f}" for stage_time in shown]
    parts += [f"all else {remaining:.1f}"] if remaining >= _LEAST_SHARE * total else []
    return f"\nprocessor {total:.1f} s: {', '.join(parts)}"


def _time(plan: PlanRecord) -> str:
    estimate = plan.estimate
    seconds = {part: getattr(estimate, f"{part}_seconds") for part in PARTS}
    text = ", ".join(
        f"{part} {format_seconds(part_seconds)}" for part, part_seconds in seconds.items()
    )
    if estimate.hidden_seconds:
        text += f"; {format_seconds(estimate.hidden_seconds)} of it behind computation"
    shares = describe(estimate.time_shares)
    origin = f"\n  {shares}" if shares else ""
    estimated = f"Step time, estimated  {format_seconds(estimate.step_seconds)}\n  {text}{origin}"
    return "\n".join((estimated, *_simulated(plan)))


def _simulated(plan: PlanRecord) -> Iterator[str]:
    """Yields lines about the time of the compiled program."""
    compiled = plan.compiled
    if compiled is None or compiled.time is None:
        return
    time = compiled.time
    yield (
        f"Step time, compiled   {format_seconds(time.step_seconds)} ({compiled.target}; "
        "its schedule, simulated)"
    )
    rows = [
        f"{format_seconds(row.exposed_seconds)} of {format_seconds(row.seconds)} {_along(row.axes)}"
        for row in time.communication
    ]
    waits = f"; waits for {', '.join(rows)}" if rows else ""
    yield f"  computes {format_seconds(time.compute_seconds)}{waits}"
    ratio = plan.time_ratio
    if ratio is not None and abs(ratio - 1) > SAME_TIME:
        why = worst_text(plan.deviations) or "no kernel by itself"
        yield f"  compiled / estimated {ratio:.2f}: {why}"


def _along(axes: tuple[str, ...] | None) -> str:
    if axes is None:
        return "along unknown axes"
    return f"along {' and '.join(axes)}" if axes else "to the host and back"


def _memory(plan: PlanRecord) -> str:
    estimated = f"Peak memory, estimated  {format_bytes(plan.estimate.peak_bytes)}"
    compiled = plan.compiled
    if compiled is None:
        return f"{estimated}\nPeak memory, compiled   {_unchecked(plan)}{_host(plan)}"
    ratio = plan.estimate.peak_bytes / max(1, compiled.peak_bytes)
    return (
        f"{estimated}\n"
        f"Peak memory, compiled   {format_bytes(compiled.peak_bytes)} ({compiled.target}), "
        f"estimated / compiled {ratio:.2f}\n"
        f"  arguments {format_bytes(compiled.argument_bytes)}, "
        f"temporaries {format_bytes(compiled.temporary_bytes)}{_why_other_peak(plan)}{_host(plan)}"
        f"{_rounds(plan)}"
    )


def has_other_peak(plan: PlanRecord) -> bool:
    """Returns whether the compiled peak differs from the estimated peak by more than
    `SAME_PEAK`."""
    return abs(plan.peak_bytes - plan.estimate.peak_bytes) > SAME_PEAK * plan.peak_bytes


def _why_other_peak(plan: PlanRecord) -> str:
    """Returns a line about the buffers that make the compiled peak differ from the estimated
    peak."""
    if not has_other_peak(plan):
        return ""
    excess_bytes = plan.peak_bytes - plan.estimate.peak_bytes
    worst = worst_memory_text(plan.deviations, excess_bytes) or "no buffer by itself"
    return f"\n  at the compiled peak, compiled for planned: {worst}"


def _unchecked(plan: PlanRecord) -> str:
    """Returns why the program for the plan's hardware is not known, and the memory of another
    compiler's program."""
    check = plan.cross_check
    if check is None:
        return "not checked"
    return (
        f"not compiled for this hardware; compiled for {check.program.target!r} "
        f"{format_bytes(check.program.peak_bytes)}, {format_bytes(check.expected_peak_bytes)} "
        "expected there"
    )


def _host(plan: PlanRecord) -> str:
    """Returns a line about the plan's use of host memory; "" if it uses none."""
    size, checked = plan.estimate.host_peak_bytes, plan.compiled
    if not size:
        return ""
    seconds = format_seconds(plan.estimate.offload_seconds)
    compiled = "" if checked is None else f", {format_bytes(checked.host_peak_bytes)} compiled"
    return f"\n  in the host's memory {format_bytes(size)}{compiled}; copied in {seconds}"


def _rounds(plan: PlanRecord) -> str:
    """Returns a line about the rounds of the closed loop; "" without rounds."""
    if not plan.rounds:
        return ""
    solving = format_seconds(sum(round_.solve_seconds for round_ in plan.rounds))
    compiling = format_seconds(sum(round_.compile_seconds for round_ in plan.rounds))
    count = f"{len(plan.rounds)} round{'s' if len(plan.rounds) > 1 else ''}"
    return f"\n  {count} of planning and compiling: solver {solving}, compiler {compiling}"


def _collectives(plan: PlanRecord) -> str:
    program = plan.compiled or (plan.cross_check and plan.cross_check.program)
    compiled = program.collectives if program else {}
    rows = []
    for kind in COLLECTIVE_KINDS:
        planned, compiled_use = plan.estimate.collectives.get(kind), compiled.get(kind)
        if planned is None and compiled_use is None:
            continue
        cells = [
            "-" if use is None else f"{use.count} x, {format_bytes(use.bytes)}"
            for use in (planned, compiled_use)
        ]
        rows.append((kind, *cells))
    if not rows:
        return ""
    compiled_for = f"compiled ({program.target})" if plan.cross_check and program else "compiled"
    return table(("collective", "planned", compiled_for), rows)


def _arguments(plan: PlanRecord) -> str:
    """Returns a table of the largest arguments and their shardings. Arguments of equal layers share
    a line."""
    sizes: dict[tuple[str, ...], list[int]] = {}
    call, shardings = plan.traced.call, plan.execution.argument_shardings
    for path, shape, sharding in zip(call.paths, call.shapes, shardings, strict=True):
        name = _shortened(_INDEX.sub("[*]", path))
        key = (name, str(shape.shape), plan.mesh.describe(sharding))
        sizes.setdefault(key, []).append(shape.size * shape.dtype.itemsize)
    rows = sorted(sizes.items(), key=lambda item: -sum(item[1]))
    cells = [(*key, str(len(alike)), format_bytes(alike[0])) for key, alike in rows]
    header = ("argument", "shape", "sharding", "count", "each")
    return table(header, cells, _MOST_ROWS, "smaller kinds (plan.in_shardings)")


def _shortened(path: str) -> str:
    """Returns a path, if it is long without its middle, since both ends distinguish arguments."""
    if len(path) <= _LONGEST_PATH:
        return path
    half = (_LONGEST_PATH - 3) // 2
    return f"{path[:half]}...{path[-half:]}"


def _recomputed(plan: PlanRecord) -> str:
    recomputed = [decision for decision in plan.decisions if decision.residency == "recompute"]
    if not recomputed and plan.estimate.recompute_seconds:
        seconds = format_seconds(plan.estimate.recompute_seconds)
        subject = "results that have no buffer"
        return f"The function's own jax.checkpoint computes {subject} again: {seconds}."
    if not recomputed and not any(decision.residency == "offload" for decision in plan.decisions):
        return f"All {len(plan.decisions)} operators are kept; nothing is recomputed."
    if not recomputed:
        return "Nothing is recomputed."
    size = sum(decision.trips * decision.bytes for decision in recomputed)
    seconds = format_seconds(plan.estimate.recompute_seconds)
    head = (
        f"Recomputed: {len(recomputed)} of {len(plan.decisions)} operators, {format_bytes(size)} "
        f"not kept, {seconds} more"
    )
    return f"{head}\n{_listed(recomputed)}"


def _offloaded(plan: PlanRecord) -> str:
    offloaded = [decision for decision in plan.decisions if decision.residency == "offload"]
    if not offloaded:
        return ""
    size = format_bytes(sum(decision.trips * decision.bytes for decision in offloaded))
    head = f"Offloaded: {len(offloaded)} of {len(plan.decisions)} operators, {size}"
    return f"{head}\n{_listed(offloaded)}"


def _listed(decisions: Sequence[Decision]) -> str:
    """Returns a table of groups of operators with the same opcode and source line."""
    groups: dict[tuple[str, str], list[Decision]] = {}
    for decision in decisions:
        groups.setdefault((decision.opcode, decision.source_line), []).append(decision)
    rows = [
        (
            str(sum(member.trips for member in group)),
            opcode,
            line.rsplit("/", 1)[-1],
            format_bytes(sum(member.trips * member.bytes for member in group)),
        )
        for (opcode, line), group in groups.items()
    ]
    return table(("times", "opcode", "source", "bytes"), rows, _MOST_ROWS)


def mesh_text(axis_names: Sequence[str], shape: Sequence[int]) -> str:
    """Returns a mesh as text, such as "x=2, y=4"."""
    return ", ".join(f"{name}={size}" for name, size in zip(axis_names, shape, strict=True))


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    most_rows: int | None = None,
    others: str = "more",
) -> str:
    """Returns left-aligned columns under a header. After the first `most_rows` rows, a line says
    how many more rows there are; `others` is the noun of that line."""
    lines = aligned((header, *rows[:most_rows]))
    remaining = len(rows) - len(lines) + 1
    ending = [f"... and {remaining} {others}"] if remaining > 0 else []
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], *ending])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a line for each row, in left-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (zip(row, widths, strict=True) for row in rows)
    return ["  ".join(cell.ljust(width) for cell, width in row).rstrip() for row in padded]
