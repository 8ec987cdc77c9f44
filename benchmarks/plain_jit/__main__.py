"""Planned steps without a budget against plain `jax.jit`, in turns, on 8 virtual CPU devices.

    python -m benchmarks.plain_jit --models=llama,convnet

"same" is `jax.jit` with the plan's shardings of arguments and results, between which XLA propagates
shardings. "data" is a usual first version: the state on every device, and the batch divided. Each
turn runs one step of each program. The ratios of medians and of minima are written into `results`
after each model. Plans are made for the shipped profile of two server cores.
"""

import datetime
import json
import math
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np
from absl import app, flags

import kiwi
from benchmarks.emission.variants import plain_step
from benchmarks.fidelity.models import Model
from benchmarks.provenance import commit
from benchmarks.timed_step import timed_step
from examples import (
    convnet,
    encoder,
    encoder_decoder,
    gpt,
    llama,
    lstm,
    mlp,
    moe,
    state_space,
    unet,
    vit,
)
from kiwi.plans.record import place_leaves

MESH_SHAPE = (2, 4)

MODELS: Mapping[str, Model] = {
    "mlp": Model(mlp, mlp.MlpConfig(layers=4, width=512, batch=2048, optimizer="adam")),
    "gpt": Model(gpt, gpt.GptConfig(2, 256, 8, batch=16, sequence=128, vocabulary=1024)),
    "encoder": Model(encoder, encoder.EncoderConfig(2, 256, 8, batch=16, sequence=128)),
    "encoder_decoder": Model(
        encoder_decoder,
        encoder_decoder.EncoderDecoderConfig(1, 256, 8, batch=16, sequence=128, vocabulary=1024),
    ),
    "vit": Model(vit, vit.VitConfig(2, 256, 8, batch=16, image=96, patch=8, classes=64)),
    "convnet": Model(convnet, convnet.ConvnetConfig((32, 64, 128), image=32, batch=64)),
    "unet": Model(unet, unet.UnetConfig((16, 32, 64), image=64, batch=16)),
    "moe": Model(moe, moe.MoeConfig(1, 256, 8, batch=16, sequence=128)),
    "lstm": Model(lstm, lstm.LstmConfig(2, 256, batch=64, sequence=32)),
    "state_space": Model(state_space, state_space.StateSpaceConfig(2, 256, batch=16, sequence=128)),
    "llama": Model(llama, llama.LlamaConfig(2, 256, 704, 8, 8, 16, 128, 1024)),
}

_MODELS = flags.DEFINE_list("models", list(MODELS), "Models of this file.")
_TURNS = flags.DEFINE_integer("turns", 15, "Steps of each program.")
_OUT = flags.DEFINE_string("out", "benchmarks/plain_jit/results.json", "Results; .md lies beside.")


def main(_: list[str]) -> None:
    """Measures the models one after the other."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", math.prod(MESH_SHAPE))
    out = Path(_OUT.value)
    rows = json.loads(out.read_text())["rows"] if out.exists() else {}
    for name in _MODELS.value:
        rows[name] = _row(MODELS[name])
        print(name, rows[name], flush=True)
        out.write_text(json.dumps({"environment": _environment(), "rows": rows}, indent=1) + "\n")
        out.with_suffix(".md").write_text(markdown(rows))


def _row(model: Model) -> dict[str, float]:
    function = model.module.make_train_step(model.config)
    state = model.module.abstract_state(model.config)
    batch = model.module.abstract_batch(model.config)
    options = {"profile": "cpu-2-cores", "verify": "cpu", "donate_argnums": 0}
    plan = kiwi.plan(function, state, batch, mesh_shape=MESH_SHAPE, **options)
    count = len(jax.tree.leaves(state))
    runs = _programs(plan, model).items()
    programs = {name: timed_step(run, leaves, count) for name, (run, leaves) in runs}
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(_TURNS.value + 1):
        for name, step in programs.items():
            seconds = step()
            if turn:
                taken[name].append(seconds)
    return {
        **{f"{name}_seconds": median(seconds) for name, seconds in taken.items()},
        **{f"{name}_least_seconds": min(seconds) for name, seconds in taken.items()},
        "predicted_seconds": plan.estimate.step_seconds,
    }


def _programs(plan: kiwi.Plan, model: Model) -> dict[str, tuple[Any, list[Any]]]:
    """Returns, by name, a jitted function of leaves and its arguments."""
    mesh = plan.mesh.jax_mesh()
    function = model.module.make_train_step(model.config)
    abstract = (
        model.module.abstract_state(model.config),
        model.module.abstract_batch(model.config),
    )
    leaves = [_draw(leaf) for leaf in jax.tree.leaves(abstract)]
    planned_shardings = plan.leaf_shardings(mesh)
    specs = model.module.data_parallel_specs(abstract[0], mesh.axis_names)
    is_spec = lambda leaf: isinstance(leaf, jax.sharding.PartitionSpec)  # noqa: E731
    batch = [specs.batch] * len(jax.tree.leaves(abstract[1]))
    data_shardings = [
        jax.sharding.NamedSharding(mesh, spec)
        for spec in (*jax.tree.leaves(specs.state, is_leaf=is_spec), *batch)
    ]

    def flat(*given: Any) -> list[Any]:
        return jax.tree.leaves(function(*jax.tree.unflatten(jax.tree.structure(abstract), given)))

    count = len(data_shardings) - len(batch)
    data = jax.jit(flat, donate_argnums=tuple(range(count)))
    return {
        "planned": (plan.jit(mesh), place_leaves(leaves, planned_shardings)),
        "same": (plain_step(plan, function).jit(mesh), place_leaves(leaves, planned_shardings)),
        "data": (data, place_leaves(leaves, data_shardings)),
    }


def _draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
    if np.issubdtype(leaf.dtype, np.integer):
        return np.zeros(leaf.shape, leaf.dtype)
    drawn = np.random.default_rng(leaf.size).normal(0, 0.02, leaf.shape)
    return np.abs(drawn).astype(leaf.dtype)  # Second moments must not be negative.


def markdown(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Returns a table of the ratios of medians and of minima."""
    lines = [
        "| model | planned, ms | over same | minima | over data | minima |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    names = [f"{by}_{kind}" for by in ("same", "data") for kind in ("seconds", "least_seconds")]
    ratios = {
        model: [row["planned_" + name.split("_", 1)[1]] / row[name] for name in names]
        for model, row in rows.items()
    }
    for model, row in rows.items():
        cells = " | ".join(f"{ratio:.2f}" for ratio in ratios[model])
        lines.append(f"| {model} | {1e3 * row['planned_seconds']:.1f} | {cells} |")
    medians = " | ".join(f"{median(column):.2f}" for column in zip(*ratios.values(), strict=True))
    return "\n".join([*lines, f"| median | | {medians} |"]) + "\n"


def _environment() -> dict[str, Any]:
    return {
        "command": "python -m benchmarks.plain_jit",
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "turns": _TURNS.value,
        **{name: metadata.version(name) for name in ("jax", "jaxlib")},
    }


if __name__ == "__main__":
    app.run(main)
