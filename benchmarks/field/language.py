"""Language models and their variants: experts, adapters, preferences, optimisers and meshes."""

import functools

import jax
import jax.numpy as jnp
import optax
from flax import nnx

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
    picked,
    program,
    trained,
    weights,
)


def _mesh(kind):
    return jax.make_mesh((2, 4), ("x", "y"), (kind,) * 2, devices=jax.devices("cpu")[:8])


def _layer_shapes(width, times=4):
    shapes = {name: (width, width) for name in ("q", "k", "v", "o")}
    return {**shapes, "up": (width, times * width), "down": (times * width, width)}


def _block(p, x, heads, mask=None):
    h = normalised(x)
    q, k, v = (heads_of(h, p[name], heads) for name in ("q", "k", "v"))
    x = x + attention(q, k, v, mask).reshape(x.shape) @ p["o"]
    return x + jax.nn.gelu(normalised(x) @ p["up"]) @ p["down"]


def _causal(length):
    return jnp.tril(jnp.ones((length, length), bool))


def _decoder(params, tokens, heads):
    x = params["embedding"][tokens]
    for p in params["layers"]:
        x = _block(p, x, heads, _causal(tokens.shape[1]))
    return normalised(x)


def _decoder_weights(key, layers, width, vocabulary, dtype=jnp.float32):
    parts = [weights(k, dtype, **_layer_shapes(width)) for k in keys(key, layers)]
    return {"layers": parts, **weights(key, dtype, embedding=(vocabulary, width))}


@program(
    small={"batch": 8, "source": 8, "target": 4, "width": 16, "heads": 2, "vocabulary": 32},
)
def t5(
    batch: int = 64,
    source: int = 256,
    target: int = 128,
    width: int = 512,
    heads: int = 8,
    vocabulary: int = 16384,
) -> Made:
    """T5: encoder and decoder, cross attention, relative biases in buckets, Adafactor."""

    def attend(p, prefix, x, read, bias, mask):
        q = heads_of(x, p[f"{prefix}q"], heads)
        k, v = (heads_of(read, p[f"{prefix}{name}"], heads) for name in ("k", "v"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        if bias is not None:
            gaps = jnp.arange(x.shape[1])[:, None] - jnp.arange(read.shape[1])[None]
            scores = scores + jnp.moveaxis(bias[jnp.clip(gaps + 16, 0, 31)], -1, 0)
        scores = jnp.where(mask, scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        return mixed.reshape(x.shape) @ p[f"{prefix}o"]

    def feed(p, x):
        h = normalised(x)
        return x + (jax.nn.gelu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

    def loss(params, batch):
        inputs, outputs = batch
        mask = (inputs > 0)[:, None, None]
        x = params["embedding"][inputs]
        p = params["encoder"]
        h = normalised(x)
        read = normalised(feed(p, x + attend(p, "s", h, h, p["bias"], mask)))
        y = params["embedding"][outputs[:, :-1]]
        p = params["decoder"]
        h = normalised(y)
        y = y + attend(p, "s", h, h, p["bias"], _causal(target - 1))
        y = feed(p, y + attend(p, "c", normalised(y), read, None, mask))
        logits = normalised(y) @ params["embedding"].T / width**0.5
        log = jax.nn.logsumexp(logits, -1)
        return cross_entropy(logits, outputs[:, 1:]) + 1e-4 * (log**2).mean()

    def params(key):
        def part(key, prefixes):
            shapes = {f"{a}{b}": (width, width) for a in prefixes for b in "qkvo"}
            shapes |= {"gate": (width, 2 * width), "up": (width, 2 * width)}
            return weights(key, **shapes, down=(2 * width, width), bias=(32, heads))

        first, second = keys(key, 2)
        ends = weights(key, embedding=(vocabulary, width))
        return {"encoder": part(first, "s"), "decoder": part(second, "sc"), **ends}

    def data(key):
        first, second = keys(key, 2)
        return integers(first, vocabulary, batch, source), integers(
            second, vocabulary, batch, target
        )

    return trained(loss, params, data, optax.adafactor(1e-3, min_dim_size_to_factor=128))


@program(
    small={"groups": 8, "length": 8, "width": 16, "experts": 4},
)
def moe_capacity(groups: int = 32, length: int = 512, width: int = 512, experts: int = 8) -> Made:
    """Switch and GShard: top-2 experts with capacity, dispatched by one-hot einsums."""
    capacity = 2 * length // experts

    def routed(p, x):
        shares = jax.nn.softmax(x @ p["router"])
        best, chosen = jax.lax.top_k(shares, 2)
        best = best / best.sum(-1, keepdims=True)
        hot = jax.nn.one_hot(chosen, experts)  # [G, L, 2, E]
        order = jnp.swapaxes(hot, 1, 2).reshape(groups, 2 * length, experts)
        places = (jnp.cumsum(order, 1) - 1).reshape(groups, 2, length, experts)
        places = (jnp.swapaxes(places, 1, 2) * hot).sum(-1)
        slots = jax.nn.one_hot(places.astype(jnp.int32), capacity)
        dispatch = jnp.einsum("glke,glkc->glec", hot, slots)
        combine = jnp.einsum("glk,glke,glkc->glec", best, hot, slots)
        h = jnp.einsum("glec,glw->egcw", dispatch, x)
        h = jax.nn.gelu(jnp.einsum("egcw,ewf->egcf", h, p["up"]))
        h = jnp.einsum("egcf,efw->egcw", h, p["down"])
        balance = (hot[:, :, 0].mean((0, 1)) * shares.mean((0, 1))).sum() * experts
        return jnp.einsum("glec,egcw->glw", combine, h), balance

    def loss(p, batch):
        x, target = batch
        y, balance = routed(p, normalised(x))
        return jnp.mean((x + y - target) ** 2) + 0.01 * balance

    def params(key):
        shapes = {"router": (width, experts), "up": (experts, width, 2 * width)}
        return weights(key, **shapes, down=(experts, 2 * width, width))

    def data(key):
        return normal(key, groups, length, width), normal(key, groups, length, width)

    return trained(loss, params, data)


@program(
    small={"tokens": 64, "width": 16, "experts": 4},
)
def moe_ragged(tokens: int = 8192, width: int = 512, experts: int = 8) -> Made:
    """MegaBlox and dropless experts: tokens sorted by expert, jax.lax.ragged_dot."""

    def loss(p, batch):
        x, target = batch
        shares, chosen = jax.lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
        order = jnp.argsort(chosen.reshape(-1))
        sizes = jnp.bincount(chosen.reshape(-1), length=experts)
        h = x[order // 2]
        h = jax.nn.silu(jax.lax.ragged_dot(h, p["up"], sizes))
        h = jax.lax.ragged_dot(h, p["down"], sizes)
        back = h[jnp.argsort(order)].reshape(tokens, 2, width)
        return jnp.mean((x + (back * shares[..., None]).sum(1) - target) ** 2)

    def params(key):
        shapes = {"router": (width, experts), "up": (experts, width, 2 * width)}
        return weights(key, **shapes, down=(experts, 2 * width, width))

    def data(key):
        return normal(key, tokens, width), normal(key, tokens, width)

    return trained(loss, params, data)


@program(
    small={"layers": 1, "batch": 8, "length": 8, "width": 16, "heads": 2, "vocabulary": 32},
    donated=(0,),
    rounds="gradients are bfloat16",
)
def lora_int8(
    layers: int = 2,
    batch: int = 32,
    length: int = 512,
    width: int = 1024,
    heads: int = 8,
    vocabulary: int = 8192,
    rank: int = 8,
) -> Made:
    """QLoRA: an int8 base with scales, frozen; adapters trained, bfloat16 activations."""
    updating = adam(2e-4)

    def dense(x, base, adapter):
        whole = base["int8"].astype(jnp.bfloat16) * base["scale"].astype(jnp.bfloat16)
        down, up = (adapter[name].astype(jnp.bfloat16) for name in ("down", "up"))
        return x @ whole + 2.0 * (x @ down) @ up

    def step(state, base, tokens):
        adapters, moments = state

        def loss(adapters):
            x = base["embedding"][tokens[:, :-1]]
            for held, adapter in zip(base["layers"], adapters, strict=True):
                h = normalised(x)
                q, k, v = (
                    dense(h, held[n], adapter[n]).reshape(*h.shape[:2], heads, -1) for n in "qkv"
                )
                mixed = attention(q, k, v, _causal(length - 1)).reshape(x.shape)
                x = x + dense(mixed, held["o"], adapter["o"])
                h = jax.nn.silu(dense(normalised(x), held["up"], adapter["up"]))
                x = x + dense(h, held["down"], adapter["down"])
            logits = (normalised(x) @ base["embedding"].T).astype(jnp.float32)
            return cross_entropy(logits, tokens[:, 1:])

        value, grads = jax.value_and_grad(loss)(adapters)
        updates, moments = updating.update(grads, moments)
        return (optax.apply_updates(adapters, updates), moments), value

    def init(key):
        shapes = _layer_shapes(width, 2)

        def held(key):
            return {
                n: {
                    "int8": jax.random.randint(key, s, -127, 127, jnp.int8),
                    "scale": jnp.full((1, s[1]), 0.01 / s[0] ** 0.5),
                }
                for n, s in shapes.items()
            }

        def adapter(key):
            return {n: weights(key, down=(s[0], rank), up=(rank, s[1])) for n, s in shapes.items()}

        base = {
            "layers": [held(k) for k in keys(key, layers)],
            "embedding": normal(key, vocabulary, width, dtype=jnp.bfloat16) * 0.02,
        }
        adapters = [adapter(k) for k in keys(key, layers)]
        tokens = integers(key, vocabulary, batch, length)
        return (adapters, updating.init(adapters)), base, tokens

    return step, init


@program(
    small={
        "layers": 1,
        "batch": 8,
        "length": 8,
        "width": 16,
        "heads": 2,
        "vocabulary": 64,
        "chunks": 2,
    },
)
def gpt_chunked_loss(
    layers: int = 2,
    batch: int = 32,
    length: int = 512,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 32768,
    chunks: int = 8,
) -> Made:
    """GPT with the loss in chunks: logits of a part of the tokens under a checkpointed scan."""

    def loss(params, tokens):
        x = _decoder(params, tokens, heads)
        labels = jnp.roll(tokens, -1, 1)

        @jax.checkpoint
        def part(total, xs):
            h, label = xs
            return total + cross_entropy(h @ params["embedding"].T, label), None

        split = (
            jnp.swapaxes(x.reshape(batch, chunks, -1, width), 0, 1),
            jnp.swapaxes(labels.reshape(batch, chunks, -1), 0, 1),
        )
        return jax.lax.scan(part, jnp.zeros(()), split)[0] / chunks

    return trained(
        loss,
        lambda key: _decoder_weights(key, layers, width, vocabulary),
        lambda key: integers(key, vocabulary, batch, length),
        optax.adamw(1e-3, eps=1e-5, weight_decay=0.1),
    )


def _newton_schulz(g):
    x = g / (jnp.linalg.norm(g) + 1e-6)
    x = x.T if x.shape[0] > x.shape[1] else x
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x.T if g.shape[0] > g.shape[1] else x


@program(
    small={"layers": 1, "batch": 8, "length": 8, "width": 16, "heads": 2, "vocabulary": 32},
    rounds="gradients are bfloat16",
)
def gpt_muon(
    layers: int = 2,
    batch: int = 32,
    length: int = 512,
    width: int = 768,
    heads: int = 6,
    vocabulary: int = 16384,
) -> Made:
    """Muon (modded-nanogpt): updates made orthogonal by Newton-Schulz, Adam for the rest."""
    updating = adam()

    def step(state, tokens):
        params, momentum, moments = state

        def loss(params):
            bfloat16_params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
            x = _decoder(bfloat16_params, tokens[:, :-1], heads)
            logits = (x @ bfloat16_params["embedding"].T).astype(jnp.float32)
            return cross_entropy(15 * jnp.tanh(logits / 15), tokens[:, 1:])

        value, grads = jax.value_and_grad(loss)(params)
        momentum = jax.tree.map(lambda m, g: 0.95 * m + g, momentum, grads["layers"])
        inner = jax.tree.map(
            lambda p, m, g: p - 0.02 * _newton_schulz(g + 0.95 * m),
            params["layers"],
            momentum,
            grads["layers"],
        )
        updates, moments = updating.update(grads["embedding"], moments)
        outer = optax.apply_updates(params["embedding"], updates)
        return ({"layers": inner, "embedding": outer}, momentum, moments), value

    def init(key):
        params = _decoder_weights(key, layers, width, vocabulary)
        momentum = jax.tree.map(jnp.zeros_like, params["layers"])
        state = params, momentum, updating.init(params["embedding"])
        return state, integers(key, vocabulary, batch, length)

    return step, init


@program(
    small={"batch": 16, "width": 16, "layers": 2},
)
def shampoo(batch: int = 8192, width: int = 1024, layers: int = 2) -> Made:
    """Shampoo and SOAP: statistics of both sides, inverse roots by eigh every so many steps."""

    def loss(params, batch):
        x, target = batch
        for p in params:
            x = x + jax.nn.relu(x @ p)
        return jnp.mean((x - target) ** 2)

    def root(matrix):
        values, vectors = jnp.linalg.eigh(matrix + 1e-4 * jnp.eye(width))
        return (vectors * jnp.maximum(values, 1e-6) ** -0.25) @ vectors.T

    def step(state, batch):
        value, grads = jax.value_and_grad(loss)(state["params"], batch)
        due = state["count"] % 10 == 0

        def side(old, g):
            return 0.95 * old + 0.05 * g @ g.T

        left = [side(a, g) for a, g in zip(state["left"], grads, strict=True)]
        right = [side(a, g.T) for a, g in zip(state["right"], grads, strict=True)]
        roots = jax.lax.cond(
            due,
            lambda both, _: [root(m) for m in both],
            lambda _, old: old,
            left + right,
            state["roots"],
        )
        params = [
            p - 1e-3 * a @ g @ b
            for p, g, a, b in zip(
                state["params"], grads, roots[:layers], roots[layers:], strict=True
            )
        ]
        return {
            "params": params,
            "left": left,
            "right": right,
            "roots": roots,
            "count": state["count"] + 1,
        }, value

    def init(key):
        eyes = [jnp.eye(width)] * layers
        params = [weights(k, w=(width, width))["w"] for k in keys(key, layers)]
        # Symmetric matrices with distinct eigenvalues have well-determined eigenvectors.
        held = [jnp.diag(1.0 + jnp.arange(width) / width)] * layers
        state = {"params": params, "left": held, "right": held, "roots": eyes * 2}
        return {**state, "count": jnp.int32(0)}, (
            normal(key, batch, width),
            normal(key, batch, width),
        )

    return step, init


@program(
    small={"layers": 1, "batch": 8, "length": 8, "width": 16, "heads": 2, "vocabulary": 32},
)
def dpo(
    layers: int = 2,
    batch: int = 16,
    length: int = 512,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 16384,
) -> Made:
    """DPO: a policy against a frozen reference, chosen and rejected texts in one batch."""
    updating = adam(1e-5)

    def likelihoods(params, tokens, mask):
        logits = _decoder(params, tokens[:, :-1], heads) @ params["embedding"].T
        log = jax.nn.log_softmax(logits)
        return (picked(log, tokens[:, 1:]) * mask[:, 1:]).sum(-1)

    def step(state, reference, batch):
        params, moments = state
        tokens = jnp.concatenate([batch["chosen"], batch["rejected"]])
        mask = jnp.concatenate([batch["chosen_mask"], batch["rejected_mask"]])
        frozen = likelihoods(reference, tokens, mask)

        def loss(params):
            gains = likelihoods(params, tokens, mask) - jax.lax.stop_gradient(frozen)
            good, bad = jnp.split(gains, 2)
            return -jax.nn.log_sigmoid(0.1 * (good - bad)).mean(), (good > bad).mean()

        (value, accuracy), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, moments = updating.update(grads, moments)
        return (optax.apply_updates(params, updates), moments), (value, accuracy)

    def init(key):
        params = _decoder_weights(key, layers, width, vocabulary)
        reference = jax.tree.map(lambda p: 1.01 * p, params)
        texts = {
            name: integers(k, vocabulary, batch, length)
            for name, k in zip(("chosen", "rejected"), keys(key, 2), strict=True)
        }
        masks = {f"{name}_mask": (text % 7 > 0) * 1.0 for name, text in texts.items()}
        return (params, updating.init(params)), reference, {**texts, **masks}

    return step, init


@program(
    small={"layers": 1, "batch": 8, "length": 8, "width": 16, "heads": 2, "vocabulary": 32},
)
def grpo(
    layers: int = 2,
    batch: int = 32,
    length: int = 512,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 16384,
) -> Made:
    """GRPO and RLHF updates: clipped ratios, a penalty against a reference, entropy."""

    def loss(params, batch):
        tokens, old, reference, gains = batch
        logits = _decoder(params, tokens, heads) @ params["embedding"].T
        log = jax.nn.log_softmax(logits[:, :-1])
        likely = picked(log, tokens[:, 1:])
        ratio = jnp.exp(likely - old)
        clipped = jnp.clip(ratio, 0.8, 1.2)
        apart = reference - likely
        penalty = jnp.exp(apart) - apart - 1
        entropy = -(jnp.exp(log) * log).sum(-1)
        won = jnp.minimum(ratio * gains[:, None], clipped * gains[:, None])
        return -(won - 0.04 * penalty + 0.001 * entropy).mean()

    def data(key):
        tokens = integers(key, vocabulary, batch, length)
        old = -3.0 + 0.1 * normal(key, batch, length - 1)
        return tokens, old, old + 0.01, normal(key, batch)

    return trained(loss, lambda key: _decoder_weights(key, layers, width, vocabulary), data)


@program(
    small={"layers": 1, "batch": 8, "length": 8, "width": 16, "heads": 2, "vocabulary": 32},
)
def bert_multi_steps(
    layers: int = 2,
    batch: int = 64,
    length: int = 256,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 16384,
) -> Made:
    """Gradient accumulation with optax.MultiSteps and clipping (Hugging Face Flax scripts)."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 1000)
    inner = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, eps=1e-5))
    updating = optax.MultiSteps(inner, every_k_schedule=2)

    def step(state, batch):
        params, moments = state

        def loss(params):
            tokens, labels, key = batch
            x = params["embedding"][tokens]
            for number, p in enumerate(params["layers"]):
                kept = jax.random.bernoulli(jax.random.fold_in(key, number), 0.9, x.shape)
                x = jnp.where(kept, _block(p, x, heads) / 0.9, 0.0)
            log = jax.nn.log_softmax(normalised(x) @ params["embedding"].T)
            hidden = labels >= 0
            likely = picked(log, jnp.maximum(labels, 0))
            return -(likely * hidden).sum() / jnp.maximum(hidden.sum(), 1)

        value, grads = jax.value_and_grad(loss)(params)
        updates, moments = updating.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    def init(key):
        params = _decoder_weights(key, layers, width, vocabulary)
        tokens = integers(key, vocabulary, batch, length)
        labels = jnp.where(tokens % 7 == 0, tokens, -100)
        return (params, updating.init(params)), (tokens, labels, key)

    return step, init


@program(
    small={"batch": 16, "width": 16, "layers": 2},
)
def shard_map_megatron(batch: int = 8192, width: int = 2048, layers: int = 2) -> Made:
    """Tensor and data parallelism by shard_map: psums written by hand on the plan's own axes."""
    mesh, spec = _mesh(jax.sharding.AxisType.Auto), jax.sharding.PartitionSpec

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(spec("x", None), spec(None, "y"), spec("y", None)),
        out_specs=spec("x", None),
    )
    def feed(x, up, down):
        return jax.lax.psum(jax.nn.gelu(x @ up) @ down, "y")

    def loss(params, batch):
        x, target = batch
        for p in params:
            x = x + feed(normalised(x), p["up"], p["down"])
        return jnp.mean((x - target) ** 2)

    def params(key):
        shapes = {"up": (width, 4 * width), "down": (4 * width, width)}
        return [weights(k, **shapes) for k in keys(key, layers)]

    def data(key):
        return normal(key, batch, width), normal(key, batch, width)

    return trained(loss, params, data)


@program(
    small={"parts": 8, "batch": 4, "width": 16},
)
def pipeline(parts: int = 16, batch: int = 1024, width: int = 1024) -> Made:
    """Pipeline by shard_map: stages on one axis, microbatches passed on by ppermute in a scan."""
    mesh, spec = _mesh(jax.sharding.AxisType.Auto), jax.sharding.PartitionSpec
    stages = 4

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(spec("y"), spec(None, "x")),
        out_specs=spec("y", None, "x"),
    )
    def staged(p, x):  # [1, D, D], [M, B, D]
        stage = jax.lax.axis_index("y")
        ring = [(i, (i + 1) % stages) for i in range(stages)]

        def tick(carry, t):
            held, outs = carry
            now = jnp.where(stage == 0, x[jnp.clip(t, 0, parts - 1)], held)
            now = jnp.tanh(now @ p[0])
            place = jnp.clip(t - stages + 1, 0, parts - 1)
            outs = jnp.where(t >= stages - 1, outs.at[place].set(now), outs)
            return (jax.lax.ppermute(now, "y", ring), outs), None

        varying = jax.lax.pcast(jnp.zeros_like(x), "y", to="varying")
        start = varying[0], varying
        (_, outs), _ = jax.lax.scan(tick, start, jnp.arange(parts + stages - 1))
        return outs[None]

    def loss(p, batch):
        x, target = batch
        return jnp.mean((staged(p, x)[-1] - target) ** 2)

    def params(key):
        return weights(key, w=(stages * width, width))["w"].reshape(stages, width, width)

    def data(key):
        return normal(key, parts, batch, width), normal(key, parts, batch, width)

    return trained(loss, params, data)


@program(
    small={"batch": 16, "width": 16, "layers": 2},
    context=lambda: jax.set_mesh(_mesh(jax.sharding.AxisType.Explicit)),
)
def explicit_mesh(batch: int = 8192, width: int = 2048, layers: int = 2) -> Made:
    """Explicit meshes (sharding in types): out_sharding= in einsums, reshard between layers."""
    mesh, spec = _mesh(jax.sharding.AxisType.Explicit), jax.sharding.PartitionSpec

    def placed(*entries):
        return jax.sharding.NamedSharding(mesh, spec(*entries))

    def loss(params, batch):
        x, target = batch
        for p in params:
            x = jax.sharding.reshard(x, placed("x", None))
            up = jax.sharding.reshard(p["up"], placed(None, "y"))
            down = jax.sharding.reshard(p["down"], placed("y", None))
            h = jnp.einsum("bd,df->bf", normalised(x), up, out_sharding=placed("x", "y"))
            h = jax.nn.gelu(h)
            x = x + jnp.einsum("bf,fd->bd", h, down, out_sharding=placed("x", None))
        return jnp.mean((x - jax.sharding.reshard(target, placed("x", None))) ** 2)

    def params(key):
        shapes = {"up": (width, 4 * width), "down": (4 * width, width)}
        return [weights(k, **shapes) for k in keys(key, layers)]

    def data(key):
        return normal(key, batch, width), normal(key, batch, width)

    return trained(loss, params, data)


@program(
    small={"batch": 8, "length": 8, "width": 16, "heads": 2, "vocabulary": 32},
    rounds="the gradient of the bias of the keys is zero but for rounding",
)
def nnx_decoder(
    batch: int = 32, length: int = 256, width: int = 512, heads: int = 8, vocabulary: int = 8192
) -> Made:
    """Flax NNX with dropout streams and the state as argument (Gemma examples)."""

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
            self.norms = nnx.List([nnx.RMSNorm(width, rngs=rngs) for _ in range(2)])
            self.up = nnx.Linear(width, 4 * width, rngs=rngs)
            self.down = nnx.Linear(4 * width, width, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, x):
            mask = nnx.make_causal_mask(jnp.ones(x.shape[:2]))
            x = x + self.attention(self.norms[0](x), mask=mask)
            return x + self.dropout(self.down(nnx.gelu(self.up(self.norms[1](x)))))

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.embedding = nnx.Embed(vocabulary, width, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(2)])

        def __call__(self, tokens):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
            return self.embedding.attend(x)

    updating = adam()
    graph, _, _ = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))), nnx.Param, ...)

    def step(state, tokens):
        params, rest, moments = state

        def loss(params):
            model = nnx.merge(graph, params, rest, copy=True)
            value = cross_entropy(model(tokens)[:, :-1], tokens[:, 1:])
            return value, nnx.split(model, nnx.Param, ...)[2]

        (value, rest), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, moments = updating.update(grads, moments)
        return (optax.apply_updates(params, updates), rest, moments), value

    def init(key):
        _, params, rest = nnx.split(Model(nnx.Rngs(key)), nnx.Param, ...)
        return (params, rest, updating.init(params)), integers(key, vocabulary, batch, length)

    return step, init


@program(
    small={"batch": 8, "length": 128, "width": 128, "heads": 1, "vocabulary": 32},
    profiles=("v5e",),
)
def flash_attention(
    batch: int = 16,
    length: int = 2048,
    width: int = 1024,
    heads: int = 8,
    vocabulary: int = 8192,
) -> Made:
    """Flash attention of jax.experimental.pallas called as it is, in bfloat16."""
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention as flash

    def loss(params, tokens):
        bfloat16_params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        x = bfloat16_params["embedding"][tokens]
        for p in bfloat16_params["layers"]:
            h = normalised(x)
            q, k, v = (jnp.swapaxes(heads_of(h, p[n], heads), 1, 2) for n in "qkv")
            mixed = flash(q, k, v, causal=True, sm_scale=(width // heads) ** -0.5)
            x = x + jnp.swapaxes(mixed, 1, 2).reshape(x.shape) @ p["o"]
            x = x + jax.nn.gelu(normalised(x) @ p["up"]) @ p["down"]
        logits = (normalised(x) @ bfloat16_params["embedding"].T).astype(jnp.float32)
        return cross_entropy(logits[:, :-1], tokens[:, 1:])

    return trained(
        loss,
        lambda key: _decoder_weights(key, 2, width, vocabulary),
        lambda key: integers(key, vocabulary, batch, length),
    )


@program(
    small={"batch": 8, "length": 64, "width": 128, "heads": 4, "vocabulary": 32},
    profiles=("h100-sxm",),
)
def cudnn_attention(
    batch: int = 16,
    length: int = 2048,
    width: int = 1024,
    heads: int = 8,
    vocabulary: int = 8192,
) -> Made:
    """cuDNN attention by jax.nn.dot_product_attention, rotary positions, grouped heads, SwiGLU."""
    size = width // heads

    def rotated(x):
        angles = jnp.arange(x.shape[1])[:, None] / 10000 ** (jnp.arange(size // 2) / (size // 2))
        sine, cosine = (f(angles)[:, None].astype(x.dtype) for f in (jnp.sin, jnp.cos))
        left, right = jnp.split(x, 2, -1)
        return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], -1)

    def loss(params, tokens):
        bfloat16_params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        x = bfloat16_params["embedding"][tokens]
        for p in bfloat16_params["layers"]:
            h = normalised(x)
            q = rotated(heads_of(h, p["q"], heads))
            k = rotated(heads_of(h, p["k"], heads // 2))
            v = heads_of(h, p["v"], heads // 2)
            mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
            x = x + mixed.reshape(x.shape) @ p["o"]
            h = normalised(x)
            x = x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]
        logits = (normalised(x) @ bfloat16_params["embedding"].T).astype(jnp.float32)
        return cross_entropy(logits[:, :-1], tokens[:, 1:])

    def params(key):
        shapes = _layer_shapes(width) | {"k": (width, width // 2), "v": (width, width // 2)}
        shapes |= {"gate": (width, 4 * width)}
        parts = [weights(k, **shapes) for k in keys(key, 2)]
        return {"layers": parts, **weights(key, embedding=(vocabulary, width))}

    return trained(loss, params, lambda key: integers(key, vocabulary, batch, length))
