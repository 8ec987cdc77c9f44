"""What the rows of the benchmark say together."""

from collections.abc import Sequence
from typing import Any

from benchmarks.replay.measure import Outcome

Row = dict[str, Any]


def rows(model: str, mesh_shape: Sequence[int], outcome: Outcome) -> list[Row]:
    """One per plan; `round_ratios`, of the first, are predicted over measured within each round."""
    found = []
    for position, candidate in enumerate(outcome.candidates):
        tables = outcome.tables if position == 0 else ()
        predicted = candidate.predicted_seconds(outcome.table)
        found.append(
            {
                "model": model,
                "mesh": "x".join(map(str, mesh_shape)),
                "plan": candidate.name,
                "recomputed": candidate.plan.residency_counts()["recompute"],
                "predicted_seconds": predicted,
                "measured_seconds": candidate.measured_seconds,
                "ratio": predicted / candidate.measured_seconds,
                "round_ratios": [
                    candidate.predicted_seconds(table) / _median(seconds)
                    for table, seconds in zip(tables, candidate.rounds, strict=False)
                ],
                "runs": sum(map(len, candidate.rounds)),
                "time_shares": dict(candidate.plan.time_shares),
            }
        )
    return found


def _median(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation of two sequences of distinct numbers.

    1 - 6 sum(d²) / (n (n² - 1)), d being the difference of ranks.
    """
    a, b = _ranks(first), _ranks(second)
    count = len(a)
    differences = sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    return 1 - 6 * differences / (count * (count**2 - 1))


def _ranks(numbers: Sequence[float]) -> list[int]:
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    return [order.index(position) for position in range(len(numbers))]


def orders(found: Sequence[Row]) -> dict[str, float]:
    """For each model with five plans or more, how predicted and measured order agree."""
    models = dict.fromkeys(row["model"] for row in found)
    own = {model: [row for row in found if row["model"] == model] for model in models}
    return {
        model: spearman(
            [row["predicted_seconds"] for row in rows_],
            [row["measured_seconds"] for row in rows_],
        )
        for model, rows_ in own.items()
        if len(rows_) >= 5
    }
