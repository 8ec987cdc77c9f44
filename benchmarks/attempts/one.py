"""Plans one case under all its budgets in this process, and prints the attempts of each plan."""

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax

import kiwi
from benchmarks.attempts.cases import Case, Request
from kiwi.plans.history import Outcome, Trial

Row = dict[str, Any]


def main(case: Case) -> None:
    """Prints the row of each budget as soon as it is planned."""
    jax.config.update("jax_num_cpu_devices", 8)
    request = case.request()
    free_peak_bytes: int | None = None
    for budget, given in request.budgets.items():
        is_share = isinstance(given, float)
        if is_share and free_peak_bytes is None:
            continue
        budget_bytes = int(given * free_peak_bytes) if is_share else given  # type: ignore[operator]
        row = _row(request, budget_bytes)
        if budget == "free":
            free_peak_bytes = row.get("peak_bytes")
        print(json.dumps({"key": f"{case.name} {budget}", **row}), flush=True)


def _row(request: Request, budget_bytes: int | None) -> Row:
    started = _cpu_seconds()
    step = request.step.with_options(memory_budget=budget_bytes)
    with request.context():
        try:
            plan = step.plan(*request.arguments)
            row = {"outcome": "plan", "peak_bytes": plan.peak_bytes, **counted(plan.history)}
        except kiwi.errors.KiwiError as error:
            nearest = getattr(error, "plan", None)
            history = () if nearest is None else nearest.history
            row = {"outcome": type(error).__name__, **counted(history)}
    return {**row, "cpu_seconds": round(_cpu_seconds() - started, 1)}


def counted(history: Sequence[Trial]) -> Row:
    """Returns the number of times that each attempt was made, its work, and the attempts that made
    the answer.

    An attempt inside another one counts for both.
    """
    made, work = Counter[str](), Counter[str]()
    answers = set[str]()
    for trial in history:
        # Sets of arguments on the host are numbered: "arguments on the host, set 2".
        names = {*trial.within, trial.attempt.partition(", ")[0]}
        for name in names:
            made[name] += 1
            work[name] += trial.work
        if trial.outcome is Outcome.ANSWER:
            answers.update(names)
    return {"made": dict(made), "work": dict(work), "answers": sorted(answers)}


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    main(Case(*json.loads(sys.argv[1])))
