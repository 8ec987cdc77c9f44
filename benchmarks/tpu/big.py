"""Llamas of 8 and 70 billion parameters on whole slices: planned and checked on this machine."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.tpu.book import Book, Row
from benchmarks.tpu.programs import of_module
from examples import llama
from kiwi.errors import BudgetNotMetError


@dataclass(frozen=True)
class Slice:
    """A size of `examples.llama` on a slice."""

    size: str
    profile: str
    topology: str
    mesh_shape: tuple[int, ...]
    budget: str


SLICES: Mapping[str, Slice] = {
    "8b-v5e": Slice("8b", "v5e", "16x16", (16, 16), "15GiB"),
    "70b-v6e": Slice("70b", "v6e", "16x16", (16, 16), "30GiB"),
    "70b-v5p": Slice("70b-large-batch", "v5p", "8x8x8", (64, 8), "60GiB"),
}


def measure(book: Book, seconds: float) -> None:
    """Measures the missing rows."""
    for name, chips in SLICES.items():
        book.row(name, lambda chips=chips: _row(chips, seconds))


def table(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yields the lines of the table, with one row for each slice. The errors are those of the first
    compiled program, which has XLA:TPU's own schedule, and of the plan's program."""
    yield (
        "| Llama | slice | budget | first GiB | error | plan GiB | compiled GiB | error | fits "
        "| programs | plan and check s | check s |"
    )
    yield "| --- | --- | --- |" + " ---: |" * 5 + " --- |" + " ---: |" * 3
    for row in rows.values():
        first, last = (
            (f"{row[p] / 2**30:.2f}", f"{row[c] / 2**30:.2f}", f"{row[p] / row[c] - 1:+.1%}")
            for p, c in (
                ("first_predicted_peak_bytes", "first_compiled_peak_bytes"),
                ("predicted_peak_bytes", "compiled_peak_bytes"),
            )
        )
        cells = [row["size"], f"{row['profile']}:{row['topology']}", row["budget"]]
        cells += [first[0], first[2], *last, "yes" if row["fits"] else "no"]
        cells += [str(row["compiled_programs"])]
        cells += [f"{row['planning_seconds']:.1f}", f"{row['check_seconds']:.1f}"]
        yield f"| {' | '.join(cells)} |"


def _row(chips: Slice, seconds: float) -> Row:
    step = of_module(llama, llama.SIZES[chips.size])
    options = {
        "mesh_shape": chips.mesh_shape,
        "profile": chips.profile,
        "topology": chips.topology,
        "memory_budget": chips.budget,
        "verify": "tpu",
        "time_limit_seconds": seconds,
    }
    started = time.monotonic()
    try:
        plan = step.plan(**options)
    except BudgetNotMetError as error:
        plan = error.plan
    taken = time.monotonic() - started
    assert plan.compiled is not None
    return {
        "size": chips.size,
        "profile": chips.profile,
        "topology": chips.topology,
        "budget": chips.budget,
        "fits": plan.fits,
        "first_predicted_peak_bytes": plan.rounds[0].predicted_peak_bytes,
        "first_compiled_peak_bytes": plan.rounds[0].compiled_peak_bytes,
        "predicted_peak_bytes": plan.estimate.peak_bytes,
        "compiled_peak_bytes": plan.compiled.peak_bytes,
        "compiled_programs": len(plan.rounds),
        "planning_seconds": round(taken, 1),
        "check_seconds": round(
            sum(planning_round.compile_seconds for planning_round in plan.rounds), 1
        ),
        "solve_seconds": round(
            sum(planning_round.solve_seconds for planning_round in plan.rounds), 1
        ),
    }
