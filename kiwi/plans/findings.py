"""The findings at the head of the report: a few sentences about the limits of a plan's step, with
advice.

All findings are derived from the plan's document, so saved plans have them as well.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kiwi.plans.document import Document
from kiwi.sizes import format_bytes, format_seconds

_FULL = 0.9
"""If the peak is above this fraction of the budget, the report says that memory is nearly full."""

_ROOMY = 0.5
"""If the peak is below this fraction of the budget, the report suggests a larger batch."""

_OPEN_GAP = 0.05
"""If the gap is larger, the report suggests a longer search."""

_DEVIATION = 0.2
"""If the compiled step time deviates from the planned one by more than this fraction, the report
says so."""


@dataclass(frozen=True)
class Finding:
    """One fact that the reader should know, and advice."""

    title: str
    text: str
    advice: str


def findings(document: Document) -> tuple[Finding, ...]:
    """Returns the findings: first the budget and the largest part of the step, then memory, the
    bound and the compile check."""
    return (
        *_over_budget(document),
        _limit(document),
        *_memory(document),
        *_bound(document),
        *_check(document),
    )


def _over_budget(document: Document) -> Iterator[Finding]:
    peak, budget = _peak_bytes(document), document["options"]["memory_budget_bytes"]
    if peak > budget:
        yield Finding(
            "Over the budget",
            f"The peak exceeds the budget by {format_bytes(peak - budget)}.",
            f"--budget {math.ceil(peak / 2**20)}MiB, a smaller batch, or more devices.",
        )


def _limit(document: Document) -> Finding:
    """Returns the finding on the largest part of the step: computation, recomputation, or
    waiting."""
    estimate = document["estimate"]
    step = estimate["step_seconds"] or 1.0
    again = estimate["recompute_seconds"]
    waiting = max(0.0, step - estimate["compute_seconds"] - again)
    computing = step - waiting - again
    largest = max(computing, waiting, again)
    share = f"{largest / step:.0%} of the step, {format_seconds(largest)}"
    if largest == computing:
        return Finding(
            "Computation limits the step",
            f"Kernels take {share}.",
            "More devices, narrower dtypes or fused kernels shorten it; shardings hardly do.",
        )
    if largest == again:
        return Finding(
            "Recomputation limits the step",
            f"What is computed again takes {share}.",
            "A larger --budget, or --host-budget to keep values in host memory.",
        )
    return Finding(
        "Communication limits the step",
        f"Waiting for collectives and transfers takes {share}{_most_bytes(document)}.",
        f"Another mesh: kiwi search --devices {math.prod(document['mesh']['shape'])} tries all; "
        "or a larger batch per device.",
    )


def _most_bytes(document: Document) -> str:
    uses = document["estimate"]["collective_uses"]
    if not uses:
        return ""
    most = max(uses, key=lambda use: use["bytes"])
    along = f" over {', '.join(most['axes'])}" if most["axes"] else ""
    return f"; most bytes are of {most['kind']}{along}, {format_bytes(most['bytes'])}"


def _memory(document: Document) -> Iterator[Finding]:
    peak, budget = _peak_bytes(document), document["options"]["memory_budget_bytes"]
    share, estimate = peak / budget, document["estimate"]
    operators = document["operators"].values()
    again = sum(operator["residency"] == "recompute" for operator in operators)
    if again:
        seconds = estimate["recompute_seconds"]
        yield Finding(
            "Memory makes operators run twice",
            f"The peak takes {share:.0%} of the budget. {again} of {len(operators)} operators are "
            f"recomputed, for {format_seconds(seconds)} of the step.",
            f"A larger --budget saves up to {format_seconds(seconds)}; so may --host-budget.",
        )
    elif share > _FULL:
        yield Finding(
            "Memory is nearly full",
            f"The peak takes {share:.0%} of the budget.",
            "A larger --budget may allow other shardings and overlap.",
        )
    elif share < _ROOMY:
        yield Finding(
            "Memory is no limit",
            f"The peak takes {share:.0%} of the budget.",
            "There is room for a larger batch: kiwi search --batch finds the largest.",
        )


def _bound(document: Document) -> Iterator[Finding]:
    gap = document["bounds"]["gap"]
    if gap is not None and gap > _OPEN_GAP:
        yield Finding(
            "A better plan may exist",
            f"The plan is proven within {gap:.0%} of the best by its prices.",
            "--effort thorough searches longer.",
        )


def _check(document: Document) -> Iterator[Finding]:
    checks = document["checks"]
    if checks is None:
        yield Finding(
            "Not compiled by the hardware's compiler",
            "Step time and peak are estimates.",
            "--verify auto compiles the plan, and plans again while it does not fit.",
        )
        return
    step, time = document["estimate"]["step_seconds"], checks.get("time")
    ratio = time["step_seconds"] / step if time and step else 1.0
    if abs(ratio - 1) > _DEVIATION:
        yield Finding(
            "The compiled step takes another time",
            f"Its schedule takes {ratio:.2f} times the planned step.",
            "The section on deviations names the kernels; corrections=plan.corrections teaches "
            "the next plan.",
        )


def _peak_bytes(document: Document) -> int:
    return int((document["checks"] or document["estimate"])["peak_bytes"])
