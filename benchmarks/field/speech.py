"""Speech models, protein models, and meta-learning."""

import jax
import jax.numpy as jnp
import optax

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


def _along(x, kernel, stride=1, groups=1):
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride,),
        "SAME",
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=groups,
    )


@program(
    small={"batch": 8, "frames": 16, "labels": 4, "width": 16, "heads": 2},
)
def conformer_ctc(
    batch: int = 64, frames: int = 512, labels: int = 64, width: int = 512, heads: int = 8
) -> Made:
    """Conformer with CTC (optax.ctc_loss): a scan over frames in the loss, lengths by padding."""
    classes = 128

    def loss(params, batch):
        sound, lengths, text, text_lengths = batch
        x = jax.nn.relu(_along(sound, params["stem"], 2)) @ params["lift"]
        padded = jnp.arange(x.shape[1])[None] >= lengths[:, None] // 2
        mask = ~padded[:, None, None]
        for p in params["layers"]:
            x = x + 0.5 * jax.nn.silu(normalised(x) @ p["up"]) @ p["down"]
            h = normalised(x)
            q, k, v = (heads_of(h, p[n], heads) for n in "qkv")
            x = x + attention(q, k, v, mask).reshape(x.shape) @ p["o"]
            left, gate = jnp.split(normalised(x) @ p["gated"], 2, -1)
            h = _along(left * jax.nn.sigmoid(gate), p["depthwise"], groups=width)
            x = x + jax.nn.silu(normalised(h)) @ p["point"]
        logits = normalised(x) @ params["head"]
        text_padded = jnp.arange(labels)[None] >= text_lengths[:, None]
        return optax.ctc_loss(
            logits, padded.astype(jnp.float32), text, text_padded.astype(jnp.float32)
        ).mean()

    def params(key):
        shapes = {name: (width, width) for name in ("q", "k", "v", "o", "point")}
        shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
        shapes |= {"gated": (width, 2 * width), "depthwise": (15, 1, width)}
        parts = [weights(k, **shapes) for k in keys(key, 2)]
        ends = {"stem": (3, 80, 256), "lift": (256, width), "head": (width, classes)}
        return {"layers": parts, **weights(key, **ends)}

    def data(key):
        text = 1 + integers(key, classes - 1, batch, labels)
        lengths = frames - integers(key, frames // 4, batch)
        text_lengths = 1 + integers(key, labels - 1, batch)
        return normal(key, batch, frames, 80), lengths, text, text_lengths

    return trained(loss, params, data)


@program(
    small={"batch": 8, "samples": 64, "width": 16, "heads": 2, "codes": 8},
)
def wav2vec(
    batch: int = 64, samples: int = 16384, width: int = 512, heads: int = 8, codes: int = 320
) -> Made:
    """wav2vec 2.0: strided convolutions over waves, masked frames, Gumbel codes, contrast."""
    strides = (4, 2, 2, 2)

    def loss(params, batch):
        waves, key = batch
        x = waves[..., None]
        for kernel, stride in zip(params["stem"], strides, strict=True):
            x = jax.nn.gelu(normalised(_along(x, kernel, stride)))
        hidden = jax.random.bernoulli(key, 0.3, x.shape[:2])[..., None]
        logits = (x @ params["codes"]).reshape(*x.shape[:2], 2, codes)
        soft = jax.nn.softmax(logits + jax.random.gumbel(key, logits.shape))
        hard = jax.nn.one_hot(soft.argmax(-1), codes)
        picked = hard + soft - jax.lax.stop_gradient(soft)
        goal = jnp.einsum("blgc,gcd->blgd", picked, params["book"]).reshape(x.shape)
        h = jnp.where(hidden, params["mask"], x)
        h = h + jax.nn.gelu(_along(h, params["position"], groups=4))
        for p in params["layers"]:
            y = normalised(h)
            q, k, v = (heads_of(y, p[n], heads) for n in "qkv")
            h = h + attention(q, k, v).reshape(h.shape) @ p["o"]
            h = h + jax.nn.gelu(normalised(h) @ p["up"]) @ p["down"]
        scores = jnp.einsum("bld,bmd->blm", normalised(h), normalised(goal)) / width**0.5
        log = jax.nn.log_softmax(scores / 0.1)
        own_code_log = jnp.diagonal(log, axis1=1, axis2=2)
        used = soft.mean((0, 1))
        spread = -(used * jnp.log(used + 1e-7)).sum()
        return -(own_code_log * hidden[..., 0]).sum() / hidden.sum() - 0.1 * spread

    def params(key):
        sizes = ((8, 1), (4, width), (4, width), (4, width))
        stem = [
            weights(k, w=(length, inputs, width))["w"]
            for k, (length, inputs) in zip(keys(key, 4), sizes, strict=True)
        ]
        shapes = {name: (width, width) for name in ("q", "k", "v", "o")}
        shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
        parts = [weights(k, **shapes) for k in keys(key, 2)]
        ends = {"codes": (width, 2 * codes), "book": (2, codes, width // 2)}
        ends |= {"position": (16, width // 4, width)}
        return {"stem": stem, "layers": parts, "mask": normal(key, width), **weights(key, **ends)}

    def data(key):
        return normal(key, batch, samples), key

    return trained(loss, params, data)


@program(
    small={"batch": 8, "frames": 8, "labels": 4, "width": 16},
)
def transducer(batch: int = 32, frames: int = 128, labels: int = 32, width: int = 256) -> Made:
    """RNN transducer: a joint of frames and labels, forward variables by nested scans."""
    classes = 128

    def lstm(p, x):  # [T, B, D]
        def cell(held, x):
            h, c = held
            i, f, g, o = jnp.split(x @ p["x"] + h @ p["h"], 4, -1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[1], width))
        return jax.lax.scan(cell, (zeros, zeros), x)[1]

    def loss(params, batch):
        sound, text = batch
        spoken = lstm(params["sound"], jnp.swapaxes(sound, 0, 1) @ params["lift"])
        shifted = jnp.pad(text, ((0, 0), (1, 0)))
        written = lstm(params["text"], params["embedding"][shifted.T])
        joint = jnp.tanh(spoken[:, None] + written[None])  # [T, U, B, D]
        log = jax.nn.log_softmax(joint @ params["head"])
        blank = log[..., 0]
        hot = jax.nn.one_hot(text.T, classes)
        label = jnp.einsum("tubc,ubc->tub", log[:, :-1], hot)

        def frame(alpha, xs):
            blanks, moves = xs

            def along(before, xs):
                stay, move = xs
                now = jnp.logaddexp(stay, before + move)
                return now, now

            stays = alpha + blanks
            _, rest = jax.lax.scan(along, stays[0], (stays[1:], moves))
            return jnp.concatenate([stays[:1], rest]), None

        first = jnp.cumsum(jnp.pad(label[0], ((1, 0), (0, 0))), 0)
        last, _ = jax.lax.scan(frame, first, (blank[:-1], label[1:]))
        return -(last[-1] + blank[-1, -1]).mean()

    def params(key):
        cell = {"x": (width, 4 * width), "h": (width, 4 * width)}
        first, second = keys(key, 2)
        ends = {"lift": (80, width), "embedding": (classes, width), "head": (width, classes)}
        return {
            "sound": weights(first, **cell),
            "text": weights(second, **cell),
            **weights(key, **ends),
        }

    def data(key):
        return normal(key, batch, frames, 80), 1 + integers(key, classes - 1, batch, labels)

    return trained(loss, params, data)


@program(
    small={"batch": 4, "residues": 8, "rows": 4, "pair": 16, "single": 16, "heads": 2},
)
def evoformer(
    batch: int = 2,
    residues: int = 128,
    rows: int = 64,
    pair: int = 128,
    single: int = 128,
    heads: int = 4,
) -> Made:
    """AlphaFold's Evoformer: triangle multiplication, triangle attention, outer product mean."""

    def multiplied(p, z):
        h = normalised(z)
        left = jax.nn.sigmoid(h @ p["left_gate"]) * (h @ p["left"])
        right = jax.nn.sigmoid(h @ p["right_gate"]) * (h @ p["right"])
        joint = normalised(jnp.einsum("bikc,bjkc->bijc", left, right))
        return z + jax.nn.sigmoid(h @ p["gate"]) * (joint @ p["out"])

    def triangle(p, z):
        h = normalised(z)
        q, k, v = (heads_of(h, p[n], heads) for n in "qkv")
        bias = jnp.moveaxis(h @ p["bias"], -1, 1)[:, None]
        scores = jnp.einsum("biqhd,bikhd->bihqk", q, k) / q.shape[-1] ** 0.5 + bias
        mixed = jnp.einsum("bihqk,bikhd->biqhd", jax.nn.softmax(scores), v).reshape(z.shape)
        return z + (jax.nn.sigmoid(h @ p["attention_gate"]) * mixed) @ p["o"]

    @jax.checkpoint
    def block(p, m, z):
        h = normalised(m)
        q, k, v = (heads_of(h, p["row"][n], heads) for n in "qkv")
        scores = jnp.einsum("bsqhd,bskhd->bshqk", q, k) / q.shape[-1] ** 0.5
        scores = scores + jnp.moveaxis(z @ p["row"]["bias"], -1, 1)[:, None]
        mixed = jnp.einsum("bshqk,bskhd->bsqhd", jax.nn.softmax(scores), v).reshape(m.shape)
        m = m + mixed @ p["row"]["o"]
        m = m + jax.nn.relu(normalised(m) @ p["up"]) @ p["down"]
        h = normalised(m)
        outer = jnp.einsum("bsic,bsjd->bijcd", h @ p["small_left"], h @ p["small_right"])
        z = z + outer.reshape(*z.shape[:3], -1) @ p["join"] / rows
        z = triangle(p["pair"], multiplied(p["pair"], z))
        return m, z

    def loss(params, batch):
        m, z, target = batch
        for p in params["layers"]:
            m, z = block(p, m, z)
        logits = (z + jnp.swapaxes(z, 1, 2)) @ params["bins"]
        return cross_entropy(logits, target)

    def params(key):
        def layer(key):
            first, second = keys(key, 2)
            square = {
                name: (pair, pair)
                for name in (
                    "left_gate",
                    "left",
                    "right_gate",
                    "right",
                    "gate",
                    "out",
                    "q",
                    "k",
                    "v",
                    "o",
                    "attention_gate",
                )
            }
            row = {name: (single, single) for name in "qkvo"} | {"bias": (pair, heads)}
            shapes = {"up": (single, 4 * single), "down": (4 * single, single)}
            shapes |= {"small_left": (single, 8), "small_right": (single, 8), "join": (64, pair)}
            return {
                "pair": weights(first, **square, bias=(pair, heads)),
                "row": weights(second, **row),
                **weights(key, **shapes),
            }

        parts = [layer(k) for k in keys(key, 2)]
        return {"layers": parts, **weights(key, bins=(pair, 64))}

    def data(key):
        z = normal(key, batch, residues, residues, pair)
        return (
            normal(key, batch, rows, residues, single),
            z,
            integers(key, 64, batch, residues, residues),
        )

    return trained(loss, params, data)


@program(
    small={"tasks": 8, "points": 4, "width": 16},
)
def maml(tasks: int = 64, points: int = 128, width: int = 512) -> Made:
    """MAML: gradients through inner steps of gradient descent, tasks under vmap."""

    def network(p, x):
        x = jax.nn.relu(x @ p["a"])
        return jax.nn.relu(x @ p["b"]) @ p["c"]

    def inner(p, x, y):
        return jnp.mean((network(p, x) - y) ** 2)

    def loss(params, batch):
        def task(x, y, later_x, later_y):
            task_params = params
            for _ in range(2):
                grads = jax.grad(inner)(task_params, x, y)
                task_params = jax.tree.map(lambda p, g: p - 0.1 * g, task_params, grads)
            return inner(task_params, later_x, later_y)

        return jax.vmap(task)(*batch).mean()

    def params(key):
        return weights(key, a=(16, width), b=(width, width), c=(width, 1))

    def data(key):
        first, second = normal(key, tasks, points, 16), normal(key, tasks, points, 1)
        return first, second, first[::-1], second[::-1]

    return trained(loss, params, data)


@program(
    small={"batch": 16, "width": 16},
)
def deep_equilibrium(batch: int = 8192, width: int = 1024) -> Made:
    """Deep equilibrium model: a fixed point by a while loop, implicit gradients by another."""

    def layer(p, x, z):
        return jnp.tanh(0.5 * z @ p["w"] + x @ p["u"])

    def solved(function, start):
        def going(held):
            z, before, count = held
            return (count < 30) & (jnp.mean((z - before) ** 2) > 1e-8)

        def advance(held):
            z, _, count = held
            return function(z), z, count + 1

        return jax.lax.while_loop(going, advance, (function(start), start, 0))[0]

    @jax.custom_vjp
    def fixed(p, x):
        return solved(lambda z: layer(p, x, z), jnp.zeros_like(x))

    def forward(p, x):
        z = fixed(p, x)
        return z, (p, x, z)

    def backward(held, cotangent):
        p, x, z = held
        _, pull = jax.vjp(lambda z: layer(p, x, z), z)
        adjoint = solved(lambda w: cotangent + pull(w)[0], cotangent)
        _, of_inputs = jax.vjp(lambda p, x: layer(p, x, z), p, x)
        return of_inputs(adjoint)

    fixed.defvjp(forward, backward)

    def loss(p, batch):
        x, target = batch
        return jnp.mean((fixed(p, x @ p["in"]) - target) ** 2)

    def params(key):
        return weights(key, **{"w": (width, width), "u": (width, width), "in": (width, width)})

    def data(key):
        return normal(key, batch, width), normal(key, batch, width)

    return trained(loss, params, data, adam())
