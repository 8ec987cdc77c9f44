"""The table of attempts: how many requests made each one, and how often it made the answer."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from kiwi.campaign.attempts import ATTEMPTS

GONE = {"layers in two groups": "solution", "from a baseline": "search"}
"""Attempts that were removed because of this record, with their kinds."""


def markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the page about all rows."""
    return "\n".join(("# Attempts that made plans", "", summary(rows), "", *table(rows), ""))


def summary(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the numbers of requests by benchmark, and of outcomes."""
    suites, outcomes = Counter[str](), Counter[str]()
    for key, row in rows.items():
        suite, _, target, _ = key.split(" ")
        suites[f"{suite} for {target}"] += 1
        outcomes[row["outcome"].partition(":")[0]] += 1
    requests = ", ".join(f"{count} of {suite}" for suite, count in sorted(suites.items()))
    endings = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    commits = ", ".join(sorted({row["commit"] for row in rows.values()}))
    return f"{len(rows)} requests: {requests}. Outcomes: {endings}. Commits: {commits}."


def table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns one row for each attempt, in the order of `kiwi.campaign.attempts`, then for those
    that were removed (`GONE`).

    Work is relative to the work of all first searches. An attempt inside another one counts for
    both.
    """
    counted = [row for row in rows.values() if "made" in row]
    total = sum(row["work"].get("first search", 0) for row in counted) or 1
    lines = [
        "| kind | attempt | requests that made it | times | made the answer of | work |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    kinds = {attempt.name: attempt.kind.value for attempt in ATTEMPTS}
    kinds |= {name: f"{kind}, removed" for name, kind in GONE.items()}
    for name, kind in kinds.items():
        requests = [row for row in counted if name in row["made"]]
        times = sum(row["made"][name] for row in requests)
        answers = sum(name in row["answers"] for row in counted)
        work = sum(row["work"][name] for row in requests) / total
        share = f"{work:.1%}" if work else "–"
        lines.append(f"| {kind} | {name} | {len(requests)} | {times} | {answers} | {share} |")
    return lines
