"""The table of attempts: how many plans tried each, and of how many it made the answer."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from kiwi.campaign.attempts import ATTEMPTS


def markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """A page about all rows."""
    return "\n".join(("# Attempts that made plans", "", summary(rows), "", *table(rows), ""))


def summary(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """How many requests were counted, of which benchmarks, and how they ended."""
    suites, outcomes = Counter[str](), Counter[str]()
    for key, row in rows.items():
        suite, _, target, _ = key.split(" ")
        suites[f"{suite} for {target}"] += 1
        outcomes[row["outcome"].partition(":")[0]] += 1
    asked = ", ".join(f"{count} of {suite}" for suite, count in sorted(suites.items()))
    told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    commits = ", ".join(sorted({row["commit"] for row in rows.values()}))
    return f"{len(rows)} requests: {asked}. Outcomes: {told}. Commits: {commits}."


def table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line for each attempt, in the order of `kiwi.campaign.attempts`.

    Work is relative to that of all first searches. An attempt made for another counts for both.
    """
    counted = [row for row in rows.values() if "made" in row]
    total = sum(row["work"].get("first search", 0) for row in counted) or 1
    lines = [
        "| kind | attempt | requests that made it | times | made the answer of | work |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for attempt in ATTEMPTS:
        name = attempt.name
        requests = [row for row in counted if name in row["made"]]
        times = sum(row["made"][name] for row in requests)
        answers = sum(name in row["answers"] for row in counted)
        work = sum(row["work"][name] for row in requests) / total
        share = f"{work:.1%}" if work else "–"
        lines.append(
            f"| {attempt.kind.value} | {name} | {len(requests)} | {times} | {answers} | {share} |"
        )
    return lines
