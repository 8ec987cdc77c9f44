"""The claims about the plans of one step, and the rows that break them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import kiwi
from benchmarks.small_steps.planned import FREE

Row = Mapping[str, Any]
SAME = 0.01
"""The share of a step by which a plan may be slower: the gap at which a search ends."""


def refused_but_met(rows: Sequence[Row]) -> Iterator[str]:
    """Yields budgets that "joint" refused, and that a compiled program of the step meets."""
    peaks = [(peak, row) for row in rows for peak in row["compiled_peaks_bytes"]]
    for row in _of_joint(rows):
        if not _is_refused(row):
            continue
        least_bytes, of = min(peaks, key=lambda pair: pair[0])
        if least_bytes <= row["budget_bytes"]:
            yield (
                f"{row['share']:.0%} ({row['budget_bytes']:,} bytes) refused; "
                f"a program of {of['planner']} at {of['share']:.0%} needs {least_bytes:,}"
            )


def slower_than_others(rows: Sequence[Row]) -> Iterator[str]:
    """Yields plans of other planners that are faster, as compiled, than those of "joint" for the
    same budget."""
    seconds_by_share = {
        row["share"]: row["compiled_seconds"] for row in _of_joint(rows) if not row["error"]
    }
    for row in rows:
        is_plan = row["planner"] != "joint" and not row["error"] and row["compiled_seconds"]
        if not is_plan or not _fits(row):
            continue
        own_seconds = seconds_by_share.get(row["share"])
        if own_seconds is not None and own_seconds > (1 + SAME) * row["compiled_seconds"]:
            slower = own_seconds / row["compiled_seconds"] - 1
            yield f"{row['share']:.0%}: {row['planner']} is faster, joint takes {slower:.1%} longer"


def slower_with_more_memory(rows: Sequence[Row]) -> Iterator[str]:
    """Yields pairs of plans of "joint" of which the one for the smaller budget is faster."""
    plans = [row for row in _of_joint(rows) if not row["error"] and row["compiled_seconds"]]
    for larger in plans:
        for smaller in plans:
            slower = larger["compiled_seconds"] / smaller["compiled_seconds"] - 1
            if smaller["share"] < larger["share"] and slower > SAME:
                yield f"{larger['share']:.0%} takes {slower:.1%} longer than {smaller['share']:.0%}"


def over_budget(rows: Sequence[Row]) -> Iterator[str]:
    """Yields plans whose programs need more than their budget."""
    for row in rows:
        if not row["error"] and row["compiled_peak_bytes"] and not _fits(row):
            yield f"{row['planner']} at {row['share']:.0%}: {row['compiled_peak_bytes']:,} bytes"


def crashes(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the errors that are not Kiwi's own."""
    for row in rows:
        if row["error"] and not _is_typed(row["error"]):
            yield f"{row['planner']} at {row['share']:.0%}: {row['error']}: {row['what']}"


CLAIMS = {
    "Refused, although a compiled program meets the budget": refused_but_met,
    "Slower than another planner, as compiled": slower_than_others,
    "Slower than the plan for a smaller budget, as compiled": slower_with_more_memory,
    "Over the budget": over_budget,
    "Crashed": crashes,
}


def _of_joint(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["planner"] == "joint"]


def _is_refused(row: Row) -> bool:
    return bool(row["error"]) and _is_typed(row["error"]) and row["share"] != FREE


def _is_typed(error: str) -> bool:
    return hasattr(kiwi.errors, error)


def _fits(row: Row) -> bool:
    return row["budget_bytes"] is None or row["compiled_peak_bytes"] <= row["budget_bytes"]
