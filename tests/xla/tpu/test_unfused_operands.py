"""What XLA:TPU computes to buffers of their own: figures, and compiled programs."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from kiwi.xla.tpu.unfused_operands import UnfusedOperands, added_pads, shared_operand
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


@needs_compiler
def test_what_pooling_and_its_gradient_read_is_held_between_them():
    def step(x: jax.Array) -> Any:
        loss = lambda x: jnp.sum(windows(x) ** 2)  # noqa: E731
        return jax.value_and_grad(loss)(x)

    found = planned(step, array(16, 64, 64, 128))
    units = found.execution.units
    pairs = [(shared_operand(units, unit), unit.index) for unit in units.units]
    (pair,) = [pair for pair in pairs if pair[0] is not None]
    spans = [(b.start, b.end - 1) for b in found.estimate.buffers if b.bytes == 32 * MIB]
    assert pair in spans
    assert found.compiled is not None
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=0.1)


@needs_compiler
def test_pads_are_held_instead_of_their_sum():
    def step(x: jax.Array) -> Any:
        even = lax.pad(jnp.sin(x), 0.0, ((0, 1, 1), (0, 0, 0)))
        both = even + lax.pad(jnp.tan(x), 0.0, ((1, 0, 1), (0, 0, 0)))
        return jnp.sum(jnp.sin(both)), jnp.sum(jnp.cos(both), 0)

    found = planned(step, array(8192, 512))
    units = found.execution.units
    assert max(added_pads(units, unit) for unit in units.units) == 2
    assert found.compiled is not None and found.compiled.memory is not None
    held = [b.bytes for b in found.compiled.memory.at_peak if "pad" in b.instruction]
    assert held.count(32 * MIB) == 2
