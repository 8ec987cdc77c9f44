"""The outcome of planning as plain data: numbers, texts, lists and mappings."""

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.sharding import PartitionSpec

import kiwi

_PROCESSOR = re.compile(r"\nprocessor [\d.]+ s: [^\n]*")
_CLOCKS = re.compile(r"(\(\S+) [\d.]+ s\), planned in [\d.]+ s")
_LOOP_CLOCKS = re.compile(r"(rounds? of planning and compiling): solver [^\n]*")
_LINE_NUMBER = re.compile(r"(\w\.py):\d+")
_FOLDER = Path(__file__).parents[2]

Data = dict[str, Any]

ESTIMATED = (
    "step_seconds",
    "compute_seconds",
    "communication_seconds",
    "resharding_seconds",
    "recompute_seconds",
    "hidden_seconds",
    "hidden_copies_seconds",
    "hidden_sums_seconds",
    "hidden_offload_seconds",
    "offload_seconds",
    "peak_bytes",
    "peak_unit",
    "host_peak_bytes",
)
"""The recorded numbers of an estimate, by name. A new number is recorded once it is listed here."""

COMPILED = ("target", "peak_bytes", "overlapping_peak_bytes", "overlap", "rematerialized")
"""The recorded numbers of a compiled program."""


@dataclass
class Tables:
    """The operators, arguments and results of one series. Cells name entries by their position."""

    operators: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Tables":
        """Returns the tables of a recorded series."""
        return cls(*(list(data[table.name]) for table in dataclasses.fields(cls)))


def refused(error: Exception) -> Data:
    """Returns the record of an error."""
    return {
        "outcome": type(error).__name__,
        "text": _without_lines(str(error)).splitlines(),
        "least_peak_bytes": plain(getattr(error, "least_peak_bytes", None)),
        "least_peak_bound_bytes": plain(getattr(error, "least_peak_bound_bytes", None)),
    }


def planned(plan: kiwi.Plan, tables: Tables) -> Data:
    """Returns the record of a plan's decisions and predictions. New entries are added to
    `tables`."""
    result = plan.solve_result
    return {
        "outcome": "plan",
        "fits": plan.fits,
        "solve": {
            "status": result.status.value,
            "gap": plain(result.gap),
            "objective_seconds": plain(result.objective),
            "bound_seconds": plain(result.bound),
            "peak_bytes": plain(result.peak_bytes),
            "solver": result.solver,
            "iterations": result.iterations,
        },
        "estimate": _estimate(plan),
        "compiled": _compiled(plan),
        "rounds": [
            f"limit {plain(tried.limit_bytes)}, predicted {plain(tried.predicted_peak_bytes)}, "
            f"compiled {plain(tried.compiled_peak_bytes)}, tied {tried.is_tied}"
            for tried in plan.rounds
        ],
        "residencies": dict(plan.residency_counts()),
        "decisions": _decisions(plan, tables),
        "in_shardings": _shardings(plan.in_shardings, tables.arguments),
        "out_shardings": _shardings(plan.out_shardings, tables.results),
        "notes": [_without_lines(str(note)) for note in plan.notes],
        "summary": without_clocks(_without_lines(str(plan))).splitlines(),
    }


def without_clocks(text: str) -> str:
    """Returns a plan's summary without the seconds that planning took."""
    text = _PROCESSOR.sub("", _CLOCKS.sub(r"\1), planned", text))
    return _LOOP_CLOCKS.sub(r"\1", text)


def _without_lines(text: str) -> str:
    """Returns a text with paths relative to the checkout and without line numbers."""
    return _LINE_NUMBER.sub(r"\1", text.replace(f"{_FOLDER}/", ""))


def _estimate(plan: kiwi.Plan) -> Data:
    estimate = plan.estimate
    return {
        **{name: plain(getattr(estimate, name)) for name in ESTIMATED},
        "memory_bytes": digest([int(size) for size in estimate.memory_bytes]),
        "time_shares": {name: plain(s) for name, s in sorted(estimate.time_shares.items())},
        "collectives": _uses(estimate.collective_uses),
    }


def _compiled(plan: kiwi.Plan) -> Data | None:
    compiled = plan.compiled
    if compiled is None:
        return None
    return {
        **{name: plain(getattr(compiled, name)) for name in COMPILED},
        "step_seconds": None if compiled.time is None else plain(compiled.time.step_seconds),
        "collectives": _uses(compiled.collective_uses),
        "unforeseen": _uses(plan.unforeseen_collectives),
    }


def _uses(uses: Iterable[Any]) -> list[str]:
    return [f"{use.kind} along {use.axes}: {use.count} of {use.bytes} bytes" for use in uses]


def _decisions(plan: kiwi.Plan, tables: Tables) -> Data:
    """Returns the order of operators, the operators of each layout and residency, and digests of
    all figures."""
    seen: dict[str, int] = {}
    order: list[int] = []
    groups: dict[str, list[int]] = {}
    for decision in plan.decisions:
        name = _operator(decision)
        seen[name] = seen.get(name, 0) + 1
        position = _position(tables.operators, f"{name} #{seen[name]}")
        order.append(position)
        layout = f"{_spec(decision.sharding)} {decision.residency}"
        groups.setdefault(layout, []).append(position)
    return {
        "order": ranges(order),
        "layouts": {layout: ranges(sorted(groups[layout])) for layout in sorted(groups)},
        "seconds": digest([plain(decision.seconds) for decision in plan.decisions]),
        "bytes": digest([plain(decision.bytes) for decision in plan.decisions]),
    }


def _operator(decision: Any) -> str:
    """Returns a description of an operator that does not depend on the decisions for it."""
    absorbed = f" with {','.join(decision.absorbed)}" if decision.absorbed else ""
    trips = f" x {decision.trips}" if decision.trips != 1 else ""
    shape = ",".join(map(str, decision.shape))
    return f"{decision.opcode}[{shape}]{absorbed}{trips} {decision.phase} {decision.name_stack}"


def _shardings(tree: Any, table: list[str]) -> Data:
    leaves, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    )
    groups: dict[str, list[int]] = {}
    for path, spec in leaves:
        position = _position(table, jax.tree_util.keystr(path))
        groups.setdefault(_spec(spec), []).append(position)
    return {spec: ranges(groups[spec]) for spec in sorted(groups)}


def _spec(spec: PartitionSpec | None) -> str:
    return "none" if spec is None else f"P({', '.join(map(repr, spec))})"


def _position(table: list[str], entry: str) -> int:
    if entry not in table:
        table.append(entry)
    return table.index(entry)


def ranges(positions: Iterable[int]) -> str:
    """Returns positions as text. A run of consecutive positions becomes a range: "0-3 7 5-6"."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def positions(text: str) -> list[int]:
    """Returns the positions that `ranges` writes as `text`."""
    numbers: list[int] = []
    for run in text.split():
        first, _, last = run.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def digest(numbers: Sequence[float]) -> str:
    """Returns the number of the numbers, the largest one, and a hash of all."""
    largest = f", at most {max(numbers)!r}" if numbers else ""
    hashed = hashlib.sha256(repr(list(numbers)).encode()).hexdigest()[:16]
    return f"{len(numbers)}{largest}: {hashed}"


def plain(value: Any) -> Any:
    """Returns numpy's numbers as Python's, and floats that JSON lacks as text."""
    value = value.item() if hasattr(value, "item") else value
    is_finite = not isinstance(value, float) or value - value == 0
    return value if is_finite else repr(value)
