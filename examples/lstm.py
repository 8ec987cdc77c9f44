"""A stack of LSTM layers (Hochreiter & Schmidhuber 1997) trained with Adam on regression.

A layer projects the whole sequence to gates in one matrix multiplication, then scans over the
positions with `jax.lax.scan`. Inputs and targets are activations [B, S, D].
"""

import functools
from dataclasses import dataclass

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
    "LstmConfig",
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
class LstmConfig:
    """Size and training. Inputs, hidden states and cells have `width` units."""

    layers: int
    width: int
    batch: int
    sequence: int
    learning_rate: float = 1e-3


SIZES: dict[str, LstmConfig] = {
    "tiny": LstmConfig(layers=2, width=32, batch=8, sequence=16, learning_rate=3e-3),
    "lstm-4l": LstmConfig(layers=4, width=1024, batch=128, sequence=256),
}


def init_params(config: LstmConfig, key: jax.Array) -> Params:
    """Returns {"layers": [{"input" {"kernel", "bias"}, "hidden" {"kernel"}}, ...]}; kernels are [D,
    4, D]."""
    keys = jax.random.split(key, config.layers)
    return {"layers": [_init_layer(config, layer_key) for layer_key in keys]}


def loss(config: LstmConfig, remat: Remat, params: Params, batch: Batch) -> jax.Array:
    """Returns the mean squared error, a scalar."""
    layer = _common.apply_remat(_layer, remat)
    x = batch["inputs"]
    for layer_params in params["layers"]:
        x = layer(layer_params, x)
    return _common.mean_squared_error(x, batch["targets"])


def make_batch(config: LstmConfig, seed: int = 0) -> Batch:
    """Returns normally distributed inputs and targets, [B, S, D], float32."""
    input_key, target_key = jax.random.split(jax.random.key(seed))
    shape = (config.batch, config.sequence, config.width)
    return {
        "inputs": jax.random.normal(input_key, shape),
        "targets": 0.3 * jax.random.normal(target_key, shape),
    }


def megatron_specs(state: TrainState, data_axis: AxisNames | None, model_axis: AxisNames) -> Specs:
    """Splits the units of each gate along `model_axis`, and the batch along `data_axis`."""
    units = PartitionSpec(None, None, model_axis)
    by_name = {
        ("input", "kernel"): units,
        ("input", "bias"): PartitionSpec(None, model_axis),
        ("hidden", "kernel"): units,
    }
    return specs_by_name(state, by_name, data_axis)


def _init_layer(config: LstmConfig, key: jax.Array) -> Params:
    input_key, hidden_key = jax.random.split(key)
    shape = (config.width, 4, config.width)
    # The forget gate starts open, so that gradients reach back (Jozefowicz et al. 2015).
    bias = jnp.zeros((4, config.width)).at[1].set(1.0)
    return {
        "input": {"kernel": _common.init_kernel(input_key, shape, config.width), "bias": bias},
        "hidden": {"kernel": _common.init_kernel(hidden_key, shape, config.width)},
    }


def _layer(params: Params, x: jax.Array) -> jax.Array:
    """[B, S, D] → [B, S, D]."""
    gates = jnp.einsum("bsd,dgh->sbgh", x, params["input"]["kernel"]) + params["input"]["bias"]
    still = jnp.zeros_like(x[:, 0])
    _, states = jax.lax.scan(functools.partial(_cell, params["hidden"]), (still, still), gates)
    return jnp.swapaxes(states, 0, 1)


def _cell(
    params: Params, carry: tuple[jax.Array, jax.Array], gates: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """Computes one position. `gates` [B, 4, D] lack the hidden state's part; the carry is (hidden,
    cell), both [B, D]."""
    hidden, cell = carry
    gates = gates + jnp.einsum("bd,dgh->bgh", hidden, params["kernel"])
    take, forget, show, new = (gates[:, k] for k in range(4))
    cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(take) * jnp.tanh(new)
    hidden = jax.nn.sigmoid(show) * jnp.tanh(cell)
    return (hidden, cell), hidden


def _optimizer(config: LstmConfig) -> optax.GradientTransformation:
    return optax.adam(config.learning_rate)


_EXAMPLE = _common.Example(init_params, loss, _optimizer, make_batch)
make_train_step = _EXAMPLE.make_train_step
make_state = _EXAMPLE.make_state
abstract_state = _EXAMPLE.abstract_state
abstract_batch = _EXAMPLE.abstract_batch
