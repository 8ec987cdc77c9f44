"""The data of the HTML report: a plan's document, and data that plan files do not contain."""

import math
from dataclasses import asdict
from typing import Any

from kiwi.codec import from_plain
from kiwi.plans.document import Document, timings_document
from kiwi.plans.findings import findings
from kiwi.plans.plan_codec import mesh_of
from kiwi.plans.record import PlanRecord
from kiwi.xla.read.buffer_assignment import CompiledMemory, held_curve
from kiwi.xla.read.name_scopes import scope_of

MOST_BUFFERS = 200
"""The report lists this many buffers alive at the compiled peak, and leaves out the others."""


def report_data(
    document: Document,
    plan: PlanRecord | None = None,
    sweep: dict[str, Any] | None = None,
    search: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the data for `kiwi.report.render`.

    - `document`: the plan's document.
    - `plan`: the plan itself, if it was just made. The report then shows wall times and the
      solver's progress.
    - `sweep`: the table of `kiwi.sweep.sweep_json`, for the Pareto curve.
    - `search`: the table of `kiwi.configurations.result.SearchResult.json`.
    """
    budget = document["options"]["memory_budget_bytes"]
    checks = document["checks"] or document["estimate"]
    mesh = " x ".join(map(str, document["mesh"]["shape"]))
    return {
        "title": f"{document['function']['name'] or 'plan'} on {mesh}",
        "plan": document,
        "axis_texts": mesh_of(document).axis_texts,
        "fits": checks["peak_bytes"] <= budget,
        "findings": [asdict(finding) for finding in findings(document)],
        "compiled_curve": _compiled_curve(document),
        "compiled_peak": _compiled_peak(document),
        "progress": [
            {
                "seconds": state.seconds,
                "objective": state.objective,
                "bound": state.bound if math.isfinite(state.bound) else None,
                "peak_bytes": state.peak_bytes,
            }
            for state in (() if plan is None else plan.progress)
        ],
        "seconds": None if plan is None else {"planning": plan.planning_seconds},
        "timings": timings_document(() if plan is None else plan.timings),
        "sweep": sweep,
        "search": search,
    }


def _compiled_curve(document: Document) -> list[int] | None:
    """Returns the most bytes that the compiled program holds while each operator runs; None if
    unknown."""
    memory = (document["checks"] or {}).get("memory")
    if memory is None or not document["operators"]:
        return None
    return held_curve(from_plain(memory, CompiledMemory), len(document["operators"])).tolist()


def _compiled_peak(document: Document) -> list[dict[str, Any]]:
    """Returns the buffers alive at the compiled peak, each with the operator that it belongs to."""
    memory = (document["checks"] or {}).get("memory")
    if memory is None:
        return []
    operators = list(document["operators"].values())
    paths = list(document["arguments"])
    return [_buffer(buffer, operators, paths) for buffer in memory["at_peak"][:MOST_BUFFERS]]


def _buffer(buffer: dict[str, Any], operators: list[Document], paths: list[str]) -> dict[str, Any]:
    name, size = f"{buffer['opcode']} {buffer['instruction']}", buffer["bytes"]
    if buffer["argument"] is not None:
        name, detail, category = paths[buffer["argument"]], "argument", "arguments"
        return {"bytes": size, "name": name, "detail": detail, "category": category}
    scope = scope_of(buffer["op_name"])
    detail, category = buffer["op_name"] or buffer["kind"], "arguments"
    if scope is not None and scope.unit < len(operators):
        operator = operators[scope.unit]
        again = ", recomputed" if scope.is_recomputed else ""
        source = operator["source"].split(" ")[0]
        detail = f"#{scope.unit} {operator['opcode']} {source}{again}"
        category = "copies" if scope.is_resharded else operator["phase"]
    return {"bytes": size, "name": name, "detail": detail, "category": category}
