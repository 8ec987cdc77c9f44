"""The data of the page that compares two plans (`kiwi.report.render_comparison`)."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from kiwi.plans.diff import diff, ranked
from kiwi.plans.document import Document
from kiwi.plans.findings import findings
from kiwi.plans.summary import mesh_text
from kiwi.sizes import format_bytes


def comparison(first: Document, second: Document, names: tuple[str, str]) -> dict[str, Any]:
    """Returns the data of the page.

    - `first`, `second`: the plans' documents.
    - `names`: the titles of the plans if their hardware, meshes, budgets and planners are equal.
    """
    compared = diff(first, second)
    titles = [_title(first), _title(second)]
    if titles[0] == titles[1]:
        titles = list(names)
    return {
        "plans": [
            {
                "title": title,
                "budget_bytes": document["options"]["memory_budget_bytes"],
                "memory_bytes": document["estimate"]["memory_bytes"],
                "findings": [asdict(entry) for entry in findings(document)],
            }
            for title, document in zip(titles, (first, second), strict=True)
        ],
        "totals": [*_totals(compared.totals), *_compiled_step(first, second)],
        "differences": [asdict(entry) for entry in ranked(compared.differences)],
    }


def _title(document: Document) -> str:
    mesh, options = document["mesh"], document["options"]
    budget = format_bytes(options["memory_budget_bytes"])
    shape = mesh_text(mesh["axis_names"], mesh["shape"])
    return f"{options['profile']} ({shape}), {budget}, {options['planner']}"


def _totals(totals: tuple[tuple[str, float | None, float | None], ...]) -> Iterator[dict[str, Any]]:
    for name, first, second in totals:
        title, _, unit = name.rpartition("_")
        yield {"name": title.replace("_", " "), "unit": unit, "first": first, "second": second}


def _compiled_step(first: Document, second: Document) -> Iterator[dict[str, Any]]:
    times = [(document["checks"] or {}).get("time") for document in (first, second)]
    if any(times):
        first_seconds, second_seconds = (
            None if time is None else time["step_seconds"] for time in times
        )
        yield {
            "name": "compiled step",
            "unit": "seconds",
            "first": first_seconds,
            "second": second_seconds,
        }
