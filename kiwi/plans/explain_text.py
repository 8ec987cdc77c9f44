"""Explanations of operators as text, from a plan's document."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kiwi.interval import Interval, bytes_at
from kiwi.mesh import TensorSharding
from kiwi.mesh.sharding import layout_text
from kiwi.messages import Note
from kiwi.plans.breakdown import PARTS
from kiwi.plans.document import Document
from kiwi.plans.plan_codec import axes
from kiwi.plans.summary import mesh_text, table
from kiwi.sizes import format_bytes, format_seconds

MOST_OPERATORS = 12
"""The summary of a saved plan lists this many operators, the costliest first."""

_FASTER = (
    "Faster than the plan: its search ended within its gap, or the compile check held it below "
    "the budget, which is not repeated here."
)


@dataclass(frozen=True)
class ForcedAlternative:
    """The result of solving the problem again with an operator pinned to one layout and residency.

    - `reads`, `results`, `recompute_at`, `fetch_at`: the pinned choice, as in
      `kiwi.problem.alternatives.Alternative`.
    - `alone_seconds`: the change of the step time if nothing else changed.
    - `step_seconds`, `peak_bytes`: the figures of the best plan found with the pin; None if none
      was found.
    - `bound_seconds`: a proven lower bound of the step time of plans with the pin. It does not
      count the time that kept copies of operands save (`kiwi.problem.kept_copies`).
    - `reason`: why no plan was found; "" if one was.
    """

    reads: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    recompute_at: int | None
    alone_seconds: float
    step_seconds: float | None
    peak_bytes: int | None
    bound_seconds: float
    reason: str = ""
    fetch_at: int | None = None


def find_in_document(document: Document, text: str) -> list[int]:
    """Returns the units that `text` matches, the costliest first. `text` is an index, an identity,
    or a part of the opcode, name stack or source line."""
    operators = document["operators"]
    if text.isdigit():
        return [int(text)] if int(text) < len(operators) else []
    matching = [
        operator
        for identity, operator in operators.items()
        if text == identity or any(text in operator[k] for k in ("opcode", "name_stack", "source"))
    ]
    return [operator["unit"] for operator in costliest_first(matching)]


def costliest_first(operators: Iterable[Document]) -> list[Document]:
    """Returns operators sorted by their seconds of all kinds together, the costliest first."""
    return sorted(
        operators, key=lambda operator: (-sum(operator["seconds"].values()), operator["unit"])
    )


def explanation_text(
    document: Document, unit: int, forced: Sequence[ForcedAlternative] = ()
) -> str:
    """Returns the explanation of one operator: its choice, the parts of its cost, its memory, its
    alternatives, and the options that were impossible."""
    operators = list(document["operators"].items())
    identity, operator = operators[unit]
    blocks = [
        _head(identity, operator),
        _operand_lines(document, operator),
        _costs(document, operator),
        _alternatives(document, operator),
        _forced(document, forced),
    ]
    if operator["excluded"]:
        blocks.append("Impossible:\n" + "\n".join(f"  {text}" for text in operator["excluded"]))
    return "\n\n".join(block for block in blocks if block)


def layouts(lists: Sequence[Any]) -> str:
    """Returns several layouts as text, separated by commas; "-" if there are none."""
    return ", ".join(map(layout_text, lists)) or "-"


def residency_text(operator: Document) -> str:
    """Returns "kept", or the operator before which an operator is recomputed or fetched."""
    if operator.get("fetch_at") is not None:
        return f"offloaded, fetched before operator {operator['fetch_at']}"
    if operator["recompute_at"] is None:
        return "kept"
    return f"recomputed before operator {operator['recompute_at']}"


def held_bytes(entry: Document, time: int, *, with_copies: bool = False) -> int:
    """Returns the bytes that an argument or operator holds at a point of time, with or without
    copies of operands."""
    spans = (*entry["held"], *(entry.get("copies", ()) if with_copies else ()))
    return bytes_at((Interval(*span) for span in spans), time)


def _head(identity: str, operator: Document) -> str:
    absorbed = f" with {len(operator['absorbed'])} fused" if operator["absorbed"] else ""
    return (
        f"Operator {operator['unit']}: {operator['opcode']}{absorbed}, {operator['phase']} "
        f"({identity})\n  {operator['source'] or 'no source line'}\n  {operator['name_stack']}"
    )


def _operand_lines(document: Document, operator: Document) -> str:
    producers = list(document["operators"].values())
    rows = []
    pairs = enumerate(zip(operator["operands"], operator["reads"], strict=True))
    for read, (name, wanted) in pairs:
        source, stored = name, None
        if name.startswith("#"):
            producer = producers[int(name[1:])]
            source = f"{name} {producer['opcode']}"
            stored = producer["results"][0] if len(producer["results"]) == 1 else None
        elif name in document["arguments"]:
            stored = document["arguments"][name]["sharding"]
        moved = (
            "" if stored is None or stored == wanted else f"resharded from {layout_text(stored)}"
        )
        copy = producers, operator["unit"], name, wanted
        if read in operator["kept_reads"]:
            moved = f"read from the copy of operator {_reader_before(*copy)}"
        if read in operator.get("kept_reads_again", ()):
            recomputed = _reader_before(*copy, is_again=True)
            moved += f"; when recomputed, read from the copy of operator {recomputed}"
        rows.append(("reads", source, layout_text(wanted), moved))
    for kind, result in zip(operator["types"], operator["results"], strict=True):
        rows.append(("yields", kind, layout_text(result), residency_text(operator)))
    return table(("", "value", "layout", ""), rows)


def _reader_before(
    operators: list[Document], unit: int, operand: str, wanted: Any, *, is_again: bool = False
) -> int:
    """Returns the last operator before `unit` that reads an operand in a layout, for the first
    computation of `unit` or, with `is_again`, for its recomputation."""
    runs = []
    for operator in operators:
        if (operand, wanted) in zip(operator["operands"], operator["reads"], strict=True):
            runs.append(((operator["unit"],), operator["unit"]))
            if operator["recompute_at"] is not None:  # The recomputation runs before that operator.
                runs.append(((operator["recompute_at"] - 1, operator["unit"]), operator["unit"]))
    unit_run = [at for at, reader in runs if reader == unit][is_again]
    return max((at, reader) for at, reader in runs if at < unit_run)[1]


def _costs(document: Document, operator: Document) -> str:
    total = document["estimate"]["step_seconds"]
    seconds = operator["seconds"]
    parts = ", ".join(f"{kind} {format_seconds(seconds[kind])}" for kind in PARTS)
    spent = sum(seconds.values())
    held = held_bytes(operator, document["estimate"]["peak_unit"])
    return (
        f"Costs {format_seconds(spent)}, {spent / max(total, 1e-30):.2%} of the step: {parts}\n"
        f"Yields {format_bytes(operator['bytes'])} per device, of which "
        f"{format_bytes(held)} are alive at the peak"
    )


def _alternatives(document: Document, operator: Document) -> str:
    if not operator["alternatives"]:
        count = operator["option_count"]
        return f"No other option of {count} goes with what its neighbours chose."
    rows = [
        (
            layouts(alternative["reads"]),
            layouts(alternative["results"]),
            _residency(alternative["recompute_at"], alternative.get("fetch_at")),
            signed(format_seconds, alternative["change_seconds"]),
            signed(format_bytes, alternative["change_bytes"]),
        )
        for alternative in operator["alternatives"]
    ]
    head = f"Nearest of {operator['option_count']} options, if nothing else changed:\n"
    return head + table(("reads", "yields", "", "step", "at the peak"), rows)


def _forced(document: Document, forced: Sequence[ForcedAlternative]) -> str:
    if not forced:
        return ""
    names = document["mesh"]["axis_names"]
    total = document["estimate"]["step_seconds"]
    rows = []
    for alternative in forced:
        reads, results = (
            layouts([axes(sharding, names) for sharding in shardings])
            for shardings in (alternative.reads, alternative.results)
        )
        figures = (alternative.reason, "", "")
        if alternative.step_seconds is not None and alternative.peak_bytes is not None:
            change = signed(format_seconds, alternative.step_seconds - total)
            figures = (
                format_seconds(alternative.step_seconds),
                change,
                format_bytes(alternative.peak_bytes),
            )
        rows.append(
            (reads, results, _residency(alternative.recompute_at, alternative.fetch_at), *figures)
        )
    header = ("reads", "yields", "", "step", "change", "peak")
    text = "If forced, with everything solved again:\n" + table(header, rows)
    if any(
        alternative.step_seconds is not None and alternative.step_seconds < total
        for alternative in forced
    ):
        text += "\n" + _FASTER
    return text


def _residency(recompute_at: int | None, fetch_at: int | None) -> str:
    if fetch_at is not None:
        return f"offload, fetch at {fetch_at}"
    return "keep" if recompute_at is None else f"recompute at {recompute_at}"


def signed(formatted: Callable[[float], str], change: float) -> str:
    """Returns a change as text, with its sign."""
    return ("+" if change >= 0 else "-") + formatted(abs(change))


def document_summary(document: Document) -> str:
    """Returns a summary of a saved plan in a few lines, with its costliest operators."""
    estimate, options, bounds = document["estimate"], document["options"], document["bounds"]
    mesh = mesh_text(document["mesh"]["axis_names"], document["mesh"]["shape"])
    gap = "no bound" if bounds["gap"] is None else f"gap {bounds['gap']:.2%}"
    checks = document["checks"]
    compiled = "not" if checks is None else format_bytes(checks["peak_bytes"])
    parts = ", ".join(f"{kind} {format_seconds(estimate[f'{kind}_seconds'])}" for kind in PARTS)
    operators = costliest_first(document["operators"].values())
    rows = [
        (
            str(operator["unit"]),
            operator["opcode"],
            operator["phase"],
            operator["source"].split(" ")[0],
            layouts(operator["results"]),
            operator["residency"],
            format_seconds(sum(operator["seconds"].values())),
            format_bytes(operator["bytes"]),
        )
        for operator in operators[:MOST_OPERATORS]
    ]
    header = ("", "operator", "phase", "source", "sharding", "residency", "time", "bytes")
    return "\n".join(
        [
            f"{document['function']['name']} on {options['profile']} ({mesh}), budget "
            f"{format_bytes(options['memory_budget_bytes'])}, planner {options['planner']}",
            f"{bounds['status']} ({gap}), jax {document['jax']}",
            f"Step {format_seconds(estimate['step_seconds'])}: {parts}",
            f"Peak {format_bytes(estimate['peak_bytes'])} estimated, {compiled} compiled",
            "",
            f"Costliest of {len(operators)} operators (--op explains one):",
            table(header, rows),
            *(Note.of_plain(note).line for note in document["notes"]),
        ]
    )
