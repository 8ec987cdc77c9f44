"""The printed text of a piece computes the same as the piece."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kiwi.deviation.pieces import Piece, whole_piece
from kiwi.deviation.printed import loaded, printed
from kiwi.errors import InvalidFunctionError
from kiwi.hlo.tracing import trace


def spec(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def softmax_gradient(x: jax.Array) -> list[jax.Array]:
    return [jax.grad(lambda t: jnp.sum(jax.nn.softmax(t) ** 2))(x)]


def convolutions(x: jax.Array, k: jax.Array) -> list[jax.Array]:
    def loss(k: jax.Array) -> jax.Array:
        found = jax.lax.conv_general_dilated(
            x, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(jax.nn.relu(found) ** 2)

    return [jax.grad(loss)(k)]


def fourier(x: jax.Array) -> list[jax.Array]:
    return [jnp.fft.irfft(jnp.fft.rfft(x) * 2.0, n=x.shape[-1])]


def gathers(x: jax.Array, numbers: jax.Array) -> list[jax.Array]:
    return [jax.grad(lambda t: jnp.sum(t[numbers] ** 2))(x), jnp.argmax(x, axis=-1)]


def recurrence(x: jax.Array) -> list[jax.Array]:
    def step(carry: jax.Array, now: jax.Array):
        carry = jnp.tanh(carry + jax.nn.relu(now))
        return carry, carry * 2.0

    return list(jax.lax.scan(step, jnp.zeros(x.shape[1]), x))


def interleaved(x: jax.Array) -> list[jax.Array]:
    return [jax.lax.associative_scan(jnp.multiply, x, axis=0)]


CASES = {
    "softmax": (softmax_gradient, (spec(4, 8),)),
    "bfloat16": (softmax_gradient, (spec(4, 8, dtype=jnp.bfloat16),)),
    "convolutions": (convolutions, (spec(2, 8, 8, 3), spec(3, 3, 3, 4))),
    "fourier": (fourier, (spec(3, 16),)),
    "gathers": (gathers, (spec(6, 4), spec(5, dtype=jnp.int32))),
    "recurrence": (recurrence, (spec(5, 4),)),
    "associative scan": (interleaved, (spec(9, 4),)),
}


def piece_of(function: Callable[..., Any], types: tuple[Any, ...]) -> Piece:
    return whole_piece(trace(function, types))


@pytest.mark.parametrize("name", CASES)
def test_the_text_computes_the_piece(name: str):
    function, types = CASES[name]
    piece = piece_of(function, types)
    again, arguments = loaded(printed(piece, "A comment."))
    assert [(a.shape, a.dtype) for a in arguments] == [
        (t.shape, t.dtype) for t in piece.argument_types
    ]
    rng = np.random.default_rng(0)
    arrays = [
        jnp.asarray(
            rng.integers(0, 4, t.shape) if t.dtype == jnp.int32 else rng.normal(size=t.shape),
            t.dtype,
        )
        for t in piece.argument_types
    ]
    for mine, theirs in zip(again(*arrays), piece.function(*arrays), strict=True):
        np.testing.assert_allclose(
            np.asarray(mine, np.float32), np.asarray(theirs, np.float32), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("name", CASES)
def test_the_text_has_the_same_equations(name: str):
    function, types = CASES[name]
    piece = piece_of(function, types)
    again, arguments = loaded(printed(piece))
    printed_piece = piece_of(again, tuple(arguments))

    def equations(piece: Piece) -> list[tuple[str, str]]:
        # `add_any` is what autodiff calls an `add`; literals are converted as they are traced.
        return [
            (node.name.replace("add_any", "add"), node.scope)
            for node in piece.nodes
            if node.reads or node.name != "convert_element_type"
        ]

    assert equations(printed_piece) == equations(piece)


def test_what_python_cannot_say_is_refused():
    def function(x: jax.Array) -> list[jax.Array]:
        return [jax.pure_callback(np.sin, spec(4), x)]

    with pytest.raises(InvalidFunctionError, match="pure_callback"):
        printed(piece_of(function, (spec(4),)))
