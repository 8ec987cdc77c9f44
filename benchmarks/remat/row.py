"""One row for all benchmarks of planners: a planner on a graph under a budget.

Rows are stored in a JSON file, with a table beside it. Each row is written as soon as it is made.
Recorded rows are not made again, so a run can be stopped and resumed.
"""

import argparse
import datetime
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.provenance import commit
from kiwi.errors import InfeasibleBudgetError, KiwiError
from kiwi.literature.remat import (
    PLANNERS,
    RematGraph,
    RematResult,
    Search,
    order_peak_bytes,
    simulate,
)

MEBIBYTE = 1 << 20
WIDTH = 200
"""The width of tables in characters."""
PACKAGES = ("jax", "jaxlib", "numba", "numpy", "ortools")


@dataclass(frozen=True)
class ClosedLoop:
    """The compiled programs of schedules under ever lower limits (`kiwi.campaign.limit_search`).

    - `met`: whether a compiled peak is within the budget. The other figures belong to that
      schedule, or to the nearest one.
    - `rounds`: the number of compiled schedules.
    - `seconds`: the seconds of planning all of them.
    """

    met: bool
    rounds: int
    increase_percent: float
    predicted_mib: float
    compiled_mib: float
    seconds: float


@dataclass(frozen=True)
class Row:
    """One planner on one graph under one budget. Figures are None if it found no schedule.

    - `budget_percent`, `peak_percent`: in per cent of the memory that the given order needs beyond
      the memory that is always held.
    - `increase_percent`: the time beyond computing everything once.
    - `seconds`: the seconds of planning.
    - `is_proven`: whether the planner proved the schedule the best one that it can express.
    - `note`: the reason why there is no schedule, with the smallest known budget and the bound.
    - `budget_mib`, `closed_loop`: only if schedules are compiled.
    - `raised_percent`: the budget as a share, if `budget_percent` is less than possible.
    - `commit`: the commit that made the row; empty if it was not recorded.
    """

    graph: str
    operators: int
    budget_percent: int
    planner: str
    time_limit_seconds: float
    seed: int = 0
    increase_percent: float | None = None
    peak_percent: float | None = None
    seconds: float | None = None
    is_proven: bool = False
    note: str = ""
    budget_mib: float | None = None
    closed_loop: ClosedLoop | None = None
    raised_percent: float | None = None
    commit: str = ""

    @property
    def budget_label(self) -> str:
        """The share, and the share that replaces it if it was raised."""
        raised = "" if self.raised_percent is None else f" → {self.raised_percent:.0f}"
        return f"{self.budget_percent}{raised}"

    @property
    def key(self) -> tuple[str, int, str, int]:
        """The identity of a row: graph, budget, planner and seed."""
        return self.graph, self.budget_percent, self.planner, self.seed


def solved(
    row: Row, graph: RematGraph, budget_bytes: int, search: Search | None = None
) -> tuple[Row, RematResult | KiwiError]:
    """Returns the row with the figures of its planner's schedule, simulated again, and the
    planner's result or error.

    `search`: the search of earlier rounds, which continues.
    """
    search = search or Search(graph, row.planner, row.time_limit_seconds)
    started = time.monotonic()
    try:
        result = search.within(budget_bytes, row.seed)
    except KiwiError as error:
        return replace(row, seconds=time.monotonic() - started, note=_reason(row, error)), error
    simulation = simulate(graph, result.schedule)
    assert simulation.peak_bytes <= budget_bytes
    beyond = order_peak_bytes(graph) - graph.resident_bytes
    bound = result.family_bound_seconds or result.bound_seconds
    row = replace(
        row,
        increase_percent=100 * (simulation.compute_seconds / graph.once_seconds - 1),
        peak_percent=100 * (simulation.peak_bytes - graph.resident_bytes) / beyond,
        seconds=result.seconds,
        is_proven=simulation.compute_seconds <= bound * (1 + 1e-6),
    )
    return row, result


def _reason(row: Row, error: KiwiError) -> str:
    if not isinstance(error, InfeasibleBudgetError):
        return error.what
    known = (error.least_peak_bytes or 0, error.least_peak_bound_bytes or 0)
    if row.budget_mib is None:
        return f"none: least known {known[0]}, bound {known[1]} bytes"
    least, bound = (size_bytes / MEBIBYTE for size_bytes in known)
    return f"none: least known {least:.2f}, bound {bound:.2f} MiB"


class Results:
    """Rows by their keys, stored in a file if there is one, in the order of `graphs`."""

    def __init__(self, path: Path | None, command: str, graphs: Sequence[str]) -> None:
        self._path, self._graphs = path, list(graphs)
        self._commands: list[str] = []
        self._rows: dict[tuple[str, int, str, int], Row] = {}
        if path is not None and path.exists():
            content = json.loads(path.read_text())
            self._commands = content["commands"]
            self._rows = {row.key: row for row in map(_row, content["rows"])}
        self._commands = [*dict.fromkeys([*self._commands, command])]

    def make(self, wanted: Iterable[Row], run: Callable[[Row], Row]) -> list[Row]:
        """Returns the wanted rows. Missing rows are made by `run`."""
        wanted = list(wanted)
        for row in wanted:
            if row.key not in self._rows:
                self._rows[row.key] = replace(run(row), commit=commit())
                self._write()
        return [self._rows[row.key] for row in wanted]

    def _write(self) -> None:
        if self._path is None:
            return
        rows = sorted(self._rows.values(), key=self._place)
        content = {
            "commands": self._commands,
            "date": datetime.date.today().isoformat(),
            "python": platform.python_version(),
            "versions": {package: version(package) for package in PACKAGES},
            "rows": [asdict(row) for row in rows],
        }
        self._path.write_text(json.dumps(content, indent=1) + "\n")
        with self._path.with_suffix(".txt").open("w") as file:
            console = Console(file=file, width=WIDTH)
            if any(row.budget_mib is not None for row in rows):
                console.print(overview(rows))
            console.print(table(rows))

    def _place(self, row: Row) -> tuple[int, str, int, str, int]:
        known = row.graph in self._graphs
        place = self._graphs.index(row.graph) if known else len(self._graphs)
        return place, row.graph, -row.budget_percent, row.planner, row.seed


def command_of(module: str, **shown: str) -> str:
    """Returns the running command without `--out`. `shown` replaces the values of options, such as
    paths."""
    arguments, kept = sys.argv[1:], []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if "--out" not in (before, argument):
            kept.append(shown.get(before.removeprefix("--"), argument))
    return " ".join([f"python -m {module}", *kept])


def _row(each: Mapping[str, Any]) -> Row:
    loop = each["closed_loop"]
    return Row(**{**each, "closed_loop": None if loop is None else ClosedLoop(**loop)})


def overview(rows: list[Row]) -> Table:
    """Returns a table of planners by graph and budget, for compiled schedules."""
    planners = sorted({row.planner for row in rows})
    title = (
        "increase % / compiled peak in % of the budget (! over it) / planning s; - none found; "
        "a → b: a % is below the largest working set, or hardly above, b % was taken"
    )
    shown = Table("graph", "budget %", *planners, title=title)
    cells = {(row.graph, row.budget_percent, row.planner): _overview_cell(row) for row in rows}
    labels = {(row.graph, row.budget_percent): row.budget_label for row in rows}
    for (graph, budget), label in labels.items():
        row_cells = (cells.get((graph, budget, planner), "") for planner in planners)
        shown.add_row(graph, label, *row_cells)
    return shown


def _overview_cell(row: Row) -> str:
    loop = row.closed_loop
    if row.increase_percent is None:
        return "-"
    if loop is None:
        return f"{row.increase_percent:.1f} /  / {row.seconds:.0f}"
    peak = f"{100 * loop.compiled_mib / (row.budget_mib or 1.0):.0f}{'' if loop.met else '!'}"
    return f"{loop.increase_percent:.1f} / {peak} / {loop.seconds:.0f}"


def table(rows: list[Row]) -> Table:
    """Returns a table of all rows. The columns of compiled schedules are shown only if there are
    any."""
    compiled = any(row.closed_loop is not None for row in rows)
    shown = Table(
        "graph", "operators", "budget %", "planner", "limit s", "increase %", "peak %", "s"
    )
    for name in ("budget MiB", "rounds", "increase %", "compiled MiB", "s") if compiled else ():
        shown.add_column(name)
    shown.add_column("commit")
    shown.add_column("")
    for row in rows:
        identity = (row.graph, str(row.operators), row.budget_label, row.planner)
        figures = (row.increase_percent, row.peak_percent, row.seconds)
        loop = _loop_cells(row) if compiled else ()
        limit = f"{row.time_limit_seconds:g}"
        shown.add_row(*identity, limit, *map(_number, figures), *loop, row.commit, _remark(row))
    return shown


def _loop_cells(row: Row) -> tuple[str, ...]:
    loop = row.closed_loop
    if loop is None:
        return (_number(row.budget_mib), "", "", "", "")
    figures = (loop.increase_percent, loop.compiled_mib, loop.seconds)
    return (_number(row.budget_mib), str(loop.rounds), *map(_number, figures))


def _remark(row: Row) -> str:
    if row.closed_loop is not None and not row.closed_loop.met:
        over = row.closed_loop.compiled_mib / (row.budget_mib or 1.0) - 1
        return f"not met as compiled: nearest {100 * over:.1f} % over"
    if row.budget_mib is not None and row.closed_loop is None and row.increase_percent is not None:
        return "not compiled"
    return row.note or ("proven" if row.is_proven else "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def add_common_options(parser: argparse.ArgumentParser, planners: list[str]) -> None:
    """Adds the options of all benchmarks of planners. `planners`: the default of `--planners`."""
    parser.add_argument("--planners", nargs="+", choices=sorted(PLANNERS), default=planners)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--out", type=Path, help="JSON; the table is written beside it")
