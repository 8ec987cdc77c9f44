"""Models of google-tunix, planned as the library has them: their layers in a Python loop.

pip install --no-deps google-tunix safetensors qwix
python -m benchmarks.tunix_models --model=qwen3_0p6b       # without a limit, at 70 and at 50 %
python -m benchmarks.tunix_models --model=gemma_2b --lora=16

A model is a constructor of the library's `ModelConfig`: of Qwen3 (`qwen3_30b_a3b` is a mixture of
128 experts in a Python loop), Llama 3 (`llama3p2_1b`) or Gemma (`gemma_2b`, `gemma2_2b`). A step of
AdamW on 8 sequences of 1024 tokens, with donated parameters and state, all of them abstract arrays,
on (2, 4) H100s; Qwen3 in bfloat16, the others in float32, which they know only. With `--lora` qwix
puts matrices of that rank beside those of all layers, and these alone are trained. Plans are
checked on eight virtual CPU devices. Shares are of the compiled peak of the plan without a limit.
Prints a line for each plan, and writes them to `library_results/tunix.json` and `tunix.md`, in
which other models' rows stay.
"""

import dataclasses
import functools
import importlib
import importlib.util
import json
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from flax import nnx

import kiwi
from kiwi.sizes import format_bytes

_MODEL = flags.DEFINE_string("model", "qwen3_0p6b", "A constructor of tunix's ModelConfig.")
_LORA = flags.DEFINE_integer("lora", 0, "The rank of adapters; 0 trains all parameters.")
_LAYERS = flags.DEFINE_integer("layers", 0, "Layers; 0 for the model's own.")
_BATCH = flags.DEFINE_integer("batch", 8, "Sequences.")
_LENGTH = flags.DEFINE_integer("length", 1024, "Tokens of each.")
_SHARES = flags.DEFINE_list("shares", ["0.7", "0.5"], "Budgets.")
_SECONDS = flags.DEFINE_float("time_limit", 600.0, "Seconds for each search.")
_VERIFY = flags.DEFINE_string("verify", "cpu", "As of kiwi.plan; none for no check.")
_EQUAL = flags.DEFINE_bool("equal_layers", True, "As of kiwi.plan.")
_OUT = Path(__file__).parent / "library_results"

_CLASSES = {"qwen3": "Qwen3", "llama3": "Llama3", "gemma": "Gemma"}
_ADAPTED = ".*(_proj|_einsum)"
"""Matmuls of attention and of the feed-forward network, as the models call them."""


def library(family: str) -> Any:
    """The library's module of a model. Its packages import trainers and their data sets when
    they are imported, which models do not need: empty packages stand in for them."""
    found = _package()
    for name in ("tunix", f"tunix.models.{family}"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(found, *name.split(".")[1:])]
        sys.modules[name] = package
    return importlib.import_module(f"tunix.models.{family}.model")


@functools.cache
def _package() -> str:
    found = importlib.util.find_spec("tunix")
    if found is None or found.submodule_search_locations is None:
        sys.exit("pip install --no-deps google-tunix safetensors qwix")
    return found.submodule_search_locations[0]


def _abstract_model(name: str, layers: int, rank: int) -> Any:
    family = next(f for f in _CLASSES if name.startswith(f))
    module = library(family)
    config = getattr(module.ModelConfig, name)()
    known = {field.name for field in dataclasses.fields(config)}
    changes: dict[str, Any] = {"param_dtype": jnp.bfloat16, "dtype": jnp.bfloat16}
    changes |= {"num_layers": layers} if layers else {}
    config = dataclasses.replace(config, **{k: v for k, v in changes.items() if k in known})

    def make() -> Any:
        model = getattr(module, _CLASSES[family])(config, rngs=nnx.Rngs(0))
        return _adapted(model, rank) if rank else model

    return nnx.eval_shape(make)


def _adapted(model: Any, rank: int) -> Any:
    import qwix

    shape = 1, 16
    arguments = (
        jnp.zeros(shape, jnp.int32),
        jnp.broadcast_to(jnp.arange(shape[1]), shape),
        None,
        jnp.ones((*shape, shape[1]), bool),
    )
    provider = qwix.LoraProvider(module_path=_ADAPTED, rank=rank, alpha=2.0 * rank)
    return qwix.apply_lora_to_model(model, provider, *arguments, rngs=nnx.Rngs(1))


def training_step(
    name: str, layers: int, length: int, rank: int = 0
) -> tuple[Callable[..., Any], Any, Any, Any]:
    """The step, what is trained, the optimiser's state, and what stays as it is."""
    model = _abstract_model(name, layers, rank)
    graph, params, rest = nnx.split(model, nnx.LoRAParam if rank else nnx.Param, ...)
    optimiser = optax.adamw(1e-4)

    def loss(params: Any, rest: Any, tokens: jax.Array) -> jax.Array:
        shape = tokens.shape[0], length
        positions = jnp.broadcast_to(jnp.arange(length), shape)
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (*shape, length))
        logits, _ = nnx.merge(graph, params, rest)(tokens[:, :-1], positions, None, mask)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    def step(params: Any, state: Any, rest: Any, tokens: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, rest, tokens)
        updates, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, params, jax.eval_shape(optimiser.init, params), rest


def main(_: list[str]) -> None:
    """Plans without a limit and at shares of that plan's peak."""
    jax.config.update("jax_platforms", "cpu")
    step, *state = training_step(_MODEL.value, _LAYERS.value, _LENGTH.value, _LORA.value)
    tokens = jax.ShapeDtypeStruct((_BATCH.value, _LENGTH.value + 1), jnp.int32)
    free: int | None = None
    rows = []
    for share in ("free", *_SHARES.value):
        planned = kiwi.jit(  # traced anew: all that a user waits for is counted
            step,
            mesh_shape=(2, 4),
            profile="h100-sxm",
            memory_budget="1TiB" if free is None else int(float(share) * free),
            verify=None if _VERIFY.value == "none" else _VERIFY.value,
            donate_argnums=(0, 1),
            time_limit_seconds=_SECONDS.value,
            equal_layers=_EQUAL.value,
        )
        started, used = time.monotonic(), _processor_seconds()
        try:
            plan = planned.plan(*state, tokens)
        except kiwi.errors.KiwiError as error:
            print(f"{share}: {error}", flush=True)
            continue
        took = time.monotonic() - started, _processor_seconds() - used
        free = free or plan.peak_bytes
        print(f"{share}: {_line(plan)}, {took[0]:.0f} s, {took[1]:.0f} processor s", flush=True)
        rows.append(_row(plan, share, took[1]))
        _write(rows)


def _processor_seconds() -> float:
    """Of this process and of compilers that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _line(plan: kiwi.Plan) -> str:
    """What became of a plan."""
    predicted, peak = plan.estimate.peak_bytes, plan.peak_bytes
    gap = plan.solve_result.gap
    return (
        f"budget {format_bytes(plan.memory_budget_bytes)}, predicted {format_bytes(predicted)}, "
        f"peak {format_bytes(peak)} ({predicted / peak:.2f}), "
        f"{plan.estimate.step_seconds * 1e3:.1f} ms a step, "
        f"gap {'unknown' if gap is None else f'{gap:.1%}'}, {len(plan.rounds)} compiled, "
        f"{plan.solve_result.message or 'layers differ'}"
    )


def _row(plan: kiwi.Plan, share: str, processor_seconds: float) -> dict[str, Any]:
    return {
        "model": _MODEL.value,
        "trained": f"LoRA of rank {_LORA.value}" if _LORA.value else "all",
        "layers": _LAYERS.value or "all",
        "share": share,
        "budget_bytes": plan.memory_budget_bytes,
        "predicted_bytes": plan.estimate.peak_bytes,
        "peak_bytes": plan.peak_bytes,
        "step_seconds": plan.estimate.step_seconds,
        "gap": plan.solve_result.gap,
        "compiled": len(plan.rounds),
        "processor_seconds": round(processor_seconds),
        "jax": jax.__version__,
    }


def _write(rows: list[dict[str, Any]]) -> None:
    """Rows of this model, beside those of others."""
    path = _OUT / "tunix.json"
    known = json.loads(path.read_text()) if path.exists() else []
    key = lambda row: (row["model"], row["trained"], str(row["layers"]))  # noqa: E731
    others = [row for row in known if key(row) != key(rows[0])]
    every = sorted([*others, *rows], key=key)
    path.write_text(json.dumps(every, indent=1) + "\n")
    lines = [
        "# Models of google-tunix on (2, 4) H100s, checked with XLA:CPU",
        "",
        "`python -m benchmarks.tunix_models --model=... [--lora=16] [--layers=...]`; 8 sequences "
        "of 1024 tokens. Budgets are shares of what the plan without a limit takes as compiled. "
        "Processor seconds are of tracing, planning and checks.",
        "",
        "| model | layers | trained | budget | compiled peak | predicted | step, ms | gap "
        "| compiled | processor s |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in every:
        budget = "free" if row["share"] == "free" else format_bytes(row["budget_bytes"])
        accuracy = row["predicted_bytes"] / row["peak_bytes"]
        lines.append(
            f"| {row['model']} | {row['layers']} | {row['trained']} | {budget} "
            f"| {format_bytes(row['peak_bytes'])} | {accuracy:.2f} "
            f"| {1e3 * row['step_seconds']:.1f} | {row['gap']:.1%} | {row['compiled']} "
            f"| {row['processor_seconds']} |"
        )
    (_OUT / "tunix.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    app.run(main)
