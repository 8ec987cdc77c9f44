"""The largest batch of models, as compiled, and what refuses the next larger one.

    python -m benchmarks.search.largest                          # what is missing
    python -m benchmarks.search.largest --targets=cpu --models=mlp,gpt

The models are the smallest sizes of five examples, on two CPU devices, four v5es and four H100s,
each with its own compiler. The budget is 1.5 times the peak of a batch of eight.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from absl import app, flags

import kiwi
from benchmarks.tpu.book import Book, Row
from examples import convnet, gpt, llama, mlp, vit
from kiwi.loading import use_cpu_devices

MODELS: Mapping[str, Any] = {
    "mlp": mlp,
    "gpt": gpt,
    "vit": vit,
    "convnet": convnet,
    "llama": llama,
}
TARGETS: Mapping[str, dict[str, Any]] = {
    "cpu": {"mesh_shape": (2,), "profile": "cpu", "verify": "cpu"},
    "v5e": {"mesh_shape": (4,), "profile": "v5e", "verify": "tpu"},
    "h100-sxm": {"mesh_shape": (4,), "profile": "h100-sxm", "verify": "cuda"},
}
ROOM = 1.5
"""The budget, as a multiple of the peak of a batch of eight."""

_TARGETS = flags.DEFINE_list("targets", list(TARGETS), "Profiles, each by its own compiler.")
_MODELS = flags.DEFINE_list("models", list(MODELS), "Which ones.")
_REDO = flags.DEFINE_list("redo", [], "Beginnings of names of rows that are searched again.")
_OUT = flags.DEFINE_string("out", "benchmarks/search/results/largest.json", "Read and written.")


def main(_: list[str]) -> None:
    """Searches the missing rows, and writes the table."""
    use_cpu_devices(2)
    book = Book(Path(_OUT.value), tuple(_REDO.value), module="benchmarks.search.largest")
    for target in _TARGETS.value:
        for name in _MODELS.value:
            model, options = MODELS[name], TARGETS[target]
            book.row(f"{name} {target}", lambda m=model, o=options: _row(m, o))
    book.write_table("The largest batch that fits", _lines(book.rows))


def make_step(model: Any, batch_size: int) -> tuple[Any, tuple[Any, ...]]:
    """Returns the step of an example with another batch size, and its arguments as shapes."""
    config = replace(model.SIZES["tiny"], batch=batch_size)
    args = model.abstract_state(config), model.abstract_batch(config)
    return model.make_train_step(config), args


def _row(model: Any, target: Mapping[str, Any]) -> Row:
    options = {**target, "donate_argnums": 0}
    maker = functools.partial(make_step, model)
    function, args = maker(batch_size=8)
    free = kiwi.plan(function, *args, effort="quick", **options)
    budget = int(ROOM * free.peak_bytes)
    largest = kiwi.largest_batch(maker, memory_budget=budget, **options)
    assert largest.plan.compiled is not None
    return {
        "budget_bytes": budget,
        "batch_size": largest.batch_size,
        "compiled_peak_bytes": largest.plan.compiled.peak_bytes,
        "next_batch": largest.next_batch,
        "refused_by": largest.proof,
        "refusal": largest.refusal.what,
        "tried": len(largest.tried),
    }


def _lines(rows: Mapping[str, Row]) -> Iterator[str]:
    yield "| model | budget MiB | batch | compiled MiB | tried | refused | by | |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |"
    for name, row in rows.items():
        budget, peak = (row[f"{kind}_bytes"] / 2**20 for kind in ("budget", "compiled_peak"))
        cells = [name, f"{budget:.3g}", row["batch_size"], f"{peak:.3g}", row["tried"]]
        cells += [row["next_batch"], row["refused_by"], row["refusal"]]
        yield f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    app.run(main)
