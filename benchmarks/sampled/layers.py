"""Repeated blocks: unrolled, or scanned over stacked parameters."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax

from benchmarks.sampled.blocks.block import Block, Context, Params, keys
from benchmarks.sampled.drawing import Drawing
from benchmarks.sampled.sizes import Sizes

CHECKPOINTS = ("none", "full", "dots")
"""The policies of `jax.checkpoint` for each layer, see `checkpointed`."""


@dataclass(frozen=True)
class Layers:
    """Equal layers, one after another, each with the same blocks."""

    kinds: tuple[str, ...]
    init: Callable[[jax.Array], Params]
    apply: Callable[[Params, jax.Array, Context], jax.Array]


def draw_layers(draw: Drawing, sizes: Sizes, blocks: list[Block]) -> Layers:
    """Draws the number of repetitions, whether they are scanned, and the checkpoint policy."""
    count = draw.one_of("layers", sizes.scale.repeats)
    scanned = draw.chance("scanned", 0.4)
    policy = draw.one_of("jax.checkpoint", CHECKPOINTS, (5, 1, 1))
    kinds = tuple(block.kind for block in blocks)
    apply = functools.partial(_scanned if scanned and count > 1 else _written_out, blocks, policy)
    init = functools.partial(_init, blocks, count, scanned and count > 1)
    return Layers(kinds, init, apply)


def checkpointed(function: Callable[..., jax.Array], policy: str) -> Callable[..., jax.Array]:
    """Returns a function under `jax.checkpoint` with one of the policies of `CHECKPOINTS`."""
    if policy == "none":
        return function
    if policy == "full":
        return jax.checkpoint(function)
    return jax.checkpoint(function, policy=jax.checkpoint_policies.dots_saveable)


_OVERRIDE: list[str] = []
"""The policies that replace the drawn ones, innermost last. `all_checkpointed` sets them."""


class all_checkpointed:
    """A context in which models trace with this policy instead of the drawn ones. None changes
    nothing."""

    def __init__(self, policy: str | None) -> None:
        self._policy = policy

    def __enter__(self) -> None:
        if self._policy is not None:
            _OVERRIDE.append(self._policy)

    def __exit__(self, *_: object) -> None:
        if self._policy is not None:
            _OVERRIDE.pop()


def _init(blocks: list[Block], count: int, scanned: bool, key: jax.Array) -> Params:
    def layer(key: jax.Array) -> Params:
        pairs = zip(blocks, keys(key, len(blocks)), strict=True)
        return {
            f"block_{number}": block.init(block_key)
            for number, (block, block_key) in enumerate(pairs)
        }

    if scanned:
        return jax.vmap(layer)(jax.random.split(key, count))
    return {
        f"layer_{number}": layer(layer_key) for number, layer_key in enumerate(keys(key, count))
    }


def _layer(
    blocks: list[Block], policy: str, params: Params, x: jax.Array, key: jax.Array, memory
) -> jax.Array:
    def run(params: Params, x: jax.Array, key: jax.Array, memory) -> jax.Array:
        context = Context(key, memory)
        for number, block in enumerate(blocks):
            x = block.apply(params[f"block_{number}"], x, context.for_part(number))
        return x

    return checkpointed(run, (_OVERRIDE or [policy])[-1])(params, x, key, memory)


def _written_out(
    blocks: list[Block], policy: str, params: Params, x: jax.Array, context: Context
) -> jax.Array:
    for number, layer in enumerate(params.values()):
        key = jax.random.fold_in(context.key, number)
        x = _layer(blocks, policy, layer, x, key, context.memory)
    return x


def _scanned(
    blocks: list[Block], policy: str, params: Params, x: jax.Array, context: Context
) -> jax.Array:
    count = jax.tree.leaves(params)[0].shape[0]

    def step(x: jax.Array, now: tuple[Params, jax.Array]):
        return _layer(blocks, policy, now[0], x, now[1], context.memory), None

    return jax.lax.scan(step, x, (params, jax.random.split(context.key, count)))[0]
