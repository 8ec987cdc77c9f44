"""What XLA:TPU computes to buffers of their own: figures, and compiled programs."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from kiwi.xla.tpu.unfused_operands import UnfusedOperands
from tests.xla.tpu.test_buffers import array, needs_compiler, planned

MIB = 2**20


def interleaved(x: jax.Array) -> jax.Array:
    """Twice as many rows, every second of them of the tangents."""
    even = lax.pad(jnp.sin(x), 0.0, ((0, 1, 1), (0, 0, 0)))
    return jnp.sum(even + lax.pad(jnp.tan(x), 0.0, ((1, 0, 1), (0, 0, 0))), 0)


def windows(x: jax.Array) -> jax.Array:
    """Max pooling of a map."""
    image, size = jnp.maximum(x, 0.5), (1, 2, 2, 1)
    return lax.reduce_window(image, -jnp.inf, lax.max, size, size, "VALID")


def pooled(x: jax.Array) -> jax.Array:
    """The gradient of `windows`."""
    return jax.grad(lambda x: jnp.sum(windows(x) ** 2))(x)


CASES: list[tuple[Any, tuple[int, ...], list[int]]] = [
    (interleaved, (8192, 512), [32 * MIB, 32 * MIB]),
    (pooled, (16, 64, 64, 128), [32 * MIB, 8 * MIB]),
]


@needs_compiler
@pytest.mark.parametrize(("function", "shape", "sizes"), CASES)
def test_pads_and_operands_of_windows_have_buffers(
    function: Any, shape: tuple[int, ...], sizes: list[int]
):
    found = planned(function, array(*shape))
    units = found.execution.units
    largest = max(
        (UnfusedOperands.of(units, unit).buffers({}, (), 0) for unit in units.units), key=sum
    )
    assert sorted(largest, reverse=True) == sizes
    assert found.compiled is not None and found.compiled.memory is not None
    held = sum(b.bytes for b in found.compiled.memory.at_peak)
    assert held >= found.compiled.argument_bytes + sum(sizes)
