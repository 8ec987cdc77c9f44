"""Image models: convolutions with running statistics, windows, patches, masks, and pairs with
texts."""

import jax
import jax.numpy as jnp
import optax
from flax import linen

from benchmarks.field.program import (
    Made,
    adam,
    attention,
    cross_entropy,
    heads_of,
    integers,
    keys,
    normal,
    normalised,
    program,
    trained,
    weights,
)

_IMAGES = ("NHWC", "HWIO", "NHWC")


def convolved(x, kernel, stride=1, groups=1):
    """A convolution of images with padding."""
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        "SAME",
        dimension_numbers=_IMAGES,
        feature_group_count=groups,
    )


class _Residual(linen.Module):
    features: int
    stride: int

    @linen.compact
    def __call__(self, x, train):
        def normed(x):
            return linen.BatchNorm(use_running_average=not train, momentum=0.9)(x)

        y = linen.Conv(self.features, (3, 3), self.stride, use_bias=False)(x)
        y = linen.relu(normed(y))
        y = normed(linen.Conv(self.features, (3, 3), use_bias=False)(y))
        if y.shape != x.shape:
            x = normed(linen.Conv(self.features, (1, 1), self.stride, use_bias=False)(x))
        return linen.relu(x + y)


class _ResNet(linen.Module):
    width: int
    stages: int

    @linen.compact
    def __call__(self, x, train=True):
        x = linen.Conv(self.width, (7, 7), 2, use_bias=False)(x)
        x = linen.relu(linen.BatchNorm(use_running_average=not train)(x))
        x = linen.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage in range(self.stages):
            x = _Residual(self.width * 2**stage, 1 + (stage > 0))(x, train)
        return linen.Dense(100)(x.mean((1, 2)))


@program(
    small={"batch": 8, "size": 32, "width": 8, "stages": 2},
)
def resnet(batch: int = 256, size: int = 128, width: int = 64, stages: int = 4) -> Made:
    """ResNet in flax.linen (its ImageNet example): batch statistics as state, momentum, decay."""
    model = _ResNet(width, stages)
    updating = optax.sgd(0.1, momentum=0.9, nesterov=True)

    def step(state, batch):
        images, labels = batch

        def loss(params):
            held = {"params": params, "batch_stats": state["statistics"]}
            logits, after = model.apply(held, images, mutable=["batch_stats"])
            decay = sum(jnp.sum(p**2) for p in jax.tree.leaves(params) if p.ndim > 1)
            return cross_entropy(logits, labels) + 1e-4 * decay, (logits, after)

        (value, (logits, after)), grads = jax.value_and_grad(loss, has_aux=True)(state["params"])
        updates, moments = updating.update(grads, state["moments"])
        params = optax.apply_updates(state["params"], updates)
        accuracy = (logits.argmax(-1) == labels).mean()
        kept = {"params": params, "statistics": after["batch_stats"], "moments": moments}
        return kept, {"loss": value, "accuracy": accuracy}

    def init(key):
        images = normal(key, batch, size, size, 3)
        drawn = model.init(key, images)
        params = drawn["params"]
        moments = updating.init(params)
        state = {"params": params, "statistics": drawn["batch_stats"], "moments": moments}
        return state, (images, integers(key, 100, batch))

    return step, init


@program(
    small={"batch": 8, "size": 16, "width": 8, "layers": 1},
)
def convnext(batch: int = 128, size: int = 128, width: int = 128, layers: int = 3) -> Made:
    """ConvNeXt: depthwise 7x7 convolutions, layer scale, stochastic depth."""

    def loss(params, batch):
        images, labels, key = batch
        x = normalised(convolved(images, params["stem"], 4))
        for number, p in enumerate(params["layers"]):
            h = normalised(convolved(x, p["depthwise"], groups=width))
            h = jax.nn.gelu(h @ p["up"]) @ p["down"]
            kept = jax.random.bernoulli(jax.random.fold_in(key, number), 0.9, (x.shape[0],))
            x = x + jnp.where(kept[:, None, None, None], h * (1 + p["scale"]), 0.0)
        return cross_entropy(normalised(x.mean((1, 2))) @ params["head"], labels)

    def params(key):
        parts = [
            weights(
                k,
                depthwise=(7, 7, 1, width),
                up=(width, 4 * width),
                down=(4 * width, width),
                scale=(width,),
            )
            for k in keys(key, layers)
        ]
        return {"layers": parts, **weights(key, stem=(4, 4, 3, width), head=(width, 100))}

    def data(key):
        return normal(key, batch, size, size, 3), integers(key, 100, batch), key

    return trained(loss, params, data, optax.adamw(1e-3, eps=1e-5))


@program(
    small={"batch": 8, "patches": 16, "width": 16, "layers": 2},
)
def mlp_mixer(batch: int = 256, patches: int = 196, width: int = 512, layers: int = 4) -> Made:
    """MLP-Mixer: mixes over patches and over channels, layers scanned."""

    def loss(params, batch):
        x, labels = batch

        def block(x, p):
            h = jnp.swapaxes(normalised(x), 1, 2)
            x = x + jnp.swapaxes(jax.nn.gelu(h @ p["t_up"]) @ p["t_down"], 1, 2)
            return x + jax.nn.gelu(normalised(x) @ p["c_up"]) @ p["c_down"], None

        x, _ = jax.lax.scan(block, x @ params["stem"], params["layers"])
        return cross_entropy(x.mean(1) @ params["head"], labels)

    def params(key):
        parts = [
            weights(
                k,
                t_up=(patches, 256),
                t_down=(256, patches),
                c_up=(width, 4 * width),
                c_down=(4 * width, width),
            )
            for k in keys(key, layers)
        ]
        stacked = jax.tree.map(lambda *p: jnp.stack(p), *parts)
        return {"layers": stacked, **weights(key, stem=(48, width), head=(width, 100))}

    def data(key):
        return normal(key, batch, patches, 48), integers(key, 100, batch)

    return trained(loss, params, data)


@program(
    small={"batch": 8, "patches": 16, "width": 16, "heads": 2, "layers": 1},
)
def masked_autoencoder(
    batch: int = 256, patches: int = 196, width: int = 512, heads: int = 8, layers: int = 3
) -> Made:
    """Masked autoencoder: random patches kept by argsort and gather, light decoder."""
    pixels, seen = 48, patches // 4

    def block(p, x):
        h = normalised(x)
        q, k, v = (heads_of(h, p[name], heads) for name in ("q", "k", "v"))
        x = x + attention(q, k, v).reshape(x.shape) @ p["o"]
        return x + jax.nn.gelu(normalised(x) @ p["up"]) @ p["down"]

    def loss(params, batch):
        images, key = batch
        noise = jax.random.uniform(key, images.shape[:2])
        order = jnp.argsort(noise, axis=1)
        back = jnp.argsort(order, axis=1)
        x = images @ params["patch"] + params["positions"]
        x = jnp.take_along_axis(x, order[:, :seen, None], 1)
        for p in params["encoder"]:
            x = block(p, x)
        masks = jnp.broadcast_to(params["mask"], (x.shape[0], patches - seen, width))
        x = jnp.take_along_axis(jnp.concatenate([x, masks], 1), back[..., None], 1)
        x = block(params["decoder"], x + params["positions"]) @ params["pixels"]
        hidden = (back >= seen)[..., None]
        return jnp.sum(hidden * (x - images) ** 2) / (hidden.sum() * pixels)

    def params(key):
        shapes = {name: (width, width) for name in ("q", "k", "v", "o")}
        shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
        parts = [weights(k, **shapes) for k in keys(key, layers + 1)]
        ends = {"patch": (pixels, width), "pixels": (width, pixels), "positions": (patches, width)}
        return {
            "encoder": parts[1:],
            "decoder": parts[0],
            "mask": jnp.zeros((width,)),
            **weights(key, **ends),
        }

    def data(key):
        return normal(key, batch, patches, pixels), key

    return trained(loss, params, data)


@program(
    small={"batch": 8, "size": 8, "window": 4, "width": 16, "heads": 2},
)
def swin(
    batch: int = 128, size: int = 56, window: int = 7, width: int = 128, heads: int = 4
) -> Made:
    """Swin: attention in shifted windows, relative position biases, patches merged."""

    def windows(x):
        b, h, w, c = x.shape
        x = x.reshape(b, h // window, window, w // window, window, c)
        return jnp.swapaxes(x, 2, 3).reshape(-1, window * window, c)

    def whole(x, shape):
        b, h, w, c = shape
        x = x.reshape(b, h // window, w // window, window, window, c)
        return jnp.swapaxes(x, 2, 3).reshape(shape)

    def relative():
        at = jnp.stack(jnp.meshgrid(jnp.arange(window), jnp.arange(window), indexing="ij"), -1)
        at = at.reshape(-1, 2)
        gaps = at[:, None] - at[None] + window - 1
        return gaps[..., 0] * (2 * window - 1) + gaps[..., 1]

    def block(p, x, shift):
        h = jnp.roll(normalised(x), (-shift, -shift), (1, 2))
        parts = windows(h)
        q, k, v = (heads_of(parts, p[name], heads) for name in ("q", "k", "v"))
        scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / q.shape[-1] ** 0.5
        scores = scores + jnp.moveaxis(p["bias"][relative()], -1, 0)
        mixed = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), v).reshape(parts.shape)
        x = x + jnp.roll(whole(mixed @ p["o"], x.shape), (shift, shift), (1, 2))
        return x + jax.nn.gelu(normalised(x) @ p["up"]) @ p["down"]

    def loss(params, batch):
        x, labels = batch
        x = x @ params["stem"]
        for number, p in enumerate(params["layers"]):
            x = block(p, x, (number % 2) * (window // 2))
        b, h, w, c = x.shape
        x = x.reshape(b, h // 2, 2, w // 2, 2, c)
        x = jnp.swapaxes(x, 2, 3).reshape(b, h // 2, w // 2, 4 * c) @ params["merge"]
        return cross_entropy(normalised(x).mean((1, 2)) @ params["head"], labels)

    def params(key):
        shapes = {name: (width, width) for name in ("q", "k", "v", "o")}
        shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
        shapes |= {"bias": ((2 * window - 1) ** 2, heads)}
        parts = [weights(k, **shapes) for k in keys(key, 2)]
        ends = {"stem": (48, width), "merge": (4 * width, 2 * width), "head": (2 * width, 100)}
        return {"layers": parts, **weights(key, **ends)}

    def data(key):
        return normal(key, batch, size, size, 48), integers(key, 100, batch)

    return trained(loss, params, data)


@program(
    small={"batch": 16, "patches": 8, "words": 8, "width": 16, "heads": 2, "vocabulary": 32},
)
def clip(
    batch: int = 1024,
    patches: int = 49,
    words: int = 64,
    width: int = 512,
    heads: int = 8,
    vocabulary: int = 16384,
) -> Made:
    """CLIP: two transformers, a learned temperature, contrast over the whole batch."""

    def block(p, x, mask):
        h = normalised(x)
        q, k, v = (heads_of(h, p[name], heads) for name in ("q", "k", "v"))
        x = x + attention(q, k, v, mask).reshape(x.shape) @ p["o"]
        return x + jax.nn.gelu(normalised(x) @ p["up"]) @ p["down"]

    def unit(x):
        return x / jnp.sqrt(jnp.sum(x**2, -1, keepdims=True) + 1e-6)

    def loss(params, batch):
        images, texts = batch
        x = block(params["image"], images @ params["patch"], None).mean(1)
        mask = jnp.tril(jnp.ones((words, words), bool))
        y = block(params["text"], params["embedding"][texts], mask)
        ends = texts.argmax(-1)
        y = jnp.take_along_axis(y, ends[:, None, None], 1)[:, 0]
        left, right = unit(x @ params["left"]), unit(y @ params["right"])
        scores = jnp.exp(params["temperature"]) * left @ right.T
        labels = jnp.arange(scores.shape[0])
        return 0.5 * (cross_entropy(scores, labels) + cross_entropy(scores.T, labels))

    def params(key):
        shapes = {name: (width, width) for name in ("q", "k", "v", "o")}
        shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
        first, second, third = keys(key, 3)
        ends = {
            "patch": (768, width),
            "embedding": (vocabulary, width),
            "left": (width, width),
            "right": (width, width),
        }
        return {
            "image": weights(first, **shapes),
            "text": weights(second, **shapes),
            "temperature": jnp.zeros(()),
            **weights(third, **ends),
        }

    def data(key):
        return normal(key, batch, patches, 768), integers(key, vocabulary, batch, words)

    return trained(loss, params, data)


@program(
    small={"batch": 8, "patches": 8, "width": 16, "prototypes": 32},
)
def ema_teacher(
    batch: int = 256, patches: int = 196, width: int = 384, prototypes: int = 8192
) -> Made:
    """DINO and distillation: a teacher that is the student's average, centring, two views."""
    updating = adam()

    def network(p, x):
        x = x @ p["patch"]
        h = normalised(x)
        q, k, v = (heads_of(h, p[name], 2) for name in ("q", "k", "v"))
        x = x + attention(q, k, v).reshape(x.shape) @ p["o"]
        x = x + jax.nn.gelu(normalised(x) @ p["up"]) @ p["down"]
        return normalised(x.mean(1)) @ p["prototypes"]

    def step(state, views):
        first, second = views

        def loss(params):
            teacher = jax.lax.stop_gradient(network(state["teacher"], first))
            student = jax.nn.log_softmax(network(params, second) / 0.1)
            goal = jax.nn.softmax((teacher - state["centre"]) / 0.04)
            return -(goal * student).sum(-1).mean(), teacher.mean(0)

        (value, centre), grads = jax.value_and_grad(loss, has_aux=True)(state["student"])
        updates, moments = updating.update(grads, state["moments"])
        student = optax.apply_updates(state["student"], updates)
        return {
            "student": student,
            "teacher": optax.incremental_update(student, state["teacher"], 0.004),
            "centre": 0.9 * state["centre"] + 0.1 * centre,
            "moments": moments,
        }, value

    def init(key):
        shapes = {name: (width, width) for name in ("q", "k", "v", "o")}
        shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
        shapes |= {"patch": (192, width), "prototypes": (width, prototypes)}
        params = weights(key, **shapes)
        state = {
            "student": params,
            "teacher": jax.tree.map(lambda p: 0.9 * p, params),
            "centre": jnp.zeros((prototypes,)),
            "moments": updating.init(params),
        }
        return state, (normal(key, batch, patches, 192), normal(key, batch, patches, 192))

    return step, init


@program(
    small={"batch": 8, "size": 16, "width": 8},
)
def unet_segmentation(batch: int = 64, size: int = 128, width: int = 32) -> Made:
    """U-Net segmentation (scenic): a pyramid, jax.image upsampling, skips, dice."""

    def twice(p, x):
        return jax.nn.relu(convolved(jax.nn.relu(convolved(x, p["first"])), p["second"]))

    def pooled(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")

    def enlarged(x):
        b, h, w, c = x.shape
        return jax.image.resize(x, (b, 2 * h, 2 * w, c), "bilinear")

    def loss(params, batch):
        images, masks = batch
        high = twice(params["a"], images)
        middle = twice(params["b"], pooled(high))
        low = twice(params["c"], pooled(middle))
        up = twice(params["d"], jnp.concatenate([enlarged(low), middle], -1))
        up = twice(params["e"], jnp.concatenate([enlarged(up), high], -1))
        shares = jax.nn.sigmoid(convolved(up, params["last"])[..., 0])
        overlap = (shares * masks).sum((1, 2))
        return 1 - (2 * overlap / ((shares + masks).sum((1, 2)) + 1.0)).mean()

    def params(key):
        w = width
        sizes = ((3, w), (w, 2 * w), (2 * w, 4 * w), (6 * w, 2 * w), (3 * w, w))
        parts = {
            name: weights(k, first=(3, 3, a, b), second=(3, 3, b, b))
            for name, k, (a, b) in zip("abcde", keys(key, 5), sizes, strict=True)
        }
        return {**parts, **weights(key, last=(1, 1, w, 1))}

    def data(key):
        masks = (normal(key, batch, size, size) > 0).astype(jnp.float32)
        return normal(key, batch, size, size, 3), masks

    return trained(loss, params, data)
