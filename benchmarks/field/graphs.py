"""Graph networks and recommenders: gathers, segment sums and large tables."""

import jax
import jax.numpy as jnp
import optax

from benchmarks.field.program import (
    Made,
    cross_entropy,
    integers,
    keys,
    normal,
    normalised,
    program,
    trained,
    weights,
)


@program(
    small={"nodes": 64, "edges": 128, "width": 16, "layers": 2},
)
def gcn(nodes: int = 65536, edges: int = 524288, width: int = 256, layers: int = 3) -> Made:
    """Graph convolutions on one large graph (Jraph, OGB): messages by gather and segment_sum."""

    def loss(params, batch):
        x, senders, receivers, labels = batch
        ones = jnp.ones((edges,))
        degree = jax.ops.segment_sum(ones, receivers, nodes) + 1.0
        for p in params["layers"]:
            h = x @ p["w"]
            gathered = h[senders] * jax.lax.rsqrt(degree)[senders][:, None]
            summed = jax.ops.segment_sum(gathered, receivers, nodes)
            x = jax.nn.relu(h + summed * jax.lax.rsqrt(degree)[:, None])
        return cross_entropy(x @ params["head"], labels)

    def params(key):
        parts = [weights(k, w=(width, width)) for k in keys(key, layers)]
        return {"layers": parts, **weights(key, head=(width, 40))}

    def data(key):
        ends = (integers(k, nodes, edges) for k in keys(key, 2))
        return (normal(key, nodes, width), *ends, integers(key, 40, nodes))

    return trained(loss, params, data)


@program(
    small={"nodes": 64, "edges": 128, "width": 16, "layers": 2},
)
def graph_network(
    nodes: int = 32768, edges: int = 131072, width: int = 256, layers: int = 3
) -> Made:
    """GraphNet (GraphCast, mesh simulators): edge and node MLPs in turn, residual, checkpointed."""

    def mlp(p, *parts):
        return normalised(jax.nn.swish(jnp.concatenate(parts, -1) @ p["up"]) @ p["down"])

    def loss(params, batch):
        x, e, senders, receivers, target = batch

        @jax.checkpoint
        def message(x, e, p):
            e = e + mlp(p["edge"], e, x[senders], x[receivers])
            received = jax.ops.segment_sum(e, receivers, nodes)
            return x + mlp(p["node"], x, received), e

        for p in params:
            x, e = message(x, e, p)
        return jnp.mean((x - target) ** 2)

    def params(key):
        def part(key, inputs):
            return weights(key, up=(inputs * width, width), down=(width, width))

        return [{"edge": part(k, 3), "node": part(k, 2)} for k in keys(key, layers)]

    def data(key):
        ends = (integers(k, nodes, edges) for k in keys(key, 2))
        node, edge = normal(key, nodes, width), normal(key, edges, width)
        return node, edge, *ends, normal(key, nodes, width)

    return trained(loss, params, data)


@program(
    small={"nodes": 64, "edges": 128, "width": 16, "heads": 2},
)
def graph_attention(
    nodes: int = 32768, edges: int = 262144, width: int = 256, heads: int = 8
) -> Made:
    """Graph attention: softmax over the edges of each node by segment_max and segment_sum."""

    def loss(params, batch):
        x, senders, receivers, labels = batch
        for p in params["layers"]:
            h = (x @ p["w"]).reshape(nodes, heads, -1)
            left = (h * p["left"].reshape(heads, -1)).sum(-1)
            right = (h * p["right"].reshape(heads, -1)).sum(-1)
            score = jax.nn.leaky_relu(left[senders] + right[receivers])
            most = jax.ops.segment_max(score, receivers, nodes)
            score = jnp.exp(score - jax.lax.stop_gradient(most)[receivers])
            total = jax.ops.segment_sum(score, receivers, nodes)
            share = score / (total[receivers] + 1e-6)
            summed = jax.ops.segment_sum(share[..., None] * h[senders], receivers, nodes)
            x = jax.nn.elu(summed.reshape(nodes, width))
        return cross_entropy(x @ params["head"], labels)

    def params(key):
        shapes = {"w": (width, width), "left": (1, width), "right": (1, width)}
        parts = [weights(k, **shapes) for k in keys(key, 2)]
        return {"layers": parts, **weights(key, head=(width, 40))}

    def data(key):
        first, second = keys(key, 2)
        loops = jnp.arange(edges) % nodes
        return (
            normal(key, nodes, width),
            integers(first, nodes, edges),
            loops,
            integers(second, 40, nodes),
        )

    return trained(loss, params, data)


@program(
    small={"tables": 3, "rows": 64, "size": 8, "batch": 32, "bag": 2},
)
def dlrm(
    tables: int = 8, rows: int = 200000, size: int = 64, batch: int = 32768, bag: int = 4
) -> Made:
    """DLRM: large embedding tables, bags of ids, pairwise interactions, Adagrad."""

    def loss(params, batch):
        dense, ids, labels = batch
        bottom = jax.nn.relu(jax.nn.relu(dense @ params["bottom"]) @ params["bottom_last"])
        bags = [table[ids[:, i]].sum(1) for i, table in enumerate(params["tables"])]
        stacked = jnp.stack([bottom, *bags], 1)
        pairs = jnp.einsum("bid,bjd->bij", stacked, stacked)
        rows, columns = jnp.triu_indices(tables + 1, 1)
        joint = jnp.concatenate([bottom, pairs[:, rows, columns]], -1)
        logits = (jax.nn.relu(joint @ params["top"]) @ params["top_last"])[:, 0]
        return optax.sigmoid_binary_cross_entropy(logits, labels).mean()

    def params(key):
        parts = [weights(k, table=(rows, size))["table"] for k in keys(key, tables)]
        joint = size + tables * (tables + 1) // 2
        return {
            "tables": parts,
            **weights(
                key,
                bottom=(13, 512),
                bottom_last=(512, size),
                top=(joint, 1024),
                top_last=(1024, 1),
            ),
        }

    def data(key):
        labels = (normal(key, batch) > 0).astype(jnp.float32)
        return normal(key, batch, 13), integers(key, rows, batch, tables, bag), labels

    return trained(loss, params, data, optax.adagrad(1e-2))


@program(
    small={"users": 64, "items": 64, "size": 8, "width": 16, "batch": 32},
)
def two_tower(
    users: int = 500000, items: int = 200000, size: int = 64, width: int = 512, batch: int = 8192
) -> Made:
    """Two-tower retrieval: in-batch negatives, a square of scores over the batch."""

    def tower(p, ids, extra):
        x = jnp.concatenate([p["table"][ids], extra], -1)
        x = jax.nn.relu(x @ p["up"]) @ p["down"]
        return x / jnp.linalg.norm(x + 1e-6, axis=-1, keepdims=True)

    def loss(params, batch):
        left = tower(params["user"], batch["user"], batch["context"])
        right = tower(params["item"], batch["item"], batch["content"])
        scores = left @ right.T / 0.05 - batch["log_frequency"]
        return cross_entropy(scores, jnp.arange(scores.shape[0]))

    def params(key):
        def part(key, rows):
            return weights(key, table=(rows, size), up=(2 * size, width), down=(width, size))

        first, second = keys(key, 2)
        return {"user": part(first, users), "item": part(second, items)}

    def data(key):
        return {
            "user": integers(key, users, batch),
            "item": integers(key, items, batch),
            "context": normal(key, batch, size),
            "content": normal(key, batch, size),
            "log_frequency": normal(key, batch),
        }

    return trained(loss, params, data, optax.sgd(0.1, momentum=0.9))


@program(
    small={"items": 64, "batch": 8, "length": 8, "width": 16, "layers": 1},
)
def sequential_recommender(
    items: int = 100000, batch: int = 512, length: int = 128, width: int = 128, layers: int = 2
) -> Made:
    """SASRec and BERT4Rec: causal attention over histories of items, sampled negatives."""

    def loss(params, batch):
        history, positive, negative = batch
        x = params["items"][history] + params["positions"]
        mask = jnp.tril(jnp.ones((length, length), bool))
        for p in params["layers"]:
            h = normalised(x)
            scores = jnp.einsum("bqd,bkd->bqk", h @ p["q"], h @ p["k"]) / width**0.5
            shares = jax.nn.softmax(jnp.where(mask, scores, -1e9))
            x = x + jnp.einsum("bqk,bkd->bqd", shares, h @ p["v"])
            x = x + jax.nn.relu(normalised(x) @ p["up"]) @ p["down"]
        x = normalised(x)
        good = (x * params["items"][positive]).sum(-1)
        bad = jnp.einsum("bld,blnd->bln", x, params["items"][negative])
        return jax.nn.softplus(-good).mean() + jax.nn.softplus(bad).mean()

    def params(key):
        shapes = {name: (width, width) for name in ("q", "k", "v", "up", "down")}
        parts = [weights(k, **shapes) for k in keys(key, layers)]
        return {"layers": parts, **weights(key, items=(items, width), positions=(length, width))}

    def data(key):
        ids = (integers(k, items, batch, length) for k in keys(key, 2))
        return (*ids, integers(key, items, batch, length, 16))

    return trained(loss, params, data)
