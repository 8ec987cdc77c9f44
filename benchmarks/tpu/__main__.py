"""Measures the missing rows; see `benchmarks.tpu`."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import jax
from absl import app, flags

from benchmarks.fidelity.models import MODELS
from benchmarks.tpu import (
    arrangements,
    big,
    check_cost,
    edges,
    generated,
    options,
    others,
    published,
)
from benchmarks.tpu.book import Book, Row
from benchmarks.tpu.programs import GROWING

_PROGRAMS = flags.DEFINE_list("programs", list(GROWING), "Of `edges`.")
_FIRST = flags.DEFINE_list("first", [], "Batches that bisections begin with: `mlp:64,gpt:128`.")
_MODELS = flags.DEFINE_list("models", list(MODELS), "Of `check_cost`, `arrangements`, `generated`.")
_OTHERS = flags.DEFINE_list("others", list(others.NAMES), "Models of `others`.")
_PLANNED = flags.DEFINE_list("planned", ["mlp", "gpt"], "Models of `options`.")
_SECONDS = flags.DEFINE_float("time_limit_seconds", 10.0, "For the solver, per plan.")
_REDO = flags.DEFINE_list("redo", [], "Beginnings of keys of rows that are measured again.")
_OUT = flags.DEFINE_string("out", "benchmarks/tpu/results", "A file for each measurement.")


def main(_: list[str]) -> None:
    """Runs the measurements, and writes their tables."""
    jax.config.update("jax_platforms", "cpu")
    for name in _MEASUREMENTS.value:
        book = Book(Path(_OUT.value) / f"{name}.json", tuple(_REDO.value))
        measure, table, title = _MEASURE[name]
        measure(book)
        book.write_table(title, table(book.rows))


def _edges(book: Book) -> None:
    firsts = {name: int(batch) for name, _, batch in (t.partition(":") for t in _FIRST.value)}
    edges.measure(book, _PROGRAMS.value, firsts, _SECONDS.value)


Measurement = tuple[Callable[[Book], None], Callable[[Mapping[str, Row]], Iterable[str]], str]
"""The function that measures, the function that makes the table, and the table's title."""

_MEASURE: Mapping[str, Measurement] = {
    "edges": (_edges, edges.table, "The largest batch that fits a v5e:2x4"),
    "published": (published.measure, published.table, "Published memory, rebuilt"),
    "options": (
        lambda book: options.measure(book, _PLANNED.value, _SECONDS.value),
        options.table,
        "Options of XLA:TPU: memory, and collectives that overlap",
    ),
    "arrangements": (
        lambda book: arrangements.measure(book, _MODELS.value, _SECONDS.value),
        arrangements.table,
        "Schedulers of XLA:TPU, and its heap",
    ),
    "check_cost": (
        lambda book: check_cost.measure(book, _MODELS.value, _SECONDS.value),
        check_cost.table,
        "What a check costs",
    ),
    "generated": (
        lambda book: generated.measure(book, _MODELS.value, _SECONDS.value),
        generated.table,
        "Code of XLA:TPU for plans",
    ),
    "others": (
        lambda book: others.measure(book, _OTHERS.value, _SECONDS.value),
        others.table,
        "Models that no rule was made after",
    ),
    "big": (
        lambda book: big.measure(book, _SECONDS.value),
        big.table,
        "Llamas on whole slices",
    ),
}

_MEASUREMENTS = flags.DEFINE_list("measurements", list(_MEASURE), "Which ones.")


if __name__ == "__main__":
    app.run(main)
