"""A U-Net (Ronneberger et al. 2015) trained with Adam to restore images.

On the way down each stage convolves and halves height and width. On the way up each stage doubles
them, joins the result of the same size from the way down, and convolves. The joined results live
across the whole middle of the network, and recomputing one stage at a time does not free them.
Images are [batch, height, width, channels].
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

__all__ = [
    "SIZES",
    "Specs",
    "UnetConfig",
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
class UnetConfig:
    """Size and training. `stages` holds the channels on the way down; the last stage is the bottom.

    **Raises:** `ValueError` if the stages cannot halve the image evenly.
    """

    stages: tuple[int, ...]
    image: int
    batch: int
    image_channels: int = 3
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if self.image % 2 ** (len(self.stages) - 1):
            raise ValueError(
                f"{len(self.stages) - 1} stages cannot halve {self.image} pixels evenly"
            )


SIZES: dict[str, UnetConfig] = {
    "tiny": UnetConfig(stages=(8, 16), image=16, batch=8, learning_rate=3e-3),
    "unet-4s": UnetConfig(stages=(64, 128, 256, 512), image=128, batch=32),
}


def init_params(config: UnetConfig, key: jax.Array) -> Params:
    """Returns {"down": [...], "up": [...], "head"}. A stage is {"inner", "outer"}: two
    convolutions."""
    down_key, up_key, head_key = jax.random.split(key, 3)
    before = (config.image_channels, *config.stages[:-1])
    down = zip(jax.random.split(down_key, len(before)), before, config.stages, strict=True)
    joined = [(low + high, high) for high, low in zip(before[1:], config.stages[1:], strict=True)]
    up = zip(jax.random.split(up_key, len(joined)), reversed(joined), strict=True)
    return {
        "down": [_init_stage(stage_key, first, last) for stage_key, first, last in down],
        "up": [_init_stage(stage_key, first, last) for stage_key, (first, last) in up],
        "head": _init_convolution(head_key, 1, config.stages[0], config.image_channels),
    }


def loss(config: UnetConfig, remat: Remat, params: Params, batch: Batch) -> jax.Array:
    """Returns the mean squared error of the restored image, a scalar."""
    stage = _common.apply_remat(_stage, remat)
    x = batch["inputs"]
    across = []
    for stage_params in params["down"][:-1]:
        x = stage(stage_params, x)
        across.append(x)
        x = _halve(x)
    x = stage(params["down"][-1], x)
    for stage_params in params["up"]:
        x = stage(stage_params, jnp.concatenate([_double(x), across.pop()], axis=-1))
    return _common.mean_squared_error(_convolve(params["head"], x), batch["targets"])


def make_batch(config: UnetConfig, seed: int = 0) -> Batch:
    """Returns normally distributed images as targets, and the same images with noise as inputs."""
    image_key, noise_key = jax.random.split(jax.random.key(seed))
    shape = (config.batch, config.image, config.image, config.image_channels)
    images = jax.random.normal(image_key, shape)
    return {"inputs": images + 0.5 * jax.random.normal(noise_key, shape), "targets": images}


def megatron_specs(state: TrainState, data_axis: AxisNames | None, model_axis: AxisNames) -> Specs:
    """Splits the channels between the two convolutions of a stage along `model_axis`.

    A stage then needs one all-reduce, like the feed-forward network of a transformer. The batch is
    sliced along `data_axis`.
    """
    by_name = {
        ("inner", "kernel"): PartitionSpec(None, None, None, model_axis),
        ("inner", "bias"): PartitionSpec(model_axis),
        ("outer", "kernel"): PartitionSpec(None, None, model_axis),
    }
    return specs_by_name(state, by_name, data_axis)


def _init_stage(key: jax.Array, before: int, after: int) -> Params:
    inner, outer = jax.random.split(key)
    return {
        "inner": _init_convolution(inner, 3, before, after),
        "outer": _init_convolution(outer, 3, after, after),
    }


def _init_convolution(key: jax.Array, size: int, before: int, after: int) -> Params:
    kernel = _common.init_kernel(key, (size, size, before, after), size**2 * before)
    return {"kernel": kernel, "bias": jnp.zeros(after)}


def _stage(params: Params, x: jax.Array) -> jax.Array:
    """[B, H, W, C] → [B, H, W, C']."""
    x = jax.nn.silu(_convolve(params["inner"], x))
    return jax.nn.silu(_convolve(params["outer"], x))


def _convolve(params: Params, x: jax.Array) -> jax.Array:
    x = jax.lax.conv_general_dilated(
        x, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return x + params["bias"]


def _halve(x: jax.Array) -> jax.Array:
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).mean((2, 4))


def _double(x: jax.Array) -> jax.Array:
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


def _optimizer(config: UnetConfig) -> optax.GradientTransformation:
    return optax.adam(config.learning_rate)


_EXAMPLE = _common.Example(init_params, loss, _optimizer, make_batch)
make_train_step = _EXAMPLE.make_train_step
make_state = _EXAMPLE.make_state
abstract_state = _EXAMPLE.abstract_state
abstract_batch = _EXAMPLE.abstract_batch
