"""A plan as plain data, for files, reports and comparisons.

Arguments and results are keyed by their pytree paths. Operators are keyed by the identity of their
materialised equation (`kiwi.plans.fingerprint`), in execution order. `kiwi.plans.plan_codec` writes
the parts of a plan. Times are in seconds, sizes in bytes of one device. Wall times are left out, so
equal plans have equal documents.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import cattrs
import jax

from kiwi.calls.signature import result_shardings
from kiwi.codec import to_plain
from kiwi.hlo.host_memory import FETCH, HOST_MEMORY
from kiwi.hlo.loops import chooses_platform
from kiwi.hlo.program import Literal, Program
from kiwi.hlo.simplifications import left_as_traced
from kiwi.options import IN_FILES
from kiwi.plans.breakdown import Decision
from kiwi.plans.fingerprint import Fingerprint, fingerprint, identities, value_type
from kiwi.plans.plan_codec import plan_converter
from kiwi.plans.record import PlanRecord
from kiwi.timings import StageTime
from kiwi.version import VERSION

Document = dict[str, Any]


def document(plan: PlanRecord) -> Document:
    """Returns everything about a plan except wall times, as plain data."""
    print_ = fingerprint(plan.execution.units.graph.program)
    names = identities(print_.equations)
    conversion = plan_converter(plan.mesh.axis_names)
    mesh, execution = to_plain(plan.mesh, conversion), plan.execution
    tied = execution.tied_steps
    return {
        "jax": jax.__version__,
        "kiwi": VERSION,
        "function": _function(plan, print_, names),
        "hardware": mesh.pop("hardware"),
        "links": mesh.pop("links"),
        "mesh": mesh,
        "options": _options(plan, conversion),
        "arguments": _arguments(plan, conversion),
        "constants": _constants(plan, conversion),
        "results": _results(plan, conversion),
        "operators": {
            names[plan.execution.units.units[decision.unit].root]: _operator(
                plan, decision, conversion
            )
            for decision in plan.decisions
            if decision.costs is not None
        },
        "schedule": list(execution.schedule.steps),
        # None if barriers keep all steps in order.
        "tied_steps": None if tied is None else sorted(tied),
        "arrangement": asdict(execution.arrangement),
        "copies_ahead": execution.copies_ahead,
        "gradients_in_time": execution.gradients_in_time,
        "metrics_in_time": execution.metrics_in_time,
        "estimate": to_plain(plan.estimate, conversion),
        "bounds": _bounds(plan),
        "checks": to_plain(plan.compiled, conversion),
        "deviations": to_plain(plan.deviations, conversion),
        "corrections": to_plain(plan.corrections, conversion),
        "cross_check": to_plain(plan.cross_check, conversion),
        "notes": [note.plain for note in plan.notes],
        "history": to_plain(plan.history, conversion),
    }


def timings_document(timings: Sequence[StageTime]) -> Document:
    """Returns the processor and wall seconds of each stage of planning, rounded to milliseconds."""
    return {
        stage_time.stage: {
            "cpu_seconds": round(stage_time.cpu_seconds, 3),
            "seconds": round(stage_time.seconds, 3),
        }
        for stage_time in timings
    }


def _function(plan: PlanRecord, print_: Fingerprint, names: list[str]) -> Document:
    call = plan.traced.call
    return {
        "name": call.name,
        "structure": print_.structure,
        "values": print_.values,
        "binding": {
            name: list(getattr(call.options, name))
            for name in ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
        },
        "equations": {
            name: [line.text, " ".join(line.inputs), *line.literals]
            for name, line in zip(names, print_.equations, strict=True)
        },
    }


def _options(plan: PlanRecord, by: cattrs.Converter) -> Document:
    """Returns the options that determine the plan, and, if the plan's origin is known, the options
    of its search."""
    table, program = plan.mesh.table, plan.execution.units.graph.program
    plan_options: Document = {
        "planner": plan.planner,
        "memory_budget_bytes": plan.memory_budget_bytes,
        "profile": plan.profile,
        "compiler": plan.execution.compiler.name,
        "recorded": table is not None,
        # Tables are long, and stay in their own files.
        "table": table and {"loaded_from": table.loaded_from, "digest": table.digest},
        "open_loops": bool(program.loops),
        "as_traced": left_as_traced(program),
        "fetches_elements": any(
            equation.name == FETCH and equation.loop is not None for equation in program.equations
        ),
        "platforms": _platforms(plan),
        "planner_parameters": dict(plan.planner_parameters),
        "residencies": None if program.residencies is None else dict(program.residencies),
    }
    if plan.origin is None:
        return plan_options
    settings = plan.origin.settings
    return {
        **{name: getattr(settings, name) for name in IN_FILES},
        **plan_options,
        "host_budget_bytes": settings.host_budget_bytes,
        "constraints": to_plain(settings.constraints, by),
    }


def _platforms(plan: PlanRecord) -> list[str]:
    """Returns the platforms whose branches of `jax.lax.platform_dependent` the program was traced
    with; empty if the program still contains all branches."""
    equations = plan.execution.units.graph.program.equations
    is_open = any(chooses_platform(equation.jaxpr_eqn) for equation in equations)
    return [] if is_open else list(plan.execution.compiler.platforms)


def _arguments(plan: PlanRecord, by: cattrs.Converter) -> Document:
    program = plan.execution.units.graph.program
    held = {entry.value: entry.held for entry in plan.breakdown.sources}
    call, entries = plan.traced.call, {}
    for position, (path, shape, value) in enumerate(
        zip(call.paths, call.shapes, program.arguments, strict=True)
    ):
        entries[path] = {
            "type": value_type(program, value),
            "weak_type": bool(shape.weak_type),
            "donated": position in call.donated,
            "given": position in call.given_shardings,
            "bytes": program.values[value].size_bytes,
            "sharding": to_plain(plan.execution.argument_shardings[position], by),
            "held": to_plain(held.get(value, ()), by),
            **_memory_kind(program, value),
        }
    return entries


def _memory_kind(program: Program, value: int | Literal) -> Document:
    return {"memory_kind": HOST_MEMORY} if program.is_on_host(value) else {}


def _constants(plan: PlanRecord, by: cattrs.Converter) -> list[Document]:
    program = plan.execution.units.graph.program
    held = {entry.value: entry.held for entry in plan.breakdown.sources}
    return [
        {
            "type": value_type(program, value),
            "sharding": to_plain(plan.execution.layouts[value], by),
            "held": to_plain(held.get(value, ()), by),
        }
        for value in program.constants
    ]


def _results(plan: PlanRecord, by: cattrs.Converter) -> Document:
    program = plan.execution.units.graph.program
    tree = jax.tree.unflatten(plan.traced.out_tree, range(len(program.results)))
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    given_shardings = result_shardings(plan.traced.call.options, plan.traced.out_tree)
    return {
        jax.tree_util.keystr(path) or "result": {
            "type": value_type(program, result) if isinstance(result, int) else "literal",
            "given": wanted is not None,
            "sharding": to_plain(sharding, by),
            **_memory_kind(program, result),
        }
        for path, result, sharding, wanted in zip(
            paths, program.results, plan.execution.result_shardings, given_shardings, strict=True
        )
    }


def _operator(plan: PlanRecord, decision: Decision, by: cattrs.Converter) -> Document:
    """Returns a decision and its costs in one object."""
    unit = plan.execution.units.units[decision.unit]
    program = plan.execution.units.graph.program
    plain = to_plain(decision, by)
    costs = plain.pop("costs")
    return {
        "root": unit.root,
        "types": [value_type(program, output) for output in unit.outputs],
        "operands": _operands(plan, decision.unit),
        "source": _portable(plain.pop("source_line")),
        **plain,
        **costs,
    }


def _portable(source: str) -> str:
    """Returns a source line without the folder, which differs between machines."""
    path, separator, line = source.partition(":")
    return path.replace("\\", "/").rsplit("/", 1)[-1] + separator + line


def _operands(plan: PlanRecord, unit: int) -> list[str]:
    """Returns the source of each read: an argument's path, `#12` for a result of unit 12, or
    "constant"."""
    units = plan.execution.units
    paths = dict(zip(units.graph.program.arguments, plan.traced.call.paths, strict=True))
    names = []
    for value, _ in units.units[unit].rule.reads:
        producer = units.producer.get(value)
        names.append(paths.get(value, "constant") if producer is None else f"#{producer}")
    return names


def _bounds(plan: PlanRecord) -> Document:
    result = plan.solve_result
    return {
        "status": result.status.value,
        "objective_seconds": result.objective,
        "bound_seconds": result.bound if math.isfinite(result.bound) else None,
        "gap": result.gap,
        "solver": result.solver,
        "deterministic": result.deterministic,
        "message": result.message,
    }
