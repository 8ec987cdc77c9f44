"""The table of `benchmarks.planning_time`."""

from collections.abc import Iterable, Mapping
from typing import Any

_HEAD = (
    "program",
    "layers",
    "operators",
    "budget",
    "version",
    "planning, CPU s",
    "its other processes",
    "wall s",
    "XLA alone, CPU s",
    "step, ms",
    "gap",
    "programs",
    "load",
    "commit, date",
)


def markdown(rows: Iterable[Mapping[str, Any]], command: str) -> str:
    """Returns the page, with a row for each plan. Versions of one plan are in adjacent rows."""
    ordered = sorted(rows, key=lambda r: (r["program"], r["layers"], r["budget"] != "free"))
    lines = [
        "# What planning takes",
        "",
        f"`{command}`: (2, 4) H100s, each plan in a process of its own. CPU seconds depend on what "
        "else the machine does; `load` is the average of processes that want its cores.",
        "",
        f"| {' | '.join(_HEAD)} |",
        f"|{' --- |' * len(_HEAD)}",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(row))} |" for row in ordered), ""])


def _cells(row: Mapping[str, Any]) -> list[str]:
    given = [row["program"], str(row["layers"])]
    behind = [str(row["load"]), f"{row['commit']}, {row['date']}"]
    if "cpu_seconds" not in row:
        failed = f"over {row['over_seconds']}" if "over_seconds" in row else row["error"]
        return [*given, "", row["budget"], row["label"], failed, *[""] * 6, *behind]
    step_seconds = row["compiled_step_seconds"] or row["step_seconds"]
    return [
        *given,
        str(row["operators"]),
        row["budget"],
        row["label"],
        f"{row['cpu_seconds']:.1f}",
        f"{row['processes_cpu_seconds']:.1f}",
        f"{row['seconds']:.1f}",
        f"{row['xla_cpu_seconds']:.1f}",
        f"{1e3 * step_seconds:.3f}",
        "" if row["gap"] is None else f"{row['gap']:.2%}",
        str(row["programs"]),
        *behind,
    ]
