"""The quality of plans after a part of the work: `python -m benchmarks.anywhere.curves`.

Plans the steps of `benchmarks.anywhere` under each of their budgets with fractions of the work that
the effort "normal" allows, without the compile check, and prices the plans. Writes `curves.json`
and `curves.md` into this folder: how much slower each plan is than the plan after all of the work.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

import kiwi
from benchmarks.anywhere.planned import CASES, SHARES, Case, step_of
from benchmarks.provenance import commit
from kiwi.campaign.tools import Tools
from kiwi.planners.registry import planner_named

PARTS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
_FOLDER = Path(__file__).parent


def main() -> None:
    """Plans all cases, and writes the results after each step."""
    jax.config.update("jax_platforms", "cpu")
    rows: list[dict[str, Any]] = []
    for name, case in CASES.items():
        for row in _rows(name, case):
            print(row, flush=True)
            rows.append(row)
        (_FOLDER / "curves.json").write_text(json.dumps(rows, indent=1) + "\n")
        (_FOLDER / "curves.md").write_text("\n".join(table(rows)) + "\n")


def _rows(name: str, case: Case) -> Iterator[dict[str, Any]]:
    planned, arguments = step_of(case)
    planned = planned.with_options(verify=None, plan_cache=False)
    free = planned.with_options(memory_budget="1TiB", effort="quick").plan(*arguments)
    for share in SHARES:
        budget_bytes = int(share * free.peak_bytes)
        tried = planned.with_options(memory_budget=budget_bytes)
        step, tools = tried.traced(*arguments), Tools.of(tried.settings)
        results = [_found(step, budget_bytes, tools.part(part)) for part in PARTS]
        yield {"commit": commit(), "case": name, "share": share, "parts": PARTS, "found": results}


def _found(step: Any, budget_bytes: int, tools: Tools) -> tuple[float, int] | None:
    """Returns the seconds of the planned step and the work of the search; None if no plan was
    found."""
    try:
        plan = planner_named("joint").plan(step, budget_bytes, tools)
    except kiwi.errors.KiwiError:
        return None
    return plan.estimate.step_seconds, plan.solve_result.work


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the lines of the page, with one row for each step and budget."""
    yield "# Plans after a part of the work"
    yield ""
    yield f"commits: {', '.join(sorted({row['commit'] for row in rows}))}  "
    yield "command: python -m benchmarks.anywhere.curves"
    yield ""
    yield 'How much slower than the plan of all the work that "normal" allows; most searches end'
    yield "before."
    yield ""
    yield "| step | budget | " + " | ".join(f"{part:.0%}" for part in PARTS[:-1]) + " | ms |"
    yield "| --- | ---: |" + " ---: |" * len(PARTS)
    for row in rows:
        last = row["found"][-1]
        cells = [
            "none" if result is None or last is None else f"{result[0] / last[0] - 1:+.2%}"
            for result in row["found"][:-1]
        ]
        end = "none" if last is None else f"{1e3 * last[0]:.2f}"
        yield f"| {row['case']} | {row['share']:.0%} | " + " | ".join(cells) + f" | {end} |"


if __name__ == "__main__":
    main()
