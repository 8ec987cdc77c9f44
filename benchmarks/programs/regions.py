"""Operations of random programs that run a body: loops, branches, calls, custom derivatives.

In `region(x, run, context, digits, name)`, `run(x, context)` runs the body, which returns an array
of the shape and type of `x`.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from benchmarks.programs.steps import Array, Context, Digits

Body: TypeAlias = Callable[[Array, Context], Array]
Region: TypeAlias = Callable[[Array, Body, Context, Digits, str], Array]

REGIONS: dict[str, Region] = {}
LOOPS: set[str] = set()
"""The names of regions that run their body repeatedly."""

CHOICES: set[str] = set()
"""The names of regions in which a value decides how often the body runs: a `while`, a `cond` or a
`switch`."""

_POLICIES = (
    None,
    jax.checkpoint_policies.dots_saveable,
    jax.checkpoint_policies.save_only_these_names("named"),
    jax.checkpoint_policies.nothing_saveable,
)


def _region(region: Region) -> Region:
    REGIONS[region.__name__.strip("_")] = region
    return region


def _loop(region: Region) -> Region:
    LOOPS.add(region.__name__.strip("_"))
    return _region(region)


def _choice(region: Region) -> Region:
    CHOICES.add(region.__name__.strip("_"))
    return region


def _shapes(x: Array, body: Body, context: Context) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the parameters that a body asks for."""
    recorder = context.inside(None, 0)
    jax.eval_shape(lambda x: body(x, recorder), x)
    return recorder.shapes


@_loop
def _scan_layers(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    """A scan with separate parameters for each iteration, which may stack a result."""
    length = 1 + digits.take(4)
    stacked = context.params(_shapes(x, body, context), length)
    yields, reverse, unroll = digits.take(2), bool(digits.take(2)), 1 + digits.take(2)

    def layer(carry: Array, layer_of: Any) -> tuple[Array, Any]:
        params, k = layer_of
        after = body(carry, context.inside(params, k))
        return after, jnp.tanh(after) if yields else None

    rows = (stacked, jnp.arange(length))
    x, seen = jax.lax.scan(layer, x, rows, reverse=reverse, unroll=unroll)
    return x if seen is None else x + jnp.mean(seen, 0)


@_loop
def _scan_time(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    """A recurrence along an axis, with parameters that all iterations share."""
    if not x.ndim or x.shape[0] > 16:
        return body(x, context)
    axis, reverse = digits.axis(x), bool(digits.take(2))
    if x.shape[axis] > 16:
        axis = 0

    def step(carry: Any, row: Array) -> tuple[Any, Array]:
        state, count = carry
        after = body(jnp.tanh(state + row), context.in_loop(count))
        return (after, count + 1), after * 0.5

    rows = jnp.moveaxis(x, axis, 0)
    (last, _), seen = jax.lax.scan(step, (jnp.zeros_like(rows[0]), 0), rows, reverse=reverse)
    return jnp.moveaxis(seen + last, 0, axis)


@_loop
def _accumulate(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    """A loop with two sums that start equal, over rows that exist before the loop. One sum may be
    unread."""
    if not x.ndim or x.shape[0] > 16:
        return body(x, context)

    def step(sums: Any, row: Array) -> tuple[Any, None]:
        k, first, second = sums
        after = body(row, context.in_loop(k))
        return (k + 1, first + after, second - jnp.sin(after)), None

    zeros = jnp.zeros_like(x[0])
    (_, first, second), _ = jax.lax.scan(step, (0, zeros, zeros), x)
    return x + (first if digits.take(2) else first * jnp.tanh(second))


@_loop
def _fori(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    """A loop with bounds that are known when traced."""
    first = digits.take(2)
    step = lambda k, carry: body(carry, context.in_loop(k))  # noqa: E731
    return jax.lax.fori_loop(first, first + digits.take(4), step, x)


@_choice
@_loop
def _while_loop(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    """A loop with bounds that are known only at run time. It is not differentiated."""
    count = context.inputs.tokens.reshape(-1)[0] % 4
    params = context.params(_shapes(x, body, context), None)
    fixed, x_fixed = jax.lax.stop_gradient((params, x))

    def step(state: Any) -> Any:
        k, carry = state
        return k + 1, body(carry, context.inside(fixed, k))

    return x + jax.lax.while_loop(lambda s: s[0] < count, step, (0, x_fixed))[1]


@_choice
@_loop
def _while_any(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    """A loop whose condition reads a whole array. Its carries change places, and only the condition
    reads one of them."""
    count = context.inputs.tokens.reshape(-1)[0] % 3
    left = count - jnp.arange(x.shape[0] if x.ndim else 1)
    params = context.params(_shapes(x, body, context), None)
    fixed, x_fixed = jax.lax.stop_gradient((params, x))

    def step(state: Any) -> Any:
        left, k, first, second = state
        return left - 1, k + 1, second, jnp.tanh(body(first, context.inside(fixed, k)) + second)

    start = (left, 0, x_fixed, jnp.zeros_like(x))
    _, k, first, second = jax.lax.while_loop(lambda s: jnp.any(s[0] > 0), step, start)
    return x + (second if digits.take(2) else first * jnp.cos(k.astype(x.dtype)))


@_choice
@_loop
def _while_rows(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    """A loop under `jax.vmap`, with a separate number of iterations for each row."""
    if not x.ndim:
        return body(x, context)
    counts = (jnp.arange(x.shape[0]) + context.inputs.tokens.reshape(-1)[0]) % 3
    params = context.params(_shapes(x[0], body, context), None)
    fixed, x_fixed = jax.lax.stop_gradient((params, x))

    def run(row: Array, count: Array) -> Array:
        step = lambda s: (s[0] + 1, body(s[1], context.inside(fixed, s[0])))  # noqa: E731
        return jax.lax.while_loop(lambda s: s[0] < count, step, (0, row))[1]

    return x + jax.vmap(run)(x_fixed, counts)


@_choice
@_loop
def _bounded(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    """A differentiated `while` of at most three iterations: a scan of `cond`s."""
    count = context.inputs.tokens.reshape(-1)[0] % 4

    def step(carry: Array, k: Array) -> tuple[Array, None]:
        run = lambda x: body(x, context.in_loop(k))  # noqa: E731
        return jax.lax.cond(k < count, run, lambda x: x, carry), None

    return jax.lax.scan(step, x, jnp.arange(3))[0]


@_loop
def _lax_map(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    """A map over rows, one by one or in batches."""
    if not x.ndim or x.shape[0] > 16:
        return body(x, context)
    batch = 2 if digits.take(2) else None
    return jax.lax.map(lambda row: body(row, context), x, batch_size=batch)


@_choice
@_region
def _cond(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    condition = context.inputs.tokens.reshape(-1)[digits.take(2) - 1] % 2 == 0
    return jax.lax.cond(condition, lambda x: body(x, context), lambda x: jnp.sin(x), x)


@_choice
@_region
def _cond_twice(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    """Two conditionals on one value, with several results, some of which are zeros."""
    condition = context.inputs.tokens.reshape(-1)[0] % 2 == 0
    both = lambda x: (body(x, context), jnp.tanh(x))  # noqa: E731
    first, second = jax.lax.cond(condition, both, lambda x: (x, jnp.zeros_like(x)), x)
    last = lambda x: body(jnp.sin(x), context)  # noqa: E731
    return first + jax.lax.cond(condition, lambda x: second * x, last, second - x)


@_choice
@_region
def _switch(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    index = context.inputs.tokens.reshape(-1)[-1] % 3
    branches = (lambda x: body(x, context), jnp.cos, lambda x: body(-x, context))
    return jax.lax.switch(index, branches, x)


@_region
def _checkpoint(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    policy, fenced = _POLICIES[digits.take(len(_POLICIES))], bool(digits.take(2))
    run = lambda x: body(x, context)  # noqa: E731
    return jax.checkpoint(run, policy=policy, prevent_cse=fenced)(x)


@_region
def _nested_jit(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    run = jax.jit(lambda x: body(x, context), inline=bool(digits.take(2)))
    return run(run(x)) if digits.take(2) else run(x)


@_region
def _vmapped(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    if not x.ndim:
        return body(x, context)
    axis = digits.axis(x)
    return jax.vmap(lambda row: body(row, context), axis, axis)(x)


@_region
def _custom_vjp(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    params = context.params(_shapes(x, body, context), None)

    def forward(x: Array, params: Any, rest: Any) -> Any:
        return jax.vjp(lambda x, params: body(x, Context.of(rest, params)), x, params)

    def plain(x: Array, params: Any, rest: Any) -> Array:
        return body(x, Context.of(rest, params))

    function = jax.custom_vjp(plain)
    function.defvjp(forward, lambda pull, g: (*pull(2 * g), None))
    return function(x, params, context.rest)


@_region
def _custom_jvp(x: Array, body: Body, context: Context, digits: Digits, name: str) -> Array:
    params = context.params(_shapes(x, body, context), None)

    def plain(x: Array, params: Any, rest: Any) -> Array:
        return body(x, Context.of(rest, params))

    function = jax.custom_jvp(plain)

    @function.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        value, tangent = jax.jvp(plain, primals, tangents)
        return value, 0.5 * tangent

    return function(x, params, context.rest)
