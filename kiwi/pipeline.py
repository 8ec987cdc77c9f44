"""`kiwi.layers`: the layers of a model as a scan, or as a pipeline of stages.

The pipeline is a program over whole arrays. All stages compute at the same time, under `jax.vmap`,
each on another microbatch. In every tick, each stage hands its result to the next stage. If a plan
cuts the dimension of the stages along a mesh axis, each device has one or several stages, and
handing over becomes a collective-permute. A plan that does not cut this dimension computes the same
result.

There are two schedules:

- GPipe (Huang et al., *GPipe*, 2019): every microbatch passes through the stages once. There are
  `microbatches + stages - 1` ticks. In the first and last ticks, some stages compute results that
  nothing reads: the bubble.
- Circular (Narayanan et al., *Efficient large-scale language model training on GPU clusters*, 2021;
  their interleaved schedule): every microbatch passes through the stages `rounds` times, each time
  through the next layers of each stage. Ticks and the bubble are `rounds` times shorter, and
  `rounds` times as many bytes move.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from kiwi.errors import InvalidArgumentError
from kiwi.hlo.kernels import Kernel
from kiwi.messages import topics

Body = Callable[[Any, Any], tuple[Any, Any]]
"""Returns the next carry and a result, given the carry and the parameters of a layer."""


def layers(
    body: Body, x: Any, params: Any, *, stages: int = 1, microbatches: int = 1, rounds: int = 1
) -> tuple[Any, Any]:
    """Replaces `jax.lax.scan(body, x, params)` and computes the same numbers.

    - `body`: takes the carry and one layer's parameters, and returns the next carry and a result of
      the layer, as in `jax.lax.scan`. It treats each sample by itself.
    - `x`: a pytree of arrays [samples, ...].
    - `params`: a pytree of arrays [layers, ...].
    - `stages`: the number of pipeline stages. With 1, the scan is used. The number of layers must
      be a multiple of `stages` times `rounds`.
    - `microbatches`: the number of equal parts that the samples are cut into, if there are several
      stages.
    - `rounds`: how often a microbatch passes through the stages. With more than 1, the schedule is
      circular, and needs at least as many microbatches as stages.

    Returns the last carry and the stacked results of the layers. A pipeline of several stages has
    no such results: its `body` has to return None for them.

    **Raises:** `InvalidArgumentError` if the numbers do not fit together, or if the body of a
    pipeline returns a result of a layer.
    """
    if stages == 1:
        return jax.lax.scan(body, x, params)
    count = _checked(x, params, stages, microbatches, rounds)
    per_stage = count // (stages * rounds)
    run = _stage_of(body, per_stage)
    cut = jax.tree.map(lambda a: _cut(a, microbatches), x)
    if rounds == 1:
        stage_params = jax.tree.map(lambda p: p.reshape(stages, per_stage, *p.shape[1:]), params)
        last_carry = _gpipe(run, cut, stage_params, stages)
    else:
        stage_params = jax.tree.map(
            lambda p: p.reshape(rounds, stages, per_stage, *p.shape[1:]).swapaxes(0, 1), params
        )
        last_carry = _circular(run, cut, stage_params, stages, rounds)
    return jax.tree.map(_joined, last_carry), None


def _stage_of(body: Body, per_stage: int) -> Callable[[Any, Any], Any]:
    """Returns a function that runs one stage on one microbatch, given the parameters of the stage's
    layers."""

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
    """Runs every microbatch through the stages once, and returns the results of the last stage.

    - `x`: arrays [microbatches, samples, ...].
    - `params`: arrays [stages, layers, ...].
    """

    # The pipeline is filled and emptied with real samples. A body may be undefined on zeros, and a
    # derivative that is not a number would reach the parameters.
    def padded(a: Any) -> Any:
        behind = jnp.broadcast_to(a[-1:], (stages - 1, *a.shape[1:]))
        return jnp.concatenate([a, behind])

    def tick(state: Any, fed: Any) -> tuple[Any, Any]:
        state = jax.vmap(run)(params, _moved_on(state, fed))
        return state, jax.tree.map(_last, state)

    _, results = jax.lax.scan(tick, _filled(x, stages), jax.tree.map(padded, x))
    return jax.tree.map(lambda a: a[stages - 1 :], results)


def _circular(run: Callable[[Any, Any], Any], x: Any, params: Any, stages: int, rounds: int) -> Any:
    """Runs every microbatch through the stages `rounds` times, and returns the results of the last
    round.

    - `x`: arrays [microbatches, samples, ...].
    - `params`: arrays [stages, rounds, layers, ...].

    At tick t, stage s computes for microbatch (t - s) % M in round (t - s) // M, where M is the
    number of microbatches. A result of the last stage waits in the place of its microbatch for the
    next round.
    """
    microbatches = jax.tree.leaves(x)[0].shape[0]
    stage = jnp.arange(stages)

    def tick(carry: Any, t: Any) -> tuple[Any, None]:
        waiting, state = carry
        turn = jnp.clip((t - stage) // microbatches, 0, rounds - 1)
        stage_params = jax.tree.map(lambda p: jax.vmap(_at)(p, turn), params)
        fed = jax.tree.map(lambda a: _at(a, t % microbatches), waiting)
        state = jax.vmap(run)(stage_params, _moved_on(state, fed))
        place = (t - (stages - 1)) % microbatches
        is_through = t >= stages - 1

        def kept(a: Any, new: Any) -> Any:
            new = jnp.where(is_through, _last(new), _at(a, place))
            return jax.lax.dynamic_update_index_in_dim(a, new, place, 0)

        return (jax.tree.map(kept, waiting, state), state), None

    ticks = microbatches * rounds + stages - 1
    (results, _), _ = jax.lax.scan(tick, (x, _filled(x, stages)), jnp.arange(ticks))
    return results


def _moved_on(state: Any, fed: Any) -> Any:
    """Returns the next input of each stage: the result of the stage before it, and `fed` for the
    first stage."""

    def moved(a: Any, new: Any) -> Any:
        is_real = jnp.issubdtype(a.dtype, jnp.inexact)  # Other dtypes have no gradient.
        before = _shifted(a) if is_real else _shift(a, 1)
        return jnp.where(_is_stage(0, a), new[None], before)

    return jax.tree.map(moved, state, fed)


def _last(a: Any) -> Any:
    """Returns the result of the last stage, computed by a masked sum over the stages. The partial
    sums of this sum can be scattered, while a slice of one stage would be gathered."""
    return jnp.sum(jnp.where(_is_stage(a.shape[0] - 1, a), a, jnp.zeros_like(a)), axis=0)


def _is_stage(which: int, a: Any) -> Any:
    shape = (a.shape[0], *(1,) * (a.ndim - 1))
    return (jnp.arange(a.shape[0]) == which).reshape(shape)


def _at(a: Any, index: Any) -> Any:
    return jax.lax.dynamic_index_in_dim(a, index, keepdims=False)


def _filled(x: Any, stages: int) -> Any:
    return jax.tree.map(lambda a: jnp.broadcast_to(a[:1], (stages, *a.shape[1:])), x)


def _cut(a: Any, microbatches: int) -> Any:
    """Reshapes [samples, ...] to [microbatches, samples, ...]. Neighbouring samples go to different
    microbatches, so that each device cuts its own samples and no sample moves."""
    return a.reshape(-1, microbatches, *a.shape[1:]).swapaxes(0, 1)


def _joined(a: Any) -> Any:
    """Reshapes [microbatches, samples, ...] to [samples, ...], the inverse of `_cut`."""
    return a.swapaxes(0, 1).reshape(-1, *a.shape[2:])


@jax.custom_vjp
def _shifted(a: Any) -> Any:
    """Moves each stage's part to the next stage, and the last stage's part to the first."""
    return _shift(a, 1)


def _shift(a: Any, by: int) -> Any:
    names = tuple((f"dim{k}",) for k in range(a.ndim))
    tensor = (names,)
    sharded = frozenset(name for (name,) in names)

    def function(a: Any, axes: tuple[str, ...] = ()) -> tuple[Any, ...]:
        return (_shift_on_device(a, by, axes),)

    (shifted,) = Kernel("shift", function, tensor, tensor, sharded, shifted="dim0")(a)
    return shifted


_shifted.defvjp(lambda a: (_shift(a, 1), None), lambda _, g: (_shift(g, -1),))


def _shift_on_device(a: Any, by: int, axes: tuple[str, ...]) -> Any:
    """Moves the parts of one device's stages by one stage, forwards if `by` is 1 and backwards if
    `by` is -1. `axes` are the mesh axes that cut the stages."""
    if not axes:
        return jnp.roll(a, by, axis=0)
    devices = jax.lax.axis_size(axes)
    ring = [(k, (k + by) % devices) for k in range(devices)]
    leaving, staying = (a[-1:], a[:-1]) if by > 0 else (a[:1], a[1:])
    coming = jax.lax.ppermute(leaving, axes, ring)
    return jnp.concatenate([coming, staying] if by > 0 else [staying, coming])


def _checked(x: Any, params: Any, stages: int, microbatches: int, rounds: int) -> int:
    """Returns the number of layers.

    **Raises:** `InvalidArgumentError` if the numbers do not fit together.
    """
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
