"""A saved plan put back on its function: a `Plan` from a document and a traced call.

The function is traced anew, and the document tells nothing but layouts, order and figures; what
is executed is always the function at hand.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import jax

from kiwi.calls.constraints import Constraints
from kiwi.calls.host_memory import OnHost
from kiwi.calls.signature import Call
from kiwi.calls.traced import Traced
from kiwi.emit.execution import Execution
from kiwi.errors import PlanMismatchError, ProfileFileError, UnknownProfileError
from kiwi.hlo.units import UnitGraph, regroup
from kiwi.memory.residency import Residency
from kiwi.mesh import DeviceMesh, Hardware, Link, ProfileTable, TensorSharding
from kiwi.mesh.shipped import find_table
from kiwi.options import Settings
from kiwi.plans.breakdown import Ledger, OperatorEntry, SourceEntry
from kiwi.plans.decision import Decision
from kiwi.plans.document import Document
from kiwi.plans.estimate import Estimate, Held
from kiwi.plans.fingerprint import EquationLine, differences, fingerprint
from kiwi.plans.origin import MadeBy, Origin
from kiwi.plans.plan import Plan
from kiwi.problem.alternatives import Alternative
from kiwi.solver import Interval, SolveResult, SolveStatus
from kiwi.solver.schedule import Schedule
from kiwi.xla.collectives import AxisUse
from kiwi.xla.compiled_program import CompiledProgram, compiled_from_json

_PLAN_AGAIN = "Plan again: kiwi.plan(fun, ...) or `kiwi plan`."


def restore(saved: Document, traced: Traced, planner: MadeBy, *, strict: bool = True) -> Plan:
    """The plan, for a function that is the one it was made for.

    **Arguments:**

    - `planner`: makes the plan again, where it is to be changed or explained.
    - `strict`: False accepts other values of literals and captured constants, on which no plan
      depends.

    **Raises:** `PlanMismatchError` if the function differs, with what differs.
    """
    _check_function(saved, traced, strict=strict)
    mesh = mesh_of(saved)
    units, regrouped = _units(saved, traced)
    ledger = ledger_of(saved, units, mesh)
    table = _table(saved)
    # Without the table that it was priced from it cannot be priced again.
    lost = regrouped or (saved["options"].get("recorded", False) and table is None)
    ordered = replace(traced, units=units)
    origin = None if lost else _origin(saved, ordered, replace(mesh, table=table), ledger, planner)
    return Plan(
        mesh=mesh,
        profile=saved["options"]["profile"],
        planner=saved["options"]["planner"],
        memory_budget_bytes=saved["options"]["memory_budget_bytes"],
        estimate=estimate_of(saved, ledger),
        compiled=compiled_of(saved),
        solve_result=solve_result_of(saved),
        decisions=decisions_of(saved),
        execution=_execution(saved, units, mesh, ledger),
        trees=traced.trees,
        notes=tuple(saved["notes"]),
        planning_seconds=0.0,
        ledger=ledger,
        origin=origin,
    )


def check_arguments(saved: Document, call: Call) -> None:
    """Raises `PlanMismatchError` unless paths, types and donation are those of the plan."""
    wanted = {path: (a["type"], a["donated"]) for path, a in saved["arguments"].items()}
    found = {
        path: (_type(shape), position in call.donated)
        for position, (path, shape) in enumerate(zip(call.paths, call.shapes, strict=True))
    }
    if list(wanted.items()) == list(found.items()):
        return
    sentences = [f"{p} is new" for p in found if p not in wanted]
    sentences += [f"{p} is missing" for p in wanted if p not in found]
    sentences += [
        f"{p} was {_argument(wanted[p])}, is {_argument(found[p])}"
        for p in wanted
        if p in found and wanted[p] != found[p]
    ]
    raise _mismatch(
        "The saved plan is for other arguments", sentences or ["their order differs"], saved
    )


def on_host_of(saved: Document) -> OnHost:
    """What lay in host memory."""
    arguments, results = (
        frozenset(k for k, entry in enumerate(saved[part].values()) if "memory_kind" in entry)
        for part in ("arguments", "results")
    )
    return OnHost(arguments, results)


def _type(shape: jax.ShapeDtypeStruct) -> str:
    short = str(shape.dtype).replace("float", "f").replace("uint", "u").replace("int", "i")
    return f"{short}[{','.join(map(str, shape.shape))}]"


def _argument(found: tuple[str, bool]) -> str:
    return found[0] + (" (donated)" if found[1] else "")


def _mismatch(what: str, sentences: Sequence[str], saved: Document) -> PlanMismatchError:
    more = f"; and {len(sentences) - 5} more" if len(sentences) > 5 else ""
    version = ""
    if saved["jax"] != jax.__version__:
        version = f" The plan was made with jax {saved['jax']}, this is {jax.__version__}."
    return PlanMismatchError(
        f"{what}: {'; '.join(sentences[:5])}{more}.",
        cause="The function or its arguments have changed since the plan was made." + version,
        suggestion=_PLAN_AGAIN,
        differences=tuple(sentences),
    )


def _check_function(saved: Document, traced: Traced, *, strict: bool) -> None:
    found = fingerprint(traced.units.graph.program)
    wanted = saved["function"]
    if wanted["structure"] == found.structure and (not strict or wanted["values"] == found.values):
        return
    equations = wanted["equations"].values()
    lines = [EquationLine(e[0], tuple(e[1].split())) for e in equations]
    sentences = differences(lines, [e[2:] for e in equations], found)
    error = _mismatch("The saved plan is for another function", sentences, saved)
    if wanted["structure"] == found.structure:
        raise PlanMismatchError(
            error.what,
            cause="Only values of constants have changed, on which no plan depends.",
            suggestion="apply(fun, strict=False), or plan again.",
            differences=error.differences,
        )
    raise error


def mesh_of(saved: Document) -> DeviceMesh:
    """The mesh with the hardware that the plan was priced for."""
    entry = dict(saved["hardware"])
    entry["intra_link"] = Link(**entry["intra_link"])
    entry["inter_link"] = Link(**entry["inter_link"])
    known = {field.name for field in fields(Hardware)}
    hardware = Hardware(**{k: v for k, v in entry.items() if k in known})
    mesh = saved["mesh"]
    links = tuple(Link(**link) for link in saved["links"])
    order = mesh.get("device_order")
    order = None if order is None else tuple(order)
    return DeviceMesh(tuple(mesh["shape"]), tuple(mesh["axis_names"]), links, hardware, order)


def _table(saved: Document) -> ProfileTable | None:
    """The table of the plan, if it still is where it was, and still is the same."""
    reference = saved["options"].get("table")
    if reference is None or reference["loaded_from"] is None:
        return None
    try:
        found = find_table(reference["loaded_from"])
    except (ProfileFileError, UnknownProfileError):
        return None
    return found if found.digest == reference["digest"] else None


def _units(saved: Document, traced: Traced) -> tuple[UnitGraph, bool]:
    """The units in the plan's order, and whether today's rules group equations otherwise."""
    roots = [operator["root"] for operator in saved["operators"].values()]
    known = [unit.root for unit in traced.units.units]
    if roots == known:
        return traced.units, False
    units = regroup(traced.units.graph, roots, traced.units.donated_arguments)
    return units, sorted(roots) != sorted(known)


def sharding_of(dims: Sequence[Sequence[str]], mesh: DeviceMesh) -> TensorSharding:
    """The inverse of `kiwi.plans.document.axes`."""
    names = list(mesh.axis_names)
    return TensorSharding(tuple(tuple(names.index(name) for name in dim) for dim in dims))


def _execution(saved: Document, units: UnitGraph, mesh: DeviceMesh, ledger: Ledger) -> Execution:
    layouts = {source.value: source.sharding for source in ledger.sources}
    for entry, unit in zip(ledger.operators, units.units, strict=True):
        layouts.update(zip(unit.outputs, entry.results, strict=True))
    results = tuple(
        None if r["sharding"] is None else sharding_of(r["sharding"], mesh)
        for r in saved["results"].values()
    )
    return Execution(
        units,
        mesh,
        Schedule(tuple(saved["schedule"])),
        tuple(layouts[a] for a in units.graph.program.arguments),
        results,
        layouts,
        tuple(entry.reads for entry in ledger.operators),
        frozenset((entry.unit, read) for entry in ledger.operators for read in entry.kept_reads),
    )


def ledger_of(saved: Document, units: UnitGraph, mesh: DeviceMesh) -> Ledger:
    """The ledger in a document; `units` give the values of arguments and constants."""
    program = units.graph.program
    sources = (*saved["arguments"].values(), *saved["constants"])
    values = (*program.arguments, *program.constants)
    return Ledger(
        tuple(
            SourceEntry(value, sharding_of(s["sharding"], mesh), _intervals(s["held"]))
            for value, s in zip(values, sources, strict=True)
        ),
        tuple(_entry(operator, mesh) for operator in saved["operators"].values()),
    )


def _entry(operator: Document, mesh: DeviceMesh) -> OperatorEntry:
    shardings = lambda lists: tuple(sharding_of(dims, mesh) for dims in lists)  # noqa: E731
    return OperatorEntry(
        unit=operator["unit"],
        seconds=MappingProxyType(operator["seconds"]),
        held=_intervals(operator["held"]),
        copies=_intervals(operator["copies"]),
        recompute_at=operator["recompute_at"],
        end=operator["end"],
        reads=shardings(operator["reads"]),
        results=shardings(operator["results"]),
        option_count=operator["option_count"],
        alternatives=tuple(
            Alternative(
                shardings(a["reads"]),
                shardings(a["results"]),
                a["recompute_at"],
                a["change_seconds"],
                a["change_bytes"],
            )
            for a in operator["alternatives"]
        ),
        excluded=tuple(operator["excluded"]),
        kept_reads=tuple(operator["kept_reads"]),
    )


def _intervals(lists: Sequence[Sequence[int]]) -> tuple[Interval, ...]:
    return tuple(Interval(*i) for i in lists)


def estimate_of(saved: Document, ledger: Ledger | None = None) -> Estimate:
    """The estimate; `held` comes from the ledger, where there is one."""
    values = dict(saved["estimate"])
    values["memory_bytes"] = tuple(values["memory_bytes"])
    values["collective_uses"] = tuple(_use(use) for use in values["collective_uses"])
    held: list[Held] = []
    if ledger is not None:
        held += [Held("argument", s.value, s.held) for s in ledger.sources]
        held += [Held("result", o.unit, o.held) for o in ledger.operators]
        held += [Held("copy", o.unit, o.copies) for o in ledger.operators if o.copies]
    return Estimate(**values, held=tuple(held))


def _use(use: Document) -> AxisUse:
    axes = use["axes"]
    return AxisUse(**{**use, "axes": None if axes is None else tuple(axes)})


def compiled_of(saved: Document) -> CompiledProgram | None:
    """The figures of the compiled program; compiling took no time now."""
    if saved.get("checks") is None:
        return None
    return compiled_from_json({**saved["checks"], "compile_seconds": 0.0})


def solve_result_of(saved: Document) -> SolveResult:
    """Status, objective and bound; without the options' indices, which files do not keep."""
    bounds = saved["bounds"]
    bound = bounds["bound_seconds"]
    return SolveResult(
        SolveStatus(bounds["status"]),
        None,
        bounds["objective_seconds"],
        float("-inf") if bound is None else bound,
        0.0,
        bounds["solver"],
        peak_bytes=saved["estimate"]["peak_bytes"],
        message=bounds["message"],
        deterministic=bounds["deterministic"],
    )


def decisions_of(saved: Document) -> tuple[Decision, ...]:
    """One decision per operator, in execution order."""
    return tuple(_decision(operator) for operator in saved["operators"].values())


def _decision(operator: Document) -> Decision:
    results, types = operator["results"], operator["types"]
    shape = types[0].partition("[")[2].rstrip("]") if types else ""
    seconds = operator["seconds"]
    return Decision(
        opcode=operator["opcode"],
        absorbed=tuple(operator["absorbed"]),
        phase=operator["phase"],
        name_stack=operator["name_stack"],
        source_line=operator["source"],
        shape=tuple(int(d) for d in shape.split(",") if d),
        sharding=jax.sharding.PartitionSpec(*map(_spec_entry, results[0])) if results else None,
        residency=operator["residency"],
        seconds=seconds["compute"] + seconds["communication"],
        bytes=operator["bytes"],
        trips=operator.get("trips", 1),
    )


def _spec_entry(axes: Sequence[str]) -> Any:
    if not axes:
        return None
    return axes[0] if len(axes) == 1 else tuple(axes)


_NO_CONSTRAINTS: Document = {"shardings": {}, "forbid_replicated": []}
"""Of plan files without any."""


def _origin(
    saved: Document, traced: Traced, mesh: DeviceMesh, ledger: Ledger, planner: MadeBy
) -> Origin | None:
    """What the plan was made from, with the shardings that its caller had fixed."""
    options = saved["options"]
    if "solver" not in options:
        return None
    given = {
        k: jax.sharding.PartitionSpec(*map(_spec_entry, a["sharding"]))
        for k, a in enumerate(saved["arguments"].values())
        if a["given"]
    }
    results = [
        jax.sharding.PartitionSpec(*map(_spec_entry, r["sharding"])) if r["given"] else None
        for r in saved["results"].values()
    ]
    out = jax.tree.unflatten(traced.out_tree, results) if any(results) else None
    settings = Settings(
        mesh=mesh,
        memory_budget_bytes=options["memory_budget_bytes"],
        planner=options["planner"],
        time_limit_seconds=options["time_limit_seconds"],
        verify=options["verify"],
        solver=options["solver"],
        seed=options["seed"],
        gap=options["gap"],
        respect_user_checkpoint=options["respect_user_checkpoint"],
        constraints=Constraints.from_json(options.get("constraints", _NO_CONSTRAINTS)),
    )
    call = replace(traced.call, given_shardings=given)
    own = tuple((Residency(entry.recompute_at, entry.end),) for entry in ledger.operators)
    return Origin(replace(traced, call=call), out, settings, planner, own)
