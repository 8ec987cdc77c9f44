"""Whole models: their inputs, their blocks in order, and their objectives.

A family draws one `Objective` for each part of the parameters that is trained separately: one, or
two if a generator is trained against a discriminator.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sampled import losses
from benchmarks.sampled.blocks import (
    CROSS_ATTENTION,
    IMAGE_BLOCKS,
    SEQUENCE_BLOCKS,
    Block,
    Kind,
    draw_block,
)
from benchmarks.sampled.blocks.block import Context, Params, kernel, keys
from benchmarks.sampled.blocks.images import convolve
from benchmarks.sampled.blocks.norms import SEQUENCE_NORMS, draw_norm, norm_params, residual
from benchmarks.sampled.drawing import Drawing
from benchmarks.sampled.layers import Layers, draw_layers
from benchmarks.sampled.sizes import Sizes

Batch = Mapping[str, Any]


@dataclass(frozen=True)
class Objective:
    """The function that is minimised over a part of the parameters.

    - `part`: the part's key among the model's parameters; "" if all are trained together.
    - `loss`: `loss(params, batch, key)`, a float32 scalar. It takes all parameters; those outside
      of the part count as constants.
    """

    part: str
    loss: Callable[[Params, Batch, jax.Array], jax.Array]


@dataclass(frozen=True)
class Family:
    """A drawn model, before the choices of its training.

    - `kinds`: the kinds of its blocks.
    - `init`: a function from a key to float32 parameters.
    - `batch`: a function from a number of examples to the types of a batch.
    """

    name: str
    kinds: tuple[str, ...]
    objectives: tuple[Objective, ...]
    init: Callable[[jax.Array], Params]
    batch: Callable[[int], Batch]


def draw_family(draw: Drawing, sizes: Sizes) -> Family:
    """Draws one of the families by their weights."""
    names = tuple(_FAMILIES)
    name = draw.one_of("family", names, [_FAMILIES[n][1] for n in names])
    return _FAMILIES[name][0](draw, sizes)


def draw_alone(draw: Drawing, sizes: Sizes, number: int) -> Family:
    """Draws one block behind a norm, with a mean-square loss. `number` selects the kind; kinds
    repeat."""
    kinds = {**SEQUENCE_BLOCKS, **IMAGE_BLOCKS}
    name = tuple(kinds)[number % len(kinds)]
    block = kinds[name].draw(draw.inside(name), sizes)
    shape: tuple[int, ...] = (sizes.image, sizes.image, sizes.channels)
    if name in SEQUENCE_BLOCKS:
        shape = (sizes.length, sizes.width)
        norm = draw_norm(draw.inside(name), SEQUENCE_NORMS)
        block = residual(block, norm, sizes.width)

    def loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        dtype = jax.tree.leaves(params)[0].dtype
        x = batch["features"].astype(dtype) * params["scale"]
        x = block.apply(params["block"], x, Context(key))
        return jnp.square(x.astype(jnp.float32)).mean()

    def init(key: jax.Array) -> Params:
        return {"block": block.init(key), "scale": jnp.ones(shape[-1])}

    def batch(count: int) -> Batch:
        return {"features": _floats(count, *shape)}

    return Family("one block", (block.kind,), (Objective("", loss),), init, batch)


def _integers(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _drawn_layer(
    draw: Drawing, sizes: Sizes, kinds: Mapping[str, Kind], count: int, *, cross: bool = False
) -> list[Block]:
    """Draws the blocks of one layer. Each block has a norm before it, and is added to its input."""
    blocks = []
    for number in range(count):
        inner = draw.inside(str(number))
        norm = draw_norm(inner, SEQUENCE_NORMS)
        blocks.append(residual(draw_block(inner, sizes, kinds), norm, sizes.width))
    if cross:
        inner = draw.inside("cross")
        norm = draw_norm(inner, SEQUENCE_NORMS)
        blocks.insert(1, residual(CROSS_ATTENTION.draw(inner, sizes), norm, sizes.width))
    return blocks


def _sequence_layers(draw: Drawing, sizes: Sizes, *, cross: bool = False) -> Layers:
    count = draw.one_of("blocks of a layer", (1, 2, 3), (1, 4, 1))
    blocks = _drawn_layer(draw, sizes, SEQUENCE_BLOCKS, count, cross=cross)
    return draw_layers(draw, sizes, blocks)


def _language_model(draw: Drawing, sizes: Sizes) -> Family:
    layers = _sequence_layers(draw.inside("layers"), sizes)
    norm = draw_norm(draw.inside("last"), SEQUENCE_NORMS)
    token_loss = losses.draw_token_loss(draw)
    tied = draw.chance("tied embedding", 0.5)
    embedded = draw.one_of("embedding", ("take", "one-hot matmul"), (4, 1))
    learned = draw.chance("learned positions", 0.4)
    vocabulary, width, length = sizes.vocabulary, sizes.width, sizes.length

    def init(key: jax.Array) -> Params:
        for_table, for_layers, for_head, for_positions = keys(key, 4)
        params = {
            "embedding": kernel(for_table, vocabulary, width, fan_in=width),
            "layers": layers.init(for_layers),
            "norm": norm_params(width),
        }
        if not tied:
            params["head"] = kernel(for_head, width, vocabulary)
        if learned:
            params["positions"] = kernel(for_positions, length, width, fan_in=width)
        return params

    def loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        tokens = batch["tokens"]
        table = params["embedding"]
        if embedded == "take":
            x = table[tokens]
        else:
            x = jax.nn.one_hot(tokens, vocabulary, dtype=table.dtype) @ table
        if learned:
            x = x + params["positions"]
        x = norm(params["norm"], layers.apply(params["layers"], x, Context(key)))
        return token_loss(x, table.T if tied else params["head"], batch["labels"])

    def batch(count: int) -> Batch:
        return {"tokens": _integers(count, length), "labels": _integers(count, length)}

    return Family("language model", layers.kinds, (Objective("", loss),), init, batch)


def _regression(draw: Drawing, sizes: Sizes) -> Family:
    layers = _sequence_layers(draw.inside("layers"), sizes)
    width, length = sizes.width, sizes.length
    wanted = draw.one_of("loss", ("squares", "absolute", "Huber"))

    def init(key: jax.Array) -> Params:
        for_layers, for_into, for_head = keys(key, 3)
        return {
            "layers": layers.init(for_layers),
            "into": kernel(for_into, width // 2, width),
            "head": kernel(for_head, width, width // 2),
        }

    def loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        x = batch["features"].astype(params["into"].dtype) @ params["into"]
        x = layers.apply(params["layers"], x, Context(key)) @ params["head"]
        error = x.astype(jnp.float32) - batch["target"]
        if wanted == "absolute":
            return jnp.abs(error).mean()
        if wanted == "Huber":
            near = 0.5 * jnp.square(error)
            return jnp.where(jnp.abs(error) < 1.0, near, jnp.abs(error) - 0.5).mean()
        return jnp.square(error).mean()

    def batch(count: int) -> Batch:
        shape = (count, length, width // 2)
        return {"features": _floats(*shape), "target": _floats(*shape)}

    return Family("regression of sequences", layers.kinds, (Objective("", loss),), init, batch)


def _translation(draw: Drawing, sizes: Sizes) -> Family:
    encoder = _sequence_layers(draw.inside("encoder"), sizes)
    decoder = _sequence_layers(draw.inside("decoder"), sizes, cross=True)
    token_loss = losses.draw_token_loss(draw)
    vocabulary, width, length = sizes.vocabulary, sizes.width, sizes.length

    def init(key: jax.Array) -> Params:
        for_table, for_encoder, for_decoder = keys(key, 3)
        return {
            "embedding": kernel(for_table, vocabulary, width, fan_in=width),
            "encoder": encoder.init(for_encoder),
            "decoder": decoder.init(for_decoder),
        }

    def loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        table = params["embedding"]
        first, second = keys(key, 2)
        memory = encoder.apply(params["encoder"], table[batch["source"]], Context(first))
        context = Context(second, memory)
        x = decoder.apply(params["decoder"], table[batch["tokens"]], context)
        return token_loss(x, table.T, batch["labels"])

    def batch(count: int) -> Batch:
        return {name: _integers(count, length) for name in ("source", "tokens", "labels")}

    kinds = (*encoder.kinds, *decoder.kinds)
    return Family("encoder and decoder", kinds, (Objective("", loss),), init, batch)


def _image_layers(draw: Drawing, sizes: Sizes) -> Layers:
    count = draw.one_of("blocks of a layer", (1, 2), (2, 1))
    blocks = [draw_block(draw.inside(str(k)), sizes, IMAGE_BLOCKS) for k in range(count)]
    return draw_layers(draw, sizes, blocks)


def _image_model(draw: Drawing, sizes: Sizes) -> Family:
    """Draws a classifier, or a model that predicts an image, like diffusion models."""
    layers = _image_layers(draw.inside("layers"), sizes)
    dense = draw.chance("predicts images", 0.4)
    stride = draw.one_of("stem stride", (1, 2))
    pooled = draw.one_of("head", ("mean", "max"))
    smoothed = draw.one_of("loss", ("optax", "one-hot", "smoothed"))
    image, channels, classes = sizes.image, sizes.channels, sizes.classes

    def init(key: jax.Array) -> Params:
        for_stem, for_layers, for_head = keys(key, 3)
        head = (3, 3, channels, 3) if dense else (channels, classes)
        return {
            "stem": kernel(for_stem, 3, 3, 3, channels, fan_in=27),
            "layers": layers.init(for_layers),
            "head": kernel(for_head, *head, fan_in=channels),
        }

    def loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        x = batch["image"].astype(params["stem"].dtype)
        x = jax.nn.relu(convolve(x, params["stem"], stride=1 if dense else stride))
        x = layers.apply(params["layers"], x, Context(key))
        if dense:
            error = convolve(x, params["head"]).astype(jnp.float32) - batch["target"]
            return jnp.square(error).mean()
        x = x.mean((1, 2)) if pooled == "mean" else x.max((1, 2))
        logits = (x @ params["head"]).astype(jnp.float32)
        return losses.cross_entropy(smoothed, logits, batch["labels"])

    def batch(count: int) -> Batch:
        given = {"image": _floats(count, image, image, 3)}
        wanted = {"target": given["image"]} if dense else {"labels": _integers(count)}
        return given | wanted

    return Family("images", layers.kinds, (Objective("", loss),), init, batch)


def _vision_transformer(draw: Drawing, sizes: Sizes) -> Family:
    side = next(s for s in (16, 14, 8, 7, 4, 2, 1) if sizes.image % s == 0)
    rows = sizes.image // side
    layers = _sequence_layers(draw.inside("layers"), replace(sizes, length=rows * rows))
    by = draw.one_of("patches", ("convolution", "reshape"))
    width, classes = sizes.width, sizes.classes

    def init(key: jax.Array) -> Params:
        for_patch, for_positions, for_layers, for_head = keys(key, 4)
        return {
            "patch": kernel(for_patch, side, side, 3, width, fan_in=3 * side * side),
            "positions": kernel(for_positions, rows * rows, width, fan_in=width),
            "layers": layers.init(for_layers),
            "head": kernel(for_head, width, classes),
        }

    def loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        image, patch = batch["image"].astype(params["patch"].dtype), params["patch"]
        count = image.shape[0]
        if by == "convolution":
            dimensions = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(
                image, patch, (side, side), "VALID", dimension_numbers=dimensions
            ).reshape(count, rows * rows, width)
        else:
            parts = image.reshape(count, rows, side, rows, side, 3).transpose(0, 1, 3, 2, 4, 5)
            x = parts.reshape(count, rows * rows, -1) @ patch.reshape(-1, width)
        x = layers.apply(params["layers"], x + params["positions"], Context(key))
        logits = (x.mean(1) @ params["head"]).astype(jnp.float32)
        return losses.cross_entropy("optax", logits, batch["labels"])

    def batch(count: int) -> Batch:
        size = sizes.image
        return {"image": _floats(count, size, size, 3), "labels": _integers(count)}

    return Family("vision transformer", layers.kinds, (Objective("", loss),), init, batch)


def _pairs(draw: Drawing, sizes: Sizes) -> Family:
    """Draws a model of texts and images under a contrastive loss."""
    texts = _sequence_layers(draw.inside("texts"), sizes)
    images = _image_layers(draw.inside("images"), sizes)
    width, channels, vocabulary = sizes.width, sizes.channels, sizes.vocabulary

    def init(key: jax.Array) -> Params:
        for_table, for_texts, for_images, for_stem, for_head = keys(key, 5)
        return {
            "embedding": kernel(for_table, vocabulary, width, fan_in=width),
            "texts": texts.init(for_texts),
            "stem": kernel(for_stem, 3, 3, 3, channels, fan_in=27),
            "images": images.init(for_images),
            "head": kernel(for_head, channels, width),
            "scale": jnp.zeros(()),
        }

    def loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        first, second = keys(key, 2)
        words = params["embedding"][batch["tokens"]]
        text = texts.apply(params["texts"], words, Context(first)).mean(1)
        x = convolve(batch["image"].astype(params["stem"].dtype), params["stem"], stride=2)
        image = images.apply(params["images"], x, Context(second)).mean((1, 2)) @ params["head"]
        return losses.contrastive(text, image, params["scale"].astype(jnp.float32))

    def batch(count: int) -> Batch:
        size = sizes.image
        return {"tokens": _integers(count, sizes.length), "image": _floats(count, size, size, 3)}

    kinds = (*texts.kinds, *images.kinds)
    return Family("contrastive pairs", kinds, (Objective("", loss),), init, batch)


def _adversarial(draw: Drawing, sizes: Sizes) -> Family:
    """Draws a generator of images and a discriminator, each with an objective."""
    judge = _image_layers(draw.inside("discriminator"), sizes)
    wanted = draw.one_of("loss", ("logistic", "hinge"))
    up = draw.one_of("generator", ("transposed", "resized"))
    channels, width = sizes.channels, sizes.width
    small = sizes.image // 4

    def init(key: jax.Array) -> Params:
        first, second, third, fourth, fifth, sixth = keys(key, 6)
        return {
            "generator": {
                "into": kernel(first, width, small * small * channels),
                "middle": kernel(second, 4, 4, channels, channels, fan_in=16 * channels),
                "last": kernel(third, 4, 4, channels, 3, fan_in=16 * channels),
            },
            "discriminator": {
                "stem": kernel(fourth, 3, 3, 3, channels, fan_in=27),
                "layers": judge.init(fifth),
                "head": kernel(sixth, channels, 1),
            },
        }

    def enlarged(x: jax.Array, weights: jax.Array) -> jax.Array:
        dimensions = ("NHWC", "HWIO", "NHWC")
        if up == "transposed":
            return jax.lax.conv_transpose(x, weights, (2, 2), "SAME", dimension_numbers=dimensions)
        shape = (x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3])
        return convolve(jax.image.resize(x, shape, "nearest"), weights)

    def generated(params: Params, noise: jax.Array) -> jax.Array:
        x = (noise.astype(params["into"].dtype) @ params["into"]).reshape(
            -1, small, small, channels
        )
        x = jax.nn.relu(enlarged(jax.nn.relu(x), params["middle"]))
        return jnp.tanh(enlarged(x, params["last"]))

    def judged(params: Params, image: jax.Array, key: jax.Array) -> jax.Array:
        x = jax.nn.leaky_relu(convolve(image.astype(params["stem"].dtype), params["stem"]))
        x = judge.apply(params["layers"], x, Context(key)).mean((1, 2))
        return (x @ params["head"]).astype(jnp.float32)

    def generator_loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        image = generated(params["generator"], batch["noise"])
        logits = judged(params["discriminator"], image, key)
        return jax.nn.softplus(-logits).mean() if wanted == "logistic" else -logits.mean()

    def discriminator_loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        image = jax.lax.stop_gradient(generated(params["generator"], batch["noise"]))
        false = judged(params["discriminator"], image, key)
        true = judged(params["discriminator"], batch["image"], key)
        if wanted == "hinge":
            return (jax.nn.relu(1 - true) + jax.nn.relu(1 + false)).mean()
        return (jax.nn.softplus(-true) + jax.nn.softplus(false)).mean()

    def batch(count: int) -> Batch:
        size = 4 * small
        return {"noise": _floats(count, width), "image": _floats(count, size, size, 3)}

    objectives = (
        Objective("generator", generator_loss),
        Objective("discriminator", discriminator_loss),
    )
    return Family("adversarial", judge.kinds, objectives, init, batch)


def _graph(draw: Drawing, sizes: Sizes) -> Family:
    """Draws a network on graphs: messages along the edges are gathered, mapped, and summed by
    segments."""
    rounds = draw.one_of("rounds", (1, 2, 3))
    summed = draw.one_of("summed by", ("segment_sum", "segment_max", "at[].add"))
    attention = draw.chance("edges weighted by a softmax", 0.4)
    width, classes = sizes.width, sizes.classes
    edges_of_node = draw.one_of("edges of a node", (4, 8, 16))

    def init(key: jax.Array) -> Params:
        for_into, for_head, *for_rounds = keys(key, 2 + rounds)
        params = {"head": kernel(for_head, width, classes), "into": kernel(for_into, 64, width)}
        for number, for_round in enumerate(for_rounds):
            first, second, third = keys(for_round, 3)
            params[f"round_{number}"] = {
                "message": kernel(first, 2 * width, width),
                "out": kernel(second, width, width),
                "score": kernel(third, width, 1),
            }
        return params

    def collected(messages: jax.Array, targets: jax.Array, nodes: int) -> jax.Array:
        if summed == "at[].add":
            return jnp.zeros((nodes, width), messages.dtype).at[targets].add(messages)
        if summed == "segment_max":
            largest = jax.ops.segment_max(messages, targets, nodes)
            return jnp.where(jnp.isfinite(largest), largest, jnp.zeros((), largest.dtype))
        return jax.ops.segment_sum(messages, targets, nodes)

    def loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        x = batch["features"].astype(params["into"].dtype) @ params["into"]
        nodes, sources, targets = x.shape[0], batch["sources"], batch["targets"]
        for number in range(rounds):
            part = params[f"round_{number}"]
            ends = jnp.concatenate([x[sources], x[targets]], axis=-1)
            messages = jax.nn.relu(ends @ part["message"])
            if attention:
                scores = (messages @ part["score"])[:, 0]
                scores = scores - jax.ops.segment_max(scores, targets, nodes)[targets]
                raised = jnp.exp(scores)
                total = jax.ops.segment_sum(raised, targets, nodes)[targets]
                messages = messages * (raised / (total + 1e-6))[:, None]
            x = x + collected(messages, targets, nodes) @ part["out"]
        logits = (x @ params["head"]).astype(jnp.float32)
        return losses.cross_entropy("optax", logits, batch["labels"])

    def batch(count: int) -> Batch:
        nodes = count * 16
        ends = _integers(nodes * edges_of_node)
        return {
            "features": _floats(nodes, 64),
            "sources": ends,
            "targets": ends,
            "labels": _integers(nodes),
        }

    return Family("graph", (f"graph by {summed}",), (Objective("", loss),), init, batch)


_FAMILIES: Mapping[str, tuple[Callable[[Drawing, Sizes], Family], float]] = {
    "language model": (_language_model, 5),
    "regression": (_regression, 3),
    "translation": (_translation, 1.5),
    "images": (_image_model, 3.5),
    "vision transformer": (_vision_transformer, 1.5),
    "pairs": (_pairs, 1),
    "adversarial": (_adversarial, 1),
    "graph": (_graph, 1.5),
}
"""The function that draws each family, and the family's weight."""
