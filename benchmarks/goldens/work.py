"""What is done with one example: its cells are recorded, checked or confirmed."""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

import kiwi
from benchmarks.goldens import command
from benchmarks.goldens.cells import (
    GAP,
    LEADING,
    ON_ONE_DEVICE,
    PLANNERS,
    PROFILE,
    SEED,
    SHARES,
    TIME_LIMIT_SECONDS,
    VERIFY,
    Asked,
    Data,
    Question,
    Tables,
)
from benchmarks.goldens.compare import difference
from benchmarks.goldens.models import MESH_SHAPE, MODELS

RECORDED = Path(__file__).parent / "recorded"
MOST_LINES = 12
"""How many differences of one cell are printed."""
HIDDEN_LIMIT_SECONDS = 10.0
"""Searches within a search get this long at least."""


@dataclass(frozen=True)
class Selection:
    """Which cells: planners, or "command", and budgets or calls. Empty means all."""

    planners: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()

    def cells(self) -> Iterator[tuple[str, str]]:
        """Planner and budget of each, in the order in which they are recorded."""
        for planner in (*PLANNERS, command.COMMAND):
            for budget in command.CALLS if planner == command.COMMAND else SHARES:
                if self._has(planner, self.planners) and self._has(budget, self.budgets):
                    yield planner, budget

    def _has(self, name: str, chosen: Sequence[str]) -> bool:
        return not chosen or name in chosen


Work = Callable[[str, Selection], list[str]]


def record(example: str, selection: Selection) -> list[str]:
    """Plans an example's cells and writes them; those not selected stay."""
    whole = selection == Selection()
    data = _read(example) if not whole and _path(example).exists() else _empty(example)
    tables, asked = Tables.of(data), Asked()
    for planner, budget in selection.cells():
        cell = _outcome(example, planner, budget, data["budgets_bytes"], tables, asked)
        data["cells"].setdefault(planner, {})[budget] = cell
        if budget == "free":
            _set_budgets(data["budgets_bytes"], planner, cell)
        _write(example, data | dataclasses.asdict(tables))
        print(f"{example}/{budget}/{planner}: {_brief(cell)}", flush=True)
    return []


def check(example: str, selection: Selection) -> list[str]:
    """Lines about an example's cells that come out differently now."""
    data, asked = _read(example), Asked()
    recorded = Tables.of(data)
    lines = [] if data["jax"] == jax.__version__ else [_other_jax(example, data["jax"])]
    for planner, budget in selection.cells():
        old, tables = data["cells"][planner][budget], Tables()
        new = _outcome(example, planner, budget, data["budgets_bytes"], tables, asked)
        differs = difference(old, recorded, new, tables)
        lines += _shown(f"{example}/{budget}/{planner}", differs.found)
        state = "DIFFERS" if differs.found else "close" if differs.tolerated else "same"
        print(f"{example}/{budget}/{planner}: {state}, {_brief(new)}", flush=True)
    return lines


def confirm(example: str, selection: Selection) -> list[str]:
    """Plans again what was just recorded, to find out which cells the clock decides.

    A cell that was on the clock gives way to one that is not. One that comes out alike is taken
    off the clock, unless its search says that it was ended; one that differs though neither was
    on the clock is put on it.
    """
    data, asked, lines = _read(example), Asked(), []
    tables = Tables.of(data)
    for planner, budget in selection.cells():
        old = data["cells"][planner][budget]
        new = _outcome(example, planner, budget, data["budgets_bytes"], tables, asked)
        differs = difference(old, tables, new, tables)
        kept = new if old["clock"] and not new["clock"] else old
        alike = not (differs.found or differs.tolerated)
        clock = kept.get("ended") == "limit" if alike else old["clock"] == new["clock"]
        data["cells"][planner][budget] = {**kept, "clock": clock}
        _write(example, data | dataclasses.asdict(tables))
        state = f"{old['clock']} → {clock}{'' if alike else ', not alike'}"
        print(f"{example}/{budget}/{planner}: on the clock {state}, {_brief(new)}", flush=True)
        lines += _shown(f"{example}/{budget}/{planner}", () if alike else differs.found)
    return lines


def _outcome(
    example: str,
    planner: str,
    budget: str,
    budgets_bytes: dict[str, dict[str, int]],
    tables: Tables,
    asked: Asked,
) -> Data:
    started = time.monotonic()
    if planner == command.COMMAND:
        cell = command.outcome(example, budget)
    else:
        limit_bytes = budgets_bytes[_mesh_of(planner)].get(budget)
        cell = asked.outcome(Question(example, planner, limit_bytes), tables)
    seconds = time.monotonic() - started
    hidden = seconds >= HIDDEN_LIMIT_SECONDS and _may_hide_a_clock(planner, cell)
    return {**cell, "clock": cell["clock"] or hidden, "planning_seconds": round(seconds, 1)}


def _may_hide_a_clock(planner: str, cell: Data) -> bool:
    """Whether an inner search may have been cut off without a word in the outcome: that for the
    smallest peak, which errors name, or one of the planner "two-stage" for another budget."""
    return planner == "two-stage" or cell["outcome"] not in ("plan", "exit 0")


def _set_budgets(budgets_bytes: dict[str, dict[str, int]], planner: str, free: Data) -> None:
    """Shares of a free plan's peak; the first planner of a mesh that has one speaks for all."""
    known = budgets_bytes[_mesh_of(planner)]
    if "estimate" in free and (not known or planner in LEADING):
        peak_bytes = free["estimate"]["peak_bytes"]
        shares = {name: share for name, share in SHARES.items() if share is not None}
        budgets_bytes[_mesh_of(planner)] = {n: int(s * peak_bytes) for n, s in shares.items()}


def _mesh_of(planner: str) -> str:
    return "one device" if planner in ON_ONE_DEVICE else "mesh"


def _empty(example: str) -> Data:
    return {
        "example": example,
        "config": repr(MODELS[example].config),
        "kiwi": kiwi.__version__,
        "jax": jax.__version__,
        "options": {
            "mesh_shape": list(MESH_SHAPE),
            "gap": GAP,
            "time_limit_seconds": TIME_LIMIT_SECONDS,
            "remat_seconds": MODELS[example].remat_seconds,
            "profile": PROFILE,
            "seed": SEED,
            "verify": VERIFY,
        },
        "budgets_bytes": {"mesh": {}, "one device": {}},
        "operators": [],
        "arguments": [],
        "results": [],
        "cells": {},
    }


def _brief(cell: Data) -> str:
    kind, clock = cell.get("type", cell["outcome"]), ", on the clock" if cell["clock"] else ""
    return f"{kind}, {cell['planning_seconds']} s{clock}"


def _shown(cell: str, found: Sequence[str]) -> list[str]:
    rest = [f"... and {len(found) - MOST_LINES} more"] if len(found) > MOST_LINES else []
    return [f"{cell}/{each}" for each in [*found[:MOST_LINES], *rest]]


def _other_jax(example: str, version: str) -> str:
    return f"{example}: recorded with jax {version}, this is {jax.__version__}"


def _path(example: str) -> Path:
    return RECORDED / f"{example}.json"


def _read(example: str) -> Data:
    return json.loads(_path(example).read_text(encoding="utf-8"))


def _write(example: str, data: Data) -> None:
    text = json.dumps(data, indent=0, ensure_ascii=False)
    RECORDED.mkdir(exist_ok=True)
    _path(example).write_text(text + "\n", encoding="utf-8")
