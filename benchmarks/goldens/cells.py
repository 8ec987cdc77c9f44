"""One cell: an example, planned by one planner under one budget, and the outcome as plain data."""

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
from benchmarks.goldens.models import MESH_SHAPE, MODELS
from kiwi.errors import KiwiError, NoPlanFoundError

PLANNERS = ("joint", "alpa", "two-stage", "xla", "rotor", "remat")
ON_ONE_DEVICE = ("rotor", "remat")
LEADING = ("joint", "rotor")
"""Whose free plans budgets are shares of; free plans on one device recompute nothing."""
SHARES: Mapping[str, float | None] = {"free": None, "75%": 0.75, "55%": 0.55}
"""Budgets as shares of the estimated peak of the free plan."""

GAP = 0.02
PROFILE, SEED, VERIFY = "h100-sxm", 0, "cpu"

TIME_LIMIT_SECONDS = 120.0
"""Searches should end by themselves long before."""

_CLOCKS = (
    (re.compile(r"(\(.*, \S+) [\d.]+ s\), planned in [\d.]+ s"), r"\1), planned"),
    (re.compile(r"(of planning and compiling): solver .*, compiler .*"), r"\1"),
)

_FOLDER = Path(__file__).parents[2]

Data = dict[str, Any]


@dataclass
class Tables:
    """What cells of one example have in common; they name entries by position."""

    operators: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Tables":
        """Those of a recorded example."""
        return cls(*(list(data[each.name]) for each in dataclasses.fields(cls)))


@dataclass(frozen=True)
class Question:
    """What a cell asks for; `budget_bytes` None is the profile's memory."""

    example: str
    planner: str
    budget_bytes: int | None

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        """The devices planned for."""
        return (1,) if self.planner in ON_ONE_DEVICE else MESH_SHAPE

    @property
    def options(self) -> Data:
        """Of `kiwi.jit`. Without shardings of its arguments the planner "xla" divides nothing."""
        limit_seconds = TIME_LIMIT_SECONDS
        if self.planner == "remat":
            limit_seconds = MODELS[self.example].remat_seconds
        given = MODELS[self.example].data_parallel if self.planner == "xla" else None
        return {
            "planner": self.planner,
            "mesh_shape": self.mesh_shape,
            "memory_budget": self.budget_bytes,
            "in_shardings": given,
            "time_limit_seconds": limit_seconds,
            "gap": GAP,
            "profile": PROFILE,
            "seed": SEED,
            "verify": VERIFY,
            "donate_argnums": 0,
        }


class Asked:
    """Functions of examples, each traced once for all its cells."""

    def __init__(self) -> None:
        self._functions: dict[tuple[str, Any], kiwi.PlannedFunction] = {}

    def outcome(self, question: Question, tables: Tables) -> Data:
        """What planning gives, as plain data; entries are added to the tables."""
        try:
            plan = self._plan(question)
        except KiwiError as error:
            return _refused(error)
        except Exception as error:  # of jax, or a bug, which is recorded as well
            return {**_refused(error), "outcome": "exception"}
        return _planned(plan, tables)

    def _plan(self, question: Question) -> kiwi.Plan:
        model, options = MODELS[question.example], question.options
        mesh_shape = question.mesh_shape if model.takes_mesh else None
        key = (question.example, options["in_shardings"] is None, mesh_shape)
        if key not in self._functions:
            self._functions[key] = kiwi.jit(model.step(question.mesh_shape), **options)
        return self._functions[key].with_options(**options).plan(*model.arguments)


def _refused(error: Exception) -> Data:
    nearest = getattr(error, "plan", None)
    late = nearest is not None and not nearest.solve_result.deterministic
    limit = late or isinstance(error, NoPlanFoundError)
    return {
        "outcome": "error",
        "clock": limit,
        "ended": "limit" if limit else "proof",
        "type": type(error).__name__,
        "text": without_folder(str(error)).splitlines(),
        "least_peak_bytes": getattr(error, "least_peak_bytes", None),
        "least_peak_bound_bytes": getattr(error, "least_peak_bound_bytes", None),
    }


def _planned(plan: kiwi.Plan, tables: Tables) -> Data:
    result = plan.solve_result
    return {
        "outcome": "plan",
        "clock": not result.deterministic,
        "ended": "proof" if result.deterministic else "limit",
        "fits": plan.fits,
        "solve": {
            "status": result.status.value,
            "gap": _number(result.gap),
            "objective_seconds": _number(result.objective),
            "bound_seconds": _number(result.bound),
            "peak_bytes": _number(result.peak_bytes),
            "solver": result.solver,
            "iterations": result.iterations,
            "message": result.message,
        },
        "estimate": _estimate(plan.estimate),
        "as_written": None if plan.as_written is None else _estimate(plan.as_written),
        "compiled": _compiled(plan),
        "rounds": [
            _scalars(each, without=("solve_seconds", "compile_seconds")) for each in plan.rounds
        ],
        "residencies": dict(plan.residency_counts()),
        "decisions": _decisions(plan.decisions, tables),
        "in_shardings": _shardings(plan.in_shardings, tables.arguments),
        "out_shardings": _shardings(plan.out_shardings, tables.results),
        "notes": list(plan.notes),
        "text": without_clocks(str(plan)).splitlines(),
    }


def without_clocks(text: str) -> str:
    """A plan's text without what planning took."""
    for pattern, replacement in _CLOCKS:
        text = pattern.sub(replacement, text)
    return text


def without_folder(text: str) -> str:
    """A text in which files of the checkout are relative to it."""
    return text.replace(f"{_FOLDER}/", "")


def _estimate(estimate: Any) -> Data:
    return {
        **_scalars(estimate),
        "memory_bytes": digest(estimate.memory_bytes),
        "time_shares": {k: _number(v) for k, v in sorted(estimate.time_shares.items())},
        "collectives": _uses(estimate.collective_uses),
    }


def _compiled(plan: kiwi.Plan) -> Data | None:
    found = plan.compiled
    if found is None:
        return None
    return {
        **_scalars(found, without=("compile_seconds",)),
        "collectives": _uses(found.collective_uses),
        "unforeseen": _uses(plan.unforeseen_collectives),
    }


def _uses(uses: Iterable[Any]) -> list[str]:
    return [
        " ".join(f"{name}={value}" for name, value in dataclasses.asdict(use).items())
        for use in uses
    ]


def _decisions(decisions: Sequence[Any], tables: Tables) -> Data:
    """The order of operators, what each layout and residency is that of, and all other figures."""
    seen: dict[str, int] = {}
    positions, groups = [], {}
    for each in decisions:
        name = _operator(each)
        seen[name] = seen.get(name, 0) + 1
        position = _position(tables.operators, f"{name} #{seen[name]}")
        positions.append(position)
        groups.setdefault(f"{_spec(each.sharding)} {each.residency}", []).append(position)
    return {
        "order": ranges(positions),
        "layouts": {layout: ranges(sorted(groups[layout])) for layout in sorted(groups)},
        "seconds": _number(sum(each.seconds for each in decisions)),
        "bytes": digest([each.bytes for each in decisions]),
    }


def _operator(decision: Any) -> str:
    """What an operator is, whatever was decided for it."""
    source = decision.source_line.replace("\\", "/").rsplit("/", 1)[-1]
    absorbed = f" with {','.join(decision.absorbed)}" if decision.absorbed else ""
    trips = f" x {decision.trips}" if decision.trips != 1 else ""
    shape = ",".join(map(str, decision.shape))
    names = f"{decision.phase} {decision.name_stack} {source}"
    return f"{decision.opcode}[{shape}]{absorbed}{trips} {names}"


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
    """Positions, one after another; what rises by one is a range: "0-3 7 5-6"."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def positions(text: str) -> list[int]:
    """The inverse of `ranges`."""
    found: list[int] = []
    for run in text.split():
        first, _, last = run.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def digest(data: Any) -> str:
    """A hash of numbers and texts; how many they are comes first, and the largest number."""
    text = repr([int(each) for each in data] if _are_numbers(data) else list(data))
    largest = f", at most {max(map(int, data))}" if _are_numbers(data) and len(data) else ""
    return f"{len(data)}{largest}: {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _are_numbers(data: Sequence[Any]) -> bool:
    return all(not isinstance(each, str | tuple) for each in data)


def _scalars(record: Any, without: Sequence[str] = ()) -> Data:
    """Those fields of a dataclass that are one number or one text."""
    fields = {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
    plain = {name: _number(value) for name, value in fields.items() if name not in without}
    return {k: v for k, v in plain.items() if v is None or isinstance(v, bool | int | float | str)}


def _number(value: Any) -> Any:
    """numpy's numbers as Python's."""
    return value.item() if hasattr(value, "item") else value
