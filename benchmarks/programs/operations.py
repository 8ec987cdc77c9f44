"""Operations of random programs. Each takes an array and returns one of the same type.

All operations are continuous in their floating-point operands, so that a plan may differ from the
original only by rounding. Sort keys are integers or far apart, and operations with ties (maxima)
are used only in single precision.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from benchmarks.programs.steps import Array, Context, Digits, fit, grows_too_large

Operation: TypeAlias = Callable[[Array, Array, Context, Digits, str], Array]
"""`operation(x, other, context, digits, name)`: `other` is an earlier value of any shape."""

OPERATIONS: dict[str, Operation] = {}
_WIDTHS = (8, 16, 4, 6, 12, 3)


def _operation(operation: Operation) -> Operation:
    OPERATIONS[operation.__name__.strip("_")] = operation
    return operation


def _rows(x: Array) -> Array:
    """Returns `x` with at least one dimension."""
    return x if x.ndim else x[None]


def _matrix(x: Array) -> Array:
    """Returns `x` with two dimensions, of which the last one is unchanged."""
    x = _rows(x)
    return x.reshape(-1, x.shape[-1])


def _by_integers(context: Context, count: int) -> Array:
    """Returns `count` different integers, in an order that depends on the tokens."""
    shift = context.inputs.tokens.reshape(-1)[0]
    return (jnp.arange(count) * 7919 + shift * 104729) % 1000003


_MAPS: tuple[Callable[[Array], Array], ...] = (
    jnp.tanh,
    jax.nn.gelu,
    jax.nn.sigmoid,
    jnp.sin,
    jax.nn.silu,
    jax.nn.softplus,
    lambda x: x * jax.lax.rsqrt(1 + x * x),
    lambda x: jnp.tanh(x) ** 3,
    jax.lax.erf,
    lambda x: jnp.exp(-x * x),
    lambda x: jnp.sqrt(1 + jnp.abs(jnp.sin(x) + 2)),
    lambda x: jnp.arctan2(x, 2 + jnp.cos(x)),
    lambda x: x.astype(jnp.float16).astype(x.dtype),
    lambda x: jax.lax.reduce_precision(x, 8, 10),
    lambda x: jnp.log1p(x * x),
)


@_operation
def _elementwise(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    return _MAPS[digits.take(len(_MAPS))](x)


@_operation
def _binary(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    other = jnp.tanh(fit(other, x))
    pairs = (
        lambda: x + other,
        lambda: jnp.tanh(x) * other,
        lambda: x - 2 * other,
        lambda: x / (2 + other),
        lambda: jnp.where(jnp.arange(x.size).reshape(x.shape) % 3 == 0, x, other),
        lambda: jnp.hypot(1 + x * x, other),
    )
    return pairs[digits.take(len(pairs))]()


@_operation
def _bias(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    return x + context.param(name, x.shape[-1:]).astype(x.dtype)


@_operation
def _matmul(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    x = _rows(x)
    width = _WIDTHS[digits.take(len(_WIDTHS))]
    return x @ context.param(name, (x.shape[-1], width)).astype(x.dtype)


@_operation
def _dense_residual(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    rows = _rows(x)
    down = context.param(name + "/down", (rows.shape[-1], 8)).astype(x.dtype)
    up = context.param(name + "/up", (8, rows.shape[-1])).astype(x.dtype)
    return (rows + jnp.tanh(rows @ down) @ up).reshape(x.shape)


@_operation
def _heads(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    x = _rows(x)
    if x.ndim > 3:
        return x
    kernel = context.param(name, (x.shape[-1], 2, _WIDTHS[digits.take(3)]))
    return jnp.einsum("...d,dhk->...hk", x, kernel.astype(x.dtype))


@_operation
def _attention(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    rows = _matrix(x)
    if rows.shape[0] > 64:
        return x
    query = rows @ context.param(name, (rows.shape[-1], rows.shape[-1])).astype(x.dtype)
    scores = query @ rows.T / rows.shape[-1]
    if digits.take(2):
        seen = jnp.tril(jnp.ones(scores.shape, bool))
        scores = jnp.where(seen, scores, -1e9)
    return (jax.nn.softmax(scores, axis=-1) @ rows).reshape(x.shape)


@_operation
def _batch_matmul(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    x = _rows(x)
    if grows_too_large(x, x.shape[-1]):
        return x
    return jnp.einsum("...i,...j->...ij", x, jnp.tanh(x)).mean(-1 - digits.take(2))


@_operation
def _reduction(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    if not x.ndim:
        return x
    axis, keep = digits.axis(x), bool(digits.take(2))
    kinds = [
        lambda: jnp.mean(x, axis, keepdims=keep),
        lambda: jnp.sum(jnp.tanh(x), axis, keepdims=keep) / 4,
        lambda: jax.nn.logsumexp(x, axis, keepdims=keep),
        lambda: jnp.var(x, axis, keepdims=keep),
    ]
    if x.dtype == jnp.float32:
        kinds.append(lambda: jnp.max(x, axis, keepdims=keep))
        kinds.append(lambda: jnp.min(x, axis, keepdims=keep))
    return kinds[digits.take(len(kinds))]()


@_operation
def _normalise(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    if not x.ndim:
        return x
    axis = digits.axis(x)
    centred = x - jnp.mean(x, axis, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis, keepdims=True) + 0.1)


@_operation
def _softmax(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    return jax.nn.softmax(x, axis=digits.axis(x)) if x.ndim else x


@_operation
def _transpose(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    axes = list(range(x.ndim))
    order = [axes.pop(digits.take(len(axes))) for _ in range(x.ndim)]
    return jnp.transpose(x, order)


@_operation
def _reshape(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    if x.ndim >= 2 and digits.take(2):
        axis = digits.take(x.ndim - 1)
        merged = x.shape[axis] * x.shape[axis + 1]
        return x.reshape(*x.shape[:axis], merged, *x.shape[axis + 2 :])
    if not x.ndim or x.ndim > 3:
        return x.reshape(-1)
    axis = digits.axis(x)
    factors = [k for k in (2, 3, 4, 1) if x.shape[axis] % k == 0]
    factor = factors[digits.take(len(factors))]
    pair = (factor, x.shape[axis] // factor)
    return x.reshape(*x.shape[:axis], *pair, *x.shape[axis + 1 :])


@_operation
def _broadcast(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    copies = digits.take(3) + 1
    if x.ndim > 3 or grows_too_large(x, copies):
        return x
    axis = digits.take(x.ndim + 1)
    wide = jnp.broadcast_to(jnp.expand_dims(x, axis), (*x.shape[:axis], copies, *x.shape[axis:]))
    return wide + jnp.arange(copies, dtype=x.dtype).reshape(-1, *[1] * (x.ndim - axis))


@_operation
def _cut(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    if not x.ndim or max(x.shape) < 2:
        return x
    axis = int(np.argmax(x.shape))
    size = x.shape[axis]
    start, tokens = digits.take(size // 2), context.inputs.tokens
    rims = [(1, 2, 1) if k == axis else (0, 0, 0) for k in range(x.ndim)]
    kinds = (
        lambda: jax.lax.slice_in_dim(x, start, size, axis=axis),
        lambda: jax.lax.slice_in_dim(x, 0, size, stride=2, axis=axis),
        lambda: jax.lax.dynamic_slice_in_dim(x, tokens[0], size // 2, axis),
        lambda: jax.lax.dynamic_update_slice_in_dim(
            x, jax.lax.slice_in_dim(jnp.sin(x), 0, size // 2, axis=axis), tokens[-1], axis
        ),
        lambda: jax.lax.pad(x, jnp.zeros((), x.dtype), rims),
        lambda: jnp.split(x, [size // 2], axis)[1],
    )
    return kinds[digits.take(len(kinds))]()


@_operation
def _join(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    if not x.ndim or grows_too_large(x, 2):
        return x
    second = fit(other, x)
    if digits.take(2) or x.ndim > 3:
        return jnp.concatenate([x, second], digits.axis(x))
    return jnp.stack([x, second], digits.axis(x))


@_operation
def _move(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    if not x.ndim:
        return x
    axis = digits.axis(x)
    return jnp.flip(x, axis) if digits.take(2) else jnp.roll(x, 1 + digits.take(3), axis)


@_operation
def _indexing(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    x = _rows(x)
    tokens = context.inputs.tokens.reshape(-1) % x.shape[0]
    kinds = (
        lambda: x[tokens],
        lambda: x.at[tokens].add(jnp.ones(x.shape[1:], x.dtype)),
        lambda: x.at[tokens].mul(0.5),
        lambda: jax.ops.segment_sum(x, jnp.resize(tokens, x.shape[0]), x.shape[0]),
        lambda: jnp.take_along_axis(
            x, jnp.resize(tokens, x.shape[0]).reshape(-1, *[1] * (x.ndim - 1)), 0
        ),
        lambda: jnp.einsum("nv,v...->n...", jax.nn.one_hot(tokens, x.shape[0], dtype=x.dtype), x),
        lambda: x * (jnp.argmax(context.inputs.tokens) + 1).astype(x.dtype) / 4,
    )
    if grows_too_large(x, max(1, tokens.size // x.shape[0])):
        return x
    return kinds[digits.take(len(kinds))]()


@_operation
def _embedding(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    x = _rows(x)
    table = context.param(name, (12, x.shape[-1])).astype(x.dtype)
    rows = table[context.inputs.tokens.reshape(-1)]
    return x + jnp.mean(rows, 0) if digits.take(2) else jnp.concatenate([_matrix(x), rows])


@_operation
def _convolution(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    x = _rows(x)
    if x.ndim > 4:
        return x
    image = x.reshape(*[1] * (3 - x.ndim), *x.shape)
    channels = image.shape[-1]
    features = _WIDTHS[digits.take(3)]
    letters = ("NWC", "WIO", "NWC") if image.ndim == 3 else ("NHWC", "HWIO", "NHWC")
    window = (2,) * (image.ndim - 2)
    kernel = context.param(name, (*window, channels, features)).astype(x.dtype)
    padding = ("SAME", "VALID")[digits.take(2) if min(image.shape[1:-1]) > 1 else 0]
    strides = (1 + digits.take(2),) * (image.ndim - 2)
    return jax.lax.conv_general_dilated(image, kernel, strides, padding, dimension_numbers=letters)


@_operation
def _pooling(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    if not x.ndim:
        return x
    window = tuple(min(2, n) for n in x.shape)
    if digits.take(2) and x.dtype == jnp.float32:
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, window, (1,) * x.ndim, "SAME") / 2


@_operation
def _cumulative(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    if not x.ndim:
        return x
    axis = digits.axis(x)
    kinds = (
        lambda: jnp.cumsum(x, axis) / x.shape[axis],
        lambda: jax.lax.cumlogsumexp(x, axis, reverse=bool(digits.take(2))),
        lambda: jnp.cumprod(1 + 0.1 * jnp.tanh(x), axis),
        lambda: jax.lax.associative_scan(lambda a, b: 0.5 * a + b, x, axis=axis),
    )
    return kinds[digits.take(len(kinds))]()


@_operation
def _sorting(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    if not x.ndim:
        return x
    axis = digits.axis(x)
    keys = _by_integers(context, x.shape[axis])
    if digits.take(2):
        return jnp.take(x, jnp.argsort(keys), axis)
    shape = [x.shape[axis] if k == axis else 1 for k in range(x.ndim)]
    spread = jnp.broadcast_to(keys.reshape(shape), x.shape)
    if x.dtype == jnp.float32 and digits.take(2):
        # The keys are so far apart that rounding does not change the order.
        return jnp.sort(jnp.tanh(x) + (spread % 97).astype(x.dtype) * 4, axis) / 97
    return jax.lax.sort((spread, x), dimension=axis, num_keys=1)[1]


@_operation
def _top(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    if not x.ndim or x.dtype != jnp.float32:
        return x
    apart = jnp.tanh(x) + (_by_integers(context, x.shape[-1]) % 97) * 4.0
    return jax.lax.top_k(apart, 1 + digits.take(x.shape[-1]))[0] / 97


@_operation
def _dropout(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    kept = jax.random.bernoulli(context.key(name), 0.75, x.shape)
    return jnp.where(kept, x / 0.75, 0).astype(x.dtype)


@_operation
def _noise(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    first, second = jax.random.split(context.key(name))
    kinds = (
        lambda: jax.random.normal(first, x.shape, x.dtype),
        lambda: jax.random.uniform(second, x.shape, x.dtype),
        lambda: jax.random.randint(second, x.shape, 0, 3).astype(x.dtype),
        lambda: jax.random.gumbel(first, x.shape, x.dtype) / 4,
        lambda: (
            jax.random.permutation(first, max(1, x.size)).reshape(x.shape).astype(x.dtype)
            / max(1, x.size)
        ),
        lambda: jnp.reshape(jax.random.key_data(first), -1)[0].astype(x.dtype) / 4294967296.0,
    )
    return x + kinds[digits.take(len(kinds))]()


@_operation
def _linear_algebra(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    rows = _matrix(x)[:, :16].astype(jnp.float32)
    gram = jnp.tanh(rows).T @ jnp.tanh(rows) / rows.shape[0] + jnp.eye(rows.shape[1])
    kinds = (
        lambda: jnp.linalg.cholesky(gram),
        lambda: jnp.linalg.solve(gram, rows.T),
        lambda: jax.scipy.linalg.solve_triangular(gram, rows.T, lower=True),
        lambda: jnp.linalg.slogdet(gram)[1][None],
        lambda: jnp.abs(jnp.fft.fft(rows, axis=1)[:, :1].real),
    )
    return kinds[digits.take(len(kinds))]().astype(x.dtype)


@_operation
def _annotation(x: Array, other: Array, context: Context, digits: Digits, name: str) -> Array:
    kinds = (
        lambda: checkpoint_name(x, "named"),
        lambda: jax.lax.optimization_barrier(x),
        lambda: x + jax.lax.stop_gradient(jnp.cos(x)),
        lambda: jax.named_call(jnp.tanh, name="named")(x),
        lambda: x.astype(jnp.float32).astype(x.dtype),
    )
    return kinds[digits.take(len(kinds))]()
