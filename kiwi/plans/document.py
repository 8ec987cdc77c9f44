"""A plan as plain data, for files, reports and comparisons.

Arguments and results are keyed by their pytree paths, operators by the identity of their
materialised equation (see `kiwi.plans.fingerprint`), in execution order. Shardings are lists of
mesh axis names, one list for each dimension; times are seconds, sizes bytes of one device.
Wall times are left out: equal plans have equal documents.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from kiwi.calls.constraints import Constraints
from kiwi.calls.signature import JitOptions, flatten_prefix
from kiwi.hlo.host_memory import HOST_MEMORY
from kiwi.hlo.program import Literal, Program
from kiwi.mesh import ProfileTable, TensorSharding
from kiwi.plans.breakdown import OperatorEntry
from kiwi.plans.fingerprint import Fingerprint, fingerprint, identities, value_type
from kiwi.plans.record import PlanRecord
from kiwi.problem.alternatives import Alternative
from kiwi.solver.problem import Interval
from kiwi.version import VERSION

Document = dict[str, Any]


def document(plan: PlanRecord) -> Document:
    """Everything about a plan but wall times."""
    print_ = fingerprint(plan.execution.units.graph.program)
    names = identities(print_.equations)
    return {
        "jax": jax.__version__,
        "kiwi": VERSION,
        "function": _function(plan, print_, names),
        "mesh": {
            "shape": list(plan.mesh.shape),
            "axis_names": list(plan.mesh.axis_names),
            "device_order": plan.mesh.device_order and list(plan.mesh.device_order),
        },
        "hardware": dataclasses.asdict(plan.mesh.hardware),
        "links": [dataclasses.asdict(link) for link in plan.mesh.links],
        "options": _options(plan),
        "arguments": _arguments(plan),
        "constants": _constants(plan),
        "results": _results(plan),
        "operators": {
            names[plan.execution.units.units[entry.unit].root]: _operator(plan, entry)
            for entry in plan.ledger.operators
        },
        "schedule": list(plan.execution.schedule.steps),
        "estimate": _estimate(plan),
        "bounds": _bounds(plan),
        "checks": _checks(plan),
        "notes": list(plan.notes),
    }


def axes(sharding: TensorSharding, names: Sequence[str]) -> list[list[str]]:
    """A sharding as lists of axis names."""
    return [[names[axis] for axis in dim] for dim in sharding.dims]


def _function(plan: PlanRecord, print_: Fingerprint, names: list[str]) -> Document:
    call = JitOptions() if plan.origin is None else plan.origin.traced.call.options
    return {
        "name": plan.trees.name,
        "structure": print_.structure,
        "values": print_.values,
        "binding": {
            "static_argnums": list(call.static_argnums),
            "static_argnames": list(call.static_argnames),
            "donate_argnums": list(call.donate_argnums),
            "donate_argnames": list(call.donate_argnames),
        },
        "equations": {
            name: [line.text, " ".join(line.inputs), *literals]
            for name, line, literals in zip(names, print_.equations, print_.literals, strict=True)
        },
    }


def _options(plan: PlanRecord) -> Document:
    found: Document = {
        "planner": plan.planner,
        "memory_budget_bytes": plan.memory_budget_bytes,
        "profile": plan.profile,
        "recorded": plan.mesh.table is not None,
        "table": _table(plan.mesh.table),
        "open_loops": bool(plan.execution.units.graph.program.loops),
    }
    if plan.origin is not None:
        settings = plan.origin.settings
        found |= {
            "solver": settings.solver,
            "time_limit_seconds": settings.time_limit_seconds,
            "gap": settings.gap,
            "seed": settings.seed,
            "verify": settings.verify,
            "respect_user_checkpoint": settings.respect_user_checkpoint,
            **_constraints(settings.constraints),
        }
    return found


def _constraints(constraints: Constraints) -> Document:
    given = constraints != Constraints()
    return {"constraints": constraints.to_json()} if given else {}


def _table(table: ProfileTable | None) -> Document | None:
    """Where the table was, and its digest: tables are long, and stay in their own files."""
    if table is None:
        return None
    return {"loaded_from": table.loaded_from, "digest": table.digest}


def _arguments(plan: PlanRecord) -> Document:
    program = plan.execution.units.graph.program
    held = {entry.value: entry.held for entry in plan.ledger.sources}
    given = () if plan.origin is None else plan.origin.traced.call.given_shardings
    found = {}
    for position, (path, shape, value) in enumerate(
        zip(plan.trees.paths, plan.trees.shapes, program.arguments, strict=True)
    ):
        found[path] = {
            "type": value_type(program, value),
            "weak_type": bool(shape.weak_type),
            "donated": position in plan.trees.donated,
            "given": position in given,
            "bytes": program.values[value].size_bytes,
            "sharding": axes(plan.execution.argument_shardings[position], plan.mesh.axis_names),
            "held": intervals(held.get(value, ())),
            **_memory_kind(program, value),
        }
    return found


def _memory_kind(program: Program, value: int | Literal) -> Document:
    return {"memory_kind": HOST_MEMORY} if program.is_on_host(value) else {}


def _constants(plan: PlanRecord) -> list[Document]:
    program = plan.execution.units.graph.program
    held = {entry.value: entry.held for entry in plan.ledger.sources}
    return [
        {
            "type": value_type(program, value),
            "sharding": axes(plan.execution.layouts[value], plan.mesh.axis_names),
            "held": intervals(held.get(value, ())),
        }
        for value in program.constants
    ]


def _results(plan: PlanRecord) -> Document:
    program = plan.execution.units.graph.program
    tree = jax.tree.unflatten(plan.trees.out_tree, list(range(len(program.results))))
    paths = [
        jax.tree_util.keystr(path) or "result"
        for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]
    given = [None] * len(paths)
    if plan.origin is not None and plan.origin.out_shardings is not None:
        given = flatten_prefix(plan.origin.out_shardings, tree, "out_shardings")
    return {
        path: {
            "type": value_type(program, result) if isinstance(result, int) else "literal",
            "given": wanted is not None,
            "sharding": None if sharding is None else axes(sharding, plan.mesh.axis_names),
            **_memory_kind(program, result),
        }
        for path, result, sharding, wanted in zip(
            paths, program.results, plan.execution.result_shardings, given, strict=True
        )
    }


def _operator(plan: PlanRecord, entry: OperatorEntry) -> Document:
    names = plan.mesh.axis_names
    unit = plan.execution.units.units[entry.unit]
    program = plan.execution.units.graph.program
    decision = plan.decisions[entry.unit]
    return {
        "unit": entry.unit,
        "root": unit.root,
        "opcode": decision.opcode,
        "absorbed": list(decision.absorbed),
        "phase": decision.phase,
        "name_stack": decision.name_stack,
        "source": _portable(decision.source_line),
        "types": [value_type(program, output) for output in unit.outputs],
        "operands": _operands(plan, entry.unit),
        "reads": [axes(s, names) for s in entry.reads],
        "kept_reads": list(entry.kept_reads),
        "results": [axes(s, names) for s in entry.results],
        "residency": decision.residency,
        "recompute_at": entry.recompute_at,
        "end": entry.end,
        "bytes": decision.bytes,
        "trips": decision.trips,
        "seconds": dict(entry.seconds),
        "held": intervals(entry.held),
        "copies": intervals(entry.copies),
        "option_count": entry.option_count,
        "alternatives": [_alternative(a, names) for a in entry.alternatives],
        "excluded": list(entry.excluded),
    }


def _portable(source: str) -> str:
    """A source line without the folder that the machine keeps it in."""
    path, separator, rest = source.partition(":")
    return path.replace("\\", "/").rsplit("/", 1)[-1] + separator + rest


def _operands(plan: PlanRecord, unit: int) -> list[str]:
    """What each read is: an argument's path, `#12` for the result of unit 12, or "constant"."""
    units = plan.execution.units
    paths = dict(zip(units.graph.program.arguments, plan.trees.paths, strict=True))
    found = []
    for value, _ in units.units[unit].rule.reads:
        producer = units.producer.get(value)
        found.append(paths.get(value, "constant") if producer is None else f"#{producer}")
    return found


def _alternative(found: Alternative, names: Sequence[str]) -> Document:
    return {
        "reads": [axes(s, names) for s in found.reads],
        "results": [axes(s, names) for s in found.results],
        "recompute_at": found.recompute_at,
        "change_seconds": found.change_seconds,
        "change_bytes": found.change_bytes,
    }


def intervals(found: Iterable[Interval]) -> list[list[int]]:
    """`[start, end, bytes]` of each."""
    return [[int(i.start), int(i.end), int(i.bytes)] for i in found]


def _estimate(plan: PlanRecord) -> Document:
    fields = {
        field.name: getattr(plan.estimate, field.name)
        for field in dataclasses.fields(plan.estimate)
        if field.name != "held"  # the entries of arguments and operators say the same
    }
    fields["memory_bytes"] = list(plan.estimate.memory_bytes)
    fields["collective_uses"] = [_use(use) for use in plan.estimate.collective_uses]
    return fields


def _use(use: Any) -> Document:
    fields = dataclasses.asdict(use)
    return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}


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


def _checks(plan: PlanRecord) -> Document | None:
    if plan.compiled is None:
        return None
    fields = dataclasses.asdict(plan.compiled)
    del fields["compile_seconds"]
    return _plain(fields)


def _plain(value: Any) -> Any:
    """Tuples as lists, numpy's numbers as Python's."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value.item() if hasattr(value, "item") else value
