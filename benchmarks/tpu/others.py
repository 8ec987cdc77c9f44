"""Models that no rule of Kiwi was written for: predicted, and compiled by XLA:TPU.

The models are Llamas of this project's examples, in bfloat16, and models as their libraries write
them, at sizes at which activations matter. They are planned for one v5e and for eight, free and at
60 % of the free plan's compiled peak. Needs the packages of
`benchmarks.models_of_libraries.PACKAGES`.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

import jax

from benchmarks.fidelity.summary import peak_error
from benchmarks.models_of_libraries import TUNIX, example
from benchmarks.tpu.book import Book, Row
from benchmarks.tpu.programs import TrainingStep, of_module
from examples import gpt, llama
from examples.baselines import UNLIMITED

_GPT = {"layers": 4, "width": 512, "heads": 8, "batch": 32, "sequence": 512, "vocabulary": 8192}
_LLAMA = llama.LlamaConfig(4, 1024, 2816, 16, 8, 8, 1024, 16384, scanned=False)

SIZES: Mapping[str, Mapping[str, Any]] = {
    "flax_nnx_gpt": _GPT,
    "flax_linen_gpt": _GPT,
    "equinox_vit": {
        "layers": 4,
        "width": 512,
        "heads": 8,
        "batch": 64,
        "image": 128,
        "patch": 8,
    },
    "mixed_precision": {"model": gpt.GptConfig(**_GPT, dtype="bfloat16")},
    **{
        name: {"layers": 4, "width": 512, "batch": 32, "sequence": 512, "vocabulary": 8192}
        for name in TUNIX
    },
    "haiku_gpt": _GPT,
    "numpyro_vae": {"pixels": 64 * 64 * 3, "hidden": 8192, "latent": 256, "batch": 16384},
    "e3nn_molecules": {
        "layers": 4,
        "channels": 64,
        "molecules": 64,
        "nodes": 64,
        "neighbours": 16,
    },
}
"""The fields that differ from the size "tiny"."""

NAMES = ("llama", "llama_scanned", *SIZES)
MESH_SHAPES = ((1, 1), (2, 4))
SHARES = (None, 60)
"""Budgets, in % of the free compiled peak. None is the free plan."""


def measure(book: Book, names: Iterable[str], seconds: float) -> None:
    """Measures the missing rows."""
    for name, shape, share in itertools.product(names, MESH_SHAPES, SHARES):
        key = f"{name} {'x'.join(map(str, shape))}"
        free = book.rows.get(f"{key} free", {}).get("compiled_peak_bytes")
        budget = None if share is None or free is None else share * int(free) // 100
        measured = functools.partial(_row, name, shape, budget, seconds)
        book.row(f"{key} {share or 'free'}", measured)


def table(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yields the lines of the table, with one row for each plan, and the median and the worst
    error."""
    yield "| plan | budget MiB | predicted MiB | compiled MiB | error | |"
    yield "| --- | ---: | ---: | ---: | ---: | --- |"
    for key, row in rows.items():
        sizes = ("budget_bytes", "predicted_peak_bytes", "compiled_peak_bytes")
        cells = ["" if row[s] is None else f"{row[s] / 2**20:,.0f}" for s in sizes]
        met = "" if row["is_met"] else "nearest plan"
        yield f"| {key} | {' | '.join(cells)} | {peak_error(row):+.1%} | {met} |"
    errors = sorted(abs(error) for row in rows.values() if (error := peak_error(row)) is not None)
    yield f"| median, worst | | | | {median(errors):.1%}, {errors[-1]:.1%} | |"


def _step(name: str) -> TrainingStep:
    if name.startswith("llama"):
        return of_module(llama, replace(_LLAMA, scanned=name.endswith("scanned")))
    module = example(name)
    config = replace(module.SIZES["tiny"], **SIZES[name])
    state = jax.eval_shape(lambda: module.make_state(config))
    batch = jax.eval_shape(lambda: module.make_batch(config))
    return TrainingStep(module.make_train_step(config), state, batch)


def _row(name: str, shape: tuple[int, ...], budget: int | None, seconds: float) -> Row:
    options = {"mesh_shape": shape, "profile": "v5e", "verify": "tpu"}
    limit = UNLIMITED if budget is None else budget
    plan, is_met = _step(name).nearest(limit, time_limit_seconds=seconds, **options)
    assert plan.compiled is not None
    return {
        "budget_bytes": budget,
        "predicted_peak_bytes": plan.estimate.peak_bytes,
        "compiled_peak_bytes": plan.compiled.peak_bytes,
        "recomputed_units": len(plan.execution.recomputed),
        "compilations": len(plan.rounds),
        "is_met": is_met,
    }
