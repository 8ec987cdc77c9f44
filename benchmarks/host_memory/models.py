"""Training steps with large activations, which are worth offloading."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.tpu.programs import TrainingStep, of_module
from examples import encoder_decoder, gpt, llama, lstm, moe, vit


def perceptron(*, is_scanned: bool) -> TrainingStep:
    """Returns a step whose layers have two matmuls and two elementwise operators each."""
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
    "vit": lambda: of_module(
        vit,
        vit.VitConfig(layers=4, width=2048, heads=16, batch=32, image=512, patch=16, classes=1000),
    ),
    "encoder-decoder": lambda: of_module(
        encoder_decoder,
        encoder_decoder.EncoderDecoderConfig(
            layers=2, width=2048, heads=16, batch=32, sequence=1024, vocabulary=8192
        ),
    ),
    "moe": lambda: of_module(
        moe, moe.MoeConfig(layers=2, width=2048, heads=16, batch=32, sequence=1024)
    ),
    "lstm": lambda: of_module(lstm, lstm.LstmConfig(layers=4, width=4096, batch=512, sequence=128)),
}
"""The training steps, by name."""
