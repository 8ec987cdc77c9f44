"""The differences between a recorded cell and a cell planned now."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.goldens.outcome import Data, Tables, positions

_ABSENT = "(nothing)"
_LONGEST = 160
"""The number of characters of a value that are printed."""


def differences(old: Data, old_tables: Tables, new: Data, new_tables: Tables) -> list[str]:
    """Returns all differences as "field: old → new", in the order of the fields.

    Numbers and texts must be equal, and of the same type.
    """
    if old["outcome"] != new["outcome"]:
        return [f"outcome: {_outcome(old)} → {_outcome(new)}"]
    return list(_unequal(expanded(old, old_tables), expanded(new, new_tables), ""))


def expanded(cell: Data, tables: Tables) -> Data:
    """Returns a cell with names in place of positions."""
    named = dict(cell)
    for side, table in (("in_shardings", tables.arguments), ("out_shardings", tables.results)):
        if side in cell:
            named[side] = _by_name(cell[side], table)
    if "decisions" in cell:
        order = positions(cell["decisions"]["order"])
        named["decisions"] = {
            **cell["decisions"],
            "order": [tables.operators[position] for position in order],
            "layouts": _by_name(cell["decisions"]["layouts"], tables.operators),
        }
    return named


def _by_name(groups: Mapping[str, str], table: list[str]) -> dict[str, str]:
    return {
        table[position]: layout for layout, text in groups.items() for position in positions(text)
    }


def _outcome(cell: Data) -> str:
    return " ".join([str(cell["outcome"]), *cell.get("text", [])])


def _unequal(old: Any, new: Any, path: str) -> Iterator[str]:
    """Yields the differences below a path. For lists these are the entries that were added or
    removed."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*old, *new]):
            below = f"{path}.{name}" if path else str(name)
            yield from _unequal(old.get(name, _ABSENT), new.get(name, _ABSENT), below)
    elif isinstance(old, list) and isinstance(new, list):
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        for tag, first, end, new_first, new_end in matcher.get_opcodes():
            if tag != "equal":
                before, after = "; ".join(old[first:end]), "; ".join(new[new_first:new_end])
                yield f"{path}[{first}]: {_short(before)} → {_short(after)}"
    elif type(old) is not type(new) or old != new:
        yield f"{path}: {_short(old)} → {_short(new)}"


def _short(value: Any) -> str:
    text = str(value) or _ABSENT
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
