"""A transformer with mixtures of experts instead of feed-forward networks, trained with AdamW.

Each token goes to its two best experts of several (Lepikhin et al. 2021, "GShard", top-2 gating
without the random second choice). Experts take a bounded number of tokens of each sequence, their
capacity; tokens beyond it pass through the residual stream alone. Dispatch and combination are
einsums with a one-hot tensor [B, S, E, C] of experts and places, so that every shape is static.
A loss on the gate keeps the experts evenly used (Fedus et al. 2022, eq. 4).
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

    `capacity_factor` times the even share, `2 * sequence / experts`, is what an expert takes of
    each sequence; `balance` weighs the loss on the gate.
    """

    experts: int = 8
    capacity_factor: float = 1.0
    balance: float = 0.01

    @property
    def capacity(self) -> int:
        """Tokens of one sequence that one expert takes."""
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
    """{"blocks": [...], "final_norm": ...}, and "embedding" if there is a vocabulary."""
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
    """Cross-entropy of the next token (mean squared error without a vocabulary), plus balance."""
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
    """Random tokens [B, S], int32, and their successors; activations without a vocabulary."""
    key = jax.random.key(seed)
    if not config.vocabulary:
        return make_activation_batch(config, key)
    shape = (config.batch, config.sequence + 1)
    tokens = jax.random.randint(key, shape, 0, config.vocabulary, jnp.int32)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


def megatron_specs(state: TrainState, data_axis: AxisNames | None, model_axis: AxisNames) -> Specs:
    """Experts and attention heads are split along `model_axis`, the batch along `data_axis`."""
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
    """[B, S, D] → the same, and how unevenly the experts are used (1 is even)."""
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
    """Chances [B, S, E] → weights of experts and places [B, S, E, C], and unevenness.

    A token's first choice has a place before any second choice.
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
        # A place beyond the capacity has no one in its one-hot row.
        where = jax.nn.one_hot(jnp.sum(place, axis=-1).astype(jnp.int32), capacity)
        combine += (weight / total)[..., None, None] * choice[..., None] * where[..., None, :]
    return combine, uneven


_EXAMPLE = _common.Example(init_params, loss, adamw, make_batch)
make_train_step = _EXAMPLE.make_train_step
make_state = _EXAMPLE.make_state
abstract_state = _EXAMPLE.abstract_state
abstract_batch = _EXAMPLE.abstract_batch
