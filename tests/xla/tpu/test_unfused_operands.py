"""The operands that XLA:TPU computes to separate buffers: figures, and compiled programs."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from kiwi.hlo.equation_kinds import repeats
from kiwi.hlo.fusion import materialised
from tests.helpers.planning import fusion_of, graph_of
from tests.xla.tpu.test_buffers import array, needs_compiler, planned

MIB = 2**20
WINDOWED = frozenset({"reduce_window", "select_and_scatter"})


def interleaved(x: jax.Array) -> jax.Array:
    """Interleaves rows of sines and tangents, and sums over the rows."""
    even = lax.pad(jnp.sin(x), 0.0, ((0, 1, 1), (0, 0, 0)))
    return jnp.sum(even + lax.pad(jnp.tan(x), 0.0, ((1, 0, 1), (0, 0, 0))), 0)


def windows(x: jax.Array) -> jax.Array:
    """Max pooling of an elementwise operator's result."""
    image, size = jnp.maximum(x, 0.5), (1, 2, 2, 1)
    return lax.reduce_window(image, -jnp.inf, lax.max, size, size, "VALID")


def pooled(x: jax.Array) -> jax.Array:
    """The gradient of `windows`."""
    return jax.grad(lambda x: jnp.sum(windows(x) ** 2))(x)


def averaged(x: jax.Array) -> jax.Array:
    """The gradient of a mean over windows, added to another gradient."""

    def loss(x: jax.Array) -> jax.Array:
        means = x.reshape(16, 32, 2, 32, 2, 128).mean((2, 4))
        return jnp.sum(means**2) + jnp.sum(jnp.sin(x))

    return jax.grad(loss)(x)


CASES: list[tuple[Any, tuple[int, ...], list[int]]] = [
    (interleaved, (8192, 512), [32 * MIB, 32 * MIB]),
    (pooled, (16, 64, 64, 128), [32 * MIB, 8 * MIB, 32 * MIB]),
    (averaged, (16, 64, 64, 128), [32 * MIB]),
]


@needs_compiler
@pytest.mark.parametrize(("function", "shape", "sizes"), CASES)
def test_pads_repeated_elements_and_operands_of_windows_have_buffers(
    function: Any, shape: tuple[int, ...], sizes: list[int]
):
    found = planned(function, array(*shape))
    units, opcodes = found.execution.units, found.execution.units.graph.opcodes
    windows = (u for u in units.units if opcodes[u.root] & WINDOWED)
    apart = {units.producer[v] for u in windows for v in u.reads if v in units.producer}
    apart |= {u.index for u in units.units if "pad" in opcodes[u.root]}
    apart |= {u.index for u in units.units if repeats(units.graph.program, u.root)}
    buffers = [b for b in found.estimate.buffers if b.kind == "result"]
    assert [b.bytes for b in buffers if b.index in apart and b.bytes >= MIB] == sizes
    assert found.compiled is not None and found.compiled.memory is not None
    held = sum(b.bytes for b in found.compiled.memory.at_peak)
    assert held >= found.compiled.argument_bytes + sum(sizes)


def test_without_matmuls_that_compute_maps_they_are_fused():
    graph = graph_of(pooled, array(16, 64, 64, 128))
    sizes = [sum(materialised(graph, fused)) for fused in (fusion_of("h100-sxm"), fusion_of("v5e"))]
    assert sizes[0] < sizes[1]
