"""Recurrences along a sequence: by `scan`, by `associative_scan`, nested, in both directions."""

import jax
import jax.numpy as jnp

from benchmarks.sampled.blocks.block import Block, Context, Params, kernel, keys
from benchmarks.sampled.drawing import Drawing
from benchmarks.sampled.sizes import Sizes


def draw_gated_recurrence(draw: Drawing, sizes: Sizes) -> Block:
    """Draws a GRU or an LSTM, in one direction or both, with its steps under `jax.checkpoint` or
    not."""
    cell = draw.one_of("cell", ("GRU", "LSTM"))
    both_ways = draw.chance("both ways", 0.3)
    checkpointed = draw.chance("steps under jax.checkpoint", 0.3)
    hidden = max(8, sizes.width // 2)
    gates = {"GRU": 3, "LSTM": 4}[cell]

    def init_one(key: jax.Array) -> Params:
        for_input, for_state = keys(key, 2)
        return {
            "into": kernel(for_input, sizes.width, gates * hidden),
            "state": kernel(for_state, hidden, gates * hidden),
            "bias": jnp.zeros(gates * hidden),
        }

    def init(key: jax.Array) -> Params:
        forward, backward, for_out = keys(key, 3)
        params = {"forward": init_one(forward)}
        if both_ways:
            params["backward"] = init_one(backward)
        features = hidden * len(params)
        return {**params, "out": kernel(for_out, features, sizes.width)}

    def run(params: Params, x: jax.Array, *, reverse: bool) -> jax.Array:
        given = (x @ params["into"] + params["bias"]).swapaxes(0, 1)
        start = jnp.zeros((x.shape[0], hidden), x.dtype)

        def gru(state: jax.Array, now: jax.Array):
            update, reset, new = jnp.split(now, 3, axis=-1)
            from_update, from_reset, from_new = jnp.split(state @ params["state"], 3, axis=-1)
            kept = jax.nn.sigmoid(update + from_update)
            new = jnp.tanh(new + jax.nn.sigmoid(reset + from_reset) * from_new)
            state = kept * state + (1 - kept) * new
            return state, state

        def lstm(carry: tuple[jax.Array, jax.Array], now: jax.Array):
            state, memory = carry
            take, forget, give, new = jnp.split(now + state @ params["state"], 4, axis=-1)
            memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(take) * jnp.tanh(new)
            state = jax.nn.sigmoid(give) * jnp.tanh(memory)
            return (state, memory), state

        step, carry = (gru, start) if cell == "GRU" else (lstm, (start, start))
        step = jax.checkpoint(step) if checkpointed else step
        return jax.lax.scan(step, carry, given, reverse=reverse)[1].swapaxes(0, 1)

    def apply(params: Params, x: jax.Array, context: Context) -> jax.Array:
        results = [run(params["forward"], x, reverse=False)]
        if both_ways:
            results.append(run(params["backward"], x, reverse=True))
        return jnp.concatenate(results, axis=-1) @ params["out"]

    return Block(f"{cell} by scan", init, apply)


def _combine(left, right):
    return left[0] * right[0], right[0] * left[1] + right[1]


def draw_linear_recurrence(draw: Drawing, sizes: Sizes) -> Block:
    """Draws a diagonal linear recurrence: state-space models, LRU, minimal gated recurrences."""
    way = draw.one_of("way", ("associative_scan", "scan", "scans of chunks"), (3, 1, 2))
    states = draw.one_of("states", (1, *sizes.scale.states))
    selective = draw.chance("decay from the input", 0.5)

    def init(key: jax.Array) -> Params:
        for_decay, for_into, for_gate, for_out = keys(key, 4)
        return {
            "decay": kernel(for_decay, sizes.width, states, fan_in=1),
            "into": kernel(for_into, sizes.width, states),
            "gate": kernel(for_gate, sizes.width, sizes.width),
            "read": kernel(for_out, sizes.width, states),
            "out": kernel(for_out, sizes.width, sizes.width),
        }

    def apply(params: Params, x: jax.Array, context: Context) -> jax.Array:
        decay = jnp.exp(-jax.nn.softplus(params["decay"]))
        inputs = jnp.einsum("btd,dn->btdn", x, params["into"])
        if selective:
            gate = jax.nn.sigmoid(x @ params["gate"])[..., None]
            decays = decay**gate
            inputs = (1 - decays) * inputs
        else:
            decays = jnp.broadcast_to(decay, inputs.shape)
        hidden = _recurrence(way, decays.astype(x.dtype), inputs.astype(x.dtype))
        return jnp.einsum("btdn,dn->btd", hidden, params["read"]) @ params["out"]

    return Block(f"linear recurrence by {way}", init, apply)


def _recurrence(way: str, decays: jax.Array, inputs: jax.Array) -> jax.Array:
    """Runs the recurrence along axis 1."""
    if way == "associative_scan":
        return jax.lax.associative_scan(_combine, (decays, inputs), axis=1)[1]

    def step(state: jax.Array, now: tuple[jax.Array, jax.Array]):
        state = now[0] * state + now[1]
        return state, state

    start = jnp.zeros_like(inputs[:, 0])
    given = (decays.swapaxes(0, 1), inputs.swapaxes(0, 1))
    length = inputs.shape[1]
    chunk = next(c for c in (16, 8, 5, 4, 3, 2, 1) if length % c == 0)
    if way == "scan" or chunk == 1:
        return jax.lax.scan(step, start, given)[1].swapaxes(0, 1)

    @jax.checkpoint
    def chunk_step(state: jax.Array, now: tuple[jax.Array, jax.Array]):
        return jax.lax.scan(step, state, now)

    chunks = jax.tree.map(lambda t: t.reshape(length // chunk, chunk, *t.shape[1:]), given)
    states_of_chunks = jax.lax.scan(chunk_step, start, chunks)[1]
    return states_of_chunks.reshape(length, *states_of_chunks.shape[2:]).swapaxes(0, 1)
