"""A small convolutional network trained on classification with momentum SGD.

Each stage convolves (3×3), normalises over the batch, applies relu and pools (2×2, which halves
height and width). The mean over the remaining positions goes through one dense layer. Batch
normalisation uses only the statistics of the current batch: the state has no running averages.
Images are [batch, height, width, channels].
"""

import functools
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
    "ConvnetConfig",
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
class ConvnetConfig:
    """Size and training of a convnet.

    `stages` holds the number of channels of each stage. Images are `image` pixels high and wide.

    **Raises:** `ValueError` if the stages cannot halve the image evenly.
    """

    stages: tuple[int, ...]
    image: int
    batch: int
    image_channels: int = 3
    classes: int = 8
    pool: Literal["max", "average"] = "max"
    learning_rate: float = 0.1
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.image % 2 ** len(self.stages):
            raise ValueError(f"{len(self.stages)} stages cannot halve {self.image} pixels evenly")


SIZES: dict[str, ConvnetConfig] = {
    "tiny": ConvnetConfig(stages=(8, 16), image=16, batch=16, learning_rate=0.05),
    "tiny-average": ConvnetConfig(
        stages=(8, 16), image=16, batch=16, pool="average", learning_rate=0.05
    ),
    "cifar": ConvnetConfig(stages=(64, 128, 256), image=32, batch=256, classes=16),
}


def init_params(config: ConvnetConfig, key: jax.Array) -> Params:
    """Returns {"stages": [{"kernel" [3, 3, in, out], "scale", "bias"}, ...], "classifier": ...}."""
    *stage_keys, classifier_key = jax.random.split(key, len(config.stages) + 1)
    channels = (config.image_channels, *config.stages)
    pairs = zip(stage_keys, channels[:-1], channels[1:], strict=True)
    kernel = _common.init_kernel(classifier_key, (channels[-1], config.classes), channels[-1])
    return {
        "stages": [_init_stage(stage_key, before, after) for stage_key, before, after in pairs],
        "classifier": {"kernel": kernel, "bias": jnp.zeros(config.classes)},
    }


def loss(config: ConvnetConfig, remat: Remat, params: Params, batch: Batch) -> jax.Array:
    """Returns the cross-entropy, a scalar."""
    stage = _common.apply_remat(functools.partial(_stage, config.pool), remat)
    x = batch["inputs"]
    for stage_params in params["stages"]:
        x = stage(stage_params, x)
    pooled = jnp.mean(x, axis=(1, 2))
    logits = pooled @ params["classifier"]["kernel"] + params["classifier"]["bias"]
    return _common.cross_entropy(logits, batch["targets"])


def make_batch(config: ConvnetConfig, seed: int = 0) -> Batch:
    """Returns normally distributed images and random classes [batch], int32."""
    image_key, class_key = jax.random.split(jax.random.key(seed))
    shape = (config.batch, config.image, config.image, config.image_channels)
    return {
        "inputs": jax.random.normal(image_key, shape),
        "targets": jax.random.randint(class_key, (config.batch,), 0, config.classes, jnp.int32),
    }


def megatron_specs(state: TrainState, data_axis: AxisNames | None, model_axis: AxisNames) -> Specs:
    """Splits the output channels of each convolution along `model_axis`.

    Each convolution then needs its whole input: an all-gather of the previous stage's result.
    """
    channels = PartitionSpec(model_axis)
    by_name = {
        ("stages", "kernel"): PartitionSpec(None, None, None, model_axis),
        ("stages", "scale"): channels,
        ("stages", "bias"): channels,
        ("classifier", "kernel"): channels,
    }
    return specs_by_name(state, by_name, data_axis)


def _optimizer(config: ConvnetConfig) -> optax.GradientTransformation:
    return optax.sgd(config.learning_rate, momentum=config.momentum)


def _init_stage(key: jax.Array, before: int, after: int) -> Params:
    return {
        "kernel": _common.init_kernel(key, (3, 3, before, after), 9 * before),
        "scale": jnp.ones(after),
        "bias": jnp.zeros(after),
    }


def _stage(pool: Literal["max", "average"], params: Params, x: jax.Array) -> jax.Array:
    """[B, H, W, C] → [B, H / 2, W / 2, C']."""
    x = jax.lax.conv_general_dilated(
        x, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = jax.nn.relu(_batch_norm(params, x))
    window = (1, 2, 2, 1)
    if pool == "max":
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, window, window, "VALID") / 4


def _batch_norm(params: Params, x: jax.Array) -> jax.Array:
    mean = jnp.mean(x, axis=(0, 1, 2))
    variance = jnp.mean(jnp.square(x - mean), axis=(0, 1, 2))
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * params["scale"] + params["bias"]


_EXAMPLE = _common.Example(init_params, loss, _optimizer, make_batch)
make_train_step = _EXAMPLE.make_train_step
make_state = _EXAMPLE.make_state
abstract_state = _EXAMPLE.abstract_state
abstract_batch = _EXAMPLE.abstract_batch
