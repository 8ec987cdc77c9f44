"""A residual multilayer perceptron trained on regression with SGD or Adam.

Each layer adds a two-matrix gelu network to its input, like the feed-forward half of a
transformer layer. In "mlp-8l" the activations, not the parameters, dominate memory.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from examples import _common
from examples._common import (
    AxisNames,
    Batch,
    Params,
    Remat,
    Specs,
    TrainState,
    data_parallel_specs,
    fsdp_specs,
    mixed_specs,
    named_shardings,
    specs_by_name,
)

__all__ = [
    "SIZES",
    "MlpConfig",
    "Specs",
    "abstract_batch",
    "abstract_state",
    "data_parallel_specs",
    "fsdp_specs",
    "init_params",
    "loss",
    "make_batch",
    "make_state",
    "make_train_step",
    "megatron_specs",
    "mixed_specs",
    "named_shardings",
]


@dataclass(frozen=True)
class MlpConfig:
    """Size and training of an MLP. A layer has `expansion * width` hidden units."""

    layers: int
    width: int
    batch: int
    expansion: int = 2
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.1


SIZES: dict[str, MlpConfig] = {
    "tiny": MlpConfig(layers=2, width=32, batch=16, optimizer="adam", learning_rate=3e-3),
    "mlp-8l": MlpConfig(layers=8, width=512, batch=4096),
}


def init_params(config: MlpConfig, key: jax.Array) -> Params:
    """Returns {"layers": [{"up": {"kernel", "bias"}, "down": ...}, ...]}, float32."""
    keys = jax.random.split(key, config.layers)
    return {"layers": [_init_layer(config, layer_key) for layer_key in keys]}


def loss(config: MlpConfig, remat: Remat, params: Params, batch: Batch) -> jax.Array:
    """Returns the mean squared error, a scalar."""
    layer = _common.apply_remat(_layer, remat)
    x = batch["inputs"]
    for layer_params in params["layers"]:
        x = layer(layer_params, x)
    return _common.mean_squared_error(x, batch["targets"])


def make_batch(config: MlpConfig, seed: int = 0) -> Batch:
    """Returns normally distributed inputs and targets, [batch, width], float32."""
    input_key, target_key = jax.random.split(jax.random.key(seed))
    shape = (config.batch, config.width)
    return {
        "inputs": jax.random.normal(input_key, shape),
        "targets": jax.random.normal(target_key, shape),
    }


def megatron_specs(state: TrainState, data_axis: AxisNames | None, model_axis: AxisNames) -> Specs:
    """Splits hidden units along `model_axis`, and the batch along `data_axis`."""
    column, row = PartitionSpec(None, model_axis), PartitionSpec(model_axis)
    by_name = {("up", "kernel"): column, ("up", "bias"): row, ("down", "kernel"): row}
    return specs_by_name(state, by_name, data_axis)


def _optimizer(config: MlpConfig) -> optax.GradientTransformation:
    make = {"sgd": optax.sgd, "adam": optax.adam}[config.optimizer]
    return make(config.learning_rate)


def _init_layer(config: MlpConfig, key: jax.Array) -> Params:
    up_key, down_key = jax.random.split(key)
    width, hidden = config.width, config.expansion * config.width
    return {
        "up": {
            "kernel": _common.init_kernel(up_key, (width, hidden), width),
            "bias": jnp.zeros(hidden),
        },
        "down": {
            "kernel": _common.init_kernel(down_key, (hidden, width), hidden * config.layers),
            "bias": jnp.zeros(width),
        },
    }


def _layer(params: Params, x: jax.Array) -> jax.Array:
    hidden = jax.nn.gelu(x @ params["up"]["kernel"] + params["up"]["bias"])
    return x + hidden @ params["down"]["kernel"] + params["down"]["bias"]


_EXAMPLE = _common.Example(init_params, loss, _optimizer, make_batch)
make_train_step = _EXAMPLE.make_train_step
make_state = _EXAMPLE.make_state
abstract_state = _EXAMPLE.abstract_state
abstract_batch = _EXAMPLE.abstract_batch
