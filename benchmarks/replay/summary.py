"""The rows of the benchmark, and their summary."""

from collections.abc import Sequence
from typing import Any

from benchmarks.replay.measure import Outcome

Row = dict[str, Any]


def rows(model: str, mesh_shape: Sequence[int], outcome: Outcome) -> list[Row]:
    """Returns one row per plan. `round_ratios`, of the first plan only, are the predicted over the
    measured seconds of each round."""
    rows_of_plans = []
    for position, candidate in enumerate(outcome.candidates):
        tables = outcome.tables if position == 0 else ()
        predicted = candidate.predicted_seconds(outcome.table)
        rows_of_plans.append(
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
    return rows_of_plans


def _median(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns Spearman's rank correlation of two sequences of distinct numbers.

    It is 1 - 6 sum(d²) / (n (n² - 1)), where d is the difference of ranks.
    """
    a, b = _ranks(first), _ranks(second)
    count = len(a)
    differences = sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    return 1 - 6 * differences / (count * (count**2 - 1))


def _ranks(numbers: Sequence[float]) -> list[int]:
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    return [order.index(position) for position in range(len(numbers))]


def orders(found: Sequence[Row]) -> dict[str, float]:
    """Returns, for each model with five plans or more, the rank correlation of predicted and
    measured seconds."""
    models = dict.fromkeys(row["model"] for row in found)
    rows_of_model = {model: [row for row in found if row["model"] == model] for model in models}
    return {
        model: spearman(
            [row["predicted_seconds"] for row in model_rows],
            [row["measured_seconds"] for row in model_rows],
        )
        for model, model_rows in rows_of_model.items()
        if len(model_rows) >= 5
    }
