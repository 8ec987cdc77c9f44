"""What two plans do differently, and what each difference costs.

Operators are matched by identity (see `kiwi.plans.fingerprint`), arguments by path, so that
plans for two versions of a function can be compared as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kiwi.plans.breakdown import PARTS
from kiwi.plans.document import Document
from kiwi.plans.explain_text import layout, residency_text
from kiwi.plans.summary import table
from kiwi.sizes import format_bytes, format_seconds

MOST_ROWS = 20


@dataclass(frozen=True)
class Difference:
    """One thing that is done differently; `change_*` is second minus first.

    - `kind`: "option", "argument", "operator", "only in first" or "only in second".
    - `change_bytes`: of the memory held at the first plan's peak.
    """

    kind: str
    name: str
    source: str
    first: str
    second: str
    change_seconds: float
    change_bytes: int


@dataclass(frozen=True)
class PlanDifference:
    """Two plans side by side: totals (name, first, second) and what differs.

    `same` says that they decide the same for the same function.
    """

    totals: tuple[tuple[str, float | None, float | None], ...]
    differences: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        """Whether nothing is done differently."""
        return not self.differences

    def __str__(self) -> str:
        return _text(self)


def diff(first: Document, second: Document) -> PlanDifference:
    """Compares two documents."""
    found = [*_options(first, second), *_arguments(first, second), *_operators(first, second)]
    return PlanDifference(_totals(first, second), tuple(found))


def _totals(
    first: Document, second: Document
) -> tuple[tuple[str, float | None, float | None], ...]:
    names = ("step_seconds", *(f"{part}_seconds" for part in PARTS), "peak_bytes")
    rows = [(name, first["estimate"][name], second["estimate"][name]) for name in names]
    checked = [(d.get("checks") or {}).get("peak_bytes") for d in (first, second)]
    return (*rows, ("compiled_peak_bytes", checked[0], checked[1]))


def _options(first: Document, second: Document) -> Iterator[Difference]:
    pairs: list[tuple[str, Any, Any]] = [
        ("mesh", _mesh(first), _mesh(second)),
        ("function", first["function"]["structure"][:12], second["function"]["structure"][:12]),
    ]
    for key in ("profile", "memory_budget_bytes", "planner"):
        pairs.append((key, first["options"][key], second["options"][key]))
    for name, a, b in pairs:
        if a != b:
            yield Difference("option", name, "", str(a), str(b), 0.0, 0)


def _mesh(document: Document) -> str:
    mesh = document["mesh"]
    return ", ".join(f"{n}={s}" for n, s in zip(mesh["axis_names"], mesh["shape"], strict=True))


def _arguments(first: Document, second: Document) -> Iterator[Difference]:
    peak = first["estimate"]["peak_unit"]
    for path in dict.fromkeys((*first["arguments"], *second["arguments"])):
        a, b = first["arguments"].get(path), second["arguments"].get(path)
        if a is not None and b is not None and a["sharding"] == b["sharding"]:
            continue
        yield _difference(
            "argument",
            path,
            "",
            (a, layout(a["sharding"]) if a else ""),
            (b, layout(b["sharding"]) if b else ""),
            peak,
        )


def _operators(first: Document, second: Document) -> Iterator[Difference]:
    peak = first["estimate"]["peak_unit"]
    for identity in dict.fromkeys((*first["operators"], *second["operators"])):
        a, b = first["operators"].get(identity), second["operators"].get(identity)
        if a is not None and b is not None and _choice(a) == _choice(b):
            continue
        sample = a or b
        assert sample is not None
        name = f"{sample['unit']} {sample['opcode']} ({sample['phase']})"
        texts = [(o, _operator_text(o) if o else "") for o in (a, b)]
        yield _difference("operator", name, sample["source"], texts[0], texts[1], peak)


def _choice(operator: Document) -> object:
    return tuple(operator[key] for key in ("reads", "results", "recompute_at", "kept_reads"))


def _operator_text(operator: Document) -> str:
    reads = " ".join(layout(d) for d in operator["reads"])
    results = " ".join(layout(d) for d in operator["results"])
    again = "" if operator["recompute_at"] is None else f", {residency_text(operator)}"
    kept = ", of a kept copy" if operator["kept_reads"] else ""
    return f"{reads}{kept} -> {results}{again}"


def _difference(
    kind: str,
    name: str,
    source: str,
    first: tuple[Document | None, str],
    second: tuple[Document | None, str],
    peak: int,
) -> Difference:
    if first[0] is None or second[0] is None:
        kind = "only in second" if first[0] is None else "only in first"
    seconds = [sum((d or {}).get("seconds", {}).values()) for d, _ in (first, second)]
    held = [_held(d, peak) for d, _ in (first, second)]
    return Difference(
        kind, name, source, first[1], second[1], seconds[1] - seconds[0], held[1] - held[0]
    )


def _held(entry: Document | None, time: int) -> int:
    if entry is None:
        return 0
    spans = (*entry["held"], *entry.get("copies", ()))
    return sum(size for start, end, size in spans if start <= time < end)


def _text(found: PlanDifference) -> str:
    rows = [
        (
            name.removesuffix("_seconds").removesuffix("_bytes"),
            _figure(name, a),
            _figure(name, b),
            _change(name, a, b),
        )
        for name, a, b in found.totals
    ]
    blocks = [table(("", "first", "second", "change"), rows)]
    if found.same:
        return blocks[0] + "\n\nThe plans decide the same."
    blocks.append(_listing(found.differences))
    return "\n\n".join(blocks)


def _listing(differences: Sequence[Difference]) -> str:
    order = {"option": 0, "argument": 1}
    ranked = sorted(
        differences,
        key=lambda d: (order.get(d.kind, 2), -abs(d.change_seconds), -abs(d.change_bytes)),
    )
    rows = [
        (
            d.kind,
            d.name,
            d.source.split(" ")[0],
            d.first,
            d.second,
            _change("x_seconds", 0.0, d.change_seconds) if d.change_seconds else "",
            _change("x_bytes", 0, d.change_bytes) if d.change_bytes else "",
        )
        for d in ranked[:MOST_ROWS]
    ]
    more = len(ranked) - MOST_ROWS
    text = table(("", "what", "source", "first", "second", "seconds", "at the peak"), rows)
    return f"{len(ranked)} differences\n{text}" + (f"\n... and {more} more" if more > 0 else "")


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return format_bytes(value) if name.endswith("_bytes") else format_seconds(value)


def _change(name: str, first: float | None, second: float | None) -> str:
    if first is None or second is None:
        return ""
    change = second - first
    return ("+" if change >= 0 else "-") + _figure(name, abs(change))
