"""Measures what is missing; see `benchmarks.host_memory`."""

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

from benchmarks.tpu.book import Book, Row
from benchmarks.tpu.programs import TrainingStep, of_module
from examples import gpt, llama
from kiwi.errors import BudgetNotMetError, KiwiError


def perceptron(*, is_scanned: bool) -> TrainingStep:
    """Layers of two products and two maps each."""
    layers, width, rows = 8, 8192, 32768

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ w) @ w.T)

    def loss(ws: Any, x: Any) -> jax.Array:
        if is_scanned:
            x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, ws)
        else:
            x = functools.reduce(layer, ws, x)
        return (x.astype(jnp.float32) ** 2).mean()

    def step(ws: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(ws, x)
        return jax.tree.map(jnp.subtract, ws, gradient), value

    square = jax.ShapeDtypeStruct((width, width), jnp.bfloat16)
    stacked = jax.ShapeDtypeStruct((layers, width, width), jnp.bfloat16)
    batch = jax.ShapeDtypeStruct((rows, width), jnp.bfloat16)
    return TrainingStep(step, stacked if is_scanned else [square] * layers, batch)


MODELS: Mapping[str, Callable[[], TrainingStep]] = {
    "mlp-scanned": lambda: perceptron(is_scanned=True),
    "mlp-unrolled": lambda: perceptron(is_scanned=False),
    "llama-scanned": lambda: of_module(
        llama, llama.LlamaConfig(8, 2048, 8192, 16, 16, 32, 1024, 8192)
    ),
    "gpt-unrolled": lambda: of_module(gpt, gpt.GptConfig(4, 2048, 16, 32, 1024)),
}
SHARES = (70, 50, 35)
OPTIONS = {"mesh_shape": (2, 4), "profile": "v5e", "verify": "tpu"}
HOST_BUDGET = "256GiB"

_NAMES = flags.DEFINE_list("models", list(MODELS), "Which ones.")
_EFFORT = flags.DEFINE_string("effort", "quick", "Of each search.")
_REDO = flags.DEFINE_list("redo", [], "Beginnings of keys of rows that are measured again.")
_OUT = flags.DEFINE_string("out", "benchmarks/host_memory/host_memory.json", "The rows.")


def main(_: list[str]) -> None:
    """Measures what is missing."""
    jax.config.update("jax_platforms", "cpu")
    book = Book(Path(_OUT.value), tuple(_REDO.value), "benchmarks.host_memory")
    for name in _NAMES.value:
        step = MODELS[name]()
        free = book.row(f"{name} free", lambda step=step: _row(step))
        for share in SHARES:
            budget = share * free["compiled_bytes"] // 100
            for host in (None, HOST_BUDGET):
                asked = {"memory_budget": budget, "host_memory_budget": host}
                key = f"{name} {share}%{' with host' if host else ''}"
                book.row(key, lambda step=step, asked=asked: _row(step, **asked))
    book.write_table("Plans with and without the host's memory", table(book.rows))


def _row(step: TrainingStep, **asked: Any) -> Row:
    try:
        plan = step.plan(effort=_EFFORT.value, **OPTIONS, **asked)
    except BudgetNotMetError as error:
        return {"refused_bytes": error.least_peak_bytes}
    except KiwiError as error:
        return {"refused_bytes": getattr(error, "least_peak_bytes", None)}
    assert plan.compiled is not None
    return {
        "budget_bytes": plan.memory_budget_bytes,
        "step_seconds": plan.estimate.step_seconds,
        "estimated_bytes": plan.estimate.peak_bytes,
        "compiled_bytes": plan.compiled.peak_bytes,
        "host_estimated_bytes": plan.estimate.host_peak_bytes,
        "host_compiled_bytes": plan.compiled.host_peak_bytes,
        "recompute_seconds": plan.estimate.recompute_seconds,
        "offload_seconds": plan.estimate.offload_seconds,
        **{f"{name}_operators": count for name, count in plan.residency_counts().items()},
    }


def table(rows: Mapping[str, Row]) -> Iterator[str]:
    """One line for each plan."""
    yield (
        "| plan | budget MiB | compiled | estimated | on the host, compiled | estimated | step ms "
        "| recomputed | offloaded |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for key, row in rows.items():
        if "refused_bytes" in row:
            least = row["refused_bytes"]
            known = "" if least is None else f"least found {least / 2**20:.0f}"
            yield f"| {key} | refused | {known} | | | | | | |"
            continue
        sizes = ("budget", "compiled", "estimated", "host_compiled", "host_estimated")
        cells = [f"{row[f'{name}_bytes'] / 2**20:.0f}" for name in sizes]
        counts = [row.get(f"{name}_operators", 0) for name in ("recompute", "offload")]
        step = f"{row['step_seconds'] * 1e3:.1f}"
        yield f"| {key} | {' | '.join(cells)} | {step} | {counts[0]} | {counts[1]} |"


if __name__ == "__main__":
    app.run(main)
