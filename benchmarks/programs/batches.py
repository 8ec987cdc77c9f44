"""Merges batches of random programs."""

from collections import Counter
from typing import Any

Summary = dict[str, Any]
"""A summary of programs of one kind: numbers, numbers by name, and lists."""

NOTHING: Summary = {"batches": [], "drawn": []}
"""The summary of no batch."""


def merged(before: Summary, batch: Summary) -> Summary:
    """Returns the summary of the batches so far and one more."""
    if not before["batches"]:
        return batch
    sums = {key: _sum(before[key], value) for key, value in batch.items()}
    largest = max(before["largest_difference"], batch["largest_difference"])
    return sums | {"largest_difference": largest, "drawn": batch["drawn"]}


def _sum(one: Any, other: Any) -> Any:
    if isinstance(other, dict):
        return dict(sorted((Counter(one) + Counter(other)).items()))
    return one + other
