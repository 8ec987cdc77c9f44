"""A mixture of experts with a hand-written all-to-all in `shard_map`.

Each device along the mesh's first axis holds some of the experts and some of the tokens. Inside
`jax.shard_map` a token goes to its best expert (Fedus et al. 2022, top-1). Each expert has a fixed
number of places for a device's tokens. The device sorts its tokens into these places, exchanges
them, applies its experts, and sends the results back. Tokens without a place pass through the
residual stream alone. Kiwi plans the program around the `shard_map` and leaves its inside as
written.

    python -m examples.moe_all_to_all
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from examples._common import Batch, Metrics, Params, TrainState, cross_entropy, init_kernel
from examples._tokens import token_batch

EXPERT_AXIS = "x"


@dataclass(frozen=True)
class Config:
    """Size and training. An expert takes `capacity_factor` times its even share of tokens."""

    width: int
    experts: int
    batch: int
    sequence: int
    vocabulary: int
    capacity_factor: float = 2.0
    learning_rate: float = 3e-3


SIZES = {
    "tiny": Config(width=32, experts=4, batch=8, sequence=16, vocabulary=64),
    "small": Config(width=64, experts=8, batch=16, sequence=32, vocabulary=128),
}


def make_state(config: Config, seed: int = 0) -> TrainState:
    """Returns embedding, mixer, gate and experts, with the state of the optimizer."""
    keys = jax.random.split(jax.random.key(seed), 6)
    width, experts = config.width, config.experts
    params: Params = {
        "embedding": 0.1 * jax.random.normal(keys[0], (config.vocabulary, width)),
        "mixer": init_kernel(keys[1], (config.sequence, config.sequence), config.sequence),
        "gate": init_kernel(keys[2], (width, experts), width),
        "up": init_kernel(keys[3], (experts, width, 4 * width), width),
        "down": init_kernel(keys[4], (experts, 4 * width, width), 4 * width),
    }
    return TrainState(params, _optimizer(config).init(params), jnp.zeros((), jnp.int32))


def make_batch(config: Config, seed: int = 0) -> Batch:
    """Returns random tokens and their successors."""
    batch = token_batch(config.batch, config.sequence, config.vocabulary, seed)
    return {name: batch[name] for name in ("inputs", "targets")}


def make_train_step(config: Config, mesh: Mesh) -> Any:
    """Returns `train_step(state, batch) -> (state, {"loss"})` on a mesh with the axis
    `EXPERT_AXIS`."""
    experts = _exchange(config, mesh)

    def loss(params: Params, batch: Batch) -> jax.Array:
        x = params["embedding"][batch["inputs"]]
        seen = jnp.tril(params["mixer"])
        x = x + jax.nn.gelu(jnp.einsum("bsd,ts->btd", x, seen))
        tokens = x.reshape(-1, config.width)
        x = x + experts(params["gate"], params["up"], params["down"], tokens).reshape(x.shape)
        return cross_entropy(x @ params["embedding"].T, batch["targets"])

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        value, gradients = jax.value_and_grad(loss)(state.params, batch)
        updates, opt_state = _optimizer(config).update(gradients, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, state.step + 1), {"loss": value}

    return train_step


def _exchange(config: Config, mesh: Mesh) -> Any:
    """Returns the experts as a function of tokens [T, D]. Both are split along the expert axis."""
    devices = mesh.shape[EXPERT_AXIS]
    tokens = config.batch * config.sequence // devices
    capacity = max(1, int(config.capacity_factor * tokens / config.experts))
    cut = PartitionSpec(EXPERT_AXIS)
    return jax.shard_map(
        functools.partial(_local_experts, config.experts, capacity),
        mesh=mesh,
        in_specs=(PartitionSpec(), cut, cut, cut),
        out_specs=cut,
        axis_names={EXPERT_AXIS},
    )


def _local_experts(
    experts: int, capacity: int, gate: jax.Array, up: jax.Array, down: jax.Array, x: jax.Array
) -> jax.Array:
    """Computes one device's part. `x` are its tokens [T, D]; `up` and `down` belong to its
    experts."""
    weights = jax.nn.softmax(x @ gate)
    best = jnp.argmax(weights, axis=-1)
    chosen = jax.nn.one_hot(best, experts, dtype=x.dtype)
    place = jnp.cumsum(chosen, axis=0) * chosen - 1.0
    places = jax.nn.one_hot(place.astype(jnp.int32), capacity, dtype=x.dtype)  # [T, E, C]
    sent = jnp.einsum("tec,td->ecd", places, x)
    # [E, C, D] of all experts from this device → [E / n, n C, D] of its experts from all devices.
    here = jax.lax.all_to_all(sent, EXPERT_AXIS, split_axis=0, concat_axis=1, tiled=True)
    hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", here, up))
    done = jnp.einsum("ecf,efd->ecd", hidden, down)
    back = jax.lax.all_to_all(done, EXPERT_AXIS, split_axis=1, concat_axis=0, tiled=True)
    weight = jnp.max(weights, axis=-1, keepdims=True)
    return weight * jnp.einsum("tec,ecd->td", places, back)


def _optimizer(config: Config) -> optax.GradientTransformation:
    return optax.adam(config.learning_rate)


if __name__ == "__main__":
    from examples._compare import main

    main("moe_all_to_all")
