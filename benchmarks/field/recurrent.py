"""Recurrences over time: state-space models, linear recurrences and gated cells."""

import jax
import jax.numpy as jnp
import optax

from benchmarks.field.program import (
    Made,
    adam,
    cross_entropy,
    descended,
    integers,
    keys,
    normal,
    normalised,
    program,
    trained,
    weights,
)


@program(
    small={"layers": 1, "batch": 16, "time": 16, "width": 32, "inner": 64, "state": 4, "parts": 2},
)
def mamba(
    layers: int = 2,
    batch: int = 32,
    time: int = 512,
    width: int = 1024,
    inner: int = 2048,
    state: int = 16,
    parts: int = 2,
) -> Made:
    """Mamba in plain JAX: selective scan over time under jax.checkpoint, gradients accumulated."""

    @jax.checkpoint
    def selective_scan(u, delta, a, b, c):  # [T, D], [T, D], [D, N], [T, N], [T, N]
        def cell(h, xs):
            u_t, delta_t, b_t, c_t = xs
            h = jnp.exp(delta_t[:, None] * a) * h + (delta_t * u_t)[:, None] * b_t
            return h, h @ c_t

        return jax.lax.scan(cell, jnp.zeros(a.shape), (u, delta, b, c))[1]

    def block(p, x):
        h, gate = jnp.split(normalised(x) @ p["in"], 2, axis=-1)
        padded = jnp.pad(h, ((3, 0), (0, 0)))
        h = jax.nn.silu(sum(padded[i : i + h.shape[0]] * p["conv"][i] for i in range(4)))
        delta = jax.nn.softplus(h @ p["dt_down"] @ p["dt_up"] + p["dt_bias"])
        y = selective_scan(h, delta, -jnp.exp(p["a"]), h @ p["b"], h @ p["c"])
        return x + (y + h * p["skip"]) * jax.nn.silu(gate) @ p["out"]

    def loss(params, batch):
        def one(x):
            for p in params:
                x = block(p, x)
            return x

        x, target = batch
        return jnp.mean((jax.vmap(one)(x) - target) ** 2)

    updating = adam()

    def step(held, batch):
        params, moments = held

        def accumulate(total, part):
            value, grads = jax.value_and_grad(loss)(params, part)
            return jax.tree.map(jnp.add, total, grads), value

        split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch)
        grads, values = jax.lax.scan(accumulate, jax.tree.map(jnp.zeros_like, params), split)
        updates, moments = updating.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), values.mean()

    def init(key):
        shapes = {
            "in": (width, 2 * inner),
            "conv": (4, inner),
            "dt_down": (inner, 64),
            "dt_up": (64, inner),
            "dt_bias": (inner,),
            "a": (inner, state),
            "b": (inner, state),
            "c": (inner, state),
            "skip": (inner,),
            "out": (inner, width),
        }
        params = [weights(k, **shapes) for k in keys(key, layers)]
        data = normal(key, batch, time, width), normal(key, batch, time, width)
        return (params, updating.init(params)), data

    return step, init


@program(
    small={"layers": 1, "batch": 8, "length": 32, "width": 16, "state": 4},
)
def s4_convolution(
    layers: int = 4, batch: int = 64, length: int = 2048, width: int = 256, state: int = 16
) -> Made:
    """S4D: diagonal state spaces as long convolutions by FFT."""

    def kernel(p):  # of each channel, over the length
        decay = -jnp.exp(p["decay"]) + 1j * p["frequency"]
        times = jnp.arange(length)
        powers = jnp.exp(decay[:, :, None] * times * 1e-2)
        return jnp.einsum("dn,dnl->dl", p["c"].astype(powers.dtype), powers).real

    def loss(params, batch):
        x, target = batch
        for p in params:
            spectrum = jnp.fft.rfft(x, n=2 * length, axis=1)
            response = jnp.fft.rfft(kernel(p), n=2 * length).T
            y = jnp.fft.irfft(spectrum * response, n=2 * length, axis=1)[:, :length]
            x = normalised(x + jax.nn.gelu(y + x * p["skip"]) @ p["mix"])
        return jnp.mean((x - target) ** 2)

    def params(key):
        shapes = {"decay": (width, state), "frequency": (width, state), "c": (width, state)}
        return [weights(k, **shapes, skip=(width,), mix=(width, width)) for k in keys(key, layers)]

    def data(key):
        return normal(key, batch, length, width), normal(key, batch, length, width)

    return trained(loss, params, data)


@program(
    small={"layers": 1, "batch": 8, "length": 16, "width": 16, "state": 8},
)
def s5(
    layers: int = 2, batch: int = 32, length: int = 1024, width: int = 256, state: int = 128
) -> Made:
    """S5: a parallel associative scan over complex states."""

    def combine(left, right):
        a, x = left
        b, y = right
        return a * b, b * x + y

    def layer(p, u):  # [L, H]
        poles = jnp.exp(-jnp.exp(p["decay"]) + 1j * p["frequency"])
        driven = u @ (p["b_re"] + 1j * p["b_im"])
        states = jax.lax.associative_scan(combine, (jnp.broadcast_to(poles, driven.shape), driven))[
            1
        ]
        return (states @ (p["c_re"] + 1j * p["c_im"])).real + p["skip"] * u

    def loss(params, batch):
        x, labels = batch
        for p in params["layers"]:
            x = x + jax.nn.gelu(jax.vmap(layer, (None, 0))(p, normalised(x))) @ p["mix"]
        return cross_entropy(x.mean(1) @ params["head"], labels)

    def params(key):
        shapes = {
            "decay": (state,),
            "frequency": (state,),
            "b_re": (width, state),
            "b_im": (width, state),
            "c_re": (state, width),
            "c_im": (state, width),
            "skip": (width,),
            "mix": (width, width),
        }
        parts = [weights(k, **shapes) for k in keys(key, layers)]
        return {"layers": parts, "head": weights(key, head=(width, 16))["head"]}

    def data(key):
        return normal(key, batch, length, width), integers(key, 16, batch)

    return trained(loss, params, data)


@program(
    small={"layers": 1, "batch": 8, "length": 16, "width": 32},
)
def griffin(layers: int = 2, batch: int = 16, length: int = 1024, width: int = 1024) -> Made:
    """LRU and Griffin: a gated real recurrence by associative scan beside a short convolution."""

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    def recurrence(p, x):  # [B, L, D]
        gate = jax.nn.sigmoid(x @ p["gate"])
        log_a = -8.0 * gate * jax.nn.softplus(p["decay"])
        driven = jnp.sqrt(1 - jnp.exp(2 * log_a) + 1e-6) * jax.nn.sigmoid(x @ p["input"]) * x
        return jax.lax.associative_scan(combine, (jnp.exp(log_a), driven), axis=1)[1]

    def loss(params, batch):
        x, target = batch
        for p in params:
            h = normalised(x)
            left = recurrence(p, h @ p["down"])
            x = x + (left * jax.nn.gelu(h @ p["side"])) @ p["out"]
        return jnp.mean((x - target) ** 2)

    def params(key):
        square = {name: (width, width) for name in ("gate", "input", "down", "side", "out")}
        return [weights(k, **square, decay=(width,)) for k in keys(key, layers)]

    def data(key):
        return normal(key, batch, length, width), normal(key, batch, length, width)

    return trained(loss, params, data)


@program(
    small={"layers": 2, "batch": 8, "length": 8, "width": 16, "vocabulary": 32},
)
def rwkv(
    layers: int = 4,
    batch: int = 32,
    length: int = 256,
    width: int = 512,
    vocabulary: int = 4096,
) -> Made:
    """RWKV: the numerically stable WKV recurrence, layers scanned, each step of time a scan."""

    def shifted(x):
        return jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]

    def wkv(k, v, decay, bonus):  # [L, B, D]
        def cell(held, kv):
            top, bottom, most = held
            k_t, v_t = kv
            with_bonus = jnp.maximum(most, k_t + bonus)
            old, new = jnp.exp(most - with_bonus), jnp.exp(k_t + bonus - with_bonus)
            out = (old * top + new * v_t) / (old * bottom + new)
            after = jnp.maximum(most - decay, k_t)
            old, new = jnp.exp(most - decay - after), jnp.exp(k_t - after)
            return (old * top + new * v_t, old * bottom + new, after), out

        zeros = jnp.zeros(k.shape[1:])
        return jax.lax.scan(cell, (zeros, zeros, zeros - 1e4), (k, v))[1]

    def block(x, p):
        h = normalised(x)
        mixed = 0.5 * (h + shifted(h))
        k, v = (jnp.moveaxis(mixed @ p[name], 1, 0) for name in ("k", "v"))
        y = jnp.moveaxis(wkv(k, v, jnp.exp(p["decay"]), p["bonus"]), 0, 1)
        x = x + (jax.nn.sigmoid(mixed @ p["r"]) * y) @ p["out"]
        h = normalised(x)
        return x + jnp.square(jax.nn.relu(0.5 * (h + shifted(h)) @ p["up"])) @ p["down"], None

    def loss(params, tokens):
        x = params["embedding"][tokens]
        x, _ = jax.lax.scan(jax.checkpoint(block), x, params["layers"])
        return cross_entropy(normalised(x[:, :-1]) @ params["head"], tokens[:, 1:])

    def params(key):
        square = {name: (width, width) for name in ("r", "k", "v", "out")}
        parts = [
            weights(
                k,
                **square,
                up=(width, 4 * width),
                down=(4 * width, width),
                decay=(width,),
                bonus=(width,),
            )
            for k in keys(key, layers)
        ]
        stacked = jax.tree.map(lambda *p: jnp.stack(p), *parts)
        ends = weights(key, embedding=(vocabulary, width), head=(width, vocabulary))
        return {"layers": stacked, **ends}

    return trained(loss, params, lambda key: integers(key, vocabulary, batch, length))


@program(
    small={"batch": 8, "time": 8, "width": 16, "heads": 2},
)
def xlstm(batch: int = 32, time: int = 128, width: int = 512, heads: int = 8) -> Made:
    """xLSTM: exponential gates with a stabiliser, matrix memory of each head, scanned over time."""

    def cell(held, xs):
        memory, norm, most = held
        q, k, v, i, f = xs  # [B, H, D] and [B, H]
        after = jnp.maximum(jax.nn.log_sigmoid(f) + most, i)
        forget, enter = jnp.exp(jax.nn.log_sigmoid(f) + most - after), jnp.exp(i - after)
        memory = forget[..., None, None] * memory + enter[..., None, None] * (
            v[..., :, None] * k[..., None, :]
        )
        norm = forget[..., None] * norm + enter[..., None] * k
        read = jnp.einsum("bhvk,bhk->bhv", memory, q)
        weight = jnp.maximum(jnp.abs(jnp.einsum("bhk,bhk->bh", norm, q)), 1.0)
        return (memory, norm, after), read / weight[..., None]

    def loss(p, batch):
        x, target = batch
        size = width // heads
        h = jnp.moveaxis(normalised(x), 1, 0)
        q, k, v = (
            (h @ p[name]).reshape(time, -1, heads, size) / size**0.5 for name in ("q", "k", "v")
        )
        gates = h @ p["gates"]
        zeros = jnp.zeros((x.shape[0], heads, size))
        start = jnp.zeros((*zeros.shape, size)), zeros, zeros[..., 0]
        _, y = jax.lax.scan(cell, start, (q, k, v, gates[..., :heads], gates[..., heads:]))
        y = jnp.moveaxis(y.reshape(time, -1, width), 0, 1)
        return jnp.mean((x + y @ p["out"] - target) ** 2)

    def params(key):
        square = {name: (width, width) for name in ("q", "k", "v", "out")}
        return weights(key, **square, gates=(width, 2 * heads))

    def data(key):
        return normal(key, batch, time, width), normal(key, batch, time, width)

    return trained(loss, params, data)


@program(
    small={"batch": 8, "time": 8, "width": 16, "vocabulary": 32},
)
def gru_seq2seq(
    batch: int = 256, time: int = 64, width: int = 1024, vocabulary: int = 8192
) -> Made:
    """GRU sequence to sequence with attention (translation tutorials), teacher forcing."""

    def gru(p, h, x):
        r, z = jnp.split(jax.nn.sigmoid(x @ p["x_gates"] + h @ p["h_gates"]), 2, axis=-1)
        new = jnp.tanh(x @ p["x_new"] + (r * h) @ p["h_new"])
        return (1 - z) * h + z * new

    def loss(p, batch):
        source, target = batch
        start = jnp.zeros((source.shape[0], width))

        def encode(h, token):
            h = gru(p["encoder"], h, p["embedding"][token])
            return h, h

        last, states = jax.lax.scan(encode, start, source.T)

        def decode(h, token):
            h = gru(p["decoder"], h, p["embedding"][token])
            scores = jax.nn.softmax(jnp.einsum("bd,tbd->bt", h, states))
            seen = jnp.einsum("bt,tbd->bd", scores, states)
            return h, jnp.tanh(jnp.concatenate([h, seen], -1) @ p["joint"])

        _, read = jax.lax.scan(decode, last, target.T[:-1])
        return cross_entropy(read @ p["head"], target.T[1:])

    def params(key):
        cell = {
            "x_gates": (width, 2 * width),
            "h_gates": (width, 2 * width),
            "x_new": (width, width),
            "h_new": (width, width),
        }
        first, second, third = keys(key, 3)
        shared = weights(
            third,
            embedding=(vocabulary, width),
            joint=(2 * width, width),
            head=(width, vocabulary),
        )
        return {"encoder": weights(first, **cell), "decoder": weights(second, **cell), **shared}

    def data(key):
        return integers(key, vocabulary, batch, time), integers(key, vocabulary, batch, time)

    return descended(loss, params, data)
