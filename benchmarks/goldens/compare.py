"""What differs between a recorded cell and one planned now."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.goldens.outcome import Data, Tables, positions

_ABSENT = "(nothing)"
_LONGEST = 160
"""How many characters of a value are printed."""


def differences(old: Data, old_tables: Tables, new: Data, new_tables: Tables) -> list[str]:
    """Everything that differs, as "field: old → new", most telling fields first.

    Numbers and texts must be equal, and of the same type.
    """
    if old["outcome"] != new["outcome"]:
        return [f"outcome: {_outcome(old)} → {_outcome(new)}"]
    return list(_unequal(expanded(old, old_tables), expanded(new, new_tables), ""))


def expanded(cell: Data, tables: Tables) -> Data:
    """A cell with names in place of positions."""
    found = dict(cell)
    for side, table in (("in_shardings", tables.arguments), ("out_shardings", tables.results)):
        if side in cell:
            found[side] = _by_name(cell[side], table)
    if "decisions" in cell:
        order = positions(cell["decisions"]["order"])
        found["decisions"] = {
            **cell["decisions"],
            "order": [tables.operators[position] for position in order],
            "layouts": _by_name(cell["decisions"]["layouts"], tables.operators),
        }
    return found


def _by_name(groups: Mapping[str, str], table: list[str]) -> dict[str, str]:
    return {
        table[position]: layout for layout, text in groups.items() for position in positions(text)
    }


def _outcome(cell: Data) -> str:
    return " ".join([str(cell["outcome"]), *cell.get("text", [])])


def _unequal(old: Any, new: Any, path: str) -> Iterator[str]:
    """Differences below a path; of lists, the entries that came or went."""
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
