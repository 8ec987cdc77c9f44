"""Generative models: diffusion, autoencoders, flows, adversarial networks and radiance fields."""

import jax
import jax.numpy as jnp
import optax

from benchmarks.field.program import (
    Made,
    adam,
    attention,
    descended,
    heads_of,
    integers,
    keys,
    normal,
    normalised,
    program,
    trained,
    weights,
)
from benchmarks.field.vision import convolved


def _waves(times, width):
    rates = jnp.exp(-jnp.arange(width // 2) / (width // 2) * 9.0)
    angles = times[:, None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)


@program(
    small={"batch": 8, "patches": 8, "width": 16, "heads": 2, "layers": 1},
)
def dit(
    batch: int = 128, patches: int = 256, width: int = 512, heads: int = 8, layers: int = 3
) -> Made:
    """DiT: adaptive layer norms by time and class, exponential moving average of the weights."""
    channels = 16
    updating = adam(1e-4)

    def velocity(params, x, times, labels):
        condition = jax.nn.silu(_waves(times, width) @ params["time"] + params["class"][labels])
        x = x @ params["patch"]
        for p in params["layers"]:
            parts = jnp.split((condition @ p["modulate"])[:, None], 6, -1)
            shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = parts
            h = normalised(x) * (1 + scale_a) + shift_a
            q, k, v = (heads_of(h, p[name], heads) for name in ("q", "k", "v"))
            x = x + gate_a * (attention(q, k, v).reshape(x.shape) @ p["o"])
            h = normalised(x) * (1 + scale_m) + shift_m
            x = x + gate_m * (jax.nn.gelu(h @ p["up"]) @ p["down"])
        return normalised(x) @ params["out"]

    def step(state, batch):
        latents, labels, key = batch
        first, second = jax.random.split(key)
        times = jax.random.uniform(first, labels.shape)
        noise = jax.random.normal(second, latents.shape)
        at = times[:, None, None]

        def loss(params):
            guess = velocity(params, (1 - at) * latents + at * noise, 1000 * times, labels)
            return jnp.mean((guess - (noise - latents)) ** 2)

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, moments = updating.update(grads, state["moments"])
        params = optax.apply_updates(state["params"], updates)
        average = optax.incremental_update(params, state["average"], 1e-3)
        return {"params": params, "average": average, "moments": moments}, value

    def init(key):
        shapes = {name: (width, width) for name in ("q", "k", "v", "o")}
        shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
        shapes |= {"modulate": (width, 6 * width)}
        parts = [weights(k, **shapes) for k in keys(key, layers)]
        ends = {"time": (width, width), "class": (100, width)}
        ends |= {"patch": (channels, width), "out": (width, channels)}
        params = {"layers": parts, **weights(key, **ends)}
        state = {"params": params, "average": params, "moments": updating.init(params)}
        return state, (normal(key, batch, patches, channels), integers(key, 100, batch), key)

    return step, init


@program(
    small={"batch": 8, "size": 8, "width": 8},
)
def unet_diffusion(batch: int = 64, size: int = 64, width: int = 64) -> Made:
    """U-Net diffusion (DDPM, Imagen): convolutions, group norms, attention at low resolution."""

    def grouped(x):
        b, h, w, c = x.shape
        x = x.reshape(b, h * w, 8, c // 8)
        x = x - x.mean((1, 3), keepdims=True)
        x = x * jax.lax.rsqrt((x**2).mean((1, 3), keepdims=True) + 1e-5)
        return x.reshape(b, h, w, c)

    def block(p, x, t):
        h = convolved(jax.nn.silu(grouped(x)), p["first"]) + (t @ p["time"])[:, None, None]
        h = convolved(jax.nn.silu(grouped(h)), p["second"])
        return h + (x @ p["skip"])

    def attend(p, x):
        b, h, w, c = x.shape
        flat = grouped(x).reshape(b, h * w, c)
        q, k, v = (heads_of(flat, p[name], 1) for name in ("q", "k", "v"))
        return x + (attention(q, k, v).reshape(b, h * w, c) @ p["o"]).reshape(x.shape)

    def loss(params, batch):
        images, noise, times = batch
        t = jax.nn.silu(_waves(times, width) @ params["t"])
        share = jnp.cos(times / 1000 * 1.5)[:, None, None, None]
        x = share * images + jnp.sqrt(1 - share**2) * noise
        high = block(params["a"], convolved(x, params["stem"]), t)
        low = block(params["b"], convolved(high, params["down"], 2), t)
        low = block(params["c"], attend(params["attention"], low), t)
        up = jnp.repeat(jnp.repeat(low, 2, 1), 2, 2)
        x = block(params["d"], jnp.concatenate([up, high], -1), t)
        return jnp.mean((convolved(jax.nn.silu(grouped(x)), params["last"]) - noise) ** 2)

    def params(key):
        w = width
        sizes = {"a": (w, w), "b": (2 * w, 2 * w), "c": (2 * w, 2 * w), "d": (3 * w, w)}
        blocks = {
            name: weights(k, first=(3, 3, i, o), second=(3, 3, o, o), time=(4 * w, o), skip=(i, o))
            for (name, (i, o)), k in zip(sizes.items(), keys(key, 4), strict=True)
        }
        square = {name: (2 * w, 2 * w) for name in ("q", "k", "v", "o")}
        ends = {"t": (w, 4 * w), "stem": (3, 3, 3, w), "down": (3, 3, w, 2 * w)}
        ends |= {"last": (3, 3, w, 3)}
        return {**blocks, "attention": weights(key, **square), **weights(key, **ends)}

    def data(key):
        images = normal(key, batch, size, size, 3)
        return images, images[::-1], jax.random.uniform(key, (batch,)) * 1000

    return trained(loss, params, data)


@program(
    small={"batch": 8, "size": 8, "width": 8, "codes": 16},
)
def vq_vae(batch: int = 128, size: int = 64, width: int = 128, codes: int = 1024) -> Made:
    """VQ-VAE: nearest codes by distances and argmin, straight-through, codebook by averages."""
    updating = adam()

    def step(state, images):
        book = state["sums"] / state["counts"][:, None]

        def loss(p):
            z = convolved(jax.nn.relu(convolved(images, p["a"], 2)), p["b"], 2)
            flat = z.reshape(-1, width)
            far = (flat**2).sum(1, keepdims=True) - 2 * flat @ book.T + (book**2).sum(1)
            picked = far.argmin(1)
            quantised = book[picked].reshape(z.shape)
            through = z + jax.lax.stop_gradient(quantised - z)
            h = jax.nn.relu(
                jax.image.resize(through @ p["c"], (batch, size, size, width), "nearest")
            )
            rebuilt = convolved(h, p["d"])
            commit = jnp.mean((z - jax.lax.stop_gradient(quantised)) ** 2)
            return jnp.mean((rebuilt - images) ** 2) + 0.25 * commit, (flat, picked)

        (value, (flat, picked)), grads = jax.value_and_grad(loss, has_aux=True)(state["params"])
        hot = jax.nn.one_hot(picked, codes)
        updates, moments = updating.update(grads, state["moments"])
        return {
            "params": optax.apply_updates(state["params"], updates),
            "moments": moments,
            "counts": 0.99 * state["counts"] + 0.01 * hot.sum(0),
            "sums": 0.99 * state["sums"] + 0.01 * hot.T @ flat,
        }, value

    def init(key):
        shapes = {"a": (4, 4, 3, width), "b": (4, 4, width, width), "c": (width, width)}
        params = weights(key, **shapes, d=(3, 3, width, 3))
        state = {
            "params": params,
            "moments": updating.init(params),
            "counts": jnp.ones((codes,)),
            "sums": normal(key, codes, width),
        }
        return state, normal(key, batch, size, size, 3)

    return step, init


@program(
    small={"batch": 16, "pixels": 16, "width": 16, "latents": 4},
)
def vae(batch: int = 16384, pixels: int = 784, width: int = 2048, latents: int = 64) -> Made:
    """VAE (the Flax example): reparametrised samples with a key split in the step."""
    updating = adam()

    def step(state, images):
        params, moments, key = state
        key, sample_key = jax.random.split(key)

        def loss(p):
            h = jax.nn.relu(images @ p["encode"] + p["encode_bias"])
            mean, log = h @ p["mean"], h @ p["log"]
            z = mean + jnp.exp(0.5 * log) * jax.random.normal(sample_key, mean.shape)
            logits = jax.nn.relu(z @ p["decode"]) @ p["pixels"]
            likely = optax.sigmoid_binary_cross_entropy(logits, jax.nn.sigmoid(images))
            divergence = -0.5 * (1 + log - mean**2 - jnp.exp(log)).sum(-1)
            return likely.sum(-1).mean() + divergence.mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, moments = updating.update(grads, moments)
        return (optax.apply_updates(params, updates), moments, key), value

    def init(key):
        params = weights(
            key,
            encode=(pixels, width),
            encode_bias=(width,),
            mean=(width, latents),
            log=(width, latents),
            decode=(latents, width),
            pixels=(width, pixels),
        )
        return (params, updating.init(params), key), normal(key, batch, pixels)

    return step, init


@program(
    small={"batch": 8, "width": 8, "latents": 8},
)
def dcgan(batch: int = 512, width: int = 64, latents: int = 128) -> Made:
    """DCGAN: generator and discriminator updated in one step, transposed convolutions."""
    updating = adam(2e-4)

    def enlarged(x, kernel):
        return jax.lax.conv_transpose(
            x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def generate(p, z):
        x = jax.nn.relu((z @ p["project"]).reshape(z.shape[0], 4, 4, 4 * width))
        x = jax.nn.relu(normalised(enlarged(x, p["a"])))
        x = jax.nn.relu(normalised(enlarged(x, p["b"])))
        return jnp.tanh(enlarged(x, p["c"]))

    def judge(p, x):
        x = jax.nn.leaky_relu(convolved(x, p["a"], 2))
        x = jax.nn.leaky_relu(normalised(convolved(x, p["b"], 2)))
        x = jax.nn.leaky_relu(normalised(convolved(x, p["c"], 2)))
        return x.reshape(x.shape[0], -1) @ p["last"]

    def step(state, images, key):
        z = jax.random.normal(key, (images.shape[0], latents))

        def deceive(p):
            return jax.nn.softplus(-judge(state["judge"], generate(p, z))).mean()

        def tell_apart(p):
            fake = jax.lax.stop_gradient(generate(state["generator"], z))
            return (jax.nn.softplus(-judge(p, images)) + jax.nn.softplus(judge(p, fake))).mean()

        kept, values = {}, []
        for name, loss in (("generator", deceive), ("judge", tell_apart)):
            value, grads = jax.value_and_grad(loss)(state[name])
            updates, kept[f"{name}_moments"] = updating.update(grads, state[f"{name}_moments"])
            kept[name] = optax.apply_updates(state[name], updates)
            values.append(value)
        return kept, values

    def init(key):
        w = width
        first = {"project": (latents, 64 * w), "a": (4, 4, 4 * w, 2 * w)}
        first |= {"b": (4, 4, 2 * w, w), "c": (4, 4, w, 3)}
        second = {"a": (4, 4, 3, w), "b": (4, 4, w, 2 * w), "c": (4, 4, 2 * w, 4 * w)}
        second |= {"last": (64 * w, 1)}
        state = {"generator": weights(key, **first), "judge": weights(key, **second)}
        state |= {f"{name}_moments": updating.init(p) for name, p in list(state.items())}
        return state, normal(key, batch, 32, 32, 3), key

    return step, init


@program(
    small={"rays": 16, "samples": 8, "width": 16, "layers": 2},
)
def nerf(rays: int = 4096, samples: int = 128, width: int = 256, layers: int = 6) -> Made:
    """NeRF: positional encodings, samples along rays, compositing by cumulative products."""

    def encoded(x, bands):
        angles = x[..., None, :] * 2.0 ** jnp.arange(bands)[:, None]
        waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -2)
        return jnp.concatenate([x, waves.reshape(*x.shape[:-1], -1)], -1)

    def loss(params, batch):
        origins, directions, colours, key = batch
        steps = jnp.linspace(2.0, 6.0, samples)
        steps = steps + jax.random.uniform(key, (rays, samples)) * 4.0 / samples
        points = origins[:, None] + steps[..., None] * directions[:, None]
        x = start = encoded(points, 6)
        for number, p in enumerate(params["layers"]):
            x = jnp.concatenate([x, start], -1) if number == layers // 2 else x
            x = jax.nn.relu(x @ p)
        density = jax.nn.relu(x @ params["density"])[..., 0]
        facing = jnp.broadcast_to(encoded(directions, 2)[:, None], (rays, samples, 15))
        colour = jax.nn.sigmoid(jnp.concatenate([x, facing], -1) @ params["colour"])
        gaps = jnp.diff(steps, append=steps[:, -1:] + 0.1)
        opaque = 1 - jnp.exp(-density * gaps)
        clear = jnp.cumprod(1 - opaque + 1e-6, -1)
        seen = opaque * jnp.concatenate([jnp.ones((rays, 1)), clear[:, :-1]], -1)
        return jnp.mean(((seen[..., None] * colour).sum(1) - colours) ** 2)

    def params(key):
        drawn = []
        for number, k in enumerate(keys(key, layers)):
            inputs = 39 if number == 0 else width + (39 if number == layers // 2 else 0)
            drawn.append(weights(k, w=(inputs, width))["w"])
        return {"layers": drawn, **weights(key, density=(width, 1), colour=(width + 15, 3))}

    def data(key):
        return normal(key, rays, 3), normal(key, rays, 3), jax.random.uniform(key, (rays, 3)), key

    return trained(loss, params, data)


@program(
    small={"batch": 8, "size": 4, "width": 16, "layers": 2},
)
def glow(batch: int = 128, size: int = 16, width: int = 256, layers: int = 3) -> Made:
    """Glow: affine couplings, invertible 1x1 convolutions by slogdet, exact likelihood."""
    channels = 48

    def loss(params, x):
        total = 0.0
        for p in params:
            x = (x + p["shift"]) * jnp.exp(p["scale"])
            x = x @ p["mix"]
            total += size * size * (p["scale"].sum() + jnp.linalg.slogdet(p["mix"])[1])
            left, right = jnp.split(x, 2, -1)
            h = jax.nn.relu(convolved(left, p["a"]))
            h = convolved(jax.nn.relu(h @ p["b"]), p["c"])
            log, move = jnp.split(h, 2, -1)
            log = jnp.tanh(log)
            x = jnp.concatenate([left, right * jnp.exp(log) + move], -1)
            total += log.sum((1, 2, 3))
        likely = -0.5 * (x**2).sum((1, 2, 3)) + total
        return -likely.mean() / (size * size * channels)

    def params(key):
        half = channels // 2

        def layer(key):
            shapes = {"a": (3, 3, half, width), "b": (width, width), "c": (3, 3, width, channels)}
            mix = jnp.linalg.qr(normal(key, channels, channels))[0]
            return {**weights(key, **shapes, shift=(channels,), scale=(channels,)), "mix": mix}

        return [layer(k) for k in keys(key, layers)]

    return descended(loss, params, lambda key: normal(key, batch, size, size, channels), 1e-3)


@program(
    small={"batch": 16, "size": 8, "hidden": 16, "layers": 2},
)
def masked_flow(batch: int = 8192, size: int = 256, hidden: int = 1024, layers: int = 4) -> Made:
    """Autoregressive flow (RealNVP, density estimation): masked linear layers, scanned."""

    def loss(params, x):
        order = jnp.arange(size)
        degrees = jnp.arange(hidden) % (size - 1)
        first = (degrees[None] >= order[:, None]).astype(jnp.float32)
        second = (order[None] > degrees[:, None]).astype(jnp.float32)

        def layer(carry, p):
            x, total = carry
            h = jax.nn.relu(x @ (p["up"] * first) + p["bias"])
            move, log = h @ (p["move"] * second), jnp.tanh(h @ (p["log"] * second))
            return ((x - move) * jnp.exp(-log), total - log.sum(-1)), None

        (x, total), _ = jax.lax.scan(layer, (x, jnp.zeros(x.shape[0])), params)
        return (0.5 * (x**2).sum(-1) - total).mean()

    def params(key):
        shapes = {"up": (size, hidden), "bias": (hidden,)}
        shapes |= {"move": (hidden, size), "log": (hidden, size)}
        parts = [weights(k, **shapes) for k in keys(key, layers)]
        return jax.tree.map(lambda *p: jnp.stack(p), *parts)

    return trained(loss, params, lambda key: normal(key, batch, size))
