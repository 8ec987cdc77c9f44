"""Errors over rows: median, 95th percentile and worst, and which kinds of blocks they belong to."""

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
    """Of the absolute errors of some rows; `worst` keeps its sign, and `row` is whose it is."""

    count: int
    median: float
    percentile_95: float
    worst: float
    row: str


def error(row: Row, quantity: str) -> float | None:
    """Estimated over compiled, minus 1; of collectives the difference over the larger of the two,
    in bytes of all kinds. None where a side is missing."""
    if quantity == "collectives":
        return _collective_error(row)
    predicted, compiled = (row.get(f"{side}_{_FIELDS[quantity]}") for side in _SIDES)
    if predicted is None or not compiled:
        return None
    return predicted / compiled - 1


_SIDES = ("predicted", "compiled")
_LEAST_COLLECTIVE_SHARE = 0.01
"""Of the compiled peak: collectives of fewer bytes count as none."""


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
    """By key, of the rows that have both sides."""
    found = {key: error(row, quantity) for key, row in rows.items()}
    return {key: value for key, value in found.items() if value is not None}


def spread(found: Mapping[str, float]) -> Spread | None:
    """Of errors by key; None without any."""
    if not found:
        return None
    sizes = sorted(abs(value) for value in found.values())
    worst = max(found, key=lambda key: abs(found[key]))
    place = min(len(sizes) - 1, math.ceil(0.95 * len(sizes)) - 1)
    return Spread(len(sizes), statistics.median(sizes), sizes[place], found[worst], worst)


def plans_of(rows: Mapping[str, Row], profile: str, variant: str) -> dict[str, Row]:
    """The rows of a profile and a variant."""
    keys = {text: Key.parse(text) for text in rows}
    return {
        text: rows[text]
        for text, key in keys.items()
        if (key.profile, key.variant) == (profile, variant)
    }


def by_kind(rows: Mapping[str, Row]) -> dict[str, dict[str, Row]]:
    """The rows of models that have a block of each kind."""
    found: dict[str, dict[str, Row]] = defaultdict(dict)
    for key, row in rows.items():
        for kind in row.get("kinds", ()):
            found[kind][key] = row
    return dict(sorted(found.items()))


def refused(rows: Mapping[str, Row]) -> list[str]:
    """Keys of rows whose budget no plan met."""
    return [key for key, row in rows.items() if row.get("error") in _REFUSALS]


_REFUSALS = ("BudgetNotMetError", "InfeasibleBudgetError", "NoPlanFoundError")


def distinct(rows: Mapping[str, Row], names: Iterable[str]) -> list[tuple[str, ...]]:
    """The values of some attributes of keys that occur, in order."""
    found = [tuple(str(getattr(Key.parse(key), name)) for name in names) for key in rows]
    return list(dict.fromkeys(found))


def against_hand(rows: Mapping[str, Row]) -> dict[str, tuple[float, str]]:
    """By key of a plan that meets its budget, its compiled step time over that of the fastest step
    by hand that needs no more memory, and which that is."""
    found: dict[str, tuple[float, str]] = {}
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
            found[text] = row["compiled_step_seconds"] / seconds, variant
    return found


def _same_place(one: Key, other: Key) -> bool:
    names = ("seed", "index", "profile", "mesh")
    return all(getattr(one, name) == getattr(other, name) for name in names)
