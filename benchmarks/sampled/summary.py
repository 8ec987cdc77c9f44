"""Errors over rows: median, 95th percentile and worst, by kind of block."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.sampled.rows import Key, Row

QUANTITIES = ("peak", "time", "collectives")

_FIELDS = {"peak": "peak_bytes", "time": "step_seconds"}


@dataclass(frozen=True)
class Spread:
    """The spread of the absolute errors of some rows. `worst` keeps its sign, and `row` is the
    worst row."""

    count: int
    median: float
    percentile_95: float
    worst: float
    row: str


def error(row: Row, quantity: str) -> float | None:
    """Returns estimated over compiled, minus 1. For collectives, returns the difference over the
    larger of the two, in bytes of all kinds. None if a side is missing."""
    if quantity == "collectives":
        return _collective_error(row)
    predicted, compiled = (row.get(f"{side}_{_FIELDS[quantity]}") for side in _SIDES)
    if predicted is None or not compiled:
        return None
    return predicted / compiled - 1


_SIDES = ("predicted", "compiled")
_LEAST_COLLECTIVE_SHARE = 0.01
"""Collectives with less than this share of the compiled peak count as none."""


def _collective_error(row: Row) -> float | None:
    if not all(f"{side}_collectives" in row for side in _SIDES):
        return None
    predicted, compiled = (
        sum(size for _, size in row[f"{side}_collectives"].values()) for side in _SIDES
    )
    larger = max(predicted, compiled)
    if larger < _LEAST_COLLECTIVE_SHARE * row["compiled_peak_bytes"]:
        return None
    return (predicted - compiled) / larger


def errors(rows: Mapping[str, Row], quantity: str) -> dict[str, float]:
    """Returns the errors by key, of the rows that have both sides."""
    errors_by_key = {key: error(row, quantity) for key, row in rows.items()}
    return {key: value for key, value in errors_by_key.items() if value is not None}


def spread(found: Mapping[str, float]) -> Spread | None:
    """Returns the spread of errors by key; None if there are none."""
    if not found:
        return None
    sizes = sorted(abs(value) for value in found.values())
    worst = max(found, key=lambda key: abs(found[key]))
    place = min(len(sizes) - 1, math.ceil(0.95 * len(sizes)) - 1)
    return Spread(len(sizes), statistics.median(sizes), sizes[place], found[worst], worst)


def plans_of(rows: Mapping[str, Row], profile: str, variant: str) -> dict[str, Row]:
    """Returns the rows of a profile and a variant."""
    keys = {text: Key.parse(text) for text in rows}
    return {
        text: rows[text]
        for text, key in keys.items()
        if (key.profile, key.variant) == (profile, variant)
    }


def by_kind(rows: Mapping[str, Row]) -> dict[str, dict[str, Row]]:
    """Returns, for each kind, the rows of models that have a block of that kind."""
    rows_by_kind: dict[str, dict[str, Row]] = defaultdict(dict)
    for key, row in rows.items():
        for kind in row.get("kinds", ()):
            rows_by_kind[kind][key] = row
    return dict(sorted(rows_by_kind.items()))


def refused(rows: Mapping[str, Row]) -> list[str]:
    """Returns the keys of rows whose budget no plan met."""
    return [key for key, row in rows.items() if row.get("error") in _REFUSALS]


_REFUSALS = ("BudgetNotMetError", "InfeasibleBudgetError", "NoPlanFoundError")


def distinct(rows: Mapping[str, Row], names: Iterable[str]) -> list[tuple[str, ...]]:
    """Returns the different values of some attributes of keys, in order."""
    values = [tuple(str(getattr(Key.parse(key), name)) for name in names) for key in rows]
    return list(dict.fromkeys(values))


def against_hand(rows: Mapping[str, Row]) -> dict[str, tuple[float, str]]:
    """Returns, by key of each plan that meets its budget, its compiled step time over the time of
    the fastest hand-written step that needs no more memory, and the name of that step."""
    ratios: dict[str, tuple[float, str]] = {}
    for text, row in rows.items():
        key = Key.parse(text)
        if key.is_by_hand or not row.get("fits"):
            continue
        limit = row.get("budget_bytes") or max(row["compiled_peak_bytes"], 0)
        known = [
            (other["compiled_step_seconds"], Key.parse(name).variant)
            for name, other in rows.items()
            if Key.parse(name).is_by_hand
            and _same_place(Key.parse(name), key)
            and other.get("compiled_peak_bytes", limit + 1) <= limit
        ]
        if known:
            seconds, variant = min(known)
            ratios[text] = row["compiled_step_seconds"] / seconds, variant
    return ratios


def _same_place(one: Key, other: Key) -> bool:
    names = ("seed", "index", "profile", "mesh")
    return all(getattr(one, name) == getattr(other, name) for name in names)
