"""The results as Markdown tables."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

_SHOWN = 20


def report(results: Mapping[str, Any]) -> str:
    """Returns the page: counts of agreement, and the differences between prediction and compiled
    program."""
    environment = results["environment"]
    lines = [
        "# Reshardings, predicted and compiled",
        "",
        f"`{environment['command']}`, {environment['date']}, jax {environment['jax']}, Python "
        f"{environment['python']}. Agreement: the same collectives, bytes within 5 %. *Guided*: "
        "with a sharding constraint at each waypoint, as plans are emitted. *Alone*: source and "
        "target given, the way left to XLA.",
    ]
    for name in results:
        if name != "environment":
            lines += _section(name, results[name])
    return "\n".join(lines) + "\n"


def _section(name: str, found: Mapping[str, Any]) -> list[str]:
    rows, sums = found["reshardings"], found["partial_sums"]
    busy = [row for row in sums if not row["idle_axis"]]
    return [
        "",
        f"## XLA:{'CPU' if name == 'cpu' else 'GPU'}",
        "",
        "| | agree | of |",
        "| --- | ---: | ---: |",
        f"| reshardings, guided | {_count(rows, 'agrees')} | {len(rows)} |",
        f"| reshardings, alone | {_count(rows, 'alone_agrees')} | {len(rows)} |",
        f"| partial sums of a matmul, all mesh axes at work | {_count(busy, 'agrees')} "
        f"| {len(busy)} |",
        f"| partial sums, some axis idle | {_count(sums, 'agrees') - _count(busy, 'agrees')} "
        f"| {len(sums) - len(busy)} |",
        "",
        *_ratios(rows),
        "",
        "Where they differ:",
        "",
        "| | predicted | compiled | cases |",
        "| --- | --- | --- | ---: |",
        *_differences("guided", rows, "compiled", "agrees"),
        *_differences("alone", rows, "alone", "alone_agrees"),
        *_differences("partial sums", busy, "compiled", "agrees"),
        *_differences("idle axis", [r for r in sums if r["idle_axis"]], "compiled", "agrees"),
    ]


def _count(rows: Sequence[Mapping[str, Any]], key: str) -> int:
    return sum(row[key] for row in rows)


def _ratios(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns sentences about the time of other ways, relative to the predicted one."""
    sentences = []
    for key, what in (("alone_seconds", "XLA alone"), ("greedy_seconds", "the greedy search")):
        ratios = [row[key] / row["seconds"] for row in rows if row["seconds"]]
        worse = sum(ratio > 1.01 for ratio in ratios)
        sentences.append(
            f"Predicted time of the way of {what} over that of the cheapest: median "
            f"{median(ratios):.2f}, largest {max(ratios):.1f}; {worse} of {len(ratios)} are more "
            "than 1 % longer."
        )
    return sentences


def _differences(
    what: str, rows: Sequence[Mapping[str, Any]], compiled: str, agrees: str
) -> list[str]:
    pairs = Counter((_text(r["predicted"]), _text(r[compiled])) for r in rows if not r[agrees])
    lines = [f"| {what} | {a} | {b} | {n} |" for (a, b), n in pairs.most_common(_SHOWN)]
    rest = sum(n for _, n in pairs.most_common()[_SHOWN:])
    return [*lines, f"| {what} | others | | {rest} |"] if rest else lines


def _text(uses: Mapping[str, Sequence[int]]) -> str:
    parts = [f"{count} {kind}" if count > 1 else kind for kind, (count, _) in uses.items()]
    return ", ".join(parts) or "none"
