"""Restores a saved plan: makes a `Plan` from a document and a traced call.

The function is traced again. The document supplies only layouts, order and figures. A restored plan
always executes the present function.
"""

from collections.abc import Sequence
from dataclasses import replace

import cattrs
import jax

from kiwi.calls.constraints import Constraints
from kiwi.calls.host_memory import OnHost
from kiwi.calls.signature import Call
from kiwi.codec import from_plain
from kiwi.corrections import Corrections
from kiwi.emit.execution import Execution
from kiwi.errors import PlanMismatchError, ProfileFileError, UnknownProfileError
from kiwi.hlo.grouping import regroup
from kiwi.hlo.units import UnitGraph
from kiwi.mesh import DeviceMesh, ProfileTable, TensorSharding
from kiwi.mesh.shipped import find_table
from kiwi.messages import Note, topics
from kiwi.options import IN_FILES, Settings
from kiwi.plans.breakdown import CostBreakdown, Decision, SourceEntry
from kiwi.plans.cross_check import CrossCheck
from kiwi.plans.deviations import KernelDeviation
from kiwi.plans.document import Document
from kiwi.plans.estimate import Estimate
from kiwi.plans.fingerprint import EquationLine, differences, fingerprint, type_text
from kiwi.plans.history import Outcome, Trial
from kiwi.plans.plan import Plan
from kiwi.plans.plan_codec import mesh_of, partition_spec, plan_converter
from kiwi.plans.record import MadeBy, Origin
from kiwi.problem.step import StepToPlan
from kiwi.solver import SolveResult, SolveStatus
from kiwi.solver.schedule import Schedule
from kiwi.targets.registry import target_named
from kiwi.xla.read.compiled_program import CompiledProgram
from kiwi.xla.step import Arrangement


def restore(saved: Document, traced: StepToPlan, planner: MadeBy, *, strict: bool = True) -> Plan:
    """Returns the saved plan for a function, which has to be the function that it was made for.

    - `saved`: the plan's document.
    - `traced`: the traced call of the function.
    - `planner`: the planner that changes or explains the plan.
    - `strict`: False accepts other values of literals and captured constants, on which no plan
      depends.

    **Raises:** `PlanMismatchError` with the differences if the function is another one.
    """
    _check_function(saved, traced, strict=strict)
    mesh = mesh_of(saved)
    units, regrouped = _units(saved, traced)
    breakdown = breakdown_of(saved, units)
    table = _table(saved)
    # A plan cannot be priced again without the table that it was priced from.
    lost = regrouped or (saved["options"]["recorded"] and table is None)
    planned_step = replace(_with_given_shardings(saved, traced), units=units)
    history = history_of(saved)
    origin = (
        None
        if lost
        else _origin(saved, planned_step, replace(mesh, table=table), breakdown, planner)
    )
    return Plan(
        mesh=mesh,
        profile=saved["options"]["profile"],
        planner=saved["options"]["planner"],
        memory_budget_bytes=saved["options"]["memory_budget_bytes"],
        estimate=estimate_of(saved, breakdown),
        compiled=compiled_of(saved),
        cross_check=cross_check_of(saved),
        deviations=from_plain(
            saved["deviations"],
            tuple[KernelDeviation, ...],
            _converter(saved),
            "deviations",
        ),
        corrections=corrections_of(saved),
        solve_result=solve_result_of(saved),
        execution=_execution(saved, units, mesh, breakdown),
        traced=planned_step,
        notes=tuple(map(Note.of_plain, saved["notes"])),
        planning_seconds=0.0,
        breakdown=breakdown,
        origin=origin,
        host_limit_bytes=origin.settings.host_limit_bytes if origin else None,
        planner_parameters=saved["options"]["planner_parameters"],
        history=history,
        made_by=tuple(k for k, trial in enumerate(history) if trial.outcome is Outcome.ANSWER),
    )


def check_arguments(saved: Document, call: Call) -> None:
    """Checks that the paths, types and donation of a call's arguments equal the saved plan's.

    **Raises:** `PlanMismatchError` if they differ.
    """
    donated = ("", " (donated)")
    wanted = {
        path: argument["type"] + donated[argument["donated"]]
        for path, argument in saved["arguments"].items()
    }
    present = {
        path: type_text(shape) + donated[position in call.donated]
        for position, (path, shape) in enumerate(zip(call.paths, call.shapes, strict=True))
    }
    if list(wanted.items()) == list(present.items()):
        return
    sentences = [f"{name} is new" for name in present if name not in wanted]
    sentences += [f"{name} is missing" for name in wanted if name not in present]
    sentences += [
        f"{name} was {wanted[name]}, is {present[name]}"
        for name in wanted
        if name in present and wanted[name] != present[name]
    ]
    raise _mismatch(
        "The saved plan is for other arguments", sentences or ["their order differs"], saved
    )


def on_host_of(saved: Document) -> OnHost:
    """Returns the arguments and results that a saved plan has in host memory."""
    arguments, results = (
        frozenset(k for k, entry in enumerate(saved[part].values()) if "memory_kind" in entry)
        for part in ("arguments", "results")
    )
    return OnHost(arguments, results)


def _mismatch(
    what: str,
    sentences: Sequence[str],
    saved: Document,
    cause: str = "",
    suggestion: str = "Plan again: kiwi.plan(fun, ...) or `kiwi plan`.",
) -> PlanMismatchError:
    ending = f"; and {len(sentences) - 5} more" if len(sentences) > 5 else ""
    if not cause:
        cause = "The function or its arguments have changed since the plan was made."
        if saved["jax"] != jax.__version__:
            cause += f" The plan was made with jax {saved['jax']}, this is {jax.__version__}."
    what = f"{what}: {'; '.join(sentences[:5])}{ending}."
    differences = tuple(sentences)
    return PlanMismatchError(
        what, topic=topics.OTHER_STEP, cause=cause, suggestion=suggestion, differences=differences
    )


def _check_function(saved: Document, traced: StepToPlan, *, strict: bool) -> None:
    present = fingerprint(traced.program)
    wanted = saved["function"]
    if wanted["structure"] == present.structure and (
        not strict or wanted["values"] == present.values
    ):
        return
    lines = [
        EquationLine(text, tuple(inputs.split()), tuple(literals))
        for text, inputs, *literals in wanted["equations"].values()
    ]
    sentences = differences(lines, present.equations)
    hints: dict[str, str] = {}
    if wanted["structure"] == present.structure:
        hints["cause"] = "Only values of constants have changed, on which no plan depends."
        hints["suggestion"] = "apply(fun, strict=False), or plan again."
    raise _mismatch("The saved plan is for another function", sentences, saved, **hints)


def _converter(saved: Document) -> cattrs.Converter:
    return plan_converter(tuple(saved["mesh"]["axis_names"]))


def _table(saved: Document) -> ProfileTable | None:
    """Returns the profile table of the plan; None if it no longer exists unchanged at its place."""
    reference = saved["options"]["table"]
    if reference is None or reference["loaded_from"] is None:
        return None
    try:
        table = find_table(reference["loaded_from"])
    except (ProfileFileError, UnknownProfileError):
        return None
    return table if table.digest == reference["digest"] else None


def _units(saved: Document, traced: StepToPlan) -> tuple[UnitGraph, bool]:
    """Returns the units in the plan's order, and whether today's rules group equations differently
    than the rules that the plan was made with."""
    roots = [operator["root"] for operator in saved["operators"].values()]
    known = [unit.root for unit in traced.units.units]
    if roots == known:
        return traced.units, False
    units = regroup(traced.units.graph, roots, traced.units.donated_arguments)
    return units, sorted(roots) != sorted(known)


def _execution(
    saved: Document, units: UnitGraph, mesh: DeviceMesh, breakdown: CostBreakdown
) -> Execution:
    layouts = {source.value: source.sharding for source in breakdown.sources}
    for decision, unit in zip(breakdown.operators, units.units, strict=True):
        layouts.update(zip(unit.outputs, decision.results, strict=True))
    conversion = _converter(saved)
    results = tuple(
        None
        if result["sharding"] is None
        else from_plain(result["sharding"], TensorSharding, conversion)
        for result in saved["results"].values()
    )
    target = target_named(saved["options"]["compiler"])
    return Execution(
        target.kernels(units, mesh.hardware),
        mesh,
        Schedule(tuple(saved["schedule"])),
        tuple(layouts[argument] for argument in units.graph.program.arguments),
        results,
        layouts,
        tuple(decision.reads for decision in breakdown.operators),
        frozenset(read for decision in breakdown.operators for read in decision.kept_copies),
        None if saved["tied_steps"] is None else frozenset(saved["tied_steps"]),
        frozenset(
            operator.unit for operator in breakdown.operators if operator.fetch_at is not None
        ),
        arrangement=Arrangement(**saved["arrangement"]),
        copies_ahead=saved["copies_ahead"],
        gradients_in_time=saved["gradients_in_time"],
        metrics_in_time=saved["metrics_in_time"],
    )


def breakdown_of(saved: Document, units: UnitGraph) -> CostBreakdown:
    """Returns the breakdown in a document. `units` supplies the values of arguments and
    constants."""
    program = units.graph.program
    values = (*program.arguments, *program.constants)
    sources = zip(values, (*saved["arguments"].values(), *saved["constants"]), strict=True)
    entries = [{**source, "value": value} for value, source in sources]
    structured = from_plain(entries, tuple[SourceEntry, ...], _converter(saved), "arguments")
    return CostBreakdown(structured, decisions_of(saved))


def history_of(saved: Document) -> tuple[Trial, ...]:
    """Returns the attempts of the search in a document."""
    return from_plain(saved["history"], tuple[Trial, ...], _converter(saved), "history")


def estimate_of(saved: Document, breakdown: CostBreakdown | None = None) -> Estimate:
    """Returns the estimate in a document. Its `buffers` come from the breakdown; without a
    breakdown they are empty."""
    plain = {**saved["estimate"], "buffers": []}
    estimate = from_plain(plain, Estimate, _converter(saved), "estimate")
    return replace(estimate, buffers=() if breakdown is None else breakdown.buffers)


def compiled_of(saved: Document) -> CompiledProgram | None:
    """Returns the figures of the compiled program in a document, or None. The compile time is 0,
    because files do not contain it."""
    if saved["checks"] is None:
        return None
    checks = {**saved["checks"], "compile_seconds": 0.0}
    return from_plain(checks, CompiledProgram, _converter(saved), "checks")


def cross_check_of(saved: Document) -> CrossCheck | None:
    """Returns the check by another compiler than the plan's in a document, or None."""
    if saved["cross_check"] is None:
        return None
    program = {**saved["cross_check"]["program"], "compile_seconds": 0.0}
    checks = {**saved["cross_check"], "program": program}
    return from_plain(checks, CrossCheck, _converter(saved), "cross_check")


def corrections_of(saved: Document) -> Corrections:
    """Returns the corrected prices in a document."""
    return from_plain(saved["corrections"], Corrections, _converter(saved), "corrections")


def solve_result_of(saved: Document) -> SolveResult:
    """Returns the solver's result in a document: status, objective and bound. It has no solution,
    because files do not contain option indices."""
    bounds = saved["bounds"]
    bound = bounds["bound_seconds"]
    return SolveResult(
        status=SolveStatus(bounds["status"]),
        seconds=0.0,
        objective=bounds["objective_seconds"],
        bound=float("-inf") if bound is None else bound,
        solver=bounds["solver"],
        peak_bytes=saved["estimate"]["peak_bytes"],
        message=bounds["message"],
        deterministic=bounds["deterministic"],
    )


def decisions_of(saved: Document) -> tuple[Decision, ...]:
    """Returns the decisions in a document, one for each operator, in execution order."""
    operators = [_with_derived(operator) for operator in saved["operators"].values()]
    return from_plain(operators, tuple[Decision, ...], _converter(saved), "operators")


def _with_derived(operator: Document) -> Document:
    """Returns an operator of a document with the fields of `Decision` that other entries
    determine."""
    results, types, seconds = (operator[key] for key in ("results", "types", "seconds"))
    shape = types[0].partition("[")[2].rstrip("]") if types else ""
    return {
        **operator,
        "source_line": operator["source"],
        "shape": [int(size) for size in shape.split(",") if size],
        "sharding": results[0] if results else None,
        "seconds": seconds["compute"] + seconds["communication"],
        "costs": operator,
    }


def _with_given_shardings(saved: Document, traced: StepToPlan) -> StepToPlan:
    """Returns the step with the shardings that the caller of the saved plan had fixed."""
    arguments, results = (
        [
            partition_spec(entry["sharding"]) if entry.get("given") else None
            for entry in saved[part].values()
        ]
        for part in ("arguments", "results")
    )
    argument_shardings = {k: spec for k, spec in enumerate(arguments) if spec is not None}
    out = jax.tree.unflatten(traced.out_tree, results) if any(results) else None
    options = replace(traced.call.options, out_shardings=out)
    return replace(
        traced, call=replace(traced.call, given_shardings=argument_shardings, options=options)
    )


def _origin(
    saved: Document, traced: StepToPlan, mesh: DeviceMesh, breakdown: CostBreakdown, planner: MadeBy
) -> Origin | None:
    """Returns the origin of the plan; None if the document does not contain the options of its
    search."""
    options = saved["options"]
    if "solver" not in options:
        return None
    settings = Settings(
        mesh=mesh,
        memory_budget_bytes=options["memory_budget_bytes"],
        host_budget_bytes=options["host_budget_bytes"],
        constraints=from_plain(options["constraints"], Constraints, _converter(saved)),
        corrections=corrections_of(saved),
        **{name: options[name] for name in IN_FILES},
    )
    offered = tuple((decision.choice.residency,) for decision in breakdown.operators)
    return Origin(traced, settings, planner, offered)
