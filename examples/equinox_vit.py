"""A vision transformer written with Equinox, trained with Optax.

The model is a pytree of arrays and functions. `eqx.partition` separates the arrays, which are
planned. The model takes one image; `jax.vmap` maps it over the batch.

    python -m examples.equinox_vit
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from examples._common import Batch, cross_entropy


@dataclass(frozen=True)
class Config:
    """Size and training; images are `image` pixels high and wide, with three channels."""

    layers: int
    width: int
    heads: int
    batch: int
    image: int
    patch: int
    classes: int = 8
    learning_rate: float = 1e-3

    @property
    def patches(self) -> int:
        """The number of patches of an image."""
        return (self.image // self.patch) ** 2


SIZES = {
    "tiny": Config(layers=1, width=32, heads=4, batch=8, image=16, patch=4),
    "small": Config(layers=3, width=64, heads=4, batch=16, image=32, patch=4),
}


class Block(eqx.Module):
    """An encoder layer [S, D] that normalises its inputs."""

    attention_norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp_norm: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, config: Config, key: jax.Array) -> None:
        attention_key, mlp_key = jax.random.split(key)
        width = config.width
        self.attention_norm = eqx.nn.LayerNorm(width)
        self.attention = eqx.nn.MultiheadAttention(config.heads, width, key=attention_key)
        self.mlp_norm = eqx.nn.LayerNorm(width)
        self.mlp = eqx.nn.MLP(width, width, 4 * width, 1, jax.nn.gelu, key=mlp_key)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the layer's result, of the shape of `x`."""
        y = jax.vmap(self.attention_norm)(x)
        x = x + self.attention(y, y, y)
        return x + jax.vmap(self.mlp)(jax.vmap(self.mlp_norm)(x))


class Vit(eqx.Module):
    """Maps an image [3, H, W] to logits [classes]."""

    patches: eqx.nn.Conv2d
    position: jax.Array
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, config: Config, key: jax.Array) -> None:
        patch_key, position_key, head_key, *keys = jax.random.split(key, 3 + config.layers)
        size = config.patch
        self.patches = eqx.nn.Conv2d(3, config.width, size, stride=size, key=patch_key)
        self.position = 0.02 * jax.random.normal(position_key, (config.patches, config.width))
        self.blocks = [Block(config, block_key) for block_key in keys]
        self.norm = eqx.nn.LayerNorm(config.width)
        self.head = eqx.nn.Linear(config.width, config.classes, key=head_key)

    def __call__(self, image: jax.Array) -> jax.Array:
        """Returns the logits of an image's class."""
        x = self.patches(image).reshape(self.position.shape[1], -1).T + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(jnp.mean(jax.vmap(self.norm)(x), axis=0))


def make_state(config: Config, seed: int = 0) -> Any:
    """Returns the model's arrays and the optimizer's state before the first step."""
    arrays = eqx.filter(Vit(config, jax.random.key(seed)), eqx.is_array)
    return arrays, optax.adam(config.learning_rate).init(arrays)


def make_batch(config: Config, seed: int = 0) -> Batch:
    """Returns normally distributed images [B, 3, H, W] and random classes [B], int32."""
    image_key, class_key = jax.random.split(jax.random.key(seed))
    shape = (config.batch, 3, config.image, config.image)
    return {
        "inputs": jax.random.normal(image_key, shape),
        "targets": jax.random.randint(class_key, (config.batch,), 0, config.classes, jnp.int32),
    }


def make_train_step(config: Config) -> Any:
    """Returns `train_step(state, batch) -> (state, {"loss"})`."""
    model = eqx.filter_eval_shape(Vit, config, jax.random.key(0))
    _, static = eqx.partition(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    optimizer = optax.adam(config.learning_rate)

    def loss(arrays: Any, batch: Batch) -> jax.Array:
        logits = jax.vmap(eqx.combine(arrays, static))(batch["inputs"])
        return cross_entropy(logits, batch["targets"])

    def train_step(state: Any, batch: Batch) -> tuple[Any, dict[str, jax.Array]]:
        arrays, opt_state = state
        value, gradients = eqx.filter_value_and_grad(loss)(arrays, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, arrays)
        return (eqx.apply_updates(arrays, updates), opt_state), {"loss": value}

    return train_step


if __name__ == "__main__":
    from examples._compare import main

    main("equinox_vit")
