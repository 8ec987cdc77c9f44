"""The differences between two plans, and what each costs.

Operators are matched by identity (see `kiwi.plans.fingerprint`) and arguments by path. So plans for
two versions of a function can be compared as well.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kiwi.mesh.sharding import layout_text
from kiwi.plans.breakdown import PARTS
from kiwi.plans.document import Document
from kiwi.plans.explain_text import held_bytes, residency_text, signed
from kiwi.plans.summary import mesh_text, table
from kiwi.sizes import format_bytes, format_seconds

MOST_ROWS = 20


@dataclass(frozen=True)
class Difference:
    """One difference; `change_*` is second minus first.

    - `kind`: "option", "argument", "operator", "only in first" or "only in second".
    - `change_bytes`: the change of the memory held at the first plan's peak.
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
    """Two plans side by side: totals (name, first, second) and the differences.

    `same` says that both make the same decisions for the same function.
    """

    totals: tuple[tuple[str, float | None, float | None], ...]
    differences: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        """Whether there is no difference."""
        return not self.differences

    def __str__(self) -> str:
        text = table(("", "first", "second", "change"), [_total(*total) for total in self.totals])
        said = "The plans decide the same." if self.same else _listing(self.differences)
        return f"{text}\n\n{said}"


def diff(first: Document, second: Document) -> PlanDifference:
    """Compares two documents."""
    differing = [*_options(first, second)]
    for kind in ("argument", "operator"):
        differing += _entries(kind, first, second)
    parts = (f"{part}_seconds" for part in PARTS)
    names = ("step_seconds", *parts, "hidden_seconds", "peak_bytes", "host_peak_bytes")
    found_of = lambda document, name: document["estimate"].get(name, 0.0)  # noqa: E731
    rows = [(name, found_of(first, name), found_of(second, name)) for name in names]
    rows = [row for row in rows if row[0] != "host_peak_bytes" or any(row[1:])]
    checked = [(d.get("checks") or {}).get("peak_bytes") for d in (first, second)]
    totals = (*rows, ("compiled_peak_bytes", checked[0], checked[1]))
    return PlanDifference(totals, tuple(differing))


def _options(first: Document, second: Document) -> Iterator[Difference]:
    of_first, of_second = (
        {
            "mesh": mesh_text(d["mesh"]["axis_names"], d["mesh"]["shape"]),
            "function": d["function"]["structure"][:12],
            **{key: d["options"][key] for key in ("profile", "memory_budget_bytes", "planner")},
        }
        for d in (first, second)
    )
    for name, a in of_first.items():
        if a != of_second[name]:
            yield Difference("option", name, "", str(a), str(of_second[name]), 0.0, 0)


def _entries(kind: str, first: Document, second: Document) -> Iterator[Difference]:
    """Arguments or operators of either plan that differ."""
    peak = first["estimate"]["peak_unit"]
    documents = first[f"{kind}s"], second[f"{kind}s"]
    for key in dict.fromkeys(itertools.chain(*documents)):
        pair = [entries.get(key) for entries in documents]
        known = [entry for entry in pair if entry is not None]
        if len(known) == 2 and _choice(known[0]) == _choice(known[1]):
            continue
        name, source = key, ""
        if kind == "operator":
            name = "{unit} {opcode} ({phase})".format(**known[0])
            source = known[0]["source"]
        missing = {0: "only in second", 1: "only in first"}
        what = kind if len(known) == 2 else missing[pair.index(None)]
        a, b = ("" if entry is None else _entry_text(entry) for entry in pair)
        seconds = [sum((entry or {}).get("seconds", {}).values()) for entry in pair]
        held = [0 if entry is None else held_bytes(entry, peak, with_copies=True) for entry in pair]
        changes = seconds[1] - seconds[0], held[1] - held[0]
        yield Difference(what, name, source, a, b, *changes)


def _choice(entry: Document) -> object:
    """A plan's decision for an argument or an operator."""
    if "reads" not in entry:
        return entry["sharding"]
    known = tuple(entry[key] for key in ("reads", "results", "recompute_at", "kept_reads"))
    return (*known, entry.get("fetch_at"), entry.get("kept_reads_again"))


def _entry_text(entry: Document) -> str:
    if "reads" not in entry:
        return layout_text(entry["sharding"])
    reads, results = (" ".join(map(layout_text, entry[key])) for key in ("reads", "results"))
    said = residency_text(entry)
    again = "" if said == "kept" else f", {said}"
    is_kept = entry["kept_reads"] or entry.get("kept_reads_again")
    kept = ", of a kept copy" if is_kept else ""
    return f"{reads}{kept} -> {results}{again}"


def _total(name: str, *values: float | None) -> tuple[str, ...]:
    """A row: its name, its figures, and their difference."""
    formatted = format_bytes if name.endswith("_bytes") else format_seconds
    known = [value for value in values if value is not None]
    figures = ["-" if value is None else formatted(value) for value in values]
    change = signed(formatted, known[1] - known[0]) if len(known) == 2 else ""
    return (name.removesuffix("_seconds").removesuffix("_bytes"), *figures, change)


def ranked(differences: Sequence[Difference]) -> list[Difference]:
    """Differences in order: options and arguments first, then operators by the size of
    the change."""
    order = {"option": 0, "argument": 1}
    return sorted(
        differences,
        key=lambda d: (order.get(d.kind, 2), -abs(d.change_seconds), -abs(d.change_bytes)),
    )


def _listing(differences: Sequence[Difference]) -> str:
    rows = [
        (
            d.kind,
            d.name,
            d.source.split(" ")[0],
            d.first,
            d.second,
            signed(format_seconds, d.change_seconds) if d.change_seconds else "",
            signed(format_bytes, d.change_bytes) if d.change_bytes else "",
        )
        for d in ranked(differences)
    ]
    header = ("", "what", "source", "first", "second", "seconds", "at the peak")
    return f"{len(rows)} differences\n{table(header, rows, MOST_ROWS)}"
