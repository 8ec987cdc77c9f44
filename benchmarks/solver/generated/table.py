"""The results as Markdown."""

from collections.abc import Sequence

import numpy as np

from benchmarks.solver.generated.measure import Row

_CLOSE = 0.005


def table(rows: Sequence[Row]) -> str:
    """Returns a summary of each half, then one row per instance."""
    head = [
        "half",
        "instances",
        "within 0.5 % of the best",
        "worst",
        "slower than by hand",
        "mean gap to the bound",
    ]
    lines = _head(head)
    for half in ("tuning", "measured"):
        rows_of_half = [row for row in rows if row.case.half == half]
        if rows_of_half:
            close = np.mean([row.excess <= _CLOSE for row in rows_of_half])
            gaps = [row.gap for row in rows_of_half if row.gap is not None]
            worst = max(row.excess for row in rows_of_half)
            slower = sum(row.is_slower_than_by_hand for row in rows_of_half)
            lines.append(
                f"| {half} | {len(rows_of_half)} | {close:.0%} | {worst:.2%} | {slower} "
                f"| {np.mean(gaps) if gaps else np.nan:.2%} |"
            )
    names = ["number", "from", "mesh", "spread", "hubs", "integers", "limit", "nodes", "rounds"]
    lines += ["", *_head([*names, "above best", "gap", "best by", "times", "by hand / ours"])]
    return "\n".join([*lines, *map(_line, rows), ""])


def _head(names: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]


def _line(row: Row) -> str:
    made, by_hand = row.case, row.reference.by_hand
    excess = "no solution" if row.excess == np.inf else f"{row.excess:.3%}"
    gap = "-" if row.gap is None else f"{row.gap:.3%}"
    ratio = "-" if by_hand is None or not row.objective else f"{by_hand / row.objective:.3f}"
    return (
        f"| {made.number} | {made.name} x {made.layers} | {made.mesh_shape} {made.profile} "
        f"| {made.spread} | {made.hubs} | {made.integral} | {made.factor} x {made.point} "
        f"| {row.nodes} | {row.rounds} | {excess} | {gap} | {row.reference.solver} "
        f"| {row.reference.times:.1f} | {ratio} |"
    )
