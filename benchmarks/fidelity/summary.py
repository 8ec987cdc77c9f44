"""Errors over the rows of the benchmark, per target and per model.

"plans" are Kiwi's own. "by_hand" are steps sharded by hand that Kiwi runs as they are
(`planner="xla"`). "plain" are the same steps, compiled without Kiwi.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fidelity.measure import Row

SMALL = 0.01
"""Kinds of collectives with less than this part of a row's bytes are left out. A scalar that is
reduced in another way than predicted does not matter for memory or time."""


@dataclass(frozen=True)
class Key:
    """The identity of a row: model, mesh such as "2x4", variant and target."""

    model: str
    mesh: str
    variant: str
    target: str

    def __str__(self) -> str:
        return f"{self.model} {self.mesh} {self.variant} {self.target}"

    @classmethod
    def parse(cls, text: str) -> "Key":
        """Returns the key that `str` writes as `text`."""
        return cls(*text.split(" "))

    @property
    def by_hand(self) -> bool:
        """Whether the row is a step sharded by hand, and not a plan."""
        return "/" in self.variant


def peak_error(row: Row) -> float | None:
    """Returns the predicted over the compiled peak, minus 1; None if either is missing."""
    if "predicted_peak_bytes" not in row or "compiled_peak_bytes" not in row:
        return None
    return row["predicted_peak_bytes"] / row["compiled_peak_bytes"] - 1


def collective_errors(row: Row, target: str) -> Iterator[tuple[str, float]]:
    """Yields |predicted - compiled| over the larger of the two, for each kind with enough bytes in
    a row.

    XLA:CPU has no reduce-scatter and compiles an all-reduce and a slice instead. For the target
    "cpu" the two kinds therefore count as one.
    """
    if "predicted_collectives" not in row or "compiled_collectives" not in row:
        return
    predicted = _bytes_by_kind(row["predicted_collectives"], target)
    compiled = _bytes_by_kind(row["compiled_collectives"], target)
    least = SMALL * max(sum(predicted.values()), sum(compiled.values()))
    for kind in sorted({*predicted, *compiled}):
        one, other = predicted.get(kind, 0), compiled.get(kind, 0)
        if max(one, other) > least:
            yield kind, abs(one - other) / max(one, other)


def summarise(rows: Mapping[str, Row]) -> dict[str, Any]:
    """Returns, for each target, the errors of the peak and of collectives, and the number of plans
    that fit.

    "below_the_least" are rows whose budget no plan fits, and for which the smallest possible budget
    was taken instead. "refused" are rows without a plan that meets its budget.
    """
    keyed = {Key.parse(key): row for key, row in rows.items()}
    targets = sorted({key.target for key in keyed})
    return {target: _of_target(keyed, target) for target in targets}


def _of_target(keyed: Mapping[Key, Row], target: str) -> dict[str, Any]:
    rows = {key: row for key, row in keyed.items() if key.target == target}
    plans = {key: row for key, row in rows.items() if not key.by_hand}
    hand = {key: row for key, row in rows.items() if key.by_hand}
    by_model = {m: _peaks({k: r for k, r in plans.items() if k.model == m}) for m in _models(plans)}
    returned = [r for r in plans.values() if r.get("budget_bytes") and not r.get("refused")]
    checked = [row["fits"] for row in returned]
    return {
        "plans": _peaks(plans),
        "by_hand": _peaks(hand),
        "plain": _peaks({key: row["plain"] for key, row in hand.items() if "plain" in row}),
        "plans_by_model": by_model,
        "collectives_of_plans": _collectives(plans, target),
        "collectives_by_hand": _collectives(hand, target),
        "collectives_plain": _collectives(
            {key: row["plain"] for key, row in hand.items() if "plain" in row}, target
        ),
        "budgets": len(checked),
        "budgets_met": sum(checked),
        "below_the_least": sorted(str(key) for key, row in rows.items() if "asked_bytes" in row),
        "refused": sorted(
            f"{key}: {row.get('error', 'BudgetNotMetError')}"
            for key, row in rows.items()
            if "error" in row or row.get("refused")
        ),
    }


def _models(rows: Mapping[Key, Row]) -> list[str]:
    return list(dict.fromkeys(key.model for key in rows))


def _peaks(rows: Mapping[Key, Row]) -> dict[str, Any]:
    errors = {str(k): e for k, row in rows.items() if (e := peak_error(row)) is not None}
    if not errors:
        return {"rows": 0}
    worst = max(errors, key=lambda key: abs(errors[key]))
    return {
        "rows": len(errors),
        "median": round(statistics.median(abs(e) for e in errors.values()), 4),
        "worst": round(errors[worst], 4),
        "worst_row": worst,
        "within_15_percent": sum(abs(e) <= 0.15 for e in errors.values()),
    }


def _collectives(rows: Mapping[Key, Row], target: str) -> dict[str, Any]:
    pairs = [pair for row in rows.values() for pair in collective_errors(row, target)]
    errors_by_kind: dict[str, Any] = {"all": _median([error for _, error in pairs])}
    for kind in sorted({kind for kind, _ in pairs}):
        errors_by_kind[kind] = _median([error for k, error in pairs if k == kind])
    return errors_by_kind


def _median(errors: Sequence[float]) -> dict[str, Any]:
    if not errors:
        return {"count": 0}
    return {"count": len(errors), "median": round(statistics.median(errors), 4)}


def _bytes_by_kind(uses: Mapping[str, Sequence[int]], target: str) -> dict[str, int]:
    size_by_kind: dict[str, int] = {}
    for kind, (_, size) in uses.items():
        merged = "all-reduce" if target == "cpu" and kind == "reduce-scatter" else kind
        size_by_kind[merged] = size_by_kind.get(merged, 0) + size
    return size_by_kind
