"""A decoder-only transformer (GPT) trained with AdamW.

Layers normalise their inputs (pre-LN), and have causal attention, biases in all projections and a
gelu feed-forward network. A last layer normalisation follows them. With a vocabulary, the head is
*tied* to the token embedding and positions are learned. Without one (`vocabulary=0`) the model is
the stack of layers with its last normalisation, see `TransformerConfig`.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

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
    embed,
    init_blocks,
    init_embedding,
    init_layer_norm,
    layer_norm,
    make_activation_batch,
    megatron_specs,
)

__all__ = [
    "SIZES",
    "GptConfig",
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
class GptConfig(TransformerConfig):
    """Size and training of a GPT, see `TransformerConfig`."""


# Layers as in GPT-3 13B (Brown et al. 2020, table 2.1). The KIWI paper plans four of them with
# batch 16 in single precision, and states neither vocabulary nor sequence length. The example
# takes the stack of layers alone, on sequences of 1024.
_GPT_13B_4L = GptConfig(layers=4, width=5120, heads=40, batch=16, sequence=1024)

SIZES: dict[str, GptConfig] = {
    "tiny": GptConfig(
        layers=2, width=64, heads=4, batch=8, sequence=32, vocabulary=128, learning_rate=3e-3
    ),
    # GPT-2's vocabulary of 50257 is rounded up to 50304 so that mesh axes divide it.
    "gpt-125m": GptConfig(
        layers=12, width=768, heads=12, batch=16, sequence=1024, vocabulary=50304
    ),
    "gpt-13b-1l": GptConfig(layers=1, width=5120, heads=40, batch=16, sequence=1024),
    "gpt-13b-4l": _GPT_13B_4L,
}


def init_params(config: GptConfig, key: jax.Array) -> Params:
    """Returns {"blocks": [...], "final_norm": ...}, and "embedding" if there is a vocabulary."""
    embedding_key, blocks_key = jax.random.split(key)
    params: Params = {
        "blocks": init_blocks(config, blocks_key),
        "final_norm": init_layer_norm(config.width),
    }
    if config.vocabulary:
        params["embedding"] = init_embedding(config, embedding_key)
    return params


def loss(config: GptConfig, remat: Remat, params: Params, batch: Batch) -> jax.Array:
    """Returns the cross-entropy of the next token; without a vocabulary, the mean squared error. A
    scalar."""
    x = batch["inputs"]
    if config.vocabulary:
        x = embed(params["embedding"], x, config.dtype)
    x = apply_blocks(params["blocks"], x, causal=True, pre_norm=True, remat=remat)
    x = layer_norm(params["final_norm"], x)
    if not config.vocabulary:
        return _common.mean_squared_error(x, batch["targets"])
    head = params["embedding"]["token"].astype(x.dtype)
    return _common.cross_entropy(jnp.einsum("bsd,vd->bsv", x, head), batch["targets"])


def make_batch(config: GptConfig, seed: int = 0) -> Batch:
    """Returns random tokens [B, S], int32, and their successors; activations without a
    vocabulary."""
    key = jax.random.key(seed)
    if not config.vocabulary:
        return make_activation_batch(config, key)
    shape = (config.batch, config.sequence + 1)
    tokens = jax.random.randint(key, shape, 0, config.vocabulary, jnp.int32)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


_EXAMPLE = _common.Example(init_params, loss, adamw, make_batch)
make_train_step = _EXAMPLE.make_train_step
make_state = _EXAMPLE.make_state
abstract_state = _EXAMPLE.abstract_state
abstract_batch = _EXAMPLE.abstract_batch
