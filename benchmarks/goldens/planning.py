"""Plans the cells of a series, and returns the outcomes as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import kiwi
from benchmarks.goldens.cells import TARGETS, Series
from benchmarks.goldens.emitted import programs
from benchmarks.goldens.models import MESH_SHAPE, MODELS
from benchmarks.goldens.outcome import Data, Tables, planned, refused
from kiwi.errors import CompilerUnavailableError, KiwiError

OPTIONS: Data = {
    "planner": "joint",
    "mesh_shape": MESH_SHAPE,
    "effort": "quick",
    "gap": 0.05,
    "seed": 0,
    "donate_argnums": 0,
    "plan_cache": False,
    # So long that the limit of work ends each search.
    "time_limit_seconds": 36_000.0,
}


class ClockEndedError(Exception):
    """The clock ended a search, so its plan may differ on another machine."""


@dataclass(frozen=True)
class Planned:
    """The cells and the budgets' bytes, both by the budget's name. `tables` holds the entries that
    cells name by position."""

    cells: dict[str, Data] = field(default_factory=dict)
    budgets_bytes: dict[str, int] = field(default_factory=dict)
    tables: Tables = field(default_factory=Tables)


def plan_series(
    series: Series, budgets: tuple[str, ...], budgets_bytes: Mapping[str, int] | None = None
) -> Planned:
    """Plans a series under some of its budgets.

    `budgets_bytes`: the recorded budgets; None takes shares of the free plan's peak.

    **Raises:** `ClockEndedError`; `kiwi.errors.CompilerUnavailableError` if the target's compiler
    is not installed.
    """
    model, target = MODELS[series.model], TARGETS[series.target]
    step = kiwi.jit(model.step(), profile=target.profile, verify=target.verify, **OPTIONS)
    planned_series = Planned(budgets_bytes=dict(budgets_bytes or {}))
    for budget in budgets:
        if budget != "free" and budget not in planned_series.budgets_bytes:
            planned_series.budgets_bytes.update(_shares(series, planned_series.cells.get("free")))
        limited = step.with_options(memory_budget=planned_series.budgets_bytes.get(budget))
        planned_series.cells[budget] = _cell(limited, series, planned_series.tables)
    return planned_series


def _shares(series: Series, free: Data | None) -> dict[str, int]:
    """Returns the budgets of a series as shares of the free plan's estimated peak. If `free` is
    None, the free plan is made without compiling it."""
    model, target = MODELS[series.model], TARGETS[series.target]
    if free is None:
        step = kiwi.jit(model.step(), profile=target.profile, verify=None, **OPTIONS)
        peak_bytes = step.plan(*model.arguments).estimate.peak_bytes
    else:
        peak_bytes = free["estimate"]["peak_bytes"]
    shares = zip(("loose", "tight"), model.shares, strict=True)
    return {name: int(share * peak_bytes) for name, share in shares}


def _cell(step: kiwi.PlannedFunction, series: Series, tables: Tables) -> Data:
    try:
        plan = step.plan(*MODELS[series.model].arguments)
    except CompilerUnavailableError:
        raise
    except KiwiError as error:
        nearest: Any = getattr(error, "plan", None)
        _check_clock(nearest, series)
        return refused(error)
    _check_clock(plan, series)
    return {**planned(plan, tables), "programs": programs(plan, TARGETS[series.target].platform)}


def _check_clock(plan: kiwi.Plan | None, series: Series) -> None:
    if plan is not None and not plan.solve_result.deterministic:
        raise ClockEndedError(f"{series.name}: the clock ended a search.")
