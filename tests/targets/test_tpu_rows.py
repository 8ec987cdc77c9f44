"""Rows of gathers and matrices of batched matmuls fill tiles: figures, and compiled programs."""

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi.mesh.tiles import tiled_elements
from kiwi.targets.rules.tpu.tpu_rows_of_gathers import rows_of
from tests.helpers.planning import graph_of
from tests.xla.tpu.test_buffers import array, needs_compiler, planned

ROWS, WIDTH, TAKEN = 65_536, 8, 32_768


def ids(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "int32")


def is_as_compiled(found: kiwi.Plan, rel: float) -> None:
    assert found.compiled is not None
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=rel)


def test_rows_lie_along_the_lanes():
    assert tiled_elements((ROWS, WIDTH)) == ROWS * WIDTH
    assert tiled_elements((ROWS, WIDTH), (1,)) == ROWS * 128
    assert tiled_elements((ROWS, 4, WIDTH), (2,)) == 4 * ROWS * 128
    assert tiled_elements((ROWS, WIDTH), (0,)) == ROWS * WIDTH


@needs_compiler
@pytest.mark.parametrize("width", [8, 40])
def test_a_table_with_short_rows_is_copied_to_rows_of_lanes(width: int):
    found = planned(
        lambda table, rows: jnp.tanh(table[rows].sum(1)), array(ROWS, width), ids(TAKEN // 4, 4)
    )
    assert found.estimate.peak_bytes > 4 * ROWS * 128
    is_as_compiled(found, 0.15)


def test_elements_of_matrices_are_no_rows():
    """The matrices would take 128 lanes for each of their elements, as no program does."""
    places = jnp.arange(64)
    of_matrices = jax.vmap(lambda matrix: matrix[places, places])
    assert not rows_of(graph_of(of_matrices, array(4, 64, 64)))
    assert not rows_of(graph_of(jax.grad(lambda x: of_matrices(x).sum()), array(4, 64, 64)))
    assert rows_of(graph_of(lambda table, rows: table[rows], array(64, 8), ids(16)))


@needs_compiler
@pytest.mark.parametrize(("nodes", "edges"), [(32_768, 65_536)])
def test_messages_between_nodes_fill_rows_of_lanes(nodes: int, edges: int):
    """A graph convolution: rows are gathered by senders, and added to receivers."""

    def passed(h: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        return jnp.sin(jax.ops.segment_sum(2.0 * h[senders], receivers, nodes))

    found = planned(passed, array(nodes, 32), ids(edges), ids(edges))
    assert found.estimate.peak_bytes > 4 * edges * 128
    is_as_compiled(found, 0.3)  # the copy of `h` is free before the messages are added


@needs_compiler
@pytest.mark.parametrize("shape", [(16_384, 9, 64)])
def test_small_matrices_of_a_large_batch_fill_tiles(shape: tuple[int, ...]):
    """Interactions of features, as recommenders multiply them."""

    def gradient(x: jax.Array, weight: jax.Array) -> jax.Array:
        def loss(x: jax.Array) -> jax.Array:
            pairs = jnp.einsum("bid,bjd->bij", x, x)
            return jnp.square(pairs * weight).sum()

        return jax.grad(loss)(jnp.sin(x))

    found = planned(gradient, array(*shape), array(shape[1], shape[1]))
    is_as_compiled(found, 0.25)


def test_long_rows_stay_as_they_are():
    found = planned(
        lambda table, rows: jnp.sin(table[rows]), array(ROWS, 128), ids(TAKEN), verify=None
    )
    sizes = {b.bytes for b in found.estimate.buffers}
    assert max(sizes) == 4 * ROWS * 128
