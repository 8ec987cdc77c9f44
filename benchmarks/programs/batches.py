"""Batches of random programs, as one."""

from collections import Counter
from typing import Any

Summary = dict[str, Any]
"""Of programs of one kind: numbers, numbers by name, and lists."""

NOTHING: Summary = {"batches": [], "drawn": []}
"""Of no batch."""


def merged(before: Summary, batch: Summary) -> Summary:
    """What the batches so far and one more say together."""
    if not before["batches"]:
        return batch
    found = {key: _sum(before[key], value) for key, value in batch.items()}
    largest = max(before["largest_difference"], batch["largest_difference"])
    return found | {"largest_difference": largest, "drawn": batch["drawn"]}


def _sum(one: Any, other: Any) -> Any:
    if isinstance(other, dict):
        return dict(sorted((Counter(one) + Counter(other)).items()))
    return one + other
