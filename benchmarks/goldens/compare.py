"""What differs between a recorded cell and one planned now."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.goldens.cells import Data, Tables, positions

FLOAT_TOLERANCE = 1e-9
CLOCK_TOLERANCE = 0.05
"""For searches that the clock ended."""
_LENIENT = ("step_seconds", "peak_bytes")
_UNCOMPARED = ("clock", "ended", "planning_seconds")
_NUMBER = re.compile(r"\d+(\.\d+)?( [KMG]?i?B\b)?")
_ABSENT = "(nothing)"


@dataclass(frozen=True)
class Difference:
    """What differs, as "field: old → new"; `tolerated`: what the clock may explain."""

    found: tuple[str, ...]
    tolerated: tuple[str, ...] = ()


def difference(old: Data, old_tables: Tables, new: Data, new_tables: Tables) -> Difference:
    """Everything that differs, field by field."""
    if old["outcome"] != new["outcome"]:
        return Difference((f"outcome: {_outcome(old)} → {_outcome(new)}",))
    flat = _flat(expanded(old, old_tables)), _flat(expanded(new, new_tables))
    found = tuple(_unequal(*flat, FLOAT_TOLERANCE))
    if not (old["clock"] or new["clock"]):
        return Difference(found)
    return Difference(tuple(_far_apart(old, new)), found)


def expanded(cell: Data, tables: Tables) -> Data:
    """A cell with names in place of positions, and without what is not compared."""
    found = {name: value for name, value in cell.items() if name not in _UNCOMPARED}
    for side, table in (("in_shardings", tables.arguments), ("out_shardings", tables.results)):
        if side in cell:
            found[side] = _by_name(cell[side], table)
    if "decisions" in cell:
        order = positions(cell["decisions"]["order"])
        found["decisions"] = {
            **cell["decisions"],
            "order": [tables.operators[k] for k in order],
            "layouts": _by_name(cell["decisions"]["layouts"], tables.operators),
        }
    return found


def _by_name(groups: Mapping[str, str], table: list[str]) -> dict[str, str]:
    return {table[k]: layout for layout, text in groups.items() for k in positions(text)}


def _outcome(cell: Data) -> str:
    if "type" not in cell:
        return str(cell["outcome"])
    return f"{cell['outcome']}, {cell['type']}: {' '.join(cell['text'])}"


def _far_apart(old: Data, new: Data) -> Iterator[str]:
    """What differs by more than the clock explains."""
    pair = _flat(_lasting(old)), _flat(_lasting(new))
    yield from _unequal(*pair, CLOCK_TOLERANCE)


def _lasting(cell: Data) -> Data:
    """What the clock changes by a few per cent only."""
    if cell["outcome"] == "plan":
        return {"estimate": {name: cell["estimate"][name] for name in _LENIENT}}
    names = ("type", "least_peak_bytes", "least_peak_bound_bytes")
    lines = [*cell.get("text", []), *cell.get("error", [])]
    found = {name: cell[name] for name in names if name in cell}
    return {**found, "text": [_NUMBER.sub("#", line) for line in lines]}


def _flat(data: Any, path: str = "") -> dict[str, Any]:
    """Every number and text by its path."""
    if isinstance(data, Mapping):
        items = [(f"{path}.{key}" if path else str(key), each) for key, each in data.items()]
    elif isinstance(data, list):
        items = [(f"{path}[{number}]", each) for number, each in enumerate(data)]
    else:
        return {path: data}
    return {name: value for key, each in items for name, value in _flat(each, key).items()}


def _unequal(old: Data, new: Data, tolerance: float) -> Iterator[str]:
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name, _ABSENT), new.get(name, _ABSENT)
        if not _same(before, after, tolerance):
            yield f"{name}: {before} → {after}"


def _same(before: Any, after: Any, tolerance: float) -> bool:
    """Floats are compared with the tolerance; so are whole numbers, if it is that of clocks."""
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (before, after))
    floats = isinstance(before, float) or isinstance(after, float)
    if numbers and (floats or tolerance == CLOCK_TOLERANCE):
        return math.isclose(before, after, rel_tol=tolerance)
    return type(before) is type(after) and before == after
