"""The subcommands of `kiwi`. Each returns whether the answer is yes (exit code 0)."""

import argparse
import dataclasses
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import kiwi.saved
from kiwi.api import PlannedFunction
from kiwi.calls.constraints import constraints_of_text
from kiwi.cli.output import Output, Show
from kiwi.configurations.search import search as run_search
from kiwi.deviation import deviation as deviation_of
from kiwi.deviation import reduce_deviation
from kiwi.errors import BudgetNotMetError, InvalidArgumentError, NotEnoughDevicesError
from kiwi.json_file import write_text
from kiwi.loading import UserFunction, load, use_attached_devices, use_cpu_devices
from kiwi.mesh import Assignment, Cluster, ProfileTable, best_assignment
from kiwi.mesh.hardware import Hardware
from kiwi.mesh.shipped import table_named, table_names
from kiwi.messages import Note, topics
from kiwi.messages.pages import paragraph
from kiwi.messages.topics import topic_of
from kiwi.options import options_among
from kiwi.plans.comparison import comparison
from kiwi.plans.cross_check import CrossCheck, cross_checked
from kiwi.plans.deviations import worst_text
from kiwi.plans.document import document
from kiwi.plans.explain import SEARCH
from kiwi.plans.explain_search import SearchExplanation
from kiwi.plans.explain_text import document_summary, explanation_text, find_in_document
from kiwi.plans.plan import Plan
from kiwi.plans.report_data import report_data
from kiwi.plans.summary import table
from kiwi.profiling import recording
from kiwi.profiling.cluster_probe import measure_cluster
from kiwi.report import render_comparison, write_page, write_report
from kiwi.sizes import format_bytes, format_seconds
from kiwi.solver import Progress
from kiwi.sweep import Sweep, sweep_json
from kiwi.sweep import sweep as run_sweep
from kiwi.targets.registry import is_own_compiler
from kiwi.timings import Stopwatch, measured
from kiwi.xla.compilers import compile_for, named, resolved
from kiwi.xla.read.compiled_program import CompiledProgram

MOST_DEVIATION = 0.2
"""If the compiled step time differs from the planned one by more than this fraction, a warning says
so."""


def plan(arguments: argparse.Namespace, output: Output) -> bool:
    """`kiwi plan`: plans a function and prints the summary. Returns whether the plan fits."""
    with output.progress() as show, measured() as watch:
        planned, user = _planned(arguments, show, watch)
        new_plan = planned.plan(*user.args, **user.kwargs)
    try:
        output.written("Plan saved to", arguments.out, new_plan.save)
        output.written("Report written to", arguments.report, new_plan.write_report)
    finally:  # The summary is not lost if a file cannot be written.
        output.result(document(new_plan), str(new_plan))
    ratio = new_plan.time_ratio
    if ratio is not None and abs(ratio - 1) > MOST_DEVIATION:
        output.note(_deviating(new_plan, ratio).line)
    return new_plan.fits


def _deviating(made: Plan, ratio: float) -> Note:
    return Note.of(
        topics.TIME_DEVIATES,
        f"the compiled step takes {ratio:.2f} times the planned one: "
        f"{worst_text(made.deviations) or 'no kernel by itself'}.",
        ratio=ratio,
    )


def _planned(
    arguments: argparse.Namespace, show: Show, watch: Stopwatch
) -> tuple[PlannedFunction, UserFunction]:
    """Returns the file's function with the options of the command line, and its arguments."""
    if "mesh_shape" in arguments:
        # A shape with a zero is refused later, by the error for meshes.
        use_cpu_devices(max(1, math.prod(arguments.mesh_shape)))
    else:
        use_attached_devices()
    user = load(arguments.function, arguments.args)
    show(description="tracing (the first plan on a machine also compiles the solver, a minute)")
    reporter = _Reporter(show, watch)
    watch.on_change = reporter.show
    changes = {**options_among(vars(arguments)), "on_progress": reporter, "any_time": True}
    if "mesh_shape" in changes:
        changes["mesh"] = None
    constraint_texts = (arguments.pin, arguments.forbid_replicated, arguments.on_host)
    if any(constraint_texts):
        changes["constraints"] = constraints_of_text(*constraint_texts)
    return PlannedFunction(user.function, dataclasses.replace(user.options, **changes)), user


def deviation(arguments: argparse.Namespace, output: Output) -> bool:
    """`kiwi deviation`: prints the deviation of a function's plan, or with `--reduce` the smallest
    part that deviates. Returns False if no such part was found."""
    with output.progress() as show, measured() as watch:
        planned, user = _planned(arguments, show, watch)
        try:
            deviating_plan = planned.plan(*user.args, **user.kwargs)
        except BudgetNotMetError as error:
            deviating_plan = error.plan  # Its memory and its collectives can still be compared.
        show(description="compiling for its schedule")
        found_deviation = deviation_of(deviating_plan)
    if not arguments.reduce:
        output.result(dataclasses.asdict(found_deviation), str(found_deviation))
        return True
    output.note(str(found_deviation))
    witness = reduce_deviation(
        deviating_plan,
        found_deviation,
        planned.options,
        quantity=arguments.of,
        most_tests=arguments.most_tests,
        report=output.note,
    )
    if witness is None:
        output.result({"witness": None}, "No part of the step that was tried deviates as it does.")
        return False
    output.written("Function written to", arguments.out, witness.write)
    output.result(witness.json, str(witness))
    return True


class _Reporter:
    """Shows the stage, the round, the best step time and the gap beside the elapsed seconds.

    A search reports only its own best solution, and each further search starts without one. So the
    best step time belongs to the last search that reported.
    """

    def __init__(self, show: Show, watch: Stopwatch) -> None:
        self._show, self._watch = show, watch
        self._found = ""

    def __call__(self, progress: Progress) -> None:
        """Takes a state of the solver and shows it."""
        best = "none yet" if progress.objective is None else format_seconds(progress.objective)
        gap = "" if progress.gap is None else f", gap {progress.gap:.1%}"
        self._found = f": best step {best}{gap}"
        self.show()

    def show(self) -> None:
        """Shows the current stage of planning, with the latest figures."""
        round = f", round {self._watch.round}" if self._watch.round else ""
        self._show(description=f"{self._watch.stage}{round}{self._found}")


def explain(arguments: argparse.Namespace, output: Output) -> bool:
    """`kiwi explain`: prints a message's page, a saved plan, its search, or one operator."""
    topic = topic_of(arguments.plan.upper())
    if topic is not None:
        output.result(vars(topic) | {"level": topic.level.value}, paragraph(topic))
        return True
    if re.fullmatch(r"KIWI-\w+", arguments.plan.upper()) and not Path(arguments.plan).exists():
        raise InvalidArgumentError(
            f"There is no message {arguments.plan}.",
            topic=topics.UNKNOWN_NAME,
            suggestion="A code as it stands in an error or a note, such as KIWI-M003.",
        )
    saved = kiwi.saved.load_plan(arguments.plan)
    if arguments.subject == SEARCH:
        data = {"history": saved.document.get("history", [])}
        output.result(data, str(SearchExplanation(saved.history)))
        return True
    if arguments.op is None:
        output.result(saved.document, document_summary(saved.document))
        return True
    units = find_in_document(saved.document, arguments.op)
    if not units:
        raise InvalidArgumentError(
            f"No operator of {arguments.plan} is called {arguments.op!r}.",
            topic=topics.NO_SUCH_OPERATOR,
            suggestion="An index, an opcode, a name scope or file.py:line, as in the report.",
        )
    forced: tuple[Any, ...] = ()
    if arguments.function is not None:
        with output.progress() as show:
            show(description="solving again with the operator pinned")
            applied = _applied(saved, arguments)
            limits = {"forced": arguments.forced, "time_limit_seconds": arguments.time_limit}
            forced = applied.explain(units[0], **limits).forced
    text = explanation_text(saved.document, units[0], forced)
    if len(units) > 1:
        further = ", ".join(map(str, units[1:9])) + (", ..." if len(units) > 9 else "")
        text += f"\n\n{len(units) - 1} more operators match: {further}"
    data = list(saved.document["operators"].values())[units[0]]
    output.result(
        {**data, "forced": [_forced_json(alternative, saved) for alternative in forced]}, text
    )
    return True


def _forced_json(forced: Any, saved: kiwi.saved.SavedPlan) -> dict[str, Any]:
    sides = {
        side: list(map(saved.mesh.describe, getattr(forced, side))) for side in ("reads", "results")
    }
    return {**vars(forced), **sides}


def _applied(saved: kiwi.saved.SavedPlan, arguments: argparse.Namespace) -> Plan:
    """Returns the saved plan, restored on the user's function."""
    use_cpu_devices(saved.mesh.size)
    user = load(arguments.function, arguments.args)
    return saved.apply(user.function).plan(*user.args, **user.kwargs)


def diff(arguments: argparse.Namespace, output: Output) -> bool:
    """`kiwi diff`: prints the differences of two plans. Returns whether there are none."""
    plans = [kiwi.saved.load_plan(path) for path in (arguments.first, arguments.second)]
    differences = kiwi.saved.diff(*plans)
    if arguments.report:
        data = comparison(plans[0].document, plans[1].document, (arguments.first, arguments.second))
        write_page(arguments.report, render_comparison(data))
        output.note(f"Report written to {arguments.report}")
    output.result(dataclasses.asdict(differences), str(differences))
    return differences.same


def verify(arguments: argparse.Namespace, output: Output) -> bool:
    """`kiwi verify`: compiles a saved plan and prints its figures. Returns whether the plan
    fits."""
    saved = kiwi.saved.load_plan(arguments.plan)
    target, _ = resolved(arguments.target, saved.mesh.hardware)
    with output.progress() as show:
        show(description=f"compiling for {target}")
        applied = _applied(saved, arguments)
        name, check = str(target), None
        if not is_own_compiler(target, saved.mesh.hardware):
            step, budget_bytes = applied.step_for(named(name)), applied.memory_budget_bytes
            check = cross_checked(applied.execution, step, name, budget_bytes)
        compiled = check.program if check else compile_for(name, applied.step)
    checked = dataclasses.replace(applied, compiled=None if check else compiled)
    recorded = _recorded(saved, compiled.target)
    data = {
        "target": compiled.target,
        "peak_bytes": compiled.peak_bytes,
        "recorded_peak_bytes": recorded,
        "expected_peak_bytes": check.expected_peak_bytes if check else applied.estimate.peak_bytes,
        "estimated_peak_bytes": applied.estimate.peak_bytes,
        "step_seconds": compiled.step_seconds,
        "estimated_step_seconds": applied.estimate.step_seconds,
        "memory_budget_bytes": applied.memory_budget_bytes,
        "fits": checked.fits,
    }
    output.result(data, _verified_text(checked, compiled, check, recorded))
    return checked.fits


def _recorded(saved: kiwi.saved.SavedPlan, target: str) -> int | None:
    """Returns the peak that the plan's file records for the program of a compiler; None if it
    records none."""
    programs = (saved.compiled, saved.cross_check and saved.cross_check.program)
    return next(
        (
            program.peak_bytes
            for program in programs
            if program is not None and program.target == target
        ),
        None,
    )


def _verified_text(
    plan: Plan, compiled: CompiledProgram, check: CrossCheck | None, recorded: int | None
) -> str:
    """Returns a text with the compiled peak and step time, and the predicted ones."""
    before = "" if recorded is None else f" (recorded: {format_bytes(recorded)})"
    peak = f"Compiled peak {format_bytes(compiled.peak_bytes)} on {compiled.target}{before}, "
    estimated = f"estimated {format_bytes(plan.estimate.peak_bytes)}"
    budget = f"budget {format_bytes(plan.memory_budget_bytes)}"
    fits = "fits" if plan.fits else "over budget"
    if check is not None:
        return (
            f"{peak}{format_bytes(check.expected_peak_bytes)} expected there. For {plan.profile}, "
            f"which that compiler does not compile for: {estimated}, {budget}: {fits}"
        )
    seconds = compiled.step_seconds
    time = (
        ""
        if seconds is None
        else (
            f"\nStep time {format_seconds(seconds)} by the compiled schedule, estimated "
            f"{format_seconds(plan.estimate.step_seconds)}"
        )
    )
    return f"{peak}{estimated}, {budget}: {fits}{time}"


def sweep(arguments: argparse.Namespace, output: Output) -> bool:
    """`kiwi sweep`: plans for several meshes and budgets and prints a table. Returns whether any
    plan was found."""
    options = options_among(vars(arguments))
    meshes, budgets = options.pop("mesh_shape"), options.pop("memory_budget")
    total = len(meshes) * len(budgets)
    with output.progress(total) as show:
        show(description=f"planning {total} combinations in {arguments.jobs} processes")
        swept = run_sweep(
            arguments.function,
            meshes,
            budgets,
            args=arguments.args,
            jobs=arguments.jobs,
            on_point=lambda _: show(advance=1),
            **options,
        )
    try:
        _write_sweep(swept, arguments, output)
    finally:
        header = ("mesh", "budget", "step", "peak", "compiled", "gap", "", "took")
        output.result(sweep_json(swept), table(header, _sweep_rows(swept)))
        output.note(f"{total} combinations in {swept.seconds:.0f} s; * is on the Pareto front")
    return swept.best is not None


def _write_sweep(swept: Sweep, arguments: argparse.Namespace, output: Output) -> None:
    if arguments.out:
        write_text(json.dumps(sweep_json(swept), indent=1), arguments.out)
        output.note(f"Sweep saved to {arguments.out}")
    if arguments.report:
        best = swept.best
        if best is None or best.document is None:
            output.note("No report: nothing fits.")
            return
        write_report(arguments.report, report_data(best.document, sweep=sweep_json(swept)))
        output.note(f"Report written to {arguments.report}")


def _sweep_rows(swept: Sweep) -> list[tuple[str, ...]]:
    rows = []
    for point in swept.points:
        mesh = "x".join(map(str, point.mesh_shape))
        budget = format_bytes(point.memory_budget_bytes)
        if point.step_seconds is None or point.peak_bytes is None:
            rows.append((mesh, budget, "-", "-", "-", "-", point.error[:60], ""))
            continue
        compiled = point.compiled_peak_bytes
        figures = (
            format_seconds(point.step_seconds),
            format_bytes(point.peak_bytes),
            "-" if compiled is None else format_bytes(compiled),
            "-" if point.gap is None else f"{point.gap:.1%}",
        )
        mark = "*" if point in swept.pareto else ""
        rows.append((mesh, budget, *figures, mark, f"{point.seconds:.1f} s"))
    return rows


def hardware(arguments: argparse.Namespace, output: Output) -> bool:
    """`kiwi hardware`: prints the catalogue of hardware profiles, or one entry."""
    names = [arguments.name] if arguments.name else table_names()
    entries = [table_named(name).hardware for name in names]
    data = [dataclasses.asdict(entry) for entry in entries]
    if arguments.name:
        output.result(data[0], _hardware_text(entries[0]))
        return True
    rows = [
        (
            profile_hardware.name,
            format_bytes(profile_hardware.memory_bytes),
            f"{profile_hardware.memory_bandwidth_bytes_per_second / 1e9:.0f} GB/s",
            f"{profile_hardware.peak_flops_per_second('float32') / 1e12:.4g}",
            f"{profile_hardware.peak_flops_per_second('bfloat16') / 1e12:.4g}",
            f"{profile_hardware.intra_link.bandwidth_bytes_per_second / 1e9:.0f} GB/s",
        )
        for profile_hardware in entries
    ]
    header = ("name", "memory", "bandwidth", "TFLOP/s f32", "bf16", "link")
    output.result(data, table(header, rows))
    return True


def _hardware_text(entry: Hardware) -> str:
    kind = "public figures, not measured" if entry.analytic else "measured"
    rates = ", ".join(f"{k} {flops / 1e12:.4g}" for k, flops in entry.flops_per_second.items())
    links = [
        f"{name} {link.bandwidth_bytes_per_second / 1e9:.4g} GB/s, "
        f"{format_seconds(link.latency_seconds)}, efficiency {link.efficiency}"
        for name, link in zip(_link_names(entry), (entry.intra_link, entry.inter_link), strict=True)
    ]
    return "\n".join(
        [
            f"{entry.name}: {entry.description}",
            f"memory {format_bytes(entry.memory_bytes)}, "
            f"{entry.memory_bandwidth_bytes_per_second / 1e9:.0f} GB/s "
            f"(efficiency {entry.bandwidth_efficiency})",
            f"TFLOP/s: {rates} (matmul efficiency {entry.matmul_efficiency})",
            *links,
            *_nodes_text(entry),
            f"to the host {entry.host_bandwidth_bytes_per_second / 1e9:.4g} GB/s",
            f"source: {entry.source} ({kind})",
        ]
    )


def _link_names(entry: Hardware) -> tuple[str, str]:
    if entry.interconnect is None:
        return "inside a node", "between nodes"
    return "link to a neighbour, one way", "between slices, of a device"


def _nodes_text(entry: Hardware) -> list[str]:
    wiring = entry.interconnect
    if wiring is None:
        return [f"devices per node: {entry.devices_per_node or 'last mesh axis'}"]
    condition = "one is a multiple" if wiring.dimensions == 2 else "all are multiples"
    lines = [
        f"slices of {wiring.dimensions} dimensions, at most {entry.devices_per_node} devices",
        f"dimensions are rings where {condition} of {wiring.ring_multiple}, else lines",
    ]
    inside = wiring.chip_bandwidth_bytes_per_second
    if inside is not None:
        lines.append(
            f"devices per chip: {wiring.devices_per_chip}, {inside / 1e9:.4g} GB/s one way"
        )
    return lines


def search(arguments: argparse.Namespace, output: Output) -> bool:
    """`kiwi search`: searches configurations, prints the table and saves the best plan."""
    options = options_among(vars(arguments))
    meshes = options.pop("mesh_shape", None)
    profiles = options.pop("profile", "h100-sxm").split(",")
    use_cpu_devices(max(arguments.devices))
    with output.progress() as show:
        show(description=f"searching in {arguments.jobs} processes")
        result = run_search(
            arguments.function,
            devices=arguments.devices,
            meshes=meshes,
            most_axes=arguments.most_axes,
            profiles=profiles,
            batch_sizes=arguments.batch_sizes,
            microbatches=arguments.microbatches,
            stages=arguments.stages,
            objective=arguments.objective,
            prices=dict(arguments.price),
            plans_all=arguments.plans_all,
            jobs=arguments.jobs,
            resume=arguments.resume,
            on_found=lambda configuration, outcome: show(
                description=f"{outcome.stage.value} of {configuration}"
            ),
            **options,
        )
    try:
        if arguments.table:
            write_text(json.dumps(result.json(), indent=1), arguments.table)
        output.written("Plan saved to", arguments.out, result.best.save)
        output.written("Report written to", arguments.report, result.write_report)
    finally:
        output.result(result.json(), str(result))
        output.note(f"Best: {result.best_row.configuration}; {result.seconds:.0f} s")
    return True


def cluster(arguments: argparse.Namespace, output: Output) -> bool:
    """`kiwi cluster`: measures or loads a cluster, and prints the best assignment of its devices to
    a mesh."""
    measured_cluster = (
        _measured_cluster(output) if arguments.file is None else Cluster.load(arguments.file)
    )
    output.written("Measurements saved to", arguments.out, measured_cluster.save)
    assignment = best_assignment(measured_cluster, arguments.mesh)
    data = {
        "mesh_shape": list(assignment.shape),
        "device_order": list(assignment.order),
        "uniform": assignment.is_uniform,
        # JSON has no infinity, which is the bandwidth along an axis of one device.
        "axes": [
            dataclasses.asdict(axis) if axis.size > 1 else {"size": 1} for axis in assignment.axes
        ],
    }
    output.result(data, _cluster_text(measured_cluster, assignment))
    return True


def _measured_cluster(output: Output) -> Cluster:
    use_attached_devices()
    pairs = math.comb(jax.device_count(), 2)
    with output.progress(pairs) as show:
        show(description=f"measuring {pairs} connections")
        return measure_cluster(on_pair=lambda: show(advance=1))


def _cluster_text(cluster: Cluster, assignment: Assignment) -> str:
    shape = " x ".join(map(str, assignment.shape))
    kind = "uniform links" if assignment.is_uniform else "links that differ along an axis"
    lines = [f"{cluster.size} devices as a mesh of {shape}: {kind}"]
    for number, axis in enumerate(assignment.axes):
        if axis.size > 1:
            slowest = axis.link.bandwidth_bytes_per_second / 1e9
            lines.append(
                f"axis {number}: {axis.size} devices, {slowest:.4g} GB/s "
                f"(fastest {axis.fastest_bytes_per_second / 1e9:.4g}), "
                f"{format_seconds(axis.link.latency_seconds)}"
            )
    names = ", ".join(str(cluster.devices[index]) for index in assignment.order)
    order = ",".join(map(str, assignment.order))
    return "\n".join([*lines, f"device order: {order}", f"devices: {names}"])


def profile(arguments: argparse.Namespace, output: Output) -> bool:
    """`kiwi profile`: measures the operators and collectives of a function's plans, and saves them
    as a profile table."""
    if not arguments.out.endswith(".json"):  # Other commands take a name as `--profile`.
        raise InvalidArgumentError(
            f"--out {arguments.out} does not end with .json, as --profile wants it.",
            topic=topics.TABLE_NAME,
            suggestion=f"--out {arguments.out}.json",
        )
    if arguments.cpu_devices is None:
        use_attached_devices()
    else:
        use_cpu_devices(arguments.cpu_devices)
    user = load(arguments.function, arguments.args)
    before = 0
    if Path(arguments.out).exists():
        known = ProfileTable.load(arguments.out)
        before = len(known.operators) + len(known.collectives)
    try:
        with output.progress(total=1) as show:
            show(description="tracing")
            measured = recording.record_profile(
                PlannedFunction(user.function, user.options),
                *user.args,
                mesh_shape=arguments.mesh,
                compiler=arguments.compiler,
                path=arguments.out,
                repetitions=arguments.repetitions,
                on_progress=_measuring_reporter(show),
                **user.kwargs,
            )
    except KeyboardInterrupt:
        if Path(arguments.out).exists():
            output.note(f"{arguments.out} has what was measured; the same command goes on.")
        raise
    except NotEnoughDevicesError as error:
        size = math.prod(arguments.mesh)
        raise error.changed(
            cause="A table is recorded on the devices that it is for.",
            suggestion=f"A smaller --mesh; or --cpu-devices {size} to measure virtual ones.",
        ) from error
    _report_table(arguments.out, measured, before, output)
    return True


def _report_table(path: str, known: ProfileTable, before: int, output: Output) -> None:
    data = {
        "path": path,
        "operators": len(known.operators),
        "collectives": len(known.collectives),
        "measured_before": before,
        "skipped": list(known.skipped),
        "scales": dict(known.scales),
    }
    assert known.environment is not None
    device = known.hardware.description.removeprefix("measured ").partition(";")[0]
    compiler = known.environment.compiler
    how = f"stated by {compiler} for" if compiler else "measured on"
    lines = [
        f"{len(known.operators)} operators and {len(known.collectives)} collectives {how} {device}"
        + (f" ({before} of them before)" if before else "")
        + f": {path}",
        *(f"times of {operator} scaled by {scale:.3f}" for operator, scale in known.scales.items()),
        *(f"skipped: {note}" for note in known.skipped),
        f"Plan with it: kiwi plan FILE.py:FUNCTION --mesh ... --profile {path}",
    ]
    output.result(data, "\n".join(lines))


def _measuring_reporter(show: Show) -> Callable[[recording.Progress], None]:
    def report(progress: recording.Progress) -> None:
        seconds, remaining = progress.seconds_left, ""
        if math.isfinite(seconds):
            remaining = (
                f", {seconds / 60:.0f} min left" if seconds > 90 else f", {seconds:.0f} s left"
            )
        text = f"{progress.done} of {progress.total}{remaining}: {progress.what[:60]}"
        show(description=text, completed=progress.done, total=progress.total)

    return report
