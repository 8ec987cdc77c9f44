"""The largest batch of models, as compiled, and who refuses one sample more.

    python -m benchmarks.search.largest                          # what is missing
    python -m benchmarks.search.largest --targets=cpu --models=mlp,gpt

Small models on two CPU devices, larger ones on four v5es or H100s by their compilers. The budget is
1.5 times the peak of a batch of eight.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from absl import app, flags

import kiwi
from benchmarks.fidelity.models import MODELS as FIDELITY
from benchmarks.fidelity.models import Model
from benchmarks.tpu.book import Book, Row
from examples import convnet, gpt, llama, mlp, vit
from kiwi.loading import use_cpu_devices

_LLAMA = llama.LlamaConfig(2, 1024, 2816, 16, 8, 8, 512, 4096)
LARGER: Mapping[str, Model] = {
    **{name: FIDELITY[name] for name in ("mlp", "gpt", "vit", "convnet")},
    "llama": Model(llama, _LLAMA),
}
SMALL: Mapping[str, Model] = {
    name: Model(module, module.SIZES["tiny"])
    for name, module in (
        ("mlp", mlp),
        ("gpt", gpt),
        ("vit", vit),
        ("convnet", convnet),
        ("llama", llama),
    )
}
TARGETS: Mapping[str, tuple[Mapping[str, Model], dict[str, Any]]] = {
    "cpu": (SMALL, {"mesh_shape": (2,), "profile": "cpu", "verify": "cpu"}),
    "v5e": (LARGER, {"mesh_shape": (4,), "profile": "v5e", "verify": "tpu"}),
    "h100-sxm": (LARGER, {"mesh_shape": (4,), "profile": "h100-sxm", "verify": "cuda"}),
}
ROOM = 1.5
"""The budget, in parts of the peak of a batch of eight."""

_TARGETS = flags.DEFINE_list("targets", list(TARGETS), "Profiles, each by its own compiler.")
_MODELS = flags.DEFINE_list("models", list(SMALL), "Which ones.")
_REDO = flags.DEFINE_list("redo", [], "Beginnings of names of rows that are searched again.")
_OUT = flags.DEFINE_string("out", "benchmarks/search/results/largest.json", "Read and written.")


def main(_: list[str]) -> None:
    """Searches what is missing."""
    use_cpu_devices(2)
    book = Book(Path(_OUT.value), tuple(_REDO.value), module="benchmarks.search.largest")
    for target in _TARGETS.value:
        for name in _MODELS.value:
            models, options = TARGETS[target]
            book.row(f"{name} {target}", lambda m=models[name], o=options: _row(m, o))
    book.write_table("The largest batch that fits", _lines(book.rows))


def make_step(model: Model, batch_size: int) -> tuple[Any, tuple[Any, ...]]:
    """The step of a model on another batch, and its arguments as shapes."""
    module, config = model.module, replace(model.config, batch=batch_size)
    args = module.abstract_state(config), module.abstract_batch(config)
    return module.make_train_step(config), args


def _row(model: Model, target: Mapping[str, Any]) -> Row:
    options = {**target, "donate_argnums": 0}
    maker = functools.partial(make_step, model)
    function, args = maker(batch_size=8)
    free = kiwi.plan(function, *args, effort="quick", **options)
    budget = int(ROOM * free.peak_bytes)
    found = kiwi.largest_batch(maker, memory_budget=budget, **options)
    assert found.plan.compiled is not None
    return {
        "budget_bytes": budget,
        "batch_size": found.batch_size,
        "compiled_peak_bytes": found.plan.compiled.peak_bytes,
        "next_batch": found.next_batch,
        "refused_by": found.proof,
        "refusal": found.refusal.what,
        "tried": len(found.tried),
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
