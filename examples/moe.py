"""A transformer with mixtures of experts instead of feed-forward networks, trained with AdamW.

Each token goes to its two best experts (Lepikhin et al. 2021, "GShard", top-2 gating without the
random second choice). An expert takes at most its capacity of tokens from each sequence; further
tokens pass through the residual stream alone. Dispatch and combination are einsums with a one-hot
tensor [B, S, E, C] of experts and places, so that every shape is static. A loss on the gate keeps
the use of experts even (Fedus et al. 2022, eq. 4).
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
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
from examples._transformer import (
    TransformerConfig,
    adamw,
    attention,
    embed,
    init_attention,
    init_embedding,
    init_layer_norm,
    layer_norm,
    make_activation_batch,
    megatron_by_name,
)

__all__ = [
    "SIZES",
    "MoeConfig",
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
class MoeConfig(TransformerConfig):
    """Size and training of a mixture of experts.

    An expert takes at most `capacity_factor` times its even share of each sequence, `2 * sequence /
    experts` tokens. `balance` is the weight of the loss on the gate.
    """

    experts: int = 8
    capacity_factor: float = 1.0
    balance: float = 0.01

    @property
    def capacity(self) -> int:
        """The number of tokens of one sequence that one expert takes."""
        return int(2 * self.sequence * self.capacity_factor / self.experts)


SIZES: dict[str, MoeConfig] = {
    "tiny": MoeConfig(
        layers=1,
        width=64,
        heads=4,
        batch=8,
        sequence=32,
        vocabulary=128,
        learning_rate=3e-3,
        experts=4,
    ),
    "moe-1b": MoeConfig(layers=12, width=1024, heads=16, batch=32, sequence=1024),
}


def init_params(config: MoeConfig, key: jax.Array) -> Params:
    """Returns {"blocks": [...], "final_norm": ...}, and "embedding" if there is a vocabulary."""
    embedding_key, blocks_key = jax.random.split(key)
    keys = jax.random.split(blocks_key, config.layers)
    params: Params = {
        "blocks": [_init_block(config, block_key) for block_key in keys],
        "final_norm": init_layer_norm(config.width),
    }
    if config.vocabulary:
        params["embedding"] = init_embedding(config, embedding_key)
    return params


def loss(config: MoeConfig, remat: Remat, params: Params, batch: Batch) -> jax.Array:
    """Returns the cross-entropy of the next token (without a vocabulary, the mean squared error)
    plus the loss on the gate."""
    x = batch["inputs"]
    if config.vocabulary:
        x = embed(params["embedding"], x, config.dtype)
    block = _common.apply_remat(functools.partial(_block, config.capacity), remat)
    balance = jnp.zeros(())
    for block_params in params["blocks"]:
        x, uneven = block(block_params, x)
        balance += config.balance * uneven
    x = layer_norm(params["final_norm"], x)
    if not config.vocabulary:
        return _common.mean_squared_error(x, batch["targets"]) + balance
    head = params["embedding"]["token"].astype(x.dtype)
    logits = jnp.einsum("bsd,vd->bsv", x, head)
    return _common.cross_entropy(logits, batch["targets"]) + balance


def make_batch(config: MoeConfig, seed: int = 0) -> Batch:
    """Returns random tokens [B, S], int32, and their successors; activations without a
    vocabulary."""
    key = jax.random.key(seed)
    if not config.vocabulary:
        return make_activation_batch(config, key)
    shape = (config.batch, config.sequence + 1)
    tokens = jax.random.randint(key, shape, 0, config.vocabulary, jnp.int32)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


def megatron_specs(state: TrainState, data_axis: AxisNames | None, model_axis: AxisNames) -> Specs:
    """Splits experts and attention heads along `model_axis`, and the batch along `data_axis`."""
    experts = PartitionSpec(model_axis)
    by_name = {
        **megatron_by_name(model_axis),
        ("experts", "up"): experts,  # [E, D, M]
        ("experts", "down"): experts,  # [E, M, D]
    }
    return specs_by_name(state, by_name, data_axis)


def _init_block(config: MoeConfig, key: jax.Array) -> Params:
    *attention_keys, gate, up, down = jax.random.split(key, 7)
    width, hidden, experts = config.width, config.mlp_ratio * config.width, config.experts
    return {
        "attention_norm": init_layer_norm(width),
        "attention": init_attention(config, jnp.stack(attention_keys)),
        "moe_norm": init_layer_norm(width),
        "gate": {"kernel": _common.init_kernel(gate, (width, experts), width)},
        "experts": {
            "up": _common.init_kernel(up, (experts, width, hidden), width),
            "down": _common.init_kernel(down, (experts, hidden, width), 2 * hidden * config.layers),
        },
    }


def _block(capacity: int, params: Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the layer's result [B, S, D], and the unevenness of the experts' use (1 is even)."""
    y = layer_norm(params["attention_norm"], x)
    x = x + attention(params["attention"], y, y, causal=True)
    y = layer_norm(params["moe_norm"], x)
    chances = jax.nn.softmax(jnp.einsum("bsd,de->bse", y, params["gate"]["kernel"]))
    combine, uneven = _route(chances, capacity)
    dispatch = (combine > 0).astype(y.dtype)
    expert_inputs = jnp.einsum("bsec,bsd->ebcd", dispatch, y)
    hidden = jax.nn.gelu(jnp.einsum("ebcd,edm->ebcm", expert_inputs, params["experts"]["up"]))
    outputs = jnp.einsum("ebcm,emd->ebcd", hidden, params["experts"]["down"])
    return x + jnp.einsum("bsec,ebcd->bsd", combine.astype(y.dtype), outputs), uneven


def _route(chances: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """Returns the weights of experts and places [B, S, E, C] for chances [B, S, E], and the
    unevenness.

    The first choices of all tokens take places before any second choice.
    """
    experts = chances.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(chances, axis=-1), experts)
    second = jax.nn.one_hot(jnp.argmax(chances * (1 - first), axis=-1), experts)
    shares = jnp.mean(first, axis=1) * jnp.mean(chances, axis=1)
    uneven = experts * jnp.mean(jnp.sum(shares, axis=-1))
    first_place = (jnp.cumsum(first, axis=1) - 1) * first
    taken = jnp.sum(first, axis=1, keepdims=True)
    second_place = (jnp.cumsum(second, axis=1) - 1 + taken) * second
    weights = [jnp.sum(chances * choice, axis=-1) for choice in (first, second)]
    total = weights[0] + weights[1] + 1e-9
    combine = jnp.zeros((*chances.shape, capacity))
    for weight, choice, place in zip(
        weights, (first, second), (first_place, second_place), strict=True
    ):
        # The one-hot row of a place beyond the capacity is zero.
        where = jax.nn.one_hot(jnp.sum(place, axis=-1).astype(jnp.int32), capacity)
        combine += (weight / total)[..., None, None] * choice[..., None] * where[..., None, :]
    return combine, uneven


_EXAMPLE = _common.Example(init_params, loss, adamw, make_batch)
make_train_step = _EXAMPLE.make_train_step
make_state = _EXAMPLE.make_state
abstract_state = _EXAMPLE.abstract_state
abstract_batch = _EXAMPLE.abstract_batch
