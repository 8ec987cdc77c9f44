"""The differences between two plans, and the cost of each.

Operators are matched by identity (`kiwi.plans.fingerprint`) and arguments by path. So plans for two
versions of a function can be compared as well.
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
"""A listing shows this many differences, and the number of the others."""


@dataclass(frozen=True)
class Difference:
    """One difference between two plans. Changes are the second plan's figure minus the first's.

    - `kind`: "option", "argument", "operator", "only in first" or "only in second".
    - `first`, `second`: the choice in each plan, as text.
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
    """Two plans side by side.

    - `totals`: triples (name, figure of the first plan, figure of the second plan).
    - `differences`: the differences between the plans' decisions.
    """

    totals: tuple[tuple[str, float | None, float | None], ...]
    differences: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        """Whether both plans make the same decisions for the same function."""
        return not self.differences

    def __str__(self) -> str:
        text = table(("", "first", "second", "change"), [_total(*total) for total in self.totals])
        listing = "The plans decide the same." if self.same else _listing(self.differences)
        return f"{text}\n\n{listing}"


def diff(first: Document, second: Document) -> PlanDifference:
    """Compares two plans' documents and returns their differences."""
    differing = [*_options(first, second)]
    for kind in ("argument", "operator"):
        differing += _entries(kind, first, second)
    parts = (f"{part}_seconds" for part in PARTS)
    names = ("step_seconds", *parts, "hidden_seconds", "peak_bytes", "host_peak_bytes")
    found_of = lambda document, name: document["estimate"].get(name, 0.0)  # noqa: E731
    rows = [(name, found_of(first, name), found_of(second, name)) for name in names]
    rows = [row for row in rows if row[0] != "host_peak_bytes" or any(row[1:])]
    checked = [(compared.get("checks") or {}).get("peak_bytes") for compared in (first, second)]
    totals = (*rows, ("compiled_peak_bytes", checked[0], checked[1]))
    return PlanDifference(totals, tuple(differing))


def _options(first: Document, second: Document) -> Iterator[Difference]:
    of_first, of_second = (
        {
            "mesh": mesh_text(document["mesh"]["axis_names"], document["mesh"]["shape"]),
            "function": document["function"]["structure"][:12],
            **{
                key: document["options"][key]
                for key in ("profile", "memory_budget_bytes", "planner")
            },
        }
        for document in (first, second)
    )
    for name, first_option in of_first.items():
        if first_option != of_second[name]:
            yield Difference("option", name, "", str(first_option), str(of_second[name]), 0.0, 0)


def _entries(kind: str, first: Document, second: Document) -> Iterator[Difference]:
    """Yields the arguments or operators of either plan that differ."""
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
        shown_kind = kind if len(known) == 2 else missing[pair.index(None)]
        first_text, second_text = ("" if entry is None else _entry_text(entry) for entry in pair)
        seconds = [sum((entry or {}).get("seconds", {}).values()) for entry in pair]
        held = [0 if entry is None else held_bytes(entry, peak, with_copies=True) for entry in pair]
        changes = seconds[1] - seconds[0], held[1] - held[0]
        yield Difference(shown_kind, name, source, first_text, second_text, *changes)


def _choice(entry: Document) -> object:
    """Returns a plan's decision for an argument or an operator, for comparisons."""
    if "reads" not in entry:
        return entry["sharding"]
    known = tuple(entry[key] for key in ("reads", "results", "recompute_at", "kept_reads"))
    return (*known, entry.get("fetch_at"), entry.get("kept_reads_again"))


def _entry_text(entry: Document) -> str:
    if "reads" not in entry:
        return layout_text(entry["sharding"])
    reads, results = (" ".join(map(layout_text, entry[key])) for key in ("reads", "results"))
    residency = residency_text(entry)
    again = "" if residency == "kept" else f", {residency}"
    is_kept = entry["kept_reads"] or entry.get("kept_reads_again")
    copy_text = ", of a kept copy" if is_kept else ""
    return f"{reads}{copy_text} -> {results}{again}"


def _total(name: str, *values: float | None) -> tuple[str, ...]:
    """Returns a row of the table: the name, the two figures, and their difference."""
    formatted = format_bytes if name.endswith("_bytes") else format_seconds
    known = [value for value in values if value is not None]
    figures = ["-" if value is None else formatted(value) for value in values]
    change = signed(formatted, known[1] - known[0]) if len(known) == 2 else ""
    return (name.removesuffix("_seconds").removesuffix("_bytes"), *figures, change)


def ranked(differences: Sequence[Difference]) -> list[Difference]:
    """Returns the differences in order: options and arguments first, then operators by the size of
    the change of their seconds."""
    order = {"option": 0, "argument": 1}
    return sorted(
        differences,
        key=lambda difference: (
            order.get(difference.kind, 2),
            -abs(difference.change_seconds),
            -abs(difference.change_bytes),
        ),
    )


def _listing(differences: Sequence[Difference]) -> str:
    rows = [
        (
            difference.kind,
            difference.name,
            difference.source.split(" ")[0],
            difference.first,
            difference.second,
            signed(format_seconds, difference.change_seconds) if difference.change_seconds else "",
            signed(format_bytes, difference.change_bytes) if difference.change_bytes else "",
        )
        for difference in ranked(differences)
    ]
    header = ("", "what", "source", "first", "second", "seconds", "at the peak")
    return f"{len(rows)} differences\n{table(header, rows, MOST_ROWS)}"
