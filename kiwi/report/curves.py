"""Memory over the step by what holds it, from a plan's document."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kiwi.memory.timeline import curve_bytes
from kiwi.solver.problem import Interval

CATEGORIES = {
    "arguments": "arguments and results held throughout",
    "forward": "results of the forward pass",
    "backward": "results of the backward pass",
    "update": "results of the update",
    "copies": "resharded copies",
}
"""What memory is told apart by, and its name for people; stacked in this order."""


def memory_curves(document: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """For each category the bytes held while each operator runs, float64, shape (operators,)."""
    horizon = max(1, len(document["operators"]))
    spans: dict[str, list[Interval]] = {category: [] for category in CATEGORIES}
    for category, start, end, size in _spans(document):
        spans[category].append(Interval(start, end, size))
    return {c: curve_bytes(own, horizon).astype(np.float64) for c, own in spans.items()}


def _spans(document: Mapping[str, Any]) -> Iterator[tuple[str, int, int, int]]:
    for source in (*document["arguments"].values(), *document["constants"]):
        for start, end, size in source["held"]:
            yield "arguments", start, end, size
    for operator in document["operators"].values():
        for start, end, size in operator["held"]:
            yield operator["phase"], start, end, size
        for start, end, size in operator["copies"]:
            yield "copies", start, end, size
