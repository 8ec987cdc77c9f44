"""Plans one step in all requested ways, in this process."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import kiwi
from benchmarks.field.planned import cpu_seconds
from benchmarks.small_steps.drawn import Drawn

FREE = 1.0
SHARES = (0.9, 0.7, 0.5)
OTHERS = ("xla", "alpa", "alpa+dots", "two-pass", "two-stage", "kiwi-full", "kiwi-reduced")
OTHERS_SHARE = 0.7


@dataclass(frozen=True)
class Row:
    """The outcome of one planning.

    - `share`: the budget as a part of the free plan's compiled peak; 1 for the free plan.
    - `error`: the class of an error; empty for a plan. `what`: its text.
    - `compiled_peaks_bytes`: of all programs that this planning compiled.
    - `cpu_seconds`: of this process and of the processes that it waited for.
    """

    planner: str
    share: float
    budget_bytes: int | None
    error: str
    what: str
    planned_seconds: float | None
    compiled_seconds: float | None
    planned_peak_bytes: int | None
    compiled_peak_bytes: int | None
    compiled_peaks_bytes: tuple[int, ...]
    gap: float | None
    cpu_seconds: float


def rows(case: Drawn, *, asks_others: bool) -> Iterator[dict[str, Any]]:
    """Yields the rows of a step: the free plan, the plans under budgets, and other planners'."""
    free = _row(case, "joint", FREE, None)
    yield asdict(free)
    if free.compiled_peak_bytes is None:
        return
    for share in SHARES:
        yield asdict(_row(case, "joint", share, int(share * free.compiled_peak_bytes)))
    if asks_others:
        budget_bytes = int(OTHERS_SHARE * free.compiled_peak_bytes)
        for planner in OTHERS:
            yield asdict(_row(case, planner, FREE, None))
            yield asdict(_row(case, planner, OTHERS_SHARE, budget_bytes))


def _row(case: Drawn, planner: str, share: float, budget_bytes: int | None) -> Row:
    before = cpu_seconds()
    error: Exception | None = None
    try:
        plan = kiwi.plan(
            case.step,
            *case.arguments(),
            mesh_shape=case.mesh_shape,
            profile=case.profile,
            planner=planner,
            memory_budget=budget_bytes,
            donate_argnums=0,
            plan_cache=False,
        )
    except kiwi.errors.KiwiError as refusal:
        error, plan = refusal, getattr(refusal, "plan", None)
    except Exception as crash:  # A crash is a row, too.
        error, plan = crash, None
    compiled = None if plan is None else plan.compiled
    return Row(
        planner=planner,
        share=share,
        budget_bytes=budget_bytes,
        error="" if error is None else type(error).__name__,
        what="" if error is None else str(error)[:300],
        planned_seconds=None if plan is None else plan.estimate.step_seconds,
        compiled_seconds=None if compiled is None else compiled.step_seconds,
        planned_peak_bytes=None if plan is None else plan.estimate.peak_bytes,
        compiled_peak_bytes=None if compiled is None else compiled.peak_bytes,
        compiled_peaks_bytes=() if plan is None else _peaks(plan),
        gap=None if plan is None or error is not None else plan.solve_result.gap,
        cpu_seconds=round(cpu_seconds() - before, 1),
    )


def _peaks(plan: Any) -> tuple[int, ...]:
    peaks = (one.compiled_peak_bytes for one in plan.rounds)
    return tuple(peak for peak in peaks if peak is not None)
