"""The tables of `benchmarks.field`."""

from collections.abc import Mapping

from benchmarks.field.programs import PROGRAMS
from benchmarks.field.rows import FREE, Key, Row

MIB = 1 << 20
NEAR = 0.15
"""The table names predictions that differ by more than this share from the compiled program."""
EQUAL = 2e-3
"""Relative differences of numbers below this are rounding errors."""


def markdown(rows: Mapping[str, Row], command: str) -> str:
    """Returns the page: a table for each hardware and budget, then what each program stands for."""
    first = next(iter(rows.values()))
    lines = [
        "# The programs people have",
        "",
        f"`{command}`: (2, 4) devices, each row planned in a process of its own without a cache "
        f"of plans. jax {first['jax']}; the commit and date of each row are in `results.json`. "
        f"Ratios are compiled / planned; beyond {NEAR:.0%} the kernels that deviate most are "
        "named below the table. A budget is a share of the free plan's compiled peak.",
        "",
    ]
    tables = dict.fromkeys((Key.parse(key).profile, Key.parse(key).budget) for key in rows)
    for profile, budget in sorted(tables, key=lambda pair: (pair[0], pair[1] != FREE)):
        named = [
            (PROGRAMS[n].name, rows[k])
            for n in PROGRAMS
            if (k := f"{n} {profile} {budget}") in rows
        ]
        title = "free" if budget == FREE else f"{budget} % of the free peak"
        lines += [f"## {profile}, {title}", "", *_summary(named)]
        lines += _numbers(named) if profile == "numbers" else _plans(named)
    lines += ["## What each stands for", "", "| program | stands for |", "| --- | --- |"]
    lines += [
        f"| {one_program.name} | {one_program.stands_for} |" for one_program in PROGRAMS.values()
    ]
    return "\n".join([*lines, ""])


def outcome(row: Row) -> str:
    """Returns one row in words."""
    if "error" in row:
        least_bytes = row.get("least_compiled_peak_bytes") or row.get("least_peak_bytes")
        tail = f" (least {least_bytes / MIB:.0f} MiB)" if least_bytes else ""
        return f"{row['error']}{tail}: {row['what'].splitlines()[0][:160] if row['what'] else ''}"
    if "difference" in row:
        return f"difference {row['difference']:.1e}"
    return (
        f"time {1e3 * row['planned_step_seconds']:.3f} ms, compiled x{_time(row):.2f}; "
        f"peak {row['planned_peak_bytes'] / MIB:.0f} MiB, compiled x{_peak(row):.2f}; "
        f"{row['programs']} programs"
    )


def _time(row: Row) -> float:
    return (row["compiled_step_seconds"] or float("nan")) / max(row["planned_step_seconds"], 1e-12)


def _peak(row: Row) -> float:
    return row["compiled_peak_bytes"] / row["planned_peak_bytes"]


def _summary(named: list[tuple[str, Row]]) -> list[str]:
    failed = [name for name, row in named if "error" in row]
    crashed = [name for name, row in named if row.get("exit") not in (0, 1)]
    cpu_seconds = sum(row["cpu_seconds"] for _, row in named)
    text = f"{len(named)} programs, {len(failed)} without a plan, {len(crashed)} of them crashed"
    return [f"{text}; {cpu_seconds:.0f} CPU seconds.", ""]


def _numbers(named: list[tuple[str, Row]]) -> list[str]:
    lines = [
        "The root mean square of the difference by that of the wanted values, the largest of all "
        f"results; below {EQUAL:g} it is rounding.",
        "",
        "| program | largest relative difference | |",
        "| --- | --- | --- |",
    ]
    return [
        *lines,
        *(f"| {name} | {outcome(row)} | {_why(name, row)} |" for name, row in named),
        "",
    ]


def _why(name: str, row: Row) -> str:
    is_equal = row.get("difference", 0.0) < EQUAL
    return "" if is_equal else PROGRAMS[name].rounds or "differs"


def _plans(named: list[tuple[str, Row]]) -> list[str]:
    lines = [
        "| program | CPU s | planned ms | compiled ms | ratio | planned MiB | compiled MiB | ratio "
        "| programs | outcome |",
        f"|{' --- |' * 10}",
        *(f"| {name} | {' | '.join(_cells(row))} |" for name, row in named),
        "",
    ]
    deviating = [(name, row) for name, row in named if "error" not in row and not _is_near(row)]
    lines += [f"- {name}: {'; '.join(row['deviations'][:4])}" for name, row in deviating]
    return [*lines, ""] if deviating else lines


def _is_near(row: Row) -> bool:
    return abs(_time(row) - 1) <= NEAR and abs(_peak(row) - 1) <= NEAR


def _cells(row: Row) -> list[str]:
    if "error" in row:
        return [f"{row['cpu_seconds']:.0f}", *[""] * 7, outcome(row).replace("|", "/")]
    return [
        f"{row['cpu_seconds']:.0f}",
        f"{1e3 * row['planned_step_seconds']:.3f}",
        f"{1e3 * (row['compiled_step_seconds'] or float('nan')):.3f}",
        f"{_time(row):.2f}",
        f"{row['planned_peak_bytes'] / MIB:.0f}",
        f"{row['compiled_peak_bytes'] / MIB:.0f}",
        f"{_peak(row):.2f}",
        str(row["programs"]),
        "" if _is_near(row) else "deviates",
    ]
