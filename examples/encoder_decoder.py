"""An encoder–decoder transformer trained with AdamW, as for translation (Vaswani et al. 2017).

Layers normalise their inputs. The encoder's attention is bidirectional. A layer of the decoder
attends causally to its own sequence, then to the encoder's normalised result. Source and target
share the sequence length and the vocabulary, if there is one. Embedding and head are tied. Without
a vocabulary (`vocabulary=0`) the batch holds activations.
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
    attention,
    embed,
    feed_forward,
    init_attention,
    init_blocks,
    init_embedding,
    init_feed_forward,
    init_layer_norm,
    layer_norm,
    megatron_specs,
)

__all__ = [
    "SIZES",
    "EncoderDecoderConfig",
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
class EncoderDecoderConfig(TransformerConfig):
    """Size and training. The encoder and the decoder have `layers` layers each."""


SIZES: dict[str, EncoderDecoderConfig] = {
    "tiny": EncoderDecoderConfig(
        layers=1, width=64, heads=4, batch=8, sequence=32, vocabulary=128, learning_rate=3e-3
    ),
    "small": EncoderDecoderConfig(
        layers=2, width=128, heads=8, batch=16, sequence=64, vocabulary=512, learning_rate=3e-3
    ),
    # "big" of Vaswani et al. 2017, with a vocabulary rounded up so that mesh axes divide it.
    "transformer-big": EncoderDecoderConfig(
        layers=6, width=1024, heads=16, batch=32, sequence=512, vocabulary=37120
    ),
}


def init_params(config: EncoderDecoderConfig, key: jax.Array) -> Params:
    """Returns {"encoder", "encoder_norm", "decoder", "decoder_norm"}, and "embedding" if there is a
    vocabulary."""
    embedding_key, encoder_key, decoder_key = jax.random.split(key, 3)
    params: Params = {
        "encoder": init_blocks(config, encoder_key),
        "encoder_norm": init_layer_norm(config.width),
        "decoder": [
            _init_decoder_block(config, block_key)
            for block_key in jax.random.split(decoder_key, config.layers)
        ],
        "decoder_norm": init_layer_norm(config.width),
    }
    if config.vocabulary:
        params["embedding"] = init_embedding(config, embedding_key)
    return params


def loss(config: EncoderDecoderConfig, remat: Remat, params: Params, batch: Batch) -> jax.Array:
    """Returns the cross-entropy of the next target token; without a vocabulary, the mean squared
    error."""
    source, target = batch["inputs"], batch["decoder_inputs"]
    if config.vocabulary:
        source = embed(params["embedding"], source, config.dtype)
        target = embed(params["embedding"], target, config.dtype)
    context = apply_blocks(params["encoder"], source, causal=False, pre_norm=True, remat=remat)
    context = layer_norm(params["encoder_norm"], context)
    block = _common.apply_remat(_decoder_block, remat)
    x = target
    for block_params in params["decoder"]:
        x = block(block_params, x, context)
    x = layer_norm(params["decoder_norm"], x)
    if not config.vocabulary:
        return _common.mean_squared_error(x, batch["targets"])
    head = params["embedding"]["token"].astype(x.dtype)
    return _common.cross_entropy(jnp.einsum("bsd,vd->bsv", x, head), batch["targets"])


def make_batch(config: EncoderDecoderConfig, seed: int = 0) -> Batch:
    """Returns "inputs" (the source), "decoder_inputs" (the target) and "targets" (its successors).

    They are random tokens [B, S], int32; without a vocabulary, normally distributed [B, S, D].
    """
    source_key, target_key, result_key = jax.random.split(jax.random.key(seed), 3)
    if not config.vocabulary:
        shape = (config.batch, config.sequence, config.width)
        return {
            "inputs": jax.random.normal(source_key, shape, config.dtype),
            "decoder_inputs": jax.random.normal(target_key, shape, config.dtype),
            "targets": jax.random.normal(result_key, shape, config.dtype),
        }
    shape = (config.batch, config.sequence)
    source = jax.random.randint(source_key, shape, 0, config.vocabulary, jnp.int32)
    longer = (config.batch, config.sequence + 1)
    target = jax.random.randint(target_key, longer, 0, config.vocabulary, jnp.int32)
    return {"inputs": source, "decoder_inputs": target[:, :-1], "targets": target[:, 1:]}


def _init_decoder_block(config: EncoderDecoderConfig, key: jax.Array) -> Params:
    keys = jax.random.split(key, 10)
    return {
        "attention_norm": init_layer_norm(config.width),
        "attention": init_attention(config, keys[:4]),
        "cross_norm": init_layer_norm(config.width),
        "cross": init_attention(config, keys[4:8]),
        "mlp_norm": init_layer_norm(config.width),
        "mlp": init_feed_forward(config, keys[8:]),
    }


def _decoder_block(params: Params, x: jax.Array, context: jax.Array) -> jax.Array:
    y = layer_norm(params["attention_norm"], x)
    x = x + attention(params["attention"], y, y, causal=True)
    y = layer_norm(params["cross_norm"], x)
    x = x + attention(params["cross"], y, context, causal=False)
    return x + feed_forward(params["mlp"], layer_norm(params["mlp_norm"], x))


_EXAMPLE = _common.Example(init_params, loss, adamw, make_batch)
make_train_step = _EXAMPLE.make_train_step
make_state = _EXAMPLE.make_state
abstract_state = _EXAMPLE.abstract_state
abstract_batch = _EXAMPLE.abstract_batch
