"""The largest batch that fits, for Kiwi and for XLA:TPU.

A batch fits if `kiwi.plan` returns a plan; its default budget is the memory that XLA:TPU grants.
XLA:TPU is then asked whether it accepts that plan. If Kiwi has no plan, XLA:TPU is asked about the
plan that needs least memory among the plans that Kiwi finds under larger budgets.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import kiwi
from benchmarks.tpu.book import Book, Row
from benchmarks.tpu.programs import GROWING, TrainingStep
from benchmarks.tpu.verdict import verdict
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, KiwiError, NoPlanFoundError
from kiwi.mesh import CATALOGUE

MESH_SHAPE, PROFILE, TOPOLOGY = (2, 4), "v5e", "2x4"
STEP = 8
"""The step between batches. Each mesh axis, and both together, divide it."""
LARGER = (1.02, 1.05, 1.1, 1.2, 1.5)
"""Budgets, as multiples of the chip's memory, for which a plan is sought if Kiwi names no least
peak."""


def edge(fits: Callable[[int], bool], first: int, step: int = STEP) -> tuple[int, int]:
    """Returns the largest multiple of `step` that fits (0 if none does) and the next multiple.
    Every multiple below one that fits must fit too. Searches from `first` in steps that double,
    then by bisection."""
    begin, stride = max(step, first // step * step), step
    grows = fits(begin)
    low, high = (begin, begin + step) if grows else (begin - step, begin)
    while fits(high) if grows else low and not fits(low):
        stride *= 2
        low, high = (high, high + stride) if grows else (max(0, low - stride), low)
    while high - low > step:
        middle = (low + high) // (2 * step) * step
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high


def measure(book: Book, names: Iterable[str], firsts: Mapping[str, int], seconds: float) -> None:
    """Bisects each program."""
    for name in names:

        def fits(batch: int, name: str = name) -> bool:
            return book.row(f"{name} {batch}", lambda: _row(GROWING[name](batch), seconds))["fits"]

        edge(fits, firsts.get(name, 64))


def table(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yields the lines of the table, with the two rows at the edge of each program."""
    yield "| program | batch | Kiwi | predicted GiB | compiled GiB | XLA:TPU |"
    yield "| --- | ---: | --- | ---: | ---: | --- |"
    rows_by_batch: dict[str, dict[int, Row]] = {}
    for key, row in rows.items():
        name, batch = key.split()
        rows_by_batch.setdefault(name, {})[int(batch)] = row
    for name, batches in rows_by_batch.items():
        fitting = sorted(batch for batch, row in batches.items() if row["fits"])
        others = sorted(batch for batch, row in batches.items() if not row["fits"])
        for batch in (*fitting[-1:], *others[:1]):
            yield _line(f"{name} | {batch}", batches[batch])


def _line(begin: str, row: Row) -> str:
    refusal = row.get("said")
    xla = "–" if refusal is None else refusal.split(", ", 1)[-1] if refusal else "takes it"
    kiwi_says = "fits" if row["fits"] else row["error"]
    sizes = (row.get(f"{name}_peak_bytes") for name in ("predicted", "compiled"))
    peaks = " | ".join("–" if size is None else f"{size / 2**30:.2f}" for size in sizes)
    return f"| {begin} | {kiwi_says} | {peaks} | {xla} |"


def _row(step: TrainingStep, seconds: float) -> Row:
    options: dict[str, Any] = {
        "mesh_shape": MESH_SHAPE,
        "profile": PROFILE,
        "topology": TOPOLOGY,
        "verify": "tpu",
        "time_limit_seconds": seconds,
    }
    started = time.monotonic()
    try:
        plan = step.plan(**options)
    except (InfeasibleBudgetError, NoPlanFoundError) as error:
        row = {"fits": False, "error": type(error).__name__, "what": error.what}
        row["planning_seconds"] = round(time.monotonic() - started, 1)
        return row | _of_nearest(step, error, options)
    row = {"fits": True, "planning_seconds": round(time.monotonic() - started, 1)}
    return row | _of_plan(plan)


def _of_nearest(step: TrainingStep, error: KiwiError, options: dict[str, Any]) -> Row:
    if isinstance(error, BudgetNotMetError):
        return _of_plan(error.plan)
    memory = CATALOGUE[PROFILE].memory_bytes
    least = getattr(error, "least_peak_bytes", None) or 0
    budgets = [least] if least > memory else []
    for budget in (*budgets, *(int(part * memory) for part in LARGER)):
        try:
            return {"budget_bytes": budget, **_of_plan(step.plan(memory_budget=budget, **options))}
        except BudgetNotMetError as nearest:
            return {"budget_bytes": budget, **_of_plan(nearest.plan)}
        except (InfeasibleBudgetError, NoPlanFoundError):
            continue
    return {}


def _of_plan(plan: kiwi.Plan) -> Row:
    assert plan.compiled is not None
    answer = verdict(plan.step)
    return {
        "predicted_peak_bytes": plan.estimate.peak_bytes,
        "first_predicted_peak_bytes": plan.rounds[0].predicted_peak_bytes,
        "compiled_peak_bytes": plan.compiled.peak_bytes,
        "compiled_programs": len(plan.rounds),
        "recomputed_units": plan.residency_counts()["recompute"],
        "is_taken": answer.is_taken,
        "said": answer.said,
        "verdict_seconds": round(answer.seconds, 2),
    }
