"""A stack of diagonal state-space layers trained with AdamW, as for sequence modelling.

Each layer normalises its input, widens it to channels, and runs one linear recurrence per channel:
h[t] = a h[t - 1] + u[t] with a learned decay a in (0, 1). The recurrence is an associative scan
over the sequence (Smith et al. 2023, "S5", §3.2; here with one real state per channel). Its result
is gated, and projected back into the residual stream. Inputs and targets are activations [B, S, D].
"""

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
from examples._transformer import init_layer_norm, layer_norm

__all__ = [
    "SIZES",
    "Specs",
    "StateSpaceConfig",
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
class StateSpaceConfig:
    """Size and training. A layer has `expansion * width` channels."""

    layers: int
    width: int
    batch: int
    sequence: int
    expansion: int = 2
    learning_rate: float = 1e-3


SIZES: dict[str, StateSpaceConfig] = {
    "tiny": StateSpaceConfig(layers=2, width=32, batch=8, sequence=32, learning_rate=3e-3),
    "ssm-8l": StateSpaceConfig(layers=8, width=1024, batch=32, sequence=1024),
}


def init_params(config: StateSpaceConfig, key: jax.Array) -> Params:
    """Returns {"layers": [{"norm", "inward", "gate", "decay", "outward"}, ...]}."""
    keys = jax.random.split(key, config.layers)
    return {"layers": [_init_layer(config, layer_key) for layer_key in keys]}


def loss(config: StateSpaceConfig, remat: Remat, params: Params, batch: Batch) -> jax.Array:
    """Returns the mean squared error, a scalar."""
    layer = _common.apply_remat(_layer, remat)
    x = batch["inputs"]
    for layer_params in params["layers"]:
        x = layer(layer_params, x)
    return _common.mean_squared_error(x, batch["targets"])


def make_batch(config: StateSpaceConfig, seed: int = 0) -> Batch:
    """Returns normally distributed inputs and targets, [B, S, D], float32."""
    input_key, target_key = jax.random.split(jax.random.key(seed))
    shape = (config.batch, config.sequence, config.width)
    return {
        "inputs": jax.random.normal(input_key, shape),
        "targets": jax.random.normal(target_key, shape),
    }


def megatron_specs(state: TrainState, data_axis: AxisNames | None, model_axis: AxisNames) -> Specs:
    """Splits channels along `model_axis`, and the batch along `data_axis`."""
    column, row = PartitionSpec(None, model_axis), PartitionSpec(model_axis)
    by_name = {
        ("inward", "kernel"): column,
        ("inward", "bias"): row,
        ("gate", "kernel"): column,
        ("gate", "bias"): row,
        ("layers", "decay"): row,
        ("outward", "kernel"): row,
    }
    return specs_by_name(state, by_name, data_axis)


def _init_layer(config: StateSpaceConfig, key: jax.Array) -> Params:
    inward, gate, outward = jax.random.split(key, 3)
    width, channels = config.width, config.expansion * config.width

    def dense(key: jax.Array, shape: tuple[int, int], fan_in: int) -> Params:
        return {"kernel": _common.init_kernel(key, shape, fan_in), "bias": jnp.zeros(shape[1])}

    return {
        "norm": init_layer_norm(width),
        "inward": dense(inward, (width, channels), width),
        "gate": dense(gate, (width, channels), width),
        # Decays from 0.5 to 0.99 per position, as logits.
        "decay": jnp.linspace(0.0, 4.6, channels),
        "outward": dense(outward, (channels, width), channels * config.layers),
    }


def _layer(params: Params, x: jax.Array) -> jax.Array:
    y = layer_norm(params["norm"], x)
    inputs = y @ params["inward"]["kernel"] + params["inward"]["bias"]
    decay = jnp.broadcast_to(jax.nn.sigmoid(params["decay"]), inputs.shape)
    _, states = jax.lax.associative_scan(_compose, (decay, (1 - decay) * inputs), axis=1)
    gate = jax.nn.silu(y @ params["gate"]["kernel"] + params["gate"]["bias"])
    return x + (states * gate) @ params["outward"]["kernel"] + params["outward"]["bias"]


def _compose(
    first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Returns the composition of two affine maps h → a h + u: `first`, then `second`."""
    decay, inputs = first
    later_decay, later_inputs = second
    return decay * later_decay, later_decay * inputs + later_inputs


def _optimizer(config: StateSpaceConfig) -> optax.GradientTransformation:
    return optax.adamw(config.learning_rate)


_EXAMPLE = _common.Example(init_params, loss, _optimizer, make_batch)
make_train_step = _EXAMPLE.make_train_step
make_state = _EXAMPLE.make_state
abstract_state = _EXAMPLE.abstract_state
abstract_batch = _EXAMPLE.abstract_batch
