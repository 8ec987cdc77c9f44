"""A transformer encoder trained with AdamW.

Attention is bidirectional, and layers normalise the sum of sublayer and residual stream (post-LN,
as in Vaswani et al. 2017 and BERT). With a vocabulary, tokens are embedded with learned positions
and the mean of the final hidden states is classified. Without one (`vocabulary=0`) the model is the
stack of layers, see `TransformerConfig`.
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
    make_activation_batch,
    megatron_specs,
)

__all__ = [
    "SIZES",
    "EncoderConfig",
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
class EncoderConfig(TransformerConfig):
    """Size and training of an encoder, see `TransformerConfig`.

    `classes` is the number of classes that an encoder with a vocabulary predicts.
    """

    classes: int = 8


SIZES: dict[str, EncoderConfig] = {
    "tiny": EncoderConfig(
        layers=2, width=64, heads=4, batch=8, sequence=32, vocabulary=128, learning_rate=1e-3
    ),
    # The size of the paper's encoders. The paper states neither sequence length nor vocabulary.
    "encoder-13b-1l": EncoderConfig(layers=1, width=5120, heads=40, batch=16, sequence=1024),
    "encoder-13b-4l": EncoderConfig(layers=4, width=5120, heads=40, batch=16, sequence=1024),
}


def init_params(config: EncoderConfig, key: jax.Array) -> Params:
    """Returns {"blocks": [...]}, and "embedding" and "classifier" if there is a vocabulary."""
    embedding_key, blocks_key, classifier_key = jax.random.split(key, 3)
    params: Params = {"blocks": init_blocks(config, blocks_key)}
    if config.vocabulary:
        params["embedding"] = init_embedding(config, embedding_key)
        kernel = _common.init_kernel(classifier_key, (config.width, config.classes), config.width)
        params["classifier"] = {"kernel": kernel, "bias": jnp.zeros(config.classes)}
    return params


def loss(config: EncoderConfig, remat: Remat, params: Params, batch: Batch) -> jax.Array:
    """Returns the cross-entropy of the class; without a vocabulary, the mean squared error. A
    scalar."""
    x = batch["inputs"]
    if config.vocabulary:
        x = embed(params["embedding"], x, config.dtype)
    x = apply_blocks(params["blocks"], x, causal=False, pre_norm=False, remat=remat)
    if not config.vocabulary:
        return _common.mean_squared_error(x, batch["targets"])
    pooled = jnp.mean(x.astype(jnp.float32), axis=1)
    logits = pooled @ params["classifier"]["kernel"] + params["classifier"]["bias"]
    return _common.cross_entropy(logits, batch["targets"])


def make_batch(config: EncoderConfig, seed: int = 0) -> Batch:
    """Returns random tokens [B, S] and classes [B], int32; activations without a vocabulary."""
    key = jax.random.key(seed)
    if not config.vocabulary:
        return make_activation_batch(config, key)
    token_key, class_key = jax.random.split(key)
    shape = (config.batch, config.sequence)
    return {
        "inputs": jax.random.randint(token_key, shape, 0, config.vocabulary, jnp.int32),
        "targets": jax.random.randint(class_key, (config.batch,), 0, config.classes, jnp.int32),
    }


_EXAMPLE = _common.Example(init_params, loss, adamw, make_batch)
make_train_step = _EXAMPLE.make_train_step
make_state = _EXAMPLE.make_state
abstract_state = _EXAMPLE.abstract_state
abstract_batch = _EXAMPLE.abstract_batch
