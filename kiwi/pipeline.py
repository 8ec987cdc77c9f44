"""`kiwi.layers`: the layers of a model as a scan, or as a pipeline of stages.

The pipeline is a program of whole arrays. All stages compute at once, under `jax.vmap`, each on
another microbatch. Every tick, each stage hands its result to the next one. If a plan cuts the
dimension of the stages along a mesh axis, each device has one stage or several, and the handing
over becomes a collective-permute. A plan that does not cut it computes the same.

Two schedules:

- GPipe (Huang et al., *GPipe*, 2019): every microbatch passes through the stages once. There are
  `microbatches + stages - 1` ticks. In the first and last ones some stages compute results that
  nobody reads: the bubble.
- Circular (Narayanan et al., *Efficient large-scale language model training on GPU clusters*, 2021;
  their interleaved schedule): every microbatch passes `rounds` times, each time through the next
  layers of each stage. Ticks and the bubble are `rounds` times shorter, and `rounds` times as many
  bytes move.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from kiwi.errors import InvalidArgumentError
from kiwi.hlo.kernels import Kernel
from kiwi.messages import topics

Body = Callable[[Any, Any], tuple[Any, Any]]


def layers(
    body: Body, x: Any, params: Any, *, stages: int = 1, microbatches: int = 1, rounds: int = 1
) -> tuple[Any, Any]:
    """Replaces `jax.lax.scan(body, x, params)` and computes the same numbers.

    - `body`: takes the carry and one layer's parameters, returns the next carry and a result of the
      layer, as in `jax.lax.scan`. It treats each sample by itself.
    - `x`: arrays of [samples, ...]; `params`: arrays of [layers, ...].
    - `stages`: the number of pipeline stages; 1 is the scan. The number of layers is a multiple of
      stages times rounds.
    - `microbatches`: the number of equal parts of the samples, if there are stages.
    - `rounds`: how often a microbatch passes through the stages. More than once is the circular
      schedule, which needs at least as many microbatches as stages.

    Returns the last carry and the stacked results of the layers. A pipeline of several stages has
    no such results: its `body` returns None for them.

    **Raises:** `InvalidArgumentError` if the numbers do not fit.
    """
    if stages == 1:
        return jax.lax.scan(body, x, params)
    count = _checked(x, params, stages, microbatches, rounds)
    per_stage = count // (stages * rounds)
    run = _stage_of(body, per_stage)
    cut = jax.tree.map(lambda a: _cut(a, microbatches), x)
    if rounds == 1:
        own = jax.tree.map(lambda p: p.reshape(stages, per_stage, *p.shape[1:]), params)
        found = _gpipe(run, cut, own, stages)
    else:
        own = jax.tree.map(
            lambda p: p.reshape(rounds, stages, per_stage, *p.shape[1:]).swapaxes(0, 1), params
        )
        found = _circular(run, cut, own, stages, rounds)
    return jax.tree.map(_joined, found), None


def _stage_of(body: Body, per_stage: int) -> Callable[[Any, Any], Any]:
    """One stage on one microbatch."""

    def run(params: Any, x: Any) -> Any:
        if per_stage == 1:
            x, result = body(x, jax.tree.map(lambda p: p[0], params))
        else:
            x, result = jax.lax.scan(body, x, params)
        if jax.tree.leaves(result):
            raise InvalidArgumentError(
                "The body of a pipeline returns a result of each layer.",
                topic=topics.PIPELINE_RESULTS,
            )
        return x

    return run


def _gpipe(run: Callable[[Any, Any], Any], x: Any, params: Any, stages: int) -> Any:
    """Runs every microbatch through the stages once. `x`: [microbatches, samples, ...]."""

    # The pipeline is filled and emptied with real samples. A body may be undefined on zeros, and a
    # derivative that is no number would reach the parameters.
    def padded(a: Any) -> Any:
        behind = jnp.broadcast_to(a[-1:], (stages - 1, *a.shape[1:]))
        return jnp.concatenate([a, behind])

    def tick(state: Any, fed: Any) -> tuple[Any, Any]:
        state = jax.vmap(run)(params, _moved_on(state, fed))
        return state, jax.tree.map(_last, state)

    _, found = jax.lax.scan(tick, _filled(x, stages), jax.tree.map(padded, x))
    return jax.tree.map(lambda a: a[stages - 1 :], found)


def _circular(run: Callable[[Any, Any], Any], x: Any, params: Any, stages: int, rounds: int) -> Any:
    """Runs every microbatch through the stages `rounds` times. `params`: [stages, rounds, layers,
    ...].

    At tick t, stage s computes for microbatch (t - s) % M in round (t - s) // M. A result of the
    last stage waits in the place of its microbatch for the next round.
    """
    microbatches = jax.tree.leaves(x)[0].shape[0]
    stage = jnp.arange(stages)

    def tick(carry: Any, t: Any) -> tuple[Any, None]:
        waiting, state = carry
        turn = jnp.clip((t - stage) // microbatches, 0, rounds - 1)
        own = jax.tree.map(lambda p: jax.vmap(_at)(p, turn), params)
        fed = jax.tree.map(lambda a: _at(a, t % microbatches), waiting)
        state = jax.vmap(run)(own, _moved_on(state, fed))
        place = (t - (stages - 1)) % microbatches
        is_through = t >= stages - 1

        def kept(a: Any, new: Any) -> Any:
            new = jnp.where(is_through, _last(new), _at(a, place))
            return jax.lax.dynamic_update_index_in_dim(a, new, place, 0)

        return (jax.tree.map(kept, waiting, state), state), None

    ticks = microbatches * rounds + stages - 1
    (found, _), _ = jax.lax.scan(tick, (x, _filled(x, stages)), jnp.arange(ticks))
    return found


def _moved_on(state: Any, fed: Any) -> Any:
    """The next input of each stage: the result of the stage before it; `fed` for the first one."""

    def moved(a: Any, new: Any) -> Any:
        is_real = jnp.issubdtype(a.dtype, jnp.inexact)  # what is not has no gradient
        before = _shifted(a) if is_real else _shift(a, 1)
        return jnp.where(_is_stage(0, a), new[None], before)

    return jax.tree.map(moved, state, fed)


def _last(a: Any) -> Any:
    """The result of the last stage. It is taken by a sum over stages, whose partial sums can be
    scattered; a slice of one stage would be gathered."""
    return jnp.sum(jnp.where(_is_stage(a.shape[0] - 1, a), a, jnp.zeros_like(a)), axis=0)


def _is_stage(which: int, a: Any) -> Any:
    shape = (a.shape[0], *(1,) * (a.ndim - 1))
    return (jnp.arange(a.shape[0]) == which).reshape(shape)


def _at(a: Any, index: Any) -> Any:
    return jax.lax.dynamic_index_in_dim(a, index, keepdims=False)


def _filled(x: Any, stages: int) -> Any:
    return jax.tree.map(lambda a: jnp.broadcast_to(a[:1], (stages, *a.shape[1:])), x)


def _cut(a: Any, microbatches: int) -> Any:
    """Reshapes [samples, ...] to [microbatches, samples, ...]. Neighbours go to different
    microbatches, so that each device's samples are cut and none move."""
    return a.reshape(-1, microbatches, *a.shape[1:]).swapaxes(0, 1)


def _joined(a: Any) -> Any:
    """The inverse of `_cut`."""
    return a.swapaxes(0, 1).reshape(-1, *a.shape[2:])


@jax.custom_vjp
def _shifted(a: Any) -> Any:
    """Each stage's part goes to the next stage, the last one's to the first."""
    return _shift(a, 1)


def _shift(a: Any, by: int) -> Any:
    names = tuple((f"dim{k}",) for k in range(a.ndim))
    tensor = (names,)
    sharded = frozenset(name for (name,) in names)

    def function(a: Any, axes: tuple[str, ...] = ()) -> tuple[Any, ...]:
        return (_shift_on_device(a, by, axes),)

    (found,) = Kernel("shift", function, tensor, tensor, sharded, shifted="dim0")(a)
    return found


_shifted.defvjp(lambda a: (_shift(a, 1), None), lambda _, g: (_shift(g, -1),))


def _shift_on_device(a: Any, by: int, axes: tuple[str, ...]) -> Any:
    """`_shifted` for the stages of one device. `axes` are the mesh axes that cut the stages."""
    if not axes:
        return jnp.roll(a, by, axis=0)
    devices = jax.lax.axis_size(axes)
    ring = [(k, (k + by) % devices) for k in range(devices)]
    leaving, staying = (a[-1:], a[:-1]) if by > 0 else (a[:1], a[1:])
    coming = jax.lax.ppermute(leaving, axes, ring)
    return jnp.concatenate([coming, staying] if by > 0 else [staying, coming])


def _checked(x: Any, params: Any, stages: int, microbatches: int, rounds: int) -> int:
    """The number of layers; raises if the numbers do not fit together."""
    counts = {p.shape[0] if p.ndim else 0 for p in jax.tree.leaves(params)}
    samples = {a.shape[0] if a.ndim else 0 for a in jax.tree.leaves(x)}
    if min(stages, microbatches, rounds) < 1 or len(counts) != 1 or len(samples) != 1:
        raise InvalidArgumentError(
            f"stages={stages}, microbatches={microbatches}, rounds={rounds} over parameters of "
            f"{sorted(counts)} layers and {sorted(samples)} samples are no pipeline.",
            topic=topics.PIPELINE,
            suggestion="Positive numbers; the first dimension of all parameters counts layers, "
            "that of all of x samples.",
        )
    (count,), (sample_count,) = counts, samples
    if count % (stages * rounds):
        raise InvalidArgumentError(
            f"{count} layers are no multiple of {stages} stages times {rounds} rounds.",
            topic=topics.PIPELINE,
        )
    if sample_count % microbatches:
        raise InvalidArgumentError(
            f"{sample_count} samples are no multiple of {microbatches} microbatches.",
            topic=topics.PIPELINE,
        )
    if rounds > 1 and microbatches < stages:
        raise InvalidArgumentError(
            f"{rounds} rounds of {stages} stages take {stages} microbatches at least, not "
            f"{microbatches}.",
            topic=topics.PIPELINE,
            cause="A microbatch is back at the first stage only when it is through the last one.",
        )
    return count
