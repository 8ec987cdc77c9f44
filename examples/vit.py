"""A vision transformer trained with AdamW.

Images [B, H, W, C] are cut into square patches, and each patch is projected to a token (Dosovitskiy
et al. 2021). Positions are learned, and layers normalise their inputs. The mean of the normalised
final states is classified; there is no class token, as in Beyer et al. 2022.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from examples import _common
from examples._common import (
    Batch,
    Params,
    Remat,
    Specs,
    data_parallel_specs,
    fsdp_specs,
    mixed_specs,
    named_shardings,
)
from examples._transformer import (
    TransformerConfig,
    adamw,
    apply_blocks,
    init_blocks,
    init_layer_norm,
    layer_norm,
    megatron_specs,
)

__all__ = [
    "SIZES",
    "Specs",
    "VitConfig",
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
class VitConfig:
    """Size and training of a vision transformer. Images are `image` pixels high and wide.

    **Raises:** `ValueError` if patches do not cut the image evenly, or heads the width.
    """

    layers: int
    width: int
    heads: int
    batch: int
    image: int
    patch: int
    image_channels: int = 3
    classes: int = 8
    learning_rate: float = 3e-4

    def __post_init__(self) -> None:
        if self.image % self.patch:
            raise ValueError(f"patches of {self.patch} do not cut {self.image} pixels evenly")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")

    @property
    def stack(self) -> TransformerConfig:
        """The configuration of the layers."""
        return TransformerConfig(
            self.layers,
            self.width,
            self.heads,
            self.batch,
            sequence=(self.image // self.patch) ** 2,
            learning_rate=self.learning_rate,
        )

    @property
    def patch_values(self) -> int:
        """The number of values in one patch."""
        return self.patch**2 * self.image_channels


SIZES: dict[str, VitConfig] = {
    "tiny": VitConfig(layers=2, width=64, heads=4, batch=8, image=16, patch=4, learning_rate=1e-3),
    "vit-b16": VitConfig(
        layers=12, width=768, heads=12, batch=64, image=256, patch=16, classes=1000
    ),
}


def init_params(config: VitConfig, key: jax.Array) -> Params:
    """Returns {"patches": {"kernel", "bias", "position"}, "blocks", "final_norm", "classifier"}."""
    patch_key, position_key, blocks_key, classifier_key = jax.random.split(key, 4)
    width, values = config.width, config.patch_values
    kernel = _common.init_kernel(classifier_key, (width, config.classes), width)
    return {
        "patches": {
            "kernel": _common.init_kernel(patch_key, (values, width), values),
            "bias": jnp.zeros(width),
            "position": 0.02 * jax.random.normal(position_key, (config.stack.sequence, width)),
        },
        "blocks": init_blocks(config.stack, blocks_key),
        "final_norm": init_layer_norm(width),
        "classifier": {"kernel": kernel, "bias": jnp.zeros(config.classes)},
    }


def loss(config: VitConfig, remat: Remat, params: Params, batch: Batch) -> jax.Array:
    """Returns the cross-entropy of the class, a scalar."""
    patches = _cut(batch["inputs"], config.patch)
    embedding = params["patches"]
    x = patches @ embedding["kernel"] + embedding["bias"] + embedding["position"]
    x = apply_blocks(params["blocks"], x, causal=False, pre_norm=True, remat=remat)
    pooled = jnp.mean(layer_norm(params["final_norm"], x), axis=1)
    logits = pooled @ params["classifier"]["kernel"] + params["classifier"]["bias"]
    return _common.cross_entropy(logits, batch["targets"])


def make_batch(config: VitConfig, seed: int = 0) -> Batch:
    """Returns normally distributed images [B, H, W, C] and random classes [B], int32."""
    image_key, class_key = jax.random.split(jax.random.key(seed))
    shape = (config.batch, config.image, config.image, config.image_channels)
    return {
        "inputs": jax.random.normal(image_key, shape),
        "targets": jax.random.randint(class_key, (config.batch,), 0, config.classes, jnp.int32),
    }


def _cut(images: jax.Array, patch: int) -> jax.Array:
    """[B, H, W, C] → [B, H W / patch², patch² C]."""
    batch, height, width, channels = images.shape
    rows, columns = height // patch, width // patch
    x = images.reshape(batch, rows, patch, columns, patch, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows * columns, patch**2 * channels)


def _optimizer(config: VitConfig) -> optax.GradientTransformation:
    return adamw(config.stack)


_EXAMPLE = _common.Example(init_params, loss, _optimizer, make_batch)
make_train_step = _EXAMPLE.make_train_step
make_state = _EXAMPLE.make_state
abstract_state = _EXAMPLE.abstract_state
abstract_batch = _EXAMPLE.abstract_batch
