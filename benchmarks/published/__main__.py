"""Predicts the missing rows; see `benchmarks.published`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

import jax
from absl import app, flags

from benchmarks.published.price import priced
from benchmarks.published.rows import GIVEN, read
from benchmarks.tpu.book import Book, Row

_DATA = flags.DEFINE_string("data", str(GIVEN), "Rows with the columns of the shipped file.")
_OUT = flags.DEFINE_string("out", "benchmarks/published/results/steps.json", "Read and written.")
_ROWS = flags.DEFINE_list("rows", [], "Only rows whose names contain one of these.")
_REDO = flags.DEFINE_list("redo", [], "Beginnings of names of rows that are predicted again.")
_EFFORT = flags.DEFINE_string("effort", "quick", "Of free plans.")


def main(_: list[str]) -> None:
    """Predicts the missing rows, and writes the table."""
    jax.config.update("jax_platforms", "cpu")
    book = Book(Path(_OUT.value), tuple(_REDO.value), module="benchmarks.published")
    for step in read(Path(_DATA.value)):
        if not _ROWS.value or any(part in step.key for part in _ROWS.value):
            book.row(step.key, lambda step=step: priced(step, _EFFORT.value))
    book.write_table("Published steps, as they were run and planned freely", _lines(book.rows))


def _lines(rows: Mapping[str, Row]) -> Iterator[str]:
    errors = [abs(_error(row)) for row in rows.values()]
    yield (
        f"{len(rows)} steps, error of the prediction: median {median(errors):.1%}, "
        f"worst {max(errors):.1%}."
    )
    yield ""
    yield "| step | published s | predicted s | error | exposed s | own plan s | gap |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for name, row in rows.items():
        free, gap = row["free_seconds"], row.get("free_gap")
        cells = [
            name,
            f"{row['published_seconds']:.2f}",
            f"{row['predicted_seconds']:.2f}",
            f"{_error(row):+.0%}",
            f"{row['exposed_seconds']:.2f}",
            "none" if free is None else f"{free:.2f}",
            "" if gap is None else f"{gap:.1%}",
        ]
        yield f"| {' | '.join(cells)} |"


def _error(row: Row) -> float:
    return row["predicted_seconds"] / row["published_seconds"] - 1


if __name__ == "__main__":
    app.run(main)
