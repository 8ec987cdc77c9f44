"""Qwen3 of google-tunix, planned as the library has it: its layers in a Python loop.

pip install --no-deps google-tunix safetensors
python -m benchmarks.tunix_qwen3 --model=qwen3_0p6b       # without a limit, at 70 and at 50 %

A step of AdamW in bfloat16 on 8 sequences of 1024 tokens, with donated parameters and state, all of
them abstract arrays, on (2, 4) H100s; plans are checked on eight virtual CPU devices. Shares are
of the compiled peak of the plan without a limit. A line for each plan: its peaks, the step, the
gap, and what planning and check took, in seconds of the clock and of processors.
"""

import dataclasses
import importlib
import importlib.util
import os
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from flax import nnx

import kiwi
from kiwi.sizes import format_bytes

_MODEL = flags.DEFINE_string("model", "qwen3_0p6b", "A constructor of tunix's ModelConfig.")
_LAYERS = flags.DEFINE_integer("layers", 0, "Layers; 0 for the model's own.")
_BATCH = flags.DEFINE_integer("batch", 8, "Sequences.")
_LENGTH = flags.DEFINE_integer("length", 1024, "Tokens of each.")
_SHARES = flags.DEFINE_list("shares", ["0.7", "0.5"], "Budgets.")
_SECONDS = flags.DEFINE_float("time_limit", 60.0, "Seconds for each search.")
_VERIFY = flags.DEFINE_string("verify", "cpu", "As of kiwi.plan; none for no check.")
_EQUAL = flags.DEFINE_bool("equal_layers", True, "As of kiwi.plan.")


def qwen3() -> Any:
    """The library's module of the model. Its packages import trainers and their data sets when
    they are imported, which the model does not need: empty packages stand in for them."""
    found = importlib.util.find_spec("tunix")
    if found is None or found.submodule_search_locations is None:
        sys.exit("pip install --no-deps google-tunix safetensors")
    for name in ("tunix", "tunix.models.qwen3"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(*found.submodule_search_locations, *name.split(".")[1:])]
        sys.modules[name] = package
    return importlib.import_module("tunix.models.qwen3.model")


def training_step(name: str, layers: int, length: int) -> tuple[Callable[..., Any], Any, Any]:
    """The step, its abstract parameters and its optimiser's state."""
    library = qwen3()
    config = getattr(library.ModelConfig, name)()
    changes = {"num_layers": layers} if layers else {}
    config = dataclasses.replace(config, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16, **changes)
    model = nnx.eval_shape(lambda: library.Qwen3(config, rngs=nnx.Rngs(0)))
    graph, params = nnx.split(model)
    optimiser = optax.adamw(1e-4)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        shape = tokens.shape[0], length
        positions = jnp.broadcast_to(jnp.arange(length), shape)
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (*shape, length))
        logits, _ = nnx.merge(graph, params)(tokens[:, :-1], positions, None, mask)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    def step(params: Any, state: Any, tokens: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, params, jax.eval_shape(optimiser.init, params)


def main(_: list[str]) -> None:
    """Plans without a limit and at shares of that plan's peak."""
    jax.config.update("jax_platforms", "cpu")
    step, params, state = training_step(_MODEL.value, _LAYERS.value, _LENGTH.value)
    tokens = jax.ShapeDtypeStruct((_BATCH.value, _LENGTH.value + 1), jnp.int32)
    free: int | None = None
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
            plan = planned.plan(params, state, tokens)
        except kiwi.errors.KiwiError as error:
            print(f"{share}: {error}", flush=True)
            continue
        took = time.monotonic() - started, _processor_seconds() - used
        free = free or plan.peak_bytes
        print(f"{share}: {_line(plan)}, {took[0]:.0f} s, {took[1]:.0f} processor s", flush=True)


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


if __name__ == "__main__":
    app.run(main)
