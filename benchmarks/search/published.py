"""The best configuration on the chips of published steps, beside the published one.

    python -m benchmarks.search.published                    # all rows; recorded ones are kept
    python -m benchmarks.search.published --rows=llama2      # some

A search has the same model, batch and chips as the published step. Meshes of one and two axes,
shardings and recomputation are free, and host memory if the published step used it. The same
predictor prices both; nothing is compiled.
"""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from benchmarks.published.price import as_run, host_options, unsharded
from benchmarks.published.rows import PublishedStep, read
from benchmarks.search.spaces import JOBS
from benchmarks.tpu.book import Book, Row
from kiwi.plans.estimate import Estimate

_ROWS = flags.DEFINE_list("rows", [], "Only steps whose names contain one of these.")
_REDO = flags.DEFINE_list("redo", [], "Beginnings of names of steps that are searched again.")
_OUT = flags.DEFINE_string("out", "benchmarks/search/results/published.json", "Read and written.")

WORTH = 0.005
"""Differences smaller than this share of the published step are not named."""


def main(_: list[str]) -> None:
    """Searches the missing rows, and writes the table."""
    jax.config.update("jax_platforms", "cpu")
    book = Book(Path(_OUT.value), tuple(_REDO.value), module="benchmarks.search.published")
    for step in read():
        if not _ROWS.value or any(part in step.key for part in _ROWS.value):
            book.row(step.key, lambda step=step: searched(step))
    book.write_table("The best configuration on the chips of published steps", _lines(book.rows))


def searched(step: PublishedStep) -> Row:
    """Returns the row of a step."""
    published = as_run(step)
    result = kiwi.search(
        functools.partial(unsharded, step),
        devices=step.devices,
        batch_sizes=(step.batch,),
        most_axes=2,
        profile=step.chip,
        donate_argnums=0,
        verify=None,
        jobs=JOBS,
        **host_options(step),
    )
    best_estimate = result.best.estimate
    return {
        "published_mesh": ", ".join(f"{name} {size}" for name, size in step.axes.items()),
        "mesh": result.choice["mesh_shape"],
        "as_published": _parts(published),
        "searched": _parts(best_estimate),
        "gap": result.best_row.gap,
        "configurations": len(result.rows),
        "planned": sum(row.step_seconds is not None for row in result.rows),
        "search_seconds": result.seconds,
    }


def _parts(estimate: Estimate) -> dict[str, Any]:
    """Returns the step time with its parts: computation, recomputation, and communication that is
    waited for."""
    return {
        "step_seconds": estimate.step_seconds,
        "compute_seconds": estimate.compute_seconds,
        "recompute_seconds": estimate.recompute_seconds,
        "exposed_seconds": estimate.exposed_seconds,
        "peak_bytes": estimate.peak_bytes,
        "host_peak_bytes": estimate.host_peak_bytes,
    }


def _lines(rows: Mapping[str, Row]) -> Iterator[str]:
    pairs = [tuple(_seconds(row, k) for k in ("searched", "as_published")) for row in rows.values()]
    not_slower = sum(searched_seconds <= published for searched_seconds, published in pairs)
    yield f"{len(rows)} steps; predicted at least as fast as the published one: {not_slower}."
    yield ""
    yield "| step | published mesh | s | searched mesh | s | of it | gap | search s | why |"
    yield "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | --- |"
    for name, row in rows.items():
        searched_seconds, published = (_seconds(row, kind) for kind in ("searched", "as_published"))
        cells = [
            name,
            row["published_mesh"],
            f"{published:.2f}",
            "x".join(map(str, row["mesh"])),
            f"{searched_seconds:.2f}",
            f"{searched_seconds / published:.0%}",
            "" if row["gap"] is None else f"{row['gap']:.1%}",
            f"{row['search_seconds']:.0f}",
            why(row),
        ]
        yield f"| {' | '.join(cells)} |"


def _seconds(row: Row, kind: str) -> float:
    seconds: float = row[kind]["step_seconds"]
    return seconds


def why(row: Row) -> str:
    """Returns a sentence about the reasons of the difference."""
    searched, published = row["searched"], row["as_published"]
    own_work, work = (p["compute_seconds"] + p["recompute_seconds"] for p in (searched, published))
    differences = [
        _difference("computes", own_work - work, work, "recomputation included"),
        _difference(
            "waits for links", searched["exposed_seconds"] - published["exposed_seconds"], work
        ),
    ]
    parts = [difference for difference in differences if difference]
    host = searched["host_peak_bytes"]
    if host:
        parts.append(f"keeps {host / 2**30:.0f} GiB a device on the host")
    text = ", ".join(parts) or "takes the same for each part"
    return f"It {text}."


def _difference(verb: str, seconds: float, of_seconds: float, more: str = "") -> str:
    if abs(seconds) < WORTH * of_seconds:
        return ""
    statement = f"{verb} {abs(seconds):.2f} s {'less' if seconds < 0 else 'more'}"
    return f"{statement} ({more})" if more else statement


if __name__ == "__main__":
    app.run(main)
