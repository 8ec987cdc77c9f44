"""The result of a search: every configuration with its figures, and the best plan."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiwi.codec import to_plain
from kiwi.configurations.configuration import Row, State
from kiwi.errors import InfeasibleError
from kiwi.messages import topics
from kiwi.plans.document import document
from kiwi.plans.plan import Plan
from kiwi.plans.report_data import report_data
from kiwi.plans.summary import table
from kiwi.report import write_report
from kiwi.sizes import format_bytes, format_seconds


@dataclass(frozen=True)
class SearchResult:
    """All configurations of a search.

    - `rows`: one row for every configuration, ordered by profile, devices, mesh and batch.
    - `objective`: the optimised figure: "samples", "step_seconds" or "cost".
    - `seconds`: the wall time of the search.
    - `plan_of`: restores the plan of a row, without solving anything.
    """

    rows: tuple[Row, ...]
    objective: str
    seconds: float
    plan_of: Callable[[Row], Plan]

    @functools.cached_property
    def best(self) -> Plan:
        """The plan of the best configuration, as `kiwi.plan` returns it.

        **Raises:** `InfeasibleError` if no configuration has a plan.
        """
        return self.plan_of(self.best_row)

    @property
    def choice(self) -> dict[str, Any]:
        """The fields of the best configuration, by name; raises as `best`."""
        return self.best_row.configuration.choice

    @property
    def best_row(self) -> Row:
        """The row of the best configuration; raises as `best`."""
        candidates = [row for row in self.rows if row.state is State.BEST and row.score is not None]
        if not candidates:
            whys = dict.fromkeys(row.why for row in self.rows if row.why)
            raise InfeasibleError(
                f"None of {len(self.rows)} configurations has a plan.",
                topic=topics.NO_CONFIGURATION,
                cause=" ".join(list(whys)[:3]),
            )
        return min(candidates, key=lambda row: row.score or 0.0)

    @property
    def frontier(self) -> tuple[Row, ...]:
        """The planned rows that no other row beats in throughput, memory and devices together."""
        planned = [row for row in self.rows if row.step_seconds is not None]
        front: list[Row] = []
        for row in planned:  # Of equal rows the first one counts.
            if not any(_beats(another, row) for another in planned) and not any(
                _figures(another) == _figures(row) for another in front
            ):
                front.append(row)
        return tuple(front)

    def json(self) -> dict[str, Any]:
        """The result as plain data."""
        front = set(map(id, self.frontier))
        return {
            "objective": self.objective,
            "seconds": self.seconds,
            "rows": [
                {
                    **to_plain(row),
                    "devices": row.configuration.device_count,
                    "samples_per_second": row.samples_per_second,
                    "frontier": id(row) in front,
                }
                for row in self.rows
            ],
        }

    def write_report(self, path: str | Path) -> None:
        """Writes the HTML report of the best plan, with a table of all configurations.

        **Raises:** as `best`; `InvalidArgumentError` if the file cannot be written.
        """
        write_report(path, report_data(document(self.best), search=self.json()))

    def __str__(self) -> str:
        header = ("configuration", "samples/s", "step", "bound", "peak", "compiled", "", "")
        front = set(map(id, self.frontier))
        return table(header, [_cells(row, id(row) in front) for row in self.rows])


def _beats(one: Row, other: Row) -> bool:
    """Returns whether `one` is at least as good as `other` in all three figures, and better in at
    least one."""
    figures, other_figures = _figures(one), _figures(other)
    return figures != other_figures and all(
        figure <= other_figure for figure, other_figure in zip(figures, other_figures, strict=True)
    )


def _figures(row: Row) -> tuple[float, int, int]:
    """Returns the negative throughput, the memory and the number of devices, all to be
    minimised."""
    peak_bytes = row.peak_bytes if row.compiled_peak_bytes is None else row.compiled_peak_bytes
    return -(row.samples_per_second or 0.0), peak_bytes or 0, row.configuration.device_count


def _cells(row: Row, is_on_frontier: bool) -> tuple[str, ...]:
    def shown(value: float | None, text: Callable[[float], str]) -> str:
        return "-" if value is None else text(value)

    figures = (
        shown(row.samples_per_second, lambda value: f"{value:.4g}"),
        shown(row.step_seconds, format_seconds),
        shown(row.bound_seconds, format_seconds),
        shown(row.peak_bytes, format_bytes),
        shown(row.compiled_peak_bytes, format_bytes),
    )
    state = row.state.value if row.state is not State.REFUSED else row.why[:60]
    return (str(row.configuration), *figures, state, "*" if is_on_frontier else "")
