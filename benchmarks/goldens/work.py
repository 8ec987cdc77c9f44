"""The two tasks for a series: recording and checking it."""

import dataclasses
import json
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from benchmarks.goldens.cells import Series
from benchmarks.goldens.compare import differences
from benchmarks.goldens.models import MODELS
from benchmarks.goldens.outcome import Data, Tables
from benchmarks.goldens.planning import ClockEndedError, Planned, plan_series
from kiwi.errors import CompilerUnavailableError

RECORDED = Path(__file__).parent / "recorded"
MOST_LINES = 8
"""The number of differences that are printed for one cell."""


@dataclass(frozen=True)
class Done:
    """The result of recording or checking a series.

    - `lines`: the differences, or the reasons why the series cannot be recorded.
    - `cpu_seconds`: processor seconds of this process and of the processes that it started.
    """

    lines: tuple[str, ...]
    cpu_seconds: float


Work = Callable[[Series, Sequence[str]], Done]


def record(series: Series, budgets: Sequence[str]) -> Done:
    """Plans a series under all its budgets, and writes it."""
    assert not budgets, "A series is recorded whole: budgets are shares of the free plan's peak."
    return _counted(series, series.budgets, None, lambda planned: _write(series, planned))


def check(series: Series, budgets: Sequence[str]) -> Done:
    """Plans a series again under the named budgets, or under all if none is named, and compares."""
    chosen = tuple(b for b in series.budgets if not budgets or b in budgets)
    if not _path(series).exists():
        return Done((f"{series.name}: not recorded",), 0.0)
    data = json.loads(_path(series).read_text(encoding="utf-8"))
    limits = data["budgets_bytes"]
    return _counted(series, chosen, limits, lambda planned: _compared(series, data, planned))


def _counted(
    series: Series,
    budgets: Sequence[str],
    budgets_bytes: Mapping[str, int] | None,
    then: Callable[[Planned], list[str]],
) -> Done:
    started = _cpu_seconds()
    try:
        lines = then(plan_series(series, tuple(budgets), budgets_bytes))
        state = f"{len(lines)} differences" if lines else "done"
    except CompilerUnavailableError as error:
        lines, state = [], f"skipped: {error.what}"
    except ClockEndedError as error:
        lines, state = [str(error)], "ended by the clock"
    seconds = _cpu_seconds() - started
    print(f"{series.name}: {state}, {seconds:.1f} CPU seconds", flush=True)
    return Done(tuple(lines), seconds)


def _cpu_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _compared(series: Series, data: Data, planned: Planned) -> list[str]:
    recorded = Tables.of(data)
    lines = []
    if data["jax"] != jax.__version__:
        lines.append(f"{series.name}: recorded with jax {data['jax']}, this is {jax.__version__}")
    for budget, new in planned.cells.items():
        # JSON turns tuples into lists, as in the recorded cell.
        new = json.loads(json.dumps(new))
        cell_differences = differences(data["cells"][budget], recorded, new, planned.tables)
        shown = cell_differences[:MOST_LINES]
        if len(cell_differences) > MOST_LINES:
            shown.append(f"... and {len(cell_differences) - MOST_LINES} more")
        lines += [f"{series.name}/{budget}/{line}" for line in shown]
    return lines


def _write(series: Series, planned: Planned) -> list[str]:
    data = {
        "model": repr(MODELS[series.model].config),
        "target": series.target,
        "jax": jax.__version__,
        "budgets_bytes": planned.budgets_bytes,
        **dataclasses.asdict(planned.tables),
        "cells": planned.cells,
    }
    RECORDED.mkdir(exist_ok=True)
    text = json.dumps(data, indent=0, ensure_ascii=False)
    _path(series).write_text(text + "\n", encoding="utf-8")
    return []


def _path(series: Series) -> Path:
    return RECORDED / f"{series.name}.json"
